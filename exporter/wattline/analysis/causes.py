"""Why power may be low: suspicions with their evidence, from what NVML and the engine can tell. Pure.

A cause is its rule and its record in :class:`Cause`; whatever tells about causes iterates over that.

NVML sees neither NCCL nor host threads, and a spinning kernel looks busy: nothing here is certain, nothing here
pages. What a cause needs but cannot be had (no GPM before Hopper, no topology in a guest) is listed as unseen.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Literal, Self

from wattline.analysis.steps import FLAGS, PROCESSES, STACKS, Step

if TYPE_CHECKING:
    from collections.abc import Callable

    from wattline.analysis.thresholds import Thresholds

THROTTLE_REASONS = frozenset({"hw_thermal_slowdown", "sw_thermal_slowdown", "hw_power_brake_slowdown", "hw_slowdown"})
POWER_CAP = "sw_power_cap"


@dataclass(frozen=True, slots=True)
class GpuSigns:
    """Means of one GPU over the window; ``None`` is unknown."""

    index: int
    utilization: float | None = None
    utilization_halves: tuple[float | None, float | None] = (None, None)
    """Of the first and the second half of the window: a mean also falls while load comes or goes."""
    tdp_fraction: float | None = None
    active_fraction: float | None = None
    sm_active: float | None = None
    tensor_active: float | None = None
    dram_active: float | None = None
    pcie_transmit: float | None = None
    pcie_receive: float | None = None
    pcie_now: float | None = None
    """The lesser direction of the last reading: a mean remembers what is over."""
    pcie_link: float | None = None
    """Bytes per second that the current link carries one way."""
    link_below_max: str = ""
    """Empty, or how the link was below its own maximum in every reading of the window."""
    throttled_share: float | None = None
    sm_clock: float | None = None
    sm_clock_max: float | None = None
    event_reasons: dict[str, float] | None = None
    """Share of the readings by what held the clocks back; ``None`` when the driver does not tell."""
    limit: float | None = None
    limit_default: float | None = None
    p2p_peers: int | None = None
    p2p_possible: int | None = None
    nvlink: bool | None = None


@dataclass(frozen=True, slots=True)
class Signs:
    """One deployment over the window. ``work`` is the least that was certainly held throughout, 0 when idle."""

    gpus: tuple[GpuSigns, ...] = ()
    work: float = 0.0
    saturated: bool = False
    running: float | None = None
    queued: float | None = None
    queued_throughout: bool = False
    kv_cache_usage: float | None = None
    graph_passes: float | None = None
    eager_passes: float | None = None
    scheduler_idle: float | None = None
    unseen: tuple[str, ...] = field(default=())


def percent(ratio: float | None, digits: int = 0) -> str:
    """A ratio in words."""
    return "unknown" if ratio is None else f"{100 * ratio:.{digits}f} %"


def _mean(signs: Signs, name: str) -> float | None:
    values = [v for g in signs.gpus if (v := getattr(g, name)) is not None]
    return math.fsum(values) / len(values) if len(values) == len(signs.gpus) and values else None


def _worst(signs: Signs, name: str) -> GpuSigns | None:
    known = [g for g in signs.gpus if getattr(g, name) is not None]
    return max(known, key=lambda g: getattr(g, name)) if known else None


def _pcie_share(gpu: GpuSigns) -> float:
    greater = max(gpu.pcie_transmit or 0.0, gpu.pcie_receive or 0.0)
    return greater / gpu.pcie_link if gpu.pcie_link else 0.0


def _batch_limited(s: Signs, t: Thresholds) -> str:
    if not s.queued_throughout or s.saturated or not s.running or s.queued is None or s.kv_cache_usage is None:
        return ""
    # Where next to nothing runs, requests wait for prompts to be computed, or for something else than a batch limit.
    if s.running < 1 or s.queued < t.batch_queue_per_running * s.running or s.kv_cache_usage > t.batch_kv_usage:
        return ""
    return (
        f"{s.queued:.0f} requests wait while {s.running:.0f} run and the KV cache is {percent(s.kv_cache_usage)} full: "
        "a limit on the running batch (for instance max-running-requests) may hold it small"
    )


def _throttled(s: Signs, t: Thresholds) -> str:
    gpu = _worst(s, "throttled_share")
    if gpu is None or gpu.throttled_share is None or gpu.throttled_share < t.throttled_share:
        return ""
    return f"GPU {gpu.index} was held back by heat or a power brake in {percent(gpu.throttled_share)} of the readings"


def _link_degraded(s: Signs, t: Thresholds) -> str:
    slow = [g for g in s.gpus if g.link_below_max and (g.utilization or 0.0) >= t.link_loaded_utilization]
    listed: dict[str, list[str]] = {}
    for gpu in slow:
        listed.setdefault(gpu.link_below_max, []).append(str(gpu.index))
    return "; ".join(f"GPU {', '.join(indices)}: {how} under load" for how, indices in listed.items())


def _pcie_bandwidth(s: Signs, t: Thresholds) -> str:
    busiest = max(s.gpus, key=_pcie_share, default=None)
    if busiest is None or _pcie_share(busiest) < t.pcie_share:
        return ""
    greater = max(busiest.pcie_transmit or 0.0, busiest.pcie_receive or 0.0)
    return f"GPU {busiest.index} moves {greater / 1e9:.1f} GB/s one way, {percent(_pcie_share(busiest))} of its link"


def _clocks_held(s: Signs, t: Thresholds) -> str:
    held = [
        g
        for g in s.gpus
        if g.sm_clock is not None
        and g.sm_clock_max
        and g.sm_clock < t.clocks_held_share * g.sm_clock_max
        and (g.utilization or 0.0) >= t.clocks_held_utilization
        # Heat is a cause of its own, and a GPU at its power limit uses what it has.
        and (g.throttled_share or 0.0) < t.throttled_share
        and (g.event_reasons or {}).get(POWER_CAP, 0.0) < t.power_cap_share
    ]
    if not held:
        return ""
    slowest = min(held, key=lambda g: g.sm_clock or 0.0)
    clock, most = (slowest.sm_clock or 0.0) / 1e6, (slowest.sm_clock_max or 0.0) / 1e6
    told = sorted({r for g in held for r, share in (g.event_reasons or {}).items() if share >= t.throttled_share})
    why = f"held by {', '.join(told)}" if told else "and the driver tells no reason"
    which = ", ".join(str(g.index) for g in held)
    return f"GPU {which}: SM clock down to {clock:.0f} of {most:.0f} MHz under load, {why}"


def _spinning(s: Signs, t: Thresholds) -> str:
    spinners = [
        g
        for g in s.gpus
        if (g.utilization or 0.0) >= t.spin_utilization
        and _pcie_share(g) < t.pcie_share
        and (g.active_fraction is None or g.active_fraction < t.stalled_active_fraction)
        and max(g.sm_active or 0.0, g.dram_active or 0.0) < t.working_activity
        and (
            (g.active_fraction is not None and g.active_fraction < t.spin_active_fraction)
            or (g.sm_active is not None and g.sm_active < t.spin_sm_active)
        )
    ]
    if not spinners:
        return ""
    gpu = spinners[0]
    which = "" if len(spinners) == len(s.gpus) else f"GPU {', '.join(str(g.index) for g in spinners)}: "
    activity = "SM activity not known" if gpu.sm_active is None else f"SM activity {percent(gpu.sm_active, 1)}"
    active = percent(gpu.active_fraction)
    return f"{which}utilisation {percent(gpu.utilization)}, yet active power {active} and {activity}: not computing"


def _collectives(s: Signs, t: Thresholds) -> str:
    if len(s.gpus) < 2:  # noqa: PLR2004 - a collective needs two
        return ""
    fraction = _mean(s, "tdp_fraction")
    if fraction is None or fraction >= t.collectives_tdp_fraction:
        return ""
    for g in s.gpus:
        tx, rx = g.pcie_transmit, g.pcie_receive
        if g.p2p_peers is None or g.p2p_peers > 0 or g.nvlink or tx is None or rx is None:
            return ""
        if g.pcie_now is not None and g.pcie_now < t.pcie_noise_bytes_per_second:
            return ""
        if min(tx, rx) < t.pcie_noise_bytes_per_second or min(tx, rx) < t.collectives_balance * max(tx, rx):
            return ""
    tx, rx = _mean(s, "pcie_transmit") or 0.0, _mean(s, "pcie_receive") or 0.0
    return (
        f"{len(s.gpus)} GPUs without peer-to-peer or NVLink send {tx / 1e9:.1f} GB/s and receive {rx / 1e9:.1f} GB/s "
        "each over PCIe: all-reduce goes through the host"
    )


def _partial_idle(s: Signs, t: Thresholds) -> str:
    known = [g for g in s.gpus if g.active_fraction is not None]
    idle = [g for g in known if (g.active_fraction or 0.0) < t.idle_active_fraction]
    if not idle or not any((g.active_fraction or 0.0) > t.partial_active_fraction for g in known):
        return ""
    return f"GPU {', '.join(str(g.index) for g in idle)} idle while others of the deployment work"


def _other_cap(s: Signs, t: Thresholds) -> str:
    for g in s.gpus:
        share = (g.event_reasons or {}).get(POWER_CAP, 0.0)
        if share < t.other_cap_share or g.tdp_fraction is None or g.tdp_fraction >= t.power_cap_tdp_fraction:
            continue
        if (g.utilization or 0.0) >= t.spin_utilization:
            return (
                f"GPU {g.index} is power-capped in {percent(share)} of the readings at {percent(g.tdp_fraction)} "
                "of its limit: something other than the limit holds it"
            )
    return ""


def _not_fed(s: Signs, t: Thresholds) -> str:
    gpu = _worst(s, "utilization")
    if gpu is None or gpu.utilization is None or gpu.utilization >= t.not_fed_utilization:
        return ""
    if any((g.sm_active or 0.0) >= t.spin_sm_active for g in s.gpus):
        return ""  # Utilisation does not see it, the SMs work.
    return f"at least {s.work:.0f} requests are held, and no GPU shows more than {percent(gpu.utilization)} utilisation"


def _host_bound(s: Signs, t: Thresholds) -> str:
    if _partial_idle(s, t):
        return ""  # A mean over working and idle GPUs says nothing about either.
    if s.work < t.busy_requests:
        return ""  # One stream leaves gaps, and that is no finding.
    utilization = _mean(s, "utilization")
    if utilization is None or not t.not_fed_utilization <= utilization < t.host_bound_utilization:
        return ""
    if any(h is not None and h >= t.host_bound_utilization for g in s.gpus for h in g.utilization_halves):
        return ""  # It comes or goes.
    sm, dram = _mean(s, "sm_active"), _mean(s, "dram_active")
    if any(v is not None and v >= t.host_bound_activity for v in (sm, dram)):
        return ""
    words = [f"work is held, yet utilisation is {percent(utilization)}"]
    words += [f"{name} activity {percent(v)}" for name, v in (("SM", sm), ("DRAM", dram)) if v is not None]
    passes = (s.graph_passes or 0.0) + (s.eager_passes or 0.0)
    if s.eager_passes and s.eager_passes > 0.5 * passes:
        words.append(f"{percent(s.eager_passes / passes)} of the decode passes ran without a CUDA graph")
    if s.scheduler_idle is not None:
        words.append(f"the scheduler was idle for {percent(s.scheduler_idle)} of the time")
    return ", ".join(words)


def _power_capped(s: Signs, t: Thresholds) -> str:
    for g in s.gpus:
        if g.limit and g.limit_default and g.limit < t.power_capped_share * g.limit_default:
            return f"GPU {g.index} may draw {g.limit:.0f} W, its default is {g.limit_default:.0f} W"
    return ""


def _memory_bound(s: Signs, t: Thresholds) -> str:
    dram = _mean(s, "dram_active")
    if dram is None or dram < t.memory_bound_dram:
        return ""
    return f"DRAM active {percent(dram)} of the time: normal for decode"


@dataclass(frozen=True, slots=True, kw_only=True)
class CauseRecord:
    """Everything that is particular to one cause. Checks, pages, dashboards, alerts and references iterate over it."""

    title: str
    rule: Callable[[Signs, Thresholds], str]
    """Gives the evidence, with numbers, or nothing."""
    sign: str
    """What speaks for it and where to see it, for the dashboards."""
    thresholds: tuple[str, ...] = ()
    """What the rule compares with, by name."""
    weight: Literal["finding", "explains", "normal"] = "explains"
    """A finding is worth a look in any state; what explains only says why a state is bad; what is normal is a note."""
    runbook: str = ""
    """An alert. Empty: that of the state which it explains."""
    steps: tuple[Step, ...] = ()
    """What to look at next."""
    sets_pace: str = ""
    """Why more power would not bring tokens in proportion; empty when it would."""
    without_work: bool = False
    """It means something although no request is held."""


class Cause(StrEnum):
    """Why power is low, as a suspicion; never an alert condition on its own. The most telling first."""

    record: CauseRecord

    def __new__(cls, value: str, record: CauseRecord) -> Self:
        """A string with its record."""
        cause = str.__new__(cls, value)
        cause._value_ = value
        cause.record = record
        return cause

    BATCH_LIMITED = (
        "batch_limited",
        CauseRecord(
            title="Batch limited",
            rule=_batch_limited,
            sign="Requests queue while the KV cache has room: a server flag keeps the batch small.",
            thresholds=("batch_kv_usage", "batch_queue_per_running"),
            weight="finding",
            runbook="RequestsWaitWhileCacheFree",
            steps=(Step("Whether a flag limits the requests that run at once", FLAGS),),
            sets_pace="a limit on the batch sets the pace, and larger batches make more of each watt",
        ),
    )
    THROTTLED = (
        "throttled",
        CauseRecord(
            title="Throttled",
            rule=_throttled,
            sign="Clocks are held back by heat or by the power brake: see the clocks event reasons.",
            thresholds=("throttled_share",),
            weight="finding",
            runbook="GpuThrottled",
            steps=(Step("What slows the clocks, and how hot it is", "nvidia-smi -q -d PERFORMANCE,TEMPERATURE"),),
            sets_pace="heat or a power brake holds the clocks, and the limit cannot be reached",
            without_work=True,  # The board is hot.
        ),
    )
    LINK_DEGRADED = (
        "link_degraded",
        CauseRecord(
            title="Link degraded",
            rule=_link_degraded,
            sign="The PCIe link runs below its own maximum under load: see the dashboard of each GPU.",
            thresholds=("link_loaded_utilization",),
            weight="finding",
            runbook="PcieLinkDegraded",
            steps=(
                Step(
                    "What each link runs at, and what it could",
                    "nvidia-smi --query-gpu=index,pcie.link.gen.current,pcie.link.gen.max,"
                    "pcie.link.width.current,pcie.link.width.max --format=csv",
                ),
            ),
            sets_pace="a degraded PCIe link may set the pace",
        ),
    )
    PCIE_BANDWIDTH = (
        "pcie_bandwidth",
        CauseRecord(
            title="PCIe bandwidth",
            rule=_pcie_bandwidth,
            sign="PCIe traffic close to what the link carries one way.",
            thresholds=("pcie_share",),
            weight="finding",
            steps=(
                Step("Traffic of every link, second by second", "nvidia-smi dmon -s t -c 10"),
                Step("Whether weights or cache are kept in host memory: an offload flag", FLAGS),
            ),
            sets_pace="the PCIe link sets the pace, not the power",
        ),
    )
    CLOCKS_HELD = (
        "clocks_held",
        CauseRecord(
            title="Clocks held",
            rule=_clocks_held,
            sign="The SM clock is far below its maximum under load, without heat or power cap: somebody set it.",
            thresholds=("clocks_held_share", "clocks_held_utilization", "throttled_share", "power_cap_share"),
            weight="finding",
            steps=(Step("Which clocks are set, and what holds them", "nvidia-smi -q -d CLOCK,PERFORMANCE"),),
            sets_pace="the clocks are held low, and more power will not flow",
        ),
    )
    SPINNING = (
        "spinning",
        CauseRecord(
            title="Spinning",
            rule=_spinning,
            sign="Utilisation near 100 % with SM activity or power near idle: kernels wait, they do not compute.",
            thresholds=(
                "spin_utilization",
                "pcie_share",
                "stalled_active_fraction",
                "spin_active_fraction",
                "spin_sm_active",
                "working_activity",
            ),
            weight="finding",
            steps=(PROCESSES, STACKS),
            sets_pace="the power goes into waiting, and tokens per watt say nothing about computing",
            without_work=True,  # Somebody else's kernels spin.
        ),
    )
    COLLECTIVES_OVER_PCIE = (
        "collectives_over_pcie",
        CauseRecord(
            title="Collectives over PCIe",
            rule=_collectives,
            sign="No peer-to-peer path, as much PCIe traffic out as in: GPUs talk through the host.",
            thresholds=("collectives_tdp_fraction", "pcie_noise_bytes_per_second", "collectives_balance"),
            steps=(
                Step("Which GPUs can read each other's memory (OK means that they can)", "nvidia-smi topo -p2p r"),
                Step("How the GPUs are connected", "nvidia-smi topo -m"),
            ),
        ),
    )
    PARTIAL_IDLE = (
        "partial_idle",
        CauseRecord(
            title="Partly idle",
            rule=_partial_idle,
            sign="Some GPUs draw idle power while others work: see the table of GPUs.",
            thresholds=("idle_active_fraction", "partial_active_fraction"),
            weight="finding",
            runbook="GpuPartiallyIdle",
            steps=(Step("What each process does on each GPU", "nvidia-smi pmon -c 3 -s um"), STACKS),
            sets_pace="a part of the power makes no token at all",
        ),
    )
    NOT_FED = (
        "not_fed",
        CauseRecord(
            title="Not fed",
            rule=_not_fed,
            sign="Utilisation near 0 although requests are held: the GPUs wait for the host.",
            thresholds=("not_fed_utilization", "spin_sm_active"),
            steps=(PROCESSES, STACKS),
            sets_pace="the GPUs are not fed, and what they could do with work is not seen here",
        ),
    )
    HOST_BOUND = (
        "host_bound",
        CauseRecord(
            title="Host bound",
            rule=_host_bound,
            sign="Utilisation well below 100 % with requests held, little SM and DRAM activity: the CPU is late.",
            thresholds=("busy_requests", "not_fed_utilization", "host_bound_utilization", "host_bound_activity"),
            weight="finding",
            steps=(
                Step("Whether a thread of the server fills a core", "top -b -n 1 -H -p PID"),
                Step("Whether CUDA graphs are off, or captured for smaller batches only", FLAGS),
            ),
            sets_pace="the host sets the pace, not the power",
        ),
    )
    OTHER_CAP = (
        "other_cap",
        CauseRecord(
            title="Capped below the limit",
            rule=_other_cap,
            sign="The power cap holds the clocks although power is well below the limit: another limit acts.",
            thresholds=("other_cap_share", "power_cap_tdp_fraction", "spin_utilization"),
            weight="finding",
            steps=(
                Step("Which limits and reasons the driver tells", "nvidia-smi -q -d POWER,PERFORMANCE"),
                Step("What the host's management controller caps", "ipmitool dcmi power get_limit"),
            ),
            sets_pace="something other than the limit holds the power",
        ),
    )
    POWER_CAPPED = (
        "power_capped",
        CauseRecord(
            title="Power capped",
            rule=_power_capped,
            sign="The enforced limit is below the board's default: see the limits of each GPU.",
            thresholds=("power_capped_share",),
            runbook="PowerLimitBelowDefault",
            steps=(Step("Who set the limit: all limits of each GPU", "nvidia-smi -q -d POWER"),),
        ),
    )
    MEMORY_BOUND = (
        "memory_bound",
        CauseRecord(
            title="Memory bound",
            rule=_memory_bound,
            sign="DRAM activity high, tensor activity low: normal for decoding, not a fault.",
            thresholds=("memory_bound_dram",),
            weight="normal",
            sets_pace="memory bandwidth sets the pace, and this load cannot reach the limit",
        ),
    )


@dataclass(frozen=True, slots=True)
class Suspicion:
    """A suspected cause and, in words with numbers, what speaks for it."""

    cause: Cause
    evidence: str


def suspect(signs: Signs, thresholds: Thresholds) -> tuple[Suspicion, ...]:
    """Every cause that something speaks for, the most telling first."""
    if not signs.gpus:
        return ()
    return tuple(
        Suspicion(cause, evidence)
        for cause in Cause
        if (signs.work > 0 or cause.record.without_work) and (evidence := cause.record.rule(signs, thresholds))
    )


def unseen(signs: Signs) -> tuple[str, ...]:
    """What could not be looked at, in words."""
    if not signs.gpus:
        return ()
    absent = {
        "SM, tensor and DRAM activity (GPM: Hopper and newer)": all(g.sm_active is None for g in signs.gpus),
        "peer-to-peer topology (not visible here)": len(signs.gpus) > 1
        and all(g.p2p_peers is None for g in signs.gpus),
        "PCIe traffic": all(g.pcie_transmit is None and g.pcie_receive is None for g in signs.gpus),
        "utilisation (not available, for instance under MIG)": all(g.utilization is None for g in signs.gpus),
    }
    return (*signs.unseen, *(words for words, missing in absent.items() if missing))
