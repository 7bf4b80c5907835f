"""What is published when GPUs answer wrongly, not at all, or too late.

Where a value is a list, the first is for the reading at the start, before the first second passes. The GPUs have no
energy counter unless they are given one.
"""

from __future__ import annotations

import threading
from pathlib import Path

import pynvml
import pytest

from tests.hardening.process import Answer
from tests.hardening.world import IDLE, World, busy, live
from tests.nvml.standin import StandIn, uuid
from wattline.analysis.snapshot import State

POWER = "wattline_gpu_power_watts"
LIMIT = "wattline_gpu_power_limit_watts"
TDP = "wattline_gpu_tdp_fraction"
UTILIZATION = "wattline_gpu_utilization_ratio"
ENERGY = "wattline_gpu_energy_joules_total"
UP = "wattline_gpu_up"
SOURCE_UP = "wattline_source_up"
ERRORS = "wattline_source_errors_total"
REJECTED = "wattline_source_rejected_readings_total"
STATE = "wattline_deployment_state"
RUNNING = "wattline_engine_running_requests"
OTHER_LIMITS = ("Limit", "DefaultLimit", "LimitConstraints")
TOKENS = 'sglang:realtime_tokens_total{mode="decode"} TOKENS\n'


def of_gpu(text: Answer, gpu: int) -> set[str]:
    """The names of all series of a GPU."""
    marks = (f'gpu="{gpu}"', f'source="{uuid(gpu)}"')
    return {line.partition("{")[0] for line in text.text.splitlines() if any(mark in line for mark in marks)}


# What a GPU does not tell.


def test_a_gpu_with_unified_memory_says_so_and_shows_no_memory(gpus: StandIn) -> None:
    gpus.say(
        '0 nvmlDeviceGetName value="NVIDIA GB10"',
        "0 nvmlDeviceGetMemoryInfo* error=3",
        "0 nvmlDeviceGetPowerUsage value=11170",
        "0 nvmlDeviceGetEnforcedPowerLimit error=3",
        "0 nvmlDeviceGetPowerManagement* error=3",
    )

    async def scenario(world: World) -> None:
        text = await world.after(10)
        assert text.values("wattline_gpu_info", gpu="0", memory="unified", name="NVIDIA GB10") == [1.0]
        assert text.values("wattline_gpu_info", gpu="1", memory="dedicated") == [1.0]
        for name in ("wattline_gpu_memory_used_bytes", "wattline_gpu_memory_total_bytes"):
            assert text.values(name, gpu="0") == []
            assert len(text.values(name, gpu="1")) == 1
        assert text.value(POWER, gpu="0") == 11.17
        assert text.value(UTILIZATION, gpu="0") == 0.0
        assert text.value("wattline_gpu_temperature_celsius", gpu="0") == 36.0
        assert text.values(LIMIT, gpu="0") == []

    live(gpus, scenario)


def test_without_a_limit_there_is_power_and_efficiency_and_no_fraction(gpus: StandIn) -> None:
    gpus.say("* nvmlDeviceGetEnforcedPowerLimit error=3", "* nvmlDeviceGetPowerManagement* error=3")

    async def scenario(world: World) -> None:
        world.engine, world.tokens_per_second = busy() + TOKENS, 100
        text = await world.after(70)
        assert text.value(POWER, gpu="0") == 122.631
        assert text.values(LIMIT) == text.values(TDP) == text.values("wattline_tdp_fraction") == []
        assert text.values("wattline_gpu_active_power_fraction") == text.values("wattline_gpu_idle_power_watts") == []
        assert text.value("wattline_power_watts") == pytest.approx(2 * 122.631)
        assert text.value("wattline_tokens_per_watt", kind="generation") == pytest.approx(100 / (2 * 122.631), rel=0.01)
        assert world.deployment.state is State.WORKING, "tokens come"
        assert "tells no power limit" in world.deployment.reason

    live(gpus, scenario)


def test_a_configured_limit_is_the_denominator_where_the_driver_tells_none(gpus: StandIn) -> None:
    gpus.say("* nvmlDeviceGetEnforcedPowerLimit error=3", "0 nvmlDeviceGetPowerManagement* error=3")
    limits = ", ".join(f"{uuid(gpu)}: {{power_limit_watts: 245.262}}" for gpu in range(2))

    async def scenario(world: World) -> None:
        text = await world.after(60)
        assert text.value(TDP, gpu="0") == pytest.approx(0.5)
        # The driver's word counts more than the configuration's.
        assert text.value(TDP, gpu="1") == pytest.approx(122.631 / 700)

    live(gpus, scenario, configuration=f"gpus: {{{limits}}}\ndeployments: [{{name: d, engines: [{{url: URL}}]}}]")


@pytest.mark.parametrize(
    ("lines", "watts", "fraction"),
    [
        # A laptop that tells only what is enforced.
        (["EnforcedPowerLimit value=115000", *(f"PowerManagement{of} error=3" for of in OTHER_LIMITS)], 57.5, 0.5),
        # One whose limit moves far below its maximum.
        (
            [
                "EnforcedPowerLimit value=35000",
                "PowerManagementLimit error=3",
                "PowerManagementDefaultLimit value=35000",
                "PowerManagementLimitConstraints value=5000:95000",
            ],
            34.8,
            34.8 / 35,
        ),
        # A draw slightly above the limit is real.
        (["EnforcedPowerLimit value=100000", "PowerManagementLimitConstraints value=100000:700000"], 101.0, 1.01),
        (["EnforcedPowerLimit value=700000"], 720.0, 720 / 700),
        # A superchip: the module's limit is another one.
        (
            [
                "EnforcedPowerLimit value=1400000",
                "PowerManagementLimit value=2900000",
                "PowerManagementLimitConstraints value=200000:2900000",
            ],
            900.0,
            900 / 1400,
        ),
    ],
)
def test_the_fraction_is_of_the_enforced_limit_and_never_clamped(
    gpus: StandIn, lines: list[str], watts: float, fraction: float
) -> None:
    gpus.say(*(f"* nvmlDeviceGet{line}" for line in lines), f"* nvmlDeviceGetPowerUsage value={watts * 1000:.0f}")

    async def scenario(world: World) -> None:
        text = await world.after(60)
        assert text.value(POWER, gpu="0") == watts
        assert text.value(TDP, gpu="0") == pytest.approx(fraction)
        assert text.values(REJECTED) == []

    live(gpus, scenario)


