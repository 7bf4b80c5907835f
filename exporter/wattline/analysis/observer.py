"""Readings in, verdicts out: the one way from what was read to what is believed.

Nothing here reads a clock: time is what the readings carry and what :meth:`Observer.judge` is asked about. The same
readings therefore give the same verdicts, live or replayed, at any speed.
"""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple

from wattline.analysis.boards import board
from wattline.analysis.causes import POWER_CAP, THROTTLE_REASONS, GpuSigns, Signs, suspect, unseen
from wattline.analysis.engine import EngineTrack
from wattline.analysis.gpu import GpuTrack, link_capacity, mean
from wattline.analysis.idle import active_fraction
from wattline.analysis.judge import Evidence, coming, judge
from wattline.analysis.snapshot import DeploymentView, GpuView, Pending, Snapshot, State
from wattline.readings import EngineReading, GpuActivity, GpuCondition, GpuGone, GpuIdentity, GpuSample

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from wattline.analysis.engine import Work
    from wattline.analysis.plan import DeploymentPlan, Plan
    from wattline.analysis.snapshot import EngineView, SourceView
    from wattline.readings import Reading

PENDING_POLLS = 3.5
"""Over so many polls nothing has moved: that may become a stall."""
BLIP_SECONDS = 15.0
"""A state that comes back within it was not over: people count from when it began."""
IDLE_SETTLE = 2.0
"""Seconds after the last work in which the driver's 1 s average still remembers it."""


class _Members(NamedTuple):
    """The GPUs of a deployment, and why they may be a part of it only."""

    gpus: tuple[str, ...]
    missing: tuple[str, ...]
    foreign: dict[str, str]
    unplaced: tuple[str, ...]

    def why_partial(self) -> str:
        """Why nothing may be derived from the GPUs, in words; empty when they are all."""
        words = [f"configured GPU not visible: {', '.join(self.missing)}"] if self.missing else []
        words += [f"GPU {uuid} belongs to {owner}" for uuid, owner in self.foreign.items()]
        words += [f"the GPU of {', '.join(self.unplaced)} is not known"] if self.unplaced else []
        return "; ".join(words)


@dataclass(slots=True)
class _Ledger:
    """What a deployment's past adds up to."""

    state: State = State.UNKNOWN
    since: float = 0.0
    left: dict[State, tuple[float, float]] = field(default_factory=dict)
    """By state: when it last began, and when it was left."""
    coming: State | None = None
    coming_since: float = 0.0
    seconds: dict[State, float] = field(default_factory=lambda: dict.fromkeys(State, 0.0))
    joules: dict[State, float] = field(default_factory=lambda: dict.fromkeys(State, 0.0))
    energy_seen: dict[str, float] = field(default_factory=dict)


