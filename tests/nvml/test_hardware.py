"""Kinds of hardware that answer only some calls: what they tell is read, and nothing else is invented."""

from __future__ import annotations

import pytest

from tests.nvml.reading import NOWHERE
from tests.nvml.standin import StandIn, bus_id, uuid
from wattline.gpus.nvml import NvmlSource
from wattline.gpus.source import SourceError
from wattline.readings import GpuActivity, GpuCondition, GpuIdentity, GpuProcess, GpuSample


def read(standin: StandIn, *lines: str) -> tuple[GpuIdentity, GpuSample, GpuActivity, GpuCondition]:
    """Read GPU 0, first in a way that finds out what is not supported, then as for the rest of its life."""
    standin.say(*lines)
    source = NvmlSource(inventory=NOWHERE)
    identity = source.discover()[0]
    for visit in (source.sample, source.activity, source.condition):
        visit(identity.uuid)
    readings = source.sample(identity.uuid), source.activity(identity.uuid), source.condition(identity.uuid)
    assert [reading.errors for reading in readings] == [(), (), ()], "nothing fails: it is not there"
    return identity, *readings


def only(*lines: str) -> list[str]:
    """A GPU that answers nothing but its identity and these."""
    base = [f"0 nvmlDeviceGetUUID value={uuid(0)}", f"0 nvmlDeviceGetPciInfo value={bus_id(0)}"]
    return ["0 * error=3", "0 nvmlDeviceGetHandleByIndex value=0", *base, *(f"0 {line}" for line in lines)]


def test_a_gpu_with_unified_memory_has_no_memory_of_its_own(standin: StandIn) -> None:
    identity, sample, _, condition = read(
        standin,
        *only(
            'nvmlDeviceGetName value="NVIDIA GB10"',
            "nvmlDeviceGetUtilizationRates value=0:0",
            "nvmlDeviceGetPowerUsage value=11170",
            "nvmlDeviceGetTemperature.0 value=35",
        ),
    )
    assert identity.unified_memory is True
    assert condition.memory_used_bytes is condition.memory_total_bytes is None
    assert condition.limit_enforced_watts is None
    assert condition.temperature_celsius == 35
    assert sample.power_watts == pytest.approx(11.17)
    assert sample.utilization_ratio == 0


def test_wsl2_memory_comes_from_the_old_call_when_the_new_one_fails(standin: StandIn) -> None:
    identity, _, _, condition = read(
        standin,
        "0 nvmlDeviceGetMemoryInfo_v2 error=999",
        "0 nvmlDeviceGetMemoryInfo value=17171480576:15058251776:2113228800",
        "0 nvmlDeviceGetComputeRunningProcesses value=79:18446744073709551615",
    )
    assert condition.memory_total_bytes == 17171480576
    assert condition.memory_used_bytes == 2113228800
    assert condition.processes == (GpuProcess(79, None),)
    assert identity.unified_memory is False


def test_reserved_memory_is_not_used_memory_where_the_driver_tells_them_apart(standin: StandIn) -> None:
    mebi = 2**20
    _, _, _, condition = read(
        standin,
        f"0 nvmlDeviceGetMemoryInfo_v2 value={23028 * mebi}:{513 * mebi}:{11067 * mebi}:{11448 * mebi}",
        f"0 nvmlDeviceGetMemoryInfo value={23028 * mebi}:{11067 * mebi}:{11961 * mebi}",
    )
    assert condition.memory_used_bytes == 11448 * mebi
    assert standin.count("nvmlDeviceGetMemoryInfo", gpu=0) == 0


def test_a_gpu_in_mig_mode_has_power_and_memory_and_no_utilization(standin: StandIn) -> None:
    identity, sample, _, condition = read(
        standin,
        "0 nvmlDeviceGetMigMode value=1:1",
        "0 nvmlDeviceGetUtilizationRates error=3",
        "0 nvmlDeviceGetMemoryInfo_v2 value=42505273344:0:42505273344:0",
    )
    assert identity.mig is True
    assert sample.utilization_ratio is sample.memory_busy_ratio is None
    assert sample.power_watts is not None
    assert condition.memory_total_bytes == 42505273344


