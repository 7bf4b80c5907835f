"""Amounts that accrued between two readings, kept long enough to be asked for any part of the window."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple


class Span(NamedTuple):
    """``amount`` accrued between ``start`` and ``end`` (seconds on the readings' clock)."""

    start: float
    end: float
    amount: float


class Accrued(NamedTuple):
    """What accrued in a stretch of time, and how many seconds of the stretch are covered by readings."""

    amount: float
    covered: float

    def rate(self) -> float | None:
        """Amount per covered second; ``None`` when nothing is covered."""
        return self.amount / self.covered if self.covered > 0 else None


class Spans:
    """A trailing record of accrued amounts. Time that no pair of readings covers is simply not there.

    Args:
        horizon: seconds to keep.
        max_gap: readings further apart than this (seconds) are not joined: nobody knows what happened in between.
    """

    def __init__(self, horizon: float, max_gap: float) -> None:
        self.horizon = horizon
        self.max_gap = max_gap
        self._spans: deque[Span] = deque()
        self.total = 0.0
        """Everything that ever accrued in a span."""

    def add(self, start: float, end: float, amount: float) -> bool:
        """Record ``amount`` between two readings; false (and nothing recorded) over a gap or a backward clock."""
        if not 0 < end - start <= self.max_gap:
            return False
        self._spans.append(Span(start, end, amount))
        self.total += amount
        while self._spans and self._spans[0].end < end - self.horizon:
            self._spans.popleft()
        return True

    def between(self, start: float, end: float) -> Accrued:
        """What accrued from ``start`` to ``end``; spans that stick out count in proportion."""
        amount = covered = 0.0
        for span in reversed(self._spans):
            if span.end <= start:
                break
            overlap = min(span.end, end) - max(span.start, start)
            if overlap > 0:
                amount += span.amount * overlap / (span.end - span.start)
                covered += overlap
        return Accrued(amount, covered)