class Observer:
    """Holds the window of every GPU and engine, and judges every deployment.

    Args:
        plan: what to judge and how.
    """

    def __init__(self, plan: Plan) -> None:
        self.gpus: dict[str, GpuTrack] = {}
        self.engines: dict[str, EngineTrack] = {}
        self._ledgers: dict[str, _Ledger] = {}
        self._resolved_indices: dict[int, str] = {}
        self._first_t: float | None = None
        self._judged_at: float | None = None
        self.unix_offset: float | None = None
        """Unix time less the readings' clock; ``None`` in a replay."""
        self._kept_idle: dict[str, float] = {}
        self.replan(plan)

    def replan(self, plan: Plan) -> None:
        """Judge by another plan from now on. GPUs, engines and deployments that stay keep their past."""
        self.plan = plan
        self._ledgers = {d.name: self._ledgers.get(d.name) or _Ledger() for d in plan.deployments}
        known, self.engines = self.engines, {}
        for deployment in plan.deployments:
            for engine in deployment.engines:
                track = known.get(engine.name)
                if track is None or track.engine.url != engine.url:
                    self.engines[engine.name] = EngineTrack(engine, deployment.name, plan, earlier=track)
                else:
                    track.replan(engine, deployment.name, plan)
                    self.engines[engine.name] = track
        for uuid, gpu in self.gpus.items():
            gpu.replan(plan, plan.overrides.get(uuid))

    # Readings in.

    def observe(self, reading: Reading) -> None:
        """Take one reading. Readings of one source must come in time order; a late one is dropped."""
        match reading:
            case GpuIdentity():
                self._meet(reading)
            case GpuSample(uuid=uuid) if uuid in self.gpus:
                self._first_t = reading.t if self._first_t is None else self._first_t
                self.gpus[uuid].lost = False
                self.gpus[uuid].observe_sample(reading)
            case GpuActivity(uuid=uuid) if uuid in self.gpus:
                self.gpus[uuid].observe_activity(reading)
            case GpuCondition(uuid=uuid) if uuid in self.gpus:
                self.gpus[uuid].observe_condition(reading)
            case EngineReading(engine=name) if name in self.engines:
                track = self.engines[name]
                track.observe(reading)
                self._learn(track.deployment)
            case GpuGone(uuid=uuid, forgotten=forgotten) if uuid in self.gpus:
                if forgotten:
                    self._forget(uuid)
                else:
                    # Only its absence is published from now on.
                    self.gpus[uuid].lost = True
            case _:
                pass

    def _meet(self, identity: GpuIdentity) -> None:
        track = self.gpus.get(identity.uuid)
        if track is None:
            override = self.plan.overrides.get(identity.uuid)
            track = self.gpus[identity.uuid] = GpuTrack(identity, self.plan, override)
            if (kept := self._kept_idle.get(identity.uuid)) is not None:
                track.learner.restore(kept)
        else:
            track.identity = identity
            track.lost = False
        # An index in the configuration means the GPU that had it first: NVML's order may change under us.
        self._resolved_indices.setdefault(identity.index, identity.uuid)

    def _forget(self, uuid: str) -> None:
        """Nobody reads this GPU any more: it was taken out, or was named by its place and has a UUID now."""
        heir = next((u for u, g in self.gpus.items() if u != uuid and g.identity.pci_bus_id == uuid), uuid)
        # Who has an index keeps it, so that a configured one never means another GPU.
        self._resolved_indices = {i: heir if u == uuid else u for i, u in self._resolved_indices.items()}
        gone = self.gpus.pop(uuid).identity
        if not (gone.name or gone.pci_bus_id):  # It stood for a GPU that nobody knew.
            self._resolved_indices = {i: u for i, u in self._resolved_indices.items() if u != uuid}
        self._kept_idle.pop(uuid, None)
        for ledger in self._ledgers.values():
            ledger.energy_seen.pop(uuid, None)

    def restore_idle(self, uuid: str, watts: float) -> None:
        """Begin from an idle floor that an earlier run learned, for a GPU that may not have been met yet."""
        self._kept_idle[uuid] = watts
        if uuid in self.gpus:
            self.gpus[uuid].learner.restore(watts)

    def learned_idle(self) -> dict[str, float]:
        """The idle floors in watts by UUID; those of GPUs that were not met this time are kept."""
        learned = {u: w for u, g in self.gpus.items() if (w := g.learner.learned()) is not None}
        return self._kept_idle | learned

    def _learn(self, deployment: str) -> None:
        """When all engines of a deployment just showed an idle stretch, its GPUs' power there is their idle floor."""
        stretches = [e.idle_stretch() for e in self.engines.values() if e.deployment == deployment]
        known = [s for s in stretches if s is not None]
        if not known or len(known) < len(stretches):
            return
        start, end = max(s[0] for s in known), min(s[1] for s in known)
        for uuid in self._memberships()[deployment].gpus:
            self.gpus[uuid].learn_idle(start + IDLE_SETTLE, end)

    def members(self, deployment: DeploymentPlan) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """UUIDs of the GPUs that serve a deployment, and the configured ones that are not visible."""
        if deployment.gpus is None:
            claimed = {u for d in self.plan.deployments if d.gpus is not None for u in self.members(d)[0]}
            return tuple(u for u in self._in_order() if u not in claimed), ()
        found: list[str] = []
        missing: list[str] = []
        by_name = {_canonical(k): u for u, g in self.gpus.items() for k in (u, g.identity.pci_bus_id) if k}
        for wanted in deployment.gpus:
            uuid = self._resolved_indices.get(wanted) if isinstance(wanted, int) else by_name.get(_canonical(wanted))
            if uuid not in self.gpus:
                missing.append(str(wanted))
            elif uuid not in found:
                found.append(uuid)
        return tuple(found), tuple(missing)

    def _memberships(self) -> dict[str, _Members]:
        """As :meth:`members`, by deployment. A GPU is the first one's that names it, by whatever name."""
        owners: dict[str, str] = {}
        found: dict[str, _Members] = {}
        for plan in self.plan.deployments:
            uuids, missing = self.members(plan)
            own = tuple(u for u in uuids if u not in owners)
            found[plan.name] = _Members(own, missing, {u: owners[u] for u in uuids if u in owners}, plan.unplaced)
            owners |= dict.fromkeys(own, plan.name)
        return found

    def _in_order(self) -> list[str]:
        return sorted(self.gpus, key=lambda u: (self.gpus[u].identity.index, u))

    # Verdicts out.

    def judge(self, now: float, sources: Iterable[SourceView] = ()) -> Snapshot:
        """Everything that is known and believed at ``now``; adds the time since the last call to the state counters."""
        membership = self._memberships()
        owner = {u: name for name, members in membership.items() for u in members.gpus}
        gpus = {u: self.gpus[u].view(now, owner.get(u, "")) for u in self._in_order()}
        deployments = tuple(self._judge(d, membership[d.name], gpus, now) for d in self.plan.deployments)
        self._judged_at = now if self._judged_at is None else max(now, self._judged_at)
        return Snapshot(
            t=now,
            window=self.plan.window,
            gpus=tuple(gpus.values()),
            engines=tuple(e.view(now) for e in self.engines.values()),
            deployments=deployments,
            sources=tuple(sources),
        )

    def _judge(
        self,
        plan: DeploymentPlan,
        members: _Members,
        views: dict[str, GpuView],
        now: float,
    ) -> DeploymentView:
        uuids, missing = members.gpus, members.why_partial()
        start = now - self.plan.window
        engines = [self.engines[e.name] for e in plan.engines]
        gpus = [views[u] for u in uuids]
        totals = _Totals.of(gpus, missing)
        evidence = self._evidence(engines, gpus, missing, totals, now)
        state, reason = judge(evidence, self.plan.thresholds)
        ledger = self._ledgers[plan.name]
        self._book(ledger, state, uuids, now)
        pending = self._pending(ledger, state, self._signs_now(evidence, engines, gpus, totals, now), now)
        signs = self._signs(engines, uuids, gpus, evidence, start)
        tokens, per_watt = self._efficiency(engines, gpus, missing, now)
        return DeploymentView(
            name=plan.name,
            state=state,
            reason=reason,
            since=ledger.since,
            state_since=None if self.unix_offset is None else ledger.since + self.unix_offset,
            pending=pending,
            watched_seconds=min(self.plan.window, evidence.watched_seconds),
            bandwidth_ratio=evidence.bandwidth,
            flops_ratio=evidence.flops,
            gpus=uuids,
            engines=tuple(e.engine.name for e in engines),
            unresolved_gpus=members.missing,
            foreign_gpus=members.foreign,
            unplaced=members.unplaced,
            suspicions=suspect(signs, self.plan.thresholds),
            unseen=unseen(signs),
            tdp_fraction=totals.tdp_fraction,
            active_power_fraction=totals.active_fraction,
            power_watts=totals.power,
            power_limit_watts=totals.limit,
            work=evidence.work_now_low if evidence.work_now_low == evidence.work_now_high else None,
            work_counted=_sum(e.certain_work(now) for e in engines if e.engine.count_tokens),
            tokens_per_second=tokens,
            tokens_per_watt=per_watt,
            joules_per_token={k: 1 / v for k, v in per_watt.items() if v > 0},
            state_seconds=dict(ledger.seconds),
            state_energy_joules=dict(ledger.joules),
        )

    def _book(self, ledger: _Ledger, state: State, uuids: tuple[str, ...], now: float) -> None:
        """Add the time and energy since the last verdict to the state that is judged now."""
        elapsed = 0.0 if self._judged_at is None else now - self._judged_at
        # After a leap of the clock or a suspend nobody knows what was going on: that time belongs to no state.
        if 0 < elapsed <= max(3.0, 3 * self.plan.sample_interval):
            ledger.seconds[state] += elapsed
        # What a GPU draws while it is another deployment's is never this one's, also when it comes back.
        seen, ledger.energy_seen = ledger.energy_seen, {u: self.gpus[u].accrued_joules for u in uuids}
        ledger.joules[state] += sum(total - seen.get(u, total) for u, total in ledger.energy_seen.items())
        if state is ledger.state and ledger.since != 0.0:
            return
        ledger.left[ledger.state] = ledger.since, now
        began, left = ledger.left.get(state, (now, -math.inf))
        ledger.state, ledger.since = state, began if now - left <= BLIP_SECONDS and began > 0.0 else now

    def _pending(self, ledger: _Ledger, state: State, signs: Evidence, now: float) -> Pending | None:
        """The bad state that is coming, and for how long its signs have been there."""
        bad = coming(signs, self.plan.thresholds)
        if bad is not ledger.coming:
            ledger.coming, ledger.coming_since = bad, now
        if bad is None or bad is state:
            return None
        return Pending(bad, now - ledger.coming_since)

    def _signs_now(
        self, e: Evidence, engines: list[EngineTrack], gpus: list[GpuView], totals: _Totals, now: float
    ) -> Evidence:
        """The evidence as if what is so now had been so for a whole window."""
        still = _frozen(engines, now - PENDING_POLLS * self.plan.engine_interval, now)
        power = [(g, g.sample.power_watts if g.sample else None) for g in gpus]
        fractions = [w / g.limit_watts if w is not None and g.limit_watts else None for g, w in power]
        active = [active_fraction(w, g.idle_floor.watts if g.idle_floor else None, g.limit_watts) for g, w in power]
        return replace(
            e,
            work_throughout=e.work_now_low,
            frozen=tuple(t.engine.name for t in still),
            frozen_old=True,
            tdp_fraction=e.tdp_fraction_now,
            active_power_fraction=totals.active_fraction_now,
            idlest_active_fraction=_least(active),
            busiest_tdp_fraction=_greatest(fractions),
            busiest_active_fraction=_greatest(active),
        )

    def _used(self, engines: list[EngineTrack], gpus: list[GpuView], start: float, what: str) -> float | None:
        """Memory traffic or operations by the engines' estimate for a GPU, over what the boards can do at most.

        Nothing where an engine does not tell, or the peak of a board is not known.
        """
        peaks = [board(g.identity.name) for g in gpus]
        if not engines or not peaks or None in peaks:
            return None
        names, peak = (
            (("flops",), min(b.bf16_flops for b in peaks if b))
            if what == "flops"
            else (("read_bytes", "write_bytes"), min(b.bytes_per_second for b in peaks if b))
        )
        rates = [_sum(e.rate_since(start, name) for name in names) for e in engines]
        known = [r for r in rates if r is not None]
        return sum(known) / peak if known and len(known) == len(rates) else None

    def _evidence(
        self,
        engines: list[EngineTrack],
        gpus: list[GpuView],
        missing: str,
        totals: _Totals,
        now: float,
    ) -> Evidence:
        start = now - self.plan.window
        works = [e.work_now(now) for e in engines]
        known = [w for w in works if w is not None and w.low is not None]
        complete = len(known) == len(engines) and all(w.high is not None for w in known)
        throughout = [held for e in engines if (held := e.work_throughout(start, now)) is not None]
        uuids = [g.identity.uuid for g in gpus]
        cap_shares = [s for u in uuids if (s := self.gpus[u].reason_share(start, frozenset({POWER_CAP}))) is not None]
        frozen = _frozen(engines, start, now)
        dram = [g.means.dram_active_ratio for g in gpus]
        bandwidth = _mean(dram)
        if bandwidth is None:
            bandwidth = self._used(engines, gpus, start, "bytes")
        flops = self._used(engines, gpus, start, "flops")
        told = [*dram, *(g.means.sm_active_ratio for g in gpus), bandwidth, flops]
        return Evidence(
            asleep=tuple(e.engine.name for e in engines if e.good and e.good[-1].asleep),
            mig=any(g.identity.mig for g in gpus),
            busiest_activity=max((v for v in told if v is not None), default=None),
            bandwidth=bandwidth,
            flops=flops,
            gpus_unreadable=_why_gpus(gpus, missing),
            engines_unreadable=self._why_engines(engines, now),
            work_now_low=sum(w.low or 0.0 for w in known) if known else None,
            work_now_high=sum(w.high or 0.0 for w in known) if known and complete else None,
            work_throughout=sum(throughout) if throughout else None,
            progressed=any(w.progressed for w in known),
            frozen=tuple(e.engine.name for e in frozen),
            frozen_old=any(self._grace_left(e, now) <= 0 for e in frozen),
            frozen_seconds=max((now - e.moved_at for e in frozen if e.moved_at is not None), default=0.0),
            power_unknown=_why_power(gpus),
            tdp_fraction=totals.tdp_fraction,
            active_power_fraction=totals.active_fraction,
            busiest_utilization=_greatest(self.gpus[u].utilization_believed(start) for u in uuids),
            idlest_active_fraction=_least(g.active_power_fraction for g in gpus),
            busiest_tdp_fraction=_greatest(g.tdp_fraction for g in gpus),
            busiest_active_fraction=_greatest(g.active_power_fraction for g in gpus),
            tdp_fraction_now=totals.tdp_fraction_now,
            power_cap_share=max(cap_shares, default=None),
            power_cap_now=any(POWER_CAP in (g.sample.event_reasons or ()) for g in gpus if g.sample is not None),
            watched_seconds=0.0 if self._first_t is None else max(0.0, now - self._first_t),
            window=self.plan.window,
            grace_left=max((self._grace_left(e, now) for e in engines), default=0.0),
        )

    def _grace_left(self, engine: EngineTrack, now: float) -> float:
        return 0.0 if engine.started_at is None else max(0.0, engine.started_at + self.plan.grace - now)

    @staticmethod
    def _why_engines(engines: list[EngineTrack], now: float) -> str:
        if not engines:
            return "no engine is configured, so nobody knows whether there is work"
        if scattered := [e.engine.name for e in engines if e.scattered(now)]:
            return f"engine {', '.join(scattered)}: another process answers at each poll (several behind one address?)"
        if any(e.readable(now) for e in engines):
            return ""
        words = {e.engine.name: (e.last.error or "stale") if e.last is not None else "not read yet" for e in engines}
        return "; ".join(f"engine {name}: {why}" for name, why in words.items())

    def _signs(
        self,
        engines: list[EngineTrack],
        uuids: tuple[str, ...],
        gpus: list[GpuView],
        evidence: Evidence,
        start: float,
    ) -> Signs:
        def total(get: Callable[[EngineTrack], float | None]) -> float | None:
            values = [v for e in engines if (v := get(e)) is not None]
            return sum(values) if values else None

        usage = [v for e in engines if (v := e.mean_since(start, "kv_cache_usage_ratio")) is not None]
        idle = [v for e in engines if (v := e.view(start + self.plan.window).scheduler_idle_ratio) is not None]
        t = self.plan.thresholds
        return Signs(
            gpus=tuple(self._gpu_signs(self.gpus[u], g, start) for u, g in zip(uuids, gpus, strict=True)),
            work=evidence.work_throughout or 0.0,
            saturated=(evidence.tdp_fraction or 0.0) >= t.saturated_tdp_fraction,
            running=total(lambda e: e.mean_since(start, "running")),
            queued=total(lambda e: e.mean_since(start, "queued")),
            queued_throughout=any(
                e.good and all((g.queued or 0.0) > 0 for g in e.good if g.t > start) for e in engines
            ),
            kv_cache_usage=max(usage, default=None),
            graph_passes=total(lambda e: e.delta_since(start, "cuda_graph_passes")),
            eager_passes=total(lambda e: e.delta_since(start, "eager_passes")),
            scheduler_idle=max(idle, default=None),
        )

    @staticmethod
    def _gpu_signs(track: GpuTrack, view: GpuView, start: float) -> GpuSigns:
        activities = [a for a in track.activities if a.t > start]
        return GpuSigns(
            index=track.identity.index,
            utilization=view.means.utilization_ratio,
            utilization_halves=track.utilization_halves(start),
            tdp_fraction=view.tdp_fraction,
            active_fraction=view.active_power_fraction,
            sm_active=view.means.sm_active_ratio,
            tensor_active=view.means.tensor_active_ratio,
            dram_active=view.means.dram_active_ratio,
            pcie_transmit=view.means.pcie_transmit_bytes_per_second,
            pcie_receive=view.means.pcie_receive_bytes_per_second,
            pcie_now=_lesser_direction(activities[-1]) if activities else None,
            pcie_link=mean(map(link_capacity, activities)),
            link_below_max=_link_below_max(activities),
            throttled_share=track.reason_share(start, THROTTLE_REASONS),
            sm_clock=view.means.sm_clock_hertz,
            sm_clock_max=track.condition.sm_clock_max_hertz if track.condition else None,
            event_reasons=view.means.event_reasons,
            limit=track.condition.limit_enforced_watts if track.condition else None,
            limit_default=track.condition.limit_default_watts if track.condition else None,
            p2p_peers=track.identity.p2p_peers,
            p2p_possible=track.identity.p2p_peers_possible,
            nvlink=track.identity.nvlink_active,
        )

    def _efficiency(
        self, engines: list[EngineTrack], gpus: list[GpuView], missing: str, now: float
    ) -> tuple[dict[str, float], dict[str, float]]:
        """Tokens per second by kind, and tokens per joule: both over the time in which the tokens were counted."""
        counted = [e for e in engines if e.engine.count_tokens]
        spans = [e.span_of_polls(now - self.plan.window) for e in counted if e.up(now)]
        polled = [span for span in spans if span is not None]
        if len(polled) < len(counted):
            return {}, {}  # Nobody knows what the silent one makes.
        readable = bool(gpus) and not missing and all(g.up for g in gpus)
        rates: dict[str, float] = {}
        powers: list[float] = []
        for engine, polls in zip(counted, polled, strict=True):
            stretches: list[tuple[float, float]] = []
            told = [t.between(*polls).rate() for t in (engine.prompt.spans, engine.generation.spans)]
            if told == [None, None] and _may_hold(engine.work_now(now)):
                return {}, {}  # It makes tokens and does not tell how many: the others' are not the whole.
            for kind, tokens in (("prompt", engine.prompt.spans), ("generation", engine.generation.spans)):
                if (rate := tokens.between(*polls).rate()) is not None:
                    rates[kind] = rates.get(kind, 0.0) + rate
                    stretches = tokens.stretches(*polls)
            if readable and (watts := self._mean_power([g.identity.uuid for g in gpus], stretches)) is not None:
                powers.append(watts)
        if not powers or "generation" not in rates or (mean := sum(powers) / len(powers)) <= 0:
            return rates, {}
        per_joule = {"generation": rates["generation"] / mean}
        if "prompt" in rates:
            per_joule["total"] = (rates["generation"] + rates["prompt"]) / mean
        return rates, per_joule

    def _mean_power(self, uuids: list[str], stretches: list[tuple[float, float]]) -> float | None:
        """The power of all these GPUs together over all these stretches of time; nothing where some is not known."""
        watts = [_sum(self.gpus[uuid].power_mean(*stretch) for uuid in uuids) for stretch in stretches]
        known = [w for w in watts if w is not None]
        if not known or len(known) < len(watts):
            return None
        lengths = [end - start for start, end in stretches]
        return statistics.fmean(known, lengths) if len(known) > 1 else known[0]

    def views(self, now: float) -> tuple[EngineView, ...]:
        """The engines alone, for those who need no verdict."""
        return tuple(e.view(now) for e in self.engines.values())


