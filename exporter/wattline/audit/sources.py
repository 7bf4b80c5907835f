"""What each exporter of GPUs calls its numbers, one table each."""

from __future__ import annotations

from dataclasses import dataclass

MILLI, PERCENT, MEGA, MIB = 1e-3, 1e-2, 1e6, float(2**20)


@dataclass(frozen=True, slots=True)
class Field:
    """One metric: the field of a reading that it fills, what makes base units of it, and a label it must have."""

    metric: str
    reading: str
    factor: float = 1.0
    where: tuple[str, str] | None = None


@dataclass(frozen=True, slots=True)
class Source:
    """One exporter. Of two metrics for one field the first that a moment has is taken."""

    name: str
    uuid: str
    """The label of the UUID."""
    model: tuple[str, ...]
    fields: tuple[Field, ...]

    @property
    def power(self) -> str:
        """The metric without which there is nothing to judge."""
        return next(f.metric for f in self.fields if f.reading == "power_watts")


WATTLINE = Source(
    name="wattline",
    uuid="uuid",
    model=(),
    fields=(
        Field("wattline_gpu_power_watts", "power_watts"),
        Field("wattline_gpu_energy_joules_total", "energy_joules"),
        Field("wattline_gpu_utilization_ratio", "utilization_ratio"),
        Field("wattline_gpu_power_limit_watts", "limit_enforced_watts", where=("limit", "enforced")),
        Field("wattline_gpu_power_limit_watts", "limit_default_watts", where=("limit", "default")),
        Field("wattline_gpu_memory_used_bytes", "memory_used_bytes"),
        Field("wattline_gpu_sm_active_ratio", "sm_active_ratio"),
        Field("wattline_gpu_tensor_active_ratio", "tensor_active_ratio"),
        Field("wattline_gpu_dram_active_ratio", "dram_active_ratio"),
    ),
)
DCGM = Source(
    name="dcgm-exporter",
    uuid="UUID",
    model=("modelName",),
    fields=(
        Field("DCGM_FI_DEV_POWER_USAGE", "power_watts"),
        Field("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", "energy_joules", MILLI),
        Field("DCGM_FI_DEV_GPU_UTIL", "utilization_ratio", PERCENT),
        Field("DCGM_FI_DEV_ENFORCED_POWER_LIMIT", "limit_enforced_watts"),
        Field("DCGM_FI_DEV_POWER_MGMT_LIMIT", "limit_requested_watts"),
        Field("DCGM_FI_DEV_POWER_MGMT_LIMIT_DEF", "limit_default_watts"),
        Field("DCGM_FI_DEV_FB_USED", "memory_used_bytes", MIB),
        Field("DCGM_FI_DEV_SM_CLOCK", "sm_clock_hertz", MEGA),
        Field("DCGM_FI_PROF_SM_ACTIVE", "sm_active_ratio"),
        Field("DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", "tensor_active_ratio"),
        Field("DCGM_FI_PROF_DRAM_ACTIVE", "dram_active_ratio"),
    ),
)
NVIDIA_GPU_EXPORTER = Source(
    name="nvidia_gpu_exporter",
    uuid="uuid",
    model=(),
    fields=(
        Field("nvidia_smi_power_draw_watts", "power_watts"),
        Field("nvidia_smi_energy_joules_total", "energy_joules"),
        Field("nvidia_smi_utilization_gpu_ratio", "utilization_ratio"),
        Field("nvidia_smi_enforced_power_limit_watts", "limit_enforced_watts"),
        Field("nvidia_smi_power_limit_watts", "limit_requested_watts"),
        Field("nvidia_smi_power_default_limit_watts", "limit_default_watts"),
        Field("nvidia_smi_memory_used_bytes", "memory_used_bytes"),
    ),
)
NVITOP = Source(
    name="nvitop-exporter",
    uuid="uuid",
    model=("devicename",),
    fields=(
        Field("gpu_power_usage_W", "power_watts"),
        Field("gpu_utilization_Percentage", "utilization_ratio", PERCENT),
        Field("gpu_power_limit_W", "limit_enforced_watts"),
        Field("gpu_memory_used_MiB", "memory_used_bytes", MIB),
        Field("gpu_clock_sm_MHz", "sm_clock_hertz", MEGA),
    ),
)
SOURCES = (WATTLINE, DCGM, NVIDIA_GPU_EXPORTER, NVITOP)
"""A GPU that two of them show is read by the first."""

MOST = {"watts": 20_000.0, "ratio": 1.0}
"""The greatest value that can be, by the unit at the end of a reading's name: DCGM writes huge ones for "no value"."""


def plausible(reading: str, value: float) -> bool:
    """Whether the hardware can have meant it."""
    return 0.0 <= value <= MOST.get(reading.rpartition("_")[2], 1e18)
