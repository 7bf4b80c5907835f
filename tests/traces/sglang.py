"""A real SGLang 0.5.17 on a real H200, both sides recorded; replayed through the whole way from the raw texts."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from tests.traces.raw import IDENTITY, activity, condition, every, read_lines, sample
from wattline.analysis.observer import Observer
from wattline.analysis.plan import DeploymentPlan, EnginePlan, Plan
from wattline.engines.normalise import normalise
from wattline.readings import EngineReading

if TYPE_CHECKING:
    from collections.abc import Iterator

    from wattline.analysis.snapshot import Snapshot
    from wattline.readings import Reading

HERE = Path(__file__).parent
NVML = HERE / "h200-sglang-nvml.jsonl.gz"
METRICS = HERE / "h200-sglang-metrics.jsonl.gz"


def readings(run: int, engine_interval: float = 1.0) -> list[tuple[str, Reading]]:
    """(label, reading) of one run of the recording, in time order; times begin at 0."""
    gpu_rows = [r for r in read_lines(NVML) if r["run"] == run]
    engine_rows = [r for r in read_lines(METRICS) if r["run"] == run]
    zero = gpu_rows[0]["t"]
    found: list[tuple[str, Reading]] = []
    conditioned = float("-inf")
    for row in every([r for r in gpu_rows if "power_mw" in r], 1.0):
        t = row["t"] - zero
        if t - conditioned >= 30:
            conditioned = t
            found.append((row["label"], condition(t, row)))
        found += [(row["label"], sample(row, t)), (row["label"], activity(row, t))]
    for row in every(engine_rows, engine_interval):
        t = row["t"] - zero
        reading = (
            normalise(row["text"], engine="sglang", t=t)
            if row["text"]
            else EngineReading(t=t, engine="sglang", up=False, error="connection_refused")
        )
        found.append((row["label"], reading))
    return sorted(found, key=lambda pair: pair[1].t)  # type: ignore[union-attr]


def verdicts(run: int, window: float, *, engine_interval: float = 1.0) -> Iterator[tuple[str, Snapshot]]:
    """(label, verdict) once a second. No grace: the server was started while the recorder watched."""
    plan = Plan(
        deployments=(DeploymentPlan("llama", (EnginePlan("sglang"),)),),
        window=window,
        grace=0.0,
        engine_interval=engine_interval,
    )
    observer = Observer(plan)
    observer.observe(IDENTITY)
    due = 0.0
    label, seen = "", 0.0
    for here, reading in readings(run, engine_interval):
        t: float = reading.t  # type: ignore[union-attr]
        while t > due:
            snapshot = observer.judge(due)
            if due - seen <= 1.0:  # The recorder paused between some labels.
                yield label, snapshot
            due += 1.0
        label, seen = here, t
        observer.observe(reading)
