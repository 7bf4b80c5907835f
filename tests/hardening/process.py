"""``wattline serve`` as a process of its own, over the stand-in for NVIDIA's library, and ways to talk to it."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import aiohttp
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from tests.nvml.standin import StandIn

ROOT = Path(__file__).parents[2]
PATIENCE = 30.0
"""Seconds until a wait is a failure; nothing here takes so long."""
STOPS_WITHIN = 8.0
"""Below the 10 s after which a container is killed, on a machine however busy. On a quiet one it is 2 s, by the waits
that there are: see ``test_end.py``."""
SERVE = "import sys; from wattline.cli import main; sys.exit(main(['serve', *sys.argv[1:]]))"


@dataclass(frozen=True)
class Answer:
    status: int
    body: bytes
    headers: dict[str, str]

    @property
    def text(self) -> str:
        return self.body.decode()

    @cached_property
    def _samples(self) -> dict[str, list[Sample]]:
        found: dict[str, list[Sample]] = {}
        for family in text_string_to_metric_families(self.text):
            for sample in family.samples:
                found.setdefault(sample.name, []).append(sample)
        return found

    def values(self, name: str, /, **labels: str) -> list[float]:
        """The values of all series of this name that have these labels, among others."""
        return [s.value for s in self._samples.get(name, ()) if labels.items() <= s.labels.items()]

    def value(self, name: str, /, **labels: str) -> float | None:
        """The value of the only such series; ``None`` when there is none."""
        found = self.values(name, **labels)
        assert len(found) <= 1, found
        return found[0] if found else None


class Exporter:
    def __init__(self, process: asyncio.subprocess.Process, scheme: str) -> None:
        self.process = process
        self.scheme = scheme
        self.port = 0
        self.lines: list[str] = []
        self._news = asyncio.Event()
        self._reading = asyncio.create_task(self._read())

    @property
    def log(self) -> str:
        return "\n".join(self.lines)

    @property
    def url(self) -> str:
        return f"{self.scheme}://127.0.0.1:{self.port}"

    async def _read(self) -> None:
        assert self.process.stderr is not None
        async for line in self.process.stderr:
            self.lines.append(line.decode().rstrip("\n"))
            self._news.set()
        self._news.set()

    async def logged(self, pattern: str) -> re.Match[str]:
        """Wait until a line of the log matches."""
        async with asyncio.timeout(PATIENCE):
            while True:
                self._news.clear()
                for line in self.lines:
                    if match := re.search(pattern, line):
                        return match
                assert not self._reading.done(), f"it has ended:\n{self.log}"
                await self._news.wait()

    async def ask(self, path: str = "/metrics", method: str = "GET", **headers: str) -> Answer:
        """One request; header names are written with underscores. Nothing is unpacked and no redirect followed."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        async with (
            aiohttp.ClientSession(auto_decompress=False, skip_auto_headers=("Accept-Encoding", "Accept")) as session,
            session.request(
                method, f"{self.url}{path}", headers=named, allow_redirects=False, ssl=self.scheme != "https"
            ) as response,
        ):
            return Answer(response.status, await response.read(), dict(response.headers))

    async def until(self, holds: Callable[[Answer], object], path: str = "/metrics") -> Answer:
        """Ask again and again until the answer is as wanted."""
        async with asyncio.timeout(PATIENCE):
            while True:
                answer = await self.ask(path)
                if holds(answer):
                    return answer
                await asyncio.sleep(0.05)

    async def ended(self, within: float = STOPS_WITHIN) -> int:
        """Wait for the end; when it takes longer, a failure that tells where it is."""
        try:
            async with asyncio.timeout(within):
                code = await self.process.wait()
        except TimeoutError:
            # Python's fault handler writes down what every thread does.
            self.process.send_signal(signal.SIGABRT)
            await self.process.wait()
            await self._reading
            raise AssertionError(f"it has not ended within {within:g} s:\n{self.log}") from None
        await self._reading
        return code

    async def stop(self, how: signal.Signals = signal.SIGTERM) -> int:
        self.process.send_signal(how)
        return await self.ended()


@asynccontextmanager
async def serving(
    *arguments: str | Path,
    standin: StandIn | None = None,
    environment: dict[str, str] | None = None,
    code: str = SERVE,
    scheme: str = "http",
    listening: bool = True,
) -> AsyncIterator[Exporter]:
    """Run ``wattline serve``; wait until it listens, on a port that the system chose.

    Args:
        arguments: further flags.
        standin: what it takes for NVIDIA's library; none: there is none.
        environment: further variables.
        code: Python lines that start it, perhaps after bending something.
        scheme: http or https.
        listening: whether to wait until it listens.
    """
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        code,
        *map(str, arguments),
        "--web.listen-address",
        "127.0.0.1:0",
        cwd=ROOT,
        env={
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "PYTHONFAULTHANDLER": "1",
            **(standin.environment if standin else {}),
            **(environment or {}),
        },
        stderr=asyncio.subprocess.PIPE,
    )
    exporter = Exporter(process, scheme)
    try:
        if listening:
            exporter.port = int((await exporter.logged(r"serves https?://[^ ]*:(\d+)/"))[1])
        yield exporter
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
        await exporter._reading
