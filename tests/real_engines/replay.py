"""Real servers beside a client that counted itself, second by second: what ``make engines`` has kept.

A row: ``label`` (the situation; ``between`` while it ends), ``since`` its beginning, ``t`` in seconds, ``watts`` the
card drew (of 700, over 122 at idle), ``open`` requests of the client and ``open_mean`` since the row before, ``done``,
``ended``, ``generated`` and ``prompt`` counted by the client, ``arrived`` pieces of streamed answers, ``said`` the live
verdict, and ``text``: the lines of the server's metrics that its table looks at, empty where none came.
"""

from __future__ import annotations

from functools import cache
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.traces.raw import IDENTITY, UUID, condition, read_lines
from wattline.analysis.observer import Observer
from wattline.analysis.plan import DeploymentPlan, EnginePlan, Plan
from wattline.engines.normalise import normalise
from wattline.readings import EngineReading, GpuActivity, GpuSample

if TYPE_CHECKING:
    from collections.abc import Iterator

    from wattline.analysis.snapshot import Snapshot

Row = dict[str, Any]
FOLDER = Path(__file__).parent
ENGINES = {path.name.split("_")[0]: path for path in sorted(FOLDER.glob("*.jsonl.gz"))}
WINDOW = 10.0
IDLE_WATTS, LIMIT_WATTS = 122.0, 700.0


@cache
def rows(engine: str) -> tuple[Row, ...]:
    """Every row of one engine, in time order; times begin at 0."""
    found = read_lines(ENGINES[engine])
    zero = found[0]["t"]
    return tuple({**row, "t": round(row["t"] - zero, 2)} for row in found)


def reading(engine: str, row: Row) -> EngineReading:
    """What the engine's table makes of a row."""
    if not row["text"]:
        return EngineReading(row["t"], engine, up=False, error="timeout")
    return normalise(row["text"], engine=engine, t=row["t"], kind=engine)


def verdicts(engine: str) -> Iterator[tuple[Row, Snapshot]]:
    """The verdict after each row, by a watch that was there before the server."""
    plan = Plan(
        deployments=(DeploymentPlan("real", (EnginePlan(engine),)),),
        window=WINDOW,
        grace=1.0,
        engine_interval=1.0,
    )
    observer = Observer(plan)
    observer.observe(IDENTITY)
    seen = -1.0
    for number, row in enumerate(rows(engine)):
        t = row["t"]
        share = (row["watts"] - IDLE_WATTS) / (LIMIT_WATTS - IDLE_WATTS)
        if number % 30 == 0:
            observer.observe(condition(t, {}))
        # The card goes on where the recorder, short of time, did not look.
        beats = [seen + 1.0 + n for n in range(max(0, ceil(t - 0.5 - (seen + 1.0))))] + [t]
        for beat in beats:
            observer.observe(
                GpuSample(t=beat, uuid=UUID, power_watts=row["watts"], utilization_ratio=0.97 * (share > 0))
            )
            observer.observe(GpuActivity(t=beat, uuid=UUID, sm_active_ratio=share, dram_active_ratio=0.7 * share))
        seen = t
        observer.observe(reading(engine, row))
        yield row, observer.judge(t)
