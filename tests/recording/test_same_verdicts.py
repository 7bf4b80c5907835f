"""What an observer saw live, its recording shows again: every number of every verdict."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.recording.make import path_of
from tests.recording.simulated import plan, watch
from wattline.analysis.observer import Observer
from wattline.analysis.plan import DeploymentPlan, EnginePlan, GpuOverride, Plan
from wattline.analysis.snapshot import SourceView, State
from wattline.analysis.thresholds import Thresholds
from wattline.readings import (
    EngineReading,
    GpuActivity,
    GpuCondition,
    GpuGone,
    GpuIdentity,
    GpuProcess,
    GpuSample,
    ReadingError,
)
from wattline.recording.layout import Judged, Restored
from wattline.recording.reader import read_recording
from wattline.recording.replay import replay
from wattline.recording.writer import RecordingObserver, RecordingWriter

if TYPE_CHECKING:
    from pathlib import Path

    from wattline.analysis.snapshot import Snapshot
    from wattline.recording.layout import Event

UUIDS = ("GPU-aaaaaaaa-0000-0000-0000-000000000001", "GPU-aaaaaaaa-0000-0000-0000-000000000002")
PLAN = Plan(
    deployments=(
        DeploymentPlan("one", (EnginePlan("a", "http://a/metrics"), EnginePlan("b", count_tokens=False)), (0,)),
        DeploymentPlan("rest", (EnginePlan("c"),)),
    ),
    window=10.0,
    overrides={UUIDS[1]: GpuOverride(idle_power_watts=80.0)},
    thresholds=Thresholds(busy_requests=2.0),
)


def maybe(strategy: st.SearchStrategy[float]) -> st.SearchStrategy[float | None]:
    return st.none() | strategy


WATTS = maybe(st.floats(0.0, 1500.0))
RATIO = maybe(st.floats(0.0, 1.0))
COUNT = maybe(st.floats(0.0, 1e12))
ERRORS = st.lists(st.builds(ReadingError, st.just("power"), st.sampled_from(("not_supported", "unknown")))).map(tuple)
UUID = st.sampled_from(UUIDS)
T = st.just(0.0)

EVENTS: st.SearchStrategy[Event] = st.one_of(
    st.builds(GpuIdentity, uuid=UUID, index=st.integers(0, 1), p2p_peers=st.none() | st.integers(0, 7)),
    st.builds(
        GpuSample,
        t=T,
        uuid=UUID,
        power_watts=WATTS,
        power_instant_watts=WATTS,
        energy_joules=COUNT,
        power_samples_watts=st.lists(st.integers(0, 900).map(float), max_size=5).map(tuple),
        utilization_ratio=RATIO,
        memory_busy_ratio=RATIO,
        sm_clock_hertz=COUNT,
        event_reasons=st.none() | st.frozensets(st.sampled_from(("sw_power_cap", "hw_slowdown", "gpu_idle"))),
        errors=ERRORS,
    ),
    st.builds(
        GpuActivity,
        t=T,
        uuid=UUID,
        pcie_transmit_bytes_per_second=COUNT,
        pcie_receive_bytes_per_second=COUNT,
        pcie_link_generation=st.none() | st.integers(1, 7),
        pcie_link_generation_max=st.none() | st.integers(1, 7),
        pcie_link_width=st.sampled_from((None, 8, 16)),
        pcie_link_width_max=st.sampled_from((None, 8, 16)),
        sm_active_ratio=RATIO,
        dram_active_ratio=RATIO,
    ),
    st.builds(
        GpuCondition,
        t=T,
        uuid=UUID,
        limit_enforced_watts=WATTS,
        limit_default_watts=WATTS,
        processes=st.none() | st.lists(st.builds(GpuProcess, pid=st.integers(1, 9)), max_size=2).map(tuple),
    ),
    st.builds(
        EngineReading,
        t=T,
        engine=st.sampled_from(("a", "b", "c", "of nobody")),
        up=st.booleans(),
        error=st.none() | st.just("timeout"),
        running=COUNT,
        queued=COUNT,
        generation_tokens=COUNT,
        generation_tokens_source=st.sampled_from((None, "live", "finished")),
        progress=st.lists(st.floats(0.0, 1e9), max_size=2).map(tuple),
        scheduler_idle_seconds=COUNT,
        gauge_lag_seconds=st.sampled_from((0.0, 30.0)),
    ),
    # Servers are found, or lost sight of, while it is recorded.
    st.sampled_from(
        (PLAN, replace(PLAN, deployments=()), replace(PLAN, deployments=PLAN.deployments[:1], window=20.0))
    ),
    st.builds(GpuGone, t=st.just(0.0), uuid=UUID, forgotten=st.booleans()),
    st.builds(Restored, uuid=UUID, watts=st.floats(1.0, 400.0)),
    st.builds(
        Judged,
        t=T,
        sources=st.lists(
            st.builds(SourceView, name=st.just("nvml"), up=st.booleans(), errors=st.just({"unknown": 1})), max_size=1
        ).map(tuple),
    ),
)


@settings(max_examples=150, deadline=None)
@given(events=st.lists(st.tuples(st.floats(0.0, 4.0), EVENTS), max_size=60))
def test_any_readings_give_the_same_verdicts_live_and_from_the_recording(
    tmp_path_factory: pytest.TempPathFactory, events: list[tuple[float, Event]]
) -> None:
    path = tmp_path_factory.mktemp("recording") / "file.gz"
    t = 1000.0
    live: list[Snapshot] = []
    with RecordingWriter(path, PLAN) as writer:
        observer = RecordingObserver(PLAN, writer)
        for step, event in events:
            t += step
            match event:
                case Restored(uuid=uuid, watts=watts):
                    observer.restore_idle(uuid, watts)
                case Judged(sources=sources):
                    live.append(observer.judge(t, sources or ()))
                case Plan():
                    observer.replan(event)
                case GpuIdentity():
                    observer.observe(event)
                case _:
                    observer.observe(replace(event, t=t))
    recording = read_recording(path)
    assert list(replay(recording)) == live
    assert recording.cut_short == ""


def test_what_is_found_while_it_is_recorded_is_judged_in_the_replay_unless_another_plan_is_asked_for(
    tmp_path: Path,
) -> None:
    path = tmp_path / "file.gz"
    none, found = replace(PLAN, deployments=()), PLAN
    with RecordingWriter(path, none, anonymous=True) as writer:
        observer = RecordingObserver(none, writer)
        observer.judge(1.0)
        observer.replan(found)
        observer.replan(found)
        observer.judge(2.0)
    recording = read_recording(path)
    (noted,) = (event for event in recording if isinstance(event, Plan))
    names = [d.name for d in noted.deployments] + [e.name for d in noted.deployments for e in d.engines]
    assert names == ["deployment-1", "deployment-2", "engine-1", "engine-2", "engine-3"]
    assert UUIDS[1] not in str(noted)
    assert "http" not in str(noted)
    assert [len(verdict.deployments) for verdict in replay(recording)] == [0, 2]
    assert [len(verdict.deployments) for verdict in replay(recording, none)] == [0, 0]


@pytest.mark.parametrize("scenario", ["collectives", "gpu_lost"])
def test_a_simulated_phase_gives_the_same_verdicts_live_and_from_the_recording(tmp_path: Path, scenario: str) -> None:
    path = tmp_path / "file.gz"
    with RecordingWriter(path, plan(30.0)) as writer:
        observer = RecordingObserver(plan(30.0), writer)
        live = list(watch(observer, scenario, 40.0, 100.0, power_samples=True))
    assert live[-1].gpus[0].power_fraction_buckets, "the histogram is part of what is compared"
    assert list(replay(read_recording(path))) == live


def test_recording_does_not_change_the_verdicts(tmp_path: Path) -> None:
    with RecordingWriter(tmp_path / "file.gz", plan(30.0)) as writer:
        recorded = list(watch(RecordingObserver(plan(30.0), writer), "collectives", 0.0, 40.0))
    assert recorded == list(watch(Observer(plan(30.0)), "collectives", 0.0, 40.0))


def test_an_idle_floor_that_was_known_before_counts_in_the_replay_too(tmp_path: Path) -> None:
    path = tmp_path / "file.gz"
    with RecordingWriter(path, PLAN) as writer:
        observer = RecordingObserver(PLAN, writer)
        observer.restore_idle(UUIDS[0], 61.0)
        observer.observe(GpuIdentity(UUIDS[0], 0))
        observer.observe(GpuCondition(1.0, UUIDS[0], limit_enforced_watts=600.0))
        observer.observe(GpuSample(1.0, UUIDS[0], power_watts=300.0))
        observer.judge(1.0)
    (snapshot,) = replay(read_recording(path))
    floor = snapshot.gpus[0].idle_floor
    assert floor is not None
    assert (floor.watts, floor.source) == (61.0, "learned")


def test_a_gpu_that_is_lost_is_lost_in_the_replay_too(tmp_path: Path) -> None:
    path = tmp_path / "file.gz"
    with RecordingWriter(path, PLAN) as writer:
        observer = RecordingObserver(PLAN, writer)
        observer.observe(GpuIdentity(UUIDS[0], 0))
        observer.observe(GpuSample(1.0, UUIDS[0], power_watts=300.0))
        there = observer.judge(1.0)
        observer.observe(GpuGone(2.0, UUIDS[0]))
        gone = observer.judge(2.0)
        observer.observe(GpuIdentity(UUIDS[0], 0))
        back = observer.judge(2.5)
    assert [s.gpus[0].up for s in (there, gone, back)] == [True, False, True]
    assert list(replay(read_recording(path))) == [there, gone, back]


def test_a_gpu_that_is_forgotten_is_forgotten_in_the_replay_too(tmp_path: Path) -> None:
    path = tmp_path / "file.gz"
    with RecordingWriter(path, PLAN) as writer:
        observer = RecordingObserver(PLAN, writer)
        for index in range(2):
            observer.observe(GpuIdentity(UUIDS[index], index))
            observer.observe(GpuSample(1.0, UUIDS[index], power_watts=300.0))
        live = [observer.judge(1.0)]
        observer.observe(GpuGone(1.5, UUIDS[1], forgotten=True))
        observer.observe(GpuGone(1.5, "GPU-never-seen"))
        live.append(observer.judge(2.0))
    assert [[g.identity.index for g in s.gpus] for s in live] == [[0, 1], [0]]
    assert [g.identity.uuid for g in list(replay(read_recording(path)))[-1].gpus] == [UUIDS[0]]


def test_a_replay_may_judge_by_other_thresholds() -> None:
    recording = read_recording(path_of("collectives"))
    lenient = replace(recording.header.plan, thresholds=Thresholds(low_tdp_fraction=0.40))
    *_, recorded = replay(recording)
    *_, judged_anew = replay(recording, lenient)
    # 250 of 600 W is 0.417: below the default threshold of 0.45, above one of 0.40.
    assert recorded.deployments[0].state is State.LOW_POWER
    assert judged_anew.deployments[0].state is State.WORKING
