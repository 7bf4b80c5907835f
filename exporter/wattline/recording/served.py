"""A recording in the place of a host: what ``serve --replay`` serves."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from wattline.analysis.observer import Observer
from wattline.recording.layout import RecordingError
from wattline.recording.replay import replay_into

if TYPE_CHECKING:
    from collections.abc import Callable

    from wattline.analysis.plan import Plan
    from wattline.analysis.snapshot import Snapshot
    from wattline.recording.reader import Recording

LONGEST_PAUSE = 10.0
"""Recorded seconds between two verdicts that are waited for: nobody waits through a night in which the host slept."""

log = logging.getLogger("wattline.replay")


class ReplaySession:
    """Judges a recording as time goes by.

    When the recording is over, time goes on without readings: everything becomes stale and every verdict unknown, as it
    would on a host that is no longer read. No last value stays.

    Args:
        recording: as read.
        speed: recorded seconds per real second, above 0.
        plan: judge by this instead of the plan in the recording.
        clock: the real clock, in seconds.
    """

    def __init__(
        self,
        recording: Recording,
        *,
        speed: float = 1.0,
        plan: Plan | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.recording = recording
        self.observer = Observer(plan or recording.header.plan)
        self.over = False
        self._speed = speed
        self._clock = clock
        self._verdicts = replay_into(self.observer, recording, own_plan=plan is not None)
        self._begun: tuple[float, float] | None = None
        """The moment on the real clock that is this moment of the recording."""
        self._next: Snapshot | None = None
        self._shown: Snapshot | None = None

    async def start(self) -> None:
        """Nothing is to be opened."""

    async def stop(self) -> None:
        """Nothing is to be closed: what a recording teaches is not kept."""

    def beat(self) -> float:
        """Real seconds from one verdict to the next."""
        return self.observer.plan.sample_interval / self._speed

    def judge(self) -> Snapshot:
        """The latest verdict that is due. Those between are given too: the time in each state adds up."""
        now = self._clock()
        if self._begun is None:
            self._next = self._take()
            self._begun = now, self._next.t if self._next is not None else 0.0
        while self._next is not None and self._next.t <= self._moment(now):
            self._shown, self._next = self._next, self._take()
            self._hurry(now)
        if self._next is None or self._shown is None:
            return self.observer.judge(self._moment(now))
        return self._shown

    def _moment(self, now: float) -> float:
        """The moment of the recording that has come."""
        assert self._begun is not None  # noqa: S101 - judge() begins
        real, recorded = self._begun
        return recorded + (now - real) * self._speed

    def _hurry(self, now: float) -> None:
        """Shorten a long pause to the longest that is waited for."""
        if self._shown is not None and self._next is not None and self._next.t - self._shown.t > LONGEST_PAUSE:
            self._begun = now, self._next.t - LONGEST_PAUSE

    def _take(self) -> Snapshot | None:
        try:
            verdict = next(self._verdicts, None)
        except RecordingError as error:
            log.error("The rest of the recording is not understood: %s", error)  # noqa: TRY400 - says it all
            verdict = None
        if verdict is None and not self.over:
            self.over = True
            log.info("The recording is over%s", f": {self.recording.cut_short}" if self.recording.cut_short else "")
        return verdict
