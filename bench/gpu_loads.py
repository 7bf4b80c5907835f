"""Loads of known kind for one real GPU, with PyTorch. Each runs until the time is over.

Usage: ``python bench/gpu_loads.py KIND SECONDS`` — needs PyTorch with CUDA, and is used by ``acceptance.py``.
"""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

import torch

DEVICE = "cuda:0"
GIB = 1 << 30


def _until(deadline: float, step: Callable[[], object], batch: int = 16) -> None:
    """Keep a bounded queue of work ahead of the GPU."""
    while time.monotonic() < deadline:
        for _ in range(batch):
            step()
        torch.cuda.synchronize()


def idle_context(deadline: float) -> None:
    """A CUDA context and nothing else."""
    torch.zeros(1, device=DEVICE)
    time.sleep(max(0.0, deadline - time.monotonic()))


def spin(deadline: float) -> None:
    """One thread that spins, as a waiting collective does."""
    _until(deadline, lambda: torch.cuda._sleep(200_000_000), batch=4)  # noqa: SLF001 - the one spinning kernel there is


def launch_bound(deadline: float) -> None:
    """Tiny kernels, one after the other from Python."""
    x = torch.zeros(64, device=DEVICE)

    def step() -> None:
        x.add_(1.0)
        time.sleep(20e-6)

    _until(deadline, step, batch=2000)


def pcie_copy(deadline: float) -> None:
    """Pinned memory to the GPU."""
    host = torch.empty(GIB, dtype=torch.uint8, pin_memory=True)
    device = torch.empty(GIB, dtype=torch.uint8, device=DEVICE)
    _until(deadline, lambda: device.copy_(host, non_blocking=True))


def dram_copy(deadline: float) -> None:
    """Device memory to device memory."""
    a = torch.empty(4 * GIB, dtype=torch.uint8, device=DEVICE)
    b = torch.empty_like(a)
    _until(deadline, lambda: b.copy_(a))


def _product() -> Callable[[], object]:
    a = torch.randn(8192, 8192, dtype=torch.bfloat16, device=DEVICE)
    b = torch.randn(8192, 8192, dtype=torch.bfloat16, device=DEVICE)
    out = torch.empty_like(a)
    return lambda: torch.mm(a, b, out=out)


def gemm(deadline: float) -> None:
    """Large matrix products."""
    _until(deadline, _product())


def _bursts(deadline: float, busy: float, period: float) -> None:
    step = _product()
    while (start := time.monotonic()) < deadline:
        _until(start + busy, step, batch=1)
        time.sleep(max(0.0, start + period - time.monotonic()))


def burst_5(deadline: float) -> None:
    """25 ms of matrix product every 500 ms."""
    _bursts(deadline, 0.025, 0.5)


def burst_10(deadline: float) -> None:
    """50 ms of matrix product every 500 ms."""
    _bursts(deadline, 0.050, 0.5)


def burst_50(deadline: float) -> None:
    """100 ms of matrix product every 200 ms."""
    _bursts(deadline, 0.100, 0.2)


def decode(deadline: float) -> None:
    """Batch 8 through 32 layers of 8192 x 8192, replayed as a CUDA graph: what a decode step looks like."""
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
    _until(deadline, graph.replay)


LOADS: dict[str, Callable[[float], None]] = {
    f.__name__: f
    for f in (idle_context, spin, launch_bound, pcie_copy, dram_copy, gemm, burst_5, burst_10, burst_50, decode)
}

if __name__ == "__main__":
    kind, seconds = sys.argv[1], float(sys.argv[2])
    LOADS[kind](time.monotonic() + seconds)
