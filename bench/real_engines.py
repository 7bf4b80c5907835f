"""Real inference servers, driven by a client that counts itself: what was so, and what Wattline said.

Usage: ``python -m bench.real_engines [--only ENGINE,...] [--situations NAME,...] [--keep FOLDER]``. Needs no GPU: the
servers compute on the CPU, and the stand-in for NVIDIA's library draws what a card would draw. Takes some seven minutes
an engine, and the first time as long again to install it under ``build/engines``. ``--keep`` writes what was seen,
second by second, as the tests in ``tests/real_engines`` read it; ``--record`` keeps Wattline's own recording.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gzip
import itertools
import json
import os
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

from bench.acceptance import free_port
from bench.engine_servers import SERVERS, Server, ServerRow
from tests.nvml.standin import StandIn, build, h200
from wattline.engines.exposition import plain
from wattline.engines.normalise import normalise
from wattline.engines.tables import KINDS

if TYPE_CHECKING:
    from collections.abc import Iterator

WINDOW = 10.0
LIMIT = 700.0
IDLE_WATTS, WORK_WATTS = 122.0, 420.0
DRAIN_SECONDS = 40.0
"""How long open requests may take to end after a situation, so that the client knows all tokens of it."""
BAD = frozenset({"idle_while_busy", "stalled", "low_power"})
WORKS = frozenset({"working", "saturated"})


@dataclass(frozen=True, slots=True)
class Situation:
    """A stretch of time with one truth."""

    name: str
    right: frozenset[str]
    """States that tell the truth."""
    clients: int = 0
    """Requests that are kept open."""
    prompt: int = 40
    """Bytes, which are tokens of this model."""
    answer: int = 200
    """Tokens."""
    stream: bool = True
    watts: float = WORK_WATTS
    """What the card draws while requests are open."""
    seconds: float = 24.0
    abort_after: float | None = None
    """Seconds after which a client leaves."""
    probes: bool = False
    """The server's health is asked for twice a second."""
    hang: bool = False
    """What computes is stopped after six seconds, and goes on at the end."""
    after_hang: bool = False
    restart: bool = False
    """The server is killed under load after six seconds, and started again."""
    settle: float = WINDOW + 3.0
    """Seconds from the beginning, the hang or the restart until a whole window lies within."""

    def truth(self, row: ServerRow) -> frozenset[str]:
        """The right states for this server: what does not answer is unknown, what refuses everybody holds nothing."""
        if self.hang and row.deaf_when_hung:
            return frozenset({"unknown"})
        return frozenset({"idle"}) if self.after_hang and row.forgotten_when_hung else self.right


SITUATIONS = (
    Situation("fresh", frozenset({"idle", "unknown"})),
    Situation("one long answer", WORKS, 1, answer=3000),
    Situation("many streamed", WORKS, 12),
    Situation("many at once", WORKS, 12, stream=False),
    Situation("idle", frozenset({"idle"})),
    Situation("short streamed answers", frozenset({"working", "idle"}), 1, answer=8, watts=130.0),
    Situation("three short streamed", frozenset({"working", "idle"}), 3, answer=8, watts=135.0),
    Situation("long prompts", WORKS, 8, prompt=2000, answer=4, watts=560.0),
    Situation("full batch with a queue", WORKS, 40, answer=100),
    Situation("clients that leave", frozenset({"working", "idle"}), 12, answer=1000, watts=250.0, abort_after=1.5),
    Situation("health probes", frozenset({"idle"}), probes=True),
    Situation("served at idle power", frozenset({"idle_while_busy"}), 24, watts=125.0, seconds=30),
    Situation("hang", frozenset({"stalled"}), 24, answer=400, seconds=45, hang=True, settle=WINDOW + 10.0),
    Situation("resumed", WORKS, 12, after_hang=True),
    Situation("killed and restarted", frozenset({"idle", "unknown"}), 12, seconds=6, restart=True),
)