def test_one_gpu_without_power_sensing_lacks_only_that_and_the_others_nothing(gpus: StandIn) -> None:
    gpus.say("0 nvmlDeviceGetPowerUsage error=3", "0 field.186.0 error=3")

    async def scenario(world: World) -> None:
        text = await world.after(60)
        lacks = of_gpu(text, 1) - of_gpu(text, 0)
        assert lacks == {
            POWER,
            "wattline_gpu_power_instant_watts",
            TDP,
            "wattline_gpu_active_power_fraction",
            "wattline_gpu_utilization_stuck",
            ENERGY,
        }
        assert text.value(POWER, gpu="1") == 122.631
        # Nothing is derived from a part of them.
        assert text.values("wattline_tdp_fraction") == text.values("wattline_power_watts") == []
        # Power, instant power, energy and samples, told once each: they are not asked again.
        assert text.value(ERRORS, source=uuid(0), kind="not_supported") == 4.0
        assert text.value(UP, gpu="0") == 1.0

    live(gpus, scenario)


def test_a_virtual_gpu_gives_what_it_has_and_nothing_is_made_up(
    gpus: StandIn, caplog: pytest.LogCaptureFixture
) -> None:
    has = ("nvmlDeviceGetUUID", "nvmlDeviceGetPciInfo", "nvmlDeviceGetName", "nvmlDeviceGetMemoryInfo")
    gpus.say(
        "* nvmlDevice* error=3",
        "* field.* error=3",
        "* gpm.* error=3",
        "* nvmlGpmQueryDeviceSupport error=3",
        "* nvmlDeviceGetHandleByIndex value=0",
        "* nvmlDeviceGetVirtualizationMode value=2",
        "* nvmlDeviceGetMemoryInfo value=17171480576:15057551360:2113929216",
        *(f"{gpu} nvmlDeviceGetUUID value={uuid(gpu)}" for gpu in range(2)),
        *(f"{gpu} nvmlDeviceGetPciInfo value=00000000:0{gpu + 5}:00.0" for gpu in range(2)),
    )
    assert has

    async def scenario(world: World) -> None:
        text = await world.after(30)
        assert text.values("wattline_gpu_info", gpu="0", virtualization="vgpu") == [1.0]
        assert text.value("wattline_gpu_memory_used_bytes", gpu="0") == 2113929216
        assert text.value("wattline_gpu_memory_total_bytes", gpu="0") == 17171480576
        published = {name for name in of_gpu(text, 0) if name.startswith("wattline_gpu_")}
        assert published == {
            "wattline_gpu_info",
            "wattline_gpu_up",
            "wattline_gpu_memory_used_bytes",
            "wattline_gpu_memory_total_bytes",
        }
        assert world.deployment.state is State.IDLE  # By the engine, which holds nothing.
        assert [record for record in caplog.records if record.levelname == "ERROR"] == []

    live(gpus, scenario)


def test_a_board_that_tells_only_its_utilization_shows_no_zero_degrees(gpus: StandIn) -> None:
    gpus.say(
        "* nvmlDeviceGetMemoryInfo* error=3",
        "* nvmlDeviceGetTemperature* error=3",
        "* nvmlDeviceGetPowerUsage error=3",
        "* field.* error=3",
        "* nvmlDeviceGetClockInfo.* error=3",
        "* nvmlDeviceGetMaxClockInfo.* error=3",
        "* nvmlDeviceGet*Pcie* error=3",
        "* nvmlDeviceGetCurrPcie* error=3",
        "* nvmlDeviceGetMaxPcie* error=3",
        "* nvmlDeviceGetPcieThroughput.* error=3",
        "* nvmlGpmQueryDeviceSupport error=3",
        "* nvmlDeviceGetEnforcedPowerLimit error=3",
        "* nvmlDeviceGetPowerManagement* error=3",
        "* nvmlDeviceGetUtilizationRates value=35:10",
    )

    async def scenario(world: World) -> None:
        text = await world.after(30)
        assert text.value(UTILIZATION, gpu="0") == 0.35
        published = {name for name in of_gpu(text, 0) if name.startswith("wattline_gpu_")}
        assert published == {
            "wattline_gpu_info",
            "wattline_gpu_up",
            UTILIZATION,
            "wattline_gpu_memory_busy_ratio",
            "wattline_gpu_clocks_event_seconds_total",
            "wattline_gpu_p2p_peers",
            "wattline_gpu_p2p_peers_possible",
            "wattline_gpu_processes",
            "wattline_gpu_xid_errors_total",
        }

    live(gpus, scenario)


def test_a_gpu_in_mig_mode_has_no_utilization_and_is_judged_by_power_and_work(gpus: StandIn) -> None:
    gpus.say("* nvmlDeviceGetMigMode value=1:1", "* nvmlDeviceGetUtilizationRates error=3")
    gpus.say("* nvmlDeviceGetPowerUsage value=560000")

    async def scenario(world: World) -> None:
        world.engine, world.tokens_per_second = busy() + TOKENS, 100
        text = await world.after(70)
        assert text.values("wattline_gpu_info", gpu="0", mig="on") == [1.0]
        assert text.values(UTILIZATION) == text.values("wattline_gpu_utilization_stuck") == []
        assert text.value("wattline_gpu_memory_total_bytes", gpu="0") == 150754820096
        assert world.deployment.state is State.WORKING
        assert text.value("wattline_tdp_fraction") == pytest.approx(0.8)

    live(gpus, scenario)


