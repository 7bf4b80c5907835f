"""Wattline beside its peers on a real driver, all at once: CPU in the program and in the kernel, and memory.

Usage: ``python -m bench.real_peers [--seconds 120] [--json FILE]``. Needs an NVIDIA GPU. nvitop-exporter takes part
when it is installed, ``nvidia-smi -l 1`` when it is there. The driver spends nearly all of its time in the kernel.
Changes no setting of the card.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bench.acceptance import free_port
from bench.host import TICKS, Program
from bench.tables import Table

WARM_UP = 30.0
SCRAPE_EVERY = 15.0
SMI_FIELDS = "index,power.draw,enforced.power.limit,utilization.gpu,utilization.memory,memory.used,temperature.gpu"


def spent(pid: int) -> tuple[float, float]:
    """CPU seconds of a process so far: in the program, in the kernel."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) / TICKS, int(fields[12]) / TICKS


def commands() -> dict[str, tuple[list[str], str]]:
    """By name: what is started, and the address that is scraped."""
    ports = [free_port() for _ in range(3)]
    urls = [f"http://127.0.0.1:{port}/metrics" for port in ports]
    serve = [sys.executable, "-m", "wattline", "serve", "--log.level", "error"]
    found = {
        "Wattline": ([*serve, "--web.listen-address", f"127.0.0.1:{ports[0]}"], urls[0]),
        "loop over nvidia-ml-py": ([sys.executable, "-m", "bench.naive_exporter", str(ports[1])], urls[1]),
    }
    if importlib.util.find_spec("nvitop_exporter"):
        nvitop = [sys.executable, "-m", "nvitop_exporter", "--bind-address", "127.0.0.1", "--port", str(ports[2])]
        found["nvitop-exporter"] = (nvitop, urls[2])
    if smi := shutil.which("nvidia-smi"):
        found["nvidia-smi -l 1"] = ([smi, f"--query-gpu={SMI_FIELDS}", "--format=csv", "-l", "1"], "")
    return found


def measure(seconds: float) -> dict[str, dict[str, float]]:
    """What each cost in the same stretch of time."""
    with contextlib.ExitStack() as stack:
        output = Path(stack.enter_context(tempfile.TemporaryDirectory()), "smi.csv")
        running: dict[str, tuple[int, str]] = {}
        for name, (command, url) in commands().items():
            if url:
                program = stack.enter_context(Program(*command, environment={"PYTHONPATH": os.pathsep.join(sys.path)}))
                program.wait_for(url, 60.0)
                running[name] = program.pid, url
            else:
                # It would wait for who reads its pipe.
                told = stack.enter_context(output.open("w"))
                smi = subprocess.Popen(command, stdout=told)
                stack.callback(smi.kill)
                running[name] = smi.pid, url
        time.sleep(WARM_UP)
        before, begun = {name: spent(pid) for name, (pid, _) in running.items()}, time.monotonic()
        while (left := begun + seconds - time.monotonic()) > 0:
            time.sleep(min(SCRAPE_EVERY, left))
            for _, url in running.values():
                if url:
                    subprocess.run([sys.executable, "-c", SCRAPE, url], check=True)
        lasted = time.monotonic() - begun
        found = {}
        for name, (pid, _) in running.items():
            user, kernel = (100 * (b - a) / lasted for a, b in zip(before[name], spent(pid), strict=True))
            status = Path(f"/proc/{pid}/status").read_text()
            resident = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS"))
            found[name] = {"program": user, "kernel": kernel, "cpu": user + kernel, "memory": resident / 1024}
    return found


SCRAPE = "import sys, urllib.request; urllib.request.urlopen(sys.argv[1], timeout=30).read()"


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    found = measure(options.seconds)
    ours = found["Wattline"]["cpu"]
    columns = ("", "% of a core", "in the program", "in the kernel", "over Wattline's", "memory MiB")
    rows = [
        [
            name,
            f"{c['cpu']:.2f}",
            f"{c['program']:.2f}",
            f"{c['kernel']:.2f}",
            f"{c['cpu'] / ours:.1f}",
            f"{c['memory']:.0f}",
        ]
        for name, c in found.items()
    ]
    Table("Beside its peers, on a real driver", columns, rows, f"{options.seconds:.0f} s, all at once").show()
    if options.json:
        options.json.write_text(json.dumps(found, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