@dataclass(slots=True)
class Client:
    """Counts what it has open and what it was given."""

    url: str
    open: int = 0
    done: int = 0
    aborted: int = 0
    failed: int = 0
    generated: int = 0
    prompt: int = 0
    arrived: int = 0
    """Pieces of streamed answers: that the server gets on is seen by the client itself."""
    held_seconds: float = 0.0
    _moved: float = field(default_factory=time.monotonic)
    _number: int = 0

    def move(self, by: int = 0) -> None:
        """Keep the account of open requests."""
        now = time.monotonic()
        self.held_seconds += self.open * (now - self._moved)
        self._moved, self.open = now, self.open + by

    async def one(self, session: aiohttp.ClientSession, situation: Situation) -> None:
        """One request."""
        self._number += 1
        text = f"{self._number} " + "".join(chr(97 + (self._number * 7 + k * 3) % 26) for k in range(situation.prompt))
        body: dict[str, Any] = {"model": "tiny", "prompt": text, "max_tokens": situation.answer, "ignore_eos": True}
        if situation.stream:
            body |= {"stream": True, "stream_options": {"include_usage": True}}
        self.move(+1)
        pause = 0.0
        try:
            async with (
                asyncio.timeout(situation.abort_after),
                session.post(f"{self.url}/v1/completions", json=body) as response,
            ):
                usage = await (self._streamed(response) if situation.stream else self._whole(response))
                self.generated += usage["completion_tokens"]
                self.prompt += usage["prompt_tokens"]
                self.done += 1
        except TimeoutError:
            self.aborted += 1
        except (aiohttp.ClientError, KeyError, TypeError, json.JSONDecodeError):
            self.failed += 1
            pause = 0.2
        finally:
            self.move(-1)
        # Without it a server that refuses everything would be asked thousands of times.
        await asyncio.sleep(pause)

    async def _streamed(self, response: aiohttp.ClientResponse) -> dict[str, int]:
        usage = None
        async for line in response.content:
            if line.startswith(b"data: {"):
                self.arrived += 1
                usage = json.loads(line[6:]).get("usage") or usage
        return usage  # type: ignore[return-value]

    @staticmethod
    async def _whole(response: aiohttp.ClientResponse) -> dict[str, int]:
        usage: dict[str, int] = (await response.json())["usage"]
        return usage


