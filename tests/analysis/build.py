"""Steady readings for tests of the analysis: so many GPUs at so many watts, an engine that holds so much."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from wattline.analysis.observer import Observer
from wattline.analysis.plan import DeploymentPlan, EnginePlan, Plan
from wattline.readings import EngineReading, GpuActivity, GpuCondition, GpuIdentity, GpuSample

if TYPE_CHECKING:
    from wattline.analysis.snapshot import DeploymentView, Snapshot


def uuid(index: int) -> str:
    return f"GPU-00000000-0000-0000-0000-00000000000{index}"


PLAN = Plan(deployments=(DeploymentPlan("glm5", (EnginePlan("head"),)),))


@dataclass
class Bench:
    """Feeds an observer second by second, and keeps the counters that the hardware and the engine would keep."""

    plan: Plan = PLAN
    gpus: int = 8
    limit: float | None = 600.0
    identity: GpuIdentity = field(
        default_factory=lambda: GpuIdentity(uuid="", index=0, p2p_peers=0, nvlink_active=False)
    )
    t: float = 1000.0
    joules: float = 5e6
    tokens: float = 0.0
    idle_seconds: float = 0.0
    sample: GpuSample = field(default_factory=lambda: GpuSample(t=0, uuid="", utilization_ratio=1.0))
    activity: GpuActivity = field(default_factory=lambda: GpuActivity(t=0, uuid=""))
    reading: EngineReading = field(
        default_factory=lambda: EngineReading(t=0, engine="head", up=True, running=0, queued=0)
    )

    def __post_init__(self) -> None:
        self.observer = Observer(self.plan)
        for i in range(self.gpus):
            self.observer.observe(replace(self.identity, uuid=uuid(i), index=i))

    def run(
        self,
        seconds: int,
        *,
        watts: float | dict[int, float] | None = 87.0,
        work: float | None = 0.0,
        tokens_per_second: float | None = 0.0,
        engine_up: bool = True,
    ) -> Snapshot:
        """``seconds`` of steady readings; the verdict at their end."""
        snapshot = self.observer.judge(self.t)
        for _ in range(seconds):
            self.t += 1.0
            mean = watts if not isinstance(watts, dict) else sum(watts.values()) / len(watts)
            self.joules += mean or 0.0
            for i in range(self.gpus):
                own = watts.get(i) if isinstance(watts, dict) else watts
                if own is not None:
                    self.observer.observe(replace(self.sample, t=self.t, uuid=uuid(i), power_watts=own))
            self.tokens += tokens_per_second or 0.0
            if self.t % 5 == 0:
                self._slow(work, tokens_per_second, engine_up=engine_up)
            snapshot = self.observer.judge(self.t)
        return snapshot

    def _slow(self, work: float | None, tokens_per_second: float | None, *, engine_up: bool) -> None:
        for i in range(self.gpus):
            self.observer.observe(replace(self.activity, t=self.t, uuid=uuid(i)))
            self.observer.observe(
                GpuCondition(t=self.t, uuid=uuid(i), limit_enforced_watts=self.limit, limit_default_watts=self.limit)
            )
        if not engine_up:
            self.observer.observe(EngineReading(t=self.t, engine="head", up=False, error="connection_refused"))
            return
        counted = tokens_per_second is not None
        self.observer.observe(
            replace(
                self.reading,
                t=self.t,
                running=work,
                generation_tokens=self.tokens if counted else None,
                generation_tokens_source="live" if counted else None,
                progress=(self.tokens,) if counted else (),
            )
        )


def only(snapshot: Snapshot) -> DeploymentView:
    (deployment,) = snapshot.deployments
    return deployment