def test_instances_of_a_mig_gpu_are_not_enumerated(standin: StandIn) -> None:
    # Enumerating them has crashed exporters at start as soon as a vGPU was defined on one.
    read(standin, "0 nvmlDeviceGetMigMode value=1:1")
    assert not any("Mig" in call for _, call in standin.counts() if call != "nvmlDeviceGetMigMode")


def test_calls_are_asked_again_when_mig_mode_changes(standin: StandIn) -> None:
    standin.say("0 nvmlDeviceGetMigMode value=1:1", "0 nvmlDeviceGetUtilizationRates error=3")
    source = NvmlSource(inventory=NOWHERE)
    source.discover()
    assert source.sample(uuid(0)).utilization_ratio is None
    standin.say("0 nvmlDeviceGetMigMode value=0:0", "0 nvmlDeviceGetUtilizationRates value=50:20")
    assert source.discover()[0].mig is False
    assert source.sample(uuid(0)).utilization_ratio == 0.5


def test_a_vgpu_guest_has_memory_and_utilization_and_no_power(standin: StandIn) -> None:
    identity, sample, activity, condition = read(
        standin,
        *only(
            "nvmlDeviceGetVirtualizationMode value=2",
            "nvmlDeviceGetMemoryInfo value=17179869184:8589934592:8589934592",
            "nvmlDeviceGetUtilizationRates value=40:10",
        ),
    )
    assert identity.virtualization == "vgpu"
    assert identity.has_energy_counter is False
    assert sample.power_watts is sample.energy_joules is sample.sm_clock_hertz is None
    assert sample.event_reasons is None
    assert activity == GpuActivity(t=activity.t, uuid=uuid(0))
    assert condition.memory_used_bytes == 8589934592
    assert sample.utilization_ratio == 0.4


def test_a_laptop_tells_the_enforced_limit_and_not_the_requested_one(standin: StandIn) -> None:
    _, sample, _, condition = read(
        standin,
        "0 nvmlDeviceGetEnforcedPowerLimit value=115000",
        "0 nvmlDeviceGetPowerManagementLimit error=3",
        "0 nvmlDeviceGetPowerManagementDefaultLimit error=3",
        "0 nvmlDeviceGetPowerManagementLimitConstraints error=3",
        "0 nvmlDeviceGetPowerUsage value=57500",
    )
    assert condition.limit_enforced_watts == 115
    assert condition.limit_requested_watts is condition.limit_default_watts is condition.limit_max_watts is None
    assert sample.power_watts == 57.5


def test_a_laptops_moving_limit_is_read_with_its_range(standin: StandIn) -> None:
    _, sample, _, condition = read(
        standin,
        "0 nvmlDeviceGetEnforcedPowerLimit value=35000",
        "0 nvmlDeviceGetPowerManagementDefaultLimit value=35000",
        "0 nvmlDeviceGetPowerManagementLimitConstraints value=5000:95000",
        "0 nvmlDeviceGetPowerUsage value=34800",
    )
    assert (condition.limit_enforced_watts, condition.limit_min_watts, condition.limit_max_watts) == (35, 5, 95)
    assert sample.power_watts == pytest.approx(34.8)


def test_a_gpu_without_any_limit_still_tells_its_power(standin: StandIn) -> None:
    _, sample, _, condition = read(
        standin,
        "0 nvmlDeviceGetPowerUsage value=18000",
        "0 nvmlDeviceGetEnforcedPowerLimit error=3",
        "0 nvmlDeviceGetPowerManagement* error=3",
    )
    assert sample.power_watts == 18
    assert condition.limit_enforced_watts is condition.limit_requested_watts is None
    assert condition.limit_default_watts is condition.limit_min_watts is None


