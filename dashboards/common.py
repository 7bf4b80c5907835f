"""What all dashboards share: variables, links, annotations, selectors, and how panels are laid out."""

from __future__ import annotations

from dataclasses import dataclass

from grafana_foundation_sdk.builders import dashboard, prometheus, timeseries
from grafana_foundation_sdk.cog.builder import Builder
from grafana_foundation_sdk.models import dashboard as d

from dashboards.colours import FAULT, NEUTRAL, REQUESTS_QUEUED, REQUESTS_RUNNING, STATE_COLOURS, TOKENS
from dashboards.panels import DATASOURCE, PLUGIN_VERSION, dashed, fixed, graph, over_time, properties
from dashboards.thresholds import SIGN_OF_LIFE, alert_names
from wattline.analysis.snapshot import State

TAG = "wattline"
FLEET, DEPLOYMENT, GPU = "wattline-fleet", "wattline-deployment", "wattline-gpu"
"""The uids of the three dashboards: links rely on them, so they never change."""

BY_DEPLOYMENT = 'deployment=~"$deployment", instance=~"$node"'
"""Selector for everything that carries a deployment."""
UNASSIGNED = 'deployment="", instance=~"$node"'
"""Selector for the GPUs that serve no deployment."""
OF_ONE = 'deployment="$deployment", instance=~"$node"'
"""Selector where just one deployment is picked."""
OF_ONES_GPUS = OF_ONE + ', uuid=~"$gpu"'
"""Selector for the GPUs of that one deployment."""
OF_GPU = 'uuid="$gpu"'
"""Selector where just one GPU is picked: its UUID says it all, also when it moved to another deployment."""
OF_EXPORTER = 'instance=~"$node"'
"""Selector for what an exporter tells of itself."""

WASTE = "|".join(state for state in State if state.record.waste)
SAME = "job, instance, deployment"
"""The labels that one deployment on one host is known by."""
ALERTS = 'alertstate="firing", alertname=~"' + "|".join(alert_names()) + '"'


def state_code(selector: str) -> str:
    """Return PromQL for the state of each deployment as a number; over several hosts, the one that matters most."""
    codes = " or ".join(
        f'{state.record.rank} * (wattline_deployment_state{{{selector}, state="{state}"}} == 1)'
        for state in sorted(State, key=lambda s: s.record.rank)
    )
    return f"max by (deployment) ({codes})"


def of_limit(selector: str, by: str = "by (deployment) ") -> str:
    """Return PromQL for the TDP fraction over all hosts: each host's own fraction, weighted by its limit."""
    return _weighted_by_limit("wattline_tdp_fraction", selector, by)


def active_fraction(selector: str, by: str = "by (deployment) ") -> str:
    """Return PromQL for the active power fraction over all hosts, weighted by their limits."""
    return _weighted_by_limit("wattline_active_power_fraction", selector, by)


def _weighted_by_limit(metric: str, selector: str, by: str) -> str:
    value, limit = f"{metric}{{{selector}}}", f"wattline_power_limit_watts{{{selector}}}"
    return f"sum {by}({value} * on ({SAME}) {limit}) / sum {by}({limit} and on ({SAME}) {value})"


def tokens_per_second(selector: str, kind: str, by: str = "by (deployment) ") -> str:
    """Return PromQL for the tokens per second of one kind, over all hosts."""
    return f'sum {by}(wattline_tokens_per_second{{{selector}, kind="{kind}"}})'


def tokens_per_watt(selector: str, by: str = "by (deployment) ") -> str:
    """Return PromQL for generated tokens per second and watt over all hosts; both come from the same window."""
    return f"{tokens_per_second(selector, 'generation', by)} / sum {by}(wattline_power_watts{{{selector}}})"


def wasted_watt_hours(selector: str, by: str = "by (deployment) ", window: str = "$__range") -> str:
    """Return PromQL for the energy spent in the states of waste, in watt hours; over the time range, or a window."""
    return (
        f"sum {by}(increase(wattline_deployment_state_energy_joules_total"
        f'{{{selector}, state=~"{WASTE}"}}[{window}])) / 3600'
    )


FEW = 16
"""The most lines of one kind in a graph, and the most rows of a timeline: the GPUs of two hosts, and still readable."""


