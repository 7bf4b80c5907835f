"""The fleet: is any deployment wasting watts?"""

from __future__ import annotations

from typing import TYPE_CHECKING

from grafana_foundation_sdk.builders import bargauge, dashboard, stat, table, timeseries
from grafana_foundation_sdk.models import common as c

from dashboards import money
from dashboards import panels as p
from dashboards.common import (
    ALERTS,
    ALL,
    BY_DEPLOYMENT,
    EACH,
    FEW,
    FLEET,
    HOST,
    OF_EXPORTER,
    OF_TARGET,
    REMEMBERED,
    SAME,
    UNASSIGNED,
    WASTE,
    Layout,
    active_fraction,
    few_rates,
    firing,
    new,
    none_while_blind,
    of_deployments,
    of_limit,
    on_any_node,
    power_shares,
    seconds_in_state,
    state_now,
    states_over_time,
    to_deployment,
    to_gpu,
    tokens_per_second,
    tokens_per_watt,
    variables,
    wasted_watt_hours,
    with_around,
)
from dashboards.numbers import SIGN_OF_LIFE, alerted_by, alerted_over, judged_by
from dashboards.palette import FAULT, FINE, LIMIT, LIMIT_OTHER, POWER, STATE_COLOURS, TOKENS
from wattline.analysis.snapshot import State

if TYPE_CHECKING:
    from grafana_foundation_sdk.cog.builder import Builder
    from grafana_foundation_sdk.models import dashboard as d

T = judged_by()
# An alert that is about no deployment has no row to stand in.
OF_SOME_DEPLOYMENT = f'{ALERTS}, {on_any_node(BY_DEPLOYMENT)}, deployment!=""'
WASTE_WINDOW = alerted_over("energy_window")
"""As EnergyWasted looks back. Not a time range of the panel's own: a link out of such a panel loses the time range."""
WASTED = f"Wasted in {WASTE_WINDOW}"


def _exporters() -> stat.Panel:
    known = f"count(count by ({HOST}) (last_over_time(up{{{OF_TARGET}}}[{REMEMBERED}])))"
    up = f"(count(up{{{OF_TARGET}}} == 1) or 0 * {known})"
    return (
        p.number(
            "Exporters up",
            "Exporters that Prometheus reaches, of those that it knew within the last day. Of the GPUs of one that is "
            "down nothing is known: its deployments have no data, and no alert about them can be raised.",
            "none",
            p.now(f"{up} == {known}", "up"),
            p.now(f"{up} < {known}", "up, of"),
            p.now(known, "known"),
        )
        .decimals(0)
        .text_mode(c.BigValueTextMode.VALUE_AND_NAME)
        .override_by_name("up", p.properties(color=p.fixed(FINE)))
        .override_by_name("up, of", p.properties(color=p.fixed(FAULT)))
    )


