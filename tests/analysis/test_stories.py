"""The arithmetic of the two stories that Wattline exists for, on eight GPUs with a 600 W limit."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.analysis.build import Bench, only
from wattline.analysis.causes import Cause
from wattline.analysis.snapshot import State
from wattline.readings import GpuActivity


@pytest.mark.parametrize(("watts", "fraction"), [(87.0, 0.145), (250.0, 0.417), (330.0, 0.550)])
def test_power_is_a_share_of_the_limit_that_the_hardware_tells(watts: float, fraction: float) -> None:
    deployment = only(Bench().run(70, watts=watts, work=1024, tokens_per_second=3740))
    assert deployment.tdp_fraction == pytest.approx(fraction, abs=0.0005)


def test_a_thousand_requests_at_87_watts_are_idle_while_busy() -> None:
    bench = Bench()
    bench.sample = replace(bench.sample, utilization_ratio=0.0)
    deployment = only(bench.run(70, watts=87, work=1024, tokens_per_second=3740))
    assert deployment.state is State.IDLE_WHILE_BUSY
    assert [s.cause for s in deployment.suspicions] == [Cause.NOT_FED]


def test_full_utilisation_at_250_watts_is_low_power_and_collectives_are_suspected() -> None:
    bench = Bench(
        activity=GpuActivity(
            t=0,
            uuid="",
            pcie_transmit_bytes_per_second=12.5e9,
            pcie_receive_bytes_per_second=12.1e9,
            pcie_link_generation=5,
            pcie_link_generation_max=5,
            pcie_link_width=16,
            pcie_link_width_max=16,
        )
    )
    deployment = only(bench.run(70, watts=250, work=1024, tokens_per_second=3740))
    assert deployment.state is State.LOW_POWER
    assert Cause.COLLECTIVES_OVER_PCIE in {s.cause for s in deployment.suspicions}
    # 3,740 tok/s for 2,000 W.
    assert deployment.tokens_per_watt["generation"] == pytest.approx(1.87, rel=0.001)
    assert deployment.joules_per_token["generation"] == pytest.approx(1 / 1.87, rel=0.001)


def test_a_300_watt_limit_makes_250_watts_healthy() -> None:
    deployment = only(Bench(limit=300.0).run(70, watts=250, work=1024, tokens_per_second=3740))
    assert deployment.tdp_fraction == pytest.approx(0.833, abs=0.0005)
    assert deployment.state is State.WORKING


def test_330_of_600_watts_is_working_and_the_fraction_is_never_clamped() -> None:
    assert only(Bench().run(70, watts=330, work=1024, tokens_per_second=3740)).state is State.WORKING
    over = only(Bench().run(70, watts=640, work=1024, tokens_per_second=3740))
    assert over.tdp_fraction == pytest.approx(640 / 600)
    assert over.state is State.SATURATED


def test_the_throughput_of_a_finished_benchmark_is_never_divided_by_idle_power() -> None:
    """Tokens and energy are deltas between the same two polls: when the tokens end, their rate ends in the window."""
    bench = Bench()
    busy = only(bench.run(70, watts=250, work=1024, tokens_per_second=3740))
    assert busy.tokens_per_watt["generation"] == pytest.approx(1.87, rel=0.001)
    worst = 0.0
    for _ in range(80):
        after = only(bench.run(1, watts=87, work=0, tokens_per_second=0))
        worst = max(worst, after.tokens_per_watt["generation"])
    # The naive quotient is 3,740 / (8 x 87) = 5.37. No mixture of the two moments exceeds what was true of the first.
    assert worst == pytest.approx(1.87, rel=0.02)
    assert after.tokens_per_second["generation"] == 0
    assert after.tokens_per_watt["generation"] == 0
    assert after.joules_per_token == {}
    assert after.state is State.IDLE
