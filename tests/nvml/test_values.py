"""What a healthy H200 answers becomes readings in base units."""

from __future__ import annotations

from itertools import pairwise

import pynvml
import pytest

from tests.nvml.reading import NOWHERE, Clock
from tests.nvml.standin import StandIn, bus_id, h200, uuid
from wattline.gpus.nvml import NvmlSource, calls, questions
from wattline.gpus.nvml.names import reason_names
from wattline.readings import GpuProcess


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def source(standin: StandIn, clock: Clock) -> NvmlSource:
    source = NvmlSource(clock=clock, inventory=NOWHERE)
    source.discover()
    return source


def test_a_sample_is_in_watts_joules_ratios_and_hertz(source: NvmlSource, standin: StandIn) -> None:
    standin.say(
        "0 nvmlDeviceGetPowerUsage value=688123",
        "0 field.186.0 value=702500 type=1",
        "0 nvmlDeviceGetTotalEnergyConsumption value=2248080 per_second=0",
        "0 nvmlDeviceGetUtilizationRates value=97:31",
        "0 nvmlDeviceGetClockInfo.1 value=1755",
        "0 nvmlDeviceGetCurrentClocksEventReasons value=0x4",
    )
    sample = source.sample(uuid(0))
    assert sample.t == 12.5
    assert sample.power_watts == pytest.approx(688.123)
    assert sample.power_instant_watts == pytest.approx(702.5)
    assert sample.energy_joules == pytest.approx(2248.080)
    assert sample.utilization_ratio == 0.97
    assert sample.memory_busy_ratio == 0.31
    assert sample.sm_clock_hertz == 1755e6
    assert sample.event_reasons == frozenset({"sw_power_cap"})
    assert sample.errors == ()


def test_the_two_gpus_are_told_apart(source: NvmlSource, standin: StandIn) -> None:
    standin.say("0 nvmlDeviceGetPowerUsage value=100000", "1 nvmlDeviceGetPowerUsage value=200000")
    assert [source.sample(uuid(gpu)).power_watts for gpu in (0, 1)] == [100.0, 200.0]


def test_transmit_and_receive_are_not_mixed_up(source: NvmlSource, standin: StandIn) -> None:
    # GPM counts MiB/s: 100 MiB/s from the GPU, 300 MiB/s to it.
    standin.say("0 gpm.20 value=100", "0 gpm.21 value=300")
    activity = source.activity(uuid(0))
    assert activity.pcie_transmit_bytes_per_second == 100 * 2**20
    assert activity.pcie_receive_bytes_per_second == 300 * 2**20


def test_activity_is_a_ratio(source: NvmlSource, standin: StandIn) -> None:
    standin.say("0 gpm.2 value=95.7", "0 gpm.5 value=92.9", "0 gpm.10 value=16.5")
    activity = source.activity(uuid(0))
    assert activity.sm_active_ratio == pytest.approx(0.957)
    assert activity.tensor_active_ratio == pytest.approx(0.929)
    assert activity.dram_active_ratio == pytest.approx(0.165)
    assert (activity.pcie_link_generation, activity.pcie_link_width) == (5, 16)
    assert (activity.pcie_link_generation_max, activity.pcie_link_width_max) == (5, 16)


def test_activity_compares_with_the_sample_of_the_last_visit(source: NvmlSource, standin: StandIn) -> None:
    source.activity(uuid(0))
    taken = standin.count("nvmlGpmSampleGet", gpu=0)
    assert taken == 2, "the first visit takes both ends of its average"
    source.activity(uuid(0))
    assert standin.count("nvmlGpmSampleGet", gpu=0) == 3, "a later one takes only the new end"
    assert standin.count("gpm samples too close") == 0


def test_a_gpm_metric_that_is_not_a_number_is_absent(source: NvmlSource, standin: StandIn) -> None:
    standin.say("0 gpm.10 value=nan", "0 gpm.20 value=nan")
    activity = source.activity(uuid(0))
    assert activity.dram_active_ratio is None
    assert activity.pcie_transmit_bytes_per_second is None
    assert {(e.reading, e.kind) for e in activity.errors} == {
        ("dram_active", "not_a_number"),
        ("pcie_transmit", "not_a_number"),
    }
    assert activity.pcie_receive_bytes_per_second == pytest.approx(1.38 * 2**20)


