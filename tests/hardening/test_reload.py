"""Another configuration while it runs: what is taken, what is refused, and what it may cost."""

from __future__ import annotations

import asyncio
import re
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.engines.servers import Server, answer
from tests.hardening.process import SERVE, serving
from tests.nvml.standin import StandIn
from wattline.app import Exporter as App
from wattline.publish.server import Publication
from wattline.yamlfile import ConfigError

UP = "wattline_engine_up"
GOOD = "wattline_config_last_reload_successful"
WHEN = "wattline_config_last_reload_success_timestamp_seconds"


def named(*names: str, more: str = "") -> str:
    engines = ", ".join(
        f"{{url: 'http://127.0.0.1:{port}/metrics', name: {name}}}" for port, name in enumerate(names, 1)
    )
    return f"deployments: [{{name: d, engines: [{engines}]}}]\n{more}"


async def test_every_kind_of_bad_file_is_refused_with_its_reason_and_the_old_one_stays_in_force(tmp_path: Path) -> None:
    file = tmp_path / "wattline.yml"
    file.write_text(named("a"))
    async with serving("--config.file", file, "--web.enable-lifecycle") as exporter:
        before = (await exporter.ask()).value(WHEN)
        file.unlink()
        bad: dict[str, Any] = {"no such file": None}
        bad |= {"is a directory": "folder", "unknown key": named("b", more="windows: 60s\n")}
        bad |= {"is not valid YAML": "deployments: [", "is not UTF-8": b"\xff", "is larger than": b"# " * 600_000}
        bad |= {"expected an address": "deployments: [{engines: [{url: 'http://x\\y:1/'}]}]"}
        bad |= {"tags such as": "deployments: !!python/object/apply:os.system ['true']"}
        for reason, content in bad.items():
            if content == "folder":
                file.mkdir()
            elif content is not None:
                file.write_bytes(content if isinstance(content, bytes) else content.encode())
            refused = await exporter.ask("/-/reload", "POST")
            assert refused.status == 500
            assert reason in refused.text
            assert str(file) in refused.text
            now = await exporter.ask()
            assert (now.value(GOOD), now.value(WHEN)) == (0.0, before)
            assert now.values(UP, engine="a") == [0.0]
            assert now.values(UP, engine="b") == []
            await exporter.logged(f"level=error .*{re.escape(reason)}")
            file.rmdir() if content == "folder" else file.unlink(missing_ok=True)
        assert "Traceback" not in exporter.log
        file.write_text(named("b"))
        assert (await exporter.ask("/-/reload", "POST")).status == 200
        now = await exporter.until(lambda answer: answer.values(UP, engine="b"))
        assert now.value(GOOD) == 1.0
        assert (now.value(WHEN) or 0.0) > (before or 0.0)


async def test_of_an_engine_that_is_no_longer_configured_no_series_is_left(tmp_path: Path) -> None:
    file = tmp_path / "wattline.yml"
    async with Server(answer()) as server:
        kept = f"{{url: '{server.url}', name: kept}}"
        file.write_text(f"deployments: [{{name: d, engines: [{kept}, {{url: 'http://127.0.0.1:1/m', name: leaves}}]}}]")
        async with serving("--config.file", file, "--web.enable-lifecycle") as exporter:
            seen = await exporter.until(lambda a: a.values("wattline_source_errors_total", source="engine:leaves"))
            assert "engine:leaves" in seen.text
            read = await exporter.until(
                lambda a: a.values("wattline_source_read_seconds_count", source="engine:kept") == [1.0]
            )
            assert read.values("wattline_source_read_seconds_count", source="engine:leaves") == [1.0]
            file.write_text(f"deployments: [{{name: d, engines: [{kept}]}}]")
            assert (await exporter.ask("/-/reload", "POST")).status == 200
            gone = await exporter.until(lambda a: not a.values(UP, engine="leaves"))
            assert "leaves" not in gone.text
            # Who stays keeps its past.
            assert gone.values("wattline_source_read_seconds_count", source="engine:kept")[0] >= 1.0
            assert gone.values("wattline_engine_running_requests", engine="kept") == [3.0]


