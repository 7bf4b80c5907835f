"""One GPU: everything known about it, against its limits."""

from __future__ import annotations

from typing import TYPE_CHECKING

from grafana_foundation_sdk.models import common as c

from dashboards import panels as p
from dashboards.common import (
    GPU,
    OF_GPU,
    RECEIVE,
    TRANSMIT,
    Layout,
    gpu_activity,
    gpu_event_reasons,
    new,
    of_one_gpu,
    power_shares,
    to_deployment,
    variables,
)
from dashboards.numbers import judged_by
from dashboards.palette import (
    FAULT,
    FINE,
    FLOOR,
    LIMIT,
    LIMIT_OTHER,
    NEUTRAL,
    POWER,
    POWER_INSTANT,
    REQUESTS_RUNNING,
    STATE_COLOURS,
    TOKENS,
)
from dashboards.scales import OF_LIMIT_STEPS, SHARE_OF_LINK_STEPS
from wattline.analysis.snapshot import State

if TYPE_CHECKING:
    from grafana_foundation_sdk.builders import dashboard, prometheus, stat, table, timeseries

T = judged_by()


def one(metric: str, more: str = "", by: str = "") -> str:
    """Return PromQL for a reading of the GPU: one series, also where its deployment was renamed on the way."""
    return f"max by ({by}) ({metric}{{{OF_GPU}{', ' if more else ''}{more}}})"


def _identity() -> table.Panel:
    labels = (
        "instance, gpu, deployment, name, architecture, driver, pci_bus_id, virtualization, mig, memory, energy_source"
    )
    return p.rows(
        "Which GPU is this?",
        "What is asked once and does not change. “Energy from” is whether the board counts its energy itself (counter) "
        "or the exporter adds up its power (integrated).",
        [
            (
                "Deployment",
                "deployment",
                {
                    "custom__width": 120,
                    "links": p.link("Open the deployment", to_deployment("__data.fields.Deployment")),
                },
            ),
            ("Node", "instance", {"custom__width": 125}),
            ("GPU", "gpu", {"custom__width": 50}),
            ("Name", "name", {"custom__minWidth": 150, "custom__wrapText": True}),
            ("Architecture", "architecture", {"custom__width": 105}),
            ("Driver", "driver", {"custom__width": 95}),
            ("Bus id", "pci_bus_id", {"custom__width": 145}),
            ("Virtual", "virtualization", {"custom__width": 105}),
            ("MIG", "mig", {"custom__width": 55}),
            ("Memory", "memory", {"custom__width": 85}),
            ("Energy from", "energy_source", {"custom__width": 100}),
            ("", p.column(f"max by ({labels}) (wattline_gpu_info{{{OF_GPU}}})"), {}),
        ],
    )


