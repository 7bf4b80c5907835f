"""An energy counter that comes with every fifth sample only, since it is dear to read."""

from __future__ import annotations

import pytest

from exporter.analysis.gpu import GpuTrack
from exporter.analysis.plan import Plan
from exporter.readings import GpuIdentity, GpuSample


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


def test_the_published_counter_is_the_hardwares_own() -> None:
    view = track(500.0, 480.0, seconds=62).view(62.0, "")
    assert view.energy_source == "counter"
    assert view.energy_joules == 60 * 480.0