async def test_without_a_file_a_hangup_takes_the_defaults_again_and_ends_nothing() -> None:
    async with serving() as exporter:
        exporter.process.send_signal(signal.SIGHUP)
        await exporter.logged("Configuration reloaded")
        assert (await exporter.ask()).value(GOOD) == 1.0
        assert await exporter.stop() == 0


async def test_a_hangup_while_it_starts_is_answered_when_it_has_started(tmp_path: Path) -> None:
    file = tmp_path / "wattline.yml"
    file.write_text(named("a"))
    slow = "from wattline.state import StateFile; import threading; StateFile.load = lambda _: threading.Event().wait()"
    file.write_text(named("a", more="state_file: state.json\n"))
    first, rest = SERVE.split(";", 1)
    async with serving("--config.file", file, code=f"{first}\n{slow}\n{rest.strip()}") as exporter:
        file.write_text(named("b", more="state_file: state.json\n"))
        exporter.process.send_signal(signal.SIGHUP)
        await exporter.until(lambda answer: answer.values(UP, engine="b"))
        assert await exporter.stop() == 0
        assert "Traceback" not in exporter.log


async def test_of_many_requests_to_reload_the_last_file_is_in_force(tmp_path: Path, standin: StandIn) -> None:
    file = tmp_path / "wattline.yml"
    file.write_text(named("e0"))
    async with serving("--config.file", file, "--web.enable-lifecycle", standin=standin) as exporter:
        for number in range(1, 21):
            # Every other one changes how often GPUs are read, too.
            file.write_text(named(f"e{number}", more=f"sample_interval: {1 + number % 2}s\n"))
            exporter.process.send_signal(signal.SIGHUP)
            if number % 5 == 0:
                answers = await asyncio.gather(*(exporter.ask("/-/reload", "POST") for _ in range(4)))
                assert {each.status for each in answers} == {200}
        last = await exporter.until(lambda a: a.values(UP, engine="e20"))
        assert len(last.values(UP)) == 1
        await exporter.until(lambda a: len(a.values("wattline_gpu_power_watts")) == 2)
        assert await exporter.stop() == 0
        assert "Traceback" not in exporter.log
    assert standin.count("init succeeded") == standin.count("nvmlShutdown")


async def test_while_a_driver_call_hangs_it_reloads_and_the_other_gpu_is_read_at_the_new_pace(
    tmp_path: Path, standin: StandIn
) -> None:
    file = tmp_path / "wattline.yml"
    file.write_text(named("a"))
    standin.say("0 nvmlDeviceGetPowerUsage hang=1")
    async with serving("--config.file", file, "--web.enable-lifecycle", standin=standin) as exporter:
        await exporter.until(lambda answer: answer.values("wattline_gpu_power_watts", gpu="1"))
        file.write_text(named("b", more="sample_interval: 200ms\n"))
        reload = asyncio.create_task(exporter.ask("/-/reload", "POST"))
        assert (await exporter.ask()).status == 200
        assert (await reload).status == 200
        await exporter.until(lambda a: a.values(UP, engine="b"))
        read = standin.count("nvmlDeviceGetPowerUsage", 1)
        text = await exporter.until(lambda _: standin.count("nvmlDeviceGetPowerUsage", 1) > read + 5)
        assert text.values("wattline_gpu_power_watts", gpu="1") == [122.631]
        assert await exporter.stop() == 0
    assert standin.count("nvmlInit") == 1


class Reading:
    """Stands for a session: reads nothing."""


@pytest.mark.parametrize(
    ("fault", "said"),
    [(ConfigError("w.yml", "wrong", line=3), "w.yml:3: wrong"), (KeyError("x"), "failed: KeyError")],
)
async def test_a_reload_that_fails_in_any_way_is_told_and_is_not_the_end(fault: Exception, said: str) -> None:
    faults: list[Exception] = [fault]

    async def reload() -> None:
        if faults:
            raise faults.pop()

    publication = Publication()
    session: Any = Reading()
    app = App(session, publication, listen=("127.0.0.1", 0), reload_config=reload)
    app._started.set()
    assert await app.reload() == said
    assert publication.registry.registry.get_sample_value(GOOD) == 0.0
    assert publication.registry.registry.get_sample_value(WHEN) == 0.0
    assert await app.reload() == ""
    assert publication.registry.registry.get_sample_value(GOOD) == 1.0
