"""The metrics text is what the client library writes, whichever way to it is the cheaper one."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from prometheus_client import Metric, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeHistogramMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    StateSetMetricFamily,
    SummaryMetricFamily,
    UntypedMetricFamily,
)
from prometheus_client.exposition import choose_encoder
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.registry import Collector

from tests.analysis.build import Bench
from wattline.publish import metrics_text as text
from wattline.publish.collector import Registry
from wattline.publish.metrics_text import openmetrics_text, plain_text
from wattline.publish.server import Publication


@pytest.mark.parametrize(
    "accept",
    [
        "text/plain;version=0.0.4",
        "text/plain;version=1.0.0;escaping=underscores",
        "text/plain;version=1.0.0;escaping=values",
        "application/openmetrics-text;version=1.0.0;q=0.75,text/plain;version=0.0.4;q=0.5,*/*;q=0.1",
        "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8",
        "application/openmetrics-text;version=1.0.0;escaping=dots",
    ],
)
def test_the_text_is_the_client_librarys(accept: str) -> None:
    publication = Publication()
    publication.publish(Bench().run(10, watts=250, work=64, tokens_per_second=100))
    encoder, content_type = choose_encoder(accept)
    body, told = publication.render(accept, compressed=False)
    assert told == content_type

    def lasting(body: bytes) -> list[bytes]:
        return [line for line in body.splitlines() if b"process_" not in line]

    assert lasting(body) == lasting(encoder(publication.registry.registry))
    assert b"wattline_gpu_power_watts{" in body or b"dots" in content_type.encode()


class Odd(Collector):
    """What the exporter has none of, and one label that holds everything that must be escaped."""

    def collect(self) -> Iterator[Metric]:
        nasty = 'a"b\\c\nd'
        gauge = GaugeMetricFamily("g", f"With {nasty}.", labels=["z", "a"])
        for value in (0.0, -1.5, 1e6, 12345678.9, 1e21, 1e-7, float("inf"), float("-inf"), float("nan"), 3):
            gauge.add_metric([nasty, str(value)], value)
        gauge.add_metric(["", ""], 1.0, timestamp=5)
        yield gauge
        counter = CounterMetricFamily("c", "Counts.", labels=["z"], created=7)
        counter.add_metric(["x"], 4, created=8)
        yield counter
        yield CounterMetricFamily("plain", "Counts.", value=4)
        histogram = HistogramMetricFamily("h", "Spreads.", labels=["z"])
        histogram.add_metric(["x"], [("0.5", 1.0), ("+Inf", 2.0)], 1.25)
        yield histogram
        yield GaugeMetricFamily("seconds", "Has a unit.", value=2, unit="seconds")
        yield InfoMetricFamily("i", "Tells.", value={"k": nasty})
        yield StateSetMetricFamily("s", "Is.", value={"on": True, "off": False})
        yield SummaryMetricFamily("q", "Sums.", count_value=1, sum_value=2)
        yield UntypedMetricFamily("u", "Is unknown.", value=1)
        yield GaugeHistogramMetricFamily("gh", "Both.", buckets=[("1", 1.0), ("+Inf", 2.0)], gsum_value=3.0)
        yield GaugeMetricFamily("empty", "Has no sample.", labels=["z"])


@pytest.mark.parametrize(
    ("ours", "theirs"), [(plain_text, generate_latest), (openmetrics_text, openmetrics.generate_latest)]
)
def test_whatever_the_client_library_can_write_is_written_as_it_writes_it(
    ours: Callable[[Collector], bytes], theirs: Callable[[Collector], bytes]
) -> None:
    assert ours(Odd()).decode() == theirs(Odd()).decode()


def test_label_sets_are_remembered_and_bounded() -> None:
    registry = Registry().registry
    plain_text(registry)
    misses = text._labels.cache_info().misses
    plain_text(registry)
    assert text._labels.cache_info().misses == misses
    assert text._labels.cache_info().maxsize == text.REMEMBERED
