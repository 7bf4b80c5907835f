"""Does the exporter disturb the load that it watches? Alternating pairs with and without it, in one run.

Usage: ``python -m bench.invisible [--pairs 10] [--seconds 6] [--json FILE]`` — needs one NVIDIA GPU and PyTorch with
CUDA. A decode-like step (batch 8 through 32 layers of 8192 x 8192, one CUDA graph) is replayed and timed on the GPU's
own clock, step by step. Prints the relative difference of the throughput and of the 99th percentile of the step time,
with 95 % confidence intervals over the pairs (Student's t). Changes no setting of the card.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import math
import os
import signal
import statistics
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

import torch

DEVICE = "cuda:0"
PORT = 20087
T_95 = {4: 2.776, 9: 2.262, 11: 2.201, 14: 2.145, 19: 2.093, 24: 2.064, 29: 2.045, 34: 2.032, 39: 2.023}
"""Student's t for 95 %, by degrees of freedom."""


def decode_graph() -> torch.cuda.CUDAGraph:
    """One step of decoding."""
    layers = [torch.randn(8192, 8192, dtype=torch.bfloat16, device=DEVICE) * 0.01 for _ in range(32)]
    x = torch.randn(8, 8192, dtype=torch.bfloat16, device=DEVICE)

    def forward() -> torch.Tensor:
        y = x
        for layer in layers:
            y = y @ layer
        return y

    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        forward()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        forward()
    graph.layers = layers  # kept alive
    return graph


def measure(graph: torch.cuda.CUDAGraph, seconds: float) -> tuple[float, float]:
    """(steps per second, 99th percentile of a step in ms)."""
    times: list[float] = []
    start = time.monotonic()
    while time.monotonic() - start < seconds:
        marks = [torch.cuda.Event(enable_timing=True) for _ in range(65)]
        marks[0].record()
        for mark in marks[1:]:
            graph.replay()
            mark.record()
        torch.cuda.synchronize()
        times += [a.elapsed_time(b) for a, b in itertools.pairwise(marks)]
    rate = len(times) / (time.monotonic() - start)
    return rate, statistics.quantiles(times, n=100)[98]


@contextlib.contextmanager
def exporter() -> Iterator[None]:
    """``wattline serve`` with its default schedule, ready."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-m", "wattline.cli", "serve", "--web.listen-address", f"127.0.0.1:{PORT}"]
    running = subprocess.Popen([*command, "--log.level", "error"], env=environment)
    try:
        deadline = time.monotonic() + 20
        while True:
            with contextlib.suppress(OSError):
                urllib.request.urlopen(f"http://127.0.0.1:{PORT}/-/ready", timeout=1).read()
                break
            if time.monotonic() > deadline:
                raise TimeoutError("the exporter did not become ready")
            time.sleep(0.1)
        yield
    finally:
        running.send_signal(signal.SIGTERM)
        running.wait(10)


def interval(values: list[float]) -> tuple[float, float]:
    """Mean and half the width of its 95 % confidence interval."""
    t = T_95.get(len(values) - 1, 2.0)
    return statistics.mean(values), t * statistics.stdev(values) / math.sqrt(len(values))


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=6.0)
    parser.add_argument("--json", metavar="FILE")
    options = parser.parse_args()
    graph = decode_graph()
    measure(graph, 10.0)  # Warm: clocks and temperature settle.
    pairs = []
    for number in range(options.pairs):
        found: dict[bool, tuple[float, float]] = {}
        for watched in (number % 2 == 0, number % 2 == 1):
            with exporter() if watched else contextlib.nullcontext():
                measure(graph, 1.0)
                found[watched] = measure(graph, options.seconds)
        pairs.append((found[True], found[False]))
        print(f"pair {number + 1}: {found[True][0]:.2f} against {found[False][0]:.2f} steps/s", file=sys.stderr)
    rate, rate_ci = interval([100 * (a[0] / b[0] - 1) for a, b in pairs])
    tail, tail_ci = interval([100 * (a[1] / b[1] - 1) for a, b in pairs])
    print(f"throughput with the exporter: {rate:+.3f} % ± {rate_ci:.3f} (95 %, {len(pairs)} pairs)")
    print(f"p99 step time with the exporter: {tail:+.3f} % ± {tail_ci:.3f}")
    if options.json:
        result = {"throughput_percent": [rate, rate_ci], "p99_percent": [tail, tail_ci], "pairs": pairs}
        Path(options.json).write_text(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