@dataclass(slots=True)
class Bench:
    """One engine, the card beside it, the exporter, and what was seen each second."""

    server: Server
    card: StandIn
    exporter: str
    client: Client
    rows: list[dict[str, Any]] = field(default_factory=list)
    label: str = ""
    since: float = 0.0
    _watts: float = 0.0

    def draw(self, watts: float) -> None:
        """Have the card draw so much, with the utilisation that goes with it."""
        if watts == self._watts:
            return
        self._watts = watts
        share = (watts - IDLE_WATTS) / (LIMIT - IDLE_WATTS)
        busy, sm, dram = (97, 100 * share, 70 * share) if share > 0.02 else (0, 0, 0)
        milli = int(1000 * watts)
        self.card.forget()
        self.card.say(
            f"* nvmlDeviceGetPowerUsage value={milli}",
            f"* field.186.0 value={milli} type=1",
            f"* nvmlDeviceGetTotalEnergyConsumption value=2248080 per_second={milli}",
            f"* nvmlDeviceGetUtilizationRates value={busy}:{int(dram)}",
            f"* gpm.2 value={sm:.1f}",
            f"* gpm.5 value={sm / 4:.1f}",
            f"* gpm.10 value={dram:.1f}",
        )

    async def look(self, session: aiohttp.ClientSession) -> None:
        """One row: the truth of the client, the text of the server, the verdict."""
        client, before = self.client, self.rows[-1] if self.rows else None
        text, status = "", None
        with contextlib.suppress(aiohttp.ClientError, TimeoutError):
            async with session.get(f"{self.server.url}/metrics", timeout=aiohttp.ClientTimeout(total=0.8)) as answer:
                text = await answer.text() if answer.ok else ""
        client.move()
        now = time.monotonic()
        with contextlib.suppress(aiohttp.ClientError, TimeoutError, IndexError):
            async with session.get(f"{self.exporter}/api/v1/status") as answer:
                status = (await answer.json())["deployments"][0]
        row = {
            "label": self.label,
            "t": round(now, 2),
            "since": round(now - self.since, 2),
            "watts": self._watts,
            "open": client.open,
            "held_seconds": round(client.held_seconds, 2),
            "done": client.done,
            "ended": client.done + client.aborted + client.failed,
            "generated": client.generated,
            "prompt": client.prompt,
            "arrived": client.arrived,
            "said": status,
            "text": text,
        }
        row["open_mean"] = (
            0.0
            if before is None
            else round((row["held_seconds"] - before["held_seconds"]) / max(0.1, row["t"] - before["t"]), 2)
        )
        self.rows.append(row)

    async def watch(self) -> None:
        """Look once a second for ever."""
        async with aiohttp.ClientSession() as session:
            while True:
                beat = time.monotonic() + 1.0
                await self.look(session)
                await asyncio.sleep(max(0.05, beat - time.monotonic()))

    async def live_through(self, situation: Situation) -> None:
        """One situation, and the end of its requests."""
        self.label, self.since = situation.name, time.monotonic()
        until = self.since + situation.seconds
        self.draw(situation.watts if situation.clients else IDLE_WATTS)
        timeout = aiohttp.ClientTimeout(total=None)
        # llama.cpp's server ends the connection after a streamed answer without saying so.
        connector = aiohttp.TCPConnector(limit=0, force_close=True)
        async with aiohttp.ClientSession(timeout=timeout, connector=connector) as session:

            async def keep_one_open() -> None:
                while time.monotonic() < until:
                    await self.client.one(session, situation)

            async def ask_for_health() -> None:
                while time.monotonic() < until:
                    with contextlib.suppress(aiohttp.ClientError, TimeoutError):
                        async with session.get(f"{self.server.url}/health") as answer:
                            await answer.read()
                    await asyncio.sleep(0.5)

            tasks = [asyncio.create_task(keep_one_open()) for _ in range(situation.clients)]
            if situation.probes:
                tasks.append(asyncio.create_task(ask_for_health()))
            if situation.hang:
                await self._hang(until)
            elif situation.restart:
                await self._restart(tasks)
            else:
                await asyncio.sleep(max(0.0, until - time.monotonic()))
            self.label = "between"
            if tasks:
                await asyncio.wait(tasks, timeout=DRAIN_SECONDS)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        self.draw(IDLE_WATTS)
        await asyncio.sleep(2)

    async def _hang(self, until: float) -> None:
        """Under load, what computes stands still until then."""
        await asyncio.sleep(6)
        self.server.signal(signal.SIGSTOP)
        self.draw(IDLE_WATTS)
        self.since = time.monotonic()
        await asyncio.sleep(max(0.0, until - time.monotonic()))
        self.label = "between"
        self.server.signal(signal.SIGCONT)

    async def _restart(self, tasks: list[asyncio.Task[None]]) -> None:
        """Under load, the server ends; another one starts and is asked for nothing."""
        name = self.label
        await asyncio.sleep(6)
        self.label = "between"
        self.draw(IDLE_WATTS)
        self.server.kill()
        for task in tasks:
            task.cancel()
        await asyncio.to_thread(self.server.start)
        self.label, self.since = name, time.monotonic()
        await asyncio.sleep(WINDOW + 14.0)