@dataclass(frozen=True, slots=True)
class _Totals:
    """Sums over a deployment's GPUs; nothing is derived from a part of them."""

    power: float | None = None
    limit: float | None = None
    tdp_fraction: float | None = None
    tdp_fraction_now: float | None = None
    active_fraction: float | None = None
    active_fraction_now: float | None = None

    @classmethod
    def of(cls, gpus: list[GpuView], missing: str) -> _Totals:
        if not gpus or missing:
            return cls()
        power = _sum(g.means.power_watts for g in gpus)
        limit = _sum(g.limit_watts for g in gpus)
        floor = _sum(g.idle_floor.watts if g.idle_floor else None for g in gpus)
        now = _sum(g.sample.power_watts if g.sample else None for g in gpus)
        return cls(
            power=power,
            limit=limit,
            tdp_fraction=power / limit if power is not None and limit else None,
            tdp_fraction_now=now / limit if now is not None and limit else None,
            active_fraction=active_fraction(power, floor, limit),
            active_fraction_now=active_fraction(now, floor, limit),
        )


def _frozen(engines: list[EngineTrack], start: float, now: float) -> list[EngineTrack]:
    """Engines that held work throughout and did not move; what waits for an engine that moves is no evidence."""
    moving = {e.engine.name for e in engines if (w := e.work_now(now)) is not None and w.progressed}
    return [e for e in engines if e.frozen(start, now, peer_works=bool(moving - {e.engine.name}))]


