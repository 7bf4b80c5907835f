"""The idle floor: what a GPU draws with the model loaded and no work, learned per GPU.

A CUDA context alone lifts an H200 from 79 W to 122 W of 700 W, and an L4 idles at half its limit: no global fraction
can serve, so the floor is learned while the engines answer and hold nothing.
"""

from __future__ import annotations

from collections import Counter, OrderedDict

from wattline.analysis.snapshot import IdleFloor

ASSUMED_FRACTION = 0.15
"""Of the limit, until something was learned: context idle of data-centre parts is 0.13 to 0.25 of their limit."""
MAX_FRACTION = 0.6
"""A learned floor above this is not believed: an exporter started under full load must not take it for idle."""
MIN_FRACTION = 0.03
MIN_READINGS = 60
KEEP_HOURS = 24
PERCENTILE = 0.2


class IdleLearner:
    """Power readings of one GPU in idle moments, over the last 24 hours, at 1 W resolution.

    Memory is bounded: at most 25 hourly histograms.
    """

    def __init__(self) -> None:
        self._hours: OrderedDict[int, Counter[int]] = OrderedDict()
        self._all: Counter[int] = Counter()
        """The sum of the hours."""
        self._kept: float | None = None
        self._learned: float | None = None

    def offer(self, t: float, watts: float) -> None:
        """Take a reading of an idle moment."""
        hour = int(t // 3600)
        if hour not in self._hours:
            self._hours[hour] = Counter()
            while len(self._hours) > 1 and next(iter(self._hours)) < hour - KEEP_HOURS:
                self._all -= self._hours.popitem(last=False)[1]
        self._hours[hour][round(watts)] += 1
        self._all[round(watts)] += 1
        self._learned = None

    def restore(self, watts: float) -> None:
        """Begin from a floor that an earlier run learned; own readings replace it once there are enough."""
        self._kept = watts

    def learned(self) -> float | None:
        """The floor in watts; ``None`` until enough was seen."""
        count = self._all.total()
        if count < MIN_READINGS:
            return self._kept
        if self._learned is None:
            rank = PERCENTILE * count
            for watts in sorted(self._all):
                rank -= self._all[watts]
                if rank <= 0:
                    self._learned = float(watts)
                    break
        return self._learned


def active_fraction(watts: float | None, floor: float | None, limit: float | None) -> float | None:
    """The share of the power above the floor that is drawn; below the floor is no work, not negative work."""
    if watts is None or floor is None or limit is None or limit <= floor:
        return None
    return max(0.0, (watts - floor) / (limit - floor))


def idle_floor(learned: float | None, configured: float | None, limit: float | None) -> IdleFloor | None:
    """Choose the floor to use: configured, else a believable learned one, else an assumed share of the limit."""
    if configured is not None:
        return IdleFloor(configured, "configured")
    if learned is not None and (limit is None or MIN_FRACTION * limit <= learned <= MAX_FRACTION * limit):
        return IdleFloor(learned, "learned")
    if limit is not None:
        return IdleFloor(ASSUMED_FRACTION * limit, "assumed")
    return None
