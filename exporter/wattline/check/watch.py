"""Watching: verdicts in, a progress bar or a live table while they come, the answer at the end."""

from __future__ import annotations

import asyncio
import select
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

import msgspec
from msgspec.structs import replace
from rich.console import Console
from rich.live import Live
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from wattline.check.render import drawn, show
from wattline.check.report import Watched, encode
from wattline.interrupt import until_interrupted
from wattline.publish.words import sentence
from wattline.yamlfile import ConfigError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
    from typing import TextIO

    from wattline.analysis.plan import Plan
    from wattline.analysis.snapshot import Snapshot, State
    from wattline.config import Config

LEAST_SECONDS = 10.0
POLLS = 6
"""An engine is asked at least this often within a short watch."""
READINGS = 10
"""And a GPU is read so often."""


class Judging(Protocol):
    """What reads and judges, for instance :class:`wattline.session.Session`."""

    def judge(self) -> Snapshot:
        """Everything that is known and believed now."""

    def beat(self) -> float:
        """Real seconds from one verdict to the next."""


def shortened(config: Config, seconds: float) -> Config:
    """The configuration for a watch of so many seconds: its verdict looks at no more than that.

    Raises:
        ConfigError: no verdict can be had in that time.
    """
    if seconds < LEAST_SECONDS:
        raise ConfigError("--for", f"expected at least {LEAST_SECONDS:.0f}s, found {seconds:g}s")
    window = min(config.window, seconds)
    return replace(
        config,
        window=window,
        engine_interval=min(config.engine_interval, window / POLLS),
        sample_interval=min(config.sample_interval, window / READINGS),
    )


async def judged(
    session: Judging,
    seconds: float | None,
    *,
    sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
) -> AsyncIterator[Snapshot]:
    """Yield the verdicts of a session, for so many seconds of its own clock, or for ever."""
    snapshot = session.judge()
    start = snapshot.t
    yield snapshot
    while seconds is None or snapshot.t - start < seconds:
        await sleep(session.beat())
        snapshot = session.judge()
        yield snapshot


async def at_once(snapshots: Iterable[Snapshot]) -> AsyncIterator[Snapshot]:
    """Yield the verdicts of a replay as fast as they come."""
    for snapshot in snapshots:
        yield snapshot


async def run(
    snapshots: AsyncIterator[Snapshot],
    plan: Plan,
    *,
    seconds: float | None = None,
    live: bool = False,
    as_json: bool = False,
    note: Callable[[], str] = str,
    out: TextIO | None = None,
    err: TextIO | None = None,
) -> int:
    """Watch verdicts until they end, and print the answer. With ``live`` Ctrl-C is an end as good as any.

    Args:
        snapshots: from :func:`judged`, or of a replay.
        plan: what is judged and how.
        seconds: how long it takes, for the progress bar.
        live: keep the answer on the screen and up to date meanwhile. On no terminal: say when a state changes, or,
            with ``as_json``, print one line of JSON a verdict.
        as_json: answer in JSON.
        note: asked at the end for a remark about what was watched.
        out: for the answer; standard output when it is not given.
        err: for the progress; standard error when it is not given.

    Returns:
        The exit code: 0 nothing found, 1 finding, 2 could not tell.
    """
    out, screen = out or sys.stdout, Console(file=out or sys.stdout, highlight=False)
    watched = Watched(plan)
    if live:
        await _watch_live(snapshots, watched, out, screen, as_json=as_json)
    else:
        with _progress(Console(file=err or sys.stderr, highlight=False), seconds) as advance:
            async for snapshot in snapshots:
                watched.add(snapshot)
                advance(watched.seconds, snapshot)
    if watched.last is None:
        why = f": {remark}" if (remark := note()) else ""
        print(f"Nothing was watched, and there is no verdict{why}.", file=err or sys.stderr)
        return 2
    report = watched.report(note())
    if not as_json:
        show(report, screen)
    elif not live:
        out.write(msgspec.json.format(encode(report)).decode() + "\n")
    return report.exit_code


def _draws(screen: Console) -> bool:
    """Whether something can be drawn again in its place."""
    return screen.is_terminal and not screen.is_dumb_terminal


def _unread(out: TextIO) -> bool:
    """Whether nobody can read any more what is written: told without writing."""
    try:
        told = select.poll()
        told.register(out.fileno(), 0)
    except (OSError, ValueError):
        return False
    return bool(told.poll(0))


@contextmanager
def _progress(screen: Console, seconds: float | None) -> Iterator[Callable[[float, Snapshot], None]]:
    """A bar on a terminal, nothing elsewhere."""
    if not _draws(screen):
        yield lambda *_: None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
    with Progress(*columns, console=screen, transient=True) as progress:
        task = progress.add_task("Watching", total=seconds)

        def advance(done: float, snapshot: Snapshot) -> None:
            progress.update(task, completed=done, description=_now(snapshot))

        yield advance


def _now(snapshot: Snapshot) -> str:
    """What can be said while the watch goes on."""
    power = [g.sample.power_watts for g in snapshot.gpus if g.sample and g.sample.power_watts is not None]
    work = [e.work for e in snapshot.engines if e.work is not None]
    words = [f"{sum(power):,.0f} W on {len(power)} GPUs"] if power else []
    words += [f"{sum(work):,.0f} requests held"] if work else []
    return f"Watching: {', '.join(words)}" if words else "Watching"


async def _watch_live(
    snapshots: AsyncIterator[Snapshot], watched: Watched, out: TextIO, screen: Console, *, as_json: bool
) -> None:
    """Show every verdict as it comes, until they end or somebody interrupts."""
    with until_interrupted():
        if _draws(screen) and not as_json:
            # What does not fit on the alternate screen stands in the answer that is left at the end.
            with Live(console=screen, screen=True, auto_refresh=False) as display:
                async for snapshot in snapshots:
                    watched.add(snapshot)
                    display.update(drawn(watched.report(), screen), refresh=True)
        else:
            said: dict[str, State] = {}
            async for snapshot in snapshots:
                watched.add(snapshot)
                lines = [encode(watched.report()).decode()] if as_json else _changes(snapshot, watched.seconds, said)
                out.writelines(f"{line}\n" for line in lines)
                out.flush()
                if _unread(out):
                    raise BrokenPipeError


def _changes(snapshot: Snapshot, seconds: float, said: dict[str, State]) -> Iterator[str]:
    for view in snapshot.deployments:
        if said.get(view.name) is not view.state:
            said[view.name] = view.state
            yield f"{seconds:5.0f} s  {view.name}: {view.state.record.title}: {sentence(view.reason)}."
