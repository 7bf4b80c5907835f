"""Readings from raw recordings of one real H200: NVML's answers as they came, one JSON object a line.

Fields: ``t`` seconds, ``label`` what ran, then NVML's own units (mW, mJ, %, MHz, KB/s; GPM in percent and MiB/s).
"""

from __future__ import annotations

import gzip
import json
from typing import TYPE_CHECKING, Any

from wattline.readings import GpuActivity, GpuCondition, GpuIdentity, GpuProcess, GpuSample

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

UUID = "GPU-54de0000-0000-0000-0000-000000000000"
IDENTITY = GpuIdentity(
    uuid=UUID,
    index=0,
    name="NVIDIA H200",
    pci_bus_id="00000000:04:00.0",
    architecture="hopper",
    driver="580.159.04",
    virtualization="passthrough",
    mig=False,
    has_energy_counter=True,
)
REASONS = {0x1: "gpu_idle", 0x4: "sw_power_cap", 0x8: "hw_slowdown", 0x20: "sw_thermal_slowdown"}
MIB = 2**20


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Every object of a compressed recording."""
    with gzip.open(path, "rt") as lines:
        return [json.loads(line) for line in lines]


def condition(t: float, row: dict[str, Any], limit_watts: float = 700.0) -> GpuCondition:
    processes = row.get("procs")
    return GpuCondition(
        t=t,
        uuid=UUID,
        limit_enforced_watts=limit_watts,
        limit_default_watts=700.0,
        limit_requested_watts=limit_watts,
        limit_min_watts=200.0,
        limit_max_watts=700.0,
        memory_used_bytes=row.get("mem_used"),
        memory_total_bytes=row.get("mem_total"),
        sm_clock_max_hertz=1980e6,
        temperature_celsius=row.get("temp_c"),
        processes=None if processes is None else tuple(GpuProcess(int(p[0])) for p in processes if isinstance(p, list)),
    )


def sample(row: dict[str, Any], t: float | None = None) -> GpuSample:
    mask = row["event_reasons"]
    return GpuSample(
        t=row["t"] if t is None else t,
        uuid=UUID,
        power_watts=row["power_mw"] / 1e3,
        power_instant_watts=row["power_instant_mw"] / 1e3,
        energy_joules=row["energy_mj"] / 1e3,
        utilization_ratio=row["util_gpu"] / 100,
        memory_busy_ratio=row["util_mem"] / 100,
        sm_clock_hertz=row["sm_clock_mhz"] * 1e6,
        event_reasons=frozenset(name for bit, name in REASONS.items() if mask & bit),
    )


def activity(row: dict[str, Any], t: float | None = None) -> GpuActivity:
    gpm = row.get("gpm", {})

    def scaled(name: str, factor: float) -> float | None:
        value = gpm.get(name)
        return None if value is None else value * factor

    return GpuActivity(
        t=row["t"] if t is None else t,
        uuid=UUID,
        pcie_transmit_bytes_per_second=scaled("PCIE_TX_PER_SEC", MIB),
        pcie_receive_bytes_per_second=scaled("PCIE_RX_PER_SEC", MIB),
        pcie_link_generation=row.get("gen", 5),
        pcie_link_generation_max=5,
        pcie_link_width=row.get("width", 16),
        pcie_link_width_max=16,
        sm_active_ratio=scaled("SM_UTIL", 0.01),
        tensor_active_ratio=scaled("ANY_TENSOR_UTIL", 0.01),
        dram_active_ratio=scaled("DRAM_BW_UTIL", 0.01),
    )


def every(rows: list[dict[str, Any]], interval: float) -> Iterator[dict[str, Any]]:
    """The rows that a reader with this interval would have seen."""
    due = float("-inf")
    for row in rows:
        if row["t"] >= due:
            due = row["t"] + interval - 1e-3
            yield row