def test_without_gpm_pcie_comes_from_the_slow_call_in_kilobytes(source: NvmlSource, standin: StandIn) -> None:
    standin.say("0 nvmlGpmQueryDeviceSupport value=0")
    source.close()
    source.discover()
    asked = standin.count("nvmlGpmQueryDeviceSupport", gpu=0)
    activity = source.activity(uuid(0))
    assert activity.pcie_transmit_bytes_per_second == 680_000
    assert activity.pcie_receive_bytes_per_second == 559_000
    assert activity.sm_active_ratio is None
    assert [(e.reading, e.kind) for e in activity.errors] == [("gpm", "not_supported")]
    source.activity(uuid(0))
    assert standin.count("nvmlGpmQueryDeviceSupport", gpu=0) == asked + 1


def test_with_gpm_the_slow_pcie_call_is_not_made(source: NvmlSource, standin: StandIn) -> None:
    source.activity(uuid(0))
    assert standin.count("nvmlDeviceGetPcieThroughput.0") == standin.count("nvmlDeviceGetPcieThroughput.1") == 0


def test_the_wrapping_byte_counters_are_never_asked(source: NvmlSource, standin: StandIn) -> None:
    # Fields 197 and 198 have 32 bits and wrap 14 times a second at 59 GB/s.
    for _ in range(2):
        source.sample(uuid(0))
        source.activity(uuid(0))
        source.condition(uuid(0))
    assert {call for _, call in standin.counts() if call.startswith("field.")} == {"field.186.0"}


def test_a_condition_is_in_watts_bytes_hertz_and_celsius(source: NvmlSource, standin: StandIn) -> None:
    standin.say(
        "0 nvmlDeviceGetEnforcedPowerLimit value=600000",
        "0 nvmlDeviceGetPowerManagementLimit value=650000",
        "0 nvmlDeviceGetPowerManagementDefaultLimit value=700000",
        "0 nvmlDeviceGetPowerManagementLimitConstraints value=200000:710000",
        "0 nvmlDeviceGetComputeRunningProcesses value=17:1024,18:2048",
    )
    condition = source.condition(uuid(0))
    assert condition.limit_enforced_watts == 600
    assert condition.limit_requested_watts == 650
    assert condition.limit_default_watts == 700
    assert (condition.limit_min_watts, condition.limit_max_watts) == (200, 710)
    assert condition.memory_total_bytes == 150754820096
    assert condition.memory_used_bytes == 11477581824, "what the driver reserves is not counted as used"
    assert condition.sm_clock_max_hertz == 1980e6
    assert condition.temperature_celsius == 36
    assert condition.processes == (GpuProcess(17, 1024), GpuProcess(18, 2048))
    assert condition.xid_errors == 0
    assert condition.errors == ()


def test_no_process_is_an_empty_list_and_not_unknown(source: NvmlSource, standin: StandIn) -> None:
    standin.say("0 nvmlDeviceGetComputeRunningProcesses value=none")
    assert source.condition(uuid(0)).processes == ()


def test_a_process_whose_memory_is_not_told_has_none(source: NvmlSource, standin: StandIn) -> None:
    standin.say("0 nvmlDeviceGetComputeRunningProcesses value=79:18446744073709551615,0:5")
    assert source.condition(uuid(0)).processes == (GpuProcess(79, None),), "PID 0 is no process"


def test_xid_errors_are_counted_for_the_gpu_they_hit_whoever_is_visited(source: NvmlSource, standin: StandIn) -> None:
    standin.say("- nvmlEventSetWait_v2 value=1:79,1:31,0:13")
    assert source.condition(uuid(0)).xid_errors == 1
    assert source.condition(uuid(1)).xid_errors == 2
    standin.say("- nvmlEventSetWait_v2 value=1:79")
    assert source.condition(uuid(0)).xid_errors == 1
    assert source.condition(uuid(1)).xid_errors == 3
    assert source.condition(uuid(0)).xids == ((13, 1),), "an error of the application"
    assert source.condition(uuid(1)).xids == ((31, 1), (79, 2)), "one of the application, and two of the hardware"


