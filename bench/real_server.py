"""A real llama.cpp server on a real GPU, judged live while it lives through known situations.

Usage: ``python -m bench.real_server --server 'llama-server -ngl 99' --model FILE [--record FILE] [--json FILE]``. Needs
one NVIDIA GPU and a llama-server that computes on it (with ``--metrics``, which is added). The truth is the client's
own count of open requests and of tokens. Prints truth and verdict side by side. Changes no setting of the card.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import shlex
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import aiohttp
from rich.console import Console
from rich.table import Table

from bench.acceptance import free_port, process

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

WINDOW = 15.0
CONTEXT = 4096
SLOTS = 32
"""Requests that the server runs at once."""


@dataclass(frozen=True, slots=True)
class Load:
    """What clients do."""

    clients: int = 0
    prompt: int = 100
    """Bytes, which are tokens of this model."""
    answer: int = 400
    """Tokens."""


@dataclass(frozen=True, slots=True)
class Situation:
    """A stretch of time with one truth."""

    name: str
    load: Load
    seconds: float
    right: frozenset[str]
    """States that tell the truth."""
    cause: str | None = None
    """A cause that has to be suspected."""
    slots: int = SLOTS
    stopped: bool = False
    """The server is stopped by a signal meanwhile."""
    starved: int = 0
    """So many busy loops share the one core that the server may use."""


SITUATIONS = (
    Situation("idle, model loaded", Load(), 35, frozenset({"idle"})),
    Situation("one answer", Load(1, answer=3000), 35, frozenset({"working"})),
    Situation("32 clients", Load(32), 40, frozenset({"working", "saturated"})),
    Situation("long prompts", Load(16, prompt=3000, answer=8), 40, frozenset({"working", "saturated"})),
    Situation("idle again", Load(), 30, frozenset({"idle"})),
    # It answers nobody, its metrics neither: that it holds requests can then not be known.
    Situation("stopped under load", Load(32), 45, frozenset({"unknown"}), stopped=True),
    Situation("resumed", Load(32), 40, frozenset({"working", "saturated"})),
    Situation("starved of CPU", Load(32), 45, frozenset({"working", "low_power", "idle_while_busy"}), starved=15),
    Situation("two slots, 64 clients", Load(64), 45, frozenset({"working", "saturated"}), slots=2),
)


@dataclass(slots=True)
class Client:
    """Counts what it has open and what it was given."""

    url: str
    open: int = 0
    done: int = 0
    tokens: int = 0
    prompt_tokens: int = 0
    held: list[tuple[float, int]] = field(default_factory=list)

    async def one(self, session: aiohttp.ClientSession, load: Load, number: int) -> None:
        """One request."""
        text = f"{number} " + "".join(chr(97 + (number * 7 + k * 3) % 26) for k in range(load.prompt))
        body = {"prompt": text, "n_predict": load.answer, "ignore_eos": True, "cache_prompt": False, "temperature": 1.0}
        self.open += 1
        try:
            async with session.post(f"{self.url}/completion", json=body) as response:
                answer = await response.json()
                self.tokens += int(answer["tokens_predicted"])
                self.prompt_tokens += int(answer["tokens_evaluated"])
                self.done += 1
        finally:
            self.open -= 1

    async def run(self, load: Load, until: float) -> None:
        """Keep so many requests open."""
        timeout = aiohttp.ClientTimeout(total=None)
        async with aiohttp.ClientSession(timeout=timeout, connector=aiohttp.TCPConnector(limit=0)) as session:

            async def worker(number: int) -> None:
                while time.monotonic() < until:
                    await self.one(session, load, number)
                    number += load.clients

            workers = [asyncio.create_task(worker(n)) for n in range(load.clients)]
            while time.monotonic() < until:
                self.held.append((time.monotonic(), self.open))
                await asyncio.sleep(0.2)
            for each in workers:
                each.cancel()
            await asyncio.gather(*workers, return_exceptions=True)


def threads(pid: int) -> list[int]:
    """All threads of a process."""
    return [int(task.name) for task in Path(f"/proc/{pid}/task").iterdir()]


@contextlib.contextmanager
def starved(pid: int, loops: int) -> Iterator[None]:
    """Let a process use one core, and let so many busy loops use it too."""
    cores, core = os.sched_getaffinity(0), max(os.sched_getaffinity(0))
    with contextlib.ExitStack() as stack:
        for _ in range(loops):
            loop = stack.enter_context(process(sys.executable, "-c", "while True: pass"))
            os.sched_setaffinity(loop.pid, {core})
        for thread in threads(pid):
            os.sched_setaffinity(thread, {core})
        yield
        for thread in threads(pid):
            os.sched_setaffinity(thread, cores)


@dataclass(slots=True)
class Server:
    """The inference server; another number of slots starts it anew."""

    command: list[str]
    port: int
    running: subprocess.Popen[bytes] | None = None
    slots: int = 0

    @property
    def url(self) -> str:
        """Where it answers."""
        return f"http://127.0.0.1:{self.port}"

    async def with_slots(self, slots: int) -> None:
        """Have it run with so many slots, and wait until it can answer."""
        if self.slots == slots:
            return
        self.end()
        more = ("--metrics", "--host", "127.0.0.1", "--port", str(self.port))
        sizes = ("-np", str(slots), "-c", str(slots * CONTEXT))
        self.running = subprocess.Popen([*self.command, *more, *sizes])  # noqa: ASYNC220 - nothing else runs yet
        self.slots = slots
        async with aiohttp.ClientSession() as session:
            while self.running.poll() is None:
                with contextlib.suppress(aiohttp.ClientError):
                    async with session.get(f"{self.url}/health") as response:
                        if response.ok:
                            return
                await asyncio.sleep(0.5)
        raise RuntimeError(f"{self.command[0]} ended with {self.running.returncode}")

    def end(self) -> None:
        """Stop it."""
        if self.running is not None:
            self.running.send_signal(signal.SIGCONT)
            self.running.kill()
            self.running.wait()


@dataclass(frozen=True, slots=True)
class Outcome:
    """What was so and what was said, over the part of a situation in which a window lies inside it."""

    situation: Situation
    open_mean: float
    tokens_per_second: float
    watts: float | None
    said: dict[str, int]
    """Seconds by state."""
    causes: dict[str, int]
    last: dict[str, Any]

    @property
    def holds(self) -> bool:
        """Whether nothing untrue was said."""
        cause = self.situation.cause
        return set(self.said) <= self.situation.right and (cause is None or cause in self.causes)


async def watch(url: str, until: float, seen: list[dict[str, Any]]) -> None:
    """Ask the exporter once a second."""
    async with aiohttp.ClientSession() as session:
        while time.monotonic() < until:
            with contextlib.suppress(aiohttp.ClientError):
                async with session.get(f"{url}/api/v1/status") as response:
                    seen.append({"at": time.monotonic(), **await response.json()})
            await asyncio.sleep(1.0)


async def live_through(situation: Situation, server: Server, exporter: str) -> Outcome:
    """One situation."""
    await server.with_slots(situation.slots)
    if server.running is None:
        raise RuntimeError("the server does not run")
    client = Client(server.url)
    begun = time.monotonic()
    until = begun + situation.seconds
    seen: list[dict[str, Any]] = []
    with contextlib.ExitStack() as stack:
        if situation.starved:
            stack.enter_context(starved(server.running.pid, situation.starved))
        tasks = asyncio.gather(client.run(situation.load, until), watch(exporter, until, seen))
        if situation.stopped:
            await asyncio.sleep(8)
            server.running.send_signal(signal.SIGSTOP)
            begun += 8
        await tasks
        if situation.stopped:
            server.running.send_signal(signal.SIGCONT)
    inside = [s for s in seen if s["at"] >= begun + WINDOW + 5 and s["deployments"]]
    said: dict[str, int] = {}
    causes: dict[str, int] = {}
    watts = []
    for status in inside:
        deployment = status["deployments"][0]
        said[deployment["state"]] = said.get(deployment["state"], 0) + 1
        for suspicion in deployment["suspicions"]:
            causes[suspicion["cause"]] = causes.get(suspicion["cause"], 0) + 1
        watts += [w for gpu in status["gpus"] if (w := gpu.get("power_watts")) is not None]
    held = [n for at, n in client.held if at >= begun + WINDOW]
    return Outcome(
        situation,
        statistics.fmean(held) if held else 0.0,
        client.tokens / situation.seconds,
        statistics.fmean(watts) if watts else None,
        said,
        causes,
        inside[-1] if inside else {},
    )


async def run(
    command: list[str], situations: list[Situation], record: Path | None, tell: Callable[[Outcome], None]
) -> list[Outcome]:
    """Live through all of them."""
    server, address = Server(command, free_port()), f"127.0.0.1:{free_port()}"
    outcomes = []
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        config = await asyncio.to_thread(Path, folder, "wattline.yml")
        await asyncio.to_thread(
            config.write_text,
            f"deployments:\n  - {{name: llama, engines: [{{url: '{server.url}/metrics', name: llama}}]}}\n"
            f"window: {WINDOW:.0f}s\nengine_interval: 1s\ngrace: 1s\n",
        )
        stack.callback(server.end)
        await server.with_slots(situations[0].slots)
        wattline = (sys.executable, "-m", "wattline")
        given = ("--config.file", str(config))
        stack.enter_context(process(*wattline, "serve", *given, "--web.listen-address", address))
        if record is not None:
            stack.enter_context(process(*wattline, "record", str(record), *given))
        for situation in situations:
            outcomes.append(await live_through(situation, server, f"http://{address}"))
            tell(outcomes[-1])
    return outcomes


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--server", required=True, help="the command that starts llama-server on the GPU")
    parser.add_argument("--model", required=True)
    parser.add_argument("--record", type=Path, help="record everything that the exporter reads meanwhile")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--only", default="", help="situations, by their beginnings, with commas between")
    options = parser.parse_args()
    only = tuple(filter(None, (part.strip() for part in options.only.split(","))))
    situations = [s for s in SITUATIONS if not only or s.name.startswith(only)]
    command = [*shlex.split(options.server), "-m", options.model]

    def tell(o: Outcome) -> None:
        print(f"{o.situation.name}: {o.said} {o.causes}", file=sys.stderr, flush=True)

    outcomes = asyncio.run(run(command, situations, options.record, tell))
    table = Table("situation", "open", "tokens/s", "W", "right", "said, s", "causes, s", "holds")
    for o in outcomes:
        watts = "-" if o.watts is None else f"{o.watts:.0f}"
        said, causes = (", ".join(f"{k} {v}" for k, v in found.items()) for found in (o.said, o.causes))
        right = " or ".join(sorted(o.situation.right))
        table.add_row(
            o.situation.name,
            f"{o.open_mean:.1f}",
            f"{o.tokens_per_second:.0f}",
            watts,
            right,
            said,
            causes,
            str(o.holds),
        )
    Console(width=170).print(table)
    if options.json:
        rows = [
            {
                "situation": o.situation.name,
                "open": o.open_mean,
                "tokens_per_second": o.tokens_per_second,
                "watts": o.watts,
                "said": o.said,
                "causes": o.causes,
                "last": o.last,
            }
            for o in outcomes
        ]
        options.json.write_text(json.dumps(rows, indent=1))
    return 0 if all(o.holds for o in outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
