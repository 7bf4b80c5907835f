"""Whatever is read, nothing that is published is NaN, infinite or negative, and no counter goes back."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from wattline.analysis.observer import Observer
from wattline.analysis.plan import DeploymentPlan, EnginePlan, Plan
from wattline.analysis.snapshot import State
from wattline.gpus.plausibility import check_activity, check_condition, check_sample
from wattline.publish.collector import SnapshotCollector
from wattline.readings import EngineReading, GpuActivity, GpuCondition, GpuIdentity, GpuSample, Reading

UUIDS = ("GPU-a", "GPU-b")
ENGINES = ("head", "tail")

anything = st.one_of(st.none(), st.floats(), st.floats(0, 1000), st.sampled_from([0.0, 2.0**32 - 1, 1.0, 87.0, 250.0]))
share = st.one_of(st.none(), st.floats(), st.floats(0, 1))
# What the normaliser of engine texts lets through: finite and not negative.
count = st.one_of(st.none(), st.floats(0, 1e12), st.sampled_from([0.0, 4.0, 1e300]))
steps = st.one_of(st.floats(-5, 5), st.sampled_from([1.0, 5.0, 3600.0, 1e9]))
reasons = st.one_of(st.none(), st.frozensets(st.sampled_from(["sw_power_cap", "gpu_idle", "unknown_0x800"])))


@st.composite
def readings(draw: st.DrawFn) -> list[Reading]:
    t = 1000.0
    found: list[Reading] = []
    for _ in range(draw(st.integers(1, 40))):
        t += draw(steps)
        uuid = draw(st.sampled_from(UUIDS))
        kind = draw(st.integers(0, 3))
        if kind == 0:
            sample = GpuSample(
                t=t,
                uuid=uuid,
                power_watts=draw(anything),
                power_instant_watts=draw(anything),
                energy_joules=draw(st.one_of(anything, st.floats(0, 1e7))),
                power_samples_watts=tuple(draw(st.lists(st.floats(), max_size=3))),
                utilization_ratio=draw(share),
                memory_busy_ratio=draw(share),
                sm_clock_hertz=draw(anything),
                event_reasons=draw(reasons),
            )
            found.append(check_sample(sample, draw(st.one_of(st.none(), st.floats(1, 1000)))))
        elif kind == 1:
            activity = GpuActivity(
                t=t,
                uuid=uuid,
                pcie_transmit_bytes_per_second=draw(anything),
                pcie_receive_bytes_per_second=draw(anything),
                pcie_link_generation=draw(st.one_of(st.none(), st.integers())),
                pcie_link_width=draw(st.one_of(st.none(), st.integers())),
                sm_active_ratio=draw(share),
                dram_active_ratio=draw(share),
            )
            found.append(check_activity(activity))
        elif kind == 2:
            condition = GpuCondition(
                t=t,
                uuid=uuid,
                limit_enforced_watts=draw(anything),
                limit_default_watts=draw(anything),
                memory_used_bytes=draw(anything),
                temperature_celsius=draw(anything),
                processes=draw(st.sampled_from([None, ()])),
            )
            found.append(check_condition(condition))
        else:
            found.append(draw(engine(t)))
    return found


@st.composite
def engine(draw: st.DrawFn, t: float) -> EngineReading:
    name = draw(st.sampled_from(ENGINES))
    if draw(st.integers(0, 4)) == 0:
        return EngineReading(t=t, engine=name, up=False, error="timeout")
    tokens = draw(count)
    return EngineReading(
        t=t,
        engine=name,
        up=True,
        start_time=draw(st.sampled_from([None, 1.0, 2.0])),
        running=draw(count),
        queued=draw(count),
        held_http=draw(count),
        kv_cache_usage_ratio=draw(st.one_of(st.none(), st.floats(0, 1))),
        prompt_tokens=draw(count),
        prompt_tokens_source="prompt",
        generation_tokens=tokens,
        generation_tokens_source=draw(st.sampled_from(["live", "finished"])),
        progress=() if tokens is None else (tokens,),
        scheduler_idle_seconds=draw(count),
        gauge_lag_seconds=draw(st.sampled_from([0.0, 31.0])),
        ranks_disagree=draw(st.booleans()),
    )


def published(collector: SnapshotCollector) -> dict[tuple[str, tuple[tuple[str, str], ...]], tuple[str, float]]:
    """(type, value) by series."""
    found: dict[tuple[str, tuple[tuple[str, str], ...]], tuple[str, float]] = {}
    for family in collector.collect():
        for sample in family.samples:
            key = (sample.name, tuple(sorted(sample.labels.items())))
            assert key not in found, f"two series are {key}"
            found[key] = (family.type, float(sample.value))
    return found


@settings(max_examples=150, deadline=None)
@given(stream=readings(), ticks=st.lists(steps, min_size=1, max_size=5))
def test_no_input_makes_a_number_that_is_none(stream: list[Reading], ticks: list[float]) -> None:
    plan = Plan(
        deployments=(
            DeploymentPlan("d", tuple(EnginePlan(name) for name in ENGINES), gpus=(0,)),
            DeploymentPlan("rest"),
        ),
        window=15.0,
    )
    observer = Observer(plan)
    for index, uuid in enumerate(UUIDS):
        observer.observe(GpuIdentity(uuid=uuid, index=index))
    collector = SnapshotCollector()
    before: dict[Any, tuple[str, float]] = {}
    now = 1000.0
    for position, reading in enumerate(stream):
        observer.observe(reading)
        now = max(now, getattr(reading, "t", now)) + ticks[position % len(ticks)]
        collector.snapshot = observer.judge(now)
        after = published(collector)
        for key, (kind, value) in after.items():
            assert math.isfinite(value), key
            if "celsius" not in key[0]:
                assert value >= 0, key
            if kind in {"counter", "histogram"} and key in before:
                assert value >= before[key][1] * (1 - 1e-12), key
        for deployment in collector.snapshot.deployments:
            states = [
                after["wattline_deployment_state", (("deployment", deployment.name), ("state", s))][1] for s in State
            ]
            assert sum(states) == 1
        before = {**before, **after}


def test_a_clock_that_leaps_brings_no_energy_and_no_state_time() -> None:
    from tests.analysis.build import Bench, only

    bench = Bench()
    before = only(bench.run(70, watts=250, work=64, tokens_per_second=100))
    bench.t += 6 * 3600
    after = only(bench.run(1, watts=250, work=64, tokens_per_second=100))
    assert sum(after.state_seconds.values()) - sum(before.state_seconds.values()) <= 1.0
    assert sum(after.state_energy_joules.values()) - sum(before.state_energy_joules.values()) <= 8 * 250 * 1.5


def test_a_counter_of_energy_that_steps_back_is_a_new_base() -> None:
    observer = Observer(Plan(deployments=(DeploymentPlan("d", (EnginePlan("e"),)),)))
    observer.observe(GpuIdentity(uuid="GPU-a", index=0))
    told = []
    for t, joules in enumerate([7500.0, 7750.0, 1.0, 251.0]):
        observer.observe(replace(GpuSample(t=float(t), uuid="GPU-a", energy_joules=joules), power_watts=250.0))
        told.append(observer.judge(float(t)).gpus[0].energy_joules)
    # What flowed while it began anew is told by power.
    assert told == [7500.0, 7750.0, 8000.0, 8250.0]
