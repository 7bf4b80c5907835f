"""The command: read and judge this host for a while, and keep what was read."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING, Protocol

from rich.console import Console

from wattline.durations import format_duration
from wattline.interrupt import until_interrupted
from wattline.recording.writer import RecordingObserver, RecordingWriter
from wattline.yamlfile import ConfigError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path
    from typing import TextIO

    from wattline.analysis.observer import Observer
    from wattline.analysis.snapshot import Snapshot


LEAST_SECONDS = 1.0


class Recordable(Protocol):
    """What reads and judges, for instance :class:`wattline.session.Session`."""

    observer: Observer
    """Is given every reading and asked for every verdict."""

    async def start(self) -> None:
        """Begin to read."""

    async def stop(self) -> None:
        """Stop reading."""

    def judge(self) -> Snapshot:
        """Everything that is known and believed now."""

    def beat(self) -> float:
        """Real seconds from one verdict to the next."""


async def run(
    session: Recordable,
    path: Path,
    *,
    seconds: float | None = None,
    anonymous: bool = False,
    err: TextIO | None = None,
    sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
) -> int:
    """Record until the time is over, or until SIGINT or SIGTERM, which are an end as good as any.

    Args:
        session: not started yet.
        path: the file; it must not exist.
        seconds: how long, on the clock of the readings; ``None`` for until interrupted.
        anonymous: leave out whose recording it is.
        err: where to say how it goes, on a terminal only; standard error when it is not given.
        sleep: waits so many real seconds.

    Returns:
        The exit code: 0, or 2 when nothing could be read. Then no file is left.

    Raises:
        ConfigError: the time is too short.
        RecordingError: the file is there, cannot be written, or is full.
    """
    if seconds is not None and seconds < LEAST_SECONDS:
        raise ConfigError("--for", f"expected at least {LEAST_SECONDS:g}s, found {seconds:g}s")
    screen = Console(file=err or sys.stderr, highlight=False)
    with RecordingWriter(path, session.observer.plan, anonymous=anonymous) as writer:
        known = session.observer.learned_idle()
        session.observer = RecordingObserver(session.observer.plan, writer)
        for uuid, watts in known.items():
            session.observer.restore_idle(uuid, watts)
        done = 0.0
        last: Snapshot | None = None
        with until_interrupted(), screen.status("Recording") as status:
            await session.start()
            try:
                last = session.judge()
                first = last.t
                while seconds is None or done < seconds:
                    await sleep(session.beat())
                    last = session.judge()
                    done = last.t - first
                    status.update(f"Recording: {_size(writer.bytes_written)} in {_time(done)}; Ctrl-C ends it")
            finally:
                await session.stop()
    if not writer.holds_readings:
        writer.remove()
        print(f"wattline: nothing could be read{_why(last)}", file=err or sys.stderr)
        return 2
    if screen.is_terminal:
        screen.print(f"{path}: {_size(writer.bytes_written)}, {_time(done)}. See it with: wattline explain {path}")
    return 0


def _why(last: Snapshot | None) -> str:
    """What the sources say, as far as they say anything."""
    told = [f"{source.name}: {source.detail}" for source in (last.sources if last else ()) if source.detail]
    return f": {'; '.join(told)}" if told else ""


def _size(count: int) -> str:
    return f"{count / 1e6:.1f} MB" if count >= 1e6 else f"{count / 1e3:.0f} kB"  # noqa: PLR2004


def _time(seconds: float) -> str:
    return format_duration(float(round(seconds)))
