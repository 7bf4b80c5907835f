"""The metrics as text, as the client library writes them, in a third of its time.

The library looks at every name and label of every sample anew, and most are the same at every scrape. What is no plain
sample of a gauge, counter or histogram is left to it.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from prometheus_client import generate_latest
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.utils import floatToGoString

if TYPE_CHECKING:
    from collections.abc import Iterator

    from prometheus_client import Metric
    from prometheus_client.registry import Collector

REMEMBERED = 8192
"""Label sets that are kept from scrape to scrape: sixteen GPUs and as many engines have 1,700 series."""
PLAIN = frozenset({"gauge", "counter", "histogram"})
SPECIAL = ("_created", "_gsum", "_gcount")
EOF = b"# EOF\n"


class _One:
    """A registry of one metric."""

    def __init__(self, metric: Metric) -> None:
        self._metric = metric

    def collect(self) -> Iterator[Metric]:
        yield self._metric


def plain_text(registry: Collector) -> bytes:
    """The text format 0.0.4."""
    return b"".join(
        _text(metric, metric.name + "_total" * (metric.type == "counter"), _on_one_line(metric.documentation))
        if _is_plain(metric)
        else generate_latest(_One(metric))
        for metric in registry.collect()
    )


def openmetrics_text(registry: Collector) -> bytes:
    """OpenMetrics 1.0.0."""
    parts = [
        _text(metric, metric.name, _quoted(metric.documentation))
        if _is_plain(metric)
        else openmetrics.generate_latest(_One(metric)).removesuffix(EOF)  # type: ignore[no-untyped-call]
        for metric in registry.collect()
    ]
    return b"".join([*parts, EOF])


def _is_plain(metric: Metric) -> bool:
    return (
        metric.type in PLAIN
        and not metric.unit
        and not any(
            s.timestamp is not None or s.exemplar or getattr(s, "native_histogram", None) or s.name.endswith(SPECIAL)
            for s in metric.samples
        )
    )


def _text(metric: Metric, name: str, documentation: str) -> bytes:
    lines = [f"# HELP {name} {documentation}\n# TYPE {name} {metric.type}\n"]
    number = floatToGoString
    lines += [f"{s.name}{_labels(tuple(s.labels.items()))} {number(s.value)}\n" for s in metric.samples]  # type: ignore[no-untyped-call]
    return "".join(lines).encode()


@lru_cache(maxsize=REMEMBERED)
def _labels(items: tuple[tuple[str, str], ...]) -> str:
    if not items:
        return ""
    return "{" + ",".join(f'{name}="{_quoted(value)}"' for name, value in sorted(items)) + "}"


def _quoted(text: str) -> str:
    return _on_one_line(text).replace('"', r"\"")


def _on_one_line(text: str) -> str:
    return text.replace("\\", r"\\").replace("\n", r"\n")
