"""A GPU cut into MIG instances: power belongs to the board, and nothing false is derived from what is not told."""

from __future__ import annotations

from dataclasses import replace

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from tests.analysis.build import Bench, only
from wattline.analysis.causes import Cause
from wattline.analysis.snapshot import Snapshot, State
from wattline.publish.collector import SnapshotCollector
from wattline.readings import GpuActivity, GpuIdentity, GpuSample, ReadingError

NOT_TOLD = (ReadingError("utilization", "not_supported"),)


def bench() -> Bench:
    """A cut board tells no utilisation (NVML_ERROR_NOT_SUPPORTED)."""
    return Bench(
        gpus=1,
        identity=GpuIdentity(uuid="", index=0, mig=True, p2p_peers=0, nvlink_active=False),
        sample=GpuSample(t=0, uuid="", errors=NOT_TOLD),
        activity=GpuActivity(t=0, uuid=""),
    )


def published(snapshot: Snapshot) -> str:
    registry, collector = CollectorRegistry(), SnapshotCollector()
    collector.snapshot = snapshot
    registry.register(collector)
    return generate_latest(registry).decode()


def test_it_is_shown_as_such_and_its_utilisation_is_absent() -> None:
    text = published(bench().run(90, watts=300.0, work=40, tokens_per_second=500.0))
    (info,) = [line for line in text.splitlines() if line.startswith("wattline_gpu_info{")]
    assert 'mig="on"' in info
    assert "wattline_gpu_power_watts{" in text
    for absent in (
        "wattline_gpu_utilization_ratio{",
        "wattline_gpu_memory_busy_ratio{",
        "wattline_gpu_sm_active_ratio{",
    ):
        assert absent not in text


def test_no_verdict_is_given_by_the_power_of_a_board_that_instances_share() -> None:
    """One instance of seven that works draws little of the board's power, and an idle one beside a busy one much."""
    for watts in (60.0, 300.0):
        view = only(bench().run(90, watts=watts, work=40, tokens_per_second=50.0))
        assert view.state is State.WORKING
        assert "MIG" in view.reason
    assert only(bench().run(90, watts=60.0, work=40)).state is State.STALLED


def test_no_cause_is_suspected_that_rests_on_utilisation() -> None:
    deployment = only(bench().run(90, watts=60.0, work=40, tokens_per_second=5.0))
    suspected = {s.cause for s in deployment.suspicions}
    assert suspected.isdisjoint({Cause.NOT_FED, Cause.SPINNING, Cause.HOST_BOUND, Cause.MEMORY_BOUND})
    assert any("utilisation" in what.lower() for what in deployment.unseen), deployment.unseen


def test_an_idle_floor_is_not_learned_where_utilisation_cannot_rule_out_others() -> None:
    """Another instance of the board may be at work while this engine idles."""
    b = bench()
    (gpu,) = b.run(600, watts=250.0, work=0).gpus
    assert gpu.idle_floor is not None
    assert gpu.idle_floor.source == "assumed"
    assert gpu.idle_floor.watts == pytest.approx(90.0)


def test_utilisation_that_is_not_told_is_not_stuck() -> None:
    (gpu,) = bench().run(90, watts=60.0).gpus
    assert gpu.utilization_stuck is None


def test_a_board_that_is_not_cut_learns_its_floor() -> None:
    """The other way round: what the tests above expect comes from MIG, not from the bench."""
    b = bench()
    b.identity = replace(b.identity, mig=False)
    b.sample = replace(b.sample, utilization_ratio=0.0, errors=())
    (gpu,) = b.run(600, watts=80.0, work=0).gpus
    assert gpu.idle_floor is not None
    assert (gpu.idle_floor.source, gpu.idle_floor.watts) == ("learned", pytest.approx(80.0))