def test_garbled_xid_codes_make_no_series_of_their_own(source: NvmlSource, standin: StandIn) -> None:
    codes = [*range(1, 63), 99_999, 5_000_000]
    standin.say("- nvmlEventSetWait_v2 value=" + ",".join(f"0:{code}" for code in codes))
    condition = source.condition(uuid(0))
    assert condition.xid_errors == 64
    assert dict(condition.xids) == {**dict.fromkeys(range(1, 63), 1), 0: 2}


def test_a_storm_of_xid_errors_does_not_hold_up_a_visit(source: NvmlSource, standin: StandIn) -> None:
    standin.say("- nvmlEventSetWait_v2 value=" + ",".join(["1:31"] * 150))
    source.condition(uuid(0))
    assert standin.count("nvmlEventSetWait_v2") == 64
    for _ in range(3):
        source.condition(uuid(0))
    assert source.condition(uuid(1)).xid_errors == 150, "what is left is taken later"


def test_buffered_power_samples_come_once_each(source: NvmlSource, standin: StandIn, clock: Clock) -> None:
    standin.say("0 nvmlDeviceGetSamples.0 value=1000:70000,2000:80000 type=1")
    assert source.sample(uuid(0)).power_samples_watts == (70.0, 80.0)
    clock.now += 2
    assert source.sample(uuid(0)).power_samples_watts == (), "nothing new is no error"
    standin.say("0 nvmlDeviceGetSamples.0 value=1000:70000,2000:80000,3000:90000 type=1")
    clock.now += 2
    sample = source.sample(uuid(0))
    assert sample.power_samples_watts == (90.0,)
    assert sample.errors == ()


