"""What a real SGLang on a real H200 did, second by second, judged from both sides' raw texts."""

from __future__ import annotations

from collections import defaultdict
from functools import cache
from typing import TYPE_CHECKING

import pytest

from tests.traces.sglang import verdicts
from wattline.analysis.causes import Cause
from wattline.analysis.snapshot import DeploymentView, State

if TYPE_CHECKING:
    from collections.abc import Mapping


@cache
def judged(window: float, engine_interval: float = 1.0) -> Mapping[str, list[DeploymentView]]:
    """Every second's verdict by label. Labels of both runs are different, but for no_server."""
    found: dict[str, list[DeploymentView]] = defaultdict(list)
    for run in (1, 2):
        for label, snapshot in verdicts(run, window, engine_interval=engine_interval):
            found[label].append(snapshot.deployments[0])
    return found


NONE: frozenset[Cause] = frozenset()
LABELS = [
    ("no_server", State.UNKNOWN, NONE),
    ("idle_loaded", State.IDLE, NONE),
    ("one_request", State.WORKING, NONE),
    ("c32", State.WORKING, NONE),
    ("c256", State.SATURATED, NONE),
    ("prefill_heavy", State.SATURATED, NONE),
    # Lasts 4 s and follows c256: what counts is that it is not called idle although its clients are gone.
    ("draining", State.WORKING, NONE),
    ("just_after", State.IDLE, NONE),
    ("no_cuda_graph_c64", State.LOW_POWER, {Cause.HOST_BOUND}),
    ("host_starved_3", State.WORKING, {Cause.HOST_BOUND}),
    ("hung", State.STALLED, {Cause.NOT_FED}),
    ("queue_blocked", State.WORKING, {Cause.BATCH_LIMITED, Cause.MEMORY_BOUND}),
    ("spin_beside", State.IDLE, {Cause.SPINNING}),
]


@pytest.mark.parametrize(("label", "state", "causes"), LABELS)
def test_verdict_at_the_end_of_a_situation_with_a_15_s_window(
    label: str, state: State, causes: frozenset[Cause]
) -> None:
    last = judged(15.0)[label][-1]
    assert last.state is state, last.reason
    assert {s.cause for s in last.suspicions} == causes


def test_the_most_telling_cause_comes_first() -> None:
    assert judged(15.0)["queue_blocked"][-1].suspicions[0].cause is Cause.BATCH_LIMITED


def test_the_evidence_names_the_cuda_graphs_that_were_off() -> None:
    (suspicion,) = judged(15.0)["no_cuda_graph_c64"][-1].suspicions
    assert "without a CUDA graph" in suspicion.evidence


@pytest.mark.parametrize(
    ("label", "state"),
    [("hung", State.STALLED), ("just_after", State.IDLE), ("c256", State.SATURATED), ("idle_loaded", State.IDLE)],
)
def test_verdict_with_the_default_window_and_polls_where_the_situation_lasts_long_enough(
    label: str, state: State
) -> None:
    assert judged(60.0, 5.0)[label][-1].state is state


def test_no_healthy_second_is_ever_called_idle_while_busy_or_stalled() -> None:
    for window, interval in ((15.0, 1.0), (60.0, 5.0)):
        for label in ("c32", "c256", "prefill_heavy", "draining", "just_after", "one_request", "idle_loaded", "warmup"):
            states = {d.state for d in judged(window, interval)[label]}
            assert not states & {State.STALLED, State.IDLE_WHILE_BUSY}, (window, label)


@pytest.mark.parametrize(
    ("label", "tokens_per_joule"),
    # Decode tokens over joules of the whole situation, by the energy counter.
    [("c32", 8.2), ("c256", 19.4), ("queue_blocked", 0.80), ("no_cuda_graph_c64", 8.2), ("one_request", 0.384)],
)
def test_tokens_per_joule_are_those_of_the_counters(label: str, tokens_per_joule: float) -> None:
    assert judged(15.0)[label][-1].tokens_per_watt["generation"] == pytest.approx(tokens_per_joule, rel=0.03)


def test_no_token_is_made_while_it_hangs_and_none_is_invented_when_it_ended() -> None:
    assert judged(15.0)["hung"][-1].tokens_per_watt["generation"] == 0
    assert judged(15.0)["just_after"][-1].tokens_per_second == {"prompt": 0, "generation": 0}
