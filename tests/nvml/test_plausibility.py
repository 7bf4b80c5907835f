"""What no hardware can have is dropped and counted, and never clamped."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wattline.gpus.plausibility import (
    EnergyMark,
    check_activity,
    check_condition,
    check_sample,
    power_ceiling,
)
from wattline.readings import GpuActivity, GpuCondition, GpuProcess, GpuSample, ReadingError

SAMPLE = GpuSample(t=10.0, uuid="GPU-a")
ACTIVITY = GpuActivity(t=10.0, uuid="GPU-a", pcie_link_generation=5, pcie_link_width=16)
CONDITION = GpuCondition(t=10.0, uuid="GPU-a")


@pytest.mark.parametrize(
    ("limit", "ceiling"),
    [(600.0, 1800.0), (72.0, 216.0), (50.0, 150.0), (35.0, 135.0), (5.0, 105.0), (1400.0, 4200.0), (None, 20_000.0)],
    ids=[
        "three times the limit",
        "a small board",
        "the smallest of which that holds",
        "limit and 100 W below that",
        "a laptop that saves",
        "a big board",
        "20 kW where there is no limit",
    ],
)
def test_power_is_believed_up_to(limit: float | None, ceiling: float) -> None:
    assert power_ceiling(limit) == ceiling
    assert check_sample(replace(SAMPLE, power_watts=ceiling), limit).power_watts == ceiling
    checked = check_sample(replace(SAMPLE, power_watts=ceiling + 1), limit)
    assert checked.power_watts is None
    assert checked.errors == (ReadingError("power", "implausible"),)


def test_garbage_power_is_dropped_and_the_next_reading_is_back() -> None:
    told = [70.0, 3_700_000.0, 4294967.295, 71.0]
    checked = [check_sample(replace(SAMPLE, power_watts=watts), 600.0) for watts in told]
    assert [c.power_watts for c in checked] == [70.0, None, None, 71.0]
    assert sum(len(c.errors) for c in checked) == 2


@pytest.mark.parametrize(("watts", "limit"), [(720.0, 700.0), (101.0, 100.0), (882.0, 700.0), (2900.0, 1400.0)])
def test_a_draw_above_the_limit_is_kept_as_it_is(watts: float, limit: float) -> None:
    sample = replace(SAMPLE, power_watts=watts, power_instant_watts=watts, power_samples_watts=(watts,))
    assert check_sample(sample, limit) == sample


@pytest.mark.parametrize("watts", [0.0, -0.0, -1.0, math.nan])
def test_no_board_draws_nothing(watts: float) -> None:
    # Believed, it would be an idle GPU under a full load, and somebody would be called for it.
    told = replace(SAMPLE, power_watts=watts, power_instant_watts=watts, power_samples_watts=(watts, 70.0))
    checked = check_sample(told, 700.0)
    assert checked.power_watts is checked.power_instant_watts is None
    assert checked.power_samples_watts == (70.0,)
    assert {e.reading for e in checked.errors} == {"power", "power_instant", "power_samples"}
    assert {e.kind for e in checked.errors} == {"implausible"}


def test_a_milliwatt_is_a_draw() -> None:
    sample = replace(SAMPLE, power_watts=0.001, power_instant_watts=0.001, power_samples_watts=(0.001,))
    assert check_sample(sample, 5.0) == sample


def test_only_the_impossible_ones_of_the_buffered_samples_are_dropped() -> None:
    checked = check_sample(replace(SAMPLE, power_samples_watts=(70.0, 3.7e6, 80.0, -1.0)), 600.0)
    assert checked.power_samples_watts == (70.0, 80.0)
    assert checked.errors == (ReadingError("power_samples", "implausible"),)


@pytest.mark.parametrize("ratio", [26.19, 42949672.95, 8083349.05, -0.01, math.nan, 1.01])
def test_utilization_outside_0_to_100_percent_is_dropped_not_clamped(ratio: float) -> None:
    checked = check_sample(replace(SAMPLE, utilization_ratio=ratio, memory_busy_ratio=0.5), None)
    assert checked.utilization_ratio is None
    assert checked.memory_busy_ratio == 0.5
    assert checked.errors == (ReadingError("utilization", "implausible"),)


@pytest.mark.parametrize("ratio", [0.0, 1.0])
def test_the_ends_of_the_scale_are_real(ratio: float) -> None:
    sample = replace(SAMPLE, utilization_ratio=ratio)
    assert check_sample(sample, None) == sample


def test_energy_that_steps_back_is_kept_and_marked() -> None:
    # The counter began anew at a reload of the driver; who takes deltas must know, and nothing is lost.
    checked = check_sample(replace(SAMPLE, energy_joules=1.0), 700.0, EnergyMark(9.0, 7750.0))
    assert checked.energy_joules == 1.0
    assert checked.errors == (ReadingError("energy", "stepped_back"),)


@pytest.mark.parametrize(
    ("joules", "kept"),
    [(1690.0, True), (1000.0, True), (6000.0, False), (1.8446744073709552e16, False)],
    ids=["a second at the limit", "nothing drawn", "5 kJ in a second", "all bits set"],
)
def test_energy_is_believed_if_it_could_have_been_drawn(joules: float, kept: bool) -> None:
    checked = check_sample(replace(SAMPLE, energy_joules=joules), 700.0, EnergyMark(9.0, 1000.0))
    assert (checked.energy_joules == joules) is kept
    assert (checked.errors == ()) is kept


def test_the_first_energy_reading_is_believed_whatever_it_is() -> None:
    sample = replace(SAMPLE, energy_joules=5e12)
    assert check_sample(sample, 700.0) == sample


def test_a_clock_of_10_ghz_and_more_is_dropped() -> None:
    assert check_sample(replace(SAMPLE, sm_clock_hertz=4294967295e6), None).sm_clock_hertz is None
    assert check_sample(replace(SAMPLE, sm_clock_hertz=3.2e9), None).sm_clock_hertz == 3.2e9


@pytest.mark.parametrize(
    ("generation", "width", "fits", "too_much"),
    [(5, 16, 60e9, 70e9), (4, 1, 2.0e9, 2.3e9), (3, 8, 8.5e9, 9e9), (None, None, 199e9, 201e9)],
)
def test_pcie_traffic_fits_its_link(generation: int | None, width: int | None, fits: float, too_much: float) -> None:
    link = GpuActivity(t=1.0, uuid="a", pcie_link_generation=generation, pcie_link_width=width)
    fitting = replace(link, pcie_transmit_bytes_per_second=fits, pcie_receive_bytes_per_second=fits)
    assert check_activity(fitting) == fitting
    checked = check_activity(replace(fitting, pcie_transmit_bytes_per_second=too_much))
    assert checked.pcie_transmit_bytes_per_second is None
    assert checked.pcie_receive_bytes_per_second == fits
    assert checked.errors == (ReadingError("pcie_transmit", "implausible"),)


def test_a_link_that_has_just_slowed_down_does_not_make_its_traffic_impossible() -> None:
    # Workstation boards fall back to generation 1 when idle; the traffic was averaged over the seconds before.
    activity = replace(
        ACTIVITY,
        pcie_link_generation=1,
        pcie_link_generation_max=5,
        pcie_link_width_max=16,
        pcie_receive_bytes_per_second=40e9,
    )
    assert check_activity(activity) == activity


@pytest.mark.parametrize("sentinel", [4294967295 * 1000.0, 18446744073709551615.0])
def test_sentinels_of_pcie_traffic_are_dropped(sentinel: float) -> None:
    for link in (ACTIVITY, GpuActivity(t=1.0, uuid="a")):
        checked = check_activity(replace(link, pcie_receive_bytes_per_second=sentinel))
        assert checked.pcie_receive_bytes_per_second is None


def test_a_link_of_no_lanes_is_no_link() -> None:
    checked = check_activity(replace(ACTIVITY, pcie_link_generation=0, pcie_link_width=0))
    assert checked.pcie_link_generation is checked.pcie_link_width is None
    assert {e.reading for e in checked.errors} == {"link_generation", "link_width"}


def test_activity_above_one_is_dropped() -> None:
    checked = check_activity(replace(ACTIVITY, sm_active_ratio=1.2, tensor_active_ratio=0.4, dram_active_ratio=-1.0))
    assert checked.sm_active_ratio is checked.dram_active_ratio is None
    assert checked.tensor_active_ratio == 0.4


@pytest.mark.parametrize("field", ["limit_enforced_watts", "limit_default_watts", "limit_requested_watts"])
def test_a_limit_of_nothing_is_no_limit(field: str) -> None:
    zero: dict[str, float] = {field: 0.0}
    checked = check_condition(replace(CONDITION, **zero))  # type: ignore[arg-type]
    assert checked.limit_enforced_watts is checked.limit_default_watts is checked.limit_requested_watts is None
    assert [e.kind for e in checked.errors] == ["implausible"]


H200 = replace(
    CONDITION,
    limit_enforced_watts=700.0,
    limit_requested_watts=700.0,
    limit_default_watts=700.0,
    limit_min_watts=200.0,
    limit_max_watts=700.0,
)


@pytest.mark.parametrize("reading", ["limit_enforced", "limit_requested", "limit_default"])
@pytest.mark.parametrize("watts", [15_000.0, 1000.0, 771.0, 181.0, 1.0])
def test_a_limit_outside_the_range_of_its_board_is_dropped(reading: str, watts: float) -> None:
    garbled: dict[str, float] = {f"{reading}_watts": watts}
    checked = check_condition(replace(H200, **garbled))  # type: ignore[arg-type]
    assert checked == replace(H200, **{f"{reading}_watts": None}, errors=(ReadingError(reading, "implausible"),))  # type: ignore[arg-type]


@pytest.mark.parametrize("watts", [200.0, 450.0, 700.0, 701.5, 199.0])
def test_a_limit_within_the_range_and_a_little_beside_it_is_kept(watts: float) -> None:
    told = replace(H200, limit_enforced_watts=watts)
    assert check_condition(told) == told


@pytest.mark.parametrize(
    ("least", "most"), [(1.0, 2.0), (900.0, 1200.0), (700.0, 200.0)], ids=["too low", "too high", "the wrong way round"]
)
def test_a_range_that_contradicts_all_limits_or_itself_is_what_is_dropped(least: float, most: float) -> None:
    checked = check_condition(replace(H200, limit_min_watts=least, limit_max_watts=most))
    assert checked.limit_enforced_watts == checked.limit_requested_watts == checked.limit_default_watts == 700.0
    assert checked.limit_min_watts is checked.limit_max_watts is None
    assert checked.errors == (ReadingError("limit_range", "implausible"),)


def test_where_two_limits_are_outside_and_one_speaks_for_the_range_the_two_are_dropped() -> None:
    checked = check_condition(replace(H200, limit_enforced_watts=15_000.0, limit_requested_watts=15_000.0))
    assert checked.limit_enforced_watts is checked.limit_requested_watts is None
    assert (checked.limit_default_watts, checked.limit_max_watts) == (700.0, 700.0)


def test_of_one_limit_and_a_range_that_contradict_each_other_nobody_knows_which_is_right() -> None:
    # Without a limit there is no verdict: better than one by the wrong limit.
    told = replace(H200, limit_enforced_watts=115.0, limit_requested_watts=None, limit_default_watts=None)
    assert check_condition(told).limit_enforced_watts is None


@pytest.mark.parametrize(
    ("least", "most"), [(None, None), (200.0, None), (200.0, 4294967.295), (200.0, 0.0), (-1.0, 700.0)]
)
def test_by_half_a_range_nothing_is_dropped(least: float | None, most: float | None) -> None:
    checked = check_condition(replace(H200, limit_enforced_watts=150.0, limit_min_watts=least, limit_max_watts=most))
    assert checked.limit_enforced_watts == 150.0
    assert {e.reading for e in checked.errors} <= {"limit_range"}


def test_a_smallest_limit_of_0_w_is_real() -> None:
    condition = replace(CONDITION, limit_min_watts=0.0, limit_max_watts=95.0)
    assert check_condition(condition) == condition


NO_RANGE = replace(H200, limit_min_watts=None, limit_max_watts=None)


@pytest.mark.parametrize("watts", [0.001, 0.999])
def test_a_limit_under_one_watt_is_no_limit(watts: float) -> None:
    checked = check_condition(replace(CONDITION, limit_enforced_watts=watts, limit_default_watts=watts))
    assert checked.limit_enforced_watts is checked.limit_default_watts is None
    assert {e.reading for e in checked.errors} == {"limit_enforced", "limit_default"}


@pytest.mark.parametrize(("watts", "kept"), [(69.0, False), (71.0, True), (700.0, True), (770.0, True), (771.0, False)])
def test_without_a_range_the_other_two_limits_say_what_may_be_enforced(watts: float, kept: bool) -> None:
    checked = check_condition(replace(NO_RANGE, limit_enforced_watts=watts))
    assert (checked.limit_enforced_watts is not None) is kept
    assert (checked.limit_default_watts, checked.limit_requested_watts) == (700.0, 700.0)


def test_without_a_range_one_limit_alone_contradicts_nobody() -> None:
    # Of a laptop that tells what is enforced and what it booted with, nobody knows which is wrong.
    told = replace(NO_RANGE, limit_enforced_watts=35.0, limit_requested_watts=None)
    assert check_condition(told) == told


def test_a_superchip_that_enforces_less_than_was_requested_is_right() -> None:
    told = replace(NO_RANGE, limit_enforced_watts=700.0, limit_requested_watts=900.0, limit_default_watts=900.0)
    assert check_condition(told) == told


def test_more_memory_used_than_there_is_is_dropped() -> None:
    checked = check_condition(replace(CONDITION, memory_used_bytes=3e9, memory_total_bytes=2e9))
    assert checked.memory_used_bytes is None
    assert checked.memory_total_bytes == 2e9


def test_no_memory_at_all_is_not_a_total() -> None:
    checked = check_condition(replace(CONDITION, memory_used_bytes=0.0, memory_total_bytes=0.0))
    assert checked.memory_total_bytes is None


def test_a_sentinel_never_becomes_the_memory_of_a_process() -> None:
    processes = (GpuProcess(79, 2**64 - 1), GpuProcess(80, 2**30), GpuProcess(81))
    checked = check_condition(replace(CONDITION, processes=processes))
    assert checked.processes == (GpuProcess(79), GpuProcess(80, 2**30), GpuProcess(81))


@pytest.mark.parametrize(("celsius", "kept"), [(255.0, False), (-274.0, False), (0.0, True), (95.0, True)])
def test_temperatures_are_of_this_world(celsius: float, kept: bool) -> None:
    checked = check_condition(replace(CONDITION, temperature_celsius=celsius))
    assert (checked.temperature_celsius is not None) is kept


def test_what_is_not_there_is_not_judged() -> None:
    assert check_sample(SAMPLE, 700.0) == SAMPLE
    assert check_condition(CONDITION) == CONDITION


@given(
    watts=st.none() | st.floats(),
    ratio=st.none() | st.floats(),
    joules=st.none() | st.floats(),
    limit=st.none() | st.floats(1, 3000),
)
def test_a_value_is_kept_as_it_is_or_dropped_and_told(
    watts: float | None, ratio: float | None, joules: float | None, limit: float | None
) -> None:
    told = replace(SAMPLE, power_watts=watts, utilization_ratio=ratio, energy_joules=joules)
    checked = check_sample(told, limit)
    dropped = 0
    for before, after in [(watts, checked.power_watts), (ratio, checked.utilization_ratio)]:
        assert after in (None, before)
        dropped += before is not None and after is None
    dropped += joules is not None and checked.energy_joules is None
    assert len(checked.errors) == dropped
    assert check_sample(checked, limit) == checked