def test_power_samples_come_again_after_the_wall_clock_was_set_back(
    source: NvmlSource, standin: StandIn, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("time.time_ns", lambda: 3600_000_000_000)
    standin.say("0 nvmlDeviceGetSamples.0 value=3600000000:70000 type=1")
    assert source.sample(uuid(0)).power_samples_watts == (70.0,)
    monkeypatch.setattr("time.time_ns", lambda: 60_000_000_000)
    clock.now += 2
    source.sample(uuid(0))
    standin.say("0 nvmlDeviceGetSamples.0 value=60500000:80000 type=1")
    clock.now += 2
    assert source.sample(uuid(0)).power_samples_watts == (80.0,)


def test_the_buffer_of_power_samples_is_read_with_one_call(source: NvmlSource, standin: StandIn) -> None:
    # It keeps the driver busy for 0.35 ms; nvidia-ml-py would make two of them.
    source.sample(uuid(0))
    assert standin.count("nvmlDeviceGetSamples.0", gpu=0) == 1


def test_a_buffer_that_is_larger_than_expected_is_read_whole(
    source: NvmlSource, standin: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calls, "SAMPLES_ROOM", 1)
    standin.say("0 nvmlDeviceGetSamples.0 value=1000:70000,2000:80000 type=1")
    assert source.sample(uuid(0)).power_samples_watts == (70.0, 80.0)


@pytest.mark.parametrize(
    ("seconds", "gpus", "every"),
    [
        (0.000_002, 8, 0.0),  # A counter in memory, as on older GPUs: at every sample.
        (0.0041, 1, 1.0),  # One H200: 0.4 % of a CPU.
        (0.0041, 2, 3.0),
        (0.0041, 8, 10.0),  # Eight of them at every sample: 3.3 % of a CPU, beside a server that needs it.
        (0.5, 8, 10.0),  # Rather too much of a CPU than no energy.
    ],
)
def test_the_dearer_energy_is_the_less_often_it_is_read(seconds: float, gpus: int, every: float) -> None:
    assert questions.energy_every(seconds, gpus) == every


def test_what_energy_costs_is_measured(standin: StandIn, clock: Clock) -> None:
    standin.say("* nvmlDeviceGetTotalEnergyConsumption delay_us=6000")
    source = NvmlSource(clock, inventory=NOWHERE)
    source.discover()
    with_energy = []
    for second in range(40):
        clock.now = 12.5 + second
        with_energy += [second] if source.sample(uuid(0)).energy_joules is not None else []
    # 2 GPUs x 6 ms / 0.0022 = 5.5 s; on a machine that is busy a call takes longer, never shorter.
    assert 5 <= min(b - a for a, b in pairwise(with_energy)) < 10


def test_dear_readings_are_left_out_of_most_samples(standin: StandIn, clock: Clock) -> None:
    source = NvmlSource(clock, inventory=NOWHERE, energy_every=10.0)
    source.discover()
    with_energy, with_buffer = [], []
    for second in range(21):
        clock.now = 12.5 + second + 0.05 * (second % 2)  # A schedule jitters.
        asked = standin.count("nvmlDeviceGetSamples.0", gpu=0)
        sample = source.sample(uuid(0))
        assert sample.power_watts is not None
        assert sample.errors == ()
        with_energy += [second] if sample.energy_joules is not None else []
        with_buffer += [second] if standin.count("nvmlDeviceGetSamples.0", gpu=0) > asked else []
    assert with_energy == [0, 10, 20]
    assert with_buffer == list(range(0, 21, 2))


def test_a_dear_reading_that_failed_is_asked_again_at_once(source: NvmlSource, standin: StandIn, clock: Clock) -> None:
    standin.say("0 nvmlDeviceGetTotalEnergyConsumption value=E999,5000 per_second=0")
    assert source.sample(uuid(0)).energy_joules is None
    clock.now += 1
    assert source.sample(uuid(0)).energy_joules == 5


@pytest.mark.parametrize(
    ("value_type", "told", "watts"),
    [
        (0, "305000.5", 305.0005),
        (1, "305000", 305.0),
        (2, "305000", 305.0),
        (3, "305000", 305.0),
        (4, "305000", 305.0),
        (5, "305000", 305.0),
        pytest.param(
            6,
            "35000",
            35.0,
            marks=pytest.mark.skipif(not hasattr(pynvml.c_nvmlValue_t, "usVal"), reason="older binding"),
        ),
    ],
    ids=["double", "unsigned int", "unsigned long", "unsigned long long", "long long", "int", "unsigned short"],
)
def test_a_field_is_read_by_the_type_it_says_it_has(
    source: NvmlSource, standin: StandIn, value_type: int, told: str, watts: float
) -> None:
    standin.say(f"0 field.186.0 value={told} type={value_type}")
    assert source.sample(uuid(0)).power_instant_watts == pytest.approx(watts)


def test_a_field_of_an_unknown_type_is_absent(source: NvmlSource, standin: StandIn) -> None:
    standin.say("0 field.186.0 value=305000 type=77")
    sample = source.sample(uuid(0))
    assert sample.power_instant_watts is None
    assert ("power_instant", "unknown_value_type") in {(e.reading, e.kind) for e in sample.errors}


def test_power_of_the_whole_module_is_not_asked(source: NvmlSource, standin: StandIn) -> None:
    # A superchip's module draws 2.1 kW, CPU included, where its GPU draws 0.9 of a limit of 1.4.
    standin.say("* field.186.1 value=2100000 type=1", "* field.186.0 value=900000 type=1")
    assert source.sample(uuid(0)).power_instant_watts == 900
    assert standin.count("field.186.1") == 0


def test_average_and_instantaneous_power_are_two_readings(source: NvmlSource, standin: StandIn) -> None:
    standin.say("0 nvmlDeviceGetPowerUsage value=300000", "0 field.186.0 value=610000 type=1")
    sample = source.sample(uuid(0))
    assert (sample.power_watts, sample.power_instant_watts) == (300, 610)


@pytest.mark.parametrize(
    ("mask", "names"),
    [
        (0, set()),
        (0x1, {"gpu_idle"}),
        (0x4 | 0x20, {"sw_power_cap", "sw_thermal_slowdown"}),
        (0x200 | 0x400, {"board_limit", "reliability"}),
        (0x800 | 0x80, {"unknown_0x800", "hw_power_brake_slowdown"}),
    ],
)
def test_every_bit_of_the_event_reasons_has_a_name(mask: int, names: set[str]) -> None:
    assert reason_names(mask) == names


def test_a_driver_before_r535_tells_the_reasons_by_their_old_name(source: NvmlSource, standin: StandIn) -> None:
    standin.say(
        "* nvmlDeviceGetCurrentClocksEventReasons error=13",
        "* nvmlDeviceGetCurrentClocksThrottleReasons value=0x40",
    )
    for _ in range(2):
        sample = source.sample(uuid(0))
        assert sample.event_reasons == frozenset({"hw_thermal_slowdown"})
        assert sample.errors == ()
    assert standin.count("nvmlDeviceGetCurrentClocksEventReasons") == 1


def test_an_identity_says_who_and_what_it_is(source: NvmlSource, standin: StandIn) -> None:
    first, second = source.discover()
    assert (first.uuid, first.index, first.pci_bus_id) == (uuid(0), 0, bus_id(0))
    assert (second.uuid, second.index, second.pci_bus_id) == (uuid(1), 1, bus_id(1))
    assert (first.name, first.architecture, first.driver) == ("NVIDIA H200", "hopper", "580.159.03")
    assert first.virtualization == "passthrough"
    assert first.mig is False
    assert first.unified_memory is False
    assert first.has_energy_counter is True
    assert (first.p2p_peers, first.p2p_peers_possible) == (1, 1)


@pytest.mark.parametrize(("code", "word"), [(10, "blackwell"), (13, "rubin"), (99, "unknown_99")])
def test_an_architecture_is_a_word(source: NvmlSource, standin: StandIn, code: int, word: str) -> None:
    standin.say(f"* nvmlDeviceGetArchitecture value={code}")
    assert source.discover()[0].architecture == word


def test_gpus_that_cannot_reach_each_other_have_no_peers(standin: StandIn) -> None:
    standin.say("* nvmlDeviceGetP2PStatus.* value=1")  # Chipset not supported, as guests tell.
    assert [(i.p2p_peers, i.p2p_peers_possible) for i in NvmlSource(inventory=NOWHERE).discover()] == [(0, 1), (0, 1)]


def test_topology_that_is_not_told_is_unknown(standin: StandIn) -> None:
    standin.say("0 nvmlDeviceGetP2PStatus.* error=3", "1 nvmlDeviceGetP2PStatus.* value=6")
    assert [(i.p2p_peers, i.p2p_peers_possible) for i in NvmlSource(inventory=NOWHERE).discover()] == [
        (None, None),
        (None, None),
    ]


def test_one_nvlink_that_is_up_makes_nvlink_active(source: NvmlSource, standin: StandIn) -> None:
    standin.say(
        "0 nvmlDeviceGetNvLinkState.0 value=0",
        "0 nvmlDeviceGetNvLinkState.1 value=1",
        "1 nvmlDeviceGetNvLinkState.0 value=0",
        "1 nvmlDeviceGetNvLinkState.1 error=2",
    )
    fresh = NvmlSource(inventory=NOWHERE)
    assert [i.nvlink_active for i in fresh.discover()] == [True, False]


def test_gpus_are_asked_about_each_other_only_when_there_is_a_new_one(source: NvmlSource, standin: StandIn) -> None:
    # 1.6 ms a pair, and 56 pairs among eight GPUs.
    def asked() -> int:
        return sum(n for (_, call), n in standin.counts().items() if call.startswith("nvmlDeviceGetP2PStatus"))

    assert asked() == 2
    assert [i.p2p_peers for i in source.discover()] == [1, 1]
    assert asked() == 2
    standin.say(*h200(3).splitlines())
    assert [i.p2p_peers for i in source.discover()] == [2, 2, 2]
    assert asked() == 2 + 6


def test_a_topology_that_could_not_be_told_once_is_asked_again(standin: StandIn) -> None:
    standin.say("* nvmlDeviceGetP2PStatus.* error=999")
    source = NvmlSource(inventory=NOWHERE)
    assert [i.p2p_peers for i in source.discover()] == [None, None]
    standin.forget()
    assert [i.p2p_peers for i in source.discover()] == [1, 1]


def test_without_gpm_by_choice_none_of_its_calls_is_made(standin: StandIn) -> None:
    source = NvmlSource(inventory=NOWHERE, gpm=False)
    source.discover()
    activity = source.activity(uuid(0))
    assert activity.sm_active_ratio is None
    assert activity.errors == ()
    assert activity.pcie_transmit_bytes_per_second == 680_000
    source.close()
    assert not any("Gpm" in call for _, call in standin.counts())


@pytest.mark.parametrize(("virtualization", "known"), [(0, False), (1, None)], ids=["on bare metal", "in a guest"])
def test_without_nvlink_support_a_guest_does_not_know_and_bare_metal_does(
    standin: StandIn, virtualization: int, known: bool | None
) -> None:
    standin.say(f"* nvmlDeviceGetVirtualizationMode value={virtualization}")
    assert NvmlSource(inventory=NOWHERE).discover()[0].nvlink_active is known
