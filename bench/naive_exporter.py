"""What one writes in an afternoon: a loop over nvidia-ml-py that sets gauges every second. A peer for ``bench.peers``.

Usage: ``python -m bench.naive_exporter PORT``.
"""

from __future__ import annotations

import sys
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pynvml
from prometheus_client import Gauge, start_http_server

if TYPE_CHECKING:
    from collections.abc import Callable

READINGS: dict[str, Callable[[Any], float]] = {
    "power_watts": lambda gpu: pynvml.nvmlDeviceGetPowerUsage(gpu) / 1000,
    "power_limit_watts": lambda gpu: pynvml.nvmlDeviceGetEnforcedPowerLimit(gpu) / 1000,
    "energy_joules": lambda gpu: pynvml.nvmlDeviceGetTotalEnergyConsumption(gpu) / 1000,
    "utilization": lambda gpu: pynvml.nvmlDeviceGetUtilizationRates(gpu).gpu,
    "memory_utilization": lambda gpu: pynvml.nvmlDeviceGetUtilizationRates(gpu).memory,
    "memory_used_bytes": lambda gpu: pynvml.nvmlDeviceGetMemoryInfo(gpu).used,
    "temperature_celsius": lambda gpu: pynvml.nvmlDeviceGetTemperature(gpu, pynvml.NVML_TEMPERATURE_GPU),
    "sm_clock_megahertz": lambda gpu: pynvml.nvmlDeviceGetClockInfo(gpu, pynvml.NVML_CLOCK_SM),
    "pcie_sent_kilobytes": lambda gpu: pynvml.nvmlDeviceGetPcieThroughput(gpu, pynvml.NVML_PCIE_UTIL_TX_BYTES),
    "pcie_received_kilobytes": lambda gpu: pynvml.nvmlDeviceGetPcieThroughput(gpu, pynvml.NVML_PCIE_UTIL_RX_BYTES),
}


def main() -> None:
    """Serve until the process is ended."""
    pynvml.nvmlInit()
    gpus = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
    gauges = {name: Gauge(f"gpu_{name}", name, ["gpu"]) for name in READINGS}
    start_http_server(int(sys.argv[1]), "127.0.0.1")
    while True:
        start = time.monotonic()
        for index, gpu in enumerate(gpus):
            for name, read in READINGS.items():
                with suppress(pynvml.NVMLError):
                    gauges[name].labels(str(index)).set(read(gpu))
        time.sleep(max(0.0, start + 1 - time.monotonic()))


if __name__ == "__main__":
    main()
