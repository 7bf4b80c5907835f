"""The memory of one engine: what it holds now, what it has made, and whether it moves."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING

from wattline.analysis.snapshot import EngineView
from wattline.analysis.spans import Spans

if TYPE_CHECKING:
    from wattline.analysis.plan import EnginePlan, Plan
    from wattline.readings import EngineReading

STALE_AFTER = 3.5
"""A reading older than this many polls tells nothing about now."""
IDLE_SHARE = 0.9
"""The scheduler's own account: idle for this share of the poll means that it holds nothing."""
CONFIRM_POLLS = 2.5
SLOW_LAG_SECONDS = 10.0
"""A gauge that may lag by more is no witness of its own: what it shows is only certain beside a live signal."""
LEAST_POLLS = 3
LEAST_SHARE = 0.3
"""Fewer polls in a window, or a smaller share of those that were due, do not tell what went on throughout."""
FRESH_TOKENS = 1000.0
"""An engine that has counted more has not just started: its own warm-up makes some tens of tokens."""
GRACE_PAUSE = 3.0
"""Graces before another one is granted: an engine that restarts for ever must not be excused for ever."""
SCATTERED_STARTS = 3
"""So many breaks in the counters within a window are no restarts: several servers answer at one address in turn."""
USUAL_PACE = 10.0
"""Counters that grow by no more than so many times what they did before are those of the same process."""
JUMP_SHARE = 0.5
"""A counter climbs back to where it fell from in many steps; one step of more than this share is another process."""
PAUSES = 8
BURST_PATIENCE = 2.0
"""Progress that came in bursts is missed only after so many times the longest pause of late."""
FASTEST = 50_000.0
"""Tokens a second that no engine makes (an H200: 37,000 of prompts): a counter that appears with more is not new."""
LITTLE_SECONDS = 30.0
"""Over this long the requests that ended tell how many are inside: shorter than a window, to forget in time."""
PROBE_TOKENS_PER_SECOND = 4.0
"""What health probes make an idle SGLang count at most: one token a probe, from a handful of probers."""


@dataclass(frozen=True, slots=True)
class Work:
    """Requests held at one moment, as bounds: ``low`` is certain, ``high`` is possible.

    They differ where a gauge may only be repeating an old value. ``high`` is ``None`` where a part of the signals
    cannot be read, both where nothing tells.
    """

    t: float
    low: float | None
    high: float | None
    progressed: bool | None = None
    """Whether progress since the poll before tells of work; ``None`` when nothing counts it."""
    waits_for_peer: float = 0.0
    """How many of them only the other role of a disaggregated deployment can move."""


def _progressed(before: EngineReading, after: EngineReading) -> bool | None:
    """Whether more was made than health probes alone make: each of those costs an idle server a token or two."""
    if not after.progress or len(before.progress) != len(after.progress):
        return True if after.progress else None
    made = max(b - a for a, b in zip(before.progress, after.progress, strict=True))
    return made > PROBE_TOKENS_PER_SECOND * (after.t - before.t)


@dataclass(frozen=True, slots=True)
class _Doubt:
    """Counters that fell from one poll to the next: a restart, another process, or a text that lacked a part."""

    known: EngineReading
    """What they were before."""
    fallen: EngineReading


def _pairs(before: EngineReading, after: EngineReading) -> list[tuple[float, float]]:
    """Each counter that both tell, before and after."""
    if before.kind != after.kind:
        return []
    pairs = [
        *(zip(before.progress, after.progress, strict=False)),
        (before.scheduler_idle_seconds, after.scheduler_idle_seconds),
    ]
    if before.generation_tokens_source == after.generation_tokens_source:
        pairs.append((before.generation_tokens, after.generation_tokens))
    if before.prompt_tokens_source == after.prompt_tokens_source:
        pairs.append((before.prompt_tokens, after.prompt_tokens))
    return [(a, b) for a, b in pairs if a is not None and b is not None]


