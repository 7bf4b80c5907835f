"""How a check sums up what it has watched."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest

from exporter.analysis.plan import DeploymentPlan, Plan
from exporter.analysis.snapshot import Cause, DeploymentView, GpuView, Snapshot, State, Suspicion
from exporter.check.command import at_once, run, shortened
from exporter.check.report import Watched, report
from exporter.config import ConfigError, parse
from exporter.readings import GpuActivity, GpuIdentity, GpuSample

PLAN = Plan(deployments=(DeploymentPlan("a"),), window=3.0)
UUID = "GPU-a"
HEALTHY = DeploymentView("a", State.WORKING, "80.0% of the power limit", 0.0, (UUID,), ("head",))


def snapshot(
    t: float, *views: DeploymentView, utilization: float | None = 1.0, reading_t: float | None = None
) -> Snapshot:
    at = t if reading_t is None else reading_t
    gpu = GpuView(
        GpuIdentity(UUID, 0),
        "a",
        up=True,
        sample=GpuSample(
            at, UUID, utilization_ratio=utilization, event_reasons=frozenset({"sw_power_cap", "gpu_idle"})
        ),
        activity=GpuActivity(at, UUID, sm_active_ratio=utilization),
    )
    return Snapshot(t=t, gpus=(gpu,), deployments=views or (HEALTHY,))


def test_a_check_averages_over_the_window_and_no_further_back() -> None:
    told = [0.0, 0.0, 0.5, 1.0, 0.9, 0.8]
    (gpu,) = report((snapshot(float(t), utilization=u) for t, u in enumerate(told)), PLAN).gpus
    # The last is at 5 s; the window of 3 s begins at 2 s.
    assert gpu.utilization_ratio == pytest.approx((0.5 + 1.0 + 0.9 + 0.8) / 4)


def test_one_reading_that_two_verdicts_show_counts_once() -> None:
    shown = [
        snapshot(1.0, utilization=0.0),
        snapshot(2.0, utilization=1.0),
        snapshot(3.0, utilization=1.0, reading_t=2.0),
    ]
    (gpu,) = report(shown, PLAN).gpus
    assert gpu.utilization_ratio == 0.5
    assert gpu.sm_active_ratio == 0.5


def test_what_was_not_obtained_is_left_out_of_an_average() -> None:
    (gpu,) = report([snapshot(1.0, utilization=None), snapshot(2.0, utilization=0.4)], PLAN).gpus
    assert gpu.utilization_ratio == 0.4


def test_an_idle_gpu_is_not_held_back() -> None:
    (gpu,) = report([snapshot(1.0)], PLAN).gpus
    assert gpu.held_back == {"sw_power_cap": 1.0}


def test_the_time_that_was_watched_and_the_window_are_told_apart() -> None:
    long = report((snapshot(float(t)) for t in range(11)), PLAN)
    short = report((snapshot(float(t)) for t in range(3)), PLAN)
    assert (long.watched_seconds, long.window_seconds) == (10.0, 3.0)
    assert (short.watched_seconds, short.window_seconds) == (2.0, 2.0)


@pytest.mark.parametrize(
    ("state", "cause", "code"),
    [
        (State.WORKING, None, 0),
        (State.IDLE, None, 0),
        (State.SATURATED, Cause.POWER_CAPPED, 0),
        (State.WORKING, Cause.MEMORY_BOUND, 0),
        (State.IDLE_WHILE_BUSY, None, 1),
        (State.STALLED, None, 1),
        (State.LOW_POWER, None, 1),
        (State.WORKING, Cause.BATCH_LIMITED, 1),
        (State.WORKING, Cause.THROTTLED, 1),
        (State.WORKING, Cause.LINK_DEGRADED, 1),
        (State.WORKING, Cause.PARTIAL_IDLE, 1),
        (State.WORKING, Cause.HOST_BOUND, 1),
        (State.IDLE, Cause.SPINNING, 1),
        (State.UNKNOWN, None, 2),
    ],
)
def test_exit_code_of_one_deployment(state: State, cause: Cause | None, code: int) -> None:
    view = replace(HEALTHY, state=state, suspicions=(Suspicion(cause, "seen"),) if cause else ())
    assert report([snapshot(1.0, view)], PLAN).exit_code == code


def test_a_finding_counts_more_than_what_could_not_be_told_and_that_more_than_health() -> None:
    unknown, bad = replace(HEALTHY, name="b", state=State.UNKNOWN), replace(HEALTHY, name="c", state=State.STALLED)
    assert report([snapshot(1.0, HEALTHY, unknown)], PLAN).exit_code == 2
    assert report([snapshot(1.0, HEALTHY, unknown, bad)], PLAN).exit_code == 1


def test_nothing_watched_is_no_health() -> None:
    with pytest.raises(ValueError, match="nothing was watched"):
        Watched(PLAN).report()


async def test_an_empty_recording_could_not_be_told() -> None:
    out, err = io.StringIO(), io.StringIO()
    assert await run(at_once(()), PLAN, out=out, err=err) == 2
    assert out.getvalue() == ""
    assert err.getvalue() == "Nothing was watched: there is no verdict.\n"


async def test_a_note_stands_in_the_answer() -> None:
    out = io.StringIO()
    await run(at_once([snapshot(1.0)]), PLAN, out=out, note=lambda: "the recording was cut short")
    assert out.getvalue().splitlines()[1] == "The recording was cut short."


def test_a_short_watch_looks_at_no_more_than_itself() -> None:
    config = shortened(parse("", "defaults"), 30.0)
    assert (config.window, config.engine_interval, config.sample_interval) == (30.0, 5.0, 1.0)
    config = shortened(parse("", "defaults"), 12.0)
    assert (config.window, config.engine_interval, config.sample_interval) == (12.0, 2.0, 1.0)


def test_a_long_watch_keeps_the_configured_window() -> None:
    assert shortened(parse("window: 2m", "a.yml"), 600.0).window == 120.0


def test_a_watch_that_is_too_short_is_refused() -> None:
    with pytest.raises(ConfigError, match="--for: expected at least 10s, found 3s"):
        shortened(parse("", "defaults"), 3.0)
