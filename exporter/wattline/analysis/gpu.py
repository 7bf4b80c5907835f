"""The memory of one GPU: from single readings to means, counters and fractions over the window."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter, deque
from typing import TYPE_CHECKING, TypeVar

from wattline.analysis.idle import IdleLearner, active_fraction, idle_floor
from wattline.analysis.snapshot import POWER_FRACTION_EDGES, GpuMeans, GpuView
from wattline.analysis.spans import Accrued, CarriedTotal, Spans
from wattline.gpus.pcie import link_bytes_per_second
from wattline.gpus.plausibility import LIMITS
from wattline.gpus.source import UNSUPPORTED

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from wattline.analysis.plan import GpuOverride, Plan
    from wattline.analysis.snapshot import IdleFloor
    from wattline.readings import GpuActivity, GpuCondition, GpuIdentity, GpuSample

R = TypeVar("R", bound="GpuSample | GpuActivity | GpuCondition")

STALE_AFTER = 3.5
"""A reading older than this many of its intervals is gone. Half an interval lets a late one pass."""
WATCHED_REASONS = (
    "sw_power_cap",
    "hw_slowdown",
    "sw_thermal_slowdown",
    "hw_thermal_slowdown",
    "hw_power_brake_slowdown",
)
"""Reasons that are counted from the start; any other begins to be counted when it is first seen."""
ENERGY_MAX_GAP = 20.0
"""The counter is dear to read and comes with every tenth sample (docs/nvml.md); it goes on counting in between."""
MIN_COVERAGE = 0.75
"""A mean over less of the window than this is not a mean over the window."""
IMPOSSIBLE_FRACTION = 3.0
"""Energy that needs more than this multiple of the limit did not flow through this board."""
IMPOSSIBLE_WATTS = 20_000.0
DISAGREEMENT = 0.10
"""Counter and integrated power that differ by more are not of the same thing; power is of what the limit is of."""
STUCK_UTILIZATION = 0.95
STUCK_ACTIVE_FRACTION = 0.10


def mean(values: Iterable[float | None]) -> float | None:
    """Mean of what was obtained; ``None`` when nothing was."""
    known = [v for v in values if v is not None]
    return math.fsum(known) / len(known) if known else None


class GpuTrack:
    """Everything remembered of one GPU. Fed in time order; asked at any moment.

    A reading that is not later than the one before is dropped: the clock of readings never goes back.
    """

    def __init__(self, identity: GpuIdentity, plan: Plan, override: GpuOverride | None = None) -> None:
        self.identity = identity
        self.lost = False
        self.samples: deque[GpuSample] = deque()
        self.activities: deque[GpuActivity] = deque()
        self.condition: GpuCondition | None = None
        self._limits: dict[str, tuple[float, float]] = {}
        """The limits that this board has, by field: when each was told last, and how many watts."""
        self._asked: tuple[float, list[GpuSample]] | None = None
        self.learner = IdleLearner()
        self.energy = Spans(0.0, 0.0)
        self._integrated = Spans(0.0, 0.0)
        self.replan(plan, override)
        self._counter: tuple[float, float] | None = None
        self._published = CarriedTotal()
        """The counter's own joules."""
        self._accrued = CarriedTotal()
        """Joules since the first reading, without those of gaps."""
        self._event_seconds: dict[str, float] = {}
        self._buckets = [0] * (len(POWER_FRACTION_EDGES) + 1)
        self._fraction_sum = 0.0

    def replan(self, plan: Plan, override: GpuOverride | None = None) -> None:
        """Judge by another plan from now on; what was read stays known."""
        self._plan = plan
        self._override = override
        self._horizon = plan.window + 4 * plan.engine_interval
        for spans in (self.energy, self._integrated):
            spans.horizon = self._horizon
            spans.max_gap = max(3.0, STALE_AFTER * plan.sample_interval)
        self.energy.max_gap = max(ENERGY_MAX_GAP, self.energy.max_gap)

    # Feeding.

    def observe_sample(self, sample: GpuSample) -> None:
        """Take a 1 s reading."""
        before = self.samples[-1] if self.samples else None
        if before is not None and sample.t <= before.t:
            return
        self._count_energy(before, sample)
        if sample.event_reasons is not None and not self._event_seconds:
            # A counter that appears with its first event hides that event from every rate.
            self._event_seconds = dict.fromkeys(WATCHED_REASONS, 0.0)
        if before is not None and sample.t - before.t <= STALE_AFTER * self._plan.sample_interval:
            for reason in sample.event_reasons or ():
                self._event_seconds[reason] = self._event_seconds.get(reason, 0.0) + sample.t - before.t
        if (limit := self.limit_watts()) is not None:
            for watts in sample.power_samples_watts:
                self._buckets[bisect_left(POWER_FRACTION_EDGES, watts / limit)] += 1
                self._fraction_sum += watts / limit
        self._asked = None
        self.samples.append(sample)
        while self.samples[0].t < sample.t - self._horizon:
            self.samples.popleft()

    def _count_energy(self, before: GpuSample | None, sample: GpuSample) -> None:
        by_power = 0.0
        if before is not None and before.power_watts is not None and sample.power_watts is not None:
            joules = (before.power_watts + sample.power_watts) / 2 * (sample.t - before.t)
            by_power = joules if self._integrated.add(before.t, sample.t, joules) else 0.0
        if sample.energy_joules is None:
            self._published.carry(by_power)
            self._accrued.carry(by_power)
            return
        if self._counter is None and self._published.value == 0:
            self._published = CarriedTotal(sample.energy_joules)
        elif self._counter is None:
            # It comes late: what was published by power goes on from where it is.
            self._published.settle(None, by_power)
            self._accrued.settle(None, by_power)
        else:
            since, last = self._counter
            delta = sample.energy_joules - last
            ceiling = IMPOSSIBLE_FRACTION * (self.limit_watts() or IMPOSSIBLE_WATTS) * (sample.t - since)
            # A step back is a new base (the driver was reloaded); an impossible leap is no energy of this board.
            told = 0 <= delta <= ceiling
            # Over a gap nobody knows what the GPU did, only what it drew.
            joined = told and self.energy.add(since, sample.t, delta)
            # A counter that stands still is broken: no board draws nothing.
            told, joined = told and delta > 0, joined and delta > 0
            self._published.settle(delta if told else None, by_power)
            self._accrued.settle(delta if joined else None, by_power)
        self._counter = (sample.t, sample.energy_joules)

    def observe_activity(self, activity: GpuActivity) -> None:
        """Take a 5 s reading."""
        if self.activities and activity.t <= self.activities[-1].t:
            return
        self.activities.append(activity)
        while self.activities[0].t < activity.t - self._horizon:
            self.activities.popleft()

    def observe_condition(self, condition: GpuCondition) -> None:
        """Take a 30 s reading."""
        if self.condition is None or condition.t > self.condition.t:
            self.condition = condition
            self._note_limits(condition)

    def _note_limits(self, condition: GpuCondition) -> None:
        failed = {error.reading: error.kind for error in condition.errors}
        for name, reading in LIMITS.items():
            if watts := getattr(condition, name):
                self._limits[name] = (condition.t, watts)
            elif failed.get(reading) in UNSUPPORTED:
                self._limits.pop(name, None)
            elif reading in failed:
                self._limits.setdefault(name, (-math.inf, 0.0))

    def learn_idle(self, start: float, end: float) -> None:
        """The engines held nothing from ``start`` to ``end``: learn from the samples in between."""
        for sample in self.samples:
            # Utilisation 0 keeps spinning kernels of others out of the floor.
            if start < sample.t <= end and sample.utilization_ratio == 0 and sample.power_watts is not None:
                self.learner.offer(sample.t, sample.power_watts)

    # Asking.

    @property
    def energy_source(self) -> str:
        """Where energy comes from: counter, integrated or none."""
        if self._counter is not None:
            return "counter"
        return "integrated" if self._integrated.total > 0 else "none"

    @property
    def accrued_joules(self) -> float:
        """Joules that accrued between readings, from the first to the last."""
        return self._accrued.value

    def sample_now(self, now: float) -> GpuSample | None:
        """The last 1 s reading, unless it is too old."""
        return self._fresh(self.samples, self._plan.sample_interval, now)

    def activity_now(self, now: float) -> GpuActivity | None:
        """The last 5 s reading, unless it is too old."""
        return self._fresh(self.activities, self._plan.activity_interval, now)

    def condition_now(self, now: float) -> GpuCondition | None:
        """The last 30 s reading, unless it is too old."""
        last = () if self.condition is None else (self.condition,)
        return self._fresh(last, self._plan.condition_interval, now)

    def _fresh(self, readings: Sequence[R], interval: float, now: float) -> R | None:
        if self.lost or not readings or now - readings[-1].t > _stale_after(interval):
            return None
        return readings[-1]

    def limit_watts(self) -> float | None:
        """The denominator: enforced, else requested, else default, else what the configuration says.

        Which of them is a matter of the board, not of the moment: one that fails once is what it was, until that is
        too old. Another one in its place would be another fraction of the same draw.
        """
        best = next((self._limits[name] for name in LIMITS if name in self._limits), None)
        newest = self.samples[-1].t if self.samples else -math.inf
        if best is not None and newest - best[0] <= _stale_after(self._plan.condition_interval):
            return best[1]
        return self._override.power_limit_watts if self._override else None

    def idle_floor(self) -> IdleFloor | None:
        """The idle power in use."""
        configured = self._override.idle_power_watts if self._override else None
        return idle_floor(self.learner.learned(), configured, self.limit_watts())

    def power_mean(self, start: float, end: float) -> float | None:
        """Mean power from ``start`` to ``end`` in watts; ``None`` when readings cover too little of it."""
        needed = MIN_COVERAGE * (end - start)
        by_power = self._integrated.between(start, end)
        by_counter = self.energy.between(start, end)
        if self._counter is not None and start < self._counter[0] < end:
            # Between two readings of the counter, power tells.
            rest = self._integrated.between(self._counter[0], end)
            by_counter = Accrued(by_counter.amount + rest.amount, by_counter.covered + rest.covered)
        counts = by_counter.covered >= needed and by_counter.amount > 0
        if by_power.covered < needed:
            return by_counter.rate() if counts else None
        # A counter may be of something else: that of a superchip counts its CPU, the limit does not.
        return by_counter.rate() if counts and not _disagree(by_counter, by_power) else by_power.rate()

    def samples_since(self, start: float) -> list[GpuSample]:
        """The 1 s readings since ``start``."""
        if self._asked is None or self._asked[0] != start:
            self._asked = (start, [s for s in self.samples if s.t > start])
        return self._asked[1]

    def utilization_mean(self, start: float) -> float | None:
        """Mean utilisation since ``start``."""
        return mean([s.utilization_ratio for s in self.samples_since(start)])

    def utilization_halves(self, start: float) -> tuple[float | None, float | None]:
        """Mean utilisation of the first and of the second half of the readings since ``start``."""
        told = [s.utilization_ratio for s in self.samples_since(start)]
        return mean(told[: len(told) // 2]), mean(told[len(told) // 2 :])

    def utilization_believed(self, start: float) -> float | None:
        """Mean utilisation since ``start`` where it may say that nothing runs; ``None`` where something tells better.

        That is an idle floor that is known. On a GPU that MIG cuts up, utilisation is not that of its instances.
        """
        floor = self.idle_floor()
        if self.identity.mig or (floor is not None and floor.source != "assumed"):
            return None
        samples = self.samples_since(start)
        obtained = sum(s.utilization_ratio is not None for s in samples)
        return self.utilization_mean(start) if samples and obtained >= MIN_COVERAGE * len(samples) else None

    def reason_share(self, start: float, reasons: frozenset[str]) -> float | None:
        """Share of the 1 s readings since ``start`` in which any of ``reasons`` held the clocks."""
        told = [s.event_reasons for s in self.samples_since(start) if s.event_reasons is not None]
        # Few readings have any reason at all.
        return sum([not reasons.isdisjoint(r) for r in told if r]) / len(told) if told else None

    def view(self, now: float, deployment: str) -> GpuView:
        """All that is published of this GPU."""
        sample, activity, condition = self.sample_now(now), self.activity_now(now), self.condition_now(now)
        if sample is None:
            # One reading that is late, on a busy host for instance, is no loss: the reader tells that, and logs it.
            late = now - self.samples[-1].t if self.samples else math.inf
            up = not self.lost and late <= LOST_AFTER * _stale_after(self._plan.sample_interval)
            return GpuView(self.identity, deployment, up=up)
        start = now - self._plan.window
        power, limit, floor = self.power_mean(start, now), self.limit_watts(), self.idle_floor()
        active = active_fraction(power, floor.watts if floor else None, limit)
        cumulative: list[int] = []
        for count in self._buckets:
            cumulative.append(count + (cumulative[-1] if cumulative else 0))
        return GpuView(
            identity=self.identity,
            deployment=deployment,
            up=True,
            sample=sample,
            activity=activity,
            condition=condition,
            means=self._means(start, power),
            limit_watts=limit,
            tdp_fraction=power / limit if power is not None and limit else None,
            active_power_fraction=active,
            idle_floor=floor,
            energy_joules=None if self.energy_source == "none" else self._published.value,
            energy_source=self.energy_source,
            energy_disagreement_ratio=self._energy_disagreement(start, now),
            utilization_stuck=self._stuck(start, active, condition),
            event_seconds=dict(self._event_seconds),
            power_fraction_buckets=tuple(cumulative) if cumulative[-1] else (),
            power_fraction_sum=self._fraction_sum,
            pcie_link_bytes_per_second=link_capacity(activity),
        )

    def _means(self, start: float, power: float | None) -> GpuMeans:
        samples = self.samples_since(start)
        activities = [a for a in self.activities if a.t > start]
        told = [s.event_reasons for s in samples if s.event_reasons is not None]
        seen = Counter(reason for reasons in told for reason in reasons)
        return GpuMeans(
            power_watts=power,
            utilization_ratio=mean([s.utilization_ratio for s in samples]),
            sm_active_ratio=mean([a.sm_active_ratio for a in activities]),
            tensor_active_ratio=mean([a.tensor_active_ratio for a in activities]),
            dram_active_ratio=mean([a.dram_active_ratio for a in activities]),
            pcie_transmit_bytes_per_second=mean([a.pcie_transmit_bytes_per_second for a in activities]),
            pcie_receive_bytes_per_second=mean([a.pcie_receive_bytes_per_second for a in activities]),
            sm_clock_hertz=mean([s.sm_clock_hertz for s in samples]),
            event_reasons={reason: count / len(told) for reason, count in seen.items()} if told else None,
        )

    def _energy_disagreement(self, start: float, now: float) -> float | None:
        counter, integrated = self.energy.between(start, now), self._integrated.between(start, now)
        needed = MIN_COVERAGE * self._plan.window
        if counter.covered < needed or integrated.covered < needed:
            return None
        return _disagreement(counter, integrated)

    def _stuck(self, start: float, active: float | None, condition: GpuCondition | None) -> bool | None:
        if condition is None or condition.processes is None or active is None:
            return None
        told = [u for s in self.samples_since(start) if (u := s.utilization_ratio) is not None]
        if not told:
            return None
        return active < STUCK_ACTIVE_FRACTION and not condition.processes and min(told) >= STUCK_UTILIZATION


LOST_AFTER = 4.0
"""Times the age at which a reading is not published any more."""


def _stale_after(interval: float) -> float:
    return max(STALE_AFTER * interval, 2.0)


def _disagreement(a: Accrued, b: Accrued) -> float:
    """How far two rates differ, as a share of the greater."""
    one, other = a.rate() or 0.0, b.rate() or 0.0
    return abs(one - other) / max(one, other) if max(one, other) > 0 else 0.0


def _disagree(a: Accrued, b: Accrued) -> bool:
    return _disagreement(a, b) > DISAGREEMENT


def link_capacity(activity: GpuActivity | None) -> float | None:
    """What the current PCIe link could carry one way, in bytes per second; ``None`` when it is not known."""
    return link_bytes_per_second(activity.pcie_link_generation, activity.pcie_link_width) if activity else None
