"""The verdict: from what is known about a deployment over the window to one of seven states. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from wattline.analysis.snapshot import State

if TYPE_CHECKING:
    from collections.abc import Callable

    from wattline.analysis.thresholds import Thresholds


@dataclass(frozen=True, slots=True)
class Evidence:
    """What a verdict stands on. ``None`` is *not known*, and never counts for or against anything.

    Fractions are means over the window. ``work_now_*`` are bounds of the requests held at the last poll,
    ``work_throughout`` is the least that was certain at every poll of the window.
    """

    gpus_unreadable: str = ""
    """Why the GPUs cannot be read now; empty when they can."""
    engines_unreadable: str = ""
    """Why no engine can be read now; empty when at least one can."""
    asleep: tuple[str, ...] = ()
    """Engines that were put to sleep: what they keep is no claim."""
    mig: bool = False
    """A board is cut up by MIG: its power is the most that one instance can draw, and says no more of it."""
    work_now_low: float | None = None
    work_now_high: float | None = None
    work_throughout: float | None = None
    progressed: bool = False
    """Some engine made a token since the poll before."""
    frozen: tuple[str, ...] = ()
    """Engines that held work throughout while none of their progress counters moved."""
    frozen_old: bool = False
    """One of them has no grace of its own: another engine's start does not excuse it."""
    frozen_seconds: float = 0.0
    """How long one of them has not moved."""
    power_unknown: str = ""
    """Why the fractions below are not known; empty when they are."""
    tdp_fraction: float | None = None
    active_power_fraction: float | None = None
    idlest_active_fraction: float | None = None
    busiest_tdp_fraction: float | None = None
    busiest_active_fraction: float | None = None
    busiest_utilization: float | None = None
    busiest_activity: float | None = None
    """The greatest SM or memory activity of any GPU, measured or estimated by its engine."""
    bandwidth: float | None = None
    """Memory traffic over what the memory can carry."""
    flops: float | None = None
    """Operations over the dense bf16 peak."""
    tdp_fraction_now: float | None = None
    """Of the last readings alone: a load that is ending is not saturated any more."""
    power_cap_share: float | None = None
    power_cap_now: bool = False
    watched_seconds: float = 0.0
    window: float = 60.0
    grace_left: float = 0.0
    """Seconds left of the grace after an engine was seen to start."""


IDLE_YET_BUSY = 0.3
"""Active fraction from which an idle deployment's GPUs work for somebody else."""


def _percent(fraction: float | None) -> str:
    return "unknown" if fraction is None else f"{100 * fraction:.1f} %"


def _low(value: float | None, threshold: float) -> bool:
    return value is not None and value < threshold


def _looks_idle(e: Evidence, t: Thresholds) -> bool:
    if e.busiest_activity is not None and e.busiest_activity >= t.working_activity:
        return False
    # Vulkan compute is not in NVML's utilisation: what is measured inside the GPU tells better.
    unfed = (
        (e.busiest_activity is None or e.busiest_activity < t.spin_sm_active)
        and _low(e.busiest_utilization, t.unfed_utilization)
        and _low(e.busiest_tdp_fraction, t.unfed_tdp_fraction)
    )
    return (
        unfed
        or _low(e.busiest_active_fraction, t.idle_active_fraction)
        or _low(e.busiest_tdp_fraction, t.idle_tdp_fraction)
    )


def _unknown(e: Evidence, t: Thresholds) -> str:
    if unreadable := e.gpus_unreadable or e.engines_unreadable:
        stuck = f"; {', '.join(e.frozen)} holds requests and makes no token" if e.frozen else ""
        return unreadable + stuck
    if e.work_now_low is None:
        return "the engine does not tell whether it holds requests"
    if e.work_now_low > 0:
        return ""
    if e.work_now_high is None:
        return "one of its engines, or one of its gauges, cannot be read"
    if e.work_now_high == 0 or not (e.asleep or _looks_idle(e, t)):
        return ""
    why = f"{', '.join(e.asleep)} sleeps" if e.asleep else "nothing moves: an old value, or a hang at the front"
    return f"{e.work_now_high:.0f} requests are shown, but {why}"


def _idle(e: Evidence, t: Thresholds) -> str:
    if e.work_now_high != 0 or e.progressed:
        return ""
    # The mean remembers work that has just ended: what is drawn now must agree.
    drawn = e.busiest_active_fraction is not None and e.tdp_fraction_now is not None
    if (
        drawn
        and not _low(e.busiest_active_fraction, IDLE_YET_BUSY)
        and not _low(e.tdp_fraction_now, t.low_tdp_fraction)
    ):
        return f"the engines hold no request, yet a GPU draws {_percent(e.busiest_tdp_fraction)} of its limit"
    return "the engines hold no request"


def _working_at_unknown_power(e: Evidence, _: Thresholds) -> str:
    return f"tokens come; {e.power_unknown}, so nothing is said of power" if e.power_unknown and e.progressed else ""


