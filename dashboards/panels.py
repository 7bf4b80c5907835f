"""The few shapes of panel that the dashboards are made of, each with its defaults in one place.

Every function returns a builder of the Grafana Foundation SDK, so a dashboard can still set anything on it. Absent data
is left absent: no panel fills a gap, joins over it or writes 0 in its place.
"""

from __future__ import annotations

from string import ascii_uppercase
from typing import TYPE_CHECKING, Any, Protocol, Self

from grafana_foundation_sdk.builders import (
    bargauge,
    common,
    dashboard,
    heatmap,
    prometheus,
    stat,
    statetimeline,
    table,
    xychart,
)
from grafana_foundation_sdk.builders import timeseries as ts
from grafana_foundation_sdk.models import common as c
from grafana_foundation_sdk.models import dashboard as d
from grafana_foundation_sdk.models import heatmap as heatmap_model
from grafana_foundation_sdk.models import prometheus as prometheus_model
from grafana_foundation_sdk.models import xychart as xychart_model

from dashboards.palette import CALM, NEUTRAL
from wattline.analysis.snapshot import State

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from grafana_foundation_sdk.cog.builder import Builder
    from grafana_foundation_sdk.cog.variants import Dataquery

DATASOURCE = c.DataSourceRef(type_val="prometheus", uid="${datasource}")

PLUGIN_VERSION = "11.1.0"
"""Written on every panel. Without it, newer Grafana takes the options of a scatter plot for those of its first release
and rewrites them into something that draws nothing."""

TOKENS_PER_SECOND = "count:tok/s"
TOKENS_PER_JOULE = "suffix:tok/J"


# --- Queries ---------------------------------------------------------------------------------------------------------


def over_time(expr: str, legend: str) -> prometheus.Dataquery:
    """Ask for ``expr`` at every step of the time range."""
    return prometheus.Dataquery().expr(expr).legend_format(legend).range()


def now(expr: str, legend: str = "") -> prometheus.Dataquery:
    """Ask for ``expr`` at the end of the time range."""
    return prometheus.Dataquery().expr(expr).legend_format(legend).instant()


def column(expr: str) -> prometheus.Dataquery:
    """Ask for ``expr`` at the end of the time range, as a column of a table with its labels as other columns."""
    return prometheus.Dataquery().expr(expr).instant().format(prometheus_model.PromQueryFormat.TABLE)


class _Panel(Protocol):
    """What every builder of a panel offers."""

    def title(self, title: str) -> Self: ...
    def description(self, description: str) -> Self: ...
    def datasource(self, datasource: c.DataSourceRef) -> Self: ...
    def with_target(self, target: Builder[Dataquery]) -> Self: ...


def _about(panel: _Panel, title: str, description: str, queries: Sequence[prometheus.Dataquery]) -> None:
    panel.title(title).description(description).datasource(DATASOURCE)
    for letter, query in zip(ascii_uppercase, queries, strict=False):
        panel.with_target(query.ref_id(letter).datasource(DATASOURCE))


# --- Field properties ------------------------------------------------------------------------------------------------


def properties(**values: object) -> list[d.DynamicConfigValue]:
    """Turn keyword arguments into field properties: ``custom__width=90`` stands for ``custom.width``."""
    return [d.DynamicConfigValue(id_val=key.replace("__", "."), value=value) for key, value in values.items()]


def fixed(colour: str) -> dict[str, str]:
    """Return the value of a ``color`` property that is always ``colour``."""
    return {"mode": "fixed", "fixedColor": colour}


def dashed(colour: str, width: int = 2) -> dict[str, Any]:
    """Return the properties of a limit: a dashed line that is neither filled nor stacked."""
    return {
        "color": fixed(colour),
        "custom__lineStyle": {"fill": "dash", "dash": [8, 6]},
        "custom__lineWidth": width,
        "custom__fillOpacity": 0,
        "custom__stacking": {"group": "A", "mode": "none"},
    }


def steps(*pairs: tuple[float | None, str]) -> dashboard.ThresholdsConfig:
    """Make absolute thresholds from (value, colour) pairs; the first value is None, that is minus infinity."""
    return (
        dashboard.ThresholdsConfig()
        .mode(d.ThresholdsMode.ABSOLUTE)
        .steps([d.Threshold(value=value, color=colour) for value, colour in pairs])
    )


