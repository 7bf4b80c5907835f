"""From the verdicts of a recording to stretches of one state each. Pure."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from wattline.analysis.causes import Cause, Suspicion
    from wattline.analysis.snapshot import DeploymentView, EngineView, GpuView, Snapshot, State

GAP_SECONDS = 10.0
"""Verdicts further apart do not belong together: the machine slept, or nobody judged."""
CAUSE_SHARE = 0.5
"""A cause counts for a stretch when it was suspected in this share of its verdicts."""
MOST_STRETCHES = 10_000
MOST_POINTS = 4_000
"""Of a curve: more cannot be told apart in a picture. The memory of a long recording is bounded by both."""


@dataclass(slots=True)
class Mean:
    """A mean of what was obtained."""

    total: float = 0.0
    count: int = 0

    def add(self, value: float | None) -> None:
        """Take one value."""
        if value is not None:
            self.total += value
            self.count += 1

    def value(self) -> float | None:
        """The mean; ``None`` when nothing was obtained."""
        return self.total / self.count if self.count else None


@dataclass(slots=True)
class Stretch:
    """Some time in one state. Numbers are means of what was read in it: a verdict's window reaches back before it."""

    state: State
    start: float
    end: float
    reason: str = ""
    """Of its last verdict, which knew most."""
    verdicts: int = 0
    power_watts: Mean = field(default_factory=Mean)
    tdp_fraction: Mean = field(default_factory=Mean)
    tokens_per_second: Mean = field(default_factory=Mean)
    _both: tuple[float, float] = (0.0, 0.0)
    """Tokens and joules of the moments in which both were obtained."""
    _suspected: Counter[Cause] = field(default_factory=Counter)
    _evidence: dict[Cause, Suspicion] = field(default_factory=dict)

    def add(self, view: DeploymentView, now: Point) -> None:
        """Take a verdict of this state, and what was read at that moment."""
        self.reason = view.reason
        self.verdicts += 1
        power, limit = now.power_watts, now.limit_watts
        self.power_watts.add(power)
        self.tdp_fraction.add(power / limit if power is not None and limit else None)
        self.tokens_per_second.add(now.tokens_per_second)
        if power is not None and now.tokens_per_second is not None:
            self._both = (self._both[0] + now.tokens_per_second, self._both[1] + power)
        for suspicion in view.suspicions:
            self._suspected[suspicion.cause] += 1
            self._evidence[suspicion.cause] = suspicion

    def tokens_per_joule(self) -> float | None:
        """Generated tokens over energy; ``None`` when both were never obtained together."""
        tokens, joules = self._both
        return tokens / joules if joules else None

    def causes(self) -> tuple[Suspicion, ...]:
        """What was suspected for most of it, the most frequent first, with the last evidence."""
        return tuple(
            self._evidence[cause]
            for cause, count in self._suspected.most_common()
            if count >= CAUSE_SHARE * self.verdicts
        )


@dataclass(frozen=True, slots=True)
class Point:
    """One moment of the curves. ``None`` is a gap in them."""

    t: float
    power_watts: float | None
    """Of all GPUs of the deployment together, by the driver's 1 s average."""
    power_watts_mean: float | None
    """Over the window."""
    limit_watts: float | None
    idle_watts: float | None
    tokens_per_second: float | None
    """Generated, between two polls of the engines."""
    tokens_per_second_mean: float | None
    """Over the window."""


class _Throughput:
    """Tokens per second between two polls, held until the next one."""

    def __init__(self) -> None:
        self._polls: dict[str, tuple[float, float]] = {}
        self._rates: dict[str, float | None] = {}

    def rate(self, engines: Sequence[EngineView]) -> float | None:
        for engine in engines:
            total, reading = engine.generation_tokens_total, engine.reading
            if total is None or reading is None or not reading.up:
                self._polls.pop(engine.name, None)
                self._rates[engine.name] = None
                continue
            before = self._polls.get(engine.name)
            if before is not None and reading.t > before[0]:
                self._rates[engine.name] = (total - before[1]) / (reading.t - before[0])
            if before is None or reading.t > before[0]:
                self._polls[engine.name] = (reading.t, total)
        known = [rate for rate in self._rates.values() if rate is not None]
        return sum(known) if known else None


@dataclass(slots=True)
class Story:
    """What happened to one deployment."""

    name: str
    stretches: list[Stretch] = field(default_factory=list)
    points: list[Point] = field(default_factory=list)
    seconds: dict[State, float] = field(default_factory=dict)
    joules: dict[State, float] = field(default_factory=dict)
    too_many: bool = False
    """There were more stretches than are kept."""
    _stride: int = 1
    _seen: int = 0
    _tokens: _Throughput = field(default_factory=_Throughput)

    def add(self, t: float, view: DeploymentView, gpus: Sequence[GpuView], engines: Sequence[EngineView]) -> None:
        """Take the verdict at ``t``."""
        self.seconds, self.joules = view.state_seconds, view.state_energy_joules
        now = _point(t, view, gpus, self._tokens.rate(engines))
        self._stretch(t, view, now)
        if self._seen % self._stride == 0:
            self.points.append(now)
            if len(self.points) > MOST_POINTS:
                self.points = self.points[::2]
                self._stride *= 2
        self._seen += 1

    def _stretch(self, t: float, view: DeploymentView, now: Point) -> None:
        last = self.stretches[-1] if self.stretches else None
        joined = last is not None and t - last.end <= GAP_SECONDS
        if last is not None and joined:
            last.end = t
        if last is None or not joined or last.state is not view.state:
            if len(self.stretches) >= MOST_STRETCHES:
                self.too_many = True
                return
            self.stretches.append(Stretch(view.state, t, t))
        self.stretches[-1].add(view, now)


def _point(t: float, view: DeploymentView, gpus: Sequence[GpuView], rate: float | None) -> Point:
    return Point(
        t=t,
        power_watts=_total(g.sample.power_watts if g.sample else None for g in gpus),
        power_watts_mean=view.power_watts,
        limit_watts=view.power_limit_watts,
        idle_watts=_total(g.idle_floor.watts if g.idle_floor else None for g in gpus),
        tokens_per_second=rate,
        tokens_per_second_mean=view.tokens_per_second.get("generation"),
    )


def _total(values: Iterable[float | None]) -> float | None:
    """The sum, when all are known: nothing is derived from a part of a deployment."""
    listed = list(values)
    known = [v for v in listed if v is not None]
    return sum(known) if known and len(known) == len(listed) else None


@dataclass(slots=True)
class Timeline:
    """What happened in a recording."""

    start: float = 0.0
    end: float = 0.0
    gpus: dict[str, str] = field(default_factory=dict)
    """Names by UUID."""
    engines: frozenset[str] = frozenset()
    stories: dict[str, Story] = field(default_factory=dict)

    def add(self, snapshot: Snapshot) -> None:
        """Take the next verdicts."""
        if not self.stories and not self.gpus:
            self.start = snapshot.t
        self.end = snapshot.t
        self.gpus.update((g.identity.uuid, g.identity.name) for g in snapshot.gpus)
        self.engines |= {e.name for e in snapshot.engines}
        for view in snapshot.deployments:
            story = self.stories.setdefault(view.name, Story(view.name))
            gpus = [g for g in snapshot.gpus if g.identity.uuid in view.gpus]
            story.add(snapshot.t, view, gpus, [e for e in snapshot.engines if e.name in view.engines])


def timeline(snapshots: Iterable[Snapshot]) -> Timeline:
    """Sum up the verdicts of a recording. Memory is bounded, however long it is."""
    found = Timeline()
    for snapshot in snapshots:
        found.add(snapshot)
    return found
