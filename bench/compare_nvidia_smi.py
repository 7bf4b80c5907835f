"""Every value of the exporter beside nvidia-smi's, on a real GPU under a real load.

Usage: ``python -m bench.compare_nvidia_smi [--load decode] [--seconds 75] [--save DIR]`` — needs one NVIDIA GPU and
PyTorch with CUDA. Starts a load and ``wattline serve``, and at the end reads both at one moment. ``--save`` keeps the
metrics and nvidia-smi's whole answer.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families
from rich.console import Console
from rich.table import Table

from bench.acceptance import HERE, free_port, process

MIB = 2**20
PAIRS: tuple[tuple[str, dict[str, str], str, float, float], ...] = (
    # metric, its labels, nvidia-smi's field, factor to base units, how far they may differ (share)
    ("wattline_gpu_power_watts", {}, "power.draw.average", 1, 0.05),
    ("wattline_gpu_power_limit_watts", {"limit": "enforced"}, "enforced.power.limit", 1, 0),
    ("wattline_gpu_power_limit_watts", {"limit": "default"}, "power.default_limit", 1, 0),
    ("wattline_gpu_power_limit_watts", {"limit": "requested"}, "power.limit", 1, 0),
    ("wattline_gpu_power_limit_watts", {"limit": "min"}, "power.min_limit", 1, 0),
    ("wattline_gpu_power_limit_watts", {"limit": "max"}, "power.max_limit", 1, 0),
    ("wattline_gpu_utilization_ratio", {}, "utilization.gpu", 0.01, 0.05),
    ("wattline_gpu_memory_busy_ratio", {}, "utilization.memory", 0.01, 0.15),
    ("wattline_gpu_memory_used_bytes", {}, "memory.used", MIB, 0.01),
    ("wattline_gpu_memory_total_bytes", {}, "memory.total", MIB, 0.001),
    ("wattline_gpu_sm_clock_hertz", {"bound": "current"}, "clocks.sm", 1e6, 0.05),
    ("wattline_gpu_sm_clock_hertz", {"bound": "max"}, "clocks.max.sm", 1e6, 0),
    ("wattline_gpu_temperature_celsius", {}, "temperature.gpu", 1, 0.05),
    ("wattline_gpu_pcie_link_generation", {"bound": "current"}, "pcie.link.gen.gpucurrent", 1, 0),
    ("wattline_gpu_pcie_link_generation", {"bound": "max"}, "pcie.link.gen.max", 1, 0),
    ("wattline_gpu_pcie_link_width", {"bound": "current"}, "pcie.link.width.current", 1, 0),
    ("wattline_gpu_pcie_link_width", {"bound": "max"}, "pcie.link.width.max", 1, 0),
)


def smi(fields: list[str]) -> list[str]:
    """nvidia-smi's answers for GPU 0."""
    command = ["nvidia-smi", "-i", "0", f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits"]
    return [
        cell.strip() for cell in subprocess.run(command, check=True, capture_output=True, text=True).stdout.split(",")
    ]


def main() -> int:
    """Compare and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--load", default="decode")
    parser.add_argument("--seconds", type=float, default=75.0)
    parser.add_argument("--save", type=Path)
    options = parser.parse_args()
    address = f"127.0.0.1:{free_port()}"
    serve = ("-m", "wattline.cli", "serve", "--web.listen-address", address, "--log.level", "info")
    with (
        process(sys.executable, str(HERE / "gpu_loads.py"), options.load, str(options.seconds + 60)),
        process(sys.executable, *serve),
    ):
        time.sleep(options.seconds)
        told = smi([field for _, _, field, _, _ in PAIRS])
        text = urllib.request.urlopen(f"http://{address}/metrics").read().decode()
        status = urllib.request.urlopen(f"http://{address}/api/v1/status").read()
        whole = subprocess.run(["nvidia-smi", "-i", "0", "-q"], check=True, capture_output=True, text=True).stdout
    if options.save:
        options.save.mkdir(parents=True, exist_ok=True)
        (options.save / "metrics.prom").write_text(text)
        (options.save / "status.json").write_bytes(status)
        (options.save / "nvidia-smi-q.txt").write_text(whole)
    samples = [s for family in text_string_to_metric_families(text) for s in family.samples]
    table = Table("metric", "labels", "exporter", "nvidia-smi", "holds")
    good = True
    for (name, labels, _, factor, tolerance), cell in zip(PAIRS, told, strict=True):
        own = [s.value for s in samples if s.name == name and labels.items() <= s.labels.items()]
        theirs = None if not cell.replace(".", "").isdigit() else float(cell) * factor
        holds = (not own) == (theirs is None) and (
            not own or theirs is None or abs(own[0] - theirs) <= max(tolerance * abs(theirs), 0.011)
        )
        good &= holds
        shown = ",".join(labels.values())
        table.add_row(
            name, shown, f"{own[0]:g}" if own else "absent", cell if theirs is None else f"{theirs:g}", str(holds)
        )
    disagreement = [s.value for s in samples if s.name == "wattline_gpu_energy_disagreement_ratio"]
    holds = bool(disagreement) and disagreement[0] < 0.02
    table.add_row("energy counter against integrated power", "", f"{disagreement}", "< 0.02", str(holds))
    Console(width=150).print(table)
    return 0 if good and holds else 1


if __name__ == "__main__":
    sys.exit(main())
