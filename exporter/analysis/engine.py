"""The memory of one engine: what it holds now, what it has made, and whether it moves."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING

from exporter.analysis.snapshot import EngineView
from exporter.analysis.spans import Spans

if TYPE_CHECKING:
    from exporter.analysis.plan import EnginePlan, Plan
    from exporter.readings import EngineReading

STALE_AFTER = 3.5
"""A reading older than this many polls tells nothing about now."""
IDLE_SHARE = 0.9
"""The scheduler's own account: idle for this share of the poll means that it holds nothing."""
CONFIRM_POLLS = 2.5
SLOW_LAG_SECONDS = 10.0
"""A gauge that may lag by more is no witness of its own: what it shows is only certain beside a live signal."""
LEAST_POLLS = 3
"""Fewer polls in a window do not tell what went on throughout."""
FRESH_TOKENS = 1000.0
"""An engine that has counted more has not just started: its own warm-up makes some tens of tokens."""
GRACE_PAUSE = 3.0
"""Graces before another one is granted: an engine that restarts for ever must not be excused for ever."""
SCATTERED_STARTS = 3
"""So many starts within a window are no restarts: several servers answer at one address in turn."""
PROBE_TOKENS_PER_SECOND = 4.0
"""What health probes make an idle SGLang count at most: one token a probe, from a handful of probers."""


@dataclass(frozen=True, slots=True)
class Work:
    """Requests held at one moment, as bounds: ``low`` is certain, ``high`` is possible.

    They differ where a gauge may only be repeating an old value; both are ``None`` where nothing tells.
    """

    t: float
    low: float | None
    high: float | None
    progressed: bool | None = None
    """Whether progress since the poll before tells of work; ``None`` when nothing counts it."""


def _progressed(before: EngineReading, after: EngineReading) -> bool | None:
    """Whether more was made than health probes alone make: each of those costs an idle server a token or two."""
    if not after.progress or len(before.progress) != len(after.progress):
        return True if after.progress else None
    made = max(b - a for a, b in zip(before.progress, after.progress, strict=True))
    return made > PROBE_TOKENS_PER_SECOND * (after.t - before.t)


def restarted(before: EngineReading, after: EngineReading) -> bool:
    """Whether the engine's process began anew between two good readings: another start time, or counters that fell."""
    if before.start_time is not None and after.start_time is not None:
        return abs(before.start_time - after.start_time) > 1.0
    pairs = [
        *zip(before.progress, after.progress, strict=False),
        (before.generation_tokens, after.generation_tokens)
        if before.generation_tokens_source == after.generation_tokens_source
        else (None, None),
        (before.scheduler_idle_seconds, after.scheduler_idle_seconds),
    ]
    fell = any(a is not None and b is not None and b < a for a, b in pairs)
    vanished = before.generation_tokens is not None and after.generation_tokens is None
    return fell or vanished


def _has_worked(reading: EngineReading) -> bool:
    """Whether the counters tell of a life before this reading."""
    made = [v for v in (*reading.progress, reading.generation_tokens) if v is not None]
    return max(made, default=0.0) > FRESH_TOKENS


class TokenCounter:
    """A token counter that survives restarts of the engine and changes of the counter behind it."""

    def __init__(self) -> None:
        self.spans = Spans(0.0, 0.0)
        self.total: float | None = None

    def observe(
        self,
        before: tuple[float, float | None, str | None],
        after: tuple[float, float | None, str | None],
        *,
        new: bool,
    ) -> None:
        """Take (time, value, name of the counter) of two successive good readings; ``new`` after a restart."""
        (start, old, old_source), (end, value, source) = before, after
        if value is None:
            return
        if self.total is None:
            self.total = value
        if old is None or new or old_source != source or value < old:
            # Between the two nobody knows what was counted: nothing is invented.
            return
        self.total += value - old
        self.spans.add(start, end, value - old)