# What cannot be.


def test_an_impossible_draw_is_left_out_and_counted_and_the_next_one_is_back(gpus: StandIn) -> None:
    gpus.say("0 nvmlDeviceGetPowerUsage value=70000,70000,3700000000,4294967295,71000")

    async def scenario(world: World) -> None:
        shown = [(await world.after(1)).value(POWER, gpu="0") for _ in range(4)]
        assert shown == [70.0, None, None, 71.0]
        text = world.scrape()
        assert text.value(REJECTED, source=uuid(0), reading="power") == 2.0
        assert text.values(REJECTED, source=uuid(1)) == []
        assert text.value(UP, gpu="0") == 1.0
        # 70 W in the second before and 71 W in the one after; over what nobody knows the two are not joined.
        assert (await world.after(1)).value(ENERGY, gpu="0") == pytest.approx(70.0 + 71.0)

    live(gpus, scenario)


@pytest.mark.parametrize("milliwatts", [15_000_000, 1000])
def test_a_limit_that_the_board_cannot_have_moves_no_fraction(gpus: StandIn, milliwatts: int) -> None:
    # At 15 kW a busy GPU would look idle, at 1 W saturated. Limits are read every 30 s.
    gpus.say("* nvmlDeviceGetPowerUsage value=560000")
    gpus.say(f"* nvmlDeviceGetEnforcedPowerLimit value=700000,700000,{milliwatts},700000")

    async def scenario(world: World) -> None:
        world.engine, world.tokens_per_second = busy() + TOKENS, 3000
        await world.after(59)
        for _ in range(90):
            text = await world.after(1)
            assert text.values(TDP) == pytest.approx([0.8, 0.8])
            if world.now > 65:
                assert world.deployment.state is State.WORKING
        assert text.value(REJECTED, source=uuid(0), reading="limit_enforced") == 1.0

    live(gpus, scenario)


LOWERED = (
    "* nvmlDeviceGetPowerManagementLimit error=3",
    "* nvmlDeviceGetPowerManagementLimitConstraints value=100000:700000",
    "* nvmlDeviceGetPowerUsage value=122631",
)


@pytest.mark.parametrize("failure", ["E999", "4294967295", "15000000", "0"])
def test_an_enforced_limit_that_fails_once_is_the_denominator_as_before(gpus: StandIn, failure: str) -> None:
    # By the default of 700 W a board that draws 0.876 of what it may would be at 0.175 for half a minute.
    gpus.say(*LOWERED, f"* nvmlDeviceGetEnforcedPowerLimit value=140000,140000,{failure},140000")

    async def scenario(world: World) -> None:
        await world.after(59)
        for _ in range(70):
            text = await world.after(1)
            assert text.values(TDP) == pytest.approx([122.631 / 140] * 2)
            assert text.value("wattline_tdp_fraction") == pytest.approx(122.631 / 140)
        # The limit itself is what was read, and nothing in between.
        assert gpus.count("nvmlDeviceGetEnforcedPowerLimit", 0) == 5

    live(gpus, scenario)


def test_an_enforced_limit_that_fails_for_good_is_none_and_no_other_limit(gpus: StandIn) -> None:
    gpus.say(*LOWERED, "* nvmlDeviceGetEnforcedPowerLimit value=140000,140000,E999")

    async def scenario(world: World) -> None:
        world.engine, world.tokens_per_second = busy() + TOKENS, 100
        await world.after(59)
        shown = [(await world.after(1)).values(TDP) for _ in range(180)]
        fractions = {round(value, 3) for values in shown for value in values}
        assert fractions == {0.876}
        # The last one is of second 30, and good for three and a half readings.
        assert [bool(values) for values in shown] == [True] * 76 + [False] * 104
        assert world.deployment.state is State.WORKING, "tokens come"
        assert "tells no power limit" in world.deployment.reason

    live(gpus, scenario)


def test_an_enforced_limit_that_fails_from_the_start_is_waited_for(gpus: StandIn) -> None:
    gpus.say(*LOWERED, "* nvmlDeviceGetEnforcedPowerLimit value=E999,E999,E999,140000")

    async def scenario(world: World) -> None:
        shown = [(await world.after(1)).values(TDP) for _ in range(90)]
        assert {round(value, 3) for values in shown for value in values} == {0.876}

    live(gpus, scenario)


def test_a_board_without_an_enforced_limit_has_its_default(gpus: StandIn) -> None:
    gpus.say(*LOWERED, "* nvmlDeviceGetEnforcedPowerLimit error=3")

    async def scenario(world: World) -> None:
        for _ in range(3):
            text = await world.after(60)
            assert text.values(TDP) == pytest.approx([122.631 / 700] * 2)

    live(gpus, scenario)


def test_a_range_that_is_garbled_costs_no_limit(gpus: StandIn) -> None:
    gpus.say("* nvmlDeviceGetPowerManagementLimitConstraints value=200000:700000,1000:1000,700000:200000,0:0")

    async def scenario(world: World) -> None:
        for _ in range(130):
            text = await world.after(1)
            assert text.values(LIMIT, limit="enforced") == [700.0, 700.0]
        assert text.value(REJECTED, source=uuid(0), reading="limit_range") == 4.0

    live(gpus, scenario)