def steps_property(*pairs: tuple[float | None, str]) -> dict[str, Any]:
    """Make the value of a ``thresholds`` property, as :func:`steps`."""
    return {"mode": "absolute", "steps": [{"value": value, "color": colour} for value, colour in pairs]}


def by_thresholds() -> dashboard.FieldColor:
    """Colour a value by the threshold that it passed."""
    return dashboard.FieldColor().mode(d.FieldColorModeId.THRESHOLDS)


def always(colour: str) -> dashboard.FieldColor:
    """Colour a value the same whatever it is."""
    return dashboard.FieldColor().mode(d.FieldColorModeId.FIXED).fixed_color(colour)


NO_DATA = State.UNKNOWN.record.rank + 0.5
"""In the place of a state's number: the exporter is silent, so nobody looks. What is known to be wrong matters more."""
STATES: Mapping[str, tuple[str, str]] = {
    str(state.record.rank): (state.record.title, state.record.colour)
    for state in sorted(State, key=lambda s: s.record.rank)
} | {str(NO_DATA): ("No data", NEUTRAL)}
"""Name and colour of each state by its number."""


def words(texts: Mapping[str, tuple[str, str | None]] | Mapping[str, tuple[str, str]]) -> list[d.ValueMapping]:
    """Return mappings that show a text (and a colour) in the place of a value."""
    return [
        d.ValueMap(
            options={
                value: d.ValueMappingResult(text=text, color=colour, index=index)
                for index, (value, (text, colour)) in enumerate(texts.items())
            }
        )
    ]


def words_property(texts: Mapping[str, tuple[str, str | None]]) -> list[dict[str, object]]:
    """Return :func:`words` as the value of a ``mappings`` property; an empty cell says that there is no data."""
    known: list[dict[str, object]] = [
        {"type": "value", "options": mapping.options} for mapping in words(texts) if isinstance(mapping, d.ValueMap)
    ]
    absent = {"match": "null", "result": {"text": "no data", "color": NEUTRAL, "index": len(texts)}}
    return [*known, {"type": "special", "options": absent}]


def link(title: str, url: str) -> list[dict[str, Any]]:
    """Return a ``links`` property with one link in the same tab."""
    return [{"title": title, "url": url, "targetBlank": False}]


# --- Panels ----------------------------------------------------------------------------------------------------------


def legend_below() -> common.VizLegendOptions:
    """Make a legend in one line under the graph."""
    return (
        common.VizLegendOptions()
        .show_legend(True)
        .display_mode(c.LegendDisplayMode.LIST)
        .placement(c.LegendPlacement.BOTTOM)
        .calcs([])
    )


def legend_beside(*calcs: str) -> common.VizLegendOptions:
    """Make a legend as a table right of the graph, for panels with a line for each GPU or node."""
    return (
        common.VizLegendOptions()
        .show_legend(True)
        .display_mode(c.LegendDisplayMode.TABLE)
        .placement(c.LegendPlacement.RIGHT)
        .calcs(list(calcs))
    )


def _tooltip() -> common.VizTooltipOptions:
    return common.VizTooltipOptions().mode(c.TooltipDisplayMode.MULTI).sort(c.SortOrder.NONE)


def graph(
    title: str, description: str, unit: str, *queries: prometheus.Dataquery, logarithmic: bool = False
) -> ts.Panel:
    """Draw lines over time, with gaps where there is no data: from 0 upwards, or on a logarithmic axis."""
    panel = ts.Panel()
    if logarithmic:
        panel.scale_distribution(common.ScaleDistributionConfig().type(c.ScaleDistribution.LOG).log(10))
    else:
        panel.min(0)
    panel = (
        panel.unit(unit)
        .line_width(2)
        .fill_opacity(8)
        .line_interpolation(c.LineInterpolation.LINEAR)
        .show_points(c.VisibilityMode.NEVER)
        .span_nulls(False)
        .axis_border_show(False)
        .color_scheme(dashboard.FieldColor().mode(d.FieldColorModeId.PALETTE_CLASSIC))
        .legend(legend_below())
        .tooltip(_tooltip())
    )
    _about(panel, title, description, queries)
    return panel


def stacked(panel: ts.Panel) -> ts.Panel:
    """Stack the series of a graph, as filled areas."""
    return (
        panel.stacking(common.StackingConfig().group("A").mode(c.StackingMode.NORMAL))
        .fill_opacity(75)
        .line_width(1)
        .gradient_mode(c.GraphGradientMode.NONE)
    )


