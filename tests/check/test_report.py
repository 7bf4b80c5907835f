"""How a check sums up what it has watched."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest

from wattline.analysis.causes import Cause, Suspicion
from wattline.analysis.plan import DeploymentPlan, Plan
from wattline.analysis.snapshot import DeploymentView, EngineView, GpuMeans, GpuView, Pending, Snapshot, State
from wattline.check.render import plain
from wattline.check.report import Watched, report
from wattline.check.watch import at_once, run, shortened
from wattline.config import ConfigError, parse
from wattline.readings import EngineReading, GpuCondition, GpuIdentity, GpuProcess, GpuSample

PLAN = Plan(deployments=(DeploymentPlan("a"),), window=3.0)
UUID = "GPU-a"
HEALTHY = DeploymentView("a", State.WORKING, "80.0% of the power limit", 0.0, (UUID,), ("head",))


def snapshot(t: float, *views: DeploymentView) -> Snapshot:
    gpu = GpuView(
        GpuIdentity(UUID, 0),
        "a",
        up=True,
        sample=GpuSample(t, UUID, power_watts=139.0, utilization_ratio=1.0),
        means=GpuMeans(power_watts=268.0, utilization_ratio=0.5, event_reasons={"sw_power_cap": 0.75, "gpu_idle": 1.0}),
    )
    return Snapshot(t=t, gpus=(gpu,), deployments=views or (replace(HEALTHY, power_watts=268.0),))


def test_the_last_reading_and_the_mean_of_the_window_are_two_numbers() -> None:
    told = report([snapshot(1.0)], PLAN)
    (gpu,), (deployment,) = told.gpus, told.deployments
    assert (gpu.power_watts, gpu.power_mean_watts) == (139.0, 268.0)
    assert (gpu.utilization_ratio, gpu.utilization_mean_ratio) == (1.0, 0.5)
    assert (deployment.power_watts, deployment.power_mean_watts) == (139.0, 268.0)
    assert "268 W" in plain(told), "the table stands beside a verdict over the window"


def test_what_is_coming_is_printed() -> None:
    text = plain(
        report([snapshot(1.0, replace(HEALTHY, pending=Pending(State.LOW_POWER, 12.0), flops_ratio=0.5))], PLAN)
    )
    assert "  Coming: Low power, if this goes on: its signs have been there for 12s.\n" in text
    assert "50 % of the compute peak" in text


def test_the_table_says_whose_a_gpu_is_where_there_are_several_deployments() -> None:
    one = snapshot(1.0)
    lost = GpuView(GpuIdentity("GPU-b", 1), "b", up=False)
    spare = replace(one.gpus[0], identity=GpuIdentity("GPU-c", 2), deployment="")
    text = plain(report([replace(one, gpus=(*one.gpus, lost, spare))], PLAN))
    rows = [line.split()[:3] for line in text.splitlines()[2:6]]
    assert rows == [["GPU", "Deployment", "Power"], ["0", "a", "268"], ["1", "b", "lost"], ["2", "none", "268"]]
    assert "Deployment" not in plain(report([one], PLAN))


def test_an_idle_gpu_is_not_held_back() -> None:
    (gpu,) = report([snapshot(1.0)], PLAN).gpus
    assert gpu.held_back == {"sw_power_cap": 0.75}


def test_the_time_that_was_watched_and_the_window_are_told_apart() -> None:
    long = report((snapshot(float(t)) for t in range(11)), PLAN)
    short = report((snapshot(float(t)) for t in range(3)), PLAN)
    assert (long.watched_seconds, long.window_seconds) == (10.0, 3.0)
    assert (short.watched_seconds, short.window_seconds) == (2.0, 2.0)


@pytest.mark.parametrize(
    ("state", "cause", "code"),
    [
        (State.WORKING, None, 0),
        (State.IDLE, None, 0),
        (State.SATURATED, Cause.POWER_CAPPED, 0),
        (State.WORKING, Cause.MEMORY_BOUND, 0),
        (State.IDLE_WHILE_BUSY, None, 1),
        (State.STALLED, None, 1),
        (State.LOW_POWER, None, 1),
        (State.WORKING, Cause.BATCH_LIMITED, 1),
        (State.WORKING, Cause.THROTTLED, 1),
        (State.WORKING, Cause.LINK_DEGRADED, 1),
        (State.WORKING, Cause.PARTIAL_IDLE, 1),
        (State.WORKING, Cause.HOST_BOUND, 1),
        (State.IDLE, Cause.SPINNING, 1),
        (State.UNKNOWN, None, 2),
    ],
)
def test_exit_code_of_one_deployment(state: State, cause: Cause | None, code: int) -> None:
    view = replace(HEALTHY, state=state, suspicions=(Suspicion(cause, "seen"),) if cause else ())
    assert report([snapshot(1.0, view)], PLAN).exit_code == code


def test_a_finding_counts_more_than_what_could_not_be_told_and_that_more_than_health() -> None:
    unknown, bad = replace(HEALTHY, name="b", state=State.UNKNOWN), replace(HEALTHY, name="c", state=State.STALLED)
    assert report([snapshot(1.0, HEALTHY, unknown)], PLAN).exit_code == 2
    assert report([snapshot(1.0, HEALTHY, unknown, bad)], PLAN).exit_code == 1


def first_step(
    view: DeploymentView, *gpus: GpuView, held: tuple[bool, ...] = (), everything: tuple[GpuView, ...] | None = None
) -> tuple[str, str | None]:
    """The first thing to look at, with its command; ``held`` says whether a process holds each GPU."""
    placed = (
        [
            replace(
                gpu,
                condition=GpuCondition(1.0, gpu.identity.uuid, processes=(GpuProcess(1),) if busy else ()),
            )
            for gpu, busy in zip(gpus, held, strict=True)
        ]
        if held
        else list(gpus)
    )
    view = replace(view, gpus=tuple(g.identity.uuid for g in gpus))
    shown = Snapshot(t=1.0, gpus=tuple(placed) if everything is None else everything, deployments=(view,))
    (deployment,) = report([shown], PLAN).deployments
    step = deployment.next_steps[0]
    return step.what, step.command


class TestNextSteps:
    @staticmethod
    def gpu(index: int, *, watts: float | None = 123.0, limit: float | None = 700.0) -> GpuView:
        uuid = f"GPU-{index}"
        sample = GpuSample(1.0, uuid, power_watts=watts)
        return GpuView(GpuIdentity(uuid, index), "a", up=True, sample=sample, limit_watts=limit)

    PARTLY = replace(HEALTHY, state=State.LOW_POWER, suspicions=(Suspicion(Cause.PARTIAL_IDLE, "7 GPUs idle"),))
    UNSEEN = replace(HEALTHY, state=State.UNKNOWN, reason="watching for 22 s of the 30 s")

    def test_gpus_that_no_process_holds_may_not_be_the_servers(self) -> None:
        """One of four, with no configuration, which takes all."""
        gpus = [self.gpu(n) for n in range(4)]
        what, command = first_step(self.PARTLY, *gpus, held=(False, True, True, False))
        assert "uses only some of the GPUs" in what
        assert command == "wattline check --gpus 1,2"

    @pytest.mark.parametrize("held", [(True, True), (False, False), ()])
    def test_nothing_is_named_where_processes_do_not_tell_them_apart(self, held: tuple[bool, ...]) -> None:
        _, command = first_step(self.PARTLY, self.gpu(0), self.gpu(1), held=held)
        assert command is not None
        assert not command.startswith("wattline check")

    def test_power_is_asked_for_where_it_is_not_told_and_else_time(self) -> None:
        view = replace(self.UNSEEN, engines=())
        steps = report([self.with_engine(view, self.gpu(0))], PLAN).deployments[0].next_steps
        assert [s.command for s in steps] == ["wattline check --for 2m"]
        for gpu in (self.gpu(0, watts=None), self.gpu(0, limit=None)):
            steps = report([self.with_engine(view, gpu)], PLAN).deployments[0].next_steps
            assert [s.command for s in steps] == ["nvidia-smi -q -d POWER"]

    @staticmethod
    def with_engine(view: DeploymentView, gpu: GpuView) -> Snapshot:
        engine = EngineView("head", "http://h/metrics", "a", EngineReading(1.0, "head", up=True))
        view = replace(view, engines=("head",), gpus=(gpu.identity.uuid,))
        return Snapshot(t=1.0, gpus=(gpu,), engines=(engine,), deployments=(view,))

    def test_where_no_gpu_is_known_none_is_lost(self) -> None:
        """A configured one is not visible, since nothing is: first the driver."""
        view = replace(self.UNSEEN, unresolved_gpus=("0",))
        what, _ = first_step(view)
        assert what.startswith("Whether the driver works here")
        what, _ = first_step(view, everything=(self.gpu(5),))
        assert what == "Which GPUs the driver still has"


def test_nothing_watched_is_no_health() -> None:
    with pytest.raises(ValueError, match="nothing was watched"):
        Watched(PLAN).report()


async def test_an_empty_recording_could_not_be_told() -> None:
    out, err = io.StringIO(), io.StringIO()
    assert await run(at_once(()), PLAN, out=out, err=err) == 2
    assert out.getvalue() == ""
    assert err.getvalue() == "Nothing was watched, and there is no verdict.\n"


async def test_a_note_stands_in_the_answer() -> None:
    out = io.StringIO()
    await run(at_once([snapshot(1.0)]), PLAN, out=out, note=lambda: "the recording was cut short")
    assert out.getvalue().splitlines()[1] == "The recording was cut short."


def test_a_short_watch_looks_at_no_more_than_itself() -> None:
    config = shortened(parse("", "defaults"), 30.0)
    assert (config.window, config.engine_interval, config.sample_interval) == (30.0, 5.0, 1.0)
    config = shortened(parse("", "defaults"), 12.0)
    assert (config.window, config.engine_interval, config.sample_interval) == (12.0, 2.0, 1.0)


def test_a_long_watch_keeps_the_configured_window() -> None:
    assert shortened(parse("window: 2m", "a.yml"), 600.0).window == 120.0


def test_a_watch_that_is_too_short_is_refused() -> None:
    with pytest.raises(ConfigError, match="--for: expected at least 10s, found 3s"):
        shortened(parse("", "defaults"), 3.0)
