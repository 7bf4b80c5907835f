"""Clocks and power that something else than the limit holds, and what looks like a cause and is none."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.analysis.build import Bench, only, uuid
from wattline.analysis.causes import Cause, GpuSigns, Signs, suspect
from wattline.analysis.thresholds import Thresholds
from wattline.readings import GpuCondition

HELD = GpuSigns(
    index=3, utilization=1.0, sm_clock=600e6, sm_clock_max=2430e6, event_reasons={"applications_clocks_setting": 1.0}
)


def causes(**changes: Any) -> list[Cause]:
    return [s.cause for s in suspect(Signs(gpus=(replace(HELD, **changes),), work=64.0), Thresholds())]


def test_a_low_clock_under_load_is_told_with_its_reason() -> None:
    (suspicion,) = suspect(Signs(gpus=(HELD,), work=64.0), Thresholds())
    assert suspicion.cause is Cause.CLOCKS_HELD
    assert suspicion.evidence == (
        "GPU 3: SM clock down to 600 of 2430 MHz under load, held by applications_clocks_setting"
    )
    (unnamed,) = suspect(Signs(gpus=(replace(HELD, event_reasons=None),), work=64.0), Thresholds())
    assert unnamed.evidence.endswith("and the driver tells no reason")


@pytest.mark.parametrize(
    "changes",
    [
        {"utilization": 0.3},  # Clocks fall when idle.
        {"sm_clock": 1483e6},
        {"sm_clock": None},
        {"sm_clock_max": None},
        {"event_reasons": {"sw_power_cap": 0.9}},
        {"throttled_share": 0.8, "event_reasons": {"hw_thermal_slowdown": 0.8}},
    ],
)
def test_a_clock_that_something_else_explains_is_no_held_one(changes: dict[str, Any]) -> None:
    assert Cause.CLOCKS_HELD not in causes(**changes)


def test_it_comes_before_spinning_and_promises_no_headroom() -> None:
    assert causes(active_fraction=0.05) == [Cause.CLOCKS_HELD, Cause.SPINNING]
    assert Cause.CLOCKS_HELD.record.sets_pace


def test_readings_lead_to_it() -> None:
    bench = Bench(gpus=1)
    bench.sample = replace(bench.sample, sm_clock_hertz=600e6, event_reasons=frozenset({"applications_clocks_setting"}))
    bench.run(65, watts=200, work=64, tokens_per_second=500)
    bench.observer.observe(GpuCondition(bench.t + 0.1, uuid(0), limit_enforced_watts=600.0, sm_clock_max_hertz=2430e6))
    deployment = only(bench.run(1, watts=200, work=64, tokens_per_second=500))
    assert deployment.suspicions[0].cause is Cause.CLOCKS_HELD


CAPPED = GpuSigns(
    index=0,
    utilization=1.0,
    tdp_fraction=0.6,
    sm_clock=1050e6,
    sm_clock_max=1410e6,
    event_reasons={"sw_power_cap": 1.0},
)


def suspected(gpu: GpuSigns, **deployment: Any) -> set[Cause]:
    return {s.cause for s in suspect(Signs(gpus=(gpu,), work=64.0, **deployment), Thresholds())}


def test_a_power_cap_well_below_the_limit_is_no_limit_of_the_gpu() -> None:
    """An A100 at 240 of 400 W."""
    (suspicion,) = suspect(Signs(gpus=(CAPPED,), work=64.0), Thresholds())
    assert suspicion.cause is Cause.OTHER_CAP
    assert suspicion.evidence == (
        "GPU 0 is power-capped in 100 % of the readings at 60 % of its limit: something other than the limit holds it"
    )
    for other in (
        replace(CAPPED, tdp_fraction=0.97),
        replace(CAPPED, event_reasons={"sw_power_cap": 0.65}),
        replace(CAPPED, utilization=0.7),
    ):
        assert suspected(other) == set()


QUEUE = {"queued": 5.0, "queued_throughout": True, "kv_cache_usage": 0.1}


def test_a_queue_in_front_of_prompts_is_no_limit_on_the_batch() -> None:
    """Requests wait while none runs: they wait for their prompts."""
    busy = GpuSigns(index=0, utilization=1.0, tdp_fraction=0.645)
    assert suspected(busy, running=0.3, **QUEUE) == set()
    assert suspected(busy, running=4.0, **QUEUE) == {Cause.BATCH_LIMITED}


@pytest.mark.parametrize("halves", [(1.0, 0.1), (0.1, 1.0)])
def test_a_host_is_late_only_when_utilisation_is_steadily_low(halves: tuple[float, float]) -> None:
    """The mean also falls below 60 % while load comes or goes."""
    gpu = GpuSigns(index=0, utilization=0.55, utilization_halves=halves)
    assert Cause.HOST_BOUND not in suspected(gpu)
    assert Cause.HOST_BOUND in suspected(replace(gpu, utilization_halves=(0.55, 0.55)))