@contextlib.contextmanager
def exporter(folder: Path, card: StandIn, url: str, name: str, record: Path | None) -> Iterator[str]:
    """The exporter over the card and the server."""
    address = f"127.0.0.1:{free_port()}"
    config = folder / "wattline.yml"
    config.write_text(
        f"deployments:\n  - {{name: real, engines: [{{url: '{url}/metrics', name: {name}}}], gpus: [0]}}\n"
        f"window: {WINDOW:.0f}s\nengine_interval: 1s\ngrace: 1s\n"
    )
    environment = {**os.environ, **card.environment, "PYTHONPATH": os.pathsep.join(sys.path)}
    wattline = (sys.executable, "-m", "wattline")
    commands: list[tuple[str, ...]] = [
        (*wattline, "serve", "--config.file", str(config), "--web.listen-address", address)
    ]
    if record is not None:
        commands.append((*wattline, "record", str(record), "--config.file", str(config)))
    with (folder / "exporter.log").open("w") as log:
        running = [subprocess.Popen(command, env=environment, stdout=log, stderr=log) for command in commands]
        try:
            yield f"http://{address}"
        finally:
            for each in running:
                each.terminate()
            for each in running:
                each.wait(20)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What was so and what was said, over the part of a situation in which a window lies inside it."""

    engine: str
    situation: Situation
    open_mean: float
    read_held: float | None
    """Mean of what the texts say is running and queued."""
    read_front: float | None
    little: float | None
    """Mean number inside by the summed time of ended requests."""
    tokens: int
    """The client's own, until its last request ended."""
    read_tokens: float | None
    said: dict[str, int]

    @property
    def right(self) -> frozenset[str]:
        """States that tell the truth."""
        return self.situation.truth(SERVERS[self.engine])

    @property
    def false(self) -> bool:
        """A fault was told that was none."""
        return bool(set(self.said) & BAD - self.right)

    @property
    def missed(self) -> bool:
        """A fault was not told."""
        return bool(self.right & BAD) and not set(self.said) & self.right

    @property
    def holds(self) -> bool:
        """Whether nothing untrue was said. The last word of a fault counts: it takes its time to be sure."""
        return not self.false and not self.missed and (bool(self.right & BAD) or set(self.said) <= self.right)


