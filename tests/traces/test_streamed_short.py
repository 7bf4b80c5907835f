"""A real SGLang 0.5.23 whose front shows requests that nobody has open, beside a client that counted its own.

It keeps each streamed answer for two seconds after its end: one client shows 22 requests at the front, three show 108.
The trace has one line a second: what the client had open (mean since the line before), and the server's text.
"""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from wattline.analysis.observer import Observer
from wattline.analysis.plan import DeploymentPlan, EnginePlan, Plan
from wattline.analysis.snapshot import DeploymentView, State
from wattline.engines.normalise import normalise
from wattline.readings import GpuCondition, GpuIdentity, GpuSample

TRACE = Path(__file__).parent / "sglang-streamed-short.jsonl.gz"
GPU = "GPU-00000000-0000-0000-0000-000000000001"
SOUND = {State.IDLE, State.WORKING, State.UNKNOWN}


def rows() -> list[dict[str, Any]]:
    with gzip.open(TRACE, "rt") as lines:
        return [json.loads(line) for line in lines]


def verdicts(watts: float, window: float) -> list[tuple[dict[str, Any], DeploymentView, float]]:
    """The row, the verdict and the rejected readings of the front, second by second, at a steady power of 600 W."""
    plan = Plan((DeploymentPlan("d", (EnginePlan("e"),)),), window=window, engine_interval=5.0)
    observer = Observer(plan)
    found: list[tuple[dict[str, Any], DeploymentView, float]] = []
    observer.observe(GpuIdentity(GPU, 0))
    for number, row in enumerate(rows()):
        t = 1000.0 + row["t"]
        observer.observe(GpuSample(t, GPU, power_watts=watts, utilization_ratio=0.4))
        if number % 5 == 0:
            observer.observe(GpuCondition(t, GPU, limit_enforced_watts=600.0, limit_default_watts=600.0))
            observer.observe(normalise(row["text"], engine="e", t=t))
        snapshot = observer.judge(t)
        found.append((row, snapshot.deployments[0], snapshot.engines[0].rejected))
    return found


@pytest.mark.parametrize("watts", [100.0, 180.0])
@pytest.mark.parametrize("window", [15.0, 60.0])
def test_a_few_short_streams_are_never_a_fault_whatever_the_gpu_draws(watts: float, window: float) -> None:
    told = verdicts(watts, window)
    assert {view.state for _, view, _ in told} <= SOUND
    assert {view.pending for _, view, _ in told} == {None}, "no fault is announced either"


def test_no_more_is_held_than_the_client_had_open() -> None:
    """It had at most two open, and what has ended tells that number."""
    held = [view.work for _, view, _ in verdicts(100.0, 60.0) if view.work is not None]
    assert max(held) < 2.2


def test_a_front_that_ended_requests_refute_is_counted_as_rejected() -> None:
    assert verdicts(100.0, 60.0)[-1][2] > 0