def few(shown: str, over_range: str, which: str = "topk") -> str:
    """Return PromQL for those of the series ``shown`` that are most of interest: the same ones at every moment.

    Args:
        shown: PromQL of what is drawn.
        over_range: PromQL of the number that chooses, with the same labels; over the whole time range.
        which: whether the greatest (topk) or the least (bottomk) are of interest.
    """
    return f"{shown} and {which}({FEW}, {over_range})"


def few_of(series: str, which: str) -> str:
    """Return PromQL for those series of a gauge whose mean over the time range is most of interest."""
    return few(series, f"avg_over_time({series}[$__range] @ end())", which)


def few_rates(rate: str, which: str = "topk") -> str:
    """Return PromQL for those of some rates that are most of interest. ``rate`` has ``%s`` where its window stands."""
    return few(rate % "[$__rate_interval]", rate % "[$__range] @ end()", which)


def states_over_time(selector: str) -> str:
    """Return PromQL for the states of the deployments that were longest in one that is not well."""
    bad = "|".join(state for state in State if state.record.rank >= State.UNKNOWN.record.rank)
    series = f'wattline_deployment_state{{{selector}, state=~"{bad}"}}'
    return few(state_code(selector), f"sum by (deployment) (avg_over_time({series}[$__range] @ end()))")


def power_shares(selector: str) -> str:
    """Return PromQL for the share of time up to each fraction of the limit, over the selected GPUs."""
    name = "wattline_gpu_power_fraction"
    buckets = f"sum by (le) (rate({name}_bucket{{{selector}}}[$__rate_interval]))"
    return f"{buckets} / on () group_left () sum(rate({name}_count{{{selector}}}[$__rate_interval]))"


def firing(by: str, deployments: str, alerts: str) -> str:
    """Return PromQL for the number of firing alerts: 0 only where the rules are seen to be alive."""
    alive = f'on () ALERTS{{alertname="{SIGN_OF_LIFE}"}}'
    return f"count {by}(ALERTS{{{alerts}}}) or (0 * max {by}(wattline_deployment_state{{{deployments}}}) and {alive})"


def to_deployment(name: str) -> str:
    """Return the address of a deployment's dashboard. ``name`` is a Grafana expression for the deployment's name."""
    return (
        f"/d/{DEPLOYMENT}/deployment?${{datasource:queryparam}}&var-deployment=${{{name}:percentencode}}"
        "&${node:queryparam}&${__url_time_range}"
    )


def to_gpu(uuid: str) -> str:
    """Return the address of a GPU's dashboard. ``uuid`` is a Grafana expression for the GPU's UUID."""
    return (
        f"/d/{GPU}/gpu?${{datasource:queryparam}}&var-deployment=$__all&var-node=$__all"
        f"&var-gpu=${{{uuid}:percentencode}}&${{__url_time_range}}"
    )


# --- Variables -------------------------------------------------------------------------------------------------------


def _data_source() -> dashboard.DatasourceVariable:
    return dashboard.DatasourceVariable("datasource").label("Data source").type("prometheus")


