"""What is added up: once, whole, and to whom it belongs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.analysis.build import Bench, only, uuid
from wattline.analysis.observer import Observer
from wattline.analysis.plan import DeploymentPlan, EnginePlan, Plan
from wattline.analysis.snapshot import State
from wattline.publish.families import ENGINE_FAMILIES
from wattline.readings import EngineReading, GpuCondition, GpuIdentity, GpuSample

BOARD = GpuIdentity(uuid=uuid(0), index=0)


def gpu(observer: Observer, t: float, *, watts: float = 500.0, joules: float | None = None, index: int = 0) -> None:
    observer.observe(GpuSample(t=t, uuid=uuid(index), power_watts=watts, energy_joules=joules))


def published(observer: Observer, t: float) -> float:
    joules = observer.judge(t).gpus[0].energy_joules
    assert joules is not None
    return joules


class TestEnergy:
    @pytest.mark.parametrize("counter", [0.0, 100.0, 5e8])
    def test_a_counter_that_comes_late_goes_on_from_what_was_published(self, counter: float) -> None:
        """Whatever it begins at: a total that goes back, or leaps by all since the driver was loaded, is no reading."""
        observer = Observer(Plan(deployments=()))
        observer.observe(BOARD)
        shown = []
        for second in range(40):
            gpu(observer, second, joules=counter + 500.0 * second if second >= 20 else None)
            if second:
                shown.append(published(observer, second))
        assert shown == pytest.approx([500.0 * second for second in range(1, 40)])

    def test_a_counter_that_is_there_from_the_start_is_published_as_it_is(self) -> None:
        observer = Observer(Plan(deployments=()))
        observer.observe(BOARD)
        for second in range(3):
            gpu(observer, second, joules=7e6 + 500.0 * second)
        assert published(observer, 2) == 7e6 + 1000

    def test_what_a_gpu_draws_for_another_deployment_is_not_booked_when_it_comes_back(self) -> None:
        def plan(first: tuple[int, ...], second: tuple[int, ...]) -> Plan:
            return Plan(deployments=(DeploymentPlan("a", (), first), DeploymentPlan("b", (), second)))

        observer = Observer(plan((0,), (1,)))
        for index in (0, 1):
            observer.observe(replace(BOARD, uuid=uuid(index), index=index))
        booked: dict[str, float] = {}
        for second in range(301):
            if second == 100:
                observer.replan(plan((1,), (0,)))
            if second == 200:
                observer.replan(plan((0,), (1,)))
            gpu(observer, second, watts=500.0)
            gpu(observer, second, watts=100.0, index=1)
            for d in observer.judge(second).deployments:
                booked[d.name] = sum(d.state_energy_joules.values())
        # 500 W for 200 s and 100 W for 100 s, but for the two seconds in which the GPUs changed hands.
        assert booked["a"] == pytest.approx(200 * 500 + 100 * 100, abs=1100)
        assert booked["b"] == pytest.approx(200 * 100 + 100 * 500, abs=1100)


class TestTokens:
    @staticmethod
    def run(*, second_holds: float) -> dict[str, float]:
        plan = Plan(deployments=(DeploymentPlan("d", (EnginePlan("a"), EnginePlan("b"))),))
        observer = Observer(plan)
        observer.observe(BOARD)
        for second in range(120):
            gpu(observer, second)
            if second % 5 == 0:
                observer.observe(GpuCondition(t=second, uuid=uuid(0), limit_enforced_watts=600.0))
                told = EngineReading(t=second, engine="a", up=True, running=8, queued=0)
                observer.observe(replace(told, generation_tokens=2000.0 * second, generation_tokens_source="live"))
                observer.observe(replace(told, engine="b", running=second_holds))
        return only(observer.judge(119)).tokens_per_second

    def test_an_engine_that_works_and_tells_no_tokens_leaves_no_sum(self) -> None:
        assert self.run(second_holds=8) == {}

    def test_one_that_holds_nothing_makes_none(self) -> None:
        """Its counters appear with its first request."""
        assert self.run(second_holds=0) == {"generation": pytest.approx(2000)}


class TestOwnership:
    def test_a_gpu_that_two_deployments_name_belongs_to_the_first(self) -> None:
        """By its index in one and by its UUID in the other, which no look at the configuration can tell."""
        plan = Plan(deployments=(DeploymentPlan("a", (), (0,)), DeploymentPlan("b", (), (uuid(0),))))
        observer = Observer(plan)
        observer.observe(BOARD)
        for second in range(70):
            gpu(observer, second)
        a, b = observer.judge(69).deployments
        assert (a.gpus, a.power_watts) == ((uuid(0),), pytest.approx(500))
        assert (b.gpus, b.power_watts) == ((), None)
        assert (b.unresolved_gpus, b.foreign_gpus) == ((), {uuid(0): "a"})
        assert b.state is State.UNKNOWN
        assert b.reason == f"GPU {uuid(0)} belongs to a"

    def test_nothing_is_derived_while_the_gpu_of_one_process_is_not_known(self) -> None:
        observer = Observer(Plan(deployments=(DeploymentPlan("a", (), (0,), unplaced=("sglang::scheduler_TP1",)),)))
        observer.observe(BOARD)
        for second in range(70):
            gpu(observer, second)
        (a,) = observer.judge(69).deployments
        assert (a.state, a.power_watts, a.unplaced) == (State.UNKNOWN, None, ("sglang::scheduler_TP1",))
        assert a.reason == "the GPU of sglang::scheduler_TP1 is not known"

    def test_requests_that_another_exporter_counts_are_judged_by_and_not_published(self) -> None:
        bench = Bench(plan=Plan(deployments=(DeploymentPlan("glm5", (EnginePlan("head", count_tokens=False),)),)))
        snapshot = bench.run(90, watts=87.0, work=64.0, tokens_per_second=1000.0)
        assert only(snapshot).state is State.IDLE_WHILE_BUSY
        assert only(snapshot).work == 64
        assert only(snapshot).work_counted is None
        (engine,) = snapshot.engines
        told = {family.name: family.get(engine) for family in ENGINE_FAMILIES}
        assert told["engine_up"] == 1
        assert told["engine_running_requests"] is None
        assert told["engine_queued_requests"] is None
        assert told["engine_generation_tokens"] is None
