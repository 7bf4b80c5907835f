"""What energy cost, where an exporter publishes a price; nothing where none does."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dashboards import panels as p
from dashboards.common import EACH, FEW, HOST, OF_EXPORTER, SAME, WASTE

if TYPE_CHECKING:
    from grafana_foundation_sdk.builders import bargauge, timeseries
    from grafana_foundation_sdk.cog.builder import Builder
    from grafana_foundation_sdk.models import dashboard as d

HEADING = "What does it cost? Needs a price in the exporters' configuration"
PER_JOULE = (
    # A host has one price: while one currency replaces another, the dearer number stands for a moment.
    f"topk by ({HOST}) (1, max by ({HOST}, currency) (wattline_energy_price_per_kilowatt_hour{{{OF_EXPORTER}}}) "
    f"* on ({HOST}) group_left () max by ({HOST}) (wattline_energy_pue_ratio{{{OF_EXPORTER}}}) / 3600000)"
)


def _priced(joules: str) -> str:
    return f"{joules} * on ({HOST}) group_left (currency) {PER_JOULE}"


def _by_state(selector: str) -> bargauge.Panel:
    joules = f"increase(wattline_deployment_state_energy_joules_total{{{selector}}}[$__range])"
    return p.bars(
        "What did each state cost?",
        "The energy of each state within the time range, at the price and the overhead of the site (PUE) that the "
        "exporters' configuration names. Idle while busy and stalled bought nothing.",
        "none",
        p.now(f"sum by (state, currency) ({_priced(joules)}) > 0", "{{state}} · {{currency}}"),
    ).decimals(2)


def _by_cause(selector: str) -> timeseries.Panel:
    joules = (
        f"sum by ({SAME}) (rate(wattline_deployment_state_energy_joules_total"
        f'{{{selector}, state=~"{WASTE}"}}[$__rate_interval]))'
    )
    suspected = f"max by ({SAME}, cause) (wattline_deployment_suspected_cause{{{selector}}})"
    return (
        p.graph(
            "What does waste cost an hour, by cause?",
            "The power that is wasted now, at its price for an hour, under each cause that is suspected of it. Several "
            "causes may be suspected of the same waste: do not add them up.",
            "none",
            p.over_time(
                f"sum by (cause, currency) ({suspected} * on ({SAME}) group_left (currency) "
                f"(3600 * {_priced(joules)})) > 0",
                "{{cause}} · {{currency}}",
            ),
        )
        .decimals(2)
        .no_value("Nothing is wasted, or no price is configured")
    )


def _million_tokens(selector: str) -> bargauge.Panel:
    joules = f"increase(wattline_deployment_state_energy_joules_total{{{selector}}}[$__range])"
    tokens = f"sum by ({EACH}) (increase(wattline_engine_generation_tokens_total{{{selector}}}[$__range]))"
    return p.bars(
        "What did a million tokens cost?",
        "All energy within the time range, that of idle hours and of waste too, for each million generated tokens: it "
        f"was paid for the same tokens. Up to {FEW} deployments, the dearest.",
        "none",
        p.now(
            f"topk({FEW}, sum by ({EACH}, currency) ({_priced(joules)}) "
            f"/ on ({EACH}) group_left () ({tokens} / 1000000 > 0))",
            "{{deployment}} · {{currency}}",
        ),
    ).decimals(2)


def panels(selector: str) -> list[tuple[Builder[d.Panel], int, int]]:
    """Return the panels with their widths and heights, for the deployments that a selector picks."""
    return [(_by_state(selector), 8, 8), (_by_cause(selector), 8, 8), (_million_tokens(selector), 8, 8)]
