"""Ways in which real servers differ from what their metrics' names promise: each a kind, with its right verdict."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.analysis.build import Bench, only, uuid
from wattline.analysis.boards import board
from wattline.analysis.causes import Cause
from wattline.analysis.observer import Observer
from wattline.analysis.plan import DeploymentPlan, EnginePlan, Plan
from wattline.analysis.snapshot import DeploymentView, State
from wattline.readings import EngineReading, GpuActivity, GpuCondition, GpuIdentity, GpuSample, ReadingError

READING = EngineReading(t=0, engine="head", up=True, running=0, queued=0)


class TestFinishedRequests:
    def engine(self, seconds: int, *, front: float, ends_per_second: float, inside: float) -> DeploymentView:
        """A front that shows ``front``, while requests that end tell that ``inside`` are held."""
        bench = Bench()
        for _ in range(seconds // 5):
            ended = (bench.reading.finished_requests or 0.0) + 5 * ends_per_second
            spent = (bench.reading.request_seconds or 0.0) + (5 * inside if ends_per_second else 0.0)
            bench.reading = replace(
                bench.reading, held_http=front, finished_requests=ended, request_seconds=spent, queued=0
            )
            view = only(bench.run(5, watts=100.0, work=0.0, tokens_per_second=73.0 if ends_per_second else 0.0))
        return view

    def test_a_front_that_shows_more_than_ends_tell_is_not_believed(self) -> None:
        view = self.engine(90, front=30.0, ends_per_second=5.0, inside=0.9)
        assert view.state in {State.WORKING, State.IDLE}
        assert view.work == pytest.approx(0.9)

    def test_one_text_whose_counters_fell_makes_no_crowd_later(self) -> None:
        """A damaged text shows all counters at 1; half a minute on it is the oldest that is compared with."""
        bench = Bench()
        held = []
        for poll in range(24):
            ended, spent = 100_000.0 + 25 * poll, 90_000.0 + 4.5 * poll
            odd = poll == 10
            bench.reading = replace(
                bench.reading,
                held_http=30.0,
                finished_requests=1.0 if odd else ended,
                request_seconds=1.0 if odd else spent,
            )
            tokens = bench.tokens
            bench.tokens = 1.0 if odd else max(tokens, 365.0 * poll)
            held.append(only(bench.run(5, watts=400.0, work=0.0, tokens_per_second=0.0 if odd else 73.0)).work)
            bench.tokens = max(bench.tokens, tokens)
        assert [h for h in held[2:10] + held[12:] if h is None or h > 1.0] == []

    def test_a_front_of_which_nothing_ends_stays_seen(self) -> None:
        view = self.engine(90, front=30.0, ends_per_second=0.0, inside=0.0)
        assert view.state in {State.STALLED, State.IDLE_WHILE_BUSY}

    def test_ends_tell_what_gauges_of_the_last_step_miss(self) -> None:
        """24 clients, open throughout; between steps the gauges are 0, and the GPU idles."""
        bench = Bench(gpus=1)
        polls = [24, 0, 0, 0, 17, 24, 0, 4, 24, 24, 0, 23, 24, 19, 0, 8]
        for number in polls:
            bench.reading = replace(
                bench.reading,
                finished_requests=(bench.reading.finished_requests or 0.0) + 60,
                request_seconds=(bench.reading.request_seconds or 0.0) + 5 * 19.0,
            )
            view = only(bench.run(5, watts=90.0, work=float(number), tokens_per_second=3_900.0))
        assert view.state is State.IDLE_WHILE_BUSY, "19 are inside by what has ended"


class TestTwoRoles:
    PLAN = Plan((DeploymentPlan("pd", (EnginePlan("p"), EnginePlan("d"))),))

    def run(self, *, decodes: bool, bootstrap: float = 8.0, queue: float = 0.0) -> DeploymentView:
        """Prefill ``p`` only waits for its peer; decode ``d`` makes tokens, or hangs too."""
        observer = Observer(self.PLAN)
        for i in range(8):
            observer.observe(GpuIdentity(uuid(i), i))
        for second in range(1, 91):
            t = 1000.0 + second
            for i in range(8):
                watts = 420.0 if i >= 4 and decodes else 90.0
                observer.observe(GpuSample(t, uuid(i), power_watts=watts, utilization_ratio=0.0 if i < 4 else 0.97))
            if second % 5 == 0:
                for i in range(8):
                    observer.observe(GpuCondition(t, uuid(i), limit_enforced_watts=600.0))
                observer.observe(
                    replace(
                        READING, t=t, engine="p", queued=bootstrap + queue, waiting_for_peer=bootstrap, progress=(1.0,)
                    )
                )
                made = 21_845.0 * t if decodes else 7.0
                decode = replace(READING, t=t, engine="d", running=20, progress=(made,), generation_tokens=made)
                observer.observe(decode)
            view = only(observer.judge(t))
        return view

    def test_what_waits_for_a_peer_that_works_is_no_stall(self) -> None:
        view = self.run(decodes=True)
        assert view.state is State.WORKING
        assert view.pending is None, "and none is announced"

    def test_what_waits_here_while_the_peer_works_is_one(self) -> None:
        view = self.run(decodes=True, queue=20.0)
        assert view.state is State.STALLED
        assert view.reason.startswith("p held requests"), "the engine is named, not the deployment"

    def test_when_neither_moves_both_are_stalled(self) -> None:
        assert self.run(decodes=False).state is State.STALLED


class TestNoLimit:
    """A GB10 tells no limit, no memory and no energy."""

    def test_tokens_that_come_are_work(self) -> None:
        view = only(Bench(gpus=1, limit=None).run(90, watts=45.0, work=12.0, tokens_per_second=120.0))
        assert view.state is State.WORKING
        assert view.tdp_fraction is None
        assert "tells no power limit" in view.reason

    def test_none_for_five_minutes_is_a_stall(self) -> None:
        bench = Bench(gpus=1, limit=None)
        bench.run(60, watts=45.0, work=12.0, tokens_per_second=120.0)
        assert only(bench.run(200, watts=22.0, work=12.0)).state is State.UNKNOWN
        assert only(bench.run(120, watts=22.0, work=12.0)).state is State.STALLED


class TestMig:
    def mig(self, watts: float, work: float, tokens: float) -> DeploymentView:
        bench = Bench(gpus=1, limit=700.0, identity=GpuIdentity("", 0, mig=True))
        bench.sample = GpuSample(t=0, uuid="")
        return only(bench.run(90, watts=watts, work=work, tokens_per_second=tokens))

    @pytest.mark.parametrize(("watts", "work"), [(132.0, 12.0), (150.0, 40.0)])
    def test_a_boards_power_says_nothing_of_one_instance(self, watts: float, work: float) -> None:
        view = self.mig(watts, work, 300.0)
        assert view.state is State.WORKING
        assert "MIG" in view.reason

    def test_no_token_is_a_stall_on_an_instance_too(self) -> None:
        assert self.mig(132.0, 12.0, 0.0).state is State.STALLED


class TestAnotherModel:
    def test_another_model_behind_the_address_begins_anew(self) -> None:
        bench = Bench(gpus=1)
        bench.reading = replace(bench.reading, model="model-a")
        bench.run(60, watts=400.0, work=8.0, tokens_per_second=500.0)
        bench.reading = replace(bench.reading, model="model-b")
        bench.tokens = 2_000_000.0
        view = only(bench.run(60, watts=400.0, work=8.0, tokens_per_second=500.0))
        assert view.tokens_per_second["generation"] == pytest.approx(500.0, rel=0.01)

    def test_a_model_that_is_added_is_none(self) -> None:
        bench = Bench(gpus=1)
        bench.reading = replace(bench.reading, model="model-a")
        bench.run(60, watts=400.0, work=8.0, tokens_per_second=500.0)
        bench.reading = replace(bench.reading, model="model-a, model-b")
        view = only(bench.run(60, watts=90.0, work=8.0, tokens_per_second=500.0))
        assert view.state is State.IDLE_WHILE_BUSY, "no grace is granted"


class TestFirstTokens:
    def test_a_counter_that_appears_with_the_first_token_counts_from_0(self) -> None:
        """SGLang after its start: no token series until the first request, then 2,764 generated ones."""
        bench = Bench(gpus=1)
        bench.run(10, watts=400.0, work=0.0, tokens_per_second=None)
        bench.tokens = 2_764.0
        snapshot = bench.run(5, watts=400.0, work=1.0, tokens_per_second=0.0)
        assert snapshot.engines[0].generation_tokens_total == 2_764.0

    def test_one_that_could_not_be_read_does_not(self) -> None:
        bench = Bench(gpus=1)
        before, bench.reading = bench.reading, replace(bench.reading, errors=(ReadingError("tokens", "bad_line"),))
        bench.run(10, watts=400.0, work=0.0, tokens_per_second=None)
        bench.reading, bench.tokens = before, 2_764.0
        snapshot = bench.run(5, watts=400.0, work=1.0, tokens_per_second=0.0)
        assert snapshot.engines[0].generation_tokens_total == 0.0


class TestAsleep:
    def test_an_engine_that_sleeps_is_no_claim_and_is_said(self) -> None:
        bench = Bench(gpus=1)
        bench.reading = replace(bench.reading, asleep=True)
        view = only(bench.run(90, watts=90.0, work=40.0))
        assert view.state is State.UNKNOWN
        assert "head sleeps" in view.reason


class TestActivity:
    def busy(self, watts: float, *, sm_active_ratio: float, dram_active_ratio: float) -> DeploymentView:
        bench = Bench(gpus=1)
        bench.activity = GpuActivity(t=0, uuid="", sm_active_ratio=sm_active_ratio, dram_active_ratio=dram_active_ratio)
        return only(bench.run(90, watts=watts, work=64.0, tokens_per_second=4_000.0))

    def test_measured_activity_forbids_idleness(self) -> None:
        view = self.busy(117.0, sm_active_ratio=0.95, dram_active_ratio=0.92)
        assert view.state is State.WORKING
        assert [s.cause for s in view.suspicions] == [Cause.MEMORY_BOUND]
        assert view.bandwidth_ratio == pytest.approx(0.92)

    def test_a_loaded_decode_that_uses_its_memory_works_at_any_power(self) -> None:
        assert self.busy(258.0, sm_active_ratio=0.7, dram_active_ratio=0.8).state is State.WORKING

    def test_little_activity_forbids_nothing(self) -> None:
        """A starved server on an H200: 5 % SM, 5 % memory."""
        assert self.busy(117.0, sm_active_ratio=0.05, dram_active_ratio=0.05).state is State.IDLE_WHILE_BUSY

    def test_work_that_utilisation_does_not_see_is_no_idleness(self) -> None:
        """llama.cpp computes by Vulkan: an H200 at 217 of 700 W shows utilisation 0.01 and 18 % SM activity."""
        bench = Bench(gpus=1, limit=700.0)
        bench.sample = GpuSample(t=0, uuid="", utilization_ratio=0.01)
        bench.activity = GpuActivity(t=0, uuid="", sm_active_ratio=0.18, dram_active_ratio=0.03)
        view = only(bench.run(90, watts=217.0, work=16.0, tokens_per_second=11.0))
        assert view.state is State.WORKING
        assert Cause.NOT_FED not in {s.cause for s in view.suspicions}

    def test_an_engines_own_estimate_tells_where_nobody_measures(self) -> None:
        """2 TB/s read and 0.4 TB/s written of 4.8 TB/s: half of the memory's bandwidth."""
        bench = Bench(gpus=1, identity=GpuIdentity("", 0, name="NVIDIA H200"))
        for _ in range(18):
            read, written, flops = (bench.reading.read_bytes, bench.reading.write_bytes, bench.reading.flops)
            bench.reading = replace(
                bench.reading,
                read_bytes=(read or 0.0) + 5 * 2.0e12,
                write_bytes=(written or 0.0) + 5 * 0.4e12,
                flops=(flops or 0.0) + 5 * 98.95e12,
            )
            view = only(bench.run(5, watts=110.0, work=64.0, tokens_per_second=4_000.0))
        assert view.bandwidth_ratio == pytest.approx(0.5)
        assert view.flops_ratio == pytest.approx(0.1)
        assert view.state is State.LOW_POWER, "it works, on half of what it could; idle it is not"

    @pytest.mark.parametrize(
        ("name", "gigabytes"),
        [("NVIDIA H200", 4800), ("NVIDIA H200 NVL", 4800), ("NVIDIA A100-SXM4-80GB", 2039), ("NVIDIA L40S", 864)],
    )
    def test_a_board_is_known_by_its_name(self, name: str, gigabytes: float) -> None:
        found = board(name)
        assert found is not None
        assert found.bytes_per_second == gigabytes * 1e9

    def test_another_board_is_not_guessed(self) -> None:
        assert board("NVIDIA L400") is None
        assert board("NVIDIA GeForce RTX 5090") is None


