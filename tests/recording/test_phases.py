"""A recording of each phase of the simulated rig replays to the right verdicts, faster than it was recorded."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import pytest

from tests.recording.make import DATA, path_of
from wattline.analysis.causes import Cause
from wattline.analysis.snapshot import State
from wattline.recording.reader import read_recording
from wattline.recording.replay import replay
from wattline.simulation.scenario import SCENARIOS, STORY_NAME

if TYPE_CHECKING:
    from wattline.analysis.snapshot import DeploymentView

U, I, W, S, L, B, X = (  # noqa: E741 - the initials make the table below readable
    State.UNKNOWN,
    State.IDLE,
    State.WORKING,
    State.SATURATED,
    State.LOW_POWER,
    State.IDLE_WHILE_BUSY,
    State.STALLED,
)

# The seconds at which each state begins, and the causes suspected at the end. A window of 30 s is known enough after
# 23 s; a leading phase of 75 s comes before those that are the end of something.
TIMELINES: dict[str, tuple[list[tuple[int, State]], set[Cause]]] = {
    "idle": ([(0, I)], set()),
    "climb_64": ([(0, U), (23, B)], {Cause.NOT_FED}),
    "climb_256": ([(0, U), (23, B)], {Cause.NOT_FED}),
    "climb_512": ([(0, U), (23, B)], {Cause.NOT_FED}),
    "climb_1024": ([(0, U), (23, B)], {Cause.NOT_FED}),
    "benchmark_over": ([(0, U), (23, B), (80, I)], set()),
    "collectives": ([(0, U), (23, L)], {Cause.COLLECTIVES_OVER_PCIE}),
    "tuned": ([(0, U), (23, W)], set()),
    "healthy": ([(0, U), (23, W)], {Cause.MEMORY_BOUND}),
    "power_capped": ([(0, U), (23, S)], set()),
    "wedged": ([(0, U), (23, W), (95, L), (100, X)], {Cause.SPINNING}),
    "batch_limited": ([(0, U), (23, W)], {Cause.BATCH_LIMITED}),
    "host_bound": ([(0, U), (23, L)], {Cause.HOST_BOUND}),
    "spinning": ([(0, U), (23, L)], {Cause.SPINNING}),
    "cpu_offload": ([(0, U), (23, L)], {Cause.PCIE_BANDWIDTH}),
    "partial_idle": ([(0, U), (23, W)], {Cause.PARTIAL_IDLE}),
    "throttled": ([(0, U), (23, W)], {Cause.THROTTLED}),
    "limit_lowered": ([(0, U), (23, S)], {Cause.POWER_CAPPED}),
    "link_degraded": ([(0, U), (23, W)], {Cause.LINK_DEGRADED}),
    "engine_down": ([(0, U), (23, W), (93, U)], set()),
    "gpu_lost": ([(0, U), (23, W), (79, U)], set()),
}


def verdicts(scenario: str) -> list[tuple[float, DeploymentView]]:
    return [(s.t, s.deployments[0]) for s in replay(read_recording(path_of(scenario)))]


def changes(judged: list[tuple[float, DeploymentView]]) -> list[tuple[float, State]]:
    first = [(judged[0][0], judged[0][1].state)]
    return first + [(t, after.state) for (_, before), (t, after) in pairwise(judged) if after.state is not before.state]


@pytest.mark.parametrize("scenario", TIMELINES)
def test_a_recorded_phase_replays_to_its_timeline(scenario: str) -> None:
    judged = verdicts(scenario)
    expected, causes = TIMELINES[scenario]
    found = changes(judged)
    assert [state for _, state in found] == [state for _, state in expected]
    # A judgement may come a second earlier or later when a threshold is met between two.
    assert [t for t, _ in found] == pytest.approx([t for t, _ in expected], abs=1.0)
    assert {s.cause for s in judged[-1][1].suspicions} >= causes


def test_the_recorded_story_tells_both_true_stories_in_their_order() -> None:
    states = [state for _, state in changes(verdicts(STORY_NAME))]
    assert states == [I, W, B, I, W, L, W, S, W, L, X, L, W, I]


def test_every_scenario_has_a_recording_and_they_are_small() -> None:
    assert {path_of(s) for s in SCENARIOS} == set(DATA.iterdir())
    assert set(TIMELINES) | {STORY_NAME} == set(SCENARIOS)
    assert sum(p.stat().st_size for p in DATA.iterdir()) < 600_000
