"""How far is the mean power from the truth, as a 15 s scrape sees it, while the load comes in bursts?

Usage: ``python -m bench.truth [--seconds 75] [--loads burst_10,burst_50] [--json FILE]``. Needs an NVIDIA GPU and
PyTorch with CUDA; nvitop-exporter is measured too when it is installed. Every source is read once a second; from that,
all fifteen ways to scrape every 15 s are compared with NVML's energy counter over the same time.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import statistics
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING

import pynvml
from prometheus_client.parser import text_string_to_metric_families
from rich.console import Console
from rich.table import Table

from bench.acceptance import HERE, free_port, process

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

SCRAPE = 15
Row = dict[str, float]


def scraped(port: int) -> dict[str, float]:
    """The samples of an exporter for the first GPU, by name."""
    text = urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics").read().decode()
    found: dict[str, float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, sample.value)
    return found


def observe(load: str, seconds: int) -> list[Row]:
    """One row a second of everything that claims to know the power, and the energy counter."""
    pynvml.nvmlInit()
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    ours, nvitop = free_port(), free_port()
    serve = (sys.executable, "-m", "wattline.cli", "serve", "--web.listen-address", f"127.0.0.1:{ours}")
    peer = (sys.executable, "-m", "nvitop_exporter", "--bind-address", "127.0.0.1", "--port", str(nvitop))
    rows: list[Row] = []
    with contextlib.ExitStack() as stack:
        stack.enter_context(process(sys.executable, str(HERE / "gpu_loads.py"), load, str(seconds + 60)))
        stack.enter_context(process(*serve, "--log.level", "error"))
        has_peer = importlib.util.find_spec("nvitop_exporter") is not None
        if has_peer:
            stack.enter_context(process(*peer))
        time.sleep(15)
        start = time.monotonic()
        for second in range(seconds):
            time.sleep(max(0.0, start + second - time.monotonic()))
            joules = pynvml.nvmlDeviceGetTotalEnergyConsumption(handle) / 1e3
            row: Row = {"t": time.monotonic(), "truth_joules": joules}
            field = pynvml.nvmlDeviceGetFieldValues(handle, [(186, 0)])[0]
            row["instant"] = field.value.uiVal / 1e3
            answer = ("nvidia-smi", "-i", "0", "--query-gpu=power.draw", "--format=csv,noheader,nounits")
            if second % 5 == 0:  # A process each: too slow to run it every second for all.
                row["nvidia_smi"] = float(subprocess.run(answer, check=True, capture_output=True, text=True).stdout)
            own = scraped(ours)
            row["our_joules"] = own["wattline_gpu_energy_joules_total"]
            row["our_sum"] = own["wattline_gpu_power_fraction_sum"] * 1.0
            row["our_count"] = own["wattline_gpu_power_fraction_count"]
            row["our_limit"] = own["wattline_gpu_power_limit_watts"]
            if has_peer:
                theirs = scraped(nvitop)
                watts = [v for k, v in theirs.items() if "power_usage" in k and "percent" not in k]
                if watts:
                    row["nvitop"] = watts[0] / 1e3 if watts[0] > 5000 else watts[0]
            rows.append(row)
    return rows


def _mean_of(name: str) -> Callable[[list[Row]], float | None]:
    def mean(rows: list[Row]) -> float | None:
        values = [row[name] for row in rows if name in row]
        return statistics.mean(values) if values else None

    return mean


def _energy(rows: list[Row]) -> float | None:
    return (rows[-1]["our_joules"] - rows[0]["our_joules"]) / (rows[-1]["t"] - rows[0]["t"])


def _histogram(rows: list[Row]) -> float | None:
    count = rows[-1]["our_count"] - rows[0]["our_count"]
    return (rows[-1]["our_sum"] - rows[0]["our_sum"]) / count * rows[0]["our_limit"] if count else None


METHODS: Mapping[str, Callable[[list[Row]], float | None]] = {
    "instantaneous gauge": _mean_of("instant"),
    "nvidia-smi sampling": _mean_of("nvidia_smi"),
    "nvitop-exporter": _mean_of("nvitop"),
    "Wattline, energy delta": _energy,
    "Wattline, power-fraction histogram": _histogram,
}


def errors(rows: list[Row]) -> dict[str, tuple[float, float]]:
    """(mean, greatest) error in percent by method, over all ways to scrape every 15 s."""
    found: dict[str, list[float]] = {name: [] for name in METHODS}
    for phase in range(SCRAPE):
        seen = rows[phase::SCRAPE]
        truth = (seen[-1]["truth_joules"] - seen[0]["truth_joules"]) / (seen[-1]["t"] - seen[0]["t"])
        for name, method in METHODS.items():
            if (mean := method(seen)) is not None:
                found[name].append(100 * abs(mean - truth) / truth)
    return {name: (statistics.mean(e), max(e)) for name, e in found.items() if e}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=int, default=75)
    parser.add_argument("--loads", default="burst_10,burst_50")
    parser.add_argument("--json", metavar="FILE")
    options = parser.parse_args()
    table = Table("load", "as seen by", "mean error %", "greatest error %")
    kept = {}
    for load in options.loads.split(","):
        rows = kept[load] = observe(load, options.seconds)
        for name, (mean, greatest) in errors(rows).items():
            table.add_row(load, name, f"{mean:.2f}", f"{greatest:.2f}")
    Console(width=120).print(table)
    if options.json:
        Path(options.json).write_text(json.dumps(kept))


if __name__ == "__main__":
    main()