class TestOnset:
    def test_a_state_counts_from_its_onset_also_over_a_blip(self) -> None:
        bench = Bench()
        bench.run(120, watts=87.0, work=64.0, tokens_per_second=10.0)
        since = only(bench.run(5, watts=87.0, work=64.0, tokens_per_second=10.0)).since
        bench.run(5, watts=None, work=64.0, tokens_per_second=10.0)
        view = only(bench.run(15, watts=87.0, work=64.0, tokens_per_second=10.0))
        assert view.state is State.IDLE_WHILE_BUSY
        assert view.since == since

    def test_what_comes_is_said_before_the_window_is_full(self) -> None:
        bench = Bench()
        bench.run(120, watts=400.0, work=64.0, tokens_per_second=900.0)
        view = only(bench.run(20, watts=87.0, work=64.0, tokens_per_second=10.0))
        assert view.state is State.WORKING
        assert view.pending is not None
        assert view.pending.state is State.IDLE_WHILE_BUSY
        assert view.pending.seconds == pytest.approx(19.0)

    def test_nothing_comes_of_a_state_that_is_there_and_none_of_a_sound_one(self) -> None:
        bench = Bench()
        assert only(bench.run(70, watts=400.0, work=64.0, tokens_per_second=900.0)).pending is None
        assert only(bench.run(120, watts=87.0, work=64.0, tokens_per_second=10.0)).pending is None

    def test_the_first_minute_says_how_long_it_has_watched(self) -> None:
        bench = Bench()
        assert only(bench.run(20, watts=87.0, work=64.0)).watched_seconds == pytest.approx(19.0)
        assert only(bench.run(90, watts=87.0, work=64.0)).watched_seconds == 60.0
