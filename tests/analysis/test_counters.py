"""Counters that are not told, fall, leap or come back: what is a restart, and how many tokens were made."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.analysis.build import PLAN, Bench, only
from wattline.analysis.plan import DeploymentPlan, EnginePlan
from wattline.analysis.snapshot import Snapshot, State
from wattline.readings import EngineReading, ReadingError

RATE = 1000.0


class Engine:
    """An engine that holds 64 requests beside idle GPUs and makes 1000 tokens a second."""

    def __init__(self, **more: float) -> None:
        self.bench = Bench(gpus=1)
        self.tokens = 1e6
        self.base = EngineReading(t=0, engine="head", up=True, kind="vllm", running=64, queued=0, **more)  # type: ignore[arg-type]
        self.totals: list[float] = []
        self.rates: list[float] = []
        self.states: list[State] = []

    def reading(self, tokens: float | None) -> EngineReading:
        if tokens is None:
            return self.base
        return replace(
            self.base,
            generation_tokens=tokens,
            generation_tokens_source="live",
            prompt_tokens=3 * tokens,
            prompt_tokens_source="prompt",
            progress=(tokens, tokens / 2),
        )

    def tell(self, reading: EngineReading, seconds: int = 5) -> Snapshot:
        """The GPUs go on for so long; then the engine tells this."""
        for _ in range(seconds):
            # The bench's own engine readings are for another name.
            self.bench.reading = replace(self.bench.reading, engine="nobody")
            self.bench.run(1, watts=87)
        self.bench.observer.observe(replace(reading, t=self.bench.t))
        snapshot = self.bench.observer.judge(self.bench.t)
        self.totals.append(snapshot.engines[0].generation_tokens_total or 0.0)
        self.rates.append(only(snapshot).tokens_per_second.get("generation", 0.0))
        self.states.append(only(snapshot).state)
        return snapshot

    def polls(self, count: int) -> Snapshot:
        """So many polls at which all is well."""
        for _ in range(count):
            self.tokens += 5 * RATE
            snapshot = self.tell(self.reading(self.tokens))
        return snapshot

    def skip(self) -> None:
        """Tokens are made, and the next poll tells something else."""
        self.tokens += 5 * RATE


def without_progress(engine: Engine) -> EngineReading:
    return replace(engine.reading(engine.tokens), progress=())


def without_any(engine: Engine) -> EngineReading:
    return engine.base


def damaged(engine: Engine) -> EngineReading:
    return replace(engine.base, errors=(ReadingError("vllm_generation_tokens_total", "bad_line"),))


def half(engine: Engine) -> EngineReading:
    """A text that lacks one of two ranks."""
    return engine.reading(engine.tokens / 2)


def half_of_the_prompts(engine: Engine) -> EngineReading:
    return replace(engine.reading(engine.tokens), prompt_tokens=engine.tokens)


@pytest.mark.parametrize("start_time", [None, 1.7e9])
@pytest.mark.parametrize("odd", [without_progress, without_any, damaged, half, half_of_the_prompts])
def test_counters_that_one_poll_does_not_tell_are_no_restart(odd: object, start_time: float | None) -> None:
    assert callable(odd)
    engine = Engine()
    engine.base = replace(engine.base, start_time=start_time)
    engine.polls(20)
    assert engine.states[-1] is State.IDLE_WHILE_BUSY
    before = engine.totals[-1]
    engine.skip()
    engine.tell(odd(engine))
    engine.polls(20)
    # The page is not silenced for one poll, no token is lost and none is told twice.
    assert set(engine.states[20:]) == {State.IDLE_WHILE_BUSY}
    assert engine.totals[-1] - before == pytest.approx(21 * 5 * RATE)
    (view,) = engine.bench.observer.views(engine.bench.t)
    assert view.prompt_tokens_total == pytest.approx(3 * (engine.totals[-1]))
    assert max(engine.rates) == pytest.approx(RATE, rel=0.01)
    assert min(engine.rates[20:]) == pytest.approx(RATE, rel=0.01)


def test_counters_that_lack_a_part_and_then_are_not_told_are_no_restart() -> None:
    engine = Engine()
    engine.polls(20)
    for odd in (half, damaged):
        engine.skip()
        engine.tell(odd(engine))
    engine.polls(20)
    assert set(engine.states[20:]) == {State.IDLE_WHILE_BUSY}
    assert engine.totals[-1] == pytest.approx((19 + 22) * 5 * RATE)


def test_a_gauge_that_may_be_old_is_believed_through_a_poll_without_counters() -> None:
    """SGLang up to 0.5.7: nothing but moving counters tells that what the gauge shows is so."""
    engine = Engine()
    engine.base = replace(engine.base, gauge_lag_seconds=31.0)
    engine.polls(20)
    engine.skip()
    engine.tell(engine.base)
    engine.polls(20)
    assert set(engine.states[20:]) == {State.IDLE_WHILE_BUSY}


@pytest.mark.parametrize("step", [-3600.0, 3600.0, 5.0])
def test_a_clock_that_is_set_moves_the_start_time_and_is_no_restart(step: float) -> None:
    engine = Engine()
    engine.base = replace(engine.base, start_time=1.7e9)
    engine.polls(20)
    engine.base = replace(engine.base, start_time=1.7e9 + step)
    engine.polls(20)
    assert set(engine.states[20:]) == {State.IDLE_WHILE_BUSY}
    assert engine.totals[-1] == pytest.approx(39 * 5 * RATE)


def test_a_stall_goes_on_while_a_poll_tells_no_counters() -> None:
    engine = Engine()
    engine.base = replace(engine.base, held_http=64)
    engine.polls(20)
    for poll in range(40):
        engine.tell([engine.base, half(engine)][poll // 10 % 2] if poll % 10 == 9 else engine.reading(engine.tokens))
    assert set(engine.states[-25:]) == {State.STALLED}


def test_counters_that_fall_and_go_on_from_there_are_a_restart() -> None:
    engine = Engine()
    engine.polls(20)
    before, engine.tokens = engine.totals[-1], 0.0
    engine.polls(30)
    # The interval of the restart counts nothing. Grace is from the second poll on: the first might lack a part.
    assert engine.totals[-1] - before == pytest.approx(29 * 5 * RATE)
    assert set(engine.states[21:]) == {State.WORKING}
    assert max(engine.rates) == pytest.approx(RATE, rel=0.01)


def test_counters_that_fall_after_an_engine_was_away_are_a_restart_at_once() -> None:
    engine = Engine()
    engine.polls(20)
    engine.tell(EngineReading(t=0, engine="head", up=False, error="connection_refused"))
    engine.tokens = 0.0
    engine.polls(1)
    assert engine.states[-1] is State.WORKING


def test_counters_that_stay_away_are_a_restart() -> None:
    """SGLang has no counter until its first request."""
    engine = Engine()
    engine.polls(20)
    for _ in range(10):
        engine.tell(engine.base)
    assert engine.states[-1] is State.WORKING


def test_a_restart_that_comes_as_far_as_before_is_no_other_process() -> None:
    engine = Engine()
    engine.tokens = 0.0
    engine.polls(20)
    engine.tokens = 0.0
    engine.polls(60)
    assert engine.totals[-1] == pytest.approx((19 + 59) * 5 * RATE)


@pytest.mark.parametrize("polls", [1, 2, 8])
def test_two_engines_that_answer_in_turn_make_no_tokens(polls: int) -> None:
    """One has counted 500, the other 100,000; each makes 10 tokens a second."""
    engine = Engine()
    made = [500.0, 100_000.0]
    for poll in range(160):
        made = [tokens + 50 for tokens in made]
        engine.tell(engine.reading(made[poll // polls % 2]))
    # The first time that more is told, it may have been made; but then each is known.
    after = engine.totals[2 * polls :]
    assert after[-1] - after[0] <= 160 * 50
    settled = engine.rates[polls + 14 :]
    assert max(settled) <= 10.1
    if polls < 8:
        assert set(settled) == {0.0}
        assert after[-1] == after[10]
        assert set(engine.states[polls + 14 :]) == {State.UNKNOWN}
    else:
        # To begin anew takes longer than it takes the other to answer again.
        assert State.IDLE_WHILE_BUSY in engine.states[60:]


def test_totals_begin_at_nothing_and_go_on_where_an_engine_moves() -> None:
    """What the engine counted before the exporter watched would be an increase to Prometheus, at each restart of it."""
    engine = Engine()
    assert engine.polls(1).engines[0].generation_tokens_total == 0.0
    engine.polls(9)
    assert engine.totals[-1] == 9 * 5 * RATE
    moved = replace(PLAN, deployments=(DeploymentPlan("glm5", (EnginePlan("head", "http://elsewhere:1/metrics"),)),))
    engine.bench.observer.replan(moved)
    (view,) = engine.bench.observer.views(engine.bench.t)
    assert view.generation_tokens_total == 9 * 5 * RATE
    engine.tokens = 5e9
    engine.polls(3)
    assert engine.totals[-1] == (9 + 2) * 5 * RATE
