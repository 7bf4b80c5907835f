"""How far each number of an engine's table was off beside the client, by the recordings."""

from __future__ import annotations

from itertools import takewhile
from statistics import fmean
from typing import TYPE_CHECKING

from bench.real_engines import SITUATIONS, Situation
from tests.real_engines.replay import Row, reading, rows
from wattline.engines.kinds import Comparison, Off

if TYPE_CHECKING:
    from collections.abc import Iterable

    from wattline.readings import EngineReading

ENOUGH_ENDED = 20
"""So many requests must have ended before their summed time tells how many are inside."""


def steady() -> Iterable[Situation]:
    """Those in which clients wait for every answer, and the server lives."""
    return (s for s in SITUATIONS if s.clients and not (s.abort_after or s.hang or s.restart))


def spread(shares: Iterable[float | None]) -> Off | None:
    """The least and the greatest, in whole percent."""
    known = [round(share, 2) for share in shares if share is not None]
    return Off(min(known), max(known)) if known else None


def measured(engine: str, release: str) -> Comparison:
    """What the recordings of one engine come to."""
    found = {s.name: _numbers(engine, s) for s in steady() if any(r["label"] == s.name for r in rows(engine))}
    return Comparison(
        release=release,
        held=spread(f[0] for f in found.values()),
        front=spread(f[1] for f in found.values()),
        inside=spread(f[2] for f in found.values()),
        tokens=spread(f[3] for f in found.values()),
        pause_seconds=_longest_pause(engine),
    )


def _numbers(engine: str, situation: Situation) -> tuple[float | None, float | None, float | None, float | None]:
    every = rows(engine)
    own = [row for row in every if row["label"] == situation.name]
    begun = every.index(own[0])
    after = [*takewhile(lambda row: row["label"] in (situation.name, "between"), every[begun:])]
    settled = [row for row in own if row["since"] >= situation.settle]
    readings = [reading(engine, row) for row in settled]
    opened = fmean(row["open_mean"] for row in settled)
    before, last = every[begun - 1], after[-1]
    if last["done"] == before["done"]:
        return None, None, None, None  # Every request was refused.
    return (
        _share(
            _mean([None if r.running is None or r.queued is None else r.running + r.queued for r in readings]), opened
        ),
        _share(_mean([r.held_http for r in readings]), opened),
        _inside(own, reading(engine, own[0]), reading(engine, own[-1])),
        _share(
            _difference(reading(engine, last).generation_tokens, reading(engine, before).generation_tokens),
            last["generated"] - before["generated"],
        ),
    )


def _inside(own: list[Row], first: EngineReading, last: EngineReading) -> float | None:
    seconds = _difference(last.request_seconds, first.request_seconds)
    if seconds is None or own[-1]["ended"] - own[0]["ended"] < ENOUGH_ENDED:
        return None
    held = own[-1]["held_seconds"] - own[0]["held_seconds"]
    return _share(seconds, held)


def _longest_pause(engine: str) -> float | None:
    """The longest time in which the client received something at each look and no counter of progress moved."""
    longest = paused = 0.0
    before: Row | None = None
    known = False
    for row in rows(engine):
        if before is not None and row["text"] and before["text"]:
            now, then = reading(engine, row).progress, reading(engine, before).progress
            known |= bool(now)
            still = now == then and row["arrived"] > before["arrived"]
            paused = paused + row["t"] - before["t"] if still else 0.0
            longest = max(longest, paused)
        before = row
    return round(longest, 1) if known else None


def _difference(after: float | None, before: float | None) -> float | None:
    return None if after is None else after - (before or 0.0)


def _mean(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None


def _share(said: float | None, truth: float) -> float | None:
    return None if said is None or not truth else said / truth - 1
