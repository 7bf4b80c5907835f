"""Snapshots made by hand: eight GPUs of 600 W and one engine, in each of the states."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from wattline.analysis.causes import Cause, Suspicion
from wattline.analysis.snapshot import (
    DeploymentView,
    EngineView,
    GpuMeans,
    GpuView,
    IdleFloor,
    Snapshot,
    SourceView,
    State,
)
from wattline.readings import EngineReading, GpuActivity, GpuCondition, GpuIdentity, GpuSample

LIMIT = 600.0
FLOOR = 84.0
GPM_MISSING = "SM, tensor and DRAM activity (GPM: Hopper and newer)"


@dataclass(frozen=True)
class Story:
    """What one state looks like."""

    watts: float
    utilization: float
    work: float | None
    tokens: float | None
    reason: str
    suspicions: tuple[Suspicion, ...] = ()
    unseen: tuple[str, ...] = ()
    reasons: frozenset[str] = field(default_factory=frozenset)


STORIES: dict[State, Story] = {
    State.UNKNOWN: Story(87.0, 0.0, None, None, "engine 127.0.0.1:30000: connection_refused"),
    State.IDLE: Story(87.0, 0.0, 0.0, 0.0, "the engines hold no request"),
    State.WORKING: Story(
        520.0,
        1.0,
        1024.0,
        9400.0,
        "86.7% of the power limit",
        (Suspicion(Cause.MEMORY_BOUND, "DRAM active 68% of the time: normal for decode"),),
    ),
    State.SATURATED: Story(582.0, 1.0, 1024.0, 8600.0, "97.0% of the power limit", reasons=frozenset({"sw_power_cap"})),
    State.LOW_POWER: Story(
        250.0,
        1.0,
        1024.0,
        3740.0,
        "at least 1024 requests held throughout, at 41.7% of the power limit (expected from 45.0%)",
        (
            Suspicion(
                Cause.COLLECTIVES_OVER_PCIE,
                "8 GPUs without peer-to-peer or NVLink send 12.5 GB/s and receive 12.2 GB/s each over PCIe: "
                "all-reduce goes through the host",
            ),
            Suspicion(Cause.BATCH_LIMITED, "900 requests wait while 124 run and the KV cache is 12% full"),
        ),
    ),
    State.IDLE_WHILE_BUSY: Story(
        87.0,
        0.0,
        1024.0,
        3740.0,
        "at least 1024 requests held throughout, yet the busiest GPU draws 14.5% of its limit (0.6% above idle)",
        (Suspicion(Cause.NOT_FED, "at least 1024 requests are held, and no GPU shows more than 0% utilisation"),),
        (GPM_MISSING, "peer-to-peer topology (not visible here)"),
    ),
    State.STALLED: Story(
        140.0,
        1.0,
        1024.0,
        0.0,
        "127.0.0.1:30000 held requests for 60 s and made no token; active power 10.9%",
        (Suspicion(Cause.SPINNING, "utilisation 100%, yet active power 11% and SM activity 3.0%: resident, idle"),),
    ),
}


def uuid(index: int) -> str:
    return f"GPU-{index:08x}-90b3-4a2d-8c71-3d2e4b5a6f70"


def gpu(index: int, story: Story, t: float = 0.0, deployment: str = "glm5", *, gpm: bool = True) -> GpuView:
    name = uuid(index)
    watts = story.watts * (1 + 0.01 * (index - 3.5) / 4)
    busy = story.utilization
    return GpuView(
        identity=GpuIdentity(
            uuid=name,
            index=index,
            name="NVIDIA RTX PRO 6000 Blackwell Server Edition",
            pci_bus_id=f"00000000:{0x17 + index:02X}:00.0",
            architecture="blackwell",
            driver="580.95.05",
        ),
        deployment=deployment,
        up=True,
        sample=GpuSample(t=t, uuid=name, power_watts=watts, utilization_ratio=busy, event_reasons=story.reasons),
        activity=GpuActivity(
            t=t,
            uuid=name,
            pcie_transmit_bytes_per_second=12.5e9 * busy + 0.8e6,
            pcie_receive_bytes_per_second=12.2e9 * busy + 0.6e6,
            pcie_link_generation=5,
            pcie_link_generation_max=5,
            pcie_link_width=16,
            pcie_link_width_max=16,
            sm_active_ratio=0.7 * busy if gpm else None,
            tensor_active_ratio=0.3 * busy if gpm else None,
            dram_active_ratio=0.6 * busy if gpm else None,
        ),
        condition=GpuCondition(
            t=t,
            uuid=name,
            limit_enforced_watts=LIMIT,
            limit_default_watts=LIMIT,
            memory_used_bytes=88e9,
            memory_total_bytes=102e9,
            temperature_celsius=30 + watts / 15,
            xid_errors=0,
        ),
        means=GpuMeans(power_watts=watts),
        limit_watts=LIMIT,
        tdp_fraction=watts / LIMIT,
        active_power_fraction=max(0.0, (watts - FLOOR) / (LIMIT - FLOOR)),
        idle_floor=IdleFloor(FLOOR, "learned"),
        energy_joules=1e6,
        energy_source="counter",
        utilization_stuck=False,
        pcie_link_bytes_per_second=63e9,
    )


def deployment(state: State, t: float, *, since: float = 0.0, name: str = "glm5", gpus: int = 8) -> DeploymentView:
    story = STORIES[state]
    known = state is not State.UNKNOWN
    tokens = {"generation": story.tokens, "prompt": story.tokens * 0.8} if story.tokens is not None else {}
    power = gpus * story.watts
    return DeploymentView(
        name=name,
        state=state,
        reason=story.reason,
        since=since,
        gpus=tuple(uuid(i) for i in range(gpus)),
        engines=(f"{name}-engine",),
        suspicions=story.suspicions,
        unseen=story.unseen,
        tdp_fraction=story.watts / LIMIT if known else None,
        active_power_fraction=max(0.0, (story.watts - FLOOR) / (LIMIT - FLOOR)) if known else None,
        power_watts=power if known else None,
        power_limit_watts=gpus * LIMIT if known else None,
        work=story.work,
        tokens_per_second=tokens,
        tokens_per_watt={k: v / power for k, v in tokens.items()},
        joules_per_token={k: power / v for k, v in tokens.items() if v},
        state_seconds={s: 130.0 * (s in (State.IDLE, state)) for s in State},
        state_energy_joules={s: 130.0 * power * (s in (State.IDLE, state)) for s in State},
    )


def snapshot(state: State, t: float = 1000.0, *, since: float = 0.0, name: str = "glm5") -> Snapshot:
    story = STORIES[state]
    up = state is not State.UNKNOWN
    reading = EngineReading(
        t=t,
        engine=f"{name}-engine",
        up=up,
        error=None if up else "connection_refused",
        kind="sglang" if up else None,
        model="zai-org/GLM-5-FP4" if up else None,
        version="0.5.20" if up else None,
        running=story.work,
        queued=0.0 if up else None,
        kv_cache_usage_ratio=0.37 if story.work else 0.0 if up else None,
    )
    return Snapshot(
        t=t,
        gpus=tuple(gpu(i, story, t, name, gpm=GPM_MISSING not in story.unseen) for i in range(8)),
        engines=(
            EngineView(
                name=f"{name}-engine",
                url="http://127.0.0.1:30000/metrics",
                deployment=name,
                reading=reading,
                prompt_tokens_total=8_123_456.0,
                generation_tokens_total=9_876_543.0,
                work=story.work,
            ),
        ),
        deployments=(deployment(state, t, since=since, name=name),),
        sources=(
            SourceView("nvml", up=True, age_seconds=0.4),
            *(SourceView(uuid(i), up=True, age_seconds=0.4, errors={"not_supported": 2}) for i in range(8)),
            SourceView(
                f"engine:{name}-engine",
                up=up,
                age_seconds=2.1 if up else 77.0,
                detail="" if up else "connection_refused",
            ),
        ),
    )


def several(first: Snapshot, state: State, name: str = "") -> Snapshot:
    """One more deployment, without GPUs of its own, beside those of the first snapshot."""
    other = replace(deployment(state, first.t, name=name or f"other-{state}"), gpus=())
    return replace(first, deployments=(*first.deployments, other))