def _fell(before: EngineReading, after: EngineReading) -> bool:
    return any(b < a for a, b in _pairs(before, after))


def _another_model(before: EngineReading, after: EngineReading) -> bool:
    """Whether an address answers for other models than before; one that is added is none."""
    one, other = (set(filter(None, (reading.model or "").split(", "))) for reading in (before, after))
    return bool(one) and bool(other) and one.isdisjoint(other)


def _goes_on(before: EngineReading, after: EngineReading) -> bool:
    """Whether every counter stands where it stood before, or higher."""
    pairs = _pairs(before, after)
    return bool(pairs) and all(b >= a for a, b in pairs)


def _growth(before: EngineReading, after: EngineReading) -> float:
    """The growth of the counter that grew most."""
    return max((b - a for a, b in _pairs(before, after)), default=0.0)


def _filled(known: EngineReading, reading: EngineReading) -> EngineReading:
    """The reading; a counter that it does not tell is as it was known before."""
    if reading.generation_tokens is None:
        reading = replace(
            reading,
            generation_tokens=known.generation_tokens,
            generation_tokens_source=known.generation_tokens_source,
        )
    if reading.prompt_tokens is None:
        reading = replace(reading, prompt_tokens=known.prompt_tokens, prompt_tokens_source=known.prompt_tokens_source)
    if reading.scheduler_idle_seconds is None:
        reading = replace(reading, scheduler_idle_seconds=known.scheduler_idle_seconds)
    start_time = known.start_time if reading.start_time is None else reading.start_time
    return replace(reading, progress=reading.progress or known.progress, start_time=start_time)


def _without_counters(reading: EngineReading) -> EngineReading:
    """The reading as if its counters had not been obtained."""
    return replace(
        reading,
        generation_tokens=None,
        generation_tokens_source=None,
        prompt_tokens=None,
        prompt_tokens_source=None,
        progress=(),
        scheduler_idle_seconds=None,
        cuda_graph_passes=None,
        eager_passes=None,
        cached_prompt_tokens=None,
        finished_requests=None,
        request_seconds=None,
        flops=None,
        read_bytes=None,
        write_bytes=None,
    )


def _has_worked(reading: EngineReading) -> bool:
    """Whether the counters tell of a life before this reading."""
    made = [v for v in (*reading.progress, reading.generation_tokens) if v is not None]
    return max(made, default=0.0) > FRESH_TOKENS


class TokenCounter:
    """Tokens that were seen to be made: survives restarts of the engine and changes of the counter behind it."""

    def __init__(self, total: float | None = None) -> None:
        self.spans = Spans(0.0, 0.0)
        self.total = total
        """Since this exporter has watched; what the engine had counted before is not in it."""
        self._last: tuple[float, float, str | None] | None = None
        self._absent_at: float | None = None
        """When a whole text last had no such counter: it appears with the first token."""

    def observe(self, t: float, value: float | None, source: str | None, *, whole: bool = True) -> None:
        """Take a value of the counter of that name.

        Args:
            t: when it was read.
            value: ``None`` when this poll does not tell it.
            source: the name of the counter.
            whole: whether everything in the text could be read: what is missing then was not there.
        """
        if value is None:
            self._absent_at = t if whole and self._last is None else None
            return
        if self.total is None:
            self.total = 0.0
        if self._last is None and self._absent_at is not None and value <= FASTEST * (t - self._absent_at):
            self._last = self._absent_at, 0.0, source
        last, self._last, self._absent_at = self._last, (t, value, source), None
        # Between two processes or two counters nobody knows what was counted: nothing is invented.
        if last is not None and last[2] == source and value >= last[1]:
            self.total += value - last[1]
            self.spans.add(last[0], t, value - last[1])

    def begin_anew(self) -> None:
        """What comes next is of another process."""
        self._last = self._absent_at = None

    def forget(self) -> None:
        """Nothing of late is believed, the total stays."""
        self._last = self._absent_at = None
        self.spans = Spans(self.spans.horizon, self.spans.max_gap)


