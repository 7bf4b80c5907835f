"""Noise that is the same at every run: of one seed, a moment has one value, and its integral is exact."""

from __future__ import annotations

import random
from itertools import accumulate
from math import exp, floor, sqrt

CELL_SECONDS = 0.02
"""The noise is constant within a cell. A driver buffers power samples at about this pace."""
_CELLS = 4099
"""82 s, and a prime, so that no reading schedule falls into step with the repetition."""
_FAST_SECONDS = 0.04
_SLOW_SECONDS = 4.0
_SLOW_SHARE = 0.1
"""Share of the variance that is slow: one-second means of a steadily loaded H200 vary by a fifth of what the
instantaneous power does."""
_REACH = 2.5
"""Standard deviations: no cell lies further out, so that power never falls below zero."""


def seeded(seed: int, *parts: object) -> random.Random:
    """A generator of its own for one part of the simulation."""
    return random.Random(":".join(map(str, (seed, *parts))))  # noqa: S311 - a simulation, not a secret


class Noise:
    """Zero mean, standard deviation just below one, within 2.5 either way; correlated over 40 ms and over 4 s."""

    def __init__(self, rng: random.Random) -> None:
        fast = _autoregressive(rng, _FAST_SECONDS)
        slow = _autoregressive(rng, _SLOW_SECONDS)
        weight = sqrt(1.0 - _SLOW_SHARE)
        raw = [weight * a + sqrt(_SLOW_SHARE) * b for a, b in zip(fast, slow, strict=True)]
        mean = sum(raw) / _CELLS
        clipped = [min(max(value - mean, -_REACH), _REACH) for value in raw]
        rest = sum(clipped) / _CELLS
        self._values = tuple(value - rest for value in clipped)
        self._sums = (0.0, *accumulate(self._values))

    def cell(self, number: int) -> float:
        """The value within the cell with this number."""
        return self._values[number % _CELLS]

    def at(self, t: float) -> float:
        """The value at ``t`` seconds."""
        return self.cell(floor(t / CELL_SECONDS))

    def integral(self, t: float) -> float:
        """The integral from 0 to ``t``, in seconds."""
        number = floor(t / CELL_SECONDS)
        place = number % _CELLS
        return CELL_SECONDS * self._sums[place] + (t - number * CELL_SECONDS) * self._values[place]


def _autoregressive(rng: random.Random, seconds: float) -> list[float]:
    keep = exp(-CELL_SECONDS / seconds)
    push = sqrt(1.0 - keep * keep)
    value = rng.gauss(0.0, 1.0)
    values = []
    for _ in range(_CELLS):
        value = keep * value + push * rng.gauss(0.0, 1.0)
        values.append(value)
    return values
