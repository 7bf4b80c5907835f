import pytest

from wattline.simulation.clock import SimClock


def test_simulated_time_runs_as_many_times_faster_as_asked() -> None:
    real = iter([1000.0, 1000.5, 1002.0])
    clock = SimClock(speed=20.0, monotonic=lambda: next(real))
    assert [clock.now(), clock.now()] == [10.0, 40.0]
    assert clock.real_seconds(60.0) == 3.0


@pytest.mark.parametrize("speed", [0.0, -1.0, float("nan")])
def test_time_that_stands_still_or_goes_back_is_refused(speed: float) -> None:
    with pytest.raises(ValueError, match="expected a number above 0"):
        SimClock(speed)
