"""docs/metrics.md from the tables of metrics."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from wattline.analysis.causes import Cause
from wattline.analysis.snapshot import POWER_FRACTION_EDGES, EngineView, GpuView, State
from wattline.publish import families
from wattline.publish.collector import Registry

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from wattline.publish.families import Family, Info

TARGET = Path(__file__).parent.parent / "docs" / "metrics.md"

INTRODUCTION = """\
# Metrics

Written by `make generate` from the tables in `exporter/wattline/publish/families.py`: change those, not this file.

Base units throughout: watts, joules, seconds, bytes, hertz, ratios from 0 to 1. A reading that was not obtained is
**absent**: never 0, NaN or the last value. So `absent()` and gaps in a graph mean what they say.
"""

GPUS = """\
`gpu` is NVML's index, `uuid` the GPU's identity, `deployment` empty for a GPU that belongs to none. While a GPU that
was there is lost, `wattline_gpu_up` is 0, and of its other series only `wattline_gpu_info` stays. At most 100 series a
GPU.
"""
ENGINES = """\
One inference server each. Counts are of the whole server: its ranks are added up, or taken once where each tells the
whole. Counters go on where they were when the server restarts.
"""
DEPLOYMENTS = """\
The verdicts, over the deployment's engines and its GPUs *on this host*. A deployment that spans hosts has the same
label on each: add up watts, joules and tokens, never the fractions. At most 60 series a deployment.

A state's time and energy are counters, so an alert is a share of a window, which neither a missed scrape nor one blip
upsets:

```promql
sum by (instance, deployment) (
  rate(wattline_deployment_state_seconds_total{state=~"idle_while_busy|stalled"}[5m])
) > 0.8
```
"""
PRICE = """\
Absent unless the [configuration](configuration.md#price) has a price.
"""
EXPORTER = """\
How far the exporter itself can be believed. `source` is `nvml` (or `simulated`) for the library as a whole, a UUID for
one GPU, `engine:NAME` for an engine. The `process_*` series of the Prometheus client library stand beside them.
"""

VALUES = {
    ("gpu_power_limit_watts", "limit"): "enforced, default, requested, min, max",
    ("gpu_idle_power_watts", "source"): "learned, configured, assumed",
    ("gpu_pcie_bytes_per_second", "direction"): "transmit, receive",
    ("gpu_pcie_link_generation", "bound"): "current, max",
    ("gpu_pcie_link_width", "bound"): "current, max",
    ("gpu_sm_clock_hertz", "bound"): "current, max",
    ("tokens_per_second", "kind"): "prompt, generation",
    ("tokens_per_watt", "kind"): "generation, total",
    ("joules_per_token", "kind"): "generation, total",
    **{
        (name, "state"): ", ".join(State)
        for name in ("deployment_state", "deployment_state_seconds", "deployment_state_energy_joules")
    },
    ("deployment_suspected_cause", "cause"): ", ".join(Cause),
}
"""The values of a label where they are few and fixed."""


def reference() -> str:
    """The text of docs/metrics.md."""
    gpu_info = _info(families.GPU_INFO, families.GPU_INFO.get(_any_gpu()))
    engine_info = _info(families.ENGINE_INFO, families.ENGINE_INFO.get(EngineView("", "", "", None)))
    edges = f"{POWER_FRACTION_EDGES[0]:g} to {POWER_FRACTION_EDGES[-1]:g}"
    name, text = families.POWER_FRACTION
    histogram = _row(name, "histogram", "", f"{text} Edges {edges}.")
    sections = [
        _section("GPUs", GPUS, families.GPU_LABELS, [gpu_info, *_rows(families.GPU_FAMILIES), histogram]),
        _section("Engines", ENGINES, families.ENGINE_LABELS, [engine_info, *_rows(families.ENGINE_FAMILIES)]),
        _section("Deployments", DEPLOYMENTS, families.DEPLOYMENT_LABELS, [*_rows(families.DEPLOYMENT_FAMILIES)]),
        _section(
            "The exporter",
            EXPORTER,
            (),
            [*_rows(families.SOURCE_FAMILIES, families.SOURCE_LABELS), *_rows(families.SNAPSHOT_FAMILIES), *_own()],
        ),
        _section("Price", PRICE, (), [*_rows(families.PRICE_FAMILIES)]),
    ]
    return "\n".join([INTRODUCTION, *sections])


def _any_gpu() -> GpuView:
    from wattline.readings import GpuIdentity

    return GpuView(GpuIdentity("", 0), "", up=True)


def _section(title: str, text: str, labels: Sequence[str], rows: Sequence[str]) -> str:
    beyond = f"labels beyond {', '.join(f'`{label}`' for label in labels)}" if labels else "labels"
    return f"## {title}\n\n{text}\n| metric | type | {beyond} | meaning |\n|---|---|---|---|\n" + "\n".join(rows) + "\n"


def _row(name: str, kind: str, labels: str, text: str) -> str:
    return f"| `{families.PREFIX}{name}` | {kind} | {labels} | {text} |"


def _rows(table: tuple[Family[Any], ...], common: Sequence[str] = ()) -> Iterator[str]:
    for family in table:
        labels = [f"`{label}`" for label in common]
        if family.label:
            values = VALUES.get((family.name, family.label))
            labels.append(f"`{family.label}`" + (f": {values}" if values else ""))
        name = f"{family.name}_total" if family.counter else family.name
        yield _row(name, "counter" if family.counter else "gauge", ", ".join(labels), family.help)


def _info(info: Info[Any], labels: Any) -> str:  # noqa: ANN401 - as the table has it
    return _row(info.name, "gauge", ", ".join(f"`{label}`" for label in labels), f"{info.help} Always 1.")


def _own() -> Iterator[str]:
    """What is registered beside the tables."""
    labels = {"build_info": "`version`", "source_read_seconds": "`source`"}
    for metric in Registry().registry.collect():
        if metric.name.startswith(families.PREFIX):
            name = metric.name.removeprefix(families.PREFIX)
            name += "_total" if metric.type == "counter" else ""
            yield _row(name, metric.type, labels.get(name, ""), metric.documentation)


def written() -> dict[Path, str]:
    """The file that holds it."""
    return {TARGET: reference()}
