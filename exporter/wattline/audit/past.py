"""The past of one deployment: samples to readings, readings to the same observer that judges live."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from wattline.analysis.observer import Observer
from wattline.analysis.plan import DeploymentPlan, EnginePlan, GpuOverride, Plan
from wattline.analysis.snapshot import State
from wattline.audit.find import REPLICAS, canonical, spellings
from wattline.audit.sources import plausible
from wattline.engines.exposition import Exposition, Series, plain
from wattline.engines.kinds import Extraction
from wattline.readings import EngineReading, GpuActivity, GpuCondition, GpuIdentity, GpuSample

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from wattline.analysis.snapshot import DeploymentView
    from wattline.audit.client import SampledSeries, Server
    from wattline.audit.find import FoundEngine, FoundGpu, Joined
    from wattline.readings import GpuReading

    Timed = GpuReading | EngineReading

HELD_FOR_NOTHING = frozenset({State.IDLE_WHILE_BUSY, State.STALLED})
BLIP = 300.0
"""Seconds between two bad stretches that are one incident."""
SAMPLES_AT_ONCE = 250_000
"""Of one question: about 6 MB on the way, and far below what servers allow."""
FIELDS = 10
MOST_CHUNK, LEAST_CHUNK = 86400.0, 600.0
DAY = 86400
_SAMPLE = ("power_watts", "energy_joules", "utilization_ratio", "sm_clock_hertz")
_ACTIVITY = ("sm_active_ratio", "tensor_active_ratio", "dram_active_ratio")
_CONDITION = ("limit_enforced_watts", "limit_requested_watts", "limit_default_watts", "memory_used_bytes")


@dataclass(slots=True)
class Incident:
    """Requests were held for nothing. Times are Unix seconds."""

    deployment: str
    state: State
    start: float
    end: float
    joules: float = 0.0
    reason: str = ""


@dataclass(slots=True)
class Past:
    """What a deployment has done."""

    joined: Joined
    interval: float
    """Seconds between two samples."""
    window: float
    seconds: dict[State, float] = field(default_factory=lambda: dict.fromkeys(State, 0.0))
    joules: dict[State, float] = field(default_factory=lambda: dict.fromkeys(State, 0.0))
    incidents: list[Incident] = field(default_factory=list)
    days: dict[int, list[float]] = field(default_factory=lambda: defaultdict(lambda: [0.0, 0.0]))
    """Generated tokens and joules, by the day since 1970 (UTC)."""
    most_fraction: float | None = None
    """Of the limit, over a window."""


def plan_for(joined: Joined, interval: float, limits: Mapping[str, float]) -> Plan:
    """What the observer must know. The window holds three samples and is no shorter than live.

    Args:
        joined: the deployment.
        interval: seconds between two samples.
        limits: watts by a part of the model's name, where no series tells a limit.
    """
    overrides = {
        g.uuid: GpuOverride(power_limit_watts=watts)
        for g in joined.gpus
        for model, watts in limits.items()
        if model.lower() in g.model.lower()
    }
    engines = tuple(EnginePlan(e.name, kind=e.kind.name) for e in joined.engines)
    return Plan(
        deployments=(DeploymentPlan(joined.name, engines, tuple(g.uuid for g in joined.gpus)),),
        window=max(60.0, 3.2 * interval),
        sample_interval=interval,
        activity_interval=interval,
        condition_interval=interval,
        engine_interval=interval,
        overrides=overrides,
    )


async def judge_past(
    server: Server,
    joined: Joined,
    start: float,
    end: float,
    limits: Mapping[str, float],
    advance: Any,  # noqa: ANN401 - a callable of seconds
) -> Past:
    """Judge a deployment from ``start`` to ``end``, piece by piece. Raises as :meth:`Server.samples`."""
    interval = await _interval(server, joined, start, end)
    observer = Observer(plan_for(joined, interval, limits))
    past = Past(joined, interval, observer.plan.window)
    book = _Book(past, observer)
    rate = (len(joined.gpus) * FIELDS + 30 * len(joined.engines)) / interval
    length = min(MOST_CHUNK, max(LEAST_CHUNK, SAMPLES_AT_ONCE / rate))
    edge = start
    while edge < end:
        upto = min(end, edge + length)
        book.take(await _readings(server, joined, edge, upto), edge, upto, interval)
        advance(upto - edge)
        edge = upto
    return past


async def _interval(server: Server, joined: Joined, start: float, end: float) -> float:
    """Seconds between two samples of power, as they were lately."""
    gpu = joined.gpus[0]
    for back in (3600.0, 86400.0, end - start):
        told = await server.samples(_gpu_selector([gpu], power_only=True), max(start, end - back), end)
        steps = [b[0] - a[0] for s in told for a, b in zip(s.values, s.values[1:], strict=False)]
        if steps:
            return min(300.0, max(1.0, float(round(statistics.median(steps)))))
    return 60.0


def _gpu_selector(gpus: Sequence[FoundGpu], *, power_only: bool = False) -> str:
    source = gpus[0].source
    names = {source.power} if power_only else {f.metric for f in source.fields}
    uuids = "|".join(sorted({s[source.uuid] for g in gpus for s in g.labels}))
    return f'{{__name__=~"{"|".join(sorted(names))}",{source.uuid}=~"{uuids}"}}'


def _engine_selector(engine: FoundEngine) -> str:
    own = "".join(f',{k}="{_quoted(v)}"' for k, v in engine.labels.items() if k in ("job", "instance") and v)
    return f'{{__name__=~"{spellings(engine.kind)}|up"{own}}}'


def _quoted(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"")


async def _readings(server: Server, joined: Joined, start: float, end: float) -> list[Timed]:
    found: list[Timed] = []
    by_source: dict[str, list[FoundGpu]] = defaultdict(list)
    for gpu in joined.gpus:
        by_source[gpu.source.name].append(gpu)
    for gpus in by_source.values():
        found += gpu_readings(gpus, await server.samples(_gpu_selector(gpus), start, end), start)
    for engine in joined.engines:
        found += engine_readings(engine, await server.samples(_engine_selector(engine), start, end), start)
    return sorted(found, key=lambda r: r.t)


def gpu_readings(gpus: Iterable[FoundGpu], told: Iterable[SampledSeries], after: float) -> Iterator[GpuReading]:
    """The readings of GPUs from the samples of their series, each moment once, whoever has scraped it."""
    source = next(iter(gpus)).source
    moments: dict[tuple[str, float], dict[str, float]] = defaultdict(dict)
    for series in told:
        name, uuid = series.metric.get("__name__"), canonical(series.metric.get(source.uuid, ""))
        rows = [
            f
            for f in source.fields
            if f.metric == name and (f.where is None or series.metric.get(f.where[0]) == f.where[1])
        ]
        for row in rows:
            for t, text in series.values:
                value = float(text) * row.factor
                if t > after and plausible(row.reading, value):
                    moments[uuid, t].setdefault(row.reading, value)
    for (uuid, t), values in moments.items():
        told_now: dict[str, Any] = values
        yield replace(GpuSample(t, uuid), **{k: v for k, v in told_now.items() if k in _SAMPLE})
        if activity := {k: v for k, v in told_now.items() if k in _ACTIVITY}:
            yield replace(GpuActivity(t, uuid), **activity)
        yield replace(GpuCondition(t, uuid), **{k: v for k, v in told_now.items() if k in _CONDITION})


def engine_readings(engine: FoundEngine, told: Iterable[SampledSeries], after: float) -> Iterator[EngineReading]:
    """The readings of an engine: all that one scrape has brought is one text."""
    scrapes: dict[float, dict[str, dict[frozenset[tuple[str, str]], Series]]] = defaultdict(dict)
    down: set[float] = set()
    for series in told:
        name = plain(series.metric.get("__name__", ""))
        labels = {k: v for k, v in series.metric.items() if k != "__name__" and k not in REPLICAS}
        key = frozenset(labels.items())
        for t, text in series.values:
            value = float(text)
            if t <= after:
                continue
            if name == "up":
                if value == 0:
                    down.add(t)
            elif math.isfinite(value):
                scrapes[t].setdefault(name, {})[key] = Series(labels, value)
    for t in down - scrapes.keys():
        yield EngineReading(t, engine.name, up=False, error="scrape_failed")
    for t, names in scrapes.items():
        exposition = Exposition({n: tuple(s.values()) for n, s in names.items()}, frozenset(names))
        yield Extraction(engine.kind, exposition).reading(engine.name, t)


class _Book:
    """Feeds the observer and writes down what it judges."""

    def __init__(self, past: Past, observer: Observer) -> None:
        self._past = past
        self._observer = observer
        self._open: Incident | None = None
        self._joules = 0.0
        self._tokens = 0.0
        self._wasted = 0.0
        for index, gpu in enumerate(past.joined.gpus):
            observer.observe(GpuIdentity(gpu.uuid, index, name=gpu.model))

    def take(self, readings: Sequence[Timed], start: float, end: float, interval: float) -> None:
        """Judge at every interval from ``start`` to ``end``."""
        at, count = 0, len(readings)
        for step in range(1, math.ceil((end - start) / interval) + 1):
            now = min(end, start + step * interval)
            while at < count and readings[at].t <= now:
                self._observer.observe(readings[at])
                at += 1
            snapshot = self._observer.judge(now)
            tokens = sum(e.generation_tokens_total or 0.0 for e in snapshot.engines)
            self._write(snapshot.deployments[0], now, tokens)

    def _write(self, view: DeploymentView, now: float, tokens: float) -> None:
        past = self._past
        past.seconds, past.joules = view.state_seconds, view.state_energy_joules
        joules = sum(view.state_energy_joules.values())
        day = past.days[int((now - 1) // DAY)]
        day[0] += tokens - self._tokens
        day[1] += joules - self._joules
        drawn, self._tokens, self._joules = joules - self._joules, tokens, joules
        if view.tdp_fraction is not None:
            past.most_fraction = max(past.most_fraction or 0.0, view.tdp_fraction)
        if view.state not in HELD_FOR_NOTHING:
            return
        last = past.incidents[-1] if past.incidents else None
        if last is None or now - last.end > BLIP + past.interval:
            # Its signs were there for a whole window when it was judged so.
            last = Incident(view.name, view.state, now - past.window, now)
            past.incidents.append(last)
        last.end, last.state, last.reason = now, view.state, view.reason
        last.joules += drawn
