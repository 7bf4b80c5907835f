"""An energy counter that comes with every fifth or tenth sample only, since it is dear to read."""

from __future__ import annotations

from itertools import pairwise

import pytest

from wattline.analysis.gpu import GpuTrack
from wattline.analysis.observer import Observer
from wattline.analysis.plan import DeploymentPlan, EnginePlan, Plan
from wattline.analysis.snapshot import State
from wattline.readings import EngineReading, GpuCondition, GpuIdentity, GpuSample


def track(watts_told: float, watts_drawn: float, seconds: int, window: float = 15.0) -> GpuTrack:
    """A GPU whose power reading is off by a few per cent from what its counter counts."""
    gpu = GpuTrack(GpuIdentity(uuid="GPU-a", index=0), Plan(deployments=(), window=window))
    for second in range(seconds + 1):
        joules = second * watts_drawn if second % 5 == 0 else None
        gpu.observe_sample(GpuSample(t=float(second), uuid="GPU-a", power_watts=watts_told, energy_joules=joules))
    return gpu


def test_mean_power_is_by_the_counter_where_it_covers_the_window() -> None:
    assert track(500.0, 480.0, seconds=60).power_mean(45.0, 60.0) == pytest.approx(480.0)


def test_since_the_last_reading_of_the_counter_power_tells() -> None:
    # The counter covers 49 to 60, power 60 to 64.
    assert track(500.0, 480.0, seconds=64).power_mean(49.0, 64.0) == pytest.approx((11 * 480 + 4 * 500) / 15)


@pytest.mark.parametrize("seconds", range(60, 70))
def test_mean_power_is_known_at_every_second_of_a_short_window(seconds: int) -> None:
    assert track(500.0, 500.0, seconds).power_mean(seconds - 15.0, float(seconds)) == pytest.approx(500.0)


@pytest.mark.parametrize("watts_told", [400.0, 480.0, 500.0, 900.0])
def test_the_published_counter_is_the_hardwares_own_at_each_of_its_readings(watts_told: float) -> None:
    view = track(watts_told, 480.0, seconds=60).view(60.0, "")
    assert view.energy_source == "counter"
    # Where power told too much, the counter has not caught up yet with what was published.
    ahead = max(0.0, 4 * watts_told - 5 * 480.0)
    assert view.energy_joules == pytest.approx(60 * 480.0 + ahead)


def test_between_two_readings_of_the_counter_power_carries_it_on() -> None:
    assert track(500.0, 480.0, seconds=62).view(62.0, "").energy_joules == pytest.approx(60 * 480.0 + 2 * 500.0)


@pytest.mark.parametrize("watts_told", [0.0, 400.0, 500.0, 900.0])
def test_the_published_counter_never_falls_and_is_never_far_from_the_hardwares(watts_told: float) -> None:
    gpu = GpuTrack(GpuIdentity(uuid="GPU-a", index=0), Plan(deployments=()))
    published: list[float] = []
    for second in range(200):
        joules = second * 480.0 if second % 10 == 0 else None
        gpu.observe_sample(GpuSample(t=float(second), uuid="GPU-a", power_watts=watts_told, energy_joules=joules))
        told = gpu.view(float(second), "").energy_joules
        assert told is not None
        published.append(told)
        assert abs(told - second * 480.0) <= 10 * abs(watts_told - 480.0)
    assert published == sorted(published)


@pytest.mark.parametrize("scrape", [7, 10, 15, 23, 60])
def test_a_rate_is_right_at_every_interval_of_scrapes(scrape: int) -> None:
    """Whatever its ratio to the interval at which the counter is read."""
    gpu = GpuTrack(GpuIdentity(uuid="GPU-a", index=0), Plan(deployments=()))
    seen = []
    for second in range(300):
        joules = second * 480.0 if second % 10 == 0 else None
        gpu.observe_sample(GpuSample(t=float(second), uuid="GPU-a", power_watts=482.0, energy_joules=joules))
        if second % scrape == 0:
            seen.append(gpu.view(float(second), "").energy_joules or 0.0)
    for before, after in pairwise(seen):
        assert (after - before) / scrape == pytest.approx(480.0, rel=0.01)


def test_energy_goes_to_the_state_in_which_it_flowed_although_the_counter_comes_later() -> None:
    observer = Observer(Plan(deployments=(DeploymentPlan("d", (EnginePlan("e"),)),), window=5.0))
    observer.observe(GpuIdentity(uuid="GPU-a", index=0))
    observer.observe(GpuCondition(t=0.0, uuid="GPU-a", limit_enforced_watts=700.0))
    for second in range(30):
        t = float(second)
        joules = second * 400.0 if second % 10 == 0 else None
        observer.observe(GpuSample(t=t, uuid="GPU-a", power_watts=400.0, energy_joules=joules))
        work = 8.0 if second < 24 else 0.0
        tokens = 100.0 * min(second, 24)
        observer.observe(EngineReading(t=t, engine="e", up=True, running=work, queued=0.0, progress=(tokens,)))
        (deployment,) = observer.judge(t).deployments
    assert deployment.state is State.IDLE
    idle = deployment.state_seconds[State.IDLE]
    assert idle >= 4
    assert deployment.state_energy_joules[State.IDLE] == pytest.approx(idle * 400.0)
    assert sum(deployment.state_energy_joules.values()) == pytest.approx(29 * 400.0)