def _strip(layout: Layout) -> None:
    state = f'wattline_deployment_state{{{BY_DEPLOYMENT}, state=~"{WASTE}"}}'
    spent = f"sum(wattline_power_watts{{{BY_DEPLOYMENT}}} * on ({SAME}) max by ({SAME}) ({state}))"
    fault = p.steps((None, FINE), (1, FAULT))

    def place(width: int, panel: stat.Panel) -> None:
        layout.place(panel, width, 4)

    place(4, _exporters())
    place(
        4,
        p.number(
            "Wasting watts now",
            "Deployments that hold work while their GPUs draw idle power (idle while busy) or make no token (stalled). "
            "0 is said only where every deployment that was known within the last day is seen; “No data” means that "
            "somebody is not: the table below names the deployment. One whose state is unknown is not counted.",
            "none",
            p.now(none_while_blind(f"sum(max by ({EACH}) ({state}))", BY_DEPLOYMENT), "deployments"),
        )
        .thresholds(fault)
        .color_scheme(p.by_thresholds()),
    )
    place(
        4,
        p.number(
            "Power spent there",
            "Power of the deployments counted on the left: what is being paid for without work being done. It is the "
            "whole draw, not only what a healthy server would save.",
            "watt",
            p.now(none_while_blind(spent, BY_DEPLOYMENT), "watts"),
        )
        .thresholds(fault)
        .color_scheme(p.by_thresholds()),
    )
    place(
        3,
        p.number(
            WASTED,
            f"Energy that all deployments spent idle while busy or stalled in the {WASTE_WINDOW} up to the end of the "
            "time range. Red from the amount that the alert EnergyWasted reports for a single deployment over the same "
            "window. Idle power without work is not counted here.",
            "watth",
            p.now(wasted_watt_hours(BY_DEPLOYMENT, ALL, WASTE_WINDOW), "energy"),
        )
        .decimals(1)
        .thresholds(p.steps((None, FINE), (1, POWER), (1000 * alerted_by("energy_wasted"), FAULT)))
        .color_scheme(p.by_thresholds()),
    )
    place(
        3,
        p.number(
            "Of the limit",
            "Power of all deployments as a share of their enforced limits, which are read from the boards and never "
            "assumed. Low is no fault by itself: see whether work is held.",
            "percentunit",
            p.now(of_limit(BY_DEPLOYMENT, ALL), "of the limit"),
        ).decimals(0),
    )
    place(
        3,
        p.number(
            "Tokens/s",
            "Generated tokens per second over all deployments, from counters over the exporter's window. It says "
            "nothing about power: a throughput can look like a triumph on GPUs that idle.",
            p.TOKENS_PER_SECOND,
            p.now(tokens_per_second(BY_DEPLOYMENT, "generation", ALL), "tokens"),
        )
        .decimals(1)
        .color_scheme(p.always(TOKENS)),
    )
    place(
        3,
        p.number(
            "Alerts firing",
            f"Alerts of Wattline that fire now. 0 is shown only while the alert {SIGN_OF_LIFE} says that the rules are "
            "evaluated; “No data” means that they are not.",
            "none",
            p.now(
                f"count(ALERTS{{{ALERTS}}}) or (0 * count(wattline_source_up{{{OF_EXPORTER}}}) "
                f'and on () ALERTS{{alertname="{SIGN_OF_LIFE}"}})',
                "alerts",
            ),
        )
        .thresholds(fault)
        .color_scheme(p.by_thresholds()),
    )


def _deployments() -> table.Panel:
    narrow = {"custom__align": "right"}
    wasted = wasted_watt_hours(BY_DEPLOYMENT, window=WASTE_WINDOW)
    return p.rows(
        "Which deployment wastes watts?",
        "One row a deployment, summed over its hosts, worst first; click a name for its story. “Where” is its worst "
        "node, if not all is well. “No data”: the exporter was there within the last day and is silent. “Of limit” is "
        "the power as a share of the enforced limits, “Active” the share of the power above the idle floor: both mean "
        f"trouble only while work is held. “{WASTED}” is energy spent idle while busy or stalled in the {WASTE_WINDOW} "
        "up to the end of the time range. An empty cell was not measured; it is not 0.",
        [
            (
                "Deployment",
                "deployment",
                {
                    "links": p.link(
                        "Open the deployment", to_deployment("__data.fields.Deployment", "__data.fields.around")
                    ),
                    "custom__minWidth": 105,
                },
            ),
            ("Cluster", "cluster", {"custom__width": 70}),
            ("namespace", "namespace", p.HIDDEN),
            ("around", "around", p.HIDDEN),
            (
                "State now",
                p.column(with_around(state_now(BY_DEPLOYMENT))),
                p.COLOURED_CELL
                | {"mappings": p.words_property(p.STATES), "custom__width": 125, "custom__align": "left"},
            ),
            (
                "",
                p.column(
                    f"topk by ({EACH}) (1, {state_now(BY_DEPLOYMENT, f'{EACH}, instance')} > "
                    f"{State.SATURATED.record.rank})"
                ),
                {},
            ),
            ("Where", "instance", {"custom__width": 115}),
            (
                "For",
                p.column(seconds_in_state(BY_DEPLOYMENT)),
                {"unit": "dtdurations", "decimals": 0, "custom__width": 90},
            ),
            (
                "Requests",
                p.column(f"sum by ({EACH}) (wattline_deployment_work_requests{{{BY_DEPLOYMENT}}})"),
                narrow | {"unit": "locale", "decimals": 0, "custom__width": 85},
            ),
            (
                "Of limit",
                p.column(of_limit(BY_DEPLOYMENT)),
                p.PERCENT_CELL | {"custom__width": 80},
            ),
            (
                "Active",
                p.column(active_fraction(BY_DEPLOYMENT)),
                p.PERCENT_CELL | {"custom__width": 80},
            ),
            (
                "Tokens/s",
                p.column(tokens_per_second(BY_DEPLOYMENT, "generation")),
                narrow | {"unit": "locale", "decimals": 0, "custom__width": 80},
            ),
            (
                "Tok/s/W",
                p.column(tokens_per_watt(BY_DEPLOYMENT)),
                narrow | {"unit": "none", "decimals": 2, "custom__width": 75},
            ),
            (
                WASTED,
                p.column(f"{wasted} and on ({EACH}) {state_now(BY_DEPLOYMENT)}"),
                narrow
                | {
                    "unit": "watth",
                    "decimals": 1,
                    "custom__width": 110,
                    "custom__cellOptions": {"type": "color-text"},
                    "color": {"mode": "thresholds"},
                    "thresholds": p.steps_property(
                        (None, "text"),
                        (1, STATE_COLOURS[State.IDLE_WHILE_BUSY]),
                    ),
                },
            ),
            (
                "Alerts",
                p.column(firing(EACH, BY_DEPLOYMENT, OF_SOME_DEPLOYMENT)),
                narrow
                | {
                    "decimals": 0,
                    "custom__width": 65,
                    "custom__cellOptions": {"type": "color-text"},
                    "color": {"mode": "thresholds"},
                    "thresholds": p.steps_property((None, "text"), (1, FAULT)),
                },
            ),
            (
                "GPUs",
                p.column(f"sum by ({EACH}) (wattline_deployment_gpus{{{BY_DEPLOYMENT}}})"),
                narrow | {"decimals": 0, "custom__width": 55},
            ),
        ],
        sort=("State now", True),
    )