class EngineTrack:
    """Everything remembered of one engine. Fed in time order."""

    def __init__(self, engine: EnginePlan, deployment: str, plan: Plan, *, earlier: EngineTrack | None = None) -> None:
        self.last: EngineReading | None = None
        self.started_at: float | None = None
        """When the engine was last *seen* to start and granted its grace."""
        self.moved_at: float | None = None
        """When a progress counter was last seen to move, or to begin."""
        self._breaks: deque[float] = deque(maxlen=SCATTERED_STARTS)
        """When its counters were last seen to break off."""
        self.good: deque[EngineReading] = deque()
        self.works: deque[Work] = deque()
        # Totals are counters of this exporter: they go on where another address is configured for the same engine.
        self.generation: TokenCounter = TokenCounter(earlier.generation.total if earlier else None)
        self.prompt: TokenCounter = TokenCounter(earlier.prompt.total if earlier else None)
        self.cached: TokenCounter = TokenCounter(earlier.cached.total if earlier else None)
        self._idle = Spans(0.0, 0.0)
        self._known: EngineReading | None = None
        """Every counter as it was last told by the process that answers."""
        self._recent: EngineReading | None = None
        """The last reading of that process."""
        self._live: EngineReading | None = None
        """The last one that told its progress."""
        self._doubt: _Doubt | None = None
        self._left: _Doubt | None = None
        """The last fall that stayed. A sudden return to what was before it is another process, and no work."""
        self._excused_before: float | None = None
        """``started_at`` as it was before that fall."""
        self._absent_since: float | None = None
        self._unconfirmed_since: float | None = None
        self.rejected = 0
        """Readings of the front that requests which ended have refuted."""
        self._front_since: float | None = None
        """Since when many requests are held at the front beside an idle scheduler."""
        self._pauses: deque[float] = deque(maxlen=PAUSES)
        """How long progress stood still under work, each time before it moved."""
        self._rested = True
        """Whether there may have been no work since progress last moved."""
        self._was_down = False
        self.replan(engine, deployment, plan)

    def replan(self, engine: EnginePlan, deployment: str, plan: Plan) -> None:
        """Judge by another plan from now on; what was read stays known."""
        self.engine = engine
        self.deployment = deployment
        self._plan = plan
        self._horizon = plan.window + 4 * plan.engine_interval
        self._max_gap = STALE_AFTER * plan.engine_interval
        for spans in (*(c.spans for c in self._counters), self._idle):
            spans.horizon, spans.max_gap = self._horizon, self._max_gap

    @property
    def _counters(self) -> tuple[TokenCounter, TokenCounter, TokenCounter]:
        return self.generation, self.prompt, self.cached

    def observe(self, reading: EngineReading) -> None:
        """Take the outcome of one poll."""
        if self.last is not None and reading.t <= self.last.t:
            return
        self.last = reading
        if not reading.up:
            self._was_down = self._rested = True
            return
        reading = self._told_by_one(reading)
        self._was_down = False
        self._count(reading)
        self.works.append(self._work(reading))
        self._rested |= self.works[-1].high == 0
        self.good.append(reading)
        self._remember(reading)
        for kept in (self.good, self.works):
            while kept[0].t < reading.t - self._horizon:
                kept.popleft()

    def _told_by_one(self, reading: EngineReading) -> EngineReading:
        """Find out whether the process that answered before has answered again.

        Gives the reading as far as it can be believed: where counters fell between two polls, the next one tells.
        """
        if self._known is None:
            if self._was_down and not _has_worked(reading):
                self._start(reading.t)
            self._take_up(reading)
            return reading
        if self._doubt is not None:
            self._settle(self._doubt, reading)
        known = self._known
        gap = self._was_down or not self.good or reading.t - self.good[-1].t > self._max_gap
        fell = _fell(known, reading)
        if self._is_new(known, reading, gap=gap, fell=fell):
            self._breaks.append(reading.t)
            self._left = None
            self._start(reading.t)
            self._take_up(reading)
        elif fell:
            # Engines take longer than a poll to start. A part of the text may be missing: the next poll tells.
            self._breaks.append(reading.t)
            self._doubt = _Doubt(known, reading)
            return _without_counters(reading)
        elif known.kind != reading.kind:
            self._take_up(reading)
        elif self._is_back(known, reading):
            self._breaks.append(reading.t)
            self.started_at, self._left = self._excused_before, _Doubt(known, reading)
            self._take_up(reading)
        else:
            filled = _filled(known, reading)
            if filled.progress != known.progress:
                self._moved(reading.t)
            self._known = filled
        return reading

    def _settle(self, doubt: _Doubt, reading: EngineReading) -> None:
        """Tell by the next poll what it was that fell: the counters are back, or go on from below."""
        if not _pairs(doubt.known, reading):
            return  # It tells no counter: the one after it may.
        self._doubt = None
        if _goes_on(doubt.known, reading):
            return
        fallen = doubt.fallen
        same = fallen.start_time is not None and fallen.start_time == doubt.known.start_time
        other = self._left is not None and _goes_on(self._left.known, fallen)
        self._left, self._excused_before = doubt, self.started_at
        if not same and not other:
            self._start(fallen.t)
        self._take_up(fallen)
        self._count(fallen)
        self._remember(fallen)
        for i, kept in enumerate(self.good):
            if kept.t == fallen.t:
                self.good[i] = fallen

    def _is_new(self, known: EngineReading, reading: EngineReading, *, gap: bool, fell: bool) -> bool:
        """Whether another process has begun, as far as this reading alone can tell."""
        if known.kind != reading.kind:
            return gap
        if _another_model(known, reading):
            return True
        told = known.start_time is not None and reading.start_time is not None
        if told and abs((known.start_time or 0.0) - (reading.start_time or 0.0)) > 1.0:
            if fell or _growth(known, reading) > self._usual_growth(known, reading):
                return True
            # All counters go on as they did: the clock was set, by which start times are told.
            self._breaks.append(reading.t)
            return False
        vanished = known.generation_tokens is not None and reading.generation_tokens is None and not reading.errors
        if not vanished:
            self._absent_since = None
        elif self._absent_since is None:
            self._absent_since = reading.t
        if told:
            return False
        # A counter that one poll does not tell is no restart.
        gone = self._absent_since is not None and (gap or reading.t - self._absent_since > self._max_gap)
        return gone or (fell and gap)

    def _usual_growth(self, known: EngineReading, reading: EngineReading) -> float:
        """The most that the same process may have counted between these two, by what it has done until now."""
        pace = max((_growth(a, b) / (b.t - a.t) for a, b in pairwise(self.good)), default=0.0)
        return USUAL_PACE * max(pace, PROBE_TOKENS_PER_SECOND) * (reading.t - known.t)

    def _is_back(self, known: EngineReading, reading: EngineReading) -> bool:
        """Whether counters that fell are at once where they had been: those of another process, not of work."""
        left = self._left
        if left is None or not _goes_on(left.known, reading) or _goes_on(left.known, known):
            return False
        back = _growth(known, reading) > JUMP_SHARE * _growth(left.fallen, reading)
        if not back:
            # The process that began anew has come as far as the one before it.
            self._left = None
        return back

    def _moved(self, t: float) -> None:
        if self.moved_at is not None and not self._rested:
            self._pauses.append(t - self.moved_at)
        self.moved_at, self._rested = t, False

    def _take_up(self, reading: EngineReading) -> None:
        """Count from this reading on: nothing is known of its process before it."""
        self._known, self._recent, self._live = reading, None, None
        self._doubt = self._absent_since = None
        self.moved_at, self._rested = reading.t, False
        self._pauses.clear()
        for counter in self._counters:
            counter.begin_anew()

    def _remember(self, reading: EngineReading) -> None:
        self._recent = reading
        if reading.progress:
            self._live = reading

    def _start(self, t: float) -> None:
        self._unconfirmed_since = None
        if self.started_at is None or t - self.started_at >= GRACE_PAUSE * self._plan.grace:
            self.started_at = t

    def _count(self, reading: EngineReading) -> None:
        if self.scattered(reading.t):
            # Whose tokens are the difference of two processes?
            for counter in self._counters:
                counter.forget()
        whole = not reading.errors
        t, prompt_source = reading.t, reading.prompt_tokens_source
        self.generation.observe(t, reading.generation_tokens, reading.generation_tokens_source, whole=whole)
        self.prompt.observe(t, reading.prompt_tokens, prompt_source, whole=whole)
        self.cached.observe(t, reading.cached_prompt_tokens, prompt_source, whole=whole)
        before = self._recent
        if before is None or before.scheduler_idle_seconds is None or reading.scheduler_idle_seconds is None:
            return
        idle = reading.scheduler_idle_seconds - before.scheduler_idle_seconds
        if idle >= 0:
            self._idle.add(before.t, reading.t, min(idle, reading.t - before.t))

    def _near(self, before: EngineReading | None, after: EngineReading) -> EngineReading | None:
        return before if before is not None and after.t - before.t <= self._max_gap else None

    def _work(self, after: EngineReading) -> Work:
        """Bounds of the work held at ``after``, by the best signals it offers."""
        recent = self._near(self._recent, after)
        live = self._near(self._live, after)
        progressed = _progressed(live or recent, after) if recent is not None else None
        moving = progressed
        if live is not None and not after.progress and self.works:
            # The counters are there but were not obtained: whether they move is as it was.
            moving = self.works[-1].progressed
        if self._scheduler_idle(recent, after) and not progressed:
            self._unconfirmed_since = None
            return Work(after.t, 0.0, self._stuck_at_front(after), progressed)
        self._front_since = None
        if after.running is not None and after.queued is not None:
            work = self._shown_work(after.running + after.queued, after, moving)
            return replace(work, progressed=progressed, waits_for_peer=after.waiting_for_peer or 0.0)
        # One that cannot be read is no zero: what the other shows is the least, and nobody knows the most.
        shown = after.running or after.queued
        if shown:
            return replace(self._shown_work(shown, after, moving), high=None, progressed=progressed)
        self._unconfirmed_since = None
        if after.held_http is None and (after.running is not None or after.queued is not None):
            return Work(after.t, 0.0, None, progressed)
        front = self._front(after)
        return Work(after.t, front, front, progressed)

    def _front(self, after: EngineReading) -> float | None:
        """Requests at the front, as far as they are believed.

        A front may count what nobody has open any more: SGLang keeps a streamed answer for two seconds after its end.
        While requests end, the time that they took tells how many are inside; while none ends, the front is all there
        is to see of a hang.
        """
        inside = self.mean_inside(after)
        if after.held_http is None or inside is None or after.held_http <= inside:
            return after.held_http
        if after.held_http - inside >= self._plan.thresholds.busy_requests:
            self.rejected += 1
        return inside

    def mean_inside(self, after: EngineReading) -> float | None:
        """The mean number of requests inside of late, by Little's law; ``None`` while none ends, or nobody tells.

        The rate of the summed time of ended requests is that mean (J. D. C. Little, "A Proof for the Queuing Formula:
        L = λW", Operations Research 9, 1961).
        """
        recent = [g for g in self.good if not g.errors and g.t >= after.t - LITTLE_SECONDS]
        if not recent or after.request_seconds is None or after.finished_requests is None:
            return None
        # The counters appear with the first request that ends: only where nobody told them before were they 0.
        first = next((g for g in recent if g.request_seconds is not None), recent[0])
        ended = after.finished_requests - (first.finished_requests or 0.0)
        spent = after.request_seconds - (first.request_seconds or 0.0)
        if ended < 1 or spent < 0 or after.t <= first.t:
            return None
        # Most of the time of a long request may lie before the first of these polls: none was here more than once.
        return min(ended, spent / (after.t - first.t))

    def _shown_work(self, gauge: float, after: EngineReading, moving: bool | None) -> Work:
        """The bounds where the engine shows ``gauge`` requests: whether that is so, the other signals tell."""
        http = self._front(after) or 0.0
        inside = self.mean_inside(after) if moving and not after.gauge_lag_seconds > SLOW_LAG_SECONDS else None
        if gauge == 0 and http < self._plan.thresholds.busy_requests and not inside:
            # The scheduler holds nothing; a slow reader or a leaked connection is no work.
            self._unconfirmed_since = None
            return Work(after.t, 0.0, 0.0)
        # A gauge of the last step shows what that step ran: between steps that may be nothing.
        high = max(gauge, http, inside or 0.0)
        if after.asleep:
            return Work(after.t, 0.0, high)
        slow = after.gauge_lag_seconds > SLOW_LAG_SECONDS
        if after.ranks_disagree or (slow and after.held_http == 0):
            # The front holds nothing: what a slow gauge shows is the past, or work for clients that have left.
            return Work(after.t, 0.0, high)
        if moving or http or after.gauge_lag_seconds == 0:
            if not slow:
                # Counters may move in bursts: a poll or two between them were work as well.
                self._confirm(after.t - CONFIRM_POLLS * self._plan.engine_interval)
            self._unconfirmed_since = None
            return Work(after.t, high, high)
        # The gauge may be repeating the past. Once it has done so for longer than it can lag, it is believed.
        if self._unconfirmed_since is None:
            self._unconfirmed_since = after.t
        if after.t - self._unconfirmed_since < after.gauge_lag_seconds + self._plan.engine_interval:
            return Work(after.t, 0.0, high)
        self._confirm(self._unconfirmed_since)
        return Work(after.t, high, high)

    def _stuck_at_front(self, after: EngineReading) -> float:
        """Requests that the front has held for a window while the scheduler was idle: they may never reach it."""
        http = self._front(after) or 0.0
        if http < self._plan.thresholds.busy_requests:
            self._front_since = None
            return 0.0
        if self._front_since is None:
            self._front_since = after.t
        return http if after.t - self._front_since >= self._plan.window else 0.0

    def _confirm(self, since: float) -> None:
        """What was only possible since then was certain, as is known now."""
        for i in range(len(self.works) - 1, -1, -1):
            work = self.works[i]
            if work.t < since or work.low == work.high or work.high is None:
                return
            self.works[i] = replace(work, low=work.high)

    def _scheduler_idle(self, before: EngineReading | None, after: EngineReading) -> bool:
        if before is None or before.scheduler_idle_seconds is None or after.scheduler_idle_seconds is None:
            return False
        return after.scheduler_idle_seconds - before.scheduler_idle_seconds >= IDLE_SHARE * (after.t - before.t)

    # Asking.

    def scattered(self, now: float) -> bool:
        """Whether one process after the other answers: there are several servers behind this address."""
        many = len(self._breaks) == SCATTERED_STARTS
        return many and now - self._breaks[0] <= self._plan.window

    def readable(self, now: float) -> bool:
        """Whether a good reading is young enough to speak for now."""
        return bool(self.good) and now - self.good[-1].t <= self._max_gap

    def up(self, now: float) -> bool:
        """Whether the last poll gave a reading, and that is young."""
        return self.last is not None and self.last.up and self.readable(now)

    def work_now(self, now: float) -> Work | None:
        """The bounds of the last good poll; ``None`` when it is too old."""
        return self.works[-1] if self.readable(now) else None

    def work_throughout(self, start: float, now: float, *, without_waiting: bool = False) -> float | None:
        """The least certain work from ``start`` to ``now``; ``None`` when polls do not cover the stretch.

        Args:
            start: from when on.
            now: until when.
            without_waiting: leave out what waits for the other role of a disaggregated deployment.
        """
        inside = [w for w in self.works if w.t > start]
        least = max(LEAST_POLLS, LEAST_SHARE * (now - start) / self._plan.engine_interval)
        if len(inside) < least or inside[0].t > start + self._max_gap or not self.readable(now):
            return None
        # Some polls may be missed: those that were answered tell, unless half of the stretch is dark.
        dark = max(self._max_gap, 0.5 * (now - start))
        if any(b.t - a.t > dark for a, b in pairwise(inside)):
            return None
        lows = [w.low if w.low is None or not without_waiting else w.low - w.waits_for_peer for w in inside]
        return None if any(low is None for low in lows) else min(low for low in lows if low is not None)

    def frozen(self, start: float, now: float, *, peer_works: bool = False) -> bool:
        """Work was certain throughout, and no progress counter moved from ``start`` to ``now``.

        Args:
            start: from when on.
            now: until when.
            peer_works: another engine of the deployment makes tokens: requests that wait for it are no evidence here.
        """
        held = self.work_throughout(start, now, without_waiting=peer_works)
        # Polls that did not tell the counters say nothing of them, as long as those before and after do.
        told = [g for g in self.good if g.t > start and g.progress]
        if held is None or held < 1 or not told:
            return False
        if told[0].t > start + self._max_gap or now - told[-1].t > self._max_gap:
            return False
        patience = min(BURST_PATIENCE * max(self._pauses, default=0.0), self._plan.thresholds.long_stall_seconds)
        if self.moved_at is not None and now - self.moved_at < patience:
            return False
        return all(g.progress == told[0].progress for g in told)

    def mean_since(self, start: float, name: str) -> float | None:
        """Mean of a gauge of the good readings since ``start``, by its name in the reading."""
        values = [v for g in self.good if g.t > start and (v := getattr(g, name)) is not None]
        return math.fsum(values) / len(values) if values else None

    def delta_since(self, start: float, name: str) -> float | None:
        """Growth of a counter over the good readings since ``start``; ``None`` when it fell or was not there."""
        grown = self._grown(start, name)
        return None if grown is None else grown[0]

    def rate_since(self, start: float, name: str) -> float | None:
        """Growth of a counter a second, over the good readings since ``start``; ``None`` as for the growth."""
        grown = self._grown(start, name)
        return None if grown is None else grown[0] / grown[1]

    def _grown(self, start: float, name: str) -> tuple[float, float] | None:
        """By how much a counter grew, and in how many seconds."""
        told = [(g.t, v) for g in self.good if g.t > start and (v := getattr(g, name)) is not None]
        if len(told) < 2:  # noqa: PLR2004 - a difference needs two
            return None
        (begun, first), (ended, last) = told[0], told[-1]
        return (float(last - first), ended - begun) if last >= first else None

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

    def certain_work(self, now: float) -> float | None:
        """Requests held now; ``None`` where the bounds differ, or nothing tells."""
        work = self.work_now(now)
        return work.low if work is not None and work.low == work.high else None

    def view(self, now: float) -> EngineView:
        """All that is published of this engine."""
        idle = self._idle.between(now - self._plan.window, now).rate()
        return EngineView(
            name=self.engine.name,
            url=self.engine.url,
            deployment=self.deployment,
            reading=self.last if self.up(now) or (self.last is not None and not self.last.up) else None,
            prompt_tokens_total=self.prompt.total if self.engine.count_tokens else None,
            generation_tokens_total=self.generation.total if self.engine.count_tokens else None,
            cached_prompt_tokens_total=self.cached.total if self.engine.count_tokens else None,
            rejected=self.rejected,
            scheduler_idle_ratio=idle if idle is None or math.isfinite(idle) else None,
            work=self.certain_work(now),
            counted_here=self.engine.count_tokens,
            kind=self.engine.kind,
        )
