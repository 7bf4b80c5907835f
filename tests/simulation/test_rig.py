from dataclasses import replace
from itertools import pairwise
from statistics import fmean, pstdev

import pytest

from wattline.analysis.snapshot import State
from wattline.gpus.source import GpuLostError, GpuSource
from wattline.readings import GpuSample
from wattline.simulation.clock import SimClock
from wattline.simulation.noise import CELL_SECONDS
from wattline.simulation.rig import Rig, SimulatedSource
from wattline.simulation.scenario import EXTRAS, STORY, Load, Phase, Timeline, timeline

LOST = next(each for each in EXTRAS if each.name == "gpu_lost")
CYCLE = sum(each.seconds for each in STORY)
STARTS = {each.name: int(timeline().start(number)) for number, each in enumerate(STORY)}


class HandClock:
    """Real time that moves only when it is told to."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def source(scenario: str = "story", speed: float = 1.0) -> tuple[SimulatedSource, HandClock]:
    hand = HandClock()
    return SimulatedSource(Rig(timeline(scenario), seed=1), SimClock(speed, hand)), hand


def samples(start: float, end: float, index: int = 0, seed: int = 1) -> list[GpuSample]:
    gpu = Rig(timeline(), seed).gpus[index]
    return [gpu.sample(float(t), t - 1.0) for t in range(int(start), int(end) + 1)]


def watts(sample: GpuSample) -> float:
    assert sample.power_watts is not None
    return sample.power_watts


def joules(sample: GpuSample) -> float:
    assert sample.energy_joules is not None
    return sample.energy_joules


@pytest.mark.parametrize("number", range(len(STORY)), ids=lambda number: STORY[number].name)
def test_the_rig_draws_what_the_phase_says_and_every_board_a_little_more_or_less(number: int) -> None:
    phase, start = STORY[number], timeline().start(number)
    end = start + phase.seconds
    means = [(gpu.energy(end) - gpu.energy(start)) / phase.seconds for gpu in Rig(timeline(), seed=1).gpus]
    assert fmean(means) == pytest.approx(phase.load.power_watts, rel=0.01)
    for mean in means:
        assert mean == pytest.approx(phase.load.power_watts, rel=0.03)
    assert len({round(mean, 1) for mean in means}) > 4


def test_the_idle_rig_of_the_first_story_shows_87_watts_and_0_percent_in_every_single_reading() -> None:
    for index in range(8):
        for sample in samples(2, 190, index):
            assert watts(sample) == pytest.approx(87, abs=2)
            assert sample.utilization_ratio == 0.0


def test_the_energy_counter_is_the_integral_of_every_power_that_is_read() -> None:
    # The span holds three changes of phase, from 87 to 520 W and back down.
    read = samples(400, 700)
    drawn = joules(read[-1]) - joules(read[0])
    buffered = sum(sum(sample.power_samples_watts) for sample in read[1:]) * CELL_SECONDS
    averaged = sum(watts(sample) for sample in read[1:])
    assert drawn == pytest.approx(buffered, abs=0.5)
    assert drawn == pytest.approx(averaged, abs=0.5)
    assert drawn > 300 * 140


def test_the_energy_counter_never_goes_back_over_two_loops() -> None:
    gpu = Rig(timeline(), seed=3).gpus[5]
    read = [joules(gpu.sample(t * 0.37)) for t in range(int(2 * CYCLE / 0.37))]
    assert all(after >= before for before, after in pairwise(read))


def test_energy_does_not_depend_on_the_order_in_which_it_is_asked_for() -> None:
    forward, backward = (Rig(timeline(), seed=1).gpus[2] for _ in range(2))
    times = [3.0, 700.0, 1500.5, 4000.0]
    assert [forward.energy(t) for t in times] == [backward.energy(t) for t in reversed(times)][::-1]


def test_average_power_lags_a_second_behind_a_step_and_instant_power_does_not() -> None:
    step = Timeline(
        (
            Phase("low", "low", 100, Load(power_watts=100.0, swing=0.0), State.IDLE),
            Phase("high", "high", 100, Load(power_watts=300.0, swing=0.0), State.WORKING),
        )
    )
    gpu = Rig(step, seed=1).gpus[0]
    board = gpu.energy(100.0) / (100.0 * 100.0)
    read = {t: gpu.sample(t) for t in (100.0, 100.5, 101.0)}
    assert [watts(sample) / board for sample in read.values()] == pytest.approx([100, 200, 300], abs=0.01)
    assert read[100.5].power_instant_watts == pytest.approx(300 * board, abs=0.01)


def test_power_and_energy_are_renewed_ten_times_a_second() -> None:
    gpu = Rig(timeline("healthy"), seed=1).gpus[0]
    early, late, after = (gpu.sample(t) for t in (50.01, 50.09, 50.11))
    assert (early.power_watts, early.energy_joules) == (late.power_watts, late.energy_joules)
    assert (late.power_watts, late.energy_joules) != (after.power_watts, after.energy_joules)


def test_buffered_samples_come_once_each_and_the_oldest_are_lost_when_nobody_asks() -> None:
    gpu = Rig(timeline("healthy"), seed=1).gpus[0]
    assert len(gpu.sample(100.0, 99.0).power_samples_watts) == 50
    assert gpu.sample(100.0, 100.0).power_samples_watts == ()
    assert len(gpu.sample(100.0, None).power_samples_watts) == 119
    assert len(gpu.sample(100.0, 10.0).power_samples_watts) == 119
    both = gpu.sample(99.5, 99.0).power_samples_watts + gpu.sample(100.0, 99.5).power_samples_watts
    assert both == gpu.sample(100.0, 99.0).power_samples_watts


def test_a_loaded_gpu_swings_at_an_instant_far_more_than_on_average() -> None:
    read = samples(STARTS["healthy"] + 5, STARTS["healthy"] + 70)
    instant = [sample.power_instant_watts or 0.0 for sample in read]
    average = [watts(sample) for sample in read]
    # Not their extremes: those of so few readings are chance.
    assert pstdev(instant) > 2 * pstdev(average)
    assert all(400 < value < 640 for value in average)


def test_one_seed_gives_the_same_readings_and_another_seed_others() -> None:
    assert samples(400, 420, seed=1) == samples(400, 420, seed=1)
    assert samples(400, 420, seed=1) != samples(400, 420, seed=2)


def test_what_holds_the_clock_is_told_and_seen() -> None:
    capped = samples(STARTS["power_capped"] + 5, STARTS["power_capped"] + 65)
    assert {sample.event_reasons for sample in capped} == {frozenset({"sw_power_cap"})}
    assert all((sample.sm_clock_hertz or 0) < 2.1e9 for sample in capped)
    assert {sample.event_reasons for sample in samples(0, 60)} == {frozenset()}
    assert {sample.sm_clock_hertz for sample in samples(0, 60)} == {2430e6}


def test_limits_memory_and_link_are_those_of_the_board() -> None:
    gpu = Rig(timeline(), seed=1).gpus[0]
    condition, activity = gpu.condition(0.0), gpu.activity(0.0)
    assert condition.limit_enforced_watts == condition.limit_default_watts == condition.limit_requested_watts == 600
    assert (condition.limit_min_watts, condition.limit_max_watts) == (300, 600)
    assert 0 < (condition.memory_used_bytes or 0) < (condition.memory_total_bytes or 0)
    assert activity.pcie_link_generation == activity.pcie_link_generation_max == 5
    assert activity.pcie_link_width == activity.pcie_link_width_max == 16


def test_a_lowered_limit_is_enforced_and_requested_but_not_the_default() -> None:
    condition = Rig(timeline("limit_lowered"), seed=1).gpus[0].condition(10.0)
    assert (condition.limit_enforced_watts, condition.limit_requested_watts) == (300, 300)
    assert condition.limit_default_watts == 600


def test_the_gpus_are_warmer_under_load_than_idle() -> None:
    gpu = Rig(timeline(), seed=1).gpus[0]
    idle, loaded = (gpu.condition(t).temperature_celsius or 0.0 for t in (70.0, STARTS["healthy"] + 60.0))
    assert 25 <= idle <= 40
    assert 60 <= loaded <= 80


def test_all_reduces_send_what_they_receive_and_an_idle_link_carries_next_to_nothing() -> None:
    gpu = Rig(timeline(), seed=1).gpus[0]
    busy, idle = gpu.activity(STARTS["collectives"] + 30.0), gpu.activity(30.0)
    assert busy.pcie_transmit_bytes_per_second == pytest.approx(12.5e9, rel=0.1)
    assert busy.pcie_receive_bytes_per_second == pytest.approx(12.2e9, rel=0.1)
    assert (idle.pcie_transmit_bytes_per_second or 0) < 2e6
    assert idle.sm_active_ratio == 0.0


def test_half_of_a_partially_idle_rig_shows_nothing() -> None:
    gpus = Rig(timeline("partial_idle"), seed=1).gpus
    shown = [round(watts(gpu.sample(60.0)), -2) for gpu in gpus]
    assert shown == [500, 500, 500, 500, 100, 100, 100, 100]


def test_the_identity_is_that_of_the_rig_of_the_stories() -> None:
    simulated, _ = source()
    identities = simulated.discover()
    assert [identity.index for identity in identities] == list(range(8))
    assert len({identity.uuid for identity in identities}) == len({each.pci_bus_id for each in identities}) == 8
    first = identities[0]
    assert first.name == "NVIDIA RTX PRO 6000 Blackwell Server Edition"
    assert first.virtualization == "passthrough"
    assert (first.p2p_peers, first.p2p_peers_possible, first.nvlink_active) == (0, 7, False)


def test_the_simulated_process_can_never_be_taken_for_a_real_one() -> None:
    processes = Rig(timeline(), seed=1).gpus[0].condition(0.0).processes
    assert processes
    # Linux gives process ids up to 2 ** 22.
    assert all(process.pid > 2**22 for process in processes)


def test_the_source_reads_on_the_simulated_clock() -> None:
    simulated, hand = source(speed=60.0)
    reader: GpuSource = simulated
    uuid = reader.discover()[0].uuid
    hand.now += 2.0
    assert reader.sample(uuid).t == reader.activity(uuid).t == reader.condition(uuid).t == pytest.approx(120.0)


def test_the_source_hands_out_each_buffered_sample_once() -> None:
    simulated, hand = source()
    uuid = simulated.discover()[0].uuid
    hand.now += 50.0
    simulated.sample(uuid)
    hand.now += 1.0
    assert len(simulated.sample(uuid).power_samples_watts) == 50


def test_a_lost_gpu_costs_itself_only() -> None:
    simulated, hand = source("gpu_lost")
    uuids = [identity.uuid for identity in simulated.discover()]
    assert len(uuids) == 8
    hand.now += 80.0
    for read in (simulated.sample, simulated.activity, simulated.condition):
        with pytest.raises(GpuLostError) as caught:
            read(uuids[3])
        assert caught.value.kind == "gpu_is_lost"
    assert [identity.index for identity in simulated.discover()] == [0, 1, 2, 4, 5, 6, 7]
    assert watts(simulated.sample(uuids[4])) > 0


def test_a_gpu_that_was_lost_can_come_back() -> None:
    line = Timeline((replace(LOST, seconds=10), STORY[0]))
    gpu = Rig(line, seed=1).gpus[3]
    with pytest.raises(GpuLostError):
        gpu.sample(5.0)
    assert watts(gpu.sample(15.0)) > 0


def test_a_uuid_that_is_not_of_the_rig_is_a_lost_gpu() -> None:
    simulated, _ = source()
    with pytest.raises(GpuLostError, match="there is no GPU GPU-x"):
        simulated.sample("GPU-x")


def test_closing_twice_is_harmless() -> None:
    simulated, _ = source()
    simulated.close()
    simulated.close()
    assert simulated.discover()