def _numbers() -> list[tuple[stat.Panel, int]]:
    answers = (
        p.number(
            "Answering?",
            "1 while the driver answers for this GPU. “lost” means that it was there and is gone: all its other series "
            "end then.",
            "none",
            p.now(f"max(wattline_gpu_up{{{OF_GPU}}})", "up"),
        )
        .mappings(
            p.words(
                {
                    "0": ("lost", FAULT),
                    "1": ("yes", FINE),
                }
            )
        )
        .color_mode(c.BigValueColorMode.BACKGROUND_SOLID)
        .color_scheme(p.by_thresholds())
    )
    power = p.number(
        "Power now",
        "Board power, the driver's own average over about a second: the last value that was read.",
        "watt",
        p.now(one("wattline_gpu_power_watts"), "power"),
    ).decimals(0)
    of_limit = p.number(
        "Of its limit",
        "Mean power over the window as a share of the enforced limit; never clamped.",
        "percentunit",
        p.now(one("wattline_gpu_tdp_fraction"), "of the limit"),
    ).decimals(0)
    active = p.number(
        "Active power",
        "Power above the idle floor as a share of what there is above it.",
        "percentunit",
        p.now(one("wattline_gpu_active_power_fraction"), "active"),
    ).decimals(0)
    floor = (
        p.number(
            "Idle floor",
            "What it draws with the model loaded and no work, and where that number comes from: learned on this GPU, "
            "configured, or assumed until there was a chance to learn.",
            "watt",
            p.now(one("wattline_gpu_idle_power_watts", by="source"), "{{source}}"),
        )
        .decimals(0)
        .text_mode(c.BigValueTextMode.VALUE_AND_NAME)
        .color_scheme(p.always(FLOOR))
    )
    energy = p.number(
        "Energy drawn",
        "What it drew over the time range, by the board's energy counter where it has one.",
        "watth",
        p.now(f"sum(increase(wattline_gpu_energy_joules_total{{{OF_GPU}}}[$__range])) / 3600", "energy"),
    ).decimals(1)
    xid = (
        p.number(
            "XID errors",
            "Errors that the driver reported for this GPU within the time range, while the exporter listened. Any "
            "one deserves a look into the kernel log. While nobody listens, nothing is said.",
            "none",
            p.now(
                f"sum(increase(wattline_gpu_xid_errors_total{{{OF_GPU}}}[$__range])) "
                f"and on () wattline_gpu_up{{{OF_GPU}}}",
                "errors",
            ),
        )
        .decimals(0)
        .thresholds(p.steps((None, FINE), (0.5, FAULT)))
        .color_scheme(p.by_thresholds())
    )
    stuck = (
        p.number(
            "Utilisation",
            "“stuck” means that the driver reports 100 % although power is idle and no process holds the GPU.",
            "none",
            p.now(f"max(wattline_gpu_utilization_stuck{{{OF_GPU}}})", "stuck"),
        )
        .mappings(
            p.words(
                {
                    "0": ("plausible", FINE),
                    "1": ("stuck", FAULT),
                }
            )
        )
        .color_scheme(p.by_thresholds())
    )
    return [(panel, 3) for panel in (answers, power, of_limit, active, floor, energy, xid, stuck)]


def _power() -> timeseries.Panel:
    def limit(name: str) -> prometheus.Dataquery:
        return p.over_time(one("wattline_gpu_power_limit_watts", f'limit="{name}"'), f"{name} limit")

    panel = (
        p.graph(
            "How much does it draw, between which limits?",
            "Power as the driver averages it and, where the board tells, the instantaneous value, between the idle "
            "floor and the limits. Only the enforced limit counts; it can be set between min and max. Single peaks "
            "above it are normal, a mean above it is not.",
            "watt",
            p.over_time(one("wattline_gpu_power_instant_watts"), "instant"),
            p.over_time(one("wattline_gpu_power_watts"), "power"),
            p.over_time(one("wattline_gpu_idle_power_watts", by="source"), "idle floor ({{source}})"),
            limit("enforced"),
            limit("requested"),
            limit("default"),
            limit("min"),
            limit("max"),
        )
        .override_by_name("power", p.properties(color=p.fixed(POWER), custom__fillOpacity=20))
        .override_by_name("instant", p.properties(color=p.fixed(POWER_INSTANT), custom__lineWidth=1))
        .override_by_regexp("/^idle floor/", p.properties(**p.dashed(FLOOR)))
        .override_by_name("enforced limit", p.properties(**p.dashed(LIMIT)))
    )
    for name in ("requested", "default", "min", "max"):
        panel.override_by_name(f"{name} limit", p.properties(**p.dashed(LIMIT_OTHER, 1)))
    return panel


def _fractions() -> timeseries.Panel:
    return p.threshold_lines(
        p.graph(
            "How much of it is work?",
            "The share of the limit, and the share of the power above the idle floor. Lines: below "
            f"{T.idle_tdp_fraction:.0%} of the limit it idles, below {T.low_tdp_fraction:.0%} a loaded deployment is "
            f"low on power, from {T.saturated_tdp_fraction:.0%} it is saturated.",
            "percentunit",
            p.over_time(one("wattline_gpu_tdp_fraction"), "of the limit"),
            p.over_time(one("wattline_gpu_active_power_fraction"), "active"),
        )
        .axis_soft_max(1)
        .thresholds(p.steps(*OF_LIMIT_STEPS))
        .override_by_name("of the limit", p.properties(color=p.fixed(POWER)))
        .override_by_name("active", p.properties(color=p.fixed(FINE)))
    )


