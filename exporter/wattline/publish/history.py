"""The last quarter of an hour of every deployment, in memory: what the page draws."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from wattline.publish.shape import finite

if TYPE_CHECKING:
    from wattline.analysis.snapshot import DeploymentView, Snapshot, State

SPAN_SECONDS = 900.0
STEP_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Point:
    """One deployment at one moment. ``None`` is a reading that was not obtained: a gap in the picture."""

    t: float
    """On the readings' clock, seconds."""
    state: State
    tdp_fraction: float | None
    tokens_per_second: float | None
    """Generated tokens."""


class History:
    """Points of each deployment, not closer than ``step`` and not older than ``span`` seconds of the readings' clock.

    That clock may run faster than real time, in a demo or a replay. When it goes back (a replay begins anew), what was
    remembered is of another time and is forgotten.
    """

    def __init__(self, span: float = SPAN_SECONDS, step: float = STEP_SECONDS) -> None:
        self.span = span
        self.step = step
        self._points: dict[str, deque[Point]] = {}
        self._last: float | None = None

    def add(self, snapshot: Snapshot) -> None:
        """Remember this snapshot, unless the last one that is remembered is too close."""
        if self._last is not None and snapshot.t < self._last:
            self._points.clear()
            self._last = None
        if self._last is not None and snapshot.t - self._last < self.step:
            return
        self._last = snapshot.t
        for view in snapshot.deployments:
            self._points.setdefault(view.name, deque()).append(_point(view, snapshot.t))
        for name, points in list(self._points.items()):
            while points and points[0].t < snapshot.t - self.span:
                points.popleft()
            if not points:
                del self._points[name]

    def of(self, deployment: str) -> tuple[Point, ...]:
        """What is remembered of a deployment, oldest first."""
        return tuple(self._points.get(deployment, ()))


def _point(view: DeploymentView, t: float) -> Point:
    return Point(t, view.state, finite(view.tdp_fraction), finite(view.tokens_per_second.get("generation")))
