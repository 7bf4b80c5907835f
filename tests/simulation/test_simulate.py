from collections import Counter

import pytest

from wattline.readings import GpuActivity, GpuCondition, GpuSample
from wattline.simulation.simulate import EngineText, simulate


def test_everything_comes_at_its_pace_and_in_the_order_of_time() -> None:
    read = list(simulate(60))
    assert Counter(type(each) for each in read) == {
        GpuSample: 8 * 61,
        GpuActivity: 8 * 13,
        GpuCondition: 8 * 3,
        EngineText: 13,
    }
    times = [each.t for each in read]
    assert times == sorted(times)
    assert isinstance(read[-1], EngineText)
    assert read[-1].t == 60.0


def test_one_seed_gives_the_same_history_and_another_seed_another() -> None:
    assert list(simulate(20, seed=7)) == list(simulate(20, seed=7))
    assert list(simulate(20, seed=7)) != list(simulate(20, seed=8))


def test_a_lost_gpu_and_a_server_that_is_down_leave_gaps() -> None:
    lost = [each.t for each in simulate(80, scenario="gpu_lost") if isinstance(each, GpuSample)]
    assert (lost.count(74.0), lost.count(75.0)) == (8, 7)
    down = [each for each in simulate(85, scenario="engine_down") if isinstance(each, EngineText)]
    assert [(each.t, each.text is None) for each in down][-4:] == [(70, False), (75, False), (80, True), (85, True)]


def test_an_unknown_scenario_is_refused() -> None:
    with pytest.raises(ValueError, match="unknown scenario"):
        next(simulate(1, scenario="nothing"))
