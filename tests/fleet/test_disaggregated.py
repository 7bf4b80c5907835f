"""Prefill and decode on servers of their own: prompts are counted on one side, generated tokens on the other."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.engines.texts import recorded
from wattline.analysis.observer import Observer
from wattline.analysis.plan import DeploymentPlan, EnginePlan, Plan
from wattline.analysis.snapshot import Snapshot, State
from wattline.engines.normalise import normalise
from wattline.readings import EngineReading, GpuCondition, GpuIdentity, GpuSample

PLAN = Plan(
    deployments=(DeploymentPlan("glm5", (EnginePlan("prefill"), EnginePlan("decode"))),),
    # A little more than the 15 s between the recorded polls, so that both are in it.
    window=16.0,
    engine_interval=3.0,
)


def uuid(index: int) -> str:
    return f"GPU-00000000-0000-4000-8000-{index:012x}"


def between(first: EngineReading, last: EngineReading, share: float, t: float) -> EngineReading:
    """A poll on the way from one recorded poll to the other: counters grow evenly."""

    def grown(a: float | None, b: float | None) -> float | None:
        return None if a is None or b is None else a + share * (b - a)

    return replace(
        first,
        t=t,
        prompt_tokens=grown(first.prompt_tokens, last.prompt_tokens),
        generation_tokens=grown(first.generation_tokens, last.generation_tokens),
        scheduler_idle_seconds=grown(first.scheduler_idle_seconds, last.scheduler_idle_seconds),
        progress=tuple(a + share * (b - a) for a, b in zip(first.progress, last.progress, strict=True)),
    )


def after_15_seconds(plan: Plan, release: str, watts: tuple[float, ...]) -> Snapshot:
    """Polls of each side for 15 s between two recorded ones, and steady power on each GPU."""
    observer = Observer(plan)
    recordings = {
        side: [normalise(recorded(f"{release}_pd_{side}_t{t}"), engine=side, t=float(t)) for t in (0, 15)]
        for side in ("prefill", "decode")
    }
    for index in range(len(watts)):
        observer.observe(GpuIdentity(uuid=uuid(index), index=index))
        observer.observe(GpuCondition(t=0.0, uuid=uuid(index), limit_enforced_watts=700.0, limit_default_watts=700.0))
    for second in range(16):
        for index, own in enumerate(watts):
            observer.observe(GpuSample(t=float(second), uuid=uuid(index), power_watts=own, utilization_ratio=1.0))
        if second % 3 == 0:
            for first, last in recordings.values():
                observer.observe(between(first, last, second / 15, float(second)))
    return observer.judge(15.0)


@pytest.mark.parametrize("release", ["0.5.9", "0.5.20", "0.5.23"])
def test_each_kind_of_token_is_counted_on_its_side_only(release: str) -> None:
    """In 15 s the prefill server computed 189,000 prompt tokens and the decode server made 1,024 x 320 and 12.

    Both servers count both when a request finishes; added up, there would be twice as many.
    """
    (deployment,) = after_15_seconds(PLAN, release, (600.0, 600.0, 400.0, 400.0)).deployments
    assert deployment.tokens_per_second == pytest.approx({"prompt": 12_600.0, "generation": 21_846.13}, rel=1e-5)
    assert deployment.power_watts == pytest.approx(2000.0)
    assert deployment.tokens_per_watt == pytest.approx({"generation": 10.9227, "total": 17.2231}, rel=1e-4)


def test_as_two_deployments_each_side_has_its_own_queue_power_and_tokens() -> None:
    plan = replace(
        PLAN,
        deployments=(
            DeploymentPlan("prefill", (EnginePlan("prefill"),), gpus=(0, 1)),
            DeploymentPlan("decode", (EnginePlan("decode"),), gpus=(2, 3)),
        ),
    )
    prefill, decode = after_15_seconds(plan, "0.5.20", (100.0, 100.0, 690.0, 690.0)).deployments
    assert set(prefill.tokens_per_second) == {"prompt"}
    assert set(decode.tokens_per_second) == {"generation"}
    assert decode.tokens_per_watt["generation"] == pytest.approx(21_845.33 / 1380, rel=1e-4)
    # A kind that this side does not count makes no total either.
    assert prefill.tokens_per_watt == {}
    assert prefill.work is not None
    assert prefill.work >= 46
    assert decode.work is not None
    assert decode.work >= 1024
    assert (prefill.state, decode.state) == (State.IDLE_WHILE_BUSY, State.SATURATED)
