"""A real llama.cpp that computes by Vulkan on an H200, recorded beside a client that counted itself.

Made by ``python -m bench.real_server`` (2.8 billion parameters of noise, 15 s window). The stretches lie inside a
situation by a window, so that nothing of the one before is in it.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from wattline.analysis.causes import Cause
from wattline.analysis.snapshot import DeploymentView, State
from wattline.recording.reader import read_recording
from wattline.recording.replay import replay

HERE = Path(__file__).parent


@cache
def views(name: str) -> list[tuple[float, DeploymentView]]:
    snapshots = list(replay(read_recording(HERE / f"{name}.jsonl.gz")))
    return [(s.t - snapshots[0].t, s.deployments[0]) for s in snapshots]


def between(name: str, start: float, end: float) -> list[DeploymentView]:
    return [view for t, view in views(name) if start <= t <= end]


@pytest.mark.parametrize(
    ("name", "start", "end", "right"),
    [
        ("h200-llamacpp", 5, 33, State.IDLE),  # the model is loaded: 79 W
        ("h200-llamacpp", 50, 68, State.WORKING),  # one answer, 257 tokens/s, 421 W
        ("h200-llamacpp", 95, 110, State.WORKING),  # 32 clients
        ("h200-llamacpp", 135, 150, State.WORKING),  # 16 clients with prompts of 3,000 tokens
        ("h200-llamacpp", 158, 180, State.IDLE),
        # Stopped by SIGSTOP: its metrics answer no more than it does, so that nobody can know what it holds.
        ("h200-llamacpp", 192, 230, State.UNKNOWN),
        ("h200-llamacpp", 335, 355, State.WORKING),  # two slots, 62 wait: 416 W
        ("h200-llamacpp-starved", 65, 90, State.WORKING),  # prompts again, 393 W
        # 32 clients on a server that shares one core with fifteen busy loops: 97 W, no token.
        ("h200-llamacpp-starved", 97, 124, State.IDLE_WHILE_BUSY),
    ],
)
def test_what_is_said_is_what_the_client_lived_through(name: str, start: float, end: float, right: State) -> None:
    assert {view.state for view in between(name, start, end)} == {right}


def test_the_starved_server_is_host_bound() -> None:
    suspected = [{s.cause for s in view.suspicions} for view in between("h200-llamacpp-starved", 105, 124)]
    assert all(Cause.HOST_BOUND in causes for causes in suspected)


def test_work_that_utilisation_does_not_see_is_not_called_unfed() -> None:
    """NVML shows 1 % for compute by Vulkan; 18 % of the SMs work."""
    assert not {Cause.NOT_FED} & {s.cause for v in between("h200-llamacpp", 135, 150) for s in v.suspicions}