def threshold_lines(panel: ts.Panel) -> ts.Panel:
    """Draw the thresholds of a graph as dashed lines."""
    return panel.thresholds_style(common.GraphThresholdsStyleConfig().mode(c.GraphThresholdsStyleMode.DASHED))


def number(title: str, description: str, unit: str, *queries: prometheus.Dataquery) -> stat.Panel:
    """Show one number each for a few series, now: queries over time would show their last one, however old."""
    panel = (
        stat.Panel()
        .unit(unit)
        .color_mode(c.BigValueColorMode.VALUE)
        .graph_mode(c.BigValueGraphMode.NONE)
        .justify_mode(c.BigValueJustifyMode.CENTER)
        .orientation(c.VizOrientation.AUTO)
        .color_scheme(always("text"))
        .reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]).values(False).fields(""))
    )
    _about(panel, title, description, queries)
    return panel


def bars(title: str, description: str, unit: str, *queries: prometheus.Dataquery) -> bargauge.Panel:
    """Compare a few values now, as horizontal bars."""
    panel = (
        bargauge.Panel()
        .unit(unit)
        .min(0)
        .orientation(c.VizOrientation.HORIZONTAL)
        .display_mode(c.BarGaugeDisplayMode.BASIC)
        .value_mode(c.BarGaugeValueMode.TEXT)
        .name_placement(c.BarGaugeNamePlacement.LEFT)
        .show_unfilled(True)
        .sizing(c.BarGaugeSizing.AUTO)
        .min_viz_height(16)
        .max_viz_height(40)
        .legend(common.VizLegendOptions().show_legend(False))
        .reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]).values(False).fields(""))
    )
    _about(panel, title, description, queries)
    return panel


def timeline(title: str, description: str, *queries: prometheus.Dataquery) -> statetimeline.Panel:
    """Show values as coloured bars over time, one row a series; where there is no data there is no bar."""
    panel = (
        statetimeline.Panel()
        .merge_values(True)
        .row_height(0.8)
        .fill_opacity(90)
        .line_width(0)
        .show_value(c.VisibilityMode.NEVER)
        .align_value(c.TimelineValueAlignment.LEFT)
        .span_nulls(False)
        .per_page(40)
        .legend(legend_below())
        .tooltip(common.VizTooltipOptions().mode(c.TooltipDisplayMode.SINGLE))
        .color_scheme(always(NEUTRAL))
    )
    _about(panel, title, description, queries)
    return panel


def power_histogram(title: str, description: str, query: prometheus.Dataquery) -> heatmap.Panel:
    """Draw the share of time spent at each fraction of the power limit, over time."""
    panel = (
        heatmap.Panel()
        .unit("percentunit")
        .calculate(False)
        .cell_gap(0)
        .show_value(c.VisibilityMode.NEVER)
        .rows_frame(heatmap.RowsHeatmapOptions().layout(c.HeatmapCellLayout.LE).value("share of time"))
        .y_axis(heatmap.YAxisConfig().unit("percentunit").decimals(0).axis_placement(c.AxisPlacement.LEFT))
        .cell_values(heatmap.CellValues().unit("percentunit").decimals(1))
        .filter_values(heatmap.FilterValueRange().le(1e-9))
        .color(
            heatmap.HeatmapColorOptions()
            .mode(heatmap_model.HeatmapColorMode.SCHEME)
            .scheme("Viridis")
            .scale(heatmap_model.HeatmapColorScale.EXPONENTIAL)
            .exponent(0.5)
            .steps(64)
            .reverse(False)
            .min(0)
            .max(1)
        )
        .tooltip(heatmap.HeatmapTooltip().mode(c.TooltipDisplayMode.SINGLE).y_histogram(True).show_color_scale(True))
        .show_legend()
        .max_data_points(120)
    )
    _about(panel, title, description, [query.format(prometheus_model.PromQueryFormat.HEATMAP)])
    return panel


