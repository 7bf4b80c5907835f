"""One deployment: its story in one screen, and what speaks for the suspected cause."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from grafana_foundation_sdk.builders import common
from grafana_foundation_sdk.models import common as c

from dashboards import latency, money, now
from dashboards import panels as p
from dashboards.common import (
    ALL,
    DEPLOYMENT,
    FEW,
    OF_ONE,
    OF_ONES_GPUS,
    RECEIVE,
    TRANSMIT,
    Layout,
    active_fraction,
    few_of,
    few_rates,
    gpu_activity,
    gpu_event_reasons,
    new,
    of_deployments,
    of_limit,
    power_shares,
    states_over_time,
    to_gpu,
    tokens_per_second,
    tokens_per_watt,
    variables,
)
from dashboards.numbers import judged_by
from dashboards.palette import (
    CALM,
    FAULT,
    FINE,
    LIMIT,
    NEUTRAL,
    POWER,
    REQUESTS_QUEUED,
    REQUESTS_RUNNING,
    STATE_COLOURS,
    TOKENS,
    TOKENS_PROMPT,
)
from dashboards.scales import ACTIVE_STEPS, OF_LIMIT_STEPS, SHARE_OF_LINK_STEPS, Steps
from wattline.analysis.causes import Cause
from wattline.analysis.plan import Plan
from wattline.analysis.snapshot import State

if TYPE_CHECKING:
    from grafana_foundation_sdk.builders import (
        dashboard,
        heatmap,
        prometheus,
        stat,
        statetimeline,
        table,
        timeseries,
        xychart,
    )

T = judged_by()
FAINT = "rgba(142, 142, 142, 0.15)"
WINDOW = f"{Plan().window:g}s"
"""Over which the exporter takes its means, unless it is configured otherwise."""
GPU_NAME = "{{instance}} · GPU {{gpu}}"


def _fraction(title: str, description: str, query: str) -> stat.Panel:
    return p.number(title, description, "percentunit", p.now(query, "fraction")).decimals(0)


def _throughput_and_power() -> timeseries.Panel:
    right = {"custom__axisPlacement": "right", "unit": p.TOKENS_PER_SECOND, "custom__axisLabel": "tokens"}
    return (
        p.graph(
            "Does the power follow the throughput?",
            "Power (left axis) and tokens (right axis) of the same moments. Tokens without power are usually a sample "
            "taken at the wrong moment; power without tokens is prefill, or waste. The dashed line is the sum of the "
            "enforced limits.",
            "watt",
            p.over_time(f"sum(wattline_power_watts{{{OF_ONE}}})", "power"),
            p.over_time(f"sum(wattline_power_limit_watts{{{OF_ONE}}})", "limit"),
            p.over_time(tokens_per_second(OF_ONE, "generation", ALL), "generated tokens"),
            p.over_time(tokens_per_second(OF_ONE, "prompt", ALL), "prompt tokens"),
        )
        .override_by_name(
            "power", p.properties(color=p.fixed(POWER), custom__fillOpacity=25, custom__axisLabel="power")
        )
        .override_by_name("limit", p.properties(custom__axisLabel="power", **p.dashed(LIMIT)))
        .override_by_name("generated tokens", p.properties(color=p.fixed(TOKENS), custom__fillOpacity=0, **right))
        .override_by_name(
            "prompt tokens",
            p.properties(color=p.fixed(TOKENS_PROMPT), custom__lineWidth=1, custom__fillOpacity=0, **right),
        )
    )


def _requests() -> timeseries.Panel:
    return (
        p.graph(
            "How many requests does it hold?",
            "Running and queued requests of all engines, and the number that the verdict uses (“held”): the best "
            "signal that each engine offers. Engines may go on showing the last running requests for up to 30 s "
            "after the work ended, and a frozen one shows them for ever.",
            "locale",
            p.over_time(f"sum(wattline_engine_running_requests{{{OF_ONE}}})", "running"),
            p.over_time(f"sum(wattline_engine_queued_requests{{{OF_ONE}}})", "queued"),
            p.over_time(f"sum(wattline_deployment_work_requests{{{OF_ONE}}})", "held"),
        )
        .no_value("No engine tells: none is configured, or none could be read")
        .override_by_name("running", p.properties(color=p.fixed(REQUESTS_RUNNING), custom__fillOpacity=25))
        .override_by_name("queued", p.properties(color=p.fixed(REQUESTS_QUEUED), custom__fillOpacity=25))
        .override_by_name("held", p.properties(**p.dashed(NEUTRAL, 1)))
    )


def _ceilings() -> timeseries.Panel:
    return (
        p.graph(
            "How close is it to what its GPUs can do?",
            "Memory traffic and operations as shares of what the GPUs can carry and compute, measured or estimated by "
            "the engines. Decoding is bound by memory: a bandwidth near 100 % is good work at a low power.",
            "percentunit",
            p.over_time(f"max(wattline_deployment_bandwidth_ratio{{{OF_ONE}}})", "memory bandwidth"),
            p.over_time(f"max(wattline_deployment_flops_ratio{{{OF_ONE}}})", "operations"),
        )
        .axis_soft_max(1)
        .override_by_name("memory bandwidth", p.properties(color=p.fixed(STATE_COLOURS[State.SATURATED])))
        .override_by_name("operations", p.properties(color=p.fixed(TOKENS)))
        .no_value("Neither the boards nor the engines tell")
    )


def _state_share() -> timeseries.Panel:
    seconds = f"wattline_deployment_state_seconds_total{{{OF_ONE}"
    panel = p.stacked(
        p.graph(
            "What did it do with its time?",
            "Share of time in each state, stacked like the modes of a CPU: it adds up to 100 % wherever somebody "
            "looked. It comes from counters, so a missed scrape hides nothing. Over several hosts it is their mean.",
            "percentunit",
            *(
                p.over_time(
                    f'sum(rate({seconds}, state="{state}"}}[$__rate_interval])) '
                    f"/ (sum(rate({seconds}}}[$__rate_interval])) > 0)",
                    state.record.title,
                )
                for state in State
            ),
        ).max(1)
    )
    for state in State:
        panel.override_by_name(state.record.title, p.properties(color=p.fixed(STATE_COLOURS[state])))
    return panel


def _histogram() -> heatmap.Panel:
    return p.power_histogram(
        "Bursts or steady load?",
        "Each column shares out the time of the selected GPUs over the fractions of their limits: bright is where "
        "they are most of the time. Two bright bands, near idle and near full, are bursts; one band is steady load. "
        "From the driver's own buffered samples: an average over both bands would hide them.",
        p.over_time(power_shares(OF_ONES_GPUS), "{{le}}"),
    )


def _per_gpu(title: str, description: str, metric: str, lines: Steps) -> timeseries.Panel:
    return p.threshold_lines(
        p.graph(
            title, description, "percentunit", p.over_time(few_of(f"{metric}{{{OF_ONES_GPUS}}}", "bottomk"), GPU_NAME)
        )
        .legend(p.legend_beside("mean", "min"))
        .fill_opacity(0)
        .line_width(1)
        .axis_soft_max(1)
        .thresholds(p.steps(*lines))
    )


def _gpus() -> table.Panel:
    by = "by (instance, gpu, uuid) "

    def each(metric: str, more: str = "") -> prometheus.Dataquery:
        return p.column(f"max {by}({metric}{{{OF_ONES_GPUS}{more}}})")

    right = {"custom__align": "right"}
    return p.rows(
        "How is each GPU?",
        "One row a GPU, now; click an index for everything about it. A GPU far below its neighbours waits for them, or "
        "they for it. An empty cell was not measured.",
        [
            ("Node", "instance", {"custom__minWidth": 120}),
            (
                "GPU",
                "gpu",
                {
                    "custom__width": 60,
                    "links": p.link("Open the GPU", to_gpu("__data.fields.UUID")),
                },
            ),
            ("UUID", "uuid", p.HIDDEN),
            (
                "Up",
                each("wattline_gpu_up"),
                p.COLOURED_CELL
                | {"custom__width": 65, "mappings": p.words_property({"0": ("lost", FAULT), "1": ("yes", FINE)})},
            ),
            (
                "Of limit",
                each("wattline_gpu_tdp_fraction"),
                p.PERCENT_CELL | {"custom__width": 90},
            ),
            (
                "Active",
                each("wattline_gpu_active_power_fraction"),
                p.PERCENT_CELL | {"custom__width": 90},
            ),
            ("Power", each("wattline_gpu_power_watts"), right | {"unit": "watt", "decimals": 0, "custom__width": 80}),
            (
                "Limit",
                each("wattline_gpu_power_limit_watts", ', limit="enforced"'),
                right | {"unit": "watt", "decimals": 0, "custom__width": 80},
            ),
            (
                "Utilisation",
                each("wattline_gpu_utilization_ratio"),
                right | {"unit": "percentunit", "decimals": 0, "custom__width": 100},
            ),
            (
                "Memory",
                p.column(
                    f"max {by}(wattline_gpu_memory_used_bytes{{{OF_ONES_GPUS}}}) "
                    f"/ max {by}(wattline_gpu_memory_total_bytes{{{OF_ONES_GPUS}}})"
                ),
                right | {"unit": "percentunit", "decimals": 0, "custom__width": 85},
            ),
            (
                "Temp.",
                each("wattline_gpu_temperature_celsius"),
                right | {"unit": "celsius", "decimals": 0, "custom__width": 75},
            ),
            ("Peers", each("wattline_gpu_p2p_peers"), right | {"unit": "none", "decimals": 0, "custom__width": 70}),
        ],
        sort=("Of limit", False),
    )


def _scaling() -> list[xychart.Panel]:
    # What runs upwards is a mean over the exporter's window: so must be what it is set against, or a point joins the
    # tokens of a burst with the silence after it. Where nothing runs there is nothing to scale.
    held = f"sum(avg_over_time(wattline_engine_running_requests{{{OF_ONE}}}[{WINDOW}])) >= 1"
    running = (held, "requests running")
    return [
        p.scatter(
            "Does more concurrency still bring more tokens?",
            f"One point for each moment of the time range at which requests ran: both values are means over {WINDOW}. "
            "While points climb with the requests, more load brings more throughput; where they flatten, it only "
            "brings waiting. Points far below the others are bad moments at the same load.",
            p.TOKENS_PER_SECOND,
            running,
            (tokens_per_second(OF_ONE, "generation", ALL), "generated tokens/s"),
            TOKENS,
        ),
        p.scatter(
            "Does more concurrency still bring more tokens per watt?",
            "One point for each moment of the time range at which requests ran: generated tokens per second and watt, "
            f"that is tokens per joule, and requests, as means over {WINDOW}. Compare a deployment with itself at the "
            "same concurrency only: model, batch and context move this number by a factor of ten and more.",
            p.TOKENS_PER_JOULE,
            running,
            (tokens_per_watt(OF_ONE, ALL), "tokens per watt"),
            POWER,
        ),
    ]


def _efficiency() -> list[timeseries.Panel]:
    def each_kind(metric: str, which: str) -> list[prometheus.Dataquery]:
        return [
            p.over_time(few_of(f'{metric}{{{OF_ONE}, kind="{kind}"}}', which), "{{instance}} · {{kind}}")
            for kind in ("generation", "total")
        ]

    return [
        p.graph(
            "How many tokens does a watt buy?",
            "Tokens per second and watt, of each host: its token delta divided by its energy delta over the same "
            "window. “generation” counts generated tokens, “total” prompt tokens too; a long prompt makes them differ "
            "by a factor of ten. With one engine over several hosts, each host divides by its own power only. Up to "
            f"{FEW} hosts, those that get least.",
            p.TOKENS_PER_JOULE,
            *each_kind("wattline_tokens_per_watt", "bottomk"),
        ),
        p.graph(
            "What does a token cost?",
            "Energy for each token, of each host. There is no line while no token comes: the cost is then not 0 but "
            f"has no meaning. The axis is logarithmic: the last token of a burst may cost a thousand times as much as "
            f"the others. Up to {FEW} hosts, those that pay most.",
            "joule",
            *each_kind("wattline_joules_per_token", "topk"),
            logarithmic=True,
        ),
    ]


def _causes_over_time() -> statetimeline.Panel:
    panel = (
        p.timeline(
            "When was which cause suspected?",
            "One row a cause; filled while it was suspected on any host. Several may be at once. A gap is missing "
            "data.",
            p.over_time(f"max by (cause) (wattline_deployment_suspected_cause{{{OF_ONE}}})", "{{cause}}"),
        )
        .mappings(
            p.words(
                {
                    "0": ("not suspected", FAINT),
                    "1": ("suspected", POWER),
                }
            )
        )
        .row_height(0.7)
    )
    for cause in Cause:
        how = p.properties(displayName=cause.record.title)
        if cause.record.weight == "normal":
            how += p.properties(mappings=p.words_property({"0": ("not seen", FAINT), "1": ("normal", CALM)}))
        panel.override_by_name(cause.value, how)
    return panel


def _causes_table() -> table.Panel:
    normal = "|".join(cause for cause in Cause if cause.record.weight == "normal")
    suspected = f'wattline_deployment_suspected_cause{{{OF_ONE}, cause!~"{normal}"}}'
    share = f"max by (cause) (avg_over_time({suspected}[$__range]))"
    return p.rows(
        "What would speak for each cause, and how long was it suspected?",
        "Share of the time range in which each cause was suspected, and what to look at to confirm or refute it: the "
        "panels below show it. What is normal, such as a decode that is bound by memory, is not listed.",
        [
            (
                "Cause",
                "cause",
                {
                    "custom__width": 165,
                    "mappings": p.words_property({cause.value: (cause.record.title, None) for cause in Cause}),
                },
            ),
            (
                "Suspected",
                p.column(f'label_join({share}, "look", "", "cause")'),
                p.BAR_CELL | {"custom__width": 120, "color": p.fixed(POWER)},
            ),
            (
                "What speaks for it",
                "look",
                {
                    "custom__minWidth": 250,
                    "mappings": p.words_property({cause.value: (cause.record.sign, None) for cause in Cause}),
                },
            ),
        ],
        sort=("Suspected", True),
    )


def _pcie() -> list[timeseries.Panel]:
    traffic = f"wattline_gpu_pcie_bytes_per_second{{{OF_ONES_GPUS}"
    link = f"wattline_gpu_pcie_link_bytes_per_second{{{OF_ONES_GPUS}}}"
    busiest = f"max by (direction) ({traffic}}} / on (job, instance, uuid) group_left () {link})"
    volume = (
        p.graph(
            "Who talks over PCIe, and how much?",
            "Traffic of all selected GPUs. As much out (transmit) as in (receive) is what GPUs send each other through "
            "the host; mostly in is offloaded weights or cache. A few MB/s are noise.",
            "Bps",
            p.over_time(f'sum({traffic}, direction="transmit"}})', "transmit: GPU to host"),
            p.over_time(f'sum({traffic}, direction="receive"}})', "receive: host to GPU"),
        )
        .override_by_name("transmit: GPU to host", p.properties(**TRANSMIT))
        .override_by_name("receive: host to GPU", p.properties(**RECEIVE))
    )
    share = p.threshold_lines(
        p.graph(
            "How full is the busiest PCIe link?",
            "Traffic of the busiest selected GPU as a share of what its link carries one way at its current "
            f"generation and width. Above {T.pcie_share:.0%} the link is a suspect. Collectives can hurt long before "
            "that: they wait for latency, not for bandwidth.",
            "percentunit",
            p.over_time(busiest, "{{direction}}"),
        )
        .axis_soft_max(1)
        .thresholds(p.steps(*SHARE_OF_LINK_STEPS))
        .override_by_name("transmit", p.properties(**TRANSMIT))
        .override_by_name("receive", p.properties(**RECEIVE))
    )
    return [volume, share]


def _peers() -> stat.Panel:
    # Each of a pair counts the other, and every GPU of its host, whoever it serves.
    hosts = f"on (job, instance) wattline_gpu_up{{{OF_ONES_GPUS}}}"

    def pairs(metric: str) -> str:
        return f'sum({metric}{{instance=~"$node"}} and {hosts}) / 2'

    return (
        p.number(
            "Peer to peer?",
            "Pairs of GPUs on one host that can read each other's memory directly, of the pairs there are, over all "
            "GPUs of the deployment's hosts. 0 with several GPUs means that every collective goes through the host. A "
            "guest that does not see the topology has no data.",
            "none",
            p.now(pairs("wattline_gpu_p2p_peers"), "peer-to-peer"),
            p.now(pairs("wattline_gpu_p2p_peers_possible"), "possible"),
        )
        .decimals(0)
        .text_mode(c.BigValueTextMode.VALUE_AND_NAME)
        .text(common.VizTextDisplayOptions().title_size(16).value_size(48))
    )


def _engines() -> list[Any]:
    return [
        p.graph(
            "Has the KV cache room?",
            "Share of each engine's KV cache in use. Requests that queue while it is far from full are held back by a "
            f"flag, not by memory; near 100 % the cache is the limit. Up to {FEW} engines, the fullest.",
            "percentunit",
            p.over_time(
                few_of(f"wattline_engine_kv_cache_usage_ratio{{{OF_ONE}}}", "topk"), "{{instance}} · {{engine}}"
            ),
        ).max(1),
        p.graph(
            "Has the scheduler anything to do?",
            "Share of time in which the engine's scheduler had no work, by its own account. Near 0 with low power: the "
            f"host is busy, or stuck. Only engines that tell it: SGLang 0.5.20 and newer. Up to {FEW}, the busiest.",
            "percentunit",
            p.over_time(
                few_of(f"wattline_engine_scheduler_idle_ratio{{{OF_ONE}}}", "bottomk"), "{{instance}} · {{engine}}"
            ),
        ).max(1),
        p.graph(
            "Which engine makes the tokens?",
            "Tokens per second of each engine, from its counters. They survive restarts of the engine; an engine that "
            f"is down has no line. Up to {FEW} engines, those that make least.",
            p.TOKENS_PER_SECOND,
            p.over_time(
                few_rates(f"rate(wattline_engine_generation_tokens_total{{{OF_ONE}}}%s)", "bottomk"),
                "{{instance}} · {{engine}} · generated",
            ),
            p.over_time(
                few_rates(f"rate(wattline_engine_prompt_tokens_total{{{OF_ONE}}}%s)", "bottomk"),
                "{{instance}} · {{engine}} · prompt",
            ),
            p.over_time(
                few_rates(f"rate(wattline_engine_cached_prompt_tokens_total{{{OF_ONE}}}%s)", "bottomk"),
                "{{instance}} · {{engine}} · prompt, from the cache",
            ),
        ),
        p.rows(
            "Which engines serve it?",
            "One row an engine. “down” means that the last scrape gave no usable metrics: its load is then unknown.",
            [
                ("Node", "instance", {"custom__minWidth": 110}),
                ("Engine", "engine", {"custom__minWidth": 110}),
                (
                    "Up",
                    p.column(f"max by (instance, engine) (wattline_engine_up{{{OF_ONE}}})"),
                    p.COLOURED_CELL
                    | {"custom__width": 70, "mappings": p.words_property({"0": ("down", FAULT), "1": ("up", FINE)})},
                ),
                (
                    "",
                    p.column(f"max by (instance, engine, kind, model, version) (wattline_engine_info{{{OF_ONE}}})"),
                    {},
                ),
                ("Kind", "kind", {"custom__width": 85}),
                ("Version", "version", {"custom__width": 85}),
                ("Model", "model", {"custom__minWidth": 120}),
            ],
        ),
    ]


def build() -> dashboard.Dashboard:
    """Build the dashboard of one deployment."""
    board = new(
        DEPLOYMENT,
        "The story of one deployment: work, power, what came of it, and why power is low.",
        variables(one_deployment=True, gpu="many"),
    )
    layout = Layout(board)
    layout.place(now.state(), 4, 4)
    layout.place(now.since(), 3, 4)
    layout.place(now.coming(), 5, 4)
    layout.place(
        _fraction(
            "Of the limit",
            "Mean power over the window as a share of the enforced limits. Never clamped: above 100 % for long means "
            "that another limit governs the board.",
            of_limit(OF_ONE, ALL),
        ),
        3,
        4,
    )
    layout.place(
        _fraction(
            "Active power",
            "Power above the idle floor as a share of what there is above it: how much of the power that could go into "
            "work does.",
            active_fraction(OF_ONE, ALL),
        ),
        3,
        4,
    )
    layout.place(
        p.number(
            "Tokens/watt",
            "Generated tokens per second and watt, that is tokens per joule; tokens and energy come from the same "
            "window and the same hosts. Only comparable with itself at a similar concurrency.",
            p.TOKENS_PER_JOULE,
            p.now(tokens_per_watt(OF_ONE, ALL), "tokens per watt"),
        )
        .decimals(2)
        .color_scheme(p.always(TOKENS)),
        3,
        4,
    )
    layout.place(now.alerts_firing(), 3, 4)
    layout.place(now.what_next(), 16, 5)
    layout.place(now.alerts(), 8, 5)
    layout.place(now.states_as_blocks(), 24, 4, shaded=False)
    layout.place(_throughput_and_power(), 14, 7)
    layout.place(_requests(), 10, 7)
    layout.place(_state_share(), 14, 7, shaded=False)
    layout.place(_histogram(), 10, 7)
    layout.folded(
        "Latency: where this Prometheus scrapes the engine as well",
        [(panel, 8, 8) for panel in latency.panels()],
    )
    layout.heading("Do all GPUs pull?")
    layout.place(
        _per_gpu(
            "How much of its limit does each GPU use?",
            "Mean power of each GPU over the window as a share of its enforced limit. Lines: below "
            f"{T.idle_tdp_fraction:.0%} it idles, below {T.low_tdp_fraction:.0%} a loaded deployment is low on "
            f"power, from {T.saturated_tdp_fraction:.0%} it is saturated. GPUs of one tensor-parallel engine move "
            f"together. Up to {FEW} GPUs, the lowest; the table below has all.",
            "wattline_gpu_tdp_fraction",
            OF_LIMIT_STEPS,
        ),
        12,
        9,
    )
    layout.place(
        _per_gpu(
            "How much of its active power does each GPU use?",
            "Power above the idle floor as a share of what there is above it. Below "
            f"{T.idle_active_fraction:.0%} with work held, the GPU does nothing that counts. Boards differ in how much "
            f"they draw idle, this number does not. Up to {FEW} GPUs, the lowest.",
            "wattline_gpu_active_power_fraction",
            ACTIVE_STEPS,
        ),
        12,
        9,
    )
    layout.place(_gpus(), 24, 10)
    layout.place(
        p.timeline(
            "Which node is in which state?",
            f"One row a node, up to {FEW}: those that were longest unknown or worse. Above, the deployment is in the "
            "state of the node that matters most; here you see whether it is one node or all.",
            p.over_time(states_over_time(OF_ONE, "instance"), "{{instance}}"),
        ).mappings(p.words(p.STATES)),
        24,
        6,
        shaded=False,
    )
    layout.heading("Why? What speaks for which cause")
    layout.place(_causes_over_time(), 24, 9, shaded=False)
    layout.place(_causes_table(), 24, 9)
    layout.place(gpu_activity(OF_ONES_GPUS, "avg"), 12, 8)
    layout.place(gpu_event_reasons(OF_ONES_GPUS), 12, 8)
    for panel, width in zip(_pcie(), (10, 9), strict=True):
        layout.place(panel, width, 8)
    layout.place(_peers(), 5, 8)
    layout.folded(
        "Is it still scaling? Needs engines that tell their requests and tokens",
        [*((chart, 12, 9) for chart in _scaling()), *((lines, 12, 7) for lines in _efficiency())],
    )
    layout.folded(money.HEADING, money.panels(OF_ONE))
    kv, idle, tokens, engines = _engines()
    layout.folded("The engines: needs one that can be read", [(engines, 24, 5), (kv, 12, 8), (tokens, 12, 8)])
    layout.folded(
        "Scheduler and ceilings: only some engines and boards tell of them", [(idle, 12, 8), (_ceilings(), 12, 8)]
    )
    layout.annotate(of_deployments(OF_ONE))
    return board
