"""What weeks bring, in seconds: clocks that jump, GPUs that flap, engines that come and go, failures that stay."""

from __future__ import annotations

import argparse
import gc
import logging
import tracemalloc

import pytest

from bench.soak import DAY, growth, soak
from bench.virtual_time import run
from tests.analysis.build import Bench, only
from tests.hardening.world import World, busy, live
from tests.nvml.standin import StandIn
from wattline.analysis.snapshot import Snapshot, State

ENERGY = "wattline_gpu_energy_joules_total"
STATE_SECONDS = "wattline_deployment_state_seconds_total"
STATE_JOULES = "wattline_deployment_state_energy_joules_total"
WATTS = 122.631


def spent(snapshot: Snapshot) -> tuple[float, float]:
    """Seconds and joules in all states together."""
    deployment = only(snapshot)
    return sum(deployment.state_seconds.values()), sum(deployment.state_energy_joules.values())


# Clocks.


@pytest.mark.parametrize("leap", [30.0, 3600.0, 6 * 3600.0, 3 * 365 * 86_400.0], ids=["30 s", "1 h", "6 h", "3 years"])
def test_a_leap_of_the_monotonic_clock_brings_no_energy_no_state_time_and_no_verdict_on_it(leap: float) -> None:
    bench = Bench(gpus=1)
    seconds, joules = spent(bench.run(120, watts=250, work=64, tokens_per_second=100))
    bench.t += leap
    bench.tokens += 100
    after = bench.run(1, watts=250, work=64, tokens_per_second=100)
    more_seconds, more_joules = spent(after)
    assert more_seconds - seconds <= 1.0
    assert more_joules - joules <= 250.0
    # Nobody knows what was before: that is said, and nothing is paged.
    assert only(after).state is State.UNKNOWN
    seen = {only(bench.run(1, watts=250, work=64, tokens_per_second=100)).state for _ in range(120)}
    assert seen <= {State.UNKNOWN, State.WORKING, State.LOW_POWER}
    rate = only(bench.run(1, watts=250, work=64, tokens_per_second=100)).tokens_per_second["generation"]
    assert rate == pytest.approx(100, rel=0.01)


def test_a_clock_that_goes_back_is_no_time_and_the_next_seconds_count_again() -> None:
    bench = Bench(gpus=1)
    seconds, joules = spent(bench.run(120, watts=250, work=64, tokens_per_second=100))
    bench.t -= 50
    more_seconds, more_joules = spent(bench.run(20, watts=250, work=64, tokens_per_second=100))
    assert (more_seconds, more_joules) == (seconds, joules)
    final_seconds, final_joules = spent(bench.run(60, watts=250, work=64, tokens_per_second=100))
    assert final_seconds - seconds == pytest.approx(30, abs=1.5)
    assert final_joules - joules == pytest.approx(30 * 250, abs=2 * 250)


def test_a_suspended_machine_wakes_without_energy_for_the_night_and_reads_at_once(gpus: StandIn) -> None:
    async def scenario(world: World) -> None:
        before = await world.after(70)
        world.loop.pass_time(8 * 3600)
        after = await world.after(3)
        assert len(after.values("wattline_gpu_power_watts")) == 2
        for name, most in ((ENERGY, 3 * 2 * WATTS), (STATE_SECONDS, 3.0), (STATE_JOULES, 3 * 2 * WATTS)):
            assert sum(after.values(name)) - sum(before.values(name)) <= most * 1.01, name
        # Missed reads are not made up for.
        reads = sum(after.values("wattline_source_read_seconds_count"))
        assert reads - sum(before.values("wattline_source_read_seconds_count")) <= 25

    live(gpus, scenario)


def test_a_paused_guest_whose_gpu_went_on_drawing_is_read_again_within_seconds(gpus: StandIn) -> None:
    # The guest's clock stood still, the counter of the passed-through GPU did not: 50 MJ in one second.
    gpus.say("* nvmlDeviceGetTotalEnergyConsumption value=5000000 per_second=122631")

    async def scenario(world: World) -> None:
        before = await world.after(70)
        gpus.say("* nvmlDeviceGetTotalEnergyConsumption value=50005000000")
        after = await world.after(30)
        drawn = sum(after.values(ENERGY)) - sum(before.values(ENERGY))
        assert drawn == pytest.approx(30 * 2 * WATTS, rel=0.1)
        # One reading is refused, the next one is believed again.
        assert sum(after.values("wattline_source_rejected_readings_total", reading="energy")) == 2.0
        assert after.value("wattline_gpu_tdp_fraction", gpu="0") == pytest.approx(WATTS / 700, rel=0.01)

    live(gpus, scenario)


@pytest.mark.parametrize("step", [-3600.0, 3 * 365 * 86_400.0], ids=["an hour back", "three years on"])
def test_the_wall_clock_decides_nothing(gpus: StandIn, step: float, monkeypatch: pytest.MonkeyPatch) -> None:
    import time

    wall = time.time
    gpus.say("* nvmlDeviceGetSamples.0 rate=50 type=1")

    async def scenario(world: World) -> None:
        world.engine, world.tokens_per_second = busy() + 'sglang:realtime_tokens_total{mode="decode"} TOKENS\n', 100
        before = await world.after(70)
        monkeypatch.setattr(time, "time", lambda: wall() + step)
        monkeypatch.setattr(time, "time_ns", lambda: int((wall() + step) * 1e9))
        after = await world.after(10)
        assert sum(after.values(STATE_SECONDS)) - sum(before.values(STATE_SECONDS)) == pytest.approx(10, abs=0.1)
        assert sum(after.values(ENERGY)) - sum(before.values(ENERGY)) == pytest.approx(20 * WATTS, rel=0.01)
        assert after.value("wattline_tokens_per_second", kind="generation") == pytest.approx(100, rel=0.01)
        assert len(after.values("wattline_gpu_power_watts")) == 2

    live(gpus, scenario)