def test_eight_times_the_limit_of_a_small_board_is_no_draw(gpus: StandIn) -> None:
    # An L4 may draw 72 W. 560 W would be a fraction of 7.78.
    gpus.say(
        "* nvmlDeviceGetEnforcedPowerLimit value=72000",
        "* nvmlDeviceGetPowerManagementLimit value=72000",
        "* nvmlDeviceGetPowerManagementDefaultLimit value=72000",
        "* nvmlDeviceGetPowerManagementLimitConstraints value=40000:72000",
        "0 nvmlDeviceGetPowerUsage value=70000,70000,560000,71000",
    )

    async def scenario(world: World) -> None:
        shown = [(await world.after(1)).value(POWER, gpu="0") for _ in range(3)]
        assert shown == [70.0, None, 71.0]
        assert world.scrape().value(REJECTED, source=uuid(0), reading="power") == 1.0

    live(gpus, scenario)


def test_a_sensor_that_answers_0_w_under_load_is_no_idle_gpu(gpus: StandIn) -> None:
    gpus.say("* nvmlDeviceGetUtilizationRates value=98:40", "* nvmlDeviceGetPowerUsage value=560000")

    async def scenario(world: World) -> None:
        world.engine, world.tokens_per_second = busy() + TOKENS, 3000
        await world.after(70)
        assert world.deployment.state is State.WORKING
        gpus.say("* nvmlDeviceGetPowerUsage value=0", "* field.186.0 value=0 type=1")
        states: list[State] = []
        for _ in range(120):
            text = await world.after(1)
            assert text.values(POWER) == text.values("wattline_gpu_power_instant_watts") == []
            states.append(world.deployment.state)
        assert set(states) == {State.WORKING, State.UNKNOWN}
        assert states[-1] is State.UNKNOWN
        assert text.values(TDP) == text.values("wattline_tdp_fraction") == []
        for reading in ("power", "power_instant"):
            assert (text.value(REJECTED, source=uuid(0), reading=reading) or 0) >= 50
        assert text.value(UTILIZATION, gpu="0") == 0.98
        assert text.value(UP, gpu="0") == 1.0

    live(gpus, scenario)


def test_impossible_utilization_is_left_out_and_never_clamped(gpus: StandIn) -> None:
    gpus.say("0 nvmlDeviceGetUtilizationRates value=0:0,0:0,2619:0,0:0,4294967295:0,100:0,101:0,100:101")

    async def scenario(world: World) -> None:
        shown = [(await world.after(1)).value(UTILIZATION, gpu="0") for _ in range(7)]
        assert shown == [0.0, None, 0.0, None, 1.0, None, 1.0]
        assert world.scrape().value(REJECTED, source=uuid(0), reading="utilization") == 4.0

    live(gpus, scenario)


@pytest.mark.parametrize(
    ("line", "series"),
    [
        ("nvmlDeviceGetTemperatureV value=4294967295", "wattline_gpu_temperature_celsius"),
        ("nvmlDeviceGetTemperatureV value=-1000", "wattline_gpu_temperature_celsius"),
        ("nvmlDeviceGetClockInfo.1 value=4294967295", "wattline_gpu_sm_clock_hertz"),
        ("nvmlDeviceGetMaxClockInfo.1 value=4294967295", "wattline_gpu_sm_clock_hertz"),
        ("nvmlDeviceGetEnforcedPowerLimit value=4294967295", LIMIT),
        ("nvmlDeviceGetEnforcedPowerLimit value=0", LIMIT),
        ("nvmlDeviceGetMemoryInfo_v2 value=100:0:0:18446744073709551615", "wattline_gpu_memory_used_bytes"),
        ("field.186.0 value=4294967295 type=1", "wattline_gpu_power_instant_watts"),
        ("gpm.2 value=250", "wattline_gpu_sm_active_ratio"),
        ("gpm.20 value=1e18", "wattline_gpu_pcie_bytes_per_second"),
        ("nvmlDeviceGetCurrPcieLinkWidth value=4294967295", "wattline_gpu_pcie_link_width"),
    ],
)
def test_a_sentinel_for_no_value_is_no_value(gpus: StandIn, line: str, series: str) -> None:
    gpus.say(f"0 {line}")

    async def scenario(world: World) -> None:
        text = await world.after(10)
        assert len(text.values(series, gpu="0")) == len(text.values(series, gpu="1")) - 1
        assert sum(text.values(REJECTED, source=uuid(0))) >= 1
        for value in text.values(TDP):
            assert value == pytest.approx(122.631 / 700)

    live(gpus, scenario)


def test_one_failure_of_the_sensor_is_one_gap(gpus: StandIn, caplog: pytest.LogCaptureFixture) -> None:
    gpus.say("0 nvmlDeviceGetPowerUsage value=29000,29000,29000,E999,29100")

    async def scenario(world: World) -> None:
        await world.after(1)
        caplog.clear()
        shown = [(await world.after(1)).value(POWER, gpu="0") for _ in range(3)]
        assert shown == [29.0, None, 29.1]
        assert world.scrape().value(ERRORS, source=uuid(0), kind="unknown") == 1.0
        assert caplog.records == []

    live(gpus, scenario)


# Energy.


def test_without_a_counter_energy_is_integrated_from_the_start_and_says_so(gpus: StandIn) -> None:
    gpus.say("* nvmlDeviceGetPowerUsage value=180000")

    async def scenario(world: World) -> None:
        text = await world.after(31)
        assert text.values("wattline_gpu_info", gpu="0", energy_source="integrated") == [1.0]
        assert text.value(ENERGY, gpu="0") == pytest.approx(31 * 180)

    live(gpus, scenario)


def test_an_energy_counter_that_begins_anew_neither_jumps_nor_goes_back(gpus: StandIn) -> None:
    # Read every 5 s, in which 50 W are 250 J. The first call only finds out that there is a counter.
    told = "7500000,7500000,7750000,1000,251000"
    gpus.say(
        f"* nvmlDeviceGetTotalEnergyConsumption value={told} per_second=0", "* nvmlDeviceGetPowerUsage value=50000"
    )

    async def scenario(world: World) -> None:
        shown = [(await world.after(1)).value(ENERGY, gpu="0") for _ in range(16)]
        # The counter's own value at first, then what was drawn, by power where the counter does not tell.
        assert shown == pytest.approx([7500 + 50.0 * second for second in range(1, 17)])
        assert world.scrape().value(ERRORS, source=uuid(0), kind="stepped_back") == 1.0

    live(gpus, scenario)