def _power_by_state() -> timeseries.Panel:
    queries = [
        p.over_time(
            f"sum(wattline_power_watts{{{BY_DEPLOYMENT}}} * on ({SAME}) "
            f'(wattline_deployment_state{{{BY_DEPLOYMENT}, state="{state}"}} == 1))',
            state.record.title,
        )
        for state in State
    ]
    queries.append(p.over_time(f"sum(wattline_gpu_power_watts{{{UNASSIGNED}}})", "no deployment"))
    queries.append(
        p.over_time(
            f'sum(wattline_gpu_power_limit_watts{{{BY_DEPLOYMENT}, limit="enforced"}})', "sum of enforced limits"
        )
    )
    panel = p.stacked(
        p.graph(
            "How much power goes into which state, against the limits?",
            "Power of all deployments, stacked by the state that each is in at that moment; GPUs without a "
            "deployment on top. The dashed line is what the boards may draw together. The gap up to it is headroom, "
            "not waste: waste is what is drawn in the colours of “idle while busy” and “stalled”.",
            "watt",
            *queries,
        )
    ).override_by_name("sum of enforced limits", p.properties(**p.dashed(LIMIT)))
    panel.override_by_name("no deployment", p.properties(color=p.fixed("#C9C9C9")))
    for state in State:
        panel.override_by_name(state.record.title, p.properties(color=p.fixed(STATE_COLOURS[state])))
    return panel


def _top_wasters() -> bargauge.Panel:
    wasted = wasted_watt_hours(BY_DEPLOYMENT)
    return (
        p.bars(
            "Who wasted most?",
            "Up to ten deployments by the energy that they spent idle while busy or stalled within the time range. “No "
            "data” means that none wasted any, or that there is no data: the states above tell which.",
            "watth",
            p.now(f"topk(10, {wasted} > 0)", "{{deployment}}"),
        )
        .decimals(1)
        .color_scheme(p.always(STATE_COLOURS[State.IDLE_WHILE_BUSY]))
        .data_links([_data_link("Open the deployment", to_deployment("__field.labels.deployment"))])
    )


def _energy_by_state() -> bargauge.Panel:
    queries = [
        p.now(
            f'sum(increase(wattline_deployment_state_energy_joules_total{{{BY_DEPLOYMENT}, state="{state}"}}'
            "[$__range])) / 3600",
            state.record.title,
        )
        for state in State
    ]
    panel = p.bars(
        "Where did the energy go?",
        "Energy spent in each state within the time range, over all deployments. Idle is the price of being ready; "
        "idle while busy and stalled bought nothing.",
        "watth",
        *queries,
    ).decimals(1)
    for state in State:
        panel.override_by_name(state.record.title, p.properties(color=p.fixed(STATE_COLOURS[state])))
    return panel