def _query(name: str, label: str, query: str, description: str) -> dashboard.QueryVariable:
    return (
        dashboard.QueryVariable(name)
        .label(label)
        .description(description)
        .datasource(DATASOURCE)
        .query({"query": query, "refId": f"variable-{name}"})
        .definition(query)
        .refresh(d.VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(d.VariableSort.NATURAL_ASC)
    )


def variables(*, one_deployment: bool = False, gpu: str | None = None) -> list[Builder[d.VariableModel]]:
    """Return the variables: data source, deployment, node and, where ``gpu`` is "one" or "many", GPU.

    They are written without a current value: Grafana then takes the first one, or all.
    """
    deployment = _query(
        "deployment",
        "Deployment",
        "label_values(wattline_deployment_state, deployment)",
        "A set of engines and the GPUs that serve them.",
    )
    if not one_deployment:
        # Not `.+`: GPUs without a deployment carry an empty label and are to be seen, too.
        deployment.multi(True).include_all(True).all_value(".*")
    node = (
        _query(
            "node",
            "Node",
            "label_values(wattline_source_up, instance)"
            if not one_deployment
            else 'label_values(wattline_deployment_state{deployment=~"$deployment"}, instance)',
            "The exporter's address, one for each host.",
        )
        .multi(True)
        .include_all(True)
        .all_value(".+")
    )
    listed: list[Builder[d.VariableModel]] = [_data_source(), deployment, node]
    if gpu:
        picked = _query(
            "gpu",
            "GPU",
            'query_result(label_join(max by (gpu, instance, uuid) (wattline_gpu_info{deployment=~"$deployment", '
            'instance=~"$node"}), "pick", " GPU ", "instance", "gpu"))',
            "Host and NVML index; the UUID stands behind it.",
        ).regex('/pick="(?<text>[^"]+)".*uuid="(?<value>[^"]+)"/')
        if gpu == "many":
            picked.multi(True).include_all(True).all_value(".+")
        listed.append(picked)
    return listed


# --- Dashboards ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Scope:
    """What the annotations of a dashboard are about."""

    alerts: str
    """PromQL for the alerts that fire."""
    selector: str = ""
    """Picks the deployments whose states change."""
    only: str = ""
    """PromQL that leaves out some of them."""


def of_deployments(selector: str) -> Scope:
    """Return the scope of the deployments and nodes that a selector picks."""
    # An alert over several hosts has no instance: only the deployment picks alerts.
    deployment = selector.split(",", maxsplit=1)[0]
    return Scope(f"ALERTS{{{ALERTS}, {deployment}}}", selector)


def of_one_gpu() -> Scope:
    """Return the scope of the one GPU that is picked: its own alerts, and those of its deployment and its node."""
    gpu = f"wattline_gpu_up{{{OF_GPU}}}"
    # The series stays when the GPU is lost, but not when the exporter is: its last hour tells whose node it was.
    known = f"last_over_time({gpu}[1h])"
    by_labels = [f"ALERTS{{{ALERTS}, {OF_GPU}}}"]
    by_labels += [
        f'ALERTS{{{ALERTS}, uuid="", {selector}}} and on ({labels}) {known}'
        for selector, labels in (
            ('deployment!="", instance=""', "deployment"),
            ('deployment!="", instance!=""', "deployment, instance"),
            ('deployment="", instance!=""', "instance"),
        )
    ]
    return Scope(" or ".join(by_labels), only=f" and on ({SAME}) {gpu}")


def _annotations(scope: Scope) -> list[Builder[d.AnnotationQuery]]:
    firing = (
        dashboard.AnnotationQuery()
        .name("Alerts")
        .datasource(DATASOURCE)
        .enable(True)
        .icon_color(FAULT)
        .expr(scope.alerts)
        .step("60s")
        .title_format("{{alertname}}")
        .text_format("{{severity}} · {{deployment}}")
        .tag_keys("alertname,severity")
    )
    # The state now, unless it was the same one step ago; and only where there was one then, so that a restart of
    # Prometheus is no change of state. Grafana asks once a minute at most, and some releases for 100 moments only: over
    # longer times a step is longer, and whoever looked back a minute would miss what lies between.
    states = f"wattline_deployment_state{{{scope.selector}}}"
    before = f"{states} offset $__interval == 1"
    changed = (
        dashboard.AnnotationQuery()
        .name("State changes")
        .datasource(DATASOURCE)
        .enable(True)
        .icon_color(STATE_COLOURS[State.SATURATED])
        .expr(f"({states} == 1 unless {before}) and on ({SAME}) {before}{scope.only}")
        .step("60s")
        .title_format("{{deployment}}: {{state}}")
        .text_format("on {{instance}}")
        .tag_keys("state")
    )
    return [firing, changed]


def new(
    uid: str, title: str, description: str, listed: list[Builder[d.VariableModel]], since: str, scope: Scope
) -> dashboard.Dashboard:
    """Start a dashboard: not editable in place, linked to the others by their tag, keeping variables and time."""
    board = (
        dashboard.Dashboard(title)
        .uid(uid)
        .description(description)
        .tags([TAG])
        .readonly()
        .tooltip(d.DashboardCursorSync.CROSSHAIR)
        .timezone("browser")
        .time(since, "now")
        .refresh("30s")
        .link(
            dashboard.DashboardLink("Wattline")
            .type(d.DashboardLinkType.DASHBOARDS)
            .tags([TAG])
            .as_dropdown(False)
            .include_vars(True)
            .keep_time(True)
        )
    )
    board.variables(listed)
    board.annotations(_annotations(scope))
    return board


COLUMNS = 24


class Layout:
    """Places panels left to right and top to bottom on Grafana's grid of 24 columns, and numbers them."""

    def __init__(self, board: dashboard.Dashboard) -> None:
        self._board = board
        self._x = self._y = self._id = 0
        self._height = 0

    def _number(self) -> int:
        self._id += 1
        return self._id

    def place(self, panel: Builder[d.Panel], width: int, height: int) -> None:
        """Put ``panel`` beside the last one, or below when it would not fit."""
        self._board.with_panel(self._placed(panel, width, height))

    def _placed(self, panel: Builder[d.Panel], width: int, height: int) -> _Placed:
        if self._x + width > COLUMNS:
            self.below()
        position = d.GridPos(x=self._x, y=self._y, w=width, h=height)
        self._x += width
        self._height = max(self._height, height)
        return _Placed(panel, self._number(), position)

    def below(self) -> None:
        """Go on below everything that was placed so far."""
        self._x, self._y, self._height = 0, self._y + self._height, 0

    def heading(self, title: str) -> None:
        """Put a heading over the panels that follow."""
        self.below()
        row = dashboard.Row(title).id(self._number()).grid_pos(d.GridPos(x=0, y=self._y, w=COLUMNS, h=1))
        self._board.with_row(row)
        self._y += 1

    def folded(self, title: str, panels: list[tuple[Builder[d.Panel], int, int]]) -> None:
        """Put panels behind a heading that opens them."""
        self.below()
        row = dashboard.Row(title).id(self._number()).grid_pos(d.GridPos(x=0, y=self._y, w=COLUMNS, h=1))
        self._y += 1
        for panel, width, height in panels:
            row.with_panel(self._placed(panel, width, height))
        self._board.with_row(row)
        self.below()


class _Placed(Builder[d.Panel]):
    """A panel with its number and place: the SDK would number none, and move what stands at the left edge."""

    def __init__(self, panel: Builder[d.Panel], number: int, position: d.GridPos) -> None:
        self._panel, self._number, self._position = panel, number, position

    def build(self) -> d.Panel:
        panel = self._panel.build()
        panel.id_val = self._number
        panel.grid_pos = self._position
        panel.plugin_version = PLUGIN_VERSION
        return panel


# --- What two dashboards share --------------------------------------------------------------------------------


TRANSMIT = {"color": fixed(REQUESTS_RUNNING), "custom__fillOpacity": 20}
RECEIVE = dashed(REQUESTS_QUEUED)
"""How the two directions of PCIe are drawn: both can be seen where they are equal, which is when it matters."""


def gpu_activity(selector: str, how: str) -> timeseries.Panel:
    """Make the panel that sets utilisation beside what really is active. ``how`` joins several GPUs: avg, max."""

    def line(metric: str, name: str) -> prometheus.Dataquery:
        return over_time(f"{how}({metric}{{{selector}}})", name)

    panel = graph(
        "Is utilisation real?",
        "Utilisation says that some kernel was resident, SM activity that multiprocessors had work, tensor and DRAM "
        "activity what they did. Utilisation at 100 % over SM activity near 0 is spinning, not work. High DRAM with "
        "low tensor activity is normal decoding. Without the activity lines the board does not tell (before Hopper).",
        "percentunit",
        line("wattline_gpu_utilization_ratio", "utilisation"),
        line("wattline_gpu_sm_active_ratio", "SM active"),
        line("wattline_gpu_tensor_active_ratio", "tensor active"),
        line("wattline_gpu_dram_active_ratio", "DRAM active"),
        line("wattline_gpu_memory_busy_ratio", "memory busy (driver)"),
    ).max(1)
    for name, colour in (
        ("utilisation", NEUTRAL),
        ("SM active", STATE_COLOURS[State.WORKING]),
        ("tensor active", TOKENS),
        ("DRAM active", STATE_COLOURS[State.SATURATED]),
    ):
        panel.override_by_name(name, properties(color=fixed(colour)))
    panel.override_by_name("memory busy (driver)", properties(**dashed(STATE_COLOURS[State.IDLE], 1)))
    return panel


def gpu_event_reasons(selector: str) -> timeseries.Panel:
    """Make the panel that shows what holds the clocks back."""
    return graph(
        "What holds the clocks back?",
        "Share of time in which each clocks event reason was active, as a mean over the GPUs. sw_power_cap under "
        "load is a GPU that uses all its power: good. Thermal and brake reasons are faults. gpu_idle is no work. "
        "Several can be active at once.",
        "percentunit",
        over_time(
            f"avg by (reason) (rate(wattline_gpu_clocks_event_seconds_total{{{selector}}}[$__rate_interval])) > 0",
            "{{reason}}",
        ),
    ).axis_soft_max(1)
