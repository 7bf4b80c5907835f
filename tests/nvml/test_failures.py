"""What a failing call costs: one reading, one GPU or the whole source, and never more than that."""

from __future__ import annotations

import ctypes

import pynvml
import pytest

from tests.nvml.reading import NOWHERE, Clock
from tests.nvml.standin import StandIn, bus_id, h200, uuid
from wattline.gpus.nvml import NvmlSource, calls
from wattline.gpus.source import GpuLostError, SourceError
from wattline.readings import ReadingError

NOT_SUPPORTED, NO_PERMISSION, FUNCTION_NOT_FOUND, UNKNOWN = 3, 4, 13, 999


@pytest.fixture
def source(standin: StandIn) -> NvmlSource:
    source = NvmlSource(inventory=NOWHERE)
    source.discover()
    return source


@pytest.mark.parametrize("code", [NOT_SUPPORTED, FUNCTION_NOT_FOUND])
def test_what_is_not_supported_is_told_once_and_not_asked_again(
    source: NvmlSource, standin: StandIn, code: int
) -> None:
    standin.say(f"0 nvmlDeviceGetPowerUsage error={code}")
    kind = "not_supported" if code == NOT_SUPPORTED else "function_not_found"
    first, *later = [source.sample(uuid(0)) for _ in range(5)]
    assert first.power_watts is None
    assert first.errors == (ReadingError("power", kind),)
    assert [sample.errors for sample in later] == [()] * 4
    assert standin.count("nvmlDeviceGetPowerUsage", gpu=0) == 1


def test_what_is_not_supported_is_asked_again_after_ten_minutes(standin: StandIn) -> None:
    # A driver that has just been loaded may say so for some seconds.
    clock = Clock()
    source = NvmlSource(clock=clock, inventory=NOWHERE)
    source.discover()
    standin.say("0 nvmlDeviceGetPowerUsage error=3", "0 gpm.5 error=3")
    for seconds, power, metric in ((0, 1, 1), (500, 1, 1), (600, 2, 2), (1199, 2, 2)):
        clock.now = 12.5 + seconds
        assert source.sample(uuid(0)).power_watts is None
        source.activity(uuid(0))
        assert standin.count("nvmlDeviceGetPowerUsage", gpu=0) == power
        assert standin.count("gpm.5", gpu=0) == metric
    standin.forget()
    clock.now += 100
    assert source.sample(uuid(0)).power_watts == pytest.approx(122.631)
    assert source.activity(uuid(0)).tensor_active_ratio is not None


def test_what_is_not_supported_is_asked_again_after_reopening_but_not_told_again(
    source: NvmlSource, standin: StandIn
) -> None:
    standin.say("0 nvmlDeviceGetPowerUsage error=3")
    source.sample(uuid(0))
    source.close()
    source.discover()
    assert source.sample(uuid(0)).errors == ()
    assert standin.count("nvmlDeviceGetPowerUsage", gpu=0) == 2


def test_a_gpu_without_power_sensing_costs_the_others_nothing(source: NvmlSource, standin: StandIn) -> None:
    standin.say("0 nvmlDeviceGetPowerUsage error=3", "1 nvmlDeviceGetPowerUsage value=250000")
    assert source.sample(uuid(0)).power_watts is None
    assert source.sample(uuid(0)).utilization_ratio == 0
    assert source.sample(uuid(1)).power_watts == 250


def test_one_failure_of_the_power_sensor_costs_one_reading(source: NvmlSource, standin: StandIn) -> None:
    standin.say("0 nvmlDeviceGetPowerUsage value=29000,E999,29100")
    samples = [source.sample(uuid(0)) for _ in range(3)]
    assert [s.power_watts for s in samples] == [29, None, pytest.approx(29.1)]
    assert [s.errors for s in samples] == [(), (ReadingError("power", "unknown"),), ()]


