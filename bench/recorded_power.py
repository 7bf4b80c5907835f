"""How true is the mean power of 15 s, on recordings of a real H200? Against its energy counter over the same seconds.

The counter was recorded with every reading. On a host of eight such GPUs Wattline reads it every 10 s only and lets
power carry it on in between, and that is what is fed here. ``bench.truth`` does the same live, on a GPU.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from dataclasses import replace
from itertools import groupby
from typing import TYPE_CHECKING, Any

from bench.tables import Table
from tests.traces.raw import IDENTITY, condition, every, read_lines, sample
from tests.traces.sglang import NVML
from tests.traces.test_loads import ROWS
from wattline.analysis.gpu import GpuTrack
from wattline.analysis.plan import Plan
from wattline.gpus.nvml.questions import ENERGY
from wattline.gpus.nvml.visit import EARLY

if TYPE_CHECKING:
    from collections.abc import Iterator

SCRAPE = 15
SHORT = 8
"""Seconds between two scrapes of the loads, which last ten."""
METHODS = (
    "instantaneous power, at the scrape",
    "the driver's average, at the scrape",
    "the counter alone, read every 10 s",
    "Wattline, energy between scrapes",
)
GAP = 1.5
"""Seconds without a reading at which a recording is cut."""

RECORDED = "SGLang: "

Row = dict[str, Any]


def stretches(rows: list[Row]) -> Iterator[tuple[str, list[Row]]]:
    """Rows of one label without a gap in between."""
    for label, group in groupby((row for row in rows if "power_mw" in row), key=lambda row: row["label"]):
        part: list[Row] = []
        for row in group:
            if part and row["t"] - part[-1]["t"] > GAP:
                yield str(label), part
                part = []
            part.append(row)
        yield str(label), part


def errors(rows: list[Row], scrape: int) -> list[tuple[float, ...]]:
    """Errors in percent of the mean power, by method, of every way to scrape."""
    found: list[tuple[float, ...]] = []
    for offset in range(5):  # The recordings have at least five readings a second.
        track = GpuTrack(IDENTITY, Plan(deployments=()))
        told: list[tuple[Row, float, float]] = []
        counted = rows[offset]["t"] - ENERGY.every
        counter = 0.0
        track.observe_condition(condition(rows[0]["t"], rows[0]))
        for row in every(rows[offset:], 1.0):
            reading = sample(row)
            if row["t"] - counted >= ENERGY.every - EARLY:
                counted, counter = row["t"], row["energy_mj"] / 1e3
            else:
                reading = replace(reading, energy_joules=None)
            track.observe_sample(reading)
            told.append((row, counter, track.view(row["t"], "").energy_joules or 0.0))
        for (first, *before), (last, *after) in zip(told, told[scrape:], strict=False):
            seconds = last["t"] - first["t"]
            truth = (last["energy_mj"] - first["energy_mj"]) / 1e3 / seconds
            by_energy = [(new - old) / seconds for old, new in zip(before, after, strict=True)]
            seen = (last["power_instant_mw"] / 1e3, last["power_mw"] / 1e3, *by_energy)
            found.append(tuple(100 * abs(watts - truth) / truth for watts in seen))
    return found


def measure(*, quick: bool = False) -> list[Table]:
    """The table."""
    runs = [] if quick else read_lines(NVML)
    by_label: dict[str, list[tuple[float, ...]]] = defaultdict(list)
    for rows, scrape, prefix in ((ROWS, SHORT, ""), (runs, SCRAPE, RECORDED)):
        for label, stretch in stretches(rows):
            if not label.startswith(("settle:", "before_", "between", "end:", "starting", "no_server")):
                by_label[prefix + label] += errors(stretch, scrape)
    rows_shown = []
    for label, each in by_label.items():
        if len(each) < 3:
            continue
        columns = list(zip(*each, strict=True))
        shown = [f"{statistics.mean(c):.2f} / {max(c):.2f}" for c in columns]
        if not label.startswith(RECORDED):
            shown[2] = "-"  # Too short for a second reading of the counter.
        rows_shown.append([f"`{label}`", *shown])
    served = [error for label, each in by_label.items() if label.startswith(RECORDED) for error in each]
    if served:
        columns = list(zip(*served, strict=True))
        rows_shown.append(["all of SGLang", *(f"{statistics.mean(c):.2f} / {max(c):.2f}" for c in columns)])
    note = (
        f"Mean and greatest error in % of the mean power, over all ways to scrape every {SCRAPE} s "
        f"(the synthetic loads, which last ten seconds: {SHORT} s)."
    )
    return [Table("Mean power, on recordings of an H200", ("what ran", *METHODS), rows_shown, note)]