def scatter(
    title: str,
    description: str,
    unit: str,
    x: tuple[str, str],
    y: tuple[str, str],
    colour: str,
) -> xychart.Panel:
    """Plot the values of one series against those of another at the same moments.

    Args:
        title: of the panel.
        description: of the panel.
        unit: of y; x is a plain number.
        x: query and name of what runs along the bottom.
        y: query and name of what runs upwards.
        colour: of the points.
    """
    panel = (
        xychart.Panel()
        .mapping(xychart_model.SeriesMapping.AUTO)
        .series([xychart.XYSeriesConfig()])
        .show(xychart_model.XYShowMode.POINTS)
        .point_size(xychart.XychartFieldConfigPointSize().fixed(5))
        .fill_opacity(45)
        .min(0)
        .unit(unit)
        .color_scheme(always(colour))
        .legend(common.VizLegendOptions().show_legend(False))
        .tooltip(common.VizTooltipOptions().mode(c.TooltipDisplayMode.SINGLE))
        .override_by_name(x[1], properties(custom__axisLabel=x[1], unit="locale", decimals=0))
        .override_by_name(y[1], properties(custom__axisLabel=y[1]))
        .max_data_points(400)
        # One frame with just these two fields: every release then takes the first for x and the second for y.
        .with_transformation(
            d.DataTransformerConfig(id_val="joinByField", options={"byField": "Time", "mode": "inner"})
        )
        .with_transformation(
            d.DataTransformerConfig(
                id_val="organize", options={"excludeByName": {"Time": True}, "indexByName": {}, "renameByName": {}}
            )
        )
    )
    _about(panel, title, description, [over_time(x[0], x[1]), over_time(y[0], y[1])])
    return panel


def rows(
    title: str,
    description: str,
    columns: Iterable[tuple[str, str | prometheus.Dataquery, Mapping[str, Any]]],
    *,
    sort: tuple[str, bool] | None = None,
    small: bool = True,
) -> table.Panel:
    """Make a table from queries that share labels: one row for each set of labels.

    Args:
        title: of the panel.
        description: of the panel.
        columns: (heading, source, properties), in the order to show them. The source is a label's name, or a query;
            each query adds a column with its value. A heading of "" hides the column.
        sort: heading to sort by, and whether descending.
        small: whether rows are low.
    """
    panel = (
        table.Panel()
        .show_header(True)
        .cell_height(c.TableCellHeight.SM if small else c.TableCellHeight.MD)
        .align(c.FieldTextAlignment.AUTO)
        .filterable(False)
        .unit("none")
    )
    queries: list[prometheus.Dataquery] = []
    renamed: dict[str, str] = {}
    excluded = {"Time": True}
    order: dict[str, int] = {}
    for position, (heading, source, how) in enumerate(columns):
        if isinstance(source, str):
            names = [source]
        else:
            queries.append(source)
            names = [f"Value #{ascii_uppercase[len(queries) - 1]}"]
            if len(queries) == 1:
                # So it is called when it is the only one that answers. The first is the one that always does.
                names.append("Value")
        if not heading:
            excluded.update(dict.fromkeys(names, True))
            continue
        order.update(dict.fromkeys(names, position))
        renamed.update(dict.fromkeys(names, heading))
        panel.override_by_name(heading, properties(**how))
    panel.with_transformation(d.DataTransformerConfig(id_val="merge", options={}))
    panel.with_transformation(
        d.DataTransformerConfig(
            id_val="organize", options={"excludeByName": excluded, "indexByName": order, "renameByName": renamed}
        )
    )
    if sort:
        panel.sort_by([common.TableSortByFieldState().display_name(sort[0]).desc(sort[1])])
    _about(panel, title, description, queries)
    return panel


BAR_CELL: dict[str, Any] = {
    "custom__cellOptions": {"type": "gauge", "mode": "basic", "valueDisplayMode": "text"},
    "min": 0,
    "max": 1,
    "unit": "percentunit",
    "decimals": 0,
    "color": fixed(CALM),
}
"""A cell with a bar from 0 to 100 % and its value. It judges nothing: low is a fault only while work is held."""

COLOURED_CELL: dict[str, Any] = {
    "custom__cellOptions": {"type": "color-background", "mode": "basic"},
    "color": {"mode": "thresholds"},
}
"""A cell filled with the colour of its value."""

PERCENT_CELL: dict[str, Any] = {"custom__align": "right", "unit": "percentunit", "decimals": 0}
"""A share as a number: a bar is drawn at 0 where nothing was measured."""

COLOURED_TEXT: dict[str, Any] = {"custom__cellOptions": {"type": "color-text"}}
"""A cell whose text has the colour of its value."""

HIDDEN: dict[str, Any] = {"custom__hidden": True, "custom__hideFrom": {"viz": True}}
"""A column that links read, and nobody sees: by its older and its newer name."""