def test_codes_without_a_name_are_one_kind_and_their_numbers_are_in_the_log(
    source: NvmlSource, standin: StandIn, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Each kind is a series that stays: a driver that answers garbage for codes would fill Prometheus.
    monkeypatch.setattr(calls, "_told", set())
    standin.say("0 nvmlDeviceGetPowerUsage value=" + ",".join(f"E{code}" for code in range(500, 540)))
    kinds = {error.kind for _ in range(40) for error in source.sample(uuid(0)).errors}
    assert kinds == {"unknown_code"}
    told = [record.getMessage() for record in caplog.records]
    assert "500" in told[0]
    assert len(told) == 16, "and the log is not filled either"
    standin.say("0 field.186.0 error=500", "0 nvmlDeviceGetPowerUsage value=70000", "0 gpm.2 error=501")
    assert source.sample(uuid(0)).errors == (ReadingError("power_instant", "unknown_code"),)
    assert source.activity(uuid(0)).errors == (ReadingError("sm_active", "unknown_code"),)
    assert len(caplog.records) == 16


def test_a_counter_that_needs_a_right_is_absent_and_the_rest_is_there(source: NvmlSource, standin: StandIn) -> None:
    # As with a driver that restricts profiling to administrators.
    standin.say("0 nvmlGpmSampleGet error=4")
    for _ in range(2):
        activity = source.activity(uuid(0))
        assert activity.sm_active_ratio is None
        assert activity.errors == (ReadingError("gpm", "no_permission"),)
        assert activity.pcie_transmit_bytes_per_second == 680_000, "by the other call"
    assert standin.count("nvmlGpmSampleGet", gpu=0) == 3, "at the listing, and again: a right may be granted later"


def test_one_gpm_metric_that_is_not_supported_is_left_out_from_then_on(source: NvmlSource, standin: StandIn) -> None:
    standin.say("0 gpm.5 error=3")
    first, second = (source.activity(uuid(0)) for _ in range(2))
    assert first.errors == (ReadingError("tensor_active", "not_supported"),)
    assert second.errors == ()
    assert first.tensor_active_ratio is second.tensor_active_ratio is None
    assert second.sm_active_ratio == pytest.approx(0.008)
    assert standin.count("gpm.5", gpu=0) == 1


def test_gpm_without_pcie_metrics_leaves_pcie_to_the_other_call(source: NvmlSource, standin: StandIn) -> None:
    standin.say("0 gpm.20 error=3", "0 gpm.21 error=3")
    activity = source.activity(uuid(0))
    assert activity.errors == ()
    assert activity.pcie_transmit_bytes_per_second == 680_000


@pytest.mark.parametrize(
    ("code", "kind"), [(3, "not_supported"), (999, "unknown"), (2, "not_supported")], ids=["3", "999", "2"]
)
def test_a_field_whose_own_code_is_an_error_is_absent_though_the_call_succeeds(
    source: NvmlSource, standin: StandIn, code: int, kind: str
) -> None:
    # The value beside the code is 0: published, it would be a GPU that draws nothing.
    standin.say(f"0 field.186.0 error={code}")
    sample = source.sample(uuid(0))
    assert sample.power_instant_watts is None
    assert sample.errors == (ReadingError("power_instant", kind),)
    assert sample.power_watts == pytest.approx(122.631)


def test_what_never_changes_is_asked_until_it_is_answered_and_not_again(source: NvmlSource, standin: StandIn) -> None:
    standin.say("0 nvmlDeviceGetMaxClockInfo.1 value=E999,1980")
    first, second, third = (source.condition(uuid(0)) for _ in range(3))
    assert first.sm_clock_max_hertz is None
    assert first.errors == (ReadingError("sm_clock_max", "unknown"),)
    assert second.sm_clock_max_hertz == third.sm_clock_max_hertz == 1980e6
    assert standin.count("nvmlDeviceGetMaxClockInfo.1", gpu=0) == 2


def test_every_reading_can_fail_alone(standin: StandIn) -> None:
    clock = Clock()
    source = NvmlSource(clock=clock, inventory=NOWHERE)
    source.discover()
    calls = {
        "nvmlDeviceGetTotalEnergyConsumption": "energy",
        "nvmlDeviceGetPowerUsage": "power",
        "nvmlDeviceGetFieldValues": "power_instant",
        "nvmlDeviceGetSamples.0": "power_samples",
        "nvmlDeviceGetUtilizationRates": "utilization",
        "nvmlDeviceGetClockInfo.1": "sm_clock",
        "nvmlDeviceGetCurrentClocks*": "event_reasons",
        "nvmlGpm*": "gpm",
        "nvmlDeviceGetCurrPcieLinkGeneration": "link_generation",
        "nvmlDeviceGetMaxPcieLinkGeneration": "link_generation_max",
        "nvmlDeviceGetCurrPcieLinkWidth": "link_width",
        "nvmlDeviceGetMaxPcieLinkWidth": "link_width_max",
        "nvmlDeviceGetEnforcedPowerLimit": "limit_enforced",
        "nvmlDeviceGetPowerManagementLimit": "limit_requested",
        "nvmlDeviceGetPowerManagementDefaultLimit": "limit_default",
        "nvmlDeviceGetPowerManagementLimitConstraints": "limit_range",
        "nvmlDeviceGetMemoryInfo*": "memory",
        "nvmlDeviceGetTemperature*": "temperature",
        "nvmlDeviceGetComputeRunningProcesses*": "processes",
    }
    for call, reading in calls.items():
        standin.forget()
        standin.say(f"0 {call} error=10")
        clock.now += 100
        errors = [*source.sample(uuid(0)).errors, *source.activity(uuid(0)).errors, *source.condition(uuid(0)).errors]
        assert errors == [ReadingError(reading, "timeout")], call
    standin.forget()
    clock.now += 100
    errors = [*source.sample(uuid(0)).errors, *source.activity(uuid(0)).errors, *source.condition(uuid(0)).errors]
    assert errors == [], "and all of them come back"


@pytest.mark.parametrize(("code", "kind"), [(15, "gpu_is_lost"), (16, "reset_required")])
def test_after_a_gpu_is_lost_nothing_more_is_asked_of_it(
    source: NvmlSource, standin: StandIn, code: int, kind: str
) -> None:
    standin.say(f"0 * error={code}")
    with pytest.raises(GpuLostError) as lost:
        source.sample(uuid(0))
    assert lost.value.kind == kind
    before = {key: n for key, n in standin.counts().items() if key[0] == "0"}
    for visit in (source.sample, source.activity, source.condition):
        with pytest.raises(GpuLostError):
            visit(uuid(0))
    assert {key: n for key, n in standin.counts().items() if key[0] == "0"} == before
    assert source.sample(uuid(1)).power_watts is not None
    assert source.activity(uuid(1)).errors == ()
    assert source.condition(uuid(1)).errors == ()


def test_a_loss_in_the_middle_of_a_visit_ends_the_visit(source: NvmlSource, standin: StandIn) -> None:
    standin.say("0 nvmlDeviceGetPowerUsage error=15")
    with pytest.raises(GpuLostError):
        source.sample(uuid(0))
    assert standin.count("nvmlDeviceGetUtilizationRates", gpu=0) == 0


def test_a_loss_told_by_a_field_or_a_gpm_call_is_a_loss_too(source: NvmlSource, standin: StandIn) -> None:
    standin.say("0 field.186.0 error=15", "1 nvmlGpmSampleGet error=15")
    with pytest.raises(GpuLostError):
        source.sample(uuid(0))
    with pytest.raises(GpuLostError):
        source.activity(uuid(1))


def test_a_gpu_that_needs_a_reset_is_still_listed(source: NvmlSource, standin: StandIn) -> None:
    standin.say("0 * error=16", f"0 nvmlDeviceGetUUID value={uuid(0)}", '0 nvmlDeviceGetName value="NVIDIA H200"')
    standin.say(f"0 nvmlDeviceGetPciInfo value={bus_id(0)}", "0 nvmlDeviceGetHandleByIndex value=0")
    assert [identity.uuid for identity in source.discover()] == [uuid(0), uuid(1)]
    with pytest.raises(GpuLostError) as lost:
        source.sample(uuid(0))
    assert lost.value.kind == "reset_required"
    assert "reset" in str(lost.value)


def test_a_lost_gpu_is_read_again_once_it_is_listed_as_well(source: NvmlSource, standin: StandIn) -> None:
    standin.say("0 nvmlDeviceGetPowerUsage error=15")
    with pytest.raises(GpuLostError):
        source.sample(uuid(0))
    standin.forget()
    source.discover()
    assert source.sample(uuid(0)).power_watts is not None


def test_a_gpu_that_is_lost_before_it_is_identified_is_left_out(source: NvmlSource, standin: StandIn) -> None:
    standin.say("0 * error=15")
    assert [identity.uuid for identity in source.discover()] == [uuid(1)]
    with pytest.raises(GpuLostError) as lost:
        source.sample(uuid(0))
    assert lost.value.kind == "gpu_not_found"


def test_the_failure_of_an_event_set_is_not_taken_for_the_loss_of_the_gpu_that_is_visited(
    source: NvmlSource, standin: StandIn
) -> None:
    standin.say("- nvmlEventSetWait_v2 error=15")
    condition = source.condition(uuid(0))
    assert condition.errors == (ReadingError("xid_errors", "unknown"),)
    assert condition.xid_errors is None


def test_without_xid_events_there_is_no_count(standin: StandIn) -> None:
    standin.say("0 nvmlDeviceRegisterEvents error=3")
    source = NvmlSource(inventory=NOWHERE)
    source.discover()
    first, second = source.condition(uuid(0)), source.condition(uuid(0))
    assert first.xid_errors is None
    assert first.errors == (ReadingError("xid_errors", "not_supported"),)
    assert second.errors == ()
    assert source.condition(uuid(1)).xid_errors == 0


@pytest.mark.parametrize(
    ("code", "kind"), [(1, "uninitialized"), (9, "driver_not_loaded"), (18, "lib_rm_version_mismatch")]
)
def test_a_library_that_is_gone_is_not_a_lost_gpu(source: NvmlSource, standin: StandIn, code: int, kind: str) -> None:
    standin.say(f"0 nvmlDeviceGetPowerUsage error={code}")
    with pytest.raises(SourceError) as failed:
        source.sample(uuid(0))
    assert not isinstance(failed.value, GpuLostError)
    assert failed.value.kind == kind


def test_unknown_error_on_every_call_is_the_source_when_the_library_itself_answers_nothing(
    source: NvmlSource, standin: StandIn
) -> None:
    # What a container sees after 'systemctl daemon-reload' on its host.
    standin.say("* * error=999", "- nvmlDeviceGetCount error=999")
    with pytest.raises(SourceError) as failed:
        source.sample(uuid(0))
    assert not isinstance(failed.value, GpuLostError)
    assert failed.value.kind == "unknown"
    assert "daemon-reload" in str(failed.value)


def test_unknown_error_on_every_call_is_one_gpu_when_the_library_still_answers(
    source: NvmlSource, standin: StandIn
) -> None:
    standin.say("0 * error=999")
    with pytest.raises(GpuLostError) as lost:
        source.sample(uuid(0))
    assert lost.value.kind == "unknown"
    assert source.sample(uuid(1)).power_watts is not None


def test_the_first_call_alone_after_everything_else_was_refused_does_not_make_a_gpu_lost(
    source: NvmlSource, standin: StandIn
) -> None:
    # A board that tells its utilisation and nothing else, and once not even that.
    standin.say("0 * error=3", "0 nvmlDeviceGetUtilizationRates value=35:0,E999,36:0")
    samples = [source.sample(uuid(0)) for _ in range(3)]
    assert [s.utilization_ratio for s in samples] == [pytest.approx(0.35), None, pytest.approx(0.36)]


def test_two_gpus_with_one_uuid_are_named_by_their_bus(standin: StandIn) -> None:
    standin.say("* nvmlDeviceGetUUID value=GPU-11111111-1111-1111-1111-111111111111")
    assert [i.uuid for i in NvmlSource(inventory=NOWHERE).discover()] == [bus_id(0), bus_id(1)]


@pytest.mark.parametrize(
    "line", ["value=GPU-00000000-0000-0000-0000-000000000000", 'value=""', "error=3"], ids=["zero", "empty", "refused"]
)
def test_a_gpu_without_a_uuid_is_named_by_its_bus(standin: StandIn, line: str) -> None:
    standin.say(f"0 nvmlDeviceGetUUID {line}")
    source = NvmlSource(inventory=NOWHERE)
    assert [i.uuid for i in source.discover()] == [bus_id(0), uuid(1)]
    assert source.sample(bus_id(0)).power_watts is not None


def test_a_gpu_with_neither_uuid_nor_bus_is_named_by_its_index(standin: StandIn) -> None:
    standin.say("0 nvmlDeviceGetUUID error=3", "0 nvmlDeviceGetPciInfo error=3")
    assert [i.uuid for i in NvmlSource(inventory=NOWHERE).discover()] == ["index-0", uuid(1)]


def test_an_unknown_error_at_the_uuid_leaves_the_gpu_out_and_gives_it_no_other_name(standin: StandIn) -> None:
    # A second identity for a GPU that has one would be a second GPU for whoever counts.
    standin.say("0 nvmlDeviceGetUUID error=999")
    assert [i.uuid for i in NvmlSource(inventory=NOWHERE).discover()] == [uuid(1)]


GARBLED = {
    "of zeros": "GPU-00000000-0000-0000-0000-000000000000",
    "of ones": "GPU-ffffffff-ffff-ffff-ffff-ffffffffffff",
    "empty": '""',
    "not supported": "E3",
    "no text": "GPU-?",
    "another's": uuid(1),
    "unknown": "E999",
    "timeout": "E10",
}


@pytest.mark.parametrize("told", GARBLED.values(), ids=GARBLED)
@pytest.mark.parametrize("reopened", [False, True], ids=["open", "opened anew"])
def test_a_gpu_that_was_met_is_who_it_was_though_it_garbles_its_uuid_once(
    source: NvmlSource, standin: StandIn, told: str, *, reopened: bool
) -> None:
    # Another name would be another GPU, and the one that was there would be missed by whoever is paged.
    standin.say(f"0 nvmlDeviceGetUUID value={told},{uuid(0)}")
    if reopened:
        source.close()
    for _ in range(3):
        identities = source.discover()
        assert [i.uuid for i in identities] == [uuid(0), uuid(1)]
        assert [i.pci_bus_id for i in identities] == [bus_id(0), bus_id(1)]
        assert source.sample(uuid(0)).power_watts is not None


def test_a_gpu_that_tells_neither_its_uuid_nor_its_bus_once_is_who_it_was(source: NvmlSource, standin: StandIn) -> None:
    standin.say(f"0 nvmlDeviceGetUUID value=E3,{uuid(0)}", f"0 nvmlDeviceGetPciInfo value=E999,{bus_id(0)}")
    for _ in range(2):
        assert [(i.uuid, i.pci_bus_id) for i in source.discover()] == [(uuid(0), bus_id(0)), (uuid(1), bus_id(1))]


def test_a_gpu_that_was_met_garbles_its_uuid_at_another_index_and_is_who_it_was(
    source: NvmlSource, standin: StandIn
) -> None:
    standin.say("- order value=1:0", "* nvmlDeviceGetUUID error=3")
    assert [(i.index, i.uuid) for i in source.discover()] == [(0, uuid(1)), (1, uuid(0))]


def test_another_card_in_a_place_is_another_gpu(source: NvmlSource, standin: StandIn) -> None:
    standin.say(f"0 nvmlDeviceGetUUID value={uuid(7)}")
    assert [i.uuid for i in source.discover()] == [uuid(7), uuid(1)]
    # And who is met there from now on is that one.
    standin.say("0 nvmlDeviceGetUUID error=3")
    assert [i.uuid for i in source.discover()] == [uuid(7), uuid(1)]


def test_cards_that_change_places_keep_their_names(source: NvmlSource, standin: StandIn) -> None:
    standin.say(f"0 nvmlDeviceGetUUID value={uuid(1)}", f"1 nvmlDeviceGetUUID value={uuid(0)}")
    assert [(i.uuid, i.pci_bus_id) for i in source.discover()] == [(uuid(1), bus_id(0)), (uuid(0), bus_id(1))]


def test_no_two_gpus_have_one_name_though_one_took_the_place_of_the_other(source: NvmlSource, standin: StandIn) -> None:
    # GPU 0 was moved to place 1, and what is in its place now tells nothing: it cannot be called GPU 0 as well.
    standin.say("0 nvmlDeviceGetUUID error=3", f"1 nvmlDeviceGetUUID value={uuid(0)}")
    assert [i.uuid for i in source.discover()] == [bus_id(0), uuid(0)]


def test_a_gpu_whose_uuid_is_told_later_than_its_place_has_its_uuid_from_then_on(standin: StandIn) -> None:
    standin.say(f"0 nvmlDeviceGetUUID value=E3,{uuid(0)}")
    source = NvmlSource(inventory=NOWHERE)
    assert [i.uuid for i in source.discover()] == [bus_id(0), uuid(1)]
    for _ in range(2):
        assert [i.uuid for i in source.discover()] == [uuid(0), uuid(1)]


def test_a_name_that_is_no_text_is_left_blank(standin: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    def name(handle: object) -> str:
        return b"\xff\xfe".decode()

    monkeypatch.setattr(pynvml, "nvmlDeviceGetName", name)
    identity = NvmlSource(inventory=NOWHERE).discover()[0]
    assert (identity.uuid, identity.name) == (uuid(0), "")


def test_a_binding_without_a_call_is_as_a_driver_without_it(
    source: NvmlSource, standin: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(pynvml, "nvmlDeviceGetTemperatureV", raising=False)
    condition = source.condition(uuid(0))
    assert condition.temperature_celsius == 36
    assert condition.errors == ()


def test_the_mismatch_error_of_the_binding_is_as_a_missing_function(
    source: NvmlSource, standin: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    # It is no NVMLError, so that "except NVMLError" lets it through.
    def processes(handle: object) -> list[object]:
        raise pynvml.NVMLLibraryMismatchError("too old")

    monkeypatch.setattr(pynvml, "nvmlDeviceGetComputeRunningProcesses", processes)
    standin.say("* nvmlDeviceGetComputeRunningProcesses_v2 value=17:1024")
    condition = source.condition(uuid(0))
    assert condition.processes is not None
    assert [p.pid for p in condition.processes] == [17]


def test_the_structure_for_gpm_is_the_size_that_nvml_knows() -> None:
    # 24 bytes of head, then one entry of 40 bytes for each metric there is.
    assert ctypes.sizeof(pynvml.c_nvmlGpmMetricsGet_t) == 24 + 40 * pynvml.NVML_GPM_METRIC_MAX


def test_eight_gpus_are_listed_in_the_librarys_order(standin: StandIn) -> None:
    standin.say(*h200(8).splitlines(), "- order value=2:0:1:7:6:5:4:3")
    identities = NvmlSource(inventory=NOWHERE).discover()
    assert [i.uuid for i in identities] == [uuid(n) for n in (2, 0, 1, 7, 6, 5, 4, 3)]
    assert [i.index for i in identities] == list(range(8))
    assert {i.p2p_peers for i in identities} == {7}