# Failures that stay.


def test_a_failure_that_stays_is_told_once_and_not_in_every_cycle(
    gpus: StandIn, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    gpus.say(
        # Six readings that are not supported, one that fails in every cycle, and a GPU that is lost.
        *(f"* nvmlDeviceGet{call} error=3" for call in ("PcieThroughput.*", "TemperatureV", "Temperature.*")),
        *(f"* nvmlDeviceGet{call} error=3" for call in ("EnforcedPowerLimit", "MaxClockInfo.1", "CurrPcieLinkWidth")),
        "0 nvmlDeviceGetClockInfo.1 error=999",
        "1 nvmlDeviceGetPowerUsage error=15",
    )

    async def scenario(world: World) -> None:
        from wattline.config import parse

        engines = f"{{url: 'http://127.0.0.1:1/metrics', name: dead}}, {{url: '{world.server.url}', name: e}}"
        await world.session.apply(parse(f"deployments: [{{name: d, engines: [{engines}]}}]", "a test"))
        world.engine = b""
        await world.after(60)
        assert len(caplog.records) <= 20
        caplog.clear()
        # A day of it would be 24 times as much.
        await world.after(600)
        assert [record.getMessage() for record in caplog.records] == []

    live(gpus, scenario)


@pytest.mark.parametrize(
    "fault", [ValueError("x"), KeyError("x"), UnicodeDecodeError("utf-8", b"", 0, 1, ""), RecursionError()]
)
@pytest.mark.parametrize(
    "place", ["wattline.analysis.engine.EngineTrack.observe", "wattline.analysis.gpu.GpuTrack.observe_sample"]
)
def test_a_defect_in_one_place_costs_that_place_and_is_told_once(
    gpus: StandIn,
    fault: Exception,
    place: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fails(*_: object) -> None:
        raise fault

    async def scenario(world: World) -> None:
        world.engine = busy()
        await world.after(10)
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(place, fails)
            text = await world.after(40)
        gpus_are_shown = len(text.values("wattline_gpu_power_watts")) == 2
        engine_is_shown = text.values("wattline_engine_running_requests") == [64.0]
        assert gpus_are_shown == ("gpu" not in place)
        assert engine_is_shown == ("engine" not in place)
        assert text.status == 200
        told = [record for record in caplog.records if record.exc_info]
        assert len(told) == 1
        text = await world.after(10)
        assert len(text.values("wattline_gpu_power_watts")) == 2
        assert text.values("wattline_engine_running_requests") == [64.0]

    live(gpus, scenario)


def test_what_is_dead_grows_old_and_vanishes(gpus: StandIn) -> None:
    async def scenario(world: World) -> None:
        world.engine = busy()
        await world.after(10)
        gpus.say("* nvmlDeviceGetPowerUsage hang=1")
        world.engine = b""
        assert len((await world.after(1)).values("wattline_gpu_power_watts")) == 2
        text = await world.after(9)
        assert text.values("wattline_gpu_power_watts") == text.values("wattline_engine_running_requests") == []
        assert text.value("wattline_source_up", source="engine:e") == 0.0
        assert text.value("wattline_source_age_seconds", source="engine:e") == pytest.approx(10, abs=6)
        assert text.value("wattline_deployment_state", state="unknown") == 1.0
        # No sample carries a time of its own: a value that is gone is gone.
        assert all(len(line.rsplit("} ", 1)[-1].split()) == 1 for line in text.text.splitlines() if "} " in line)

    live(gpus, scenario)


# Growth.


def test_hours_of_everything_failing_leave_no_thread_no_file_and_no_series(gpus: StandIn) -> None:
    gpus.forget()
    options = argparse.Namespace(days=3600 / DAY, gpus=2, engines=2, scrape_every=15, sample_every=900)
    root = logging.getLogger()
    level, handlers = root.level, root.handlers[:]
    folder = gpus.control.parent
    try:
        sizes = run(lambda loop: soak(loop, folder, gpus, options), settle=0.0, shown_in=folder / "clock")
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)
    settled = [size for size in sizes if size.day >= 900 / DAY]
    assert len(settled) == 4
    for name in ("threads", "descriptors", "series"):
        found = [getattr(size, name) for size in settled]
        assert max(found) - min(found) <= {"threads": 1, "descriptors": 3, "series": 12}[name], (name, found)
    assert {size.library_opened for size in settled} <= {0, 1}
    assert settled[-1].log_lines - settled[0].log_lines < 400
    assert gpus.count("shutdown while inside") == 0
    assert set(growth(settled)) >= {"memory_bytes", "threads"}


def test_hours_of_readings_take_no_more_memory_than_minutes() -> None:
    bench = Bench(gpus=2)
    bench.run(600, watts=250, work=64, tokens_per_second=100)
    gc.collect()
    tracemalloc.start()
    try:
        bench.run(120, watts=250, work=64, tokens_per_second=100)
        gc.collect()
        before = tracemalloc.get_traced_memory()[0]
        bench.run(1200, watts=250, work=64, tokens_per_second=100)
        gc.collect()
        grown = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    # What was there before the first measurement has been replaced by then: that is as large, and no more.
    assert grown < 200_000