def _energy() -> list[timeseries.Panel]:
    meters = (
        p.graph(
            "Do the two meters agree?",
            "Mean power by the energy counter beside the sampled power. They should lie on each other; where they do "
            "not, one of the two is wrong, and so is everything derived from it.",
            "watt",
            p.over_time(
                f"max(rate(wattline_gpu_energy_joules_total{{{OF_GPU}}}[$__rate_interval]))", "by energy counter"
            ),
            p.over_time(
                f"max(avg_over_time(wattline_gpu_power_watts{{{OF_GPU}}}[$__rate_interval]))", "by sampled power"
            ),
        )
        .override_by_name("by energy counter", p.properties(color=p.fixed(TOKENS)))
        .override_by_name("by sampled power", p.properties(color=p.fixed(POWER)))
    )
    differ = p.graph(
        "How far do they differ?",
        "Difference between the energy counter and integrated power over the exporter's window, as a share of the "
        "greater. One per cent is normal.",
        "percentunit",
        p.over_time(one("wattline_gpu_energy_disagreement_ratio"), "difference"),
    ).override_by_name("difference", p.properties(color=p.fixed(TOKENS)))
    return [meters, differ]


def _link() -> list[timeseries.Panel]:
    traffic = "wattline_gpu_pcie_bytes_per_second"
    capacity = one("wattline_gpu_pcie_link_bytes_per_second")
    volume = (
        p.graph(
            "How much goes over its PCIe link?",
            "Traffic each way, against what the link carries one way at its current generation and width.",
            "Bps",
            p.over_time(one(traffic, 'direction="transmit"'), "transmit: GPU to host"),
            p.over_time(one(traffic, 'direction="receive"'), "receive: host to GPU"),
            p.over_time(capacity, "the link carries"),
        )
        .override_by_name("transmit: GPU to host", p.properties(**TRANSMIT))
        .override_by_name("receive: host to GPU", p.properties(**RECEIVE))
        .override_by_name("the link carries", p.properties(**p.dashed(LIMIT)))
    )
    share = p.threshold_lines(
        p.graph(
            "How full is the link?",
            f"Traffic as a share of what the link carries one way. Above {T.pcie_share:.0%} it is a suspect.",
            "percentunit",
            p.over_time(f"{one(traffic, by='direction')} / on () group_left () {capacity}", "{{direction}}"),
        )
        .axis_soft_max(1)
        .thresholds(p.steps(*SHARE_OF_LINK_STEPS))
        .override_by_name("transmit", p.properties(**TRANSMIT))
        .override_by_name("receive", p.properties(**RECEIVE))
    )
    shape = (
        p.graph(
            "Is the link what it could be?",
            "PCIe generation and width, current against their own maximum. Links fall back to a lower generation when "
            "idle; a lower one under load is degraded.",
            "none",
            p.over_time(one("wattline_gpu_pcie_link_generation", 'bound="current"'), "generation"),
            p.over_time(one("wattline_gpu_pcie_link_generation", 'bound="max"'), "generation, max"),
            p.over_time(one("wattline_gpu_pcie_link_width", 'bound="current"'), "lanes"),
            p.over_time(one("wattline_gpu_pcie_link_width", 'bound="max"'), "lanes, max"),
        )
        .decimals(0)
        .fill_opacity(0)
        .line_interpolation(c.LineInterpolation.STEP_AFTER)
        .override_by_name("generation", p.properties(color=p.fixed(TOKENS)))
        .override_by_name("generation, max", p.properties(**p.dashed(TOKENS, 1)))
        .override_by_name("lanes", p.properties(color=p.fixed(REQUESTS_RUNNING)))
        .override_by_name("lanes, max", p.properties(**p.dashed(REQUESTS_RUNNING, 1)))
    )
    return [volume, share, shape]


