"""A recording through the analysis again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from wattline.analysis.observer import Observer
from wattline.analysis.plan import Plan
from wattline.recording.layout import Judged, Restored

if TYPE_CHECKING:
    from collections.abc import Iterator

    from wattline.analysis.snapshot import Snapshot, SourceView
    from wattline.recording.reader import Recording


def replay(recording: Recording, plan: Plan | None = None) -> Iterator[Snapshot]:
    """Yield the verdicts of a recording, at the moments at which they were given live, as fast as they are asked for.

    Args:
        recording: as read.
        plan: judge by this instead of the plan in the recording.

    Raises:
        RecordingError: the rest of the recording is not understood.
    """
    yield from replay_into(Observer(plan or recording.header.plan), recording, own_plan=plan is not None)


def replay_into(observer: Observer, recording: Recording, *, own_plan: bool) -> Iterator[Snapshot]:
    """Tell an observer everything that is in a recording, and yield its verdicts. Raises as :func:`replay`.

    Args:
        observer: is told.
        recording: as read.
        own_plan: the observer has a plan of its own, and plans in the recording are passed over.
    """
    sources: tuple[SourceView, ...] = ()
    for event in recording:
        match event:
            case Judged():
                sources = sources if event.sources is None else event.sources
                yield observer.judge(event.t, sources)
            case Plan():
                if not own_plan:
                    observer.replan(event)
            case Restored():
                observer.restore_idle(event.uuid, event.watts)
            case _:
                observer.observe(event)
