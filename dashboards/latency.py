"""How long requests take, by the engine's own histograms, where the same Prometheus scrapes the engine."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from dashboards import panels as p
from dashboards.common import OF_ENGINE
from dashboards.palette import REQUESTS_QUEUED, REQUESTS_RUNNING

if TYPE_CHECKING:
    from grafana_foundation_sdk.builders import timeseries


class Histogram(NamedTuple):
    """One latency, in seconds, as the engines publish it."""

    title: str
    description: str
    names: str
    """A pattern for its names, of each kind of engine."""


HISTOGRAMS = (
    Histogram(
        "How long until the first token?",
        "From the arrival of a request to its first token: queueing and prefill. It climbs before anything else when "
        "more requests come than can be started.",
        "(sglang|vllm).time_to_first_token_seconds_bucket|dynamo_frontend_time_to_first_token_seconds_bucket",
    ),
    Histogram(
        "How long between two tokens?",
        "The gap between two tokens of one answer, as a reader feels it. It climbs with the batch, and when prefills "
        "interrupt the decoding.",
        "(sglang|vllm).(inter_token_latency|time_per_output_token)_seconds_bucket"
        "|dynamo_frontend_inter_token_latency_seconds_bucket",
    ),
    Histogram(
        "How long until the answer ends?",
        "From the arrival of a request to the end of its answer. Long answers take long: compare it with itself.",
        "(sglang|vllm).e2e_request_latency_seconds_bucket|dynamo_frontend_request_duration_seconds_bucket",
    ),
)


def panels() -> list[timeseries.Panel]:
    """Return a graph for each: the median, and what one request in twenty exceeds."""
    drawn = []
    for title, description, names in HISTOGRAMS:
        rates = f'sum by (le) (rate({{__name__=~"{names}", {OF_ENGINE}}}[$__rate_interval]))'
        drawn.append(
            p.graph(
                title,
                f"{description} By the engine's own histogram, over all requests that ended a step in each interval: "
                "half are faster than p50, and one in twenty is slower than p95.",
                "s",
                p.over_time(f"histogram_quantile(0.5, {rates})", "p50"),
                p.over_time(f"histogram_quantile(0.95, {rates})", "p95"),
            )
            .override_by_name("p50", p.properties(color=p.fixed(REQUESTS_RUNNING)))
            .override_by_name("p95", p.properties(color=p.fixed(REQUESTS_QUEUED)))
        )
    return drawn
