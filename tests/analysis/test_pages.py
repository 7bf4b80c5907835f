"""Situations in which a page would be false, and others in which its absence would be."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from tests.analysis.build import PLAN, Bench, only, uuid
from wattline.analysis.causes import Cause
from wattline.analysis.plan import DeploymentPlan, EnginePlan, GpuOverride
from wattline.analysis.snapshot import State
from wattline.readings import EngineReading, GpuIdentity

BAD = {State.IDLE_WHILE_BUSY, State.STALLED, State.LOW_POWER}


def test_bursts_beside_a_gauge_that_keeps_its_last_value_are_no_idle_while_busy() -> None:
    """SGLang up to 0.5.15: a second of work every ten; the gauge shows 8 requests throughout, the front holds none."""
    bench = Bench()
    bench.reading = replace(bench.reading, gauge_lag_seconds=31.0, held_http=0)
    states = set()
    for _ in range(40):
        bench.run(1, watts=500, work=8, tokens_per_second=1600)
        states.add(only(bench.run(9, watts=87, work=8, tokens_per_second=0)).state)
    assert not states & BAD


def test_one_leaked_connection_on_an_idle_server_is_idle() -> None:
    bench = Bench()
    bench.reading = replace(bench.reading, held_http=1, gauge_lag_seconds=2.0)
    assert only(bench.run(130, watts=87, work=0)).state is State.IDLE


def test_requests_that_only_the_front_holds_are_work_when_they_are_many() -> None:
    bench = Bench()
    bench.reading = replace(bench.reading, held_http=64, gauge_lag_seconds=2.0)
    assert only(bench.run(130, watts=87, work=0)).state is State.STALLED


def test_a_replica_that_restarts_for_ever_excuses_no_other() -> None:
    plan = replace(PLAN, deployments=(DeploymentPlan("glm5", (EnginePlan("head"), EnginePlan("loop"))),))
    bench = Bench(plan=plan)
    bench.reading = replace(bench.reading, held_http=200)
    bench.run(70, watts=300, work=200, tokens_per_second=1000)
    seen: Counter[State] = Counter()
    for second in range(0, 1800, 5):
        life = float(second % 300)
        loop = EngineReading(
            t=bench.t + 0.5, engine="loop", up=True, running=1, progress=(life,), generation_tokens=life
        )
        bench.observer.observe(loop)
        seen[only(bench.run(5, watts=87, work=200, tokens_per_second=0)).state] += 1
    assert seen[State.STALLED] > 0.9 * sum(seen.values())


def test_an_exporter_whose_first_poll_times_out_beside_a_hung_engine_grants_no_grace() -> None:
    bench = Bench()
    bench.tokens = 5e6
    bench.reading = replace(bench.reading, held_http=64)
    bench.run(5, watts=87, engine_up=False, tokens_per_second=0)
    assert only(bench.run(70, watts=87, work=64, tokens_per_second=0)).state is State.STALLED


@pytest.mark.parametrize("answers", [2, 3])
def test_a_hung_engine_that_answers_only_some_polls_is_stalled(answers: int) -> None:
    bench = Bench()
    bench.tokens = 5e6
    bench.reading = replace(bench.reading, held_http=64)
    bench.run(60, watts=300, work=64, tokens_per_second=100)
    seen: Counter[State] = Counter()
    for poll in range(60):
        up = poll % answers == 0
        seen[only(bench.run(5, watts=87, work=64, tokens_per_second=0, engine_up=up)).state] += 1
    # It takes a window until the page's state begins.
    assert seen[State.STALLED] >= 60 - 15
    assert seen[State.UNKNOWN] == 0


def in_steps(bench: Bench, seconds: int, every: int) -> list[State]:
    """One request; 50 tokens are counted every so many seconds. The state at each second."""
    seen = []
    for second in range(seconds):
        bench.tokens += 50.0 if second % every == 0 else 0.0
        seen.append(only(bench.run(1, watts=87, work=1, tokens_per_second=0)).state)
    return seen


def test_a_counter_that_moves_in_great_steps_is_no_stall_between_them() -> None:
    """SGLang up to 0.5.6 counts an answer that is not streamed 50 tokens at a time: a slow one is 90 s between two."""
    bench = Bench()
    bench.reading = replace(bench.reading, gauge_lag_seconds=31.0)
    seen = in_steps(bench, 1800, every=90)
    # How long its steps are is known after the first.
    assert State.STALLED not in seen[95:]
    # And no longer than five minutes is believed that another one will come.
    stopped = in_steps(bench, 600, every=10_000)
    assert 100 <= stopped.index(State.STALLED) <= 200
    assert set(stopped[300:]) == {State.STALLED}


def test_pauses_for_want_of_requests_are_no_steps() -> None:
    bench = Bench()
    for _ in range(5):
        bench.run(90, watts=87, work=0)
        bench.run(20, watts=150, work=8, tokens_per_second=100)
    assert only(bench.run(70, watts=87, work=8, tokens_per_second=0)).state is State.STALLED


def test_no_token_for_five_minutes_is_a_stall_at_any_power() -> None:
    bench = Bench()
    bench.tokens = 5e6
    bench.reading = replace(bench.reading, held_http=64)
    assert only(bench.run(200, watts=350, work=64, tokens_per_second=0)).state is State.WORKING
    assert only(bench.run(200, watts=350, work=64, tokens_per_second=0)).state is State.STALLED


def test_gpus_that_run_nothing_are_idle_although_their_idle_floor_is_half_of_the_limit() -> None:
    """An L4 with a loaded model draws 36 of 72 W; its floor is not learned on a server that is never idle."""
    bench = Bench(gpus=1, limit=72.0)
    bench.sample = replace(bench.sample, utilization_ratio=0.0)
    assert only(bench.run(70, watts=36, work=64, tokens_per_second=20)).state is State.IDLE_WHILE_BUSY


def test_utilisation_0_at_high_power_is_not_believed() -> None:
    bench = Bench()
    bench.sample = replace(bench.sample, utilization_ratio=0.0)
    assert only(bench.run(70, watts=500, work=64, tokens_per_second=5000)).state is State.WORKING


def test_on_a_gpu_that_mig_cuts_up_utilisation_0_says_nothing() -> None:
    bench = Bench(gpus=1, limit=700.0, identity=GpuIdentity(uuid="", index=0, mig=True))
    bench.sample = replace(bench.sample, utilization_ratio=0.0)
    assert only(bench.run(90, watts=350, work=64, tokens_per_second=1000)).state is State.WORKING


def test_a_known_idle_floor_tells_better_than_utilisation_0() -> None:
    """350 of 700 W, 260 W above the floor: whatever does not count as utilisation there draws that."""
    bench = Bench(plan=replace(PLAN, overrides={uuid(0): GpuOverride(idle_power_watts=90.0)}), gpus=1, limit=700.0)
    bench.sample = replace(bench.sample, utilization_ratio=0.0)
    assert only(bench.run(90, watts=350, work=64, tokens_per_second=1000)).state is State.WORKING


def test_one_utilisation_0_among_readings_that_failed_is_no_mean() -> None:
    bench = Bench(gpus=1, limit=700.0)
    bench.sample = replace(bench.sample, utilization_ratio=0.0)
    bench.run(15, watts=350, work=64, tokens_per_second=1000)
    bench.sample = replace(bench.sample, utilization_ratio=None)
    assert only(bench.run(50, watts=350, work=64, tokens_per_second=1000)).state is State.WORKING


def test_several_servers_behind_one_address_are_unknown_and_told() -> None:
    bench = Bench()
    for life in range(40):
        bench.reading = replace(bench.reading, start_time=float(life % 2) * 100)
        snapshot = bench.run(5, watts=87, work=64, tokens_per_second=0)
    assert only(snapshot).state is State.UNKNOWN
    assert "several behind one address" in only(snapshot).reason


def test_a_single_stream_that_leaves_gaps_is_no_finding() -> None:
    bench = Bench()
    bench.sample = replace(bench.sample, utilization_ratio=0.5)
    deployment = only(bench.run(70, watts=200, work=1, tokens_per_second=40))
    assert deployment.state is State.WORKING
    assert deployment.suspicions == ()


def test_ranks_that_spin_for_a_straggler_are_named() -> None:
    watts = {0: 480.0} | dict.fromkeys(range(1, 8), 140.0)
    deployment = only(Bench().run(70, watts=watts, work=64, tokens_per_second=100))
    (spinning,) = [s for s in deployment.suspicions if s.cause.value == "spinning"]
    assert spinning.evidence.startswith("GPU 1, 2, 3, 4, 5, 6, 7: utilisation 100 %")


def test_an_idle_deployment_whose_gpus_work_for_somebody_else_says_so() -> None:
    deployment = only(Bench().run(70, watts=450, work=0))
    assert deployment.state is State.IDLE
    assert "yet a GPU draws 75.0 % of its limit" in deployment.reason


def test_traffic_that_is_over_is_no_collective() -> None:
    """The mean of the window remembers the all-reduce of a server that has just wedged."""
    bench = Bench()
    bench.activity = replace(
        bench.activity, pcie_transmit_bytes_per_second=12e9, pcie_receive_bytes_per_second=12e9, sm_active_ratio=0.3
    )
    busy = only(bench.run(90, watts=250, work=1024, tokens_per_second=3740))
    assert Cause.COLLECTIVES_OVER_PCIE in {s.cause for s in busy.suspicions}
    bench.activity = replace(bench.activity, pcie_transmit_bytes_per_second=0.0, pcie_receive_bytes_per_second=0.0)
    over = only(bench.run(10, watts=140, work=1024, tokens_per_second=0))
    assert Cause.COLLECTIVES_OVER_PCIE not in {s.cause for s in over.suspicions}
