"""How long do the other GPUs go unread when a driver call of one of them hangs for ever? Needs a C compiler, no GPU.

Usage: ``python -m bench.hanging_gpu [--gpus 8] [--times 3]``. Reads a stand-in host at the intervals of every day, lets
one call of one GPU hang, and tells the longest time by which any reading of any other GPU was late.
"""

from __future__ import annotations

import argparse
import asyncio
import ctypes
import os
import tempfile
import time
from collections import defaultdict
from pathlib import Path

from bench.tables import Table, machine
from tests.nvml.standin import StandIn, build, h200, uuid

HANGING = 3
CALLS = {
    "a sample": "nvmlDeviceGetPowerUsage",
    "an activity": "nvmlGpmSampleGet",
    "a condition": "nvmlDeviceGetEnforcedPowerLimit",
    "the listing": "nvmlDeviceGetMigMode",
    "everything": "nvmlDevice*",
}
WATCH = 34.0
"""Seconds: every kind of reading is due once."""


async def lateness(standin: StandIn, gpus: int, call: str) -> float:
    """Seconds by which the latest sample of the other GPUs came late after one call began to hang."""
    from wattline.gpus.nvml import NvmlSource
    from wattline.gpus.reader import GpuReader
    from wattline.readings import GpuSample, Reading

    arrived: defaultdict[str, list[float]] = defaultdict(list)

    def deliver(reading: Reading) -> None:
        if isinstance(reading, GpuSample):
            arrived[reading.uuid].append(time.monotonic())

    reader = GpuReader(NvmlSource(inventory=Path("/nonexistent"), energy_every=0.0), deliver)
    await reader.start()
    await asyncio.sleep(7)
    standin.say(f"{HANGING} {call} hang=1")
    began = time.monotonic()
    await asyncio.sleep(WATCH)
    standin.forget()
    await reader.stop()
    gaps = [
        later - earlier
        for number in range(gpus)
        if number != HANGING
        for earlier, later in zip(arrived[uuid(number)], arrived[uuid(number)][1:], strict=False)
        if later > began
    ]
    return max(gaps) - 1.0


async def measure(gpus: int, times: int) -> Table:
    """Measure every kind of call."""
    with tempfile.TemporaryDirectory() as folder:
        library = build(Path(folder))
        standin = StandIn(library, Path(folder), h200(gpus, timed=True))
        os.environ |= standin.environment
        ctypes.CDLL(str(library))
        rows = []
        for what, call in CALLS.items():
            found = [await lateness(standin, gpus, call) for _ in range(times)]
            rows.append((what, ", ".join(f"{seconds:.2f}" for seconds in found)))
        return Table(f"One of {gpus} GPUs hangs", ("what hangs", "others late by at most (s)"), rows, machine())


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gpus", type=int, default=8)
    parser.add_argument("--times", type=int, default=3)
    options = parser.parse_args()
    asyncio.run(measure(options.gpus, options.times)).show()


if __name__ == "__main__":
    main()
