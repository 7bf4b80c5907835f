"""What all dashboards share: variables, links, annotations, selectors, and how panels are laid out."""

from __future__ import annotations

from dataclasses import dataclass

from grafana_foundation_sdk.builders import dashboard, prometheus, timeseries
from grafana_foundation_sdk.cog.builder import Builder
from grafana_foundation_sdk.models import dashboard as d

from dashboards.numbers import INSTALLATION, OUTER, SIGN_OF_LIFE, alert_names
from dashboards.palette import FAULT, NEUTRAL, REQUESTS_QUEUED, REQUESTS_RUNNING, STATE_COLOURS, TOKENS
from dashboards.panels import DATASOURCE, NO_DATA, PLUGIN_VERSION, dashed, fixed, graph, over_time, properties
from wattline.analysis.causes import THROTTLE_REASONS
from wattline.analysis.snapshot import State

TAG = "wattline"
RUNBOOKS = "runbooks"
"""Hidden variable: where people reach the runbooks. The bundle and the chart put their own address into it."""
FLEET, DEPLOYMENT, GPU = "wattline-fleet", "wattline-deployment", "wattline-gpu"
"""The uids of the three dashboards: links rely on them, so they never change."""
BOARDS = {FLEET: "Fleet", DEPLOYMENT: "Deployment", GPU: "GPU"}
"""Their names."""

_AROUND = "".join(f', {label}=~"${label}"' for label in OUTER)
BY_DEPLOYMENT = f'deployment=~"$deployment", instance=~"$node"{_AROUND}'
"""Selector for everything that carries a deployment."""
UNASSIGNED = f'deployment="", instance=~"$node"{_AROUND}'
"""Selector for the GPUs that serve no deployment."""
OF_ONE = f'deployment="$deployment", instance=~"$node"{_AROUND}'
"""Selector where just one deployment is picked."""
OF_ONES_GPUS = OF_ONE + ', uuid=~"$gpu"'
"""Selector for the GPUs of that one deployment."""
OF_GPU = 'uuid="$gpu"'
"""Selector where just one GPU is picked: its UUID says it all, also when it moved to another deployment."""
OF_EXPORTER = f'instance=~"$node"{_AROUND}'
"""Selector for what an exporter tells of itself."""
OF_ENGINE = 'deployment="$deployment"' + _AROUND.replace(', namespace=~"$namespace"', "")
"""Selector for what Prometheus scrapes from the engines themselves: its targets are labelled with the deployment, and
may be in another namespace than the exporter."""
OF_TARGET = f'job="wattline", {OF_EXPORTER}'
"""Selector for what Prometheus tells of the exporters that it scrapes."""

WASTE = "|".join(state for state in State if state.record.waste)
EACH = ", ".join((*OUTER, "deployment"))
"""The labels that a deployment is known by."""
HOST = ", ".join((*OUTER, "job", "instance"))
"""The labels that an exporter, and with it a host, is known by."""
NODE = ", ".join((*OUTER, "instance"))
"""The labels that an alert about a host carries."""
SAME = f"{HOST}, deployment"
"""The labels that one deployment on one host is known by."""
ALL = ""
"""No labels: one number over everything that is selected."""
REMEMBERED = "1d"
"""For so long is known what an exporter told before it fell silent."""
ALERTS = 'alertstate="firing", alertname=~"' + "|".join(alert_names()) + '"'


def on_any_node(selector: str) -> str:
    """Return a selector without the node: alerts about a deployment over several hosts carry none."""
    return selector.replace(', instance=~"$node"', "")


def _codes(selector: str) -> str:
    return " or ".join(
        f'{state.record.rank} * (wattline_deployment_state{{{selector}, state="{state}"}} == 1)'
        for state in sorted(State, key=lambda s: s.record.rank)
    )


def state_code(selector: str, by: str = EACH) -> str:
    """Return PromQL for the state of each deployment as a number; over several hosts, the one that matters most."""
    return f"max by ({by}) ({_codes(selector)})"


def blind(selector: str) -> str:
    """Return PromQL for the deployments, by host, whose exporter told of them within the last day and is silent now."""
    known = f"last_over_time(wattline_deployment_gpus{{{selector}}}[{REMEMBERED}])"
    return f"({known} unless on ({HOST}) wattline_build_info{{{OF_EXPORTER}}})"