def _data_link(title: str, url: str) -> dashboard.DashboardLink:
    return dashboard.DashboardLink(title).url(url).target_blank(False)


def _idle_gpus() -> bargauge.Panel:
    held = f"wattline_deployment_work_requests{{{BY_DEPLOYMENT}}} >= {T.busy_requests:g}"
    return (
        p.bars(
            "Which GPUs do least while their deployment holds work?",
            "Up to ten GPUs by active power fraction, the lowest first, of deployments that hold "
            f"{T.busy_requests:g} requests or more. Below {T.idle_active_fraction:.0%} a GPU draws idle power. One "
            "low GPU beside busy ones is a rank that waits; all low is a deployment that wastes. “No data” when "
            "nobody holds work.",
            "percentunit",
            p.now(
                f"bottomk(10, wattline_gpu_active_power_fraction{{{BY_DEPLOYMENT}}} and on ({SAME}) ({held}))",
                "{{instance}} · GPU {{gpu}}",
            ),
        )
        .max(1)
        .decimals(1)
        .thresholds(p.steps((None, STATE_COLOURS[State.IDLE_WHILE_BUSY]), (T.idle_active_fraction, FINE)))
        .color_scheme(p.by_thresholds())
        .data_links([_data_link("Open the GPU", to_gpu("__field.labels.uuid"))])
    )


def _trust() -> list[tuple[Builder[d.Panel], int, int]]:
    read = p.rows(
        "Is everything being read?",
        "One row for each thing that an exporter reads: the driver, each GPU, each engine. “no” means that nothing "
        "usable came at the last try, and that its series are absent. The age is that of the last good reading.",
        [
            ("Node", "instance", {"custom__width": 125}),
            ("Source", "source", {"custom__minWidth": 290}),
            (
                "Read",
                p.column(f"max by (instance, source) (wattline_source_up{{{OF_EXPORTER}}})"),
                p.COLOURED_CELL
                | {
                    "custom__width": 70,
                    "mappings": p.words_property({"0": ("no", FAULT), "1": ("yes", FINE)}),
                },
            ),
            (
                "Age",
                p.column(f"max by (instance, source) (wattline_source_age_seconds{{{OF_EXPORTER}}})"),
                {"unit": "s", "decimals": 1, "custom__width": 80},
            ),
            (
                "Errors",
                p.column(
                    f"sum by (instance, source) (increase(wattline_source_errors_total{{{OF_EXPORTER}}}[$__range]))"
                ),
                {"decimals": 0, "custom__width": 80},
            ),
        ],
        sort=("Read", False),
    )
    cost = p.graph(
        "What does reading cost?",
        "Time that one reading takes, 99th percentile over all sources of a host. It is spent beside the work, on "
        f"threads of the exporter; a driver that grows slow shows here first. Up to {FEW} hosts, the slowest.",
        "s",
        p.over_time(
            few_rates(
                "histogram_quantile(0.99, sum by (le, instance) "
                f"(rate(wattline_source_read_seconds_bucket{{{OF_EXPORTER}}}%s)))"
            ),
            "{{instance}}",
        ),
    )
    errors = p.graph(
        "Which readings fail?",
        "Failed readings per second by host and kind. One failing call costs one series of one GPU; an engine that "
        f"does not answer costs that engine. The table above says which source it is. Up to {FEW} lines, the most.",
        "cps",
        p.over_time(
            few_rates(f"sum by (instance, kind) (rate(wattline_source_errors_total{{{OF_EXPORTER}}}%s))"),
            "{{instance}} · {{kind}}",
        ),
    ).axis_soft_max(1)
    rejected = p.graph(
        "Which readings were too strange to believe?",
        "Readings per second that were obtained and thrown away because no board or engine can mean them, such as a "
        f"power of 16 MW or tokens that run backwards. Up to {FEW} lines, the most.",
        "cps",
        p.over_time(
            few_rates(f"sum by (instance, reading) (rate(wattline_source_rejected_readings_total{{{OF_EXPORTER}}}%s))"),
            "{{instance}} · {{reading}}",
        ),
        p.over_time(
            "("
            + few_rates(
                f"sum by (instance, engine) (rate(wattline_engine_rejected_front_readings_total{{{BY_DEPLOYMENT}}}%s))"
            )
            + ") > 0",
            "{{instance}} · {{engine}}",
        ),
    ).axis_soft_max(1)
    lost = (
        p.graph(
            "Are GPUs missing?",
            "GPUs that were there and no longer answer, and GPUs that the configuration names but that are not "
            "visible. Nothing is derived from a deployment that is not complete.",
            "none",
            p.over_time(f"sum(1 - wattline_gpu_up{{{BY_DEPLOYMENT}}})", "lost"),
            p.over_time(f"sum(wattline_deployment_gpus_unresolved{{{BY_DEPLOYMENT}}})", "configured, not visible"),
        )
        .decimals(0)
        .axis_soft_max(4)
        .override_by_name("lost", p.properties(color=p.fixed(FAULT)))
        .override_by_name("configured, not visible", p.properties(**p.dashed(LIMIT_OTHER)))
    )
    versions = p.rows(
        "Which exporters run, and with which configuration?",
        "One row for each exporter that Prometheus knew within the last day. “Config” is whether the last reload of "
        "the file worked; if it did not, the exporter goes on with the one before.",
        [
            ("Node", "instance", {"custom__minWidth": 95}),
            (
                "Up",
                p.column(
                    f"max by (instance) (up{{{OF_TARGET}}} or 0 * last_over_time(up{{{OF_TARGET}}}[{REMEMBERED}]))"
                ),
                p.COLOURED_CELL
                | {"custom__width": 60, "mappings": p.words_property({"0": ("down", FAULT), "1": ("up", FINE)})},
            ),
            ("Version", "version", {"custom__width": 70}),
            ("", p.column(f"max by (instance, version) (wattline_build_info{{{OF_EXPORTER}}})"), {}),
            (
                "Config",
                p.column(f"max by (instance) (wattline_config_last_reload_successful{{{OF_EXPORTER}}})"),
                p.COLOURED_CELL
                | {
                    "custom__width": 80,
                    "mappings": p.words_property({"0": ("refused", FAULT), "1": ("loaded", FINE)}),
                },
            ),
            (
                "Since",
                p.column(
                    f"1000 * max by (instance) (wattline_config_last_reload_success_timestamp_seconds{{{OF_EXPORTER}}})"
                ),
                {"unit": "dateTimeFromNow", "custom__width": 105},
            ),
        ],
        sort=("Up", False),
    )
    return [(read, 15, 9), (versions, 9, 9), (cost, 12, 8), (errors, 12, 8), (lost, 12, 8), (rejected, 12, 8)]


