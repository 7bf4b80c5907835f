"""Labelled loads of a real H200 get the verdict of their label, with a busy or an idle engine beside them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.traces.raw import IDENTITY, activity, condition, every, read_lines, sample
from wattline.analysis.causes import Cause
from wattline.analysis.observer import Observer
from wattline.analysis.plan import DeploymentPlan, EnginePlan, Plan
from wattline.analysis.snapshot import State
from wattline.readings import EngineReading

if TYPE_CHECKING:
    from wattline.analysis.snapshot import DeploymentView

ROWS = read_lines(Path(__file__).parent / "h200-loads.jsonl.gz")


def verdict(label: str, *, work: float) -> DeploymentView:
    """The verdict at the end of a load. Its first third is a transient of the driver's 1 s average, and left out."""
    rows = [r for r in ROWS if r["label"] == label]
    rows = rows[len(rows) // 3 :]
    span = rows[-1]["t"] - rows[0]["t"]
    plan = Plan(
        deployments=(DeploymentPlan("h200", (EnginePlan("engine"),)),),
        window=span * 0.9,
        sample_interval=0.2,
        activity_interval=0.5,
        engine_interval=0.5,
    )
    observer = Observer(plan)
    observer.observe(IDENTITY)
    observer.observe(condition(rows[0]["t"], rows[0]))
    for row in every(rows, 0.2):
        observer.observe(sample(row))
    for row in every(rows, 0.5):
        observer.observe(activity(row))
        tokens = 1000 * row["t"] if work else 0.0
        observer.observe(
            EngineReading(
                t=row["t"],
                engine="engine",
                up=True,
                running=work,
                queued=0.0,
                generation_tokens=tokens,
                generation_tokens_source="live",
                progress=(tokens,),
            )
        )
    (deployment,) = observer.judge(rows[-1]["t"]).deployments
    return deployment


@pytest.mark.parametrize(
    ("label", "state", "cause"),
    [
        ("idle_context", State.IDLE_WHILE_BUSY, Cause.NOT_FED),
        ("launch_bound_small_kernels", State.IDLE_WHILE_BUSY, Cause.HOST_BOUND),
        ("spin_one_thread", State.IDLE_WHILE_BUSY, Cause.SPINNING),
        ("pcie_h2d", State.IDLE_WHILE_BUSY, Cause.PCIE_BANDWIDTH),
        ("burst_10pct_gemm", State.IDLE_WHILE_BUSY, Cause.NOT_FED),
        ("dram_copy", State.WORKING, Cause.MEMORY_BOUND),
        ("decode_like_skinny_gemm_graph", State.WORKING, Cause.MEMORY_BOUND),
        ("gemm_bf16", State.SATURATED, None),
    ],
)
def test_beside_a_busy_engine(label: str, state: State, cause: Cause | None) -> None:
    deployment = verdict(label, work=64)
    assert deployment.state is state
    assert [s.cause for s in deployment.suspicions] == ([cause] if cause else [])


@pytest.mark.parametrize(
    "label", ["idle_no_context", "idle_context", "idle_end", "spin_one_thread", "burst_10pct_gemm"]
)
def test_beside_an_idle_engine_every_load_is_idle(label: str) -> None:
    assert verdict(label, work=0).state is State.IDLE