def state_now(selector: str, by: str = EACH) -> str:
    """Return PromQL as :func:`state_code`, for one moment: a host that fell silent has the number of “No data”."""
    return f"max by ({by}) ({_codes(selector)} or ({NO_DATA} + 0 * {blind(selector)}))"


def seconds_in_state(selector: str, by: str = EACH) -> str:
    """Return PromQL for how long each deployment has been in the state that :func:`state_now` answers."""
    known = f"wattline_deployment_state_since_timestamp_seconds{{{selector}}}"
    # The last sample of a silent one, to the minute.
    seen = f"max_over_time(timestamp(wattline_deployment_gpus{{{selector}}})[{REMEMBERED}:1m])"
    begun = f"max by ({SAME}) ({known} or {seen} and on ({SAME}) {blind(selector)})"
    matters = f"{state_now(selector, SAME)} == on ({by}) group_left () {state_now(selector, by)}"
    return f"time() - min by ({by}) ({begun} and on ({SAME}) ({matters}))"


def none_while_blind(number: str, selector: str) -> str:
    """Return PromQL for a number without labels that is 0 only where each known deployment is seen."""
    return f"({number} > 0) or ({number} unless on () {blind(selector)})"


def of_limit(selector: str, by: str = EACH) -> str:
    """Return PromQL for the TDP fraction over all hosts: each host's own fraction, weighted by its limit."""
    return _weighted_by_limit("wattline_tdp_fraction", selector, by)


def active_fraction(selector: str, by: str = EACH) -> str:
    """Return PromQL for the active power fraction over all hosts, weighted by their limits."""
    return _weighted_by_limit("wattline_active_power_fraction", selector, by)


def _weighted_by_limit(metric: str, selector: str, by: str) -> str:
    value, limit = f"{metric}{{{selector}}}", f"wattline_power_limit_watts{{{selector}}}"
    return f"sum by ({by}) ({value} * on ({SAME}) {limit}) / sum by ({by}) ({limit} and on ({SAME}) {value})"


def tokens_per_second(selector: str, kind: str, by: str = EACH) -> str:
    """Return PromQL for the tokens per second of one kind, over all hosts."""
    return f'sum by ({by}) (wattline_tokens_per_second{{{selector}, kind="{kind}"}})'


def tokens_per_watt(selector: str, by: str = EACH) -> str:
    """Return PromQL for generated tokens per second and watt, from the same window and the same hosts on both sides.

    A host whose engines answer and tell no tokens is part of an engine that another host counts: its power belongs to
    those tokens, and without its power nothing is known.
    """
    tokens, power = (
        f'wattline_tokens_per_second{{{selector}, kind="generation"}}',
        f"wattline_power_watts{{{selector}}}",
    )
    part = f"(max by ({SAME}) (wattline_engine_up{{{selector}}} == 1) unless on ({SAME}) {tokens})"
    return (
        f"sum by ({by}) ({tokens} and on ({SAME}) {power}) "
        f"/ sum by ({by}) ({power} and on ({SAME}) ({tokens} or {part})) "
        f"unless on ({by}) ({part} unless on ({SAME}) {power})"
    )