def test_a_gpu_without_an_energy_counter_says_so_and_shows_no_energy(standin: StandIn) -> None:
    identity, sample, _, _ = read(
        standin, "0 nvmlDeviceGetTotalEnergyConsumption error=3", "0 nvmlDeviceGetPowerUsage value=180000"
    )
    assert identity.has_energy_counter is False
    assert sample.energy_joules is None, "0 would be a GPU that used nothing"
    assert sample.power_watts == 180


def test_a_board_that_tells_only_its_utilization_gives_only_that(standin: StandIn) -> None:
    identity, sample, activity, condition = read(
        standin, *only('nvmlDeviceGetName value="Thor"', "nvmlDeviceGetUtilizationRates value=35:0")
    )
    assert identity.name == "Thor"
    assert sample == GpuSample(t=sample.t, uuid=uuid(0), utilization_ratio=0.35, memory_busy_ratio=0.0)
    assert activity == GpuActivity(t=activity.t, uuid=uuid(0))
    assert condition.memory_total_bytes is condition.temperature_celsius is None


def test_a_superchip_is_limited_by_what_is_enforced_not_by_what_is_requested(standin: StandIn) -> None:
    _, _, activity, condition = read(
        standin,
        "0 nvmlDeviceGetEnforcedPowerLimit value=700000",
        "0 nvmlDeviceGetPowerManagementLimit value=900000",
        "0 nvmlDeviceGetPowerManagementDefaultLimit value=900000",
        "0 nvmlDeviceGet*PcieLinkGeneration value=4",
        "0 nvmlDeviceGetCurrPcieLinkGeneration value=4",
        "0 nvmlDeviceGetMaxPcieLinkGeneration value=4",
        "0 nvmlDeviceGetCurrPcieLinkWidth value=1",
        "0 nvmlDeviceGetMaxPcieLinkWidth value=1",
    )
    assert condition.limit_enforced_watts == 700
    assert condition.limit_requested_watts == condition.limit_default_watts == 900
    assert (activity.pcie_link_width, activity.pcie_link_width_max) == (1, 1)


def test_two_boards_of_one_name_have_limits_of_their_own(standin: StandIn) -> None:
    standin.say(
        "* nvmlDeviceGetName value=Tesla_V100",
        "0 nvmlDeviceGetPowerManagementLimitConstraints value=150000:300000",
        "1 nvmlDeviceGetPowerManagementLimitConstraints value=100000:300000",
    )
    source = NvmlSource(inventory=NOWHERE)
    source.discover()
    assert [source.condition(uuid(gpu)).limit_min_watts for gpu in (0, 1)] == [150, 100]


def test_a_container_sees_its_gpus_from_index_0_and_the_uuid_stays(standin: StandIn) -> None:
    standin.say("- nvmlDeviceGetCount value=1", "- order value=1")
    (identity,) = NvmlSource(inventory=NOWHERE).discover()
    assert (identity.index, identity.uuid) == (0, uuid(1))


def test_fans_and_utilization_of_processes_are_not_asked(standin: StandIn) -> None:
    # Fans fail on passively cooled boards; the buffer of process utilisation is garbage where zombies hold the GPU.
    read(standin)
    assert not any("Fan" in call or "ProcessUtilization" in call for _, call in standin.counts())


@pytest.mark.parametrize(
    ("code", "kind", "advice"),
    [
        (9, "driver_not_loaded", "driver is not loaded"),
        (4, "no_permission", "/dev/nvidiactl"),
        (18, "lib_rm_version_mismatch", "reboot"),
        (999, "unknown", "restarted"),
        (3, "not_supported", "not_supported"),
    ],
)
def test_a_library_that_cannot_be_opened_says_why_and_what_to_do(
    standin: StandIn, code: int, kind: str, advice: str
) -> None:
    standin.say(f"- nvmlInit error={code}")
    with pytest.raises(SourceError) as failed:
        NvmlSource(inventory=NOWHERE).discover()
    assert failed.value.kind == kind
    assert advice in str(failed.value)


def test_a_host_without_gpus_is_an_empty_list_and_no_error(standin: StandIn) -> None:
    standin.say("- nvmlDeviceGetCount value=0")
    assert NvmlSource(inventory=NOWHERE).discover() == ()
