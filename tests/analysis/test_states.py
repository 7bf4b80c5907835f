"""Each state when it holds, and the neighbours that must not be mistaken for it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.analysis.build import PLAN, Bench, only, uuid
from wattline.analysis.plan import DeploymentPlan, EnginePlan, GpuOverride
from wattline.analysis.snapshot import State
from wattline.readings import EngineReading


def test_nothing_is_claimed_before_a_whole_window_was_seen() -> None:
    bench = Bench()
    early = only(bench.run(20, watts=87, work=1024, tokens_per_second=3740))
    assert early.state is State.UNKNOWN
    assert only(bench.run(50, watts=87, work=1024, tokens_per_second=3740)).state is State.IDLE_WHILE_BUSY


def test_no_requests_are_idle_at_once_and_need_no_window() -> None:
    assert only(Bench().run(10, work=0)).state is State.IDLE


def test_one_request_on_a_big_rig_is_no_alarm() -> None:
    assert only(Bench().run(70, watts=90, work=1, tokens_per_second=30)).state is State.WORKING


def test_nothing_is_claimed_of_a_time_before_the_engine_was_there() -> None:
    bench = Bench()
    bench.run(100, watts=87, engine_up=False)
    bench.tokens = 1e6
    states = [only(bench.run(1, watts=87, work=64, tokens_per_second=100)).state for _ in range(80)]
    first = states.index(State.IDLE_WHILE_BUSY)
    # As much of the window may be dark as three polls that are missed.
    assert 40 <= first <= 60


@pytest.mark.parametrize("every", [4, 5])
def test_an_engine_that_answers_now_and_then_is_not_known_to_be_busy_throughout(every: int) -> None:
    bench = Bench()
    bench.run(70, watts=300, work=64, tokens_per_second=1000)
    seen = []
    for poll in range(100):
        up = poll % every == every - 1
        seen.append(only(bench.run(5, watts=87, work=64, tokens_per_second=100, engine_up=up)).state)
    # Until the window holds no poll of before.
    assert set(seen[16:]) <= {State.WORKING, State.UNKNOWN}


def test_a_window_that_begins_idle_is_not_idle_while_busy() -> None:
    bench = Bench()
    bench.run(60, watts=87, work=0)
    assert only(bench.run(30, watts=87, work=100, tokens_per_second=100)).state is State.WORKING


def test_a_wedged_engine_is_stalled_and_not_merely_idle_while_busy() -> None:
    bench = Bench()
    bench.run(70, watts=300, work=32, tokens_per_second=2000)
    bench.reading = replace(bench.reading, held_http=32)
    assert only(bench.run(70, watts=87, work=32, tokens_per_second=0)).state is State.STALLED


def test_one_wedged_engine_is_a_stall_although_the_other_works() -> None:
    plan = replace(PLAN, deployments=(DeploymentPlan("glm5", (EnginePlan("head"), EnginePlan("tail"))),))
    bench = Bench(plan=plan)
    half_works = dict.fromkeys(range(4), 450.0) | dict.fromkeys(range(4, 8), 87.0)
    for _ in range(14):
        tail = EngineReading(t=bench.t + 0.5, engine="tail", up=True, running=16, held_http=16, progress=(5000.0,))
        bench.observer.observe(tail)
        snapshot = bench.run(5, watts=half_works, work=64, tokens_per_second=2000)
    assert only(snapshot).state is State.STALLED
    assert "tail" in only(snapshot).reason


def test_an_engine_without_a_live_counter_is_never_called_stalled() -> None:
    assert only(Bench().run(130, watts=87, work=32, tokens_per_second=None)).state is State.IDLE_WHILE_BUSY


def test_no_token_at_high_power_is_a_long_prefill_and_no_stall() -> None:
    bench = Bench()
    bench.reading = replace(bench.reading, held_http=8)
    assert only(bench.run(130, watts=400, work=8, tokens_per_second=0)).state is State.WORKING


def test_a_queue_alone_is_work() -> None:
    bench = Bench()
    bench.reading = replace(bench.reading, queued=37.0)
    assert only(bench.run(130, watts=70, work=0, tokens_per_second=None)).state is State.IDLE_WHILE_BUSY


def test_a_gauge_that_repeats_the_past_is_unknown_and_never_an_alarm() -> None:
    """SGLang up to 0.5.15 shows its last load for 30 s after the last request ended."""
    bench = Bench()
    bench.reading = replace(bench.reading, gauge_lag_seconds=31.0)
    bench.run(70, watts=100, work=24, tokens_per_second=500)
    states = [only(bench.run(1, watts=87, work=24, tokens_per_second=0)).state for _ in range(31)]
    states += [only(bench.run(1, watts=87, work=0, tokens_per_second=0)).state for _ in range(10)]
    assert State.STALLED not in states
    assert states[-1] is State.IDLE
    late = states[10:31]
    assert set(late) == {State.UNKNOWN}


def test_a_gauge_frozen_for_longer_than_it_can_lag_is_a_hang() -> None:
    bench = Bench()
    bench.reading = replace(bench.reading, gauge_lag_seconds=31.0)
    bench.run(70, watts=300, work=24, tokens_per_second=500)
    assert only(bench.run(70, watts=87, work=24, tokens_per_second=0)).state is State.STALLED


def test_live_requests_at_the_http_front_confirm_a_frozen_gauge_at_once() -> None:
    bench = Bench(plan=replace(PLAN, window=15.0))
    bench.reading = replace(bench.reading, gauge_lag_seconds=31.0, held_http=24)
    bench.run(70, watts=300, work=24, tokens_per_second=500)
    assert only(bench.run(22, watts=87, work=24, tokens_per_second=0)).state is State.STALLED


def test_a_server_that_decodes_for_clients_that_left_is_working() -> None:
    bench = Bench()
    bench.reading = replace(bench.reading, held_http=0)
    assert only(bench.run(70, watts=500, work=93, tokens_per_second=9000)).state is State.WORKING


@pytest.mark.parametrize("signal", ["held_http", None])
def test_absent_load_gauges_are_idle_only_when_the_front_says_so(signal: str | None) -> None:
    bench = Bench()
    bench.reading = replace(bench.reading, queued=None, held_http=0 if signal else None)
    expected = State.IDLE if signal else State.UNKNOWN
    assert only(bench.run(30, watts=87, work=None, tokens_per_second=None)).state is expected


@pytest.mark.parametrize(("running", "queued"), [(None, 0), (0, None)])
def test_one_gauge_that_cannot_be_read_beside_a_zero_is_no_idleness(
    running: float | None, queued: float | None
) -> None:
    """A server that is wedged on the requests that cannot be read would page nobody."""
    bench = Bench()
    bench.reading = replace(bench.reading, queued=queued)
    snapshot = bench.run(130, watts=87, work=running, tokens_per_second=0)
    assert only(snapshot).state is State.UNKNOWN
    assert only(snapshot).work is None
    # Nor is an idle floor learned from it.
    assert {gpu.idle_floor.source for gpu in snapshot.gpus if gpu.idle_floor} == {"assumed"}


@pytest.mark.parametrize(("running", "queued"), [(None, 37), (37, None)])
def test_requests_that_one_gauge_shows_are_held_whatever_the_other_would_tell(
    running: float | None, queued: float | None
) -> None:
    bench = Bench()
    bench.reading = replace(bench.reading, queued=queued)
    deployment = only(bench.run(130, watts=87, work=running, tokens_per_second=None))
    assert deployment.state is State.IDLE_WHILE_BUSY
    assert deployment.work is None


@pytest.mark.parametrize(("running", "held", "state"), [(None, 0, State.IDLE), (None, 64, State.STALLED)])
def test_where_a_gauge_cannot_be_read_the_front_tells(running: float | None, held: float, state: State) -> None:
    bench = Bench()
    bench.reading = replace(bench.reading, held_http=held)
    assert only(bench.run(130, watts=87, work=running, tokens_per_second=0)).state is state


def test_an_idle_server_whose_health_is_probed_is_idle() -> None:
    """Each GET /health makes an idle SGLang compute one token, which moves its live counter."""
    assert only(Bench().run(70, watts=87, work=0, tokens_per_second=1)).state is State.IDLE


def test_requests_too_short_for_any_gauge_are_no_idleness() -> None:
    assert only(Bench().run(70, watts=200, work=0, tokens_per_second=300)).state is State.WORKING


def test_a_scheduler_that_counts_idle_time_is_idle_although_its_gauges_are_absent() -> None:
    """A fresh SGLang 0.5.20 writes its gauges with the first request, and its idle time from the start."""
    bench = Bench()
    for _ in range(6):
        bench.reading = replace(bench.reading, queued=None, scheduler_idle_seconds=bench.t)
        snapshot = bench.run(5, watts=87, work=None, tokens_per_second=None)
    assert only(snapshot).state is State.IDLE


@pytest.mark.parametrize(("held", "state"), [(64, State.UNKNOWN), (1, State.IDLE)])
def test_requests_that_never_reach_an_idle_scheduler_are_not_known_to_be_nothing(held: float, state: State) -> None:
    """A tokenizer that hangs. A connection or two that somebody forgot are none."""
    bench = Bench()
    states = []
    for _ in range(40):
        bench.reading = replace(bench.reading, held_http=held, scheduler_idle_seconds=bench.t, gauge_lag_seconds=2.0)
        states.append(only(bench.run(5, watts=87, work=0, tokens_per_second=0)).state)
    # For a window they may be on their way.
    assert set(states[1:12]) == {State.IDLE}
    assert set(states[14:]) == {state}


def test_an_engine_that_cannot_be_read_is_unknown_and_never_idle() -> None:
    bench = Bench()
    bench.run(70, watts=87, work=0)
    deployment = only(bench.run(20, watts=87, engine_up=False))
    assert deployment.state is State.UNKNOWN
    assert "connection_refused" in deployment.reason


def test_the_token_rate_of_a_silent_engine_is_absent() -> None:
    bench = Bench()
    assert only(bench.run(70, watts=300, work=64, tokens_per_second=100)).tokens_per_second
    silent = only(bench.run(10, watts=300, engine_up=False))
    assert silent.tokens_per_second == {}
    assert silent.tokens_per_watt == {}


def test_one_missed_poll_changes_nothing() -> None:
    bench = Bench()
    bench.run(70, watts=87, work=64, tokens_per_second=100)
    bench.run(5, watts=87, engine_up=False)
    assert only(bench.run(5, watts=87, work=64, tokens_per_second=100)).state is State.IDLE_WHILE_BUSY


def test_gpus_that_fall_silent_are_unknown() -> None:
    bench = Bench()
    bench.run(70, watts=87, work=64, tokens_per_second=100)
    snapshot = bench.run(5, watts=None, work=64, tokens_per_second=100)
    assert only(snapshot).state is State.UNKNOWN
    assert all(g.sample is None and g.tdp_fraction is None for g in snapshot.gpus)


def test_a_gpu_whose_reading_is_late_is_not_lost_yet() -> None:
    # On a busy host one reading may come seconds late; then nothing is said, and no GPU is called lost.
    bench = Bench()
    bench.run(70, watts=87, work=64, tokens_per_second=100)
    late = bench.run(5, watts=None, work=64, tokens_per_second=100)
    assert [(gpu.up, gpu.sample) for gpu in late.gpus] == [(True, None)] * len(late.gpus)
    lost = bench.run(10, watts=None, work=64, tokens_per_second=100)
    assert not any(gpu.up for gpu in lost.gpus)


def test_a_configured_gpu_that_is_not_there_leaves_no_partial_sum() -> None:
    plan = replace(PLAN, deployments=(DeploymentPlan("glm5", (EnginePlan("head"),), gpus=(uuid(0), "GPU-not-here")),))
    deployment = only(Bench(plan=plan).run(70, watts=250, work=64, tokens_per_second=100))
    assert deployment.unresolved_gpus == ("GPU-not-here",)
    assert deployment.tdp_fraction is None
    assert deployment.power_watts is None
    assert deployment.tokens_per_watt == {}
    assert deployment.state is State.UNKNOWN


def test_without_any_limit_there_is_no_fraction_but_still_tokens_per_watt() -> None:
    deployment = only(Bench(limit=None).run(70, watts=250, work=64, tokens_per_second=1000))
    assert deployment.tdp_fraction is None
    assert deployment.state is State.WORKING, "tokens come, whatever that draws"
    assert "no power limit" in deployment.reason
    assert deployment.tokens_per_watt["generation"] == pytest.approx(0.5, rel=0.01)


def test_a_configured_limit_stands_in_where_the_driver_tells_none() -> None:
    plan = replace(PLAN, overrides={uuid(i): GpuOverride(power_limit_watts=500) for i in range(8)})
    deployment = only(Bench(plan=plan, limit=None).run(70, watts=250, work=64, tokens_per_second=1000))
    assert deployment.tdp_fraction == pytest.approx(0.5)


def test_the_busiest_gpu_decides_whether_the_deployment_idles() -> None:
    one_works = {0: 400.0} | dict.fromkeys(range(1, 8), 87.0)
    deployment = only(Bench().run(70, watts=one_works, work=20, tokens_per_second=100))
    assert deployment.state is State.WORKING
    # Every GPU shows 100 % here, the idle ones too.
    assert [s.cause.value for s in deployment.suspicions] == ["spinning", "partial_idle"]


def test_an_engine_that_was_seen_to_start_is_excused_for_the_grace() -> None:
    bench = Bench(plan=replace(PLAN, grace=200.0))
    bench.run(30, watts=87, engine_up=False)
    assert only(bench.run(120, watts=87, work=64, tokens_per_second=10)).state is State.WORKING
    assert only(bench.run(90, watts=87, work=64, tokens_per_second=10)).state is State.IDLE_WHILE_BUSY


def test_an_exporter_that_starts_beside_a_running_engine_grants_no_grace() -> None:
    assert only(Bench().run(70, watts=87, work=64, tokens_per_second=10)).state is State.IDLE_WHILE_BUSY


def test_a_timeout_of_a_running_engine_is_no_start() -> None:
    bench = Bench()
    bench.run(70, watts=87, work=64, tokens_per_second=10)
    bench.run(30, watts=87, engine_up=False, tokens_per_second=10)
    assert only(bench.run(70, watts=87, work=64, tokens_per_second=10)).state is State.IDLE_WHILE_BUSY


def test_counters_that_begin_anew_are_a_start_and_never_a_negative_rate() -> None:
    bench = Bench()
    before = bench.run(70, watts=87, work=64, tokens_per_second=1000)
    bench.tokens = 0.0
    after = bench.run(70, watts=87, work=64, tokens_per_second=1000)
    assert only(after).state is State.WORKING
    assert only(after).tokens_per_second["generation"] == pytest.approx(1000, rel=0.01)
    (engine,) = after.engines
    assert engine.generation_tokens_total is not None
    assert engine.generation_tokens_total >= (before.engines[0].generation_tokens_total or 0)


def test_saturated_by_the_power_cap_although_the_mean_stays_below() -> None:
    bench = Bench()
    bench.sample = replace(bench.sample, event_reasons=frozenset({"sw_power_cap"}))
    assert only(bench.run(70, watts=550, work=64, tokens_per_second=1000)).state is State.SATURATED


def test_one_failing_engine_costs_that_engine_and_leaves_the_other() -> None:
    plan = replace(PLAN, deployments=(DeploymentPlan("glm5", (EnginePlan("head"), EnginePlan("tail"))),))
    bench = Bench(plan=plan)
    for _ in range(14):
        bench.observer.observe(EngineReading(t=bench.t + 0.5, engine="tail", up=False, error="timeout"))
        snapshot = bench.run(5, watts=87, work=64, tokens_per_second=100)
    assert only(snapshot).state is State.IDLE_WHILE_BUSY
    quiet = Bench(plan=plan)
    for _ in range(14):
        quiet.observer.observe(EngineReading(t=quiet.t + 0.5, engine="tail", up=False, error="timeout"))
        snapshot = quiet.run(5, watts=87, work=0)
    # Nobody knows what the silent one holds.
    assert only(snapshot).state is State.UNKNOWN