def test_an_energy_counter_that_leaps_by_the_impossible_is_left_out_and_power_tells(gpus: StandIn) -> None:
    told = "7500000,7500000,7750000,9999999000000,8250000,8500000"
    gpus.say(
        f"* nvmlDeviceGetTotalEnergyConsumption value={told} per_second=0", "* nvmlDeviceGetPowerUsage value=50000"
    )

    async def scenario(world: World) -> None:
        shown = [(await world.after(1)).value(ENERGY, gpu="0") for _ in range(20)]
        assert shown == pytest.approx([7500 + 50.0 * second for second in range(1, 21)])
        assert world.scrape().value(REJECTED, source=uuid(0), reading="energy") == 1.0

    live(gpus, scenario)


@pytest.mark.parametrize(
    ("milliwatts_by_counter", "fraction", "disagreement"),
    [
        # A superchip whose counter is of the whole module, its CPU included: 2,100 W are no share of the GPU's limit.
        (2_100_000, 900 / 1400, 1 - 900 / 2100),
        # A counter that stands still.
        (0, 900 / 1400, 1.0),
        # A counter that is of the same thing is the better of both.
        (927_000, 927 / 1400, 1 - 900 / 927),
    ],
)
def test_a_counter_that_contradicts_power_is_told_and_the_fraction_is_by_power(
    gpus: StandIn, milliwatts_by_counter: int, fraction: float, disagreement: float
) -> None:
    gpus.say(
        f"* nvmlDeviceGetTotalEnergyConsumption value=5000000 per_second={milliwatts_by_counter}",
        "* nvmlDeviceGetPowerUsage value=900000",
        "* nvmlDeviceGetEnforcedPowerLimit value=1400000",
        "* nvmlDeviceGetPowerManagementLimitConstraints value=200000:1400000",
    )

    async def scenario(world: World) -> None:
        before = await world.after(70)
        assert before.value(TDP, gpu="0") == pytest.approx(fraction, rel=1e-3)
        assert before.value("wattline_tdp_fraction") == pytest.approx(fraction, rel=1e-3)
        assert before.value("wattline_gpu_energy_disagreement_ratio", gpu="0") == pytest.approx(disagreement, rel=1e-3)
        after = await world.after(60)
        drawn = (after.value(ENERGY, gpu="0") or 0.0) - (before.value(ENERGY, gpu="0") or 0.0)
        # The series of the counter is the counter's, but no board draws nothing.
        assert drawn == pytest.approx(60 * (milliwatts_by_counter or 900_000) / 1000, rel=0.1)

    live(gpus, scenario)


def test_a_counter_that_fails_for_a_while_leaves_the_fraction_to_power(gpus: StandIn) -> None:
    gpus.say("* nvmlDeviceGetTotalEnergyConsumption value=5000000 per_second=122631")

    async def scenario(world: World) -> None:
        assert (await world.after(70)).value(TDP, gpu="0") == pytest.approx(122.631 / 700)
        gpus.say("* nvmlDeviceGetTotalEnergyConsumption error=999")
        for _ in range(10):
            assert (await world.after(20)).value(TDP, gpu="0") == pytest.approx(122.631 / 700)

    live(gpus, scenario)


def test_a_board_that_tells_its_energy_and_not_its_power_has_a_fraction_by_the_counter(gpus: StandIn) -> None:
    gpus.say("* nvmlDeviceGetTotalEnergyConsumption value=5000000 per_second=350000")
    gpus.say("* nvmlDeviceGetPowerUsage error=3", "* field.186.0 error=3")

    async def scenario(world: World) -> None:
        text = await world.after(70)
        assert text.values(POWER) == []
        assert text.value(TDP, gpu="0") == pytest.approx(0.5)

    live(gpus, scenario)


# What is latched, contradicts itself or aliases.


def test_utilization_that_is_stuck_on_an_idle_card_is_told_and_makes_nobody_busy(gpus: StandIn) -> None:
    gpus.say(
        "0 nvmlDeviceGetUtilizationRates value=100:0",
        "0 nvmlDeviceGetComputeRunningProcesses value=none",
        "* nvmlDeviceGetPowerUsage value=100000",
        "* nvmlDeviceGetEnforcedPowerLimit value=600000",
    )

    async def scenario(world: World) -> None:
        text = await world.after(70)
        assert text.value("wattline_gpu_utilization_stuck", gpu="0") == 1.0
        assert text.value("wattline_gpu_utilization_stuck", gpu="1") == 0.0
        assert text.value(UTILIZATION, gpu="0") == 1.0
        assert world.deployment.state is State.IDLE
        # With requests that wait it is no work either, though utilisation says so.
        world.engine = busy(running=0, queued=37)
        await world.after(180)
        assert world.deployment.state is State.STALLED

    live(gpus, scenario)


def test_utilization_that_alternates_every_second_decides_nothing(gpus: StandIn) -> None:
    gpus.say("* nvmlDeviceGetUtilizationRates value=" + ",".join(["100:0", "0:0"] * 100))
    gpus.say("* nvmlDeviceGetPowerUsage value=500000")

    async def scenario(world: World) -> None:
        world.engine, world.tokens_per_second = busy() + TOKENS, 100
        await world.after(60)
        for _ in range(30):
            await world.after(1)
            assert world.deployment.state is State.WORKING

    live(gpus, scenario)


