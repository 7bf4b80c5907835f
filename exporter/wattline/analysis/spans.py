"""Amounts that accrued between two readings, kept long enough to be asked for any part of the window."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

MAX_ANSWERS = 8


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
        self._answers: dict[tuple[float, float], Accrued] = {}
        """What was asked since the last span came: a verdict asks several times for the same stretch."""
        self.total = 0.0
        """Everything that ever accrued in a span."""

    def add(self, start: float, end: float, amount: float) -> bool:
        """Record ``amount`` between two readings; false (and nothing recorded) over a gap or a backward clock."""
        if not 0 < end - start <= self.max_gap:
            return False
        self._answers.clear()
        self._spans.append(Span(start, end, amount))
        self.total += amount
        while self._spans and self._spans[0].end < end - self.horizon:
            self._spans.popleft()
        return True

    def between(self, start: float, end: float) -> Accrued:
        """What accrued from ``start`` to ``end``; spans that stick out count in proportion."""
        if (known := self._answers.get((start, end))) is not None:
            return known
        amount = covered = 0.0
        for first, last, accrued in reversed(self._spans):
            if first >= start and last <= end:  # As nearly all are: a verdict comes here a thousand times.
                amount += accrued
                covered += last - first
                continue
            if last <= start:
                break
            overlap = min(last, end) - max(first, start)
            if overlap > 0:
                amount += accrued * overlap / (last - first)
                covered += overlap
        answer = Accrued(amount, covered)
        if len(self._answers) >= MAX_ANSWERS:
            self._answers.clear()
        self._answers[start, end] = answer
        return answer

    def stretches(self, start: float, end: float) -> list[tuple[float, float]]:
        """The times from ``start`` to ``end`` that readings cover without a gap, the first one first."""
        found: list[tuple[float, float]] = []
        for first, last, _ in self._spans:
            begun, ended = max(first, start), min(last, end)
            if begun >= ended:
                continue
            if found and found[-1][1] == begun:
                found[-1] = found[-1][0], ended
            else:
                found.append((begun, ended))
        return found


class CarriedTotal:
    """A total by a counter that is read now and then, carried on in between by what else tells. It never falls.

    Args:
        value: to begin from.
    """

    def __init__(self, value: float = 0.0) -> None:
        self.value = value
        self._ahead = 0.0
        """What was carried since the counter was read."""
        self._owed = 0.0
        """What was carried too much, and is taken off what comes next."""

    def carry(self, amount: float) -> None:
        """Add what came since, by the other source."""
        self._ahead += amount
        self._add(amount)

    def settle(self, counted: float | None, otherwise: float) -> None:
        """Take a reading of the counter.

        Args:
            counted: what it has counted since its last reading; ``None`` when it does not tell, and what was carried
                stands.
            otherwise: what is added then.
        """
        self._add(otherwise if counted is None else counted - self._ahead)
        self._ahead = 0.0

    def _add(self, amount: float) -> None:
        balance = amount - self._owed
        self.value += max(0.0, balance)
        self._owed = max(0.0, -balance)
