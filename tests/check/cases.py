"""What is shown to ``wattline check``: every phase of the simulated rig, every recorded load, and what is missing."""

from __future__ import annotations

from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING

from tests.recording.simulated import ENGINE, identities, plan, readings, watch
from tests.traces.raw import IDENTITY, activity, condition, every, read_lines, sample
from wattline.analysis.observer import Observer
from wattline.analysis.plan import DeploymentPlan, EnginePlan, Plan
from wattline.analysis.snapshot import SourceView
from wattline.check.report import Report, report
from wattline.readings import EngineReading, GpuSample, ReadingError
from wattline.simulation.scenario import SCENARIOS, STORY, STORY_NAME, timeline

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from wattline.analysis.snapshot import Snapshot

SECONDS = 30.0
DRAINING = timeline().start(len(STORY) - 1)
"""The last phase of the story begins: it cannot be held."""

BUSY_LOADS = (
    "idle_context",
    "launch_bound_small_kernels",
    "spin_one_thread",
    "pcie_h2d",
    "burst_10pct_gemm",
    "dram_copy",
    "decode_like_skinny_gemm_graph",
    "gemm_bf16",
)
IDLE_LOADS = ("idle_no_context", "idle_context", "idle_end", "spin_one_thread")


def phase(scenario: str) -> Report:
    """A check of 30 s in the midst of a phase. The loss of a GPU is only seen by who watches it go."""
    lead = timeline(scenario).lead_seconds
    start = {"gpu_lost": lead - 15}.get(scenario, lead + 5 if lead else 60.0)
    if scenario == STORY_NAME:
        start = DRAINING
    judged = plan(SECONDS)
    return report(watch(Observer(judged), scenario, start, start + SECONDS), judged)


@cache
def _rows() -> list[dict[str, object]]:
    return read_lines(Path(__file__).parent.parent / "traces" / "h200-loads.jsonl.gz")


def load(label: str, work: float) -> Report:
    """A check of a recorded H200 load beside an engine that holds ``work``. The first third is a transient."""
    rows: list[dict[str, object]] = [r for r in _rows() if r["label"] == label]
    rows = rows[len(rows) // 3 :]
    judged = Plan(
        deployments=(DeploymentPlan("h200", (EnginePlan("engine"),)),),
        window=_t(rows[-1]) - _t(rows[0]),
        sample_interval=0.2,
        activity_interval=0.5,
        engine_interval=0.5,
    )
    return report(_load(judged, rows, work), judged)


def _t(row: dict[str, object]) -> float:
    t = row["t"]
    assert isinstance(t, float)
    return t


def _load(judged: Plan, rows: list[dict[str, object]], work: float) -> Iterator[Snapshot]:
    observer = Observer(judged)
    observer.observe(IDENTITY)
    observer.observe(condition(_t(rows[0]), rows[0]))
    fast, slow = ({_t(row) for row in every(rows, interval)} for interval in (0.2, 0.5))
    for row in rows:
        t = _t(row)
        if t in fast:
            observer.observe(sample(row))
        if t in slow:
            observer.observe(activity(row))
            tokens = 1000 * t if work else 0.0
            observer.observe(
                EngineReading(
                    t=t,
                    engine="engine",
                    up=True,
                    running=work,
                    queued=0.0,
                    generation_tokens=tokens,
                    generation_tokens_source="live",
                    progress=(tokens,),
                )
            )
            yield observer.judge(t)
    yield observer.judge(_t(rows[-1]))


def no_engine() -> Report:
    """GPUs alone."""
    judged = Plan(deployments=(DeploymentPlan("default"),), window=SECONDS)
    return report(watch(Observer(judged), "collectives", 60.0, 90.0), judged)


def metrics_not_enabled() -> Report:
    """The server answers, and has no metrics."""
    judged = plan(SECONDS)
    return report(_with_engine_error(judged, "http_404"), judged)


def _with_engine_error(judged: Plan, error: str) -> Iterator[Snapshot]:
    observer = Observer(judged)
    for identity in identities("collectives"):
        observer.observe(identity)
    for t, reading in readings("collectives", 60.0, 90.0):
        if isinstance(reading, EngineReading):
            observer.observe(EngineReading(t, ENGINE, up=False, error=error))
        else:
            observer.observe(reading)
    yield observer.judge(60.0)
    yield observer.judge(90.0, (SourceView(f"engine:{ENGINE}", up=False, detail=error),))


def no_gpu() -> Report:
    """A machine without a driver, whose server answers."""
    judged = plan(SECONDS)
    sources = (SourceView("nvml", up=False, detail="NVML Shared Library Not Found: is the NVIDIA driver installed?"),)
    return report(_without_gpus(judged, sources), judged)


def _without_gpus(judged: Plan, sources: tuple[SourceView, ...]) -> Iterator[Snapshot]:
    observer = Observer(judged)
    for t, reading in readings("healthy", 60.0, 90.0):
        if isinstance(reading, EngineReading):
            observer.observe(reading)
            yield observer.judge(t, sources)


def no_power_sensor() -> Report:
    """One GPU of eight tells neither power nor utilisation, as old boards and some guests do."""
    judged = plan(SECONDS)
    return report(_without_power(judged), judged)


def _without_power(judged: Plan) -> Iterator[Snapshot]:
    observer = Observer(judged)
    gpus = list(identities("healthy"))
    for identity in gpus:
        observer.observe(identity)
    blind = gpus[2].uuid
    for t, reading in readings("healthy", 60.0, 90.0):
        if isinstance(reading, GpuSample) and reading.uuid == blind:
            observer.observe(GpuSample(t, blind, errors=(ReadingError("power", "not_supported"),)))
        else:
            observer.observe(reading)
        if isinstance(reading, EngineReading):
            yield observer.judge(t)


CASES: dict[str, Callable[[], Report]] = {
    **{f"demo-{'draining' if s == STORY_NAME else s}": partial(phase, s) for s in SCENARIOS},
    **{f"h200-{label}-busy": partial(load, label, 64.0) for label in BUSY_LOADS},
    **{f"h200-{label}-idle": partial(load, label, 0.0) for label in IDLE_LOADS},
    "no-engine": no_engine,
    "no-gpu": no_gpu,
    "no-power-sensor": no_power_sensor,
    "metrics-not-enabled": metrics_not_enabled,
}


@cache
def made(case: str) -> Report:
    """The report of a case, made once."""
    return CASES[case]()