def test_a_card_that_draws_much_at_0_percent_with_nothing_to_do_is_idle_and_its_energy_is_told_as_such(
    gpus: StandIn,
) -> None:
    gpus.say("* nvmlDeviceGetPowerUsage value=146660", "* nvmlDeviceGetEnforcedPowerLimit value=400000")

    async def scenario(world: World) -> None:
        before = await world.after(60)
        text = await world.after(100)
        assert world.deployment.state is State.IDLE
        name = "wattline_deployment_state_energy_joules_total"
        burnt = (text.value(name, state="idle") or 0.0) - (before.value(name, state="idle") or 0.0)
        assert burnt == pytest.approx(100 * 2 * 146.66, rel=0.01)
        # A floor of 0.37 of the limit is learned, as no global share could know it.
        assert text.value("wattline_gpu_idle_power_watts", gpu="0", source="learned") == 147.0

    live(gpus, scenario)


def test_activity_counters_that_read_0_while_the_gpu_works_make_it_not_idle(gpus: StandIn) -> None:
    gpus.say(
        "* nvmlDeviceGetUtilizationRates value=100:50",
        "* nvmlDeviceGetPowerUsage value=450000",
        *(f"* gpm.{metric} value=0" for metric in (2, 5, 10)),
    )

    async def scenario(world: World) -> None:
        world.engine, world.tokens_per_second = busy() + TOKENS, 300
        await world.after(70)
        assert world.deployment.state is State.WORKING

    live(gpus, scenario)


def test_average_and_instant_power_are_two_series_and_a_step_gives_no_spike_of_efficiency(gpus: StandIn) -> None:
    gpus.say("* nvmlDeviceGetPowerUsage value=100000", "* field.186.0 value=610000 type=1")

    async def scenario(world: World) -> None:
        world.engine, world.tokens_per_second = busy() + TOKENS, 1000
        text = await world.after(70)
        assert text.value(POWER, gpu="0") == 100.0
        assert text.value("wattline_gpu_power_instant_watts", gpu="0") == 610.0
        assert text.value("wattline_tokens_per_watt", kind="generation") == pytest.approx(5.0, rel=0.01)
        gpus.say("* nvmlDeviceGetPowerUsage value=600000")
        last = 5.1
        for _ in range(70):
            now = (await world.after(1)).value("wattline_tokens_per_watt", kind="generation")
            assert now is not None
            assert 1000 / 1200 * 0.99 <= now <= last * 1.001
            last = now
        assert last == pytest.approx(1000 / 1200, rel=0.01)

    live(gpus, scenario)


# GPUs and libraries that go away.


@pytest.mark.parametrize(
    ("code", "kind", "words"), [(15, "gpu_is_lost", "fallen off the bus"), (16, "reset_required", "reset")]
)
def test_of_a_gpu_that_is_gone_only_its_identity_and_its_absence_are_left(
    gpus: StandIn, code: int, kind: str, words: str
) -> None:
    async def scenario(world: World) -> None:
        world.engine, world.tokens_per_second = busy() + TOKENS, 100
        await world.after(70)
        gpus.say(f"0 nvmlDevice* error={code}", f"0 field.* error={code}", f"0 gpm.* error={code}")
        asked = gpus.count("nvmlDeviceGetPowerUsage", 0)
        text = await world.after(3)
        gone = {name for name in of_gpu(text, 0) if not name.startswith("wattline_source_")}
        assert gone == {"wattline_gpu_info", UP}
        assert text.value(UP, gpu="0") == 0.0
        assert text.value(UP, gpu="1") == 1.0
        assert text.value(POWER, gpu="1") == 122.631
        assert text.value(SOURCE_UP, source=uuid(0)) == 0.0
        assert text.value(ERRORS, source=uuid(0), kind=kind) == 1.0
        (source,) = (s for s in world.snapshot.sources if s.name == uuid(0))
        assert words in source.detail
        assert world.deployment.state is State.UNKNOWN
        assert "GPU 0" in world.deployment.reason
        assert text.values("wattline_tdp_fraction") == text.values("wattline_tokens_per_watt") == []
        assert text.value(RUNNING) == 64.0
        # Calls into a lost GPU have crashed their callers.
        await world.after(20)
        assert gpus.count("nvmlDeviceGetPowerUsage", 0) <= asked + 1

    live(gpus, scenario)


def test_a_gpu_that_comes_back_has_drawn_nothing_that_anybody_knows_of_meanwhile(gpus: StandIn) -> None:
    watts = 122.631
    gpus.say("* nvmlDeviceGetTotalEnergyConsumption value=5000000 per_second=122631")

    async def scenario(world: World) -> None:
        before = (await world.after(70)).value(ENERGY, gpu="0") or 0.0
        gpus.say("0 nvmlDevice* error=15", "0 field.* error=15")
        assert (await world.after(300)).value(UP, gpu="0") == 0.0
        gpus.forget()
        # Its counter began anew.
        gpus.say("* nvmlDeviceGetSamples.0 error=3", "* nvmlDeviceGetTotalEnergyConsumption value=-150000000")
        text = await world.after(100)
        assert text.value(UP, gpu="0") == 1.0
        drawn = (text.value(ENERGY, gpu="0") or 0.0) - before
        assert 30 * watts < drawn <= 102 * watts
        energy = sum(text.values("wattline_deployment_state_energy_joules_total"))
        assert energy <= 2 * watts * 480 - 300 * watts

    live(gpus, scenario)


