"""Simulated time: real time, faster."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


class SimClock:
    """Seconds of simulated time since this clock was made: it runs ``speed`` times as fast as real time.

    Args:
        speed: simulated seconds per real second, above 0.
        monotonic: the real clock, seconds.

    Raises:
        ValueError: ``speed`` is not above 0.
    """

    def __init__(self, speed: float = 1.0, monotonic: Callable[[], float] = time.monotonic) -> None:
        if not speed > 0.0:
            raise ValueError(f"speed is {speed}: expected a number above 0")
        self.speed = speed
        self._monotonic = monotonic
        self._start = monotonic()

    def now(self) -> float:
        """Simulated seconds since the clock was made."""
        return (self._monotonic() - self._start) * self.speed

    def real_seconds(self, simulated: float) -> float:
        """How long this many simulated seconds take."""
        return simulated / self.speed