def _board() -> list[timeseries.Panel]:
    clock = (
        p.graph(
            "How fast does it run?",
            "SM clock against its maximum. A high clock is no work: with a context open and nothing to do it goes "
            "to the maximum. A low one under load is held back: see why beside it.",
            "hertz",
            p.over_time(one("wattline_gpu_sm_clock_hertz", 'bound="current"'), "SM clock"),
            p.over_time(one("wattline_gpu_sm_clock_hertz", 'bound="max"'), "max"),
        )
        .override_by_name("SM clock", p.properties(color=p.fixed(STATE_COLOURS[State.SATURATED])))
        .override_by_name("max", p.properties(**p.dashed(LIMIT)))
    )
    temperature = p.graph(
        "How hot is it?",
        "Temperature of the GPU. What it may reach differs by board; whether heat holds the clocks back is said by the "
        "reasons above.",
        "celsius",
        p.over_time(one("wattline_gpu_temperature_celsius"), "temperature"),
    ).override_by_name("temperature", p.properties(color=p.fixed(FAULT)))
    memory = (
        p.graph(
            "How full is its memory?",
            "Memory in use, against what there is. Weights and cache fill it whether there is work or not.",
            "bytes",
            p.over_time(one("wattline_gpu_memory_used_bytes"), "used"),
            p.over_time(one("wattline_gpu_memory_total_bytes"), "total"),
        )
        .override_by_name("used", p.properties(color=p.fixed(TOKENS), custom__fillOpacity=25))
        .override_by_name("total", p.properties(**p.dashed(LIMIT)))
    )
    peers = (
        p.graph(
            "How many other GPUs does it reach directly?",
            "GPUs of the host that it can read peer to peer, of those there are. It changes only with the driver or "
            "the machine; without data, the guest does not see the topology.",
            "none",
            p.over_time(one("wattline_gpu_p2p_peers"), "peer-to-peer"),
            p.over_time(one("wattline_gpu_p2p_peers_possible"), "possible"),
        )
        .decimals(0)
        .override_by_name("peer-to-peer", p.properties(color=p.fixed(REQUESTS_RUNNING)))
        .override_by_name("possible", p.properties(**p.dashed(NEUTRAL, 1)))
    )
    return [clock, temperature, memory, peers]


def _sources() -> list[timeseries.Panel]:
    by_uuid = 'source="$gpu"'
    return [
        p.graph(
            "How old is the last good reading?",
            "Age of the last reading of this GPU. Readings come every second; an age that climbs is a driver that does "
            "not answer, and old values are not shown on.",
            "s",
            p.over_time(f"wattline_source_age_seconds{{{by_uuid}}}", "{{instance}}"),
        ),
        p.graph(
            "Which readings of this GPU fail?",
            "Failed calls per second by kind. What the board does not support is asked once and is no error.",
            "cps",
            p.over_time(
                f"sum by (instance, kind) (rate(wattline_source_errors_total{{{by_uuid}}}[$__rate_interval]))",
                "{{instance}} · {{kind}}",
            ),
        ),
    ]


def build() -> dashboard.Dashboard:
    """Build the dashboard of one GPU."""
    board = new(GPU, "Everything known about one GPU, against its limits.", variables(gpu="one"))
    layout = Layout(board)
    for panel, width in _numbers():
        layout.place(panel, width, 4)
    layout.place(_identity(), 24, 4)
    layout.place(_power(), 14, 10)
    layout.place(
        p.power_histogram(
            "At which power does it spend its time?",
            "Each column shares out the time over the fractions of the enforced limit: bright is where it is most "
            "of the time. Two bands are bursts, one is steady load.",
            p.over_time(power_shares(OF_GPU), "{{le}}"),
        ),
        10,
        10,
    )
    layout.place(_fractions(), 12, 8)
    layout.place(gpu_activity(OF_GPU, "max"), 12, 8)
    clock, temperature, memory, peers = _board()
    layout.place(clock, 12, 8)
    layout.place(gpu_event_reasons(OF_GPU), 12, 8)
    layout.heading("The link")
    for graph in _link():
        layout.place(graph, 8, 8)
    layout.heading("Energy, heat, memory")
    for graph in (*_energy(), temperature, memory):
        layout.place(graph, 6, 8)
    layout.heading("Peers and readings")
    for graph in (peers, *_sources()):
        layout.place(graph, 8, 7)
    layout.annotate(of_one_gpu())
    return board