def test_when_the_driver_answers_nothing_any_more_gpus_vanish_and_engines_stay(gpus: StandIn) -> None:
    async def scenario(world: World) -> None:
        world.engine = busy()
        await world.after(10)
        gpus.say("* nvml* error=999", "* field.* error=999", "- nvmlDevice* error=999", "- nvmlInit error=999")
        text = await world.after(5)
        assert text.value(SOURCE_UP, source="nvml") == 0.0
        assert text.values(UP) == [0.0, 0.0]
        assert text.values(POWER) == text.values(LIMIT) == text.values(ENERGY) == []
        assert text.value(RUNNING) == 64.0
        assert (text.value(ERRORS, source="nvml", kind="unknown") or 0) >= 1
        assert world.deployment.state is State.UNKNOWN
        assert not world.publication.ready
        # It is tried again, and less and less often.
        opened = gpus.count("nvmlInit")
        await world.after(200)
        assert 5 <= gpus.count("nvmlInit") - opened <= 10
        gpus.forget()
        text = await world.after(65)
        assert text.values(UP) == [1.0, 1.0]
        assert text.value(SOURCE_UP, source="nvml") == 1.0
        assert len(text.values(POWER)) == 2

    live(gpus, scenario)


@pytest.mark.parametrize(
    ("code", "kind"),
    [(4, "no_permission"), (9, "driver_not_loaded"), (18, "lib_rm_version_mismatch"), (999, "unknown")],
)
def test_a_library_that_cannot_be_opened_at_the_start_costs_the_gpus_alone_until_it_can(
    gpus: StandIn, code: int, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    gpus.say(f"- nvmlInit error={code}")

    async def scenario(world: World) -> None:
        world.engine = busy()
        text = await world.after(100)
        assert text.value(SOURCE_UP, source="nvml") == 0.0
        assert text.values(UP) == []
        assert text.value(RUNNING) == 64.0
        assert (text.value(ERRORS, source="nvml", kind=kind) or 0) >= 6
        told = [record.getMessage() for record in caplog.records if record.name == "wattline.gpus"]
        assert len(told) == 1
        gpus.say("- nvmlInit value=0", "- nvmlSystemGetDriverVersion value=590.48.01")
        text = await world.after(65)
        assert text.values("wattline_gpu_info", gpu="0", driver="590.48.01") == [1.0]
        assert len(text.values(POWER)) == 2

    live(gpus, scenario)


def test_a_call_that_hangs_withdraws_its_gpu_and_leaves_the_others_and_no_thread_more(gpus: StandIn) -> None:
    async def scenario(world: World) -> None:
        world.engine = busy()
        await world.after(10)
        threads = threading.active_count()
        gpus.say("1 nvmlDeviceGetPowerUsage hang=1")
        # A second late is not gone yet.
        assert (await world.after(2)).value(POWER, gpu="1") == 122.631
        for _ in range(4):
            text = await world.after(10)
            assert text.values(POWER, gpu="1") == []
            assert text.value(POWER, gpu="0") == 122.631
            assert (text.value("wattline_source_age_seconds", source=uuid(0)) or 0) <= 1
            assert text.value("wattline_source_age_seconds", source=uuid(1)) == pytest.approx(world.now - 10, abs=2)
            assert world.deployment.state is State.UNKNOWN
        # The one that hangs keeps its thread, however long it takes.
        assert threading.active_count() <= threads + 1
        gpus.say("1 nvmlDeviceGetPowerUsage hang=0")
        assert (await world.after(5)).value(POWER, gpu="1") == 122.631

    live(gpus, scenario)


# GPUs that come, and who is who.


def test_a_gpu_that_is_plugged_in_is_seen_and_one_that_is_pulled_is_missed(gpus: StandIn, tmp_path: Path) -> None:
    gpus.say("- nvmlDeviceGetCount value=1")

    async def scenario(world: World) -> None:
        assert (await world.after(10)).values(UP) == [1.0]
        gpus.say("- nvmlDeviceGetCount value=2")
        assert (await world.after(35)).values(UP) == [1.0, 1.0]
        gpus.say("- nvmlDeviceGetCount value=1")
        text = await world.after(35)
        assert text.value(UP, uuid=uuid(0)) == 1.0
        assert text.value(UP, uuid=uuid(1)) == 0.0
        assert text.value("wattline_deployment_gpus") == 2.0
        assert "GPU 1" in world.deployment.reason

    live(gpus, scenario)


def test_a_configured_gpu_that_was_taken_out_stays_missing_and_its_index_means_no_other(gpus: StandIn) -> None:
    gpus.say("- order value=1:0")
    deployments = ", ".join(
        f"{{name: {name}, engines: [{{url: 'http://127.0.0.1:1/{name}'}}], gpus: [{gpu}]}}"
        for name, gpu in (("a", 0), ("b", uuid(1)), ("c", "'00000000:06:00.0'"), ("d", 1))
    )

    async def scenario(world: World) -> None:
        await world.after(5)
        # What had index 0 is gone, and the other one has index 0 now.
        gpus.say("- order value=0", "- nvmlDeviceGetCount value=1")
        text = await world.after(3600 + 100)
        # Nobody has said that it was taken out: it is lost, and missed by all three names.
        assert [view.gpus for view in world.snapshot.deployments][-1] == (uuid(0),)
        assert text.value(UP, uuid=uuid(1)) == 0.0
        for view in world.snapshot.deployments[:3]:
            assert view.state is State.UNKNOWN
            assert view.power_watts is None
        assert text.value(UP, deployment="d", gpu="0", uuid=uuid(0)) == 1.0

    live(gpus, scenario, configuration=f"deployments: [{deployments}]")


def test_a_lost_gpu_that_is_still_in_the_host_is_missed_for_ever(gpus: StandIn) -> None:
    async def scenario(world: World) -> None:
        await world.after(5)
        gpus.say("1 nvml* error=15", "1 field.* error=15")
        text = await world.after(3600 + 300)
        assert text.value(UP, uuid=uuid(1)) == 0.0
        assert world.deployment.state is State.UNKNOWN

    live(gpus, scenario)


def test_a_gpu_that_tells_its_uuid_late_is_one_gpu(gpus: StandIn) -> None:
    gpus.say(f"0 nvmlDeviceGetUUID value=E3,{uuid(0)}")

    async def scenario(world: World) -> None:
        await world.after(5)
        assert world.deployment.gpus == ("00000000:05:00.0",)
        text = await world.after(40)
        assert world.deployment.gpus == (uuid(0),)
        assert text.values(UP) == [1.0, 1.0]
        assert 'uuid="00000000' not in text.text

    live(gpus, scenario, configuration="deployments: [{name: d, engines: [{url: URL}], gpus: [0]}]")


def test_an_index_in_the_configuration_stays_with_the_gpu_that_had_it_first(gpus: StandIn) -> None:
    async def scenario(world: World) -> None:
        await world.after(5)
        assert world.deployment.gpus == (uuid(0),)
        gpus.say("- order value=1:0")
        text = await world.after(35)
        assert world.deployment.gpus == (uuid(0),)
        assert text.value(POWER, uuid=uuid(0), gpu="1", deployment="d") == 122.631
        assert text.value(POWER, uuid=uuid(1), gpu="0", deployment="") == 122.631

    live(gpus, scenario, configuration="deployments: [{name: d, engines: [{url: URL}], gpus: [0]}]")


def test_a_listed_gpu_that_is_not_there_leaves_no_partial_sum(gpus: StandIn) -> None:
    missing = "GPU-ffffffff-1111-2222-3333-444444444444"

    async def scenario(world: World) -> None:
        world.engine, world.tokens_per_second = busy() + TOKENS, 100
        text = await world.after(70)
        assert text.value("wattline_deployment_gpus_unresolved", deployment="d") == 1.0
        for name in ("wattline_tokens_per_watt", "wattline_tdp_fraction", "wattline_power_watts"):
            assert text.values(name, deployment="d") == []
        assert text.value(STATE, state="unknown") == 1.0
        assert missing in world.deployment.reason
        assert text.value("wattline_tokens_per_second", kind="generation") == pytest.approx(100, rel=0.01)

    configuration = f"deployments: [{{name: d, engines: [{{url: URL}}], gpus: [{uuid(0)}, {missing}]}}]"
    live(gpus, scenario, configuration=configuration)


def test_gpus_that_share_one_uuid_are_two_gpus(gpus: StandIn) -> None:
    gpus.say("* nvmlDeviceGetUUID value=GPU-00000000-0000-0000-0000-000000000000")

    async def scenario(world: World) -> None:
        text = await world.after(10)
        assert text.value(POWER, uuid="00000000:05:00.0") == 122.631
        assert text.value(POWER, uuid="00000000:06:00.0") == 122.631
        lines = [line.rpartition(" ")[0] for line in text.text.splitlines() if not line.startswith("#")]
        assert len(lines) == len(set(lines))

    live(gpus, scenario)


@pytest.mark.parametrize("told", ["E3", "E999", "GPU-00000000-0000-0000-0000-000000000000", uuid(1)])
def test_a_uuid_that_is_garbled_once_makes_neither_a_third_gpu_nor_a_lost_one(gpus: StandIn, told: str) -> None:
    async def scenario(world: World) -> None:
        world.engine, world.tokens_per_second = busy() + TOKENS, 100
        gpus.say("* nvmlDeviceGetPowerUsage value=560000")
        await world.after(70)
        gpus.say(f"0 nvmlDeviceGetUUID value={told},{uuid(0)}")
        for _ in range(70):
            text = await world.after(1)
            assert text.values(UP) == [1.0, 1.0]
            assert world.deployment.state is State.WORKING
        assert gpus.count("nvmlDeviceGetUUID", 0) >= 4
        assert text.values(ERRORS, kind="gpu_not_found") == []

    live(gpus, scenario)


def test_a_host_of_four_billion_gpus_is_not_believed(gpus: StandIn) -> None:
    async def scenario(world: World) -> None:
        await world.after(10)
        gpus.say("- nvmlDeviceGetCount value=4294967295")
        listed = gpus.count("nvmlDeviceGetHandleByIndex")
        text = await world.after(60)
        assert gpus.count("nvmlDeviceGetHandleByIndex") <= listed + 4
        # Those that are there are read as before.
        assert text.values(POWER) == [122.631, 122.631]
        assert (text.value(ERRORS, source="nvml", kind="malformed") or 0) >= 1

    live(gpus, scenario)


def test_a_list_without_end_costs_its_reading(gpus: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    def endless(_: object) -> None:
        raise MemoryError

    for name in ("nvmlDeviceGetComputeRunningProcesses", "nvmlDeviceGetComputeRunningProcesses_v2"):
        monkeypatch.setattr(pynvml, name, endless)

    async def scenario(world: World) -> None:
        text = await world.after(40)
        assert text.values(POWER) == [122.631, 122.631]
        assert text.values("wattline_gpu_temperature_celsius") == [36.0, 36.0]
        assert text.values("wattline_gpu_utilization_stuck") == []
        assert text.value(ERRORS, source=uuid(0), kind="malformed") == 2.0

    live(gpus, scenario)


def test_a_failure_in_the_first_second_is_not_told_as_if_it_would_last(
    gpus: StandIn, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    gpus.say("0 nvmlDeviceGetClockInfo.1 value=E999,1980", "0 nvmlDeviceGetTemperature* error=4")

    async def scenario(world: World) -> None:
        await world.after(10)
        (told,) = (m for r in caplog.records if uuid(0) in (m := r.getMessage()) and "does not tell" in m)
        assert "sm_clock" not in told
        assert "temperature (no_permission)" in told

    live(gpus, scenario)


def test_what_is_silent_at_first_is_told_when_it_speaks(gpus: StandIn) -> None:
    gpus.say("* nvmlDeviceGetPowerUsage error=999")

    async def scenario(world: World) -> None:
        world.engine = IDLE
        assert (await world.after(20)).values(POWER) == []
        gpus.say("* nvmlDeviceGetPowerUsage value=87000")
        assert (await world.after(2)).values(POWER) == [87.0, 87.0]

    live(gpus, scenario)
