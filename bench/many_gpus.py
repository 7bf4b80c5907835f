"""Does reading every GPU of this host at once go well? Starts the reader over real NVML again and again.

Usage: ``python -m bench.many_gpus [--times 6] [--seconds 5]``. Needs NVIDIA GPUs, best several. Each time is a process
of its own, so that a crash inside the driver's library is counted and ends nothing else. Exits 1 when there was one.
"""

from __future__ import annotations

import argparse
import asyncio
import faulthandler
import subprocess
import sys

from wattline.gpus.nvml import NvmlSource
from wattline.gpus.reader import GpuReader
from wattline.readings import GpuActivity, GpuSample, Reading


async def read(seconds: float) -> None:
    """Read all GPUs for a while and say how many readings came."""
    readings: list[Reading] = []
    reader = GpuReader(NvmlSource(), readings.append)
    await reader.start()
    await asyncio.sleep(seconds)
    await reader.stop()
    samples = sum(isinstance(r, GpuSample) for r in readings)
    activities = sum(isinstance(r, GpuActivity) and r.sm_active_ratio is not None for r in readings)
    print(f"{samples} samples and {activities} activities of {len(reader.identities)} GPUs")


def main() -> int:
    """Read, several times over."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--times", type=int, default=6)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        faulthandler.enable()
        asyncio.run(read(options.seconds))
        return 0
    codes = []
    for _ in range(options.times):
        command = [sys.executable, "-m", "bench.many_gpus", "--child", "--seconds", str(options.seconds)]
        codes.append(subprocess.run(command, check=False).returncode)
    print(f"exit codes: {codes}")
    return 0 if not any(codes) else 1


if __name__ == "__main__":
    sys.exit(main())
