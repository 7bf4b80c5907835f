"""From the last snapshot to metric families: the only place where views become samples."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, TypeVar

from prometheus_client import CollectorRegistry, Gauge, Histogram, ProcessCollector, disable_created_metrics
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

from wattline import __version__
from wattline.analysis.snapshot import POWER_FRACTION_EDGES, Snapshot
from wattline.publish.families import (
    DEPLOYMENT_FAMILIES,
    DEPLOYMENT_LABELS,
    ENGINE_FAMILIES,
    ENGINE_INFO,
    ENGINE_LABELS,
    GPU_FAMILIES,
    GPU_INFO,
    GPU_LABELS,
    POWER_FRACTION,
    PREFIX,
    PRICE_FAMILIES,
    SNAPSHOT_FAMILIES,
    SOURCE_FAMILIES,
    SOURCE_LABELS,
    Family,
    Info,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from prometheus_client.metrics_core import Metric

    from wattline.analysis.snapshot import DeploymentView, EngineView, GpuView, SourceView
    from wattline.config import Price

View = TypeVar("View", "GpuView", "EngineView", "DeploymentView", "SourceView", Snapshot, "Price")

READ_SECONDS_BUCKETS = (0.001, 0.005, 0.02, 0.1, 0.5, 2.0, 5.0)


def gpu_labels(view: GpuView) -> tuple[str, ...]:
    """Values of :data:`GPU_LABELS`."""
    return str(view.identity.index), view.identity.uuid, view.deployment


def _engine_labels(view: EngineView) -> tuple[str, ...]:
    return view.deployment, view.name


def _deployment_labels(view: DeploymentView) -> tuple[str, ...]:
    return (view.name,)


def _source_labels(view: SourceView) -> tuple[str, ...]:
    return (view.name,)


def _no_labels(_: Price) -> tuple[str, ...]:
    return ()


class SnapshotCollector(Collector):
    """Turns the snapshot that it holds into metric families. Holds none at first."""

    def __init__(self) -> None:
        self.snapshot = Snapshot(t=0.0)
        self.price: Price | None = None

    def collect(self) -> Iterator[Metric]:
        """Every family that has a sample now."""
        s = self.snapshot
        yield from _info(GPU_INFO, s.gpus, GPU_LABELS, gpu_labels)
        yield from _families(GPU_FAMILIES, s.gpus, GPU_LABELS, gpu_labels)
        yield from _histogram(s.gpus)
        yield from _info(
            ENGINE_INFO, [e for e in s.engines if e.reading and e.reading.up], ENGINE_LABELS, _engine_labels
        )
        yield from _families(ENGINE_FAMILIES, s.engines, ENGINE_LABELS, _engine_labels)
        yield from _families(DEPLOYMENT_FAMILIES, s.deployments, DEPLOYMENT_LABELS, _deployment_labels)
        yield from _families(SOURCE_FAMILIES, s.sources, SOURCE_LABELS, _source_labels)
        yield from _families(SNAPSHOT_FAMILIES, [s], (), lambda _: ())
        yield from _families(PRICE_FAMILIES, (self.price,) if self.price else (), (), _no_labels)


def _families(
    families: tuple[Family[View], ...],
    views: Sequence[View],
    names: tuple[str, ...],
    labels: Callable[[View], tuple[str, ...]],
) -> Iterator[Metric]:
    known: list[tuple[View, tuple[str, ...]]] = [(view, labels(view)) for view in views]
    for family in families:
        labelnames = (*names, family.label) if family.label else names
        kind = CounterMetricFamily if family.counter else GaugeMetricFamily
        metric = kind(PREFIX + family.name, family.help, labels=labelnames)
        own_values: tuple[str, ...]
        for view, own_values in known:
            answer = family.get(view)
            if answer is None or isinstance(answer, (int, float)):
                if answer is not None and math.isfinite(answer):
                    metric.add_metric(own_values, answer)
                continue
            for own, value in answer.items():
                if value is not None and math.isfinite(value):
                    metric.add_metric((*own_values, own), value)
        if metric.samples:
            yield metric


def _info(
    info: Info[View],
    views: Sequence[View],
    names: tuple[str, ...],
    labels: Callable[[View], tuple[str, ...]],
) -> Iterator[Metric]:
    if not views:
        return
    own: tuple[str, ...] = tuple(info.get(views[0]))
    metric = GaugeMetricFamily(PREFIX + info.name, info.help, labels=(*names, *own))
    view: View
    for view in views:
        metric.add_metric((*labels(view), *info.get(view).values()), 1.0)
    yield metric


def _histogram(gpus: Sequence[GpuView]) -> Iterator[Metric]:
    name, text = POWER_FRACTION
    metric = HistogramMetricFamily(PREFIX + name, text, labels=GPU_LABELS)
    edges = [*(str(e) for e in POWER_FRACTION_EDGES), "+Inf"]
    for gpu in gpus:
        if gpu.power_fraction_buckets:
            buckets = list(zip(edges, map(float, gpu.power_fraction_buckets), strict=True))
            metric.add_metric(gpu_labels(gpu), buckets, gpu.power_fraction_sum)
    if metric.samples:
        yield metric


class Registry:
    """Everything that a scrape answers: the snapshot, and what the exporter tells of itself."""

    def __init__(self) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = CollectorRegistry()
        self.collector = SnapshotCollector()
        self.registry.register(self.collector)
        ProcessCollector(registry=self.registry)
        build = Gauge(PREFIX + "build_info", "What runs here.", ["version"], registry=self.registry)
        build.labels(__version__).set(1)
        self.read_seconds = Histogram(
            PREFIX + "source_read_seconds",
            "What one reading of the source takes.",
            SOURCE_LABELS,
            buckets=READ_SECONDS_BUCKETS,
            registry=self.registry,
        )
        self._read: dict[str, Histogram] = {}
        self.reload_ok = Gauge(
            PREFIX + "config_last_reload_successful",
            "1 when the configuration in force is the one that was read last.",
            registry=self.registry,
        )
        self.reload_time = Gauge(
            PREFIX + "config_last_reload_success_timestamp_seconds",
            "When a configuration was last taken into force.",
            registry=self.registry,
        )

    def observe_read(self, source: str, seconds: float) -> None:
        """Note what one reading took."""
        series = self._read.get(source)
        if series is None:
            series = self._read[source] = self.read_seconds.labels(source)
        series.observe(seconds)

    def forget_others(self, sources: Iterable[str]) -> None:
        """Drop what was noted of sources that are no more: engines that come and go must not add up."""
        for source in self._read.keys() - set(sources):
            self.read_seconds.remove(source)
            del self._read[source]
