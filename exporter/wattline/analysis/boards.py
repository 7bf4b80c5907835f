"""What a board can do at most, by its NVML name: to tell how much of it is used. A board that is not here is unknown.

Numbers are NVIDIA's own, from the data sheet of each board (nvidia.com, "NVIDIA <board> Tensor Core GPU Datasheet"):
dense matrix operations, without sparsity, and the bandwidth of the memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache


@dataclass(frozen=True, slots=True)
class Board:
    """Peaks of one board."""

    name: str
    """Part of the name that NVML gives (nvmlDeviceGetName)."""
    bf16_flops: float
    """Dense bf16 operations a second."""
    fp8_flops: float | None
    """Dense fp8 operations a second; ``None``: the board has none."""
    bytes_per_second: float
    """Of its memory."""


_T, _G = 1e12, 1e9
BOARDS: tuple[Board, ...] = (
    Board("H200 NVL", 835.5 * _T, 1671 * _T, 4800 * _G),
    Board("H200", 989.5 * _T, 1979 * _T, 4800 * _G),
    Board("H100 NVL", 835.5 * _T, 1671 * _T, 3900 * _G),
    Board("H100 PCIe", 756 * _T, 1513 * _T, 2000 * _G),
    Board("H100 80GB HBM3", 989.5 * _T, 1979 * _T, 3350 * _G),
    Board("B200", 2250 * _T, 4500 * _T, 8000 * _G),
    Board("A100-SXM4-80GB", 312 * _T, None, 2039 * _G),
    Board("A100 80GB PCIe", 312 * _T, None, 1935 * _G),
    Board("A100-SXM4-40GB", 312 * _T, None, 1555 * _G),
    Board("A100-PCIE-40GB", 312 * _T, None, 1555 * _G),
    Board("A30", 165 * _T, None, 933 * _G),
    Board("A10", 125 * _T, None, 600 * _G),
    Board("L40S", 362 * _T, 733 * _T, 864 * _G),
    Board("L40", 181 * _T, 362 * _T, 864 * _G),
    Board("L4", 121 * _T, 242 * _T, 300 * _G),
)
"""The first whose name is part of NVML's is meant: ``H200 NVL`` stands before ``H200``."""


@lru_cache(maxsize=64)
def board(name: str) -> Board | None:
    """The board of that NVML name; ``None`` when its peaks are not known here."""
    words = f"{name} ".replace("-", " ")
    return next((b for b in BOARDS if f" {b.name.replace('-', ' ')} " in f" {words}"), None)
