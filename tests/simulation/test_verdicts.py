"""The rig through the whole way: its readings, its metrics text, the join and the judge."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from wattline.analysis.causes import Cause
from wattline.analysis.observer import Observer
from wattline.analysis.plan import DeploymentPlan, EnginePlan, Plan
from wattline.analysis.snapshot import State
from wattline.engines.normalise import normalise
from wattline.readings import EngineReading, GpuGone, GpuSample
from wattline.simulation.rig import Rig
from wattline.simulation.scenario import STORY, timeline
from wattline.simulation.simulate import EngineText, simulate

if TYPE_CHECKING:
    from collections.abc import Iterator

    from wattline.analysis.snapshot import DeploymentView


def verdicts(scenario: str, seconds: float, seed: int = 1) -> Iterator[tuple[float, DeploymentView]]:
    observer = Observer(Plan(deployments=(DeploymentPlan("glm5", (EnginePlan("sglang"),)),)))
    for gpu in Rig(timeline(scenario), seed).gpus:
        observer.observe(gpu.identity())
    answered: dict[str, float] = {}
    due = 0.0
    for reading in simulate(seconds, seed, scenario):
        if reading.t > due:
            for uuid in [uuid for uuid, t in answered.items() if t < due]:
                observer.observe(GpuGone(due, uuid))
                del answered[uuid]
            yield due, observer.judge(due).deployments[0]
            due = reading.t
        if isinstance(reading, GpuSample):
            answered[reading.uuid] = reading.t
        if not isinstance(reading, EngineText):
            observer.observe(reading)
        elif reading.text is None:
            observer.observe(EngineReading(reading.t, "sglang", up=False, error="connection_refused"))
        else:
            observer.observe(normalise(reading.text, engine="sglang", t=reading.t))


@pytest.fixture(scope="module", params=[1, 2], ids="seed {}".format)
def story(request: pytest.FixtureRequest) -> list[tuple[float, str, DeploymentView]]:
    """Time, phase and verdict of every second of two loops."""
    line = timeline()
    played = verdicts("story", 2 * line.cycle_seconds, request.param)
    return [(t, line.at(t).phase.name, verdict) for t, verdict in played]


def test_the_story_is_judged_as_it_is_told(story: list[tuple[float, str, DeploymentView]]) -> None:
    judged = [(t, name, timeline().settled_state(t), verdict) for t, name, verdict in story]
    settled = [each for each in judged if each[2] is not None]
    wrong = [(t, name, verdict.state, verdict.reason) for t, name, right, verdict in settled if verdict.state != right]
    assert wrong == []
    assert {right for _, _, right, _ in settled} == set(State) - {State.UNKNOWN}


def test_no_alarming_state_is_shown_where_the_story_tells_of_none(
    story: list[tuple[float, str, DeploymentView]],
) -> None:
    alarming = {(name, each.state) for _, name, each in story if each.state in (State.IDLE_WHILE_BUSY, State.STALLED)}
    assert alarming == {
        ("climb_256", State.IDLE_WHILE_BUSY),
        ("climb_512", State.IDLE_WHILE_BUSY),
        ("climb_1024", State.IDLE_WHILE_BUSY),
        # Until the next look at the server.
        ("benchmark_over", State.IDLE_WHILE_BUSY),
        ("wedged", State.STALLED),
        ("draining", State.STALLED),
    }


def test_the_second_story_earns_1_87_tokens_per_joule() -> None:
    _, verdict = list(verdicts("collectives", 90))[-1]
    assert verdict.power_watts == pytest.approx(2000, rel=0.01)
    assert verdict.tdp_fraction == pytest.approx(0.417, abs=0.005)
    assert verdict.tokens_per_watt["generation"] == pytest.approx(1.87, rel=0.02)


def test_a_finished_benchmark_earns_nothing_however_high_its_gauge_still_stands() -> None:
    start = timeline().start(5)
    after = {
        t - start: verdict.tokens_per_watt.get("generation")
        for t, verdict in verdicts("story", start + 75)
        if t > start + 66
    }
    assert after
    assert set(after.values()) == {0.0}


def test_no_cause_is_suspected_while_the_tuned_server_works() -> None:
    _, verdict = list(verdicts("tuned", 90))[-1]
    assert verdict.suspicions == ()


def test_healthy_decoding_is_memory_bound_at_most() -> None:
    assert STORY[8].name == "healthy"
    _, verdict = list(verdicts("healthy", 90))[-1]
    assert [suspicion.cause for suspicion in verdict.suspicions] == [Cause.MEMORY_BOUND]