def build() -> dashboard.Dashboard:
    """Build the dashboard of the fleet."""
    board = new(
        FLEET, "Is any deployment wasting watts? State, power, tokens and waste of every deployment.", variables()
    )
    layout = Layout(board)
    _strip(layout)
    layout.place(_deployments(), 24, 9)
    layout.place(
        p.timeline(
            "When was each deployment in which state?",
            f"One row a deployment, up to {FEW}: those that were longest unknown or worse. The colour is its state, "
            "over several hosts the one that matters most. A gap means that there is no data for that time: nobody "
            "knows, and it does not mean idle. States shorter than the step of the graph may be missed; the counters "
            "in the other panels miss nothing.",
            p.over_time(states_over_time(BY_DEPLOYMENT), "{{deployment}} {{cluster}}"),
        ).mappings(p.words(p.STATES)),
        24,
        7,
        shaded=False,
    )
    layout.place(_power_by_state(), 12, 9, shaded=False)
    layout.place(_top_wasters(), 6, 9)
    layout.place(_energy_by_state(), 6, 9)
    layout.heading("Which GPUs?")
    layout.place(
        p.power_histogram(
            "At which fraction of their limits do the GPUs spend their time?",
            "Each column shares out the time of all GPUs over the fractions of their limits: bright is where they "
            "are most of the time. Two bright bands mean bursts between idle and full, one band means steady load. "
            "It comes from the driver's own buffered samples, so that nothing between two scrapes is lost.",
            p.over_time(power_shares(BY_DEPLOYMENT), "{{le}}"),
        ),
        12,
        9,
    )
    layout.place(_idle_gpus(), 12, 9)
    layout.folded(money.HEADING, money.panels(BY_DEPLOYMENT))
    layout.folded("Can these numbers be trusted?", _trust())
    layout.annotate(of_deployments(BY_DEPLOYMENT))
    return board