def wasted_watt_hours(selector: str, by: str = EACH, window: str = "$__range") -> str:
    """Return PromQL for the energy spent in the states of waste, in watt hours; over the time range, or a window."""
    return (
        f"sum by ({by}) (increase(wattline_deployment_state_energy_joules_total"
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


def states_over_time(selector: str, by: str = EACH) -> str:
    """Return PromQL for the states of the deployments, or nodes, that were longest in one that is not well."""
    bad = "|".join(state for state in State if state.record.rank >= State.UNKNOWN.record.rank)
    series = f'wattline_deployment_state{{{selector}, state=~"{bad}"}}'
    return few(state_code(selector, by), f"sum by ({by}) (avg_over_time({series}[$__range] @ end()))")


def power_shares(selector: str) -> str:
    """Return PromQL for the share of time up to each fraction of the limit, over the selected GPUs."""
    name = "wattline_gpu_power_fraction"
    buckets = f"sum by (le) (rate({name}_bucket{{{selector}}}[$__rate_interval]))"
    return f"{buckets} / on () group_left () sum(rate({name}_count{{{selector}}}[$__rate_interval]))"


def firing(by: str, deployments: str, alerts: str) -> str:
    """Return PromQL for the number of firing alerts: 0 only where the rules are seen to be alive."""
    return f"count by ({by}) (ALERTS{{{alerts}}}) or {no_alert(deployments, by)}"


def no_alert(deployments: str, by: str) -> str:
    """Return PromQL for the number of alerts where none fires: 0 only where the rules are seen to be alive."""
    known = f"max by ({by}) (wattline_deployment_state{{{deployments}}})"
    return f'(0 * {known} and on () ALERTS{{alertname="{SIGN_OF_LIFE}"}})'


def alerts_here() -> str:
    """Return PromQL for the alerts that fire about the one deployment, and about the nodes that it is known on."""
    known = f"last_over_time(wattline_deployment_gpus{{{OF_ONE}}}[{REMEMBERED}])"
    about_nodes = f'ALERTS{{{ALERTS}, deployment="", {OF_EXPORTER}}} and on ({NODE}) {known}'
    return f'ALERTS{{{ALERTS}, deployment="$deployment"{_AROUND}}} or ({about_nodes})'


AROUND = tuple(f"${{{name}:queryparam}}" for name in ("datasource", *OUTER))
"""What every address keeps."""


def runbook_of(alert: str) -> str:
    """Return the address of the runbook of an alert. ``alert`` is a Grafana expression for its name."""
    return f"${{{RUNBOOKS}}}/${{{alert}:percentencode}}"


def with_around(expr: str) -> str:
    """Return PromQL with a label ``around`` more: the outer labels, empty or not, as they stand in an address."""
    values = "&".join(f"var-{label}=${number}" for number, label in enumerate(OUTER, 1))
    joined = f'label_join({expr}, "around", "/", {", ".join(map(repr, OUTER))})'.replace("'", '"')
    return f'label_replace({joined}, "around", "{values}", "around", "{"/".join(["(.*)"] * len(OUTER))}")'


def to_deployment(name: str, around: str | None = None) -> str:
    """Return the address of a deployment's dashboard.

    Args:
        name: Grafana expression for the deployment's name.
        around: Grafana expression for what :func:`with_around` wrote; without it, what is picked is kept.
    """
    picked = f"var-deployment=${{{name}:percentencode}}"
    kept = AROUND if around is None else ("${datasource:queryparam}", f"${{{around}:raw}}")
    return _address(DEPLOYMENT, *kept, picked, "${node:queryparam}", "${__url_time_range}")


def to_gpu(uuid: str) -> str:
    """Return the address of a GPU's dashboard. ``uuid`` is a Grafana expression for the GPU's UUID."""
    picked = ("var-deployment=$__all", "var-node=$__all", f"var-gpu=${{{uuid}:percentencode}}")
    return _address(GPU, *AROUND, *picked, "${__url_time_range}")


# --- Variables -------------------------------------------------------------------------------------------------------


def _data_source() -> dashboard.DatasourceVariable:
    # Grafana's default one where that is a Prometheus; without a current value it takes the first one by name.
    default = d.VariableOption(text="default", value="default")
    return dashboard.DatasourceVariable("datasource").label("Data source").type("prometheus").current(default)


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

    They are written without a current value: Grafana then takes the first one, or all. The hidden ones are for links.
    """
    deployment = _query(
        "deployment",
        "Deployment",
        f"label_values(wattline_deployment_state{{{_AROUND.removeprefix(', ')}}}, deployment)",
        "A set of engines and the GPUs that serve them.",
    )
    if not one_deployment:
        # Not `.+`: GPUs without a deployment carry an empty label and are to be seen, too.
        deployment.multi(True).include_all(True).all_value(".*")
    node = (
        _query(
            "node",
            "Node",
            f"label_values(wattline_source_up{{{_AROUND.removeprefix(', ')}}}, instance)"
            if not one_deployment
            else f'label_values(wattline_deployment_state{{deployment="$deployment"{_AROUND}}}, instance)',
            "The exporter's address, one for each host.",
        )
        .multi(True)
        .include_all(True)
        .all_value(".+")
    )
    address = dashboard.ConstantVariable(RUNBOOKS).label("Runbooks").value(INSTALLATION.addresses["runbooks_url"])
    around = [
        _query(
            label, label.capitalize(), f"label_values(wattline_deployment_state, {label})", "Around the deployments."
        )
        .multi(True)
        .include_all(True)
        .all_value(".*")
        for label in OUTER
    ]
    listed: list[Builder[d.VariableModel]] = [_data_source(), *around, deployment, node, address]
    if gpu:
        picked = _query(
            "gpu",
            "GPU",
            'query_result(label_join(max by (gpu, instance, uuid) (wattline_gpu_info{deployment=~"$deployment", '
            f'{OF_EXPORTER}}}), "pick", " GPU ", "instance", "gpu"))',
            "Host and NVML index; the UUID stands behind it.",
        ).regex('/pick="(?<text>[^"]+)".*uuid="(?<value>[^"]+)"/')
        if gpu == "many":
            picked.multi(True).include_all(True).all_value(".+")
        listed.append(picked)
    if not one_deployment:
        listed.append(_opened("deployment", _of_the_gpu() if gpu else f"topk(1, {state_now(BY_DEPLOYMENT)})"))
    if gpu != "one":
        selector = OF_ONES_GPUS if one_deployment else BY_DEPLOYMENT
        # A lost GPU has no fraction, and is up 0.
        lowest = f"bottomk(1, wattline_gpu_tdp_fraction{{{selector}}} or wattline_gpu_up{{{selector}}})"
        listed.append(_opened("uuid", lowest))
    return listed


OPENED = {"deployment": "open_deployment", "uuid": "open_gpu"}
"""Hidden variables by the label that they take: which one of all a link to one opens."""


def _opened(label: str, query: str) -> dashboard.QueryVariable:
    return (
        _query(OPENED[label], OPENED[label], f"query_result({query})", "What the link at the top opens.")
        .regex(f'/{label}="([^"]+)"/')
        .hide(d.VariableHide.HIDE_VARIABLE)
    )


def _of_the_gpu() -> str:
    up = f"wattline_gpu_up{{{OF_GPU}}}"
    return f"max by ({EACH}) ({up} or (last_over_time({up}[{REMEMBERED}]) unless on (uuid) {up}))"


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
    return Scope(f"ALERTS{{{ALERTS}, {on_any_node(selector)}}}", selector)


def of_one_gpu() -> Scope:
    """Return the scope of the one GPU that is picked: its own alerts, and those of its deployment and its node."""
    gpu = f"wattline_gpu_up{{{OF_GPU}}}"
    # The series stays when the GPU is lost, but not when the exporter is: its last hour tells whose node it was.
    known = f"last_over_time({gpu}[1h])"
    by_labels = [f"ALERTS{{{ALERTS}, {OF_GPU}}}"]
    by_labels += [
        f'ALERTS{{{ALERTS}, uuid="", {selector}}} and on ({labels}) {known}'
        for selector, labels in (
            ('deployment!="", instance=""', EACH),
            ('deployment!="", instance!=""', f"{NODE}, deployment"),
            ('deployment="", instance!=""', NODE),
        )
    ]
    return Scope(" or ".join(by_labels), only=f" and on ({SAME}) {gpu}")


class _AtItsValue(Builder[d.AnnotationQuery]):
    """An annotation that stands at the moment which its value tells, in milliseconds: the SDK has no word for it."""

    def __init__(self, annotation: dashboard.AnnotationQuery) -> None:
        self._annotation = annotation

    def build(self) -> d.AnnotationQuery:
        built = self._annotation.build()
        built.use_value_for_time = True
        return built


def _annotations(scope: Scope, unshaded: list[int]) -> list[Builder[d.AnnotationQuery]]:
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
        .filter(dashboard.AnnotationPanelFilter().exclude(True).ids(unshaded))
    )
    # The value is the onset: the mark stands at that second, however far apart the moments are that Grafana asks for.
    bad = "|".join(state for state in State if state.record.rank >= State.UNKNOWN.record.rank)
    matchers = ", ".join(filter(None, (scope.selector, f'state=~"{bad}"')))
    states = f"wattline_deployment_state{{{matchers}}} == 1"
    began = f"wattline_deployment_state_since_timestamp_seconds{{{scope.selector}}}"
    changed = (
        dashboard.AnnotationQuery()
        .name("State changes")
        .datasource(DATASOURCE)
        .enable(True)
        .icon_color(STATE_COLOURS[State.SATURATED])
        .expr(f"1000 * ({states}) * on ({SAME}) group_left () {began}{scope.only}")
        .step("60s")
        .title_format("{{deployment}}: {{state}}")
        .text_format("on {{instance}}")
        .tag_keys("state")
    )
    return [firing, _AtItsValue(changed)]


def _links(uid: str) -> list[Builder[d.DashboardLink]]:
    """Links at the top: to the other dashboards with everything that is picked, and to the last day.

    A dashboard of one cannot show all: it opens with the one that asks most for attention.
    """

    def kept(name: str, opened: str, ones: str) -> str:
        one_is_picked = uid == ones
        return f"${{{name}:queryparam}}" if one_is_picked else f"var-{name}=${{{OPENED[opened]}:percentencode}}"

    picked = {
        FLEET: ["${deployment:queryparam}"],
        DEPLOYMENT: [kept("deployment", "deployment", DEPLOYMENT)] + ["${gpu:queryparam}"] * (uid == GPU),
        GPU: ["${deployment:queryparam}", kept("gpu", "uuid", GPU)],
    }
    links: list[Builder[d.DashboardLink]] = [
        _link(title, _address(other, *AROUND, "${node:queryparam}", *picked[other])).keep_time(True)
        for other, title in BOARDS.items()
        if other != uid
    ]
    return [*links, _link("Last 24 h", _address(uid, "from=now-24h", "to=now")).include_vars(True)]


def _address(uid: str, *parts: str) -> str:
    return f"/d/{uid}/{BOARDS[uid].lower()}?" + "&".join(parts)


def _link(title: str, url: str) -> dashboard.DashboardLink:
    return dashboard.DashboardLink(title).type(d.DashboardLinkType.LINK).url(url).icon("dashboard")


def new(uid: str, description: str, listed: list[Builder[d.VariableModel]]) -> dashboard.Dashboard:
    """Start a dashboard: not editable in place, with variables, and with links that keep what is picked."""
    board = (
        dashboard.Dashboard(f"Wattline / {BOARDS[uid]}")
        .uid(uid)
        .description(description)
        .tags([TAG])
        .readonly()
        .tooltip(d.DashboardCursorSync.CROSSHAIR)
        .timezone("browser")
        # What began three minutes ago is to be seen; a day is one click away.
        .time("now-30m", "now")
        .refresh("30s")
    )
    for link in _links(uid):
        board.link(link)
    board.variables(listed)
    return board


COLUMNS = 24


class Layout:
    """Places panels left to right and top to bottom on Grafana's grid of 24 columns, and numbers them."""

    def __init__(self, board: dashboard.Dashboard) -> None:
        self._board = board
        self._x = self._y = self._id = 0
        self._height = 0
        self._unshaded: list[int] = []

    def _number(self) -> int:
        self._id += 1
        return self._id

    def place(self, panel: Builder[d.Panel], width: int, height: int, *, shaded: bool = True) -> None:
        """Put ``panel`` beside the last one, or below when it would not fit; firing alerts shade it, or not."""
        self._board.with_panel(self._placed(panel, width, height))
        if not shaded:
            self._unshaded.append(self._id)

    def annotate(self, scope: Scope) -> None:
        """Mark alerts and changes of state on the panels. Alerts shade a graph, which would recolour states."""
        self._board.annotations(_annotations(scope, self._unshaded))

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
        follows = self._y
        for panel, width, height in panels:
            row.with_panel(self._placed(panel, width, height))
        self._board.with_row(row)
        # While it is folded, what follows stands right below the heading.
        self._x, self._y, self._height = 0, follows, 0


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


FAULTS = "|".join(sorted(THROTTLE_REASONS))
"""Reasons that no healthy GPU shows for long."""
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
    """Make the panel that shows what holds the clocks back: faults GPU by GPU, the other reasons as means."""
    seconds = f"wattline_gpu_clocks_event_seconds_total{{{selector}, reason"
    return graph(
        "What holds the clocks back?",
        "Share of time in which each clocks event reason was active. Thermal and brake reasons are faults, and drawn "
        f"for each GPU that has one, up to {FEW}, the worst. The others are means over the GPUs: sw_power_cap under "
        "load is a GPU that uses all its power, gpu_idle is no work. Several can be active at once.",
        "percentunit",
        over_time(
            "(" + few_rates(f'max by (reason, instance, gpu) (rate({seconds}=~"{FAULTS}"}}%s))') + ") > 0",
            "{{reason}} · {{instance}} GPU {{gpu}}",
        ),
        over_time(f'avg by (reason) (rate({seconds}!~"{FAULTS}"}}[$__rate_interval]))', "{{reason}}"),
    ).axis_soft_max(1)