def _mean(values: list[float | None]) -> float | None:
    """The mean, when all are known."""
    total = _sum(values)
    return None if total is None else total / len(values)


def _sum(values: Iterable[float | None]) -> float | None:
    listed = list(values)
    known = [v for v in listed if v is not None]
    # The same on every version of Python, to the last digit.
    return math.fsum(known) if known and len(known) == len(listed) else None


def _greatest(values: Iterable[float | None]) -> float | None:
    """The greatest, when all are known: an unknown one might be greater."""
    listed = list(values)
    known = [v for v in listed if v is not None]
    return max(known) if known and len(known) == len(listed) else None


def _least(values: Iterable[float | None]) -> float | None:
    """The least of those that are known."""
    return min((v for v in values if v is not None), default=None)


def _lesser_direction(activity: GpuActivity) -> float | None:
    told = (activity.pcie_transmit_bytes_per_second, activity.pcie_receive_bytes_per_second)
    return None if None in told else min(v for v in told if v is not None)


def _may_hold(work: Work | None) -> bool:
    return work is None or work.high is None or work.high > 0


def _why_gpus(gpus: list[GpuView], missing: str) -> str:
    if missing:
        return missing
    if not gpus:
        return "no GPU is known"
    lost = [g.identity for g in gpus if g.sample is None]
    return f"no reading of GPU {', '.join(str(i.index) for i in lost)}" if lost else ""


def _why_power(gpus: list[GpuView]) -> str:
    without = [str(g.identity.index) for g in gpus if g.limit_watts is None]
    if without:
        return f"GPU {', '.join(without)} tells no power limit (power_limit_watts can be configured)"
    return ""


def _link_below_max(activities: list[GpuActivity]) -> str:
    """How the link was below its own maximum in every reading; empty when it was not, or nobody knows."""
    told = [
        (a.pcie_link_generation, a.pcie_link_width, a.pcie_link_generation_max, a.pcie_link_width_max)
        for a in activities
        if a.pcie_link_generation and a.pcie_link_width and a.pcie_link_generation_max and a.pcie_link_width_max
    ]
    if not told or not all(g < gm or w < wm for g, w, gm, wm in told):
        return ""
    generation, width, generation_max, width_max = told[-1]
    return f"link runs at generation {generation} x{width} of {generation_max} x{width_max}"


def _canonical(name: str) -> str:
    """UUIDs and bus ids compare without case, and bus ids without the padding of the PCI domain."""
    lowered = name.lower()
    domain, colon, rest = lowered.partition(":")
    return f"{domain.lstrip('0') or '0'}:{rest}" if colon and rest.count(":") == 1 else lowered
