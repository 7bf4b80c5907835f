"""What a PCIe link can carry."""

from __future__ import annotations

LANE_BYTES_PER_SECOND = {1: 0.25e9, 2: 0.5e9, 3: 0.985e9, 4: 1.969e9, 5: 3.938e9, 6: 7.563e9, 7: 15.125e9}
"""One lane, one way, by generation: transfer rate after line coding (8b/10b, then 128b/130b, then flits)."""


def link_bytes_per_second(generation: int | None, width: int | None) -> float | None:
    """What a link of this generation and width carries one way; ``None`` when either is not known."""
    lane = LANE_BYTES_PER_SECOND.get(generation or 0)
    return lane * width if lane and width else None
