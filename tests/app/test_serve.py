"""The exporter as a process: what answers when, and how it ends."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest

DEADLINE = 20.0


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


@asynccontextmanager
async def wattline(*arguments: str, environment: dict[str, str] | None = None) -> AsyncIterator[Running]:
    port = free_port()
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "wattline.cli",
        *arguments,
        "--web.listen-address",
        f"127.0.0.1:{port}",
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, **(environment or {})},
    )
    async with aiohttp.ClientSession(f"http://127.0.0.1:{port}") as session:
        running = Running(process, session)
        try:
            await running.until("/-/healthy", lambda status, _: status == 200)
            yield running
        finally:
            if process.returncode is None:
                process.kill()
            await process.wait()


class Running:
    def __init__(self, process: asyncio.subprocess.Process, session: aiohttp.ClientSession) -> None:
        self.process = process
        self.session = session

    async def get(self, path: str, **headers: str) -> tuple[int, str]:
        async with self.session.get(path, headers=headers) as answer:
            return answer.status, await answer.text()

    async def until(self, path: str, holds: Callable[[int, str], bool]) -> str:
        """Ask again until the answer is as wanted, or the time for it is over."""
        async with asyncio.timeout(DEADLINE):
            while True:
                try:
                    status, text = await self.get(path)
                except aiohttp.ClientError:
                    assert self.process.returncode is None, await self.errors()
                    await asyncio.sleep(0.02)
                    continue
                if holds(status, text):
                    return text
                await asyncio.sleep(0.05)

    async def errors(self) -> str:
        assert self.process.stderr is not None
        return (await self.process.stderr.read()).decode()

    async def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        """The exit code. How little it waits for at its end is told by ``tests/hardening/test_end.py``."""
        self.process.send_signal(number)
        async with asyncio.timeout(DEADLINE):
            return await self.process.wait()


async def test_without_a_gpu_it_lives_tells_why_and_is_not_ready() -> None:
    async with wattline("serve") as running:
        status, text = await running.get("/-/ready")
        assert status == 503
        text = await running.until("/metrics", lambda _, t: 'kind="library_not_found"' in t)
        assert 'wattline_source_up{source="nvml"} 0.0' in text
        assert "wattline_gpu_power_watts" not in text
        assert 'wattline_engine_up{deployment="default",engine="127.0.0.1:30000"} 0.0' in text
        assert 'wattline_deployment_state{deployment="default",state="unknown"} 1.0' in text
        assert await running.end() == 0


async def test_the_demo_becomes_ready_and_ends_well() -> None:
    async with wattline("demo", "--speed", "20", "--scenario", "healthy") as running:
        await running.until("/-/ready", lambda status, _: status == 200)
        text = await running.until("/metrics", lambda _, t: 'state="working"} 1.0' in t)
        assert text.count("wattline_gpu_up{") == 8
        status, page = await running.get("/api/v1/status")
        assert status == 200
        assert json.loads(page)["phase"]["name"] == "healthy"
        assert await running.end() == 0


async def test_a_directory_for_many_processes_in_the_environment_stays_empty(tmp_path: Path) -> None:
    async with wattline("serve", environment={"PROMETHEUS_MULTIPROC_DIR": str(tmp_path)}) as running:
        assert (await running.get("/metrics"))[0] == 200
    assert entries(tmp_path) == []


def entries(folder: Path) -> list[Path]:
    return list(folder.iterdir())


GOOD = "deployments: [{name: first, engines: [{url: 'http://127.0.0.1:1/metrics'}]}]\n"


@pytest.mark.parametrize("how", ["signal", "post"])
async def test_a_good_configuration_is_taken_and_a_bad_one_refused(tmp_path: Path, how: str) -> None:
    file = tmp_path / "wattline.yml"
    file.write_text(GOOD)
    async with wattline("serve", "--config.file", str(file), "--web.enable-lifecycle") as running:

        async def reload() -> tuple[int, str]:
            if how == "signal":
                running.process.send_signal(signal.SIGHUP)
                return 0, ""
            async with running.session.post("/-/reload") as answer:
                return answer.status, await answer.text()

        file.write_text(GOOD.replace("first", "second"))
        await reload()
        await running.until("/metrics", lambda _, t: 'deployment="second"' in t and 'deployment="first"' not in t)
        file.write_text("window: soon\n")
        status, text = await reload()
        if how == "post":
            assert status == 500
            assert f"{file}:1: window" in text
        text = await running.until("/metrics", lambda _, t: "wattline_config_last_reload_successful 0.0" in t)
        assert 'deployment="second"' in text
        file.write_text(GOOD)
        await reload()
        await running.until("/metrics", lambda _, t: "wattline_config_last_reload_successful 1.0" in t)


async def test_reload_by_post_does_not_exist_unless_it_is_asked_for(tmp_path: Path) -> None:
    file = tmp_path / "wattline.yml"
    file.write_text(GOOD)
    async with wattline("serve", "--config.file", str(file)) as running, running.session.post("/-/reload") as answer:
        assert answer.status in {404, 405}


async def test_a_recording_is_served_in_the_place_of_a_host() -> None:
    recording = Path(__file__).parent.parent / "recording" / "data" / "climb_1024.jsonl.gz"
    async with wattline("serve", "--replay", str(recording), "--replay.speed", "30") as running:
        await running.until("/metrics", lambda _, t: 'state="idle_while_busy"} 1.0' in t)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("serve", "--config.file", "/nowhere/wattline.yml"), "/nowhere/wattline.yml"),
        (("serve", "--replay", "/etc/hostname"), "wattline record"),
        (("demo", "--scenario", "nonsense"), "unknown scenario 'nonsense'"),
        (("demo", "--speed", "1000"), "at most 60"),
        (("serve", "--web.listen-address", "nowhere"), "host:port"),
        (("check", "--for", "soon"), "--for"),
    ],
)
async def test_wrong_use_is_told_without_a_traceback(arguments: tuple[str, ...], says: str) -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "wattline.cli", *arguments, stderr=asyncio.subprocess.PIPE
    )
    _, errors = await asyncio.wait_for(process.communicate(), DEADLINE)
    assert process.returncode == 2
    assert says in errors.decode()
    assert "Traceback" not in errors.decode()


@pytest.mark.parametrize("arguments", [("version",), ("completion", "bash"), ("--help",)])
async def test_output_that_nobody_reads_is_no_traceback(arguments: tuple[str, ...]) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "wattline.cli", *arguments, stdout=writing, stderr=asyncio.subprocess.PIPE
    )
    os.close(writing)
    _, errors = await asyncio.wait_for(process.communicate(), DEADLINE)
    assert errors == b""


async def test_an_address_in_use_is_told() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "wattline.cli",
            "serve",
            "--web.listen-address",
            address,
            stderr=asyncio.subprocess.PIPE,
        )
        _, errors = await asyncio.wait_for(process.communicate(), DEADLINE)
    assert process.returncode == 2
    assert "address already in use" in errors.decode().lower()