class EngineTrack:
    """Everything remembered of one engine. Fed in time order."""

    def __init__(self, engine: EnginePlan, deployment: str, plan: Plan) -> None:
        self.last: EngineReading | None = None
        self.started_at: float | None = None
        """When the engine was last *seen* to start and granted its grace."""
        self.moved_at: float | None = None
        """When a progress counter was last seen to move, or to begin."""
        self._starts: deque[float] = deque(maxlen=SCATTERED_STARTS)
        self.good: deque[EngineReading] = deque()
        self.works: deque[Work] = deque()
        self.generation = TokenCounter()
        self.prompt = TokenCounter()
        self._idle = Spans(0.0, 0.0)
        self._unconfirmed_since: float | None = None
        self._was_down = False
        self.replan(engine, deployment, plan)

    def replan(self, engine: EnginePlan, deployment: str, plan: Plan) -> None:
        """Judge by another plan from now on; what was read stays known."""
        self.engine = engine
        self.deployment = deployment
        self._plan = plan
        self._horizon = plan.window + 4 * plan.engine_interval
        self._max_gap = STALE_AFTER * plan.engine_interval
        for spans in (self.generation.spans, self.prompt.spans, self._idle):
            spans.horizon, spans.max_gap = self._horizon, self._max_gap

    def observe(self, reading: EngineReading) -> None:
        """Take the outcome of one poll."""
        if self.last is not None and reading.t <= self.last.t:
            return
        self.last = reading
        if not reading.up:
            self._was_down = True
            return
        before = self.good[-1] if self.good else None
        new = before is not None and restarted(before, reading)
        if new or (before is None and self._was_down and not _has_worked(reading)):
            self._start(reading.t)
        if new or before is None or before.progress != reading.progress:
            self.moved_at = reading.t
        self._was_down = False
        if before is not None:
            self._count(before, reading, new=new)
        else:
            self.generation.total = reading.generation_tokens
            self.prompt.total = reading.prompt_tokens
        self.works.append(self._work(None if new else before, reading))
        self.good.append(reading)
        for kept in (self.good, self.works):
            while kept[0].t < reading.t - self._horizon:
                kept.popleft()

    def _start(self, t: float) -> None:
        self._unconfirmed_since = None
        self._starts.append(t)
        if self.started_at is None or t - self.started_at >= GRACE_PAUSE * self._plan.grace:
            self.started_at = t

    def _count(self, before: EngineReading, after: EngineReading, *, new: bool) -> None:
        self.generation.observe(
            (before.t, before.generation_tokens, before.generation_tokens_source),
            (after.t, after.generation_tokens, after.generation_tokens_source),
            new=new,
        )
        self.prompt.observe(
            (before.t, before.prompt_tokens, before.prompt_tokens_source),
            (after.t, after.prompt_tokens, after.prompt_tokens_source),
            new=new,
        )
        if before.scheduler_idle_seconds is not None and after.scheduler_idle_seconds is not None and not new:
            idle = after.scheduler_idle_seconds - before.scheduler_idle_seconds
            if idle >= 0:
                self._idle.add(before.t, after.t, min(idle, after.t - before.t))

    def _work(self, before: EngineReading | None, after: EngineReading) -> Work:
        """Bounds of the work held at ``after``, by the best signals it offers."""
        near = before if before is not None and after.t - before.t <= self._max_gap else None
        progressed = _progressed(near, after) if near is not None else None
        if self._scheduler_idle(near, after) and not progressed:
            self._unconfirmed_since = None
            return Work(after.t, 0.0, 0.0, progressed)
        shown = [v for v in (after.running, after.queued) if v is not None]
        gauge = sum(shown) if shown else None
        if gauge is None:
            self._unconfirmed_since = None
            return Work(after.t, after.held_http, after.held_http, progressed)
        return self._shown_work(gauge, after, progressed)

    def _shown_work(self, gauge: float, after: EngineReading, progressed: bool | None) -> Work:
        """The bounds where the engine shows ``gauge`` requests: whether that is so, the other signals tell."""
        http = after.held_http or 0.0
        if gauge == 0 and http < self._plan.thresholds.busy_requests:
            # The scheduler holds nothing; a slow reader or a leaked connection is no work.
            self._unconfirmed_since = None
            return Work(after.t, 0.0, 0.0, progressed)
        high = max(gauge, http)
        slow = after.gauge_lag_seconds > SLOW_LAG_SECONDS
        if after.ranks_disagree or (slow and after.held_http == 0):
            # The front holds nothing: what a slow gauge shows is the past, or work for clients that have left.
            return Work(after.t, 0.0, high, progressed)
        if progressed or http or after.gauge_lag_seconds == 0:
            if not slow:
                # Counters may move in bursts: a poll or two between them were work as well.
                self._confirm(after.t - CONFIRM_POLLS * self._plan.engine_interval)
            self._unconfirmed_since = None
            return Work(after.t, high, high, progressed)
        # The gauge may be repeating the past. Once it has done so for longer than it can lag, it is believed.
        if self._unconfirmed_since is None:
            self._unconfirmed_since = after.t
        if after.t - self._unconfirmed_since < after.gauge_lag_seconds + self._plan.engine_interval:
            return Work(after.t, 0.0, high, progressed)
        self._confirm(self._unconfirmed_since)
        return Work(after.t, high, high, progressed)

    def _confirm(self, since: float) -> None:
        """What was only possible since then was certain, as is known now."""
        for i in range(len(self.works) - 1, -1, -1):
            work = self.works[i]
            if work.t < since or work.low == work.high:
                return
            self.works[i] = replace(work, low=work.high)

    def _scheduler_idle(self, before: EngineReading | None, after: EngineReading) -> bool:
        if before is None or before.scheduler_idle_seconds is None or after.scheduler_idle_seconds is None:
            return False
        return after.scheduler_idle_seconds - before.scheduler_idle_seconds >= IDLE_SHARE * (after.t - before.t)

    # Asking.

    def scattered(self, now: float) -> bool:
        """Whether one process after the other answers: there are several servers behind this address."""
        many = len(self._starts) == SCATTERED_STARTS
        return many and now - self._starts[0] <= self._plan.window

    def readable(self, now: float) -> bool:
        """Whether a good reading is young enough to speak for now."""
        return bool(self.good) and now - self.good[-1].t <= self._max_gap

    def up(self, now: float) -> bool:
        """Whether the last poll gave a reading, and that is young."""
        return self.last is not None and self.last.up and self.readable(now)

    def work_now(self, now: float) -> Work | None:
        """The bounds of the last good poll; ``None`` when it is too old."""
        return self.works[-1] if self.readable(now) else None

    def work_throughout(self, start: float, now: float) -> float | None:
        """The least certain work from ``start`` to ``now``; ``None`` when polls do not cover the stretch."""
        inside = [w for w in self.works if w.t > start]
        # Some polls may be missed: those that were answered tell, unless half of the stretch is dark.
        dark = max(self._max_gap, 0.5 * (now - start))
        if len(inside) < LEAST_POLLS or inside[0].t > start + dark or not self.readable(now):
            return None
        if any(b.t - a.t > dark for a, b in pairwise(inside)):
            return None
        lows = [w.low for w in inside]
        return None if any(low is None for low in lows) else min(low for low in lows if low is not None)

    def frozen(self, start: float, now: float) -> bool:
        """Work was certain throughout, and no progress counter moved from ``start`` to ``now``."""
        held = self.work_throughout(start, now)
        inside = [g for g in self.good if g.t > start]
        if held is None or held < 1 or not inside or not inside[0].progress:
            return False
        return all(g.progress == inside[0].progress for g in inside)

    def mean_since(self, start: float, name: str) -> float | None:
        """Mean of a gauge of the good readings since ``start``, by its name in the reading."""
        values = [v for g in self.good if g.t > start and (v := getattr(g, name)) is not None]
        return math.fsum(values) / len(values) if values else None

    def delta_since(self, start: float, name: str) -> float | None:
        """Growth of a counter over the good readings since ``start``; ``None`` when it fell or was not there."""
        values = [v for g in self.good if g.t > start and (v := getattr(g, name)) is not None]
        if len(values) < 2:  # noqa: PLR2004 - a difference needs two
            return None
        delta = values[-1] - values[0]
        return float(delta) if delta >= 0 else None

    def span_of_polls(self, start: float) -> tuple[float, float] | None:
        """First and last good poll since ``start``: the moments between which tokens are known."""
        inside = [g.t for g in self.good if g.t >= start]
        return (inside[0], inside[-1]) if inside and inside[-1] > inside[0] else None

    def idle_stretch(self) -> tuple[float, float] | None:
        """The time between the last two polls, when both said that nothing is held and nothing moved."""
        if len(self.works) < 2:  # noqa: PLR2004
            return None
        a, b = self.works[-2], self.works[-1]
        if a.high == 0 and b.high == 0 and not b.progressed and b.t - a.t <= self._max_gap:
            return a.t, b.t
        return None

    def view(self, now: float) -> EngineView:
        """All that is published of this engine."""
        work = self.work_now(now)
        certain = work is not None and work.low is not None and work.low == work.high
        idle = self._idle.between(now - self._plan.window, now).rate()
        return EngineView(
            name=self.engine.name,
            url=self.engine.url,
            deployment=self.deployment,
            reading=self.last if self.up(now) or (self.last is not None and not self.last.up) else None,
            prompt_tokens_total=self.prompt.total if self.engine.count_tokens else None,
            generation_tokens_total=self.generation.total if self.engine.count_tokens else None,
            scheduler_idle_ratio=idle if idle is None or math.isfinite(idle) else None,
            work=work.low if certain and work is not None else None,
            counted_here=self.engine.count_tokens,
        )
