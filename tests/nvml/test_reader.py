"""The reader over the stand-in: threads, schedules, losses and returns."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.nvml.reading import FAST, NOWHERE, Collector, reading
from tests.nvml.standin import StandIn, bus_id, h200, uuid
from wattline.gpus.nvml import NvmlSource
from wattline.gpus.reader import GpuReader, Intervals
from wattline.readings import GpuActivity, GpuCondition, GpuIdentity, GpuSample, Reading

A, B, C = uuid(0), uuid(1), uuid(2)


async def test_every_kind_of_reading_of_every_gpu_arrives(standin: StandIn) -> None:
    async with reading() as seen:
        await seen.until(lambda: all(seen.activities(u) and seen.samples(u) for u in (A, B)))
        for u in (A, B):
            assert seen.identities(u)[0].name == "NVIDIA H200"
            assert seen.samples(u)[0].power_watts == pytest.approx(122.631)
            assert seen.activities(u)[0].pcie_link_generation == 5
            assert seen.conditions(u)[0].limit_enforced_watts == 700
            assert seen.is_up(u)
        assert seen.is_up("nvml")
        assert [identity.uuid for identity in seen.reader.identities] == [A, B]


async def test_the_condition_comes_before_the_first_sample_so_that_the_limit_is_known(standin: StandIn) -> None:
    standin.say("0 nvmlDeviceGetEnforcedPowerLimit value=100000", "0 nvmlDeviceGetPowerUsage value=700000")
    standin.say("0 nvmlDeviceGetPowerManagementLimitConstraints value=100000:700000")
    async with reading() as seen:
        await seen.rounds(1, A)
        assert seen.samples(A)[0].power_watts is None, "700 W is impossible at a limit of 100 W"


async def test_a_limit_that_no_range_confirms_vetoes_no_power(standin: StandIn) -> None:
    standin.say("0 nvmlDeviceGetPowerManagement* error=3", "0 nvmlDeviceGetEnforcedPowerLimit value=5000")
    standin.say("0 nvmlDeviceGetPowerUsage value=250000")
    async with reading() as seen:
        await seen.rounds(1, A)
        assert seen.samples(A)[0].power_watts == 250
        assert seen.health(A).rejected == {}


async def test_readings_are_delivered_on_the_event_loop(standin: StandIn) -> None:
    threads: set[int] = set()
    seen = Collector()

    def deliver(reading: Reading) -> None:
        threads.add(threading.get_ident())
        seen.deliver(reading)

    seen.reader = GpuReader(NvmlSource(inventory=NOWHERE), deliver, intervals=FAST)
    await seen.reader.start()
    await seen.rounds(3, A)
    await seen.reader.stop()
    assert threads == {threading.get_ident()}


async def test_looking_at_the_results_makes_no_call(standin: StandIn) -> None:
    rare = Intervals(sample=3600, activity=3600, condition=3600, discover=3600)
    async with reading(intervals=rare) as seen:
        await seen.until(lambda: all(seen.activities(u) and seen.samples(u) for u in (A, B)))
        before = standin.counts()

        async def look() -> None:
            for _ in range(20):
                assert len(seen.reader.health(time.monotonic())) == 3
                assert len(seen.reader.identities) == 2
                await asyncio.sleep(0)

        await asyncio.gather(*(look() for _ in range(50)))
        assert standin.counts() == before


async def test_one_gpu_that_hangs_for_ever_holds_up_nothing_else(standin: StandIn) -> None:
    async with reading() as seen:
        await seen.until(lambda: bool(seen.samples(A) and seen.activities(A) and seen.activities(B)))
        threads = len(_threads())
        standin.say("0 nvmlDevice* hang=1")
        await seen.until(lambda: not seen.is_up(A))
        await seen.rounds(50, B)
        assert len(_threads()) <= threads + 2, "one more for each call that hangs: a reading, and perhaps a listing"
        assert seen.is_up(B)
        assert seen.is_up("nvml")
        assert seen.health(A).reason == "timeout"
        assert "has not come back" in seen.health(A).detail
        assert seen.health(A).errors["timeout"] >= 1
        samples = len(seen.samples(A))
        calls = standin.count("nvmlDeviceGetTotalEnergyConsumption", gpu=0)
        await seen.rounds(20, B)
        assert len(seen.samples(A)) == samples, "no old value is repeated"
        assert standin.count("nvmlDeviceGetTotalEnergyConsumption", gpu=0) == calls, "one call is stuck, not many"

        standin.say("0 nvmlDevice* hang=0")
        await seen.until(lambda: seen.is_up(A))
        await seen.until(lambda: len(_threads()) <= threads)


async def test_it_stops_at_once_though_a_call_never_comes_back(standin: StandIn) -> None:
    async with reading() as seen:
        await seen.rounds(1, A)
        standin.say("0 nvmlDeviceGetPowerUsage hang=1")
        await seen.until(lambda: not seen.is_up(A))
        async with asyncio.timeout(2):  # The promise of stop(), generous beside what it takes: 1 s.
            await seen.reader.stop()
        assert standin.count("nvmlShutdown") == 0, "the library is not pulled away from under a call"
    standin.say("0 nvmlDeviceGetPowerUsage hang=0")


async def test_it_stops_at_once_though_the_library_cannot_even_be_opened(standin: StandIn) -> None:
    standin.say("- nvmlInit hang=1")
    async with reading() as seen:
        await seen.until(lambda: seen.health("nvml").reason == "timeout")
        async with asyncio.timeout(2):
            await seen.reader.stop()
    standin.say("- nvmlInit hang=0")
    await asyncio.to_thread(_wait, lambda: standin.count("init succeeded") == 1)


@pytest.mark.parametrize("steps", range(12))
async def test_it_stops_at_whatever_step_of_the_loop_it_is_told_to(standin: StandIn, steps: int) -> None:
    # In the moment in which the failure to list is told, an end was once lost, and the process stayed for ever.
    standin.say("- nvmlInit error=9")
    read = asyncio.Event()
    reader = GpuReader(NvmlSource(inventory=NOWHERE), lambda _: None, on_read=lambda *_: read.set())
    await reader.start()
    await read.wait()
    for _ in range(steps):
        await asyncio.sleep(0)
    stopping = asyncio.create_task(reader.stop())
    done, _ = await asyncio.wait({stopping}, timeout=5)
    assert done


async def test_a_hang_while_opening_again_is_told_and_ends_when_the_driver_answers(standin: StandIn) -> None:
    async with reading() as seen:
        await seen.rounds(1, A)
        standin.say("* * error=999", "- nvmlDeviceGetCount error=999", "- nvmlInit hang=1")
        await seen.until(lambda: seen.health("nvml").reason == "timeout")
        assert not seen.is_up(A)
        standin.forget()
        await seen.until(lambda: seen.is_up("nvml") and seen.is_up(A) and seen.is_up(B))


async def test_no_slow_pcie_call_comes_between_the_samples_of_one_second(standin: StandIn) -> None:
    # It sleeps in the library, 20 ms a direction: all GPUs are sampled before the first of them is asked for traffic.
    standin.say(*h200(8).splitlines(), "* nvmlGpmQueryDeviceSupport value=0")
    standin.say("* nvmlDeviceGetPcieThroughput.* delay_us=20000")
    once = Intervals(sample=3600, activity=3600, condition=3600, discover=3600)
    async with reading(intervals=once) as seen:
        await seen.until(lambda: all(seen.activities(uuid(gpu)) for gpu in range(8)))
    kinds = [type(r) for r in seen.readings if not isinstance(r, GpuIdentity)]
    assert kinds == [*[GpuCondition] * 8, *[GpuSample] * 8, *[GpuActivity] * 8]


async def test_calls_take_turns_also_after_one_has_come_back_late(standin: StandIn) -> None:
    # The library of driver 580 has crashed processes that were inside with several threads.
    standin.say(*h200(8).splitlines(), "* nvmlDevice* delay_us=300", "* nvmlGpm* delay_us=300")
    async with reading(intervals=replace(FAST, sample=0.1, activity=0.2, condition=0.3)) as seen:
        await seen.rounds(2, B)
        for _ in range(3):
            standin.say("0 nvmlDeviceGetPowerUsage hang=1")
            await seen.until(lambda: seen.reader._crew.hangs)
            await seen.rounds(1, B)
            samples = len(seen.samples(A))
            inside = standin.count("calls at once")
            standin.say("0 nvmlDeviceGetPowerUsage hang=0")
            await seen.until(lambda: len(seen.samples(A)) > samples)  # noqa: B023 - awaited in this round
            # Others were inside beside the call that hung; when it has come back, nobody is beside anybody.
            await seen.until(lambda: not seen.reader._crew.hangs)
            inside = standin.count("calls at once")
            await seen.rounds(3, A)
            assert standin.count("calls at once") == inside


async def test_readings_wait_while_the_library_is_opened_anew(standin: StandIn, tmp_path: Path) -> None:
    inventory = tmp_path / "gpus"
    inventory.mkdir()
    async with reading(NvmlSource(inventory=inventory), replace(FAST, patience=0.4, stuck=5.0)) as seen:
        await seen.rounds(2, A)
        threads = len(_threads())
        standin.say("- nvmlInit delay_us=900000")  # More than any call may hold up others.
        (inventory / "0000:07:00.0").mkdir()
        await seen.until(lambda: standin.count("init succeeded") == 2)
        await seen.rounds(2, A)
        assert len(_threads()) == threads, "nobody was left behind"
        assert seen.health(A).errors == {}
    assert standin.count("stale handle") == 0


async def test_the_library_is_not_opened_anew_while_a_call_hangs(standin: StandIn, tmp_path: Path) -> None:
    inventory = tmp_path / "gpus"
    inventory.mkdir()
    async with reading(NvmlSource(inventory=inventory)) as seen:
        await seen.rounds(1, A)
        standin.say("0 nvmlDeviceGetPowerUsage hang=1")
        await seen.until(lambda: not seen.is_up(A))
        (inventory / "0000:07:00.0").mkdir()
        standin.say("1 nvmlDeviceGetTemperature* error=15")  # A loss makes the GPUs be listed although a call hangs.
        await seen.until(lambda: seen.health(B).errors.get("gpu_is_lost", 0) >= 2)
        assert standin.count("nvmlShutdown") == 0
        standin.forget()
        await seen.until(lambda: standin.count("init succeeded") == 2)
        await seen.until(lambda: seen.is_up(A) and seen.is_up(B))
    assert standin.count("shutdown while inside") == standin.count("stale handle") == 0


async def test_a_lost_gpu_stays_listed_as_not_up_and_the_others_go_on(standin: StandIn) -> None:
    async with reading() as seen:
        await seen.rounds(2, A)
        standin.say("0 * error=15")
        await seen.until(lambda: not seen.is_up(A))
        await seen.rounds(20, B)
        assert seen.health(A).reason in {"gpu_is_lost", "gpu_not_found"}
        assert not seen.is_up(A)
        assert seen.is_up(B)
        assert seen.is_up("nvml")
        assert standin.count("init succeeded") == 1, "the library is not closed under the GPUs that are well"


async def test_a_lost_gpu_is_read_again_when_it_comes_back(standin: StandIn) -> None:
    async with reading() as seen:
        await seen.rounds(2, A)
        standin.say("0 * error=15")
        await seen.until(lambda: not seen.is_up(A))
        standin.forget()
        await seen.until(lambda: seen.is_up(A))
        assert seen.health(A).errors["gpu_is_lost"] >= 1


async def test_a_gpu_that_needs_a_reset_says_so(standin: StandIn) -> None:
    async with reading() as seen:
        await seen.rounds(2, A)
        standin.say("0 * error=16", f"0 nvmlDeviceGetUUID value={A}", "0 nvmlDeviceGetPciInfo value=00000000:05:00.0")
        standin.say("0 nvmlDeviceGetHandleByIndex value=0")
        await seen.until(lambda: seen.health(A).reason == "reset_required")
        listings = len(seen.identities(A))
        await seen.until(lambda: len(seen.identities(A)) >= listings + 3)
        assert seen.health(A).reason == "reset_required", "being listed is not being read"
        assert seen.is_up(B)


async def test_when_every_gpu_is_lost_the_library_is_opened_anew(standin: StandIn) -> None:
    async with reading() as seen:
        await seen.rounds(2, A)
        standin.say("* nvmlDeviceGetPowerUsage error=15")
        await seen.until(lambda: standin.count("init succeeded") >= 3)
        assert not seen.is_up("nvml")
        assert seen.health("nvml").reason == "no_gpu"
        standin.forget()
        await seen.until(lambda: seen.is_up(A) and seen.is_up(B) and seen.is_up("nvml"))
    assert standin.count("init succeeded") == standin.count("nvmlShutdown")


async def test_devices_taken_from_a_container_make_the_source_down_until_they_are_back(standin: StandIn) -> None:
    async with reading() as seen:
        await seen.rounds(10, A)
        standin.say("* * error=999", "- nvmlDeviceGetCount error=999", "- nvmlInit error=999")
        await seen.until(lambda: not seen.is_up("nvml"))
        assert seen.health("nvml").reason == "unknown"
        assert "daemon-reload" in seen.health("nvml").detail
        assert not seen.is_up(A)
        assert not seen.is_up(B)
        samples = len(seen.samples(A))
        attempts = standin.count("nvmlInit")
        await seen.until(lambda: standin.count("nvmlInit") >= attempts + 3)
        assert len(seen.samples(A)) == samples
        standin.forget()
        await seen.until(lambda: seen.is_up("nvml") and seen.is_up(A) and seen.is_up(B))
    assert standin.count("init succeeded") == standin.count("nvmlShutdown") == 2
    assert standin.count("shutdown while inside") == 0
    assert standin.count("stale handle") == 0


async def test_a_version_mismatch_at_start_ends_when_the_versions_match(
    standin: StandIn, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "wattline.gpus")
    standin.say("- nvmlInit error=18")
    async with reading() as seen:
        await seen.until(lambda: seen.health("nvml").errors.get("lib_rm_version_mismatch", 0) >= 5)
        assert not seen.is_up("nvml")
        assert seen.readings == []
        assert len(caplog.records) == 1, "one line, however often it is tried"
        standin.forget()
        standin.say("- nvmlSystemGetDriverVersion value=590.1")
        await seen.until(lambda: seen.is_up(A))
        assert seen.identities(A)[0].driver == "590.1"
        assert seen.health("nvml").errors["lib_rm_version_mismatch"] >= 5, "what was counted stays counted"


async def test_a_gpu_that_is_added_is_read_and_one_that_is_removed_is_not_up(standin: StandIn) -> None:
    async with reading() as seen:
        await seen.rounds(1, A)
        standin.say(*h200(3).splitlines())
        await seen.until(lambda: seen.is_up(C))
        standin.say(*h200(2).splitlines())
        await seen.until(lambda: not seen.is_up(C))
        assert seen.health(C).reason == "gpu_not_found"
        assert [identity.uuid for identity in seen.reader.identities] == [A, B]
        assert seen.is_up(A)
        standin.say(*h200(3).splitlines())
        await seen.until(lambda: seen.is_up(C))


async def test_a_gpu_that_was_taken_out_is_forgotten_by_command_and_new_when_it_is_put_back(
    standin: StandIn, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "wattline.gpus")
    standin.say("1 nvmlDeviceGetTotalEnergyConsumption error=3")
    async with reading() as seen:
        await seen.until(lambda: bool(seen.activities(B)) and seen.health(B).errors.get("not_supported") == 1)
        assert not seen.reader.forget(B), "it answers"
        standin.say("- nvmlDeviceGetCount value=1")
        await seen.until(lambda: not seen.is_up(B))
        assert seen.health(B).reason == "gpu_not_found"
        assert seen.reader.forget(B)
        assert not seen.reader.forget(B)
        assert [h.source for h in seen.reader.health(0)] == ["nvml", A]
        assert sum("is forgotten" in r.getMessage() for r in caplog.records) == 1
        await asyncio.sleep(0)
        tasks = len(asyncio.all_tasks())
        standin.say("- nvmlDeviceGetCount value=2")
        await seen.until(lambda: seen.is_up(B))
        assert seen.health(B).errors.get("not_supported") == 1, "it is met as if for the first time"
        assert "gpu_not_found" not in seen.health(B).errors
        assert len(asyncio.all_tasks()) == tasks + 1, "nothing had been left of it"


def down(seen: Collector) -> dict[str, str]:
    """What is not up, and why."""
    return {h.source: h.reason for h in seen.reader.health(0) if not h.up}


async def test_a_gpu_that_cannot_be_opened_at_the_start_is_lost(standin: StandIn) -> None:
    standin.say(*h200(4).splitlines(), "1 nvmlDeviceGetHandleByIndex error=999")
    async with reading() as seen:
        await seen.until(lambda: seen.is_up(A) and seen.is_up(C))
        assert down(seen) == {"unopened-1": "unknown"}
        assert seen.identities("unopened-1")[0].index == 1
        assert [gpu.uuid for gpu in seen.reader.known] == [A, C, uuid(3)], "nothing of it can be remembered"
        standin.forget()
        standin.say(*h200(4).splitlines())
        await seen.until(lambda: seen.is_up(B))
        assert down(seen) == {}


async def test_a_gpu_that_was_not_given_to_this_container_is_not_lost(standin: StandIn) -> None:
    standin.say("1 nvmlDeviceGetHandleByIndex error=4")
    async with reading() as seen:
        await seen.until(lambda: seen.is_up(A))
        assert [h.source for h in seen.reader.health(0)] == ["nvml", A]


GONE = GpuIdentity(C, 1, name="NVIDIA H200", pci_bus_id=bus_id(7))


async def test_a_gpu_of_an_earlier_run_is_missing_from_the_first_listing_on(
    standin: StandIn, caplog: pytest.LogCaptureFixture
) -> None:
    async with reading(remembered=[GONE, GpuIdentity(A, 0)]) as seen:
        await seen.until(lambda: seen.is_up(A) and seen.is_up(B))
        assert down(seen) == {C: "gpu_not_found"}
        assert seen.identities(C) == [GONE]
        assert sum(C in r.getMessage() for r in caplog.records) == 1, "logged, once"
        assert {gpu.uuid for gpu in seen.reader.known} == {A, B, C}
        standin.say(*h200(3).splitlines())
        await seen.until(lambda: seen.is_up(C))


async def test_a_known_gpu_that_is_missing_is_the_one_that_cannot_be_opened(standin: StandIn) -> None:
    standin.say(*h200(3).splitlines(), "2 nvmlDeviceGetHandleByIndex error=15")
    async with reading(remembered=[replace(GONE, index=2)]) as seen:
        await seen.until(lambda: seen.is_up(A) and seen.is_up(B))
        assert down(seen) == {C: "gpu_not_found"}, "and is not counted twice"


async def test_all_gpus_of_an_earlier_run_are_missing_while_the_library_cannot_be_opened(standin: StandIn) -> None:
    standin.say("- nvmlInit error=9")
    async with reading(remembered=[GONE]) as seen:
        await seen.until(lambda: "driver_not_loaded" in down(seen).values())
        assert set(down(seen)) == {"nvml", C}
        assert seen.reader.known == (GONE,)


async def test_a_card_that_was_replaced_is_not_missed(standin: StandIn) -> None:
    async with reading(remembered=[replace(GONE, pci_bus_id=bus_id(1))]) as seen:
        await seen.until(lambda: seen.is_up(A) and seen.is_up(B))
        assert down(seen) == {}, "a new card is in its place"


async def test_a_known_card_at_the_address_of_a_missing_one_replaces_nothing(standin: StandIn) -> None:
    # A reboot without one GPU may give its address to the next one.
    here = [GpuIdentity(A, 0, pci_bus_id=bus_id(0)), GpuIdentity(B, 2, pci_bus_id=bus_id(2))]
    async with reading(remembered=[*here, replace(GONE, pci_bus_id=bus_id(1))]) as seen:
        await seen.until(lambda: seen.is_up(A) and seen.is_up(B))
        assert down(seen) == {C: "gpu_not_found"}


async def test_gpus_that_are_expected_and_were_never_seen_are_missing(standin: StandIn) -> None:
    async with reading(expected=4) as seen:
        await seen.until(lambda: seen.is_up(A) and seen.is_up(B))
        assert down(seen) == {"expected-3": "gpu_not_found", "expected-4": "gpu_not_found"}
        seen.reader.pace(FAST, expected=3)
        assert down(seen) == {"expected-3": "gpu_not_found"}
        standin.say(*h200(3).splitlines())
        await seen.until(lambda: seen.is_up(C))
        assert down(seen) == {}
        standin.forget()
        await seen.until(lambda: not seen.is_up(C))
        assert down(seen) == {C: "gpu_not_found"}, "who is missing is known, and not counted twice"


@pytest.mark.parametrize(
    "lines",
    [
        ["1 nvmlDeviceGetHandleByIndex error=15"],
        ["1 * error=15"],
        ["1 nvmlDeviceGetUUID error=16"],
        ["- nvmlDeviceGetCount value=1"],
        ["- nvmlDeviceGetCount value=0"],
        ["- nvmlDeviceGetCount error=999"],
        ["* * error=999", "- nvmlDeviceGetCount error=999", "- nvmlInit error=999"],
    ],
    ids=["no handle", "lost", "needs a reset", "not listed", "an empty host", "no list", "no library"],
)
async def test_a_gpu_that_fails_or_is_not_listed_any_more_stays_known(standin: StandIn, lines: list[str]) -> None:
    async with reading() as seen:
        await seen.until(lambda: seen.is_up(A) and seen.is_up(B))
        standin.say("1 nvmlDeviceGetPowerUsage error=15", *lines)
        await seen.until(lambda: not seen.is_up(B))
        reads = len(seen.read_seconds)
        await seen.until(lambda: sum(source == "nvml" for source, _ in seen.read_seconds[reads:]) > 4)
        assert [h.source for h in seen.reader.health(0)] == ["nvml", A, B]
        standin.forget()
        await seen.until(lambda: seen.is_up(A) and seen.is_up(B))


async def test_a_gpu_that_was_named_by_its_place_goes_by_its_uuid_at_once(standin: StandIn) -> None:
    standin.say("0 nvmlDeviceGetUUID error=3")
    async with reading() as seen:
        await seen.until(lambda: seen.is_up(bus_id(0)))
        standin.forget()
        await seen.until(lambda: seen.is_up(A))
        assert [h.source for h in seen.reader.health(0)] == ["nvml", B, A]


async def test_when_the_order_changes_each_uuid_keeps_its_readings_and_gets_its_new_index(standin: StandIn) -> None:
    watts = {0: 100, 1: 200, 2: 300}
    standin.say(*h200(3).splitlines(), *(f"{gpu} nvmlDeviceGetPowerUsage value={w}000" for gpu, w in watts.items()))
    async with reading() as seen:
        await seen.until(lambda: all(seen.samples(uuid(gpu)) for gpu in watts))
        standin.say("- order value=2:0:1")
        await seen.until(lambda: seen.identities(C)[-1].index == 0)
        for gpu in watts:
            await seen.rounds(2, uuid(gpu))
        assert [seen.identities(u)[-1].index for u in (A, B, C)] == [1, 2, 0]
        for gpu, w in watts.items():
            assert {sample.power_watts for sample in seen.samples(uuid(gpu))} == {w}


async def test_rejected_readings_are_counted_by_reading_and_not_as_errors(standin: StandIn) -> None:
    standin.say(
        "0 nvmlDeviceGetPowerUsage value=70000,3700000000,4294967295,71000",
        "0 nvmlDeviceGetUtilizationRates value=0:0,2619:0,0:0,4294967295:0,100:0",
    )
    async with reading() as seen:
        await seen.rounds(5, A)
        samples = seen.samples(A)[:5]
        assert [s.power_watts for s in samples] == [70, None, None, 71, 71]
        assert [s.utilization_ratio for s in samples] == [0, None, 0, None, 1]
        assert seen.health(A).rejected == {"power": 2, "utilization": 2}
        assert seen.health(A).errors == {}
        assert seen.is_up(A)


async def test_impossible_pcie_traffic_is_dropped_and_the_next_error_is_no_zero(standin: StandIn) -> None:
    standin.say("0 nvmlGpmQueryDeviceSupport value=0", "0 nvmlDeviceGetPcieThroughput.0 value=488,4294967295,E3")
    async with reading() as seen:
        await seen.until(lambda: len(seen.activities(A)) >= 4)
        told = [a.pcie_transmit_bytes_per_second for a in seen.activities(A)[:4]]
        assert told == [488_000, None, None, None]
        assert seen.health(A).rejected == {"pcie_transmit": 1}


async def test_an_energy_counter_that_begins_anew_is_delivered_as_it_is(standin: StandIn) -> None:
    standin.say("0 nvmlDeviceGetTotalEnergyConsumption value=7500000,7500000,7750000,1000,251000 per_second=0")
    async with reading() as seen:
        await seen.rounds(4, A)
        # The first answer went to finding out whether there is a counter.
        assert [s.energy_joules for s in seen.samples(A)[:4]] == [7500, 7750, 1, 251]
        assert seen.health(A).errors == {"stepped_back": 1}
        assert seen.health(A).rejected == {}


async def test_one_failing_call_is_counted_by_kind_and_logged_nowhere(
    standin: StandIn, caplog: pytest.LogCaptureFixture
) -> None:
    async with reading() as seen:
        await seen.until(lambda: seen.is_up(A) and bool(seen.activities(A)))
        caplog.set_level(logging.INFO, "wattline.gpus")
        standin.say("0 nvmlDeviceGetPowerUsage value=29000,E999,29100")
        await seen.until(lambda: seen.health(A).errors.get("unknown", 0) == 1)
        await seen.rounds(2, A)
        assert seen.health(A).errors == {"unknown": 1}
        assert seen.is_up(A)
        assert caplog.records == []


async def test_what_a_gpu_does_not_support_is_told_in_one_line_and_counted_once(
    standin: StandIn, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "wattline.gpus")
    standin.say("0 nvmlDeviceGetMemoryInfo* error=3", "0 nvmlDeviceGetTotalEnergyConsumption error=3")
    standin.say("0 nvmlGpmQueryDeviceSupport value=0")
    async with reading() as seen:
        await seen.until(lambda: len(seen.activities(A)) >= 3 and len(seen.conditions(A)) >= 3)
        assert seen.health(A).errors == {"not_supported": 3}
        lines = [r.getMessage() for r in caplog.records if "does not tell" in r.getMessage()]
        assert len(lines) == 1
        for reading_name in ("memory", "energy", "gpm"):
            assert f"{reading_name} (not_supported)" in lines[0]


async def test_a_steady_failure_logs_one_line_and_its_end_another(
    standin: StandIn, caplog: pytest.LogCaptureFixture
) -> None:
    async with reading() as seen:
        await seen.until(lambda: seen.is_up(A) and seen.is_up(B))
        caplog.set_level(logging.INFO, "wattline.gpus")
        standin.say("0 * error=15")
        await seen.until(lambda: not seen.is_up(A))
        await seen.rounds(30, B)
        about_a = [r.getMessage() for r in caplog.records if f"GPU {A}" in r.getMessage()]
        assert len(about_a) == 1
        standin.forget()
        await seen.until(lambda: seen.is_up(A))
        about_a = [r.getMessage() for r in caplog.records if f"GPU {A}" in r.getMessage()]
        assert about_a[1:] == [f"GPU {A} is read again"]


async def test_each_read_tells_its_source_and_duration(standin: StandIn) -> None:
    standin.say("0 nvmlDeviceGetPowerUsage delay_us=30000")
    async with reading() as seen:
        await seen.rounds(3, A)
        assert {source for source, _ in seen.read_seconds} == {"nvml", A, B}
        assert max(seconds for source, seconds in seen.read_seconds if source == A) >= 0.03


async def test_a_reader_of_readings_that_raises_does_not_end_them(
    standin: StandIn, caplog: pytest.LogCaptureFixture
) -> None:
    seen = Collector()

    def deliver(reading: Reading) -> None:
        seen.deliver(reading)
        raise KeyError("nobody expects me")

    seen.reader = GpuReader(NvmlSource(inventory=NOWHERE), deliver, intervals=FAST)
    await seen.reader.start()
    await seen.rounds(5, A)
    await seen.reader.stop()
    errors = [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert len(errors) == 1, "told once"


@pytest.mark.parametrize("error", [ValueError, RecursionError, UnicodeError])
async def test_an_error_that_nobody_foresaw_costs_its_own_lane(
    standin: StandIn, caplog: pytest.LogCaptureFixture, error: type[Exception]
) -> None:
    class Broken(NvmlSource):
        def activity(self, uuid: str) -> GpuActivity:
            raise error("unforeseen")

    async with reading(Broken(inventory=NOWHERE)) as seen:
        await seen.until(lambda: seen.health(A).errors.get("unexpected", 0) >= 3 if seen.samples(A) else False)
        assert seen.is_up(A)
        assert seen.activities(A) == []
    assert len([record for record in caplog.records if record.levelno >= logging.ERROR]) == 1


async def test_a_gpu_whose_samples_fail_in_a_way_that_nobody_foresaw_is_not_up(standin: StandIn) -> None:
    class Broken(NvmlSource):
        def sample(self, uuid: str) -> GpuSample:
            if uuid == A:
                raise KeyError("unforeseen")
            return super().sample(uuid)

    async with reading(Broken(inventory=NOWHERE)) as seen:
        await seen.until(lambda: seen.health(A).reason == "unexpected" if seen.samples(B) else False)
        await seen.rounds(5, B)
        assert not seen.is_up(A)
        assert "KeyError" in seen.health(A).detail
        assert seen.is_up(B)


async def test_what_is_not_read_any_more_grows_old(standin: StandIn) -> None:
    async with reading() as seen:
        await seen.until(lambda: seen.is_up(A))
        standin.say("0 * error=15")
        await seen.until(lambda: not seen.is_up(A))
        last = seen.health(A).last_success
        assert last is not None
        ages = {h.source: h.age_seconds for h in seen.reader.health(last + 100)}
        assert ages[A] == pytest.approx(100)
        await seen.rounds(10, B)
        assert seen.health(A).last_success == last, "and is not taken for read meanwhile"


@pytest.mark.parametrize(("failures", "seconds"), [(0, 1), (1, 2), (2, 4), (5, 32), (6, 60), (10_000, 60)])
def test_what_fails_again_and_again_is_tried_less_and_less_often(failures: int, seconds: float) -> None:
    assert Intervals().retry_after(failures) == seconds


async def test_a_gpu_that_is_lost_again_at_once_is_waited_for_longer_each_time(
    standin: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    def retry_after(intervals: Intervals, failures: int) -> float:
        asked.append(failures)
        return 0.001

    monkeypatch.setattr(Intervals, "retry_after", retry_after)
    standin.say("0 nvmlDeviceGetPowerUsage error=15")
    async with reading(intervals=replace(FAST, discover=3600)) as seen:
        await seen.until(lambda: len(asked) >= 5)
        assert asked[:5] == [0, 1, 2, 3, 4]
        assert seen.is_up(B)


async def test_nothing_is_left_behind_after_stopping(standin: StandIn) -> None:
    before = _threads()
    async with reading() as seen:
        await seen.until(lambda: bool(seen.activities(A) and seen.activities(B)))
        ours = _threads() - before
        assert len(ours) == 1, "however many GPUs there are"
    await asyncio.to_thread(_wait, lambda: not ours & _threads())
    assert standin.count("init succeeded") == standin.count("nvmlShutdown") == 1


def _threads() -> set[threading.Thread]:
    return set(threading.enumerate())


def _wait(holds: Callable[[], bool]) -> None:
    """Wait for what another thread does; gives up after 20 s."""
    end = time.monotonic() + 20
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.005)


def test_a_process_ends_though_a_call_never_comes_back(
    in_new_process: Callable[..., str], library: Path, tmp_path: Path
) -> None:
    standin = StandIn(library, tmp_path, h200(2) + "\n0 nvmlDeviceGetPowerUsage hang=1")
    printed = in_new_process(
        """
        import asyncio
        from wattline.gpus.nvml import NvmlSource
        from wattline.gpus.reader import GpuReader, Intervals

        async def main():
            reader = GpuReader(NvmlSource(), lambda _: None, intervals=Intervals(patience=0.1, stuck=0.2))
            await reader.start()
            while "timeout" not in {health.reason for health in reader.health(0)}:
                await asyncio.sleep(0.01)
            await reader.stop()

        asyncio.run(main())
        print("ended")
        """,
        standin.environment,
    )
    assert printed == "ended\n"
