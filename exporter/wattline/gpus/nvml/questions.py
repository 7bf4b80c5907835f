"""What is asked of a GPU: a table of readings and the calls that can answer each, best first."""

# ruff: noqa: ANN401 - nvidia-ml-py has no types.

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Any

from wattline.gpus.nvml import calls
from wattline.gpus.nvml.calls import CLOSED, LOST, MEMORY_V2, CallFailedError, call
from wattline.gpus.nvml.names import ARCHITECTURES, VIRTUALIZATION, reason_names
from wattline.gpus.nvml.visit import Attempt, Gpu, Question
from wattline.readings import GpuProcess

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

POWER_INSTANT = 186
POWER_SAMPLES = 0  # NVML_TOTAL_POWER_SAMPLES
CLOCK_SM = 1
SENSOR_GPU = 0
PCIE_TRANSMIT, PCIE_RECEIVE = 0, 1
NVLINK_MAX_LINKS = 36


# Units. Divisions, since 35 * 0.01 is not 0.35.


def from_milli(value: float) -> float:
    """From mW, mJ."""
    return value / 1000


def from_kilo(value: float) -> float:
    """From kB, which are 1000 bytes: at 59 GB/s this agrees with the MiB of GPM."""
    return value * 1000.0


def from_mega(value: float) -> float:
    """From MHz."""
    return value * 1e6


def from_mebi(value: float) -> float:
    """From MiB."""
    return value * 2.0**20


def from_percent(value: float) -> float:
    """From per cent."""
    return value / 100


def _simple(function: str, name: str, unit: Callable[[float], float], *arguments: Any) -> Attempt:
    return lambda gpu: {name: unit(call(function, gpu.handle, *arguments))}


def _power_instant(gpu: Gpu) -> dict[str, Any]:
    return {"power_instant_watts": from_milli(calls.field(gpu.handle, POWER_INSTANT))}


def _power_samples(gpu: Gpu) -> dict[str, Any]:
    # The stamps are wall time. Once the clock was set back, asking for "newer than" the old stamp would give nothing
    # for as long as it was set back by.
    now = time.time_ns() // 1000
    since = gpu.power_samples_until if gpu.power_samples_until < now + 5_000_000 else now
    try:
        found = calls.samples(gpu.handle, POWER_SAMPLES, since)
    except CallFailedError as failed:
        if failed.kind not in {"not_found", "insufficient_size"}:
            raise
        # Nothing new, or the buffer grew between the calls for its size and its content: the next visit has it.
        return {}
    gpu.power_samples_until = max((stamp for stamp, _ in found), default=since)
    return {"power_samples_watts": tuple(from_milli(value) for _, value in found)}


def _utilization(gpu: Gpu) -> dict[str, Any]:
    rates = call("nvmlDeviceGetUtilizationRates", gpu.handle)
    return {"utilization_ratio": from_percent(rates.gpu), "memory_busy_ratio": from_percent(rates.memory)}


def _event_reasons(function: str) -> Attempt:
    return lambda gpu: {"event_reasons": reason_names(call(function, gpu.handle))}


def _limit_range(gpu: Gpu) -> dict[str, Any]:
    least, most = call("nvmlDeviceGetPowerManagementLimitConstraints", gpu.handle)
    return {"limit_min_watts": least / 1000, "limit_max_watts": most / 1000}


def _memory(*version: Any) -> Attempt:
    def ask(gpu: Gpu) -> dict[str, Any]:
        memory = call("nvmlDeviceGetMemoryInfo", gpu.handle, *version)
        return {"memory_used_bytes": float(memory.used), "memory_total_bytes": float(memory.total)}

    return ask


def _processes(function: str) -> Attempt:
    def ask(gpu: Gpu) -> dict[str, Any]:
        running = call(function, gpu.handle)
        # nvidia-ml-py turns "not available" (2^64-1 bytes) into None. PID 0 is no process.
        return {"processes": tuple(GpuProcess(p.pid, p.usedGpuMemory) for p in running if p.pid)}

    return ask


def _named(function: str, name: str, words: Mapping[int, str]) -> Attempt:
    def ask(gpu: Gpu) -> dict[str, Any]:
        number = call(function, gpu.handle)
        return {name: words.get(number, f"unknown_{number}")}

    return ask


def _nvlink(gpu: Gpu) -> dict[str, Any]:
    for link in range(NVLINK_MAX_LINKS):
        try:
            if call("nvmlDeviceGetNvLinkState", gpu.handle, link):
                return {"nvlink_active": True}
        except CallFailedError as failed:
            if link == 0 or failed.kind in LOST | CLOSED:
                raise
            break  # Past the last link of this GPU.
    return {"nvlink_active": False}


def _answers(attempt: Attempt, **values: Any) -> Attempt:
    """Ask only to know that there is an answer."""
    return lambda gpu: values if attempt(gpu) else {}