def _blind(e: Evidence, t: Thresholds) -> str:
    if e.power_unknown:
        return e.power_unknown
    if e.tdp_fraction is not None:
        unseen = e.work_throughout is None and (e.work_now_low or 0) >= t.busy_requests and _looks_idle(e, t)
        return "the polls of the engines cover too little of the window" if unseen else ""
    if e.watched_seconds < e.window:
        return f"watching for {e.watched_seconds:.0f} s of the {e.window:.0f} s that a verdict looks at"
    return f"power readings cover too little of the last {e.window:.0f} s"


def _stalled(e: Evidence, t: Thresholds) -> str:
    # While other engines work, their GPUs draw power: then those of the frozen one are looked for.
    active = e.idlest_active_fraction if e.progressed else e.active_power_fraction
    long = e.frozen_seconds >= t.long_stall_seconds
    if not e.frozen or not (long or _low(active, t.stalled_active_fraction)):
        return ""
    return (
        f"{', '.join(e.frozen)} held requests for {max(e.window, e.frozen_seconds):.0f} s and made no token; "
        f"active power {_percent(active)}{' on the idlest GPU' if e.progressed else ''}"
    )


def _idle_while_busy(e: Evidence, t: Thresholds) -> str:
    if e.mig or e.work_throughout is None or e.work_throughout < t.busy_requests or not _looks_idle(e, t):
        return ""
    return (
        f"at least {e.work_throughout:.0f} requests held throughout, yet the busiest GPU draws "
        f"{_percent(e.busiest_tdp_fraction)} of its limit ({_percent(e.busiest_active_fraction)} above idle)"
    )


def _low_power(e: Evidence, t: Thresholds) -> str:
    if e.mig or e.work_throughout is None or e.work_throughout < t.loaded_requests:
        return ""
    if not _low(e.tdp_fraction, t.low_tdp_fraction):
        return ""
    if e.bandwidth is not None and e.bandwidth >= t.memory_bound_dram:
        return ""  # Decoding that uses its memory works, at whatever power that takes.
    return (
        f"at least {e.work_throughout:.0f} requests held throughout, at {_percent(e.tdp_fraction)} of the power limit "
        f"(expected from {_percent(t.low_tdp_fraction)})"
    )


def _saturated(e: Evidence, t: Thresholds) -> str:
    # A load that has just ended leaves a high mean behind: what is now must agree.
    if _low(e.tdp_fraction_now, t.saturated_tdp_fraction) and not e.power_cap_now:
        return ""
    if e.tdp_fraction is not None and e.tdp_fraction >= t.saturated_tdp_fraction:
        return f"{_percent(e.tdp_fraction)} of the power limit"
    capped = e.power_cap_share is not None and e.power_cap_share >= t.power_cap_share
    if capped and not _low(e.tdp_fraction, t.power_cap_tdp_fraction):
        return f"the power cap held the clocks for {_percent(e.power_cap_share)} of the window"
    return ""


def _working(e: Evidence, t: Thresholds) -> str:
    if e.mig:
        return f"{_percent(e.tdp_fraction)} of the power limit; with MIG the board's power says nothing of one instance"
    if e.bandwidth is not None and e.bandwidth >= t.memory_bound_dram:
        return f"{_percent(e.tdp_fraction)} of the power limit, {_percent(e.bandwidth)} of the memory's bandwidth"
    return f"{_percent(e.tdp_fraction)} of the power limit"


RULES: tuple[tuple[State, Callable[[Evidence, Thresholds], str]], ...] = (
    (State.UNKNOWN, _unknown),
    (State.IDLE, _idle),
    (State.STALLED, _stalled),
    (State.WORKING, _working_at_unknown_power),
    (State.UNKNOWN, _blind),
    (State.IDLE_WHILE_BUSY, _idle_while_busy),
    (State.LOW_POWER, _low_power),
    (State.SATURATED, _saturated),
    (State.WORKING, _working),
)
"""First match from the top wins. A rule answers with its reason, or with nothing when it does not hold."""


def judge(evidence: Evidence, thresholds: Thresholds) -> tuple[State, str]:
    """The state and why, in one sentence with numbers."""
    for state, rule in RULES:
        if reason := rule(evidence, thresholds):
            if state.bad and evidence.grace_left > 0 and not (state is State.STALLED and evidence.frozen_old):
                return State.WORKING, f"an engine started, {evidence.grace_left:.0f} s of grace left ({reason})"
            return state, reason
    raise AssertionError(evidence)  # pragma: no cover - working always holds


def coming(signs: Evidence, thresholds: Thresholds) -> State | None:
    """The bad state that comes if what is so now goes on for a whole window.

    Args:
        signs: evidence of this moment alone, in place of what was so throughout the window.
        thresholds: the numbers.
    """
    if signs.grace_left > 0 or _unknown(signs, thresholds) or _idle(signs, thresholds):
        return None
    return next((state for state, rule in RULES if state.bad and rule(signs, thresholds)), None)
