"""A recording through the analysis again."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from exporter.analysis.observer import Observer
from exporter.recording.layout import Judged, Lost, Restored

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator

    from exporter.analysis.plan import Plan
    from exporter.analysis.snapshot import Snapshot, SourceView
    from exporter.recording.reader import Recording

LONGEST_PAUSE = 10.0
"""Seconds between two snapshots of a paced replay: nobody waits through a night in which the host was suspended."""


def replay(recording: Recording, plan: Plan | None = None) -> Iterator[Snapshot]:
    """Yield the verdicts of a recording, at the moments at which they were given live, as fast as they are asked for.

    Args:
        recording: as read.
        plan: judge by this instead of the plan in the recording.

    Raises:
        RecordingError: the rest of the recording is not understood.
    """
    observer = Observer(plan or recording.header.plan)
    sources: tuple[SourceView, ...] = ()
    for event in recording:
        match event:
            case Judged():
                sources = sources if event.sources is None else event.sources
                yield observer.judge(event.t, sources)
            case Lost():
                observer.lose(event.uuid)
            case Restored():
                observer.restore_idle(event.uuid, event.watts)
            case _:
                observer.observe(event)


async def paced(
    snapshots: Iterable[Snapshot],
    speed: float = 1.0,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    clock: Callable[[], float] | None = None,
) -> AsyncIterator[Snapshot]:
    """Yield snapshots when they are due: ``speed`` times as fast as they were recorded.

    Args:
        snapshots: of a replay.
        speed: recorded seconds per real second, above 0.
        sleep: waits so many real seconds.
        clock: the real clock in seconds; that of the event loop when it is not given.
    """
    clock = clock or asyncio.get_running_loop().time
    due: float | None = None
    before = 0.0
    for snapshot in snapshots:
        if due is None:
            due = clock()
        else:
            due += min(max(snapshot.t - before, 0.0), LONGEST_PAUSE) / speed
        before = snapshot.t
        await sleep(max(0.0, due - clock()))
        yield snapshot