ENERGY = Question(
    "energy",
    (_simple("nvmlDeviceGetTotalEnergyConsumption", "energy_joules", from_milli),),
    # At the least. See energy_every().
    every=10.0,
)
ENERGY_SHARE = 0.0022
"""Of one CPU, for the energy of all GPUs."""


def energy_every(seconds: float, gpus: int) -> float:
    """How often to read energy: where a call is dear, and there are many GPUs, less often.

    On an H200 the driver spins for 3 to 4 ms until the GPU's own processor has answered: every second for one, every
    10 s for eight.

    Args:
        seconds: that one call takes.
        gpus: how many there are.
    """
    return min(ENERGY.every, float(math.floor(seconds * gpus / ENERGY_SHARE)))


SAMPLE = (
    Question("power", (_simple("nvmlDeviceGetPowerUsage", "power_watts", from_milli),)),
    Question("power_instant", (_power_instant,)),
    # 0.35 ms of a CPU. The buffer holds the last 2.4 s.
    Question("power_samples", (_power_samples,), every=2.0),
    Question("utilization", (_utilization,)),
    Question("sm_clock", (_simple("nvmlDeviceGetClockInfo", "sm_clock_hertz", from_mega, CLOCK_SM),)),
    Question(
        "event_reasons",
        (
            _event_reasons("nvmlDeviceGetCurrentClocksEventReasons"),
            _event_reasons("nvmlDeviceGetCurrentClocksThrottleReasons"),  # Drivers before R535.
        ),
    ),
)

PCIE = tuple(
    # An average over 20 ms, in a call that blocks for as long.
    Question(reading, (_simple("nvmlDeviceGetPcieThroughput", name, from_kilo, direction),))
    for reading, name, direction in (
        ("pcie_transmit", "pcie_transmit_bytes_per_second", PCIE_TRANSMIT),
        ("pcie_receive", "pcie_receive_bytes_per_second", PCIE_RECEIVE),
    )
)
LINK = tuple(
    Question(reading, (_simple(function, f"pcie_{reading}", int),))
    for reading, function in (
        ("link_generation", "nvmlDeviceGetCurrPcieLinkGeneration"),
        ("link_generation_max", "nvmlDeviceGetMaxPcieLinkGeneration"),
        ("link_width", "nvmlDeviceGetCurrPcieLinkWidth"),
        ("link_width_max", "nvmlDeviceGetMaxPcieLinkWidth"),
    )
)

MEMORY = Question(
    "memory",
    (
        _memory(MEMORY_V2),
        _memory(),  # Counts what the driver keeps for itself as used.
    ),
)
CONDITION = (
    Question("limit_enforced", (_simple("nvmlDeviceGetEnforcedPowerLimit", "limit_enforced_watts", from_milli),)),
    Question(
        "limit_default", (_simple("nvmlDeviceGetPowerManagementDefaultLimit", "limit_default_watts", from_milli),)
    ),
    Question("limit_requested", (_simple("nvmlDeviceGetPowerManagementLimit", "limit_requested_watts", from_milli),)),
    Question("limit_range", (_limit_range,)),
    MEMORY,
    Question(
        # 1.4 ms of a CPU.
        "sm_clock_max",
        (_simple("nvmlDeviceGetMaxClockInfo", "sm_clock_max_hertz", from_mega, CLOCK_SM),),
        constant=True,
    ),
    Question(
        "temperature",
        (
            _simple("nvmlDeviceGetTemperatureV", "temperature_celsius", float, SENSOR_GPU),
            _simple("nvmlDeviceGetTemperature", "temperature_celsius", float, SENSOR_GPU),
        ),
    ),
    Question(
        "processes",
        (
            _processes("nvmlDeviceGetComputeRunningProcesses"),
            _processes("nvmlDeviceGetComputeRunningProcesses_v2"),
        ),
    ),
)

IDENTITY = (
    Question("name", (lambda gpu: {"name": call("nvmlDeviceGetName", gpu.handle)},)),
    Question("architecture", (_named("nvmlDeviceGetArchitecture", "architecture", ARCHITECTURES),)),
    Question("virtualization", (_named("nvmlDeviceGetVirtualizationMode", "virtualization", VIRTUALIZATION),)),
    Question("mig", (lambda gpu: {"mig": bool(call("nvmlDeviceGetMigMode", gpu.handle)[0])},), {"mig": False}),
    Question(
        "energy_counter",
        tuple(_answers(attempt, has_energy_counter=True) for attempt in ENERGY.attempts),
        {"has_energy_counter": False},
        every=math.inf,
    ),
    Question(
        "own_memory",
        tuple(_answers(attempt, unified_memory=False) for attempt in MEMORY.attempts),
        {"unified_memory": True},
        every=math.inf,
    ),
    Question("nvlink", (_nvlink,), every=600.0),
)