def _mean(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known else None


def judged(engine: str, rows: list[dict[str, Any]], situation: Situation) -> Outcome:
    """What the rows of one situation come to."""
    own = [row for row in rows if row["label"] == situation.name]
    inside = [row for row in own if row["since"] >= situation.settle] or own[-1:]
    readings = [normalise(row["text"], engine=engine, t=row["t"]) for row in inside]
    begun = rows.index(own[0])
    # Until the first row of another situation: the answers that were open at the end belong to this one.
    after = [*itertools.takewhile(lambda row: row["label"] in (situation.name, "between"), rows[begun:])]
    ends = [normalise(row["text"], engine=engine, t=row["t"]) for row in (rows[max(0, begun - 1)], after[-1])]
    little, tokens = None, None
    if ends[0].up and ends[1].up:
        tokens = (ends[1].generation_tokens or 0.0) - (ends[0].generation_tokens or 0.0)
    first, last = (normalise(row["text"], engine=engine, t=row["t"]) for row in (own[0], own[-1]))
    if first.request_seconds is not None and last.request_seconds is not None and last.t > first.t:
        little = (last.request_seconds - first.request_seconds) / (last.t - first.t)
    said: dict[str, int] = {}
    for row in inside:
        state = row["said"]["state"] if row["said"] else "nothing"
        said[state] = said.get(state, 0) + 1
    return Outcome(
        engine,
        situation,
        statistics.fmean(row["open_mean"] for row in inside),
        _mean([None if r.running is None or r.queued is None else r.running + r.queued for r in readings]),
        _mean([r.held_http for r in readings]),
        little,
        after[-1]["generated"] - rows[max(0, begun - 1)]["generated"],
        tokens,
        said,
    )


def kept(engine: str, rows: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """The rows, with the lines of the text that the engine's table looks at and the state alone."""
    kind = KINDS[engine]
    wanted = kind.wanted()
    for row in rows:
        lines = [
            line
            for line in row["text"].splitlines()
            if not line.startswith("#") and plain(line.partition("{")[0].partition(" ")[0]) in wanted
        ]
        said = row["said"]["state"] if row["said"] else None
        yield {**row, "said": said, "text": "".join(f"{line}\n" for line in lines)}


async def run(name: str, situations: list[Situation], library: Path, record: Path | None) -> list[dict[str, Any]]:
    """Have one engine live through all of them."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        server = await asyncio.to_thread(Server, SERVERS[name], free_port(), folder)
        card = StandIn(library, folder, h200(1))
        with exporter(folder, card, server.url, name, record) as address:
            bench = Bench(server, card, address, Client(server.url))
            try:
                bench.draw(IDLE_WATTS)
                await asyncio.to_thread(server.start)
                bench.label = "between"
                watcher = asyncio.create_task(bench.watch())
                await asyncio.sleep(2)
                for situation in situations:
                    await bench.live_through(situation)
                    o = judged(name, bench.rows, situation)
                    print(f"{name}, {situation.name}: {o.said} {'' if o.holds else 'DOES NOT HOLD'}", file=sys.stderr)
                watcher.cancel()
            except BaseException:
                with contextlib.suppress(OSError):
                    print((folder / "log").read_text(errors="replace")[-4000:], file=sys.stderr)
                raise
            finally:
                server.kill()
    return bench.rows


def table(outcomes: list[Outcome]) -> Table:
    """Truth, what was said, and the error."""
    shown = Table(
        "engine",
        "situation",
        "open",
        "running + queued",
        "front",
        "Little",
        "tokens",
        "read",
        "off",
        "said, s",
        "holds",
    )

    def number(value: float | None) -> str:
        return "-" if value is None else f"{value:.1f}"

    for o in outcomes:
        whole = o.situation.clients > 0 and o.situation.abort_after is None and not o.situation.restart
        off = "-"
        if whole and o.read_tokens is not None and o.tokens:
            off = f"{100 * (o.read_tokens - o.tokens) / o.tokens:+.2f} %"
        shown.add_row(
            o.engine,
            o.situation.name,
            f"{o.open_mean:.1f}",
            number(o.read_held),
            number(o.read_front),
            number(o.little),
            str(o.tokens),
            "-" if o.read_tokens is None else f"{o.read_tokens:.0f}",
            off,
            ", ".join(f"{state} {n}" for state, n in o.said.items()),
            "yes" if o.holds else "FALSE" if o.false else "MISSED" if o.missed else "no",
        )
    return shown


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", default=",".join(SERVERS))
    parser.add_argument("--situations", default="")
    parser.add_argument("--keep", type=Path)
    parser.add_argument("--record", type=Path)
    options = parser.parse_args()
    only = tuple(filter(None, options.situations.split(",")))
    situations = [s for s in SITUATIONS if not only or s.name in only]
    outcomes = []
    with tempfile.TemporaryDirectory() as folder:
        library = build(Path(folder))
        for name in options.only.split(","):
            record = options.record / f"{name}.jsonl.gz" if options.record else None
            rows = asyncio.run(run(name, situations, library, record))
            if options.keep:
                options.keep.mkdir(parents=True, exist_ok=True)
                with gzip.open(options.keep / f"{name}_{SERVERS[name].release}.jsonl.gz", "wt") as file:
                    file.writelines(f"{json.dumps(row)}\n" for row in kept(name, rows))
            outcomes += [judged(name, rows, situation) for situation in situations]
    Console(width=190).print(table(outcomes))
    false, missed = sum(o.false for o in outcomes), sum(o.missed for o in outcomes)
    print(f"{len(outcomes)} situations: {false} false, {missed} missed")
    return 0 if all(o.holds for o in outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
