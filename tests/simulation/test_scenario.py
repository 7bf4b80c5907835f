import re
from itertools import groupby

import pytest

from wattline.analysis.snapshot import State
from wattline.simulation.scenario import (
    EXTRAS,
    GPU_COUNT,
    LIMIT_WATTS,
    SCENARIOS,
    STORY,
    Engine,
    Load,
    Phase,
    Timeline,
    timeline,
)

ALL = (*STORY, *EXTRAS)
BY_NAME = {phase.name: phase for phase in ALL}


def phase(name: str, seconds: float, state: State = State.IDLE) -> Phase:
    return Phase(name=name, title=name, seconds=seconds, load=Load(power_watts=100.0), state=state)


def test_the_story_goes_through_its_states_in_order() -> None:
    states = [state for state, _ in groupby(STORY, key=lambda each: each.state)]
    assert states == [
        State.IDLE,
        State.IDLE_WHILE_BUSY,
        State.IDLE,
        State.LOW_POWER,
        State.WORKING,
        State.SATURATED,
        State.STALLED,
        State.WORKING,
    ]


def test_the_benchmark_climbs_at_idle_power_and_zero_utilisation() -> None:
    climb = [each for each in STORY if each.state is State.IDLE_WHILE_BUSY]
    assert [(each.concurrency, each.tokens_per_second) for each in climb] == [
        (64, 689),
        (256, 1950),
        (512, 2800),
        (1024, 3740),
    ]
    assert {(each.load.power_watts, each.load.utilization) for each in climb} == {(87.0, 0.0)}


@pytest.mark.parametrize(
    ("name", "watts", "fraction"),
    [("climb_1024", 87, 0.145), ("collectives", 250, 0.417), ("tuned", 332, 0.553), ("power_capped", 582, 0.970)],
)
def test_power_is_the_share_of_the_limit_that_the_stories_tell(name: str, watts: float, fraction: float) -> None:
    load = BY_NAME[name].load
    assert load.power_watts == watts
    assert load.power_watts / LIMIT_WATTS == pytest.approx(fraction, abs=0.0005)


def test_the_second_story_gives_1_87_tokens_per_joule() -> None:
    told = BY_NAME["collectives"]
    assert told.tokens_per_second / (GPU_COUNT * told.load.power_watts) == pytest.approx(1.87)


def test_every_verdict_of_the_story_but_the_last_outlasts_the_window_it_is_judged_over() -> None:
    lengths = [sum(each.seconds for each in phases) for _, phases in groupby(STORY[:-1], key=lambda each: each.state)]
    assert min(lengths) >= 75


def test_a_hang_is_held_long_enough_for_a_minute_without_tokens_to_be_shown_for_half_a_minute() -> None:
    assert BY_NAME["wedged"].engine is Engine.WEDGED
    assert BY_NAME["wedged"].seconds >= 60 + 10 + 30


def test_what_pages_lasts_until_the_page_fires_and_the_loop_is_over_before_anybody_leaves() -> None:
    faults = (State.IDLE_WHILE_BUSY, State.STALLED)
    lengths = {state: sum(each.seconds for each in STORY if each.state is state) for state in faults}
    # Until it shows, a scrape, the share of two minutes, an evaluation, `for`: docs/alerting.md adds them up.
    assert min(lengths.values()) >= 66 + 15 + 84 + 15 + 30
    assert timeline().cycle_seconds < 15 * 60


@pytest.mark.parametrize("each", ALL, ids=lambda each: each.name)
def test_every_phase_is_physically_possible(each: Phase) -> None:
    load = each.load
    assert re.fullmatch(r"[a-z0-9]+(_[a-z0-9]+)*", each.name)
    assert each.seconds > 0
    # The noise reaches 2.5 standard deviations: no power below zero, none that a board cannot draw.
    assert load.power_watts * (1 - 2.6 * load.swing) > 0
    assert load.power_watts * (1 + 2.6 * load.swing) < 1.1 * load.limit_watts
    for ratio in (load.utilization, load.sm_active, load.tensor_active, load.dram_active):
        assert 0 <= ratio * 1.05 <= 1.05
    # 16 lanes of PCIe 5 carry 63 GB/s one way.
    assert max(load.pcie_transmit, load.pcie_receive) * 1.08 < 63e9 * load.link_width / 16


def test_names_are_unique_and_every_one_but_the_drain_can_be_held() -> None:
    names = ("story", *(each.name for each in ALL if each.name != "draining"))
    assert names == SCENARIOS
    assert len(set(SCENARIOS)) == len(SCENARIOS)
    for name in SCENARIOS[1:]:
        each = BY_NAME[name]
        line = timeline(each.name)
        assert line.held
        assert line.at(1e6).phase == each


def test_what_is_the_end_of_something_is_led_into_when_it_is_held() -> None:
    assert timeline("wedged").at(0.0).phase.name == "healthy"
    assert timeline("gpu_lost").at(0.0).phase.lost_gpus == frozenset()
    assert timeline("benchmark_over").at(0.0).phase.name == "climb_1024"


def test_an_unknown_scenario_is_refused_with_the_names_of_those_that_exist() -> None:
    with pytest.raises(ValueError, match=r"unknown scenario 'helthy': expected one of story, idle, .*, healthy, "):
        timeline("helthy")


def test_a_timeline_plays_the_lead_once_and_the_cycle_for_ever() -> None:
    line = Timeline((phase("a", 10), phase("b", 5)), lead=(phase("lead", 3),))
    played = [(line.at(t).phase.name, line.at(t).number) for t in (-1, 0, 2.99, 3, 12.99, 13, 17.99, 18, 28, 33)]
    assert played == [
        ("lead", 0),
        ("lead", 0),
        ("lead", 0),
        ("a", 1),
        ("a", 1),
        ("b", 2),
        ("b", 2),
        ("a", 3),
        ("b", 4),
        ("a", 5),
    ]


def test_a_moment_knows_where_its_phase_begins_and_ends() -> None:
    line = Timeline((phase("a", 10), phase("b", 5)), lead=(phase("lead", 3),))
    assert [(line.at(t).start, line.at(t).end) for t in (1, 4, 14, 20, 30)] == [
        (0, 3),
        (3, 13),
        (13, 18),
        (18, 28),
        (28, 33),
    ]


def test_a_verdict_is_settled_only_when_the_window_lies_within_one_state() -> None:
    line = Timeline((phase("a", 50), phase("b", 50), phase("c", 100, State.WORKING)))
    expected = {
        69: None,
        70: State.IDLE,
        99: State.IDLE,
        100: None,
        169: None,
        170: State.WORKING,
        199: State.WORKING,
        200: None,
    }
    assert {t: line.settled_state(t, window=60, margin=10) for t in expected} == expected
