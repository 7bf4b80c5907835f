"""Every metric that Wattline publishes, one line each. Adding a metric is adding its line.

A line has a name (without the prefix), a help text, the name of its own label if it has one, and where its value comes
from. A value of ``None`` is a reading that was not obtained: the series is then absent.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

from wattline.analysis.causes import Cause
from wattline.analysis.snapshot import DeploymentView, EngineView, GpuView, Snapshot, SourceView, State
from wattline.config import Price

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

PREFIX = "wattline_"

GPU_LABELS = ("gpu", "uuid", "deployment")
ENGINE_LABELS = ("deployment", "engine")
DEPLOYMENT_LABELS = ("deployment",)
SOURCE_LABELS = ("source",)

View = TypeVar("View", GpuView, EngineView, DeploymentView, SourceView, Snapshot, Price)


@dataclass(frozen=True)
class Family(Generic[View]):
    """One metric family over one kind of view.

    ``get`` answers one value, or, when ``label`` names a label of its own, a value by each value of that label.
    """

    name: str
    help: str
    get: Callable[[View], float | Mapping[str, float | None] | None]
    label: str = ""
    counter: bool = False


@dataclass(frozen=True)
class Info(Generic[View]):
    """A family of value 1 whose labels tell what something is."""

    name: str
    help: str
    get: Callable[[View], Mapping[str, str]]


def _sample(name: str) -> Callable[[GpuView], float | None]:
    return lambda g: getattr(g.sample, name) if g.sample else None


def _activity(name: str) -> Callable[[GpuView], float | None]:
    return lambda g: getattr(g.activity, name) if g.activity else None


def _condition(name: str) -> Callable[[GpuView], float | None]:
    return lambda g: getattr(g.condition, name) if g.condition else None


_COMMON_XIDS = (13, 31, 43, 48, 74, 79, 94, 95)
"""Told from the start as 0: the first event of a series that only begins with it is no increase."""


def _xids(view: GpuView) -> Mapping[str, float | None]:
    """XID errors by code."""
    if view.condition is None or view.condition.xid_errors is None:
        return {}
    return {str(code): float(n) for code, n in (dict.fromkeys(_COMMON_XIDS, 0) | dict(view.condition.xids)).items()}


def _by(source: str, **names: str) -> Callable[[GpuView], Mapping[str, float | None]]:
    """Several fields of one reading, by label value."""

    def get(view: GpuView) -> Mapping[str, float | None]:
        reading = getattr(view, source)
        return {label: getattr(reading, name) for label, name in names.items()} if reading else {}

    return get


def _engine(name: str) -> Callable[[EngineView], float | None]:
    return lambda e: getattr(e.reading, name) if e.reading and e.reading.up else None


def _counted(name: str) -> Callable[[EngineView], float | None]:
    """What is added up over engines: of an engine that several exporters read, one tells it."""
    read = _engine(name)
    return lambda e: read(e) if e.counted_here else None


def _bool(value: bool | None) -> float | None:
    return None if value is None else float(value)


GPU_INFO = Info[GpuView](
    "gpu_info",
    "What the GPU is: name, PCI bus id, architecture, driver, virtualization, MIG, memory, source of energy.",
    lambda g: {
        "name": g.identity.name,
        "pci_bus_id": g.identity.pci_bus_id,
        "architecture": g.identity.architecture,
        "driver": g.identity.driver,
        "virtualization": g.identity.virtualization,
        "mig": {None: "unknown", True: "on", False: "off"}[g.identity.mig],
        "memory": "unified" if g.identity.unified_memory else "dedicated",
        "energy_source": g.energy_source,
    },
)

GPU_FAMILIES: tuple[Family[GpuView], ...] = (
    Family("gpu_up", "1 while the GPU answers, 0 while a GPU that was there is lost.", lambda g: float(g.up)),
    Family("gpu_power_watts", "Board power, the driver's own average.", _sample("power_watts")),
    Family(
        "gpu_power_instant_watts",
        "Board power at one instant; swings widely within a steady load.",
        _sample("power_instant_watts"),
    ),
    Family(
        "gpu_power_limit_watts",
        "Power limits: enforced is what the board may draw now.",
        _by(
            "condition",
            enforced="limit_enforced_watts",
            default="limit_default_watts",
            requested="limit_requested_watts",
            min="limit_min_watts",
            max="limit_max_watts",
        ),
        label="limit",
    ),
    Family(
        "gpu_tdp_fraction",
        "Mean power over the window as a share of the enforced limit, never clamped.",
        lambda g: g.tdp_fraction,
    ),
    Family(
        "gpu_active_power_fraction",
        "Share of the power between idle floor and limit that is drawn, over the window.",
        lambda g: g.active_power_fraction,
    ),
    Family(
        "gpu_idle_power_watts",
        "The idle floor in use: learned, configured or assumed.",
        lambda g: {g.idle_floor.source: g.idle_floor.watts} if g.idle_floor else {},
        label="source",
    ),
    Family(
        "gpu_energy_joules",
        "Energy by the driver's counter, or by integrated power where there is none.",
        lambda g: g.energy_joules if g.up else None,
        counter=True,
    ),
    Family(
        "gpu_energy_disagreement_ratio",
        "How far the energy counter and integrated power differ over the window, as a share of the greater.",
        lambda g: g.energy_disagreement_ratio,
    ),
    Family(
        "gpu_utilization_ratio",
        "Share of time in which some kernel was resident; says nothing about how much of the GPU computes.",
        _sample("utilization_ratio"),
    ),
    Family(
        "gpu_utilization_stuck",
        "1 while utilisation shows 100 % although power is idle and no process holds the GPU.",
        lambda g: _bool(g.utilization_stuck),
    ),
    Family(
        "gpu_memory_busy_ratio",
        "Share of time in which device memory was read or written.",
        _sample("memory_busy_ratio"),
    ),
    Family("gpu_sm_active_ratio", "Share of SM cycles with work (GPM).", _activity("sm_active_ratio")),
    Family("gpu_tensor_active_ratio", "Share of cycles with tensor work (GPM).", _activity("tensor_active_ratio")),
    Family("gpu_dram_active_ratio", "Share of the DRAM bandwidth in use (GPM).", _activity("dram_active_ratio")),
    Family(
        "gpu_memory_used_bytes",
        "Device memory in use; before driver R510 and in WSL2 with what the driver keeps for itself.",
        _condition("memory_used_bytes"),
    ),
    Family("gpu_memory_total_bytes", "Device memory.", _condition("memory_total_bytes")),
    Family(
        "gpu_pcie_bytes_per_second",
        "PCIe traffic; transmit is from the GPU.",
        _by(
            "activity",
            transmit="pcie_transmit_bytes_per_second",
            receive="pcie_receive_bytes_per_second",
        ),
        label="direction",
    ),
    Family(
        "gpu_pcie_link_bytes_per_second",
        "What the current PCIe link could carry one way.",
        lambda g: g.pcie_link_bytes_per_second,
    ),
    Family(
        "gpu_pcie_link_generation",
        "PCIe generation of the link; falls when idle on some boards.",
        _by("activity", current="pcie_link_generation", max="pcie_link_generation_max"),
        label="bound",
    ),
    Family(
        "gpu_pcie_link_width",
        "PCIe lanes of the link.",
        _by("activity", current="pcie_link_width", max="pcie_link_width_max"),
        label="bound",
    ),
    Family("gpu_p2p_peers", "Other GPUs it can reach peer to peer.", lambda g: g.identity.p2p_peers if g.up else None),
    Family(
        "gpu_p2p_peers_possible",
        "Other GPUs of this host that it was asked about.",
        lambda g: g.identity.p2p_peers_possible if g.up else None,
    ),
    Family(
        "gpu_sm_clock_hertz",
        "SM clock.",
        lambda g: {
            "current": g.sample.sm_clock_hertz if g.sample else None,
            "max": g.condition.sm_clock_max_hertz if g.condition else None,
        },
        label="bound",
    ),
    Family(
        "gpu_clocks_event_seconds",
        "Time in which the clocks were held back, by reason.",
        lambda g: g.event_seconds,
        label="reason",
        counter=True,
    ),
    Family("gpu_temperature_celsius", "GPU temperature.", _condition("temperature_celsius")),
    Family(
        "gpu_processes",
        "Processes that hold the GPU, where the driver tells them.",
        lambda g: len(g.condition.processes) if g.condition and g.condition.processes is not None else None,
    ),
    Family(
        "gpu_xid_errors",
        "XID errors since the exporter listens, by code: 13, 31, 43 are applications', 48, 74, 79, 94, 95 hardware's.",
        _xids,
        counter=True,
        label="xid",
    ),
)

POWER_FRACTION = (
    "gpu_power_fraction",
    "The driver's buffered power samples as a share of the limit: time at each level, free of scrape aliasing.",
)

ENGINE_INFO = Info[EngineView](
    "engine_info",
    "What the engine is: kind, model, version.",
    lambda e: {
        "kind": (e.reading.kind if e.reading else None) or "",
        "model": (e.reading.model if e.reading else None) or "",
        "version": (e.reading.version if e.reading else None) or "",
    },
)

ENGINE_FAMILIES: tuple[Family[EngineView], ...] = (
    Family(
        "engine_up",
        "1 when the last scrape of the engine gave usable metrics.",
        lambda e: float(e.reading is not None and e.reading.up),
    ),
    Family("engine_running_requests", "Requests that run now.", _counted("running")),
    Family("engine_queued_requests", "Requests that wait now.", _counted("queued")),
    Family("engine_kv_cache_usage_ratio", "Share of the KV cache in use.", _engine("kv_cache_usage_ratio")),
    Family(
        "engine_prompt_tokens",
        "Prompt tokens since the exporter began, across restarts of the engine.",
        lambda e: e.prompt_tokens_total,
        counter=True,
    ),
    Family(
        "engine_generation_tokens",
        "Generated tokens since the exporter began, across restarts of the engine.",
        lambda e: e.generation_tokens_total,
        counter=True,
    ),
    Family(
        "engine_cached_prompt_tokens",
        "Prompt tokens that the engine's cache saved, since the exporter began.",
        lambda e: e.cached_prompt_tokens_total,
        counter=True,
    ),
    Family(
        "engine_rejected_front_readings",
        "Readings of the engine's front that the requests which ended have refuted.",
        lambda e: float(e.rejected),
        counter=True,
    ),
    Family(
        "engine_scheduler_idle_ratio",
        "Share of the window in which the engine's scheduler had nothing, by its own account.",
        lambda e: e.scheduler_idle_ratio,
    ),
)

DEPLOYMENT_FAMILIES: tuple[Family[DeploymentView], ...] = (
    Family(
        "tdp_fraction",
        "Mean power of the deployment's GPUs on this host over the window, as a share of their limits.",
        lambda d: d.tdp_fraction,
    ),
    Family(
        "active_power_fraction",
        "Share of the power between idle floors and limits that the deployment draws.",
        lambda d: d.active_power_fraction,
    ),
    Family("power_watts", "Mean power of the deployment's GPUs on this host over the window.", lambda d: d.power_watts),
    Family(
        "power_limit_watts", "Sum of the limits of the deployment's GPUs on this host.", lambda d: d.power_limit_watts
    ),
    Family("deployment_work_requests", "Requests held now, by the best signal.", lambda d: d.work_counted),
    Family("deployment_gpus", "GPUs of the deployment on this host.", lambda d: float(len(d.gpus))),
    Family(
        "deployment_gpus_unresolved",
        "Configured GPUs that are not visible or belong to another deployment, and processes whose GPU is not known.",
        lambda d: float(len(d.unresolved_gpus) + len(d.foreign_gpus) + len(d.unplaced)),
    ),
    Family(
        "tokens_per_second",
        "Tokens per second over the window, from counter deltas.",
        lambda d: d.tokens_per_second,
        label="kind",
    ),
    Family(
        "tokens_per_watt",
        "Tokens per second per watt, that is tokens per joule: token delta over energy delta of the same window.",
        lambda d: d.tokens_per_watt,
        label="kind",
    ),
    Family(
        "joules_per_token",
        "Energy for each token; absent when no token came.",
        lambda d: d.joules_per_token,
        label="kind",
    ),
    Family(
        "deployment_state",
        "What the deployment does now: exactly one state is 1.",
        lambda d: {s.value: float(s is d.state) for s in State},
        label="state",
    ),
    Family(
        "deployment_state_since_timestamp_seconds",
        "When the present state began, in Unix time; a blip in between does not begin it anew.",
        lambda d: d.state_since,
    ),
    Family(
        "deployment_pending_seconds",
        "How long the signs of a bad state have been there; the state itself needs a whole window of them.",
        lambda d: {d.pending.state.value: d.pending.seconds} if d.pending else {},
        label="state",
    ),
    Family(
        "deployment_watched_seconds",
        "How long the deployment has been watched, up to a window: before that no verdict needs one.",
        lambda d: d.watched_seconds,
    ),
    Family(
        "deployment_bandwidth_ratio",
        "Memory traffic of its GPUs as a share of what their memory can carry: measured, or estimated by the engines.",
        lambda d: d.bandwidth_ratio,
    ),
    Family(
        "deployment_flops_ratio",
        "Operations as a share of the dense bf16 peak of its GPUs, as the engines estimate them.",
        lambda d: d.flops_ratio,
    ),
    Family(
        "deployment_state_seconds",
        "Time spent in each state.",
        lambda d: {s.value: d.state_seconds.get(s, 0.0) for s in State},
        label="state",
        counter=True,
    ),
    Family(
        "deployment_state_energy_joules",
        "Energy spent in each state; idle_while_busy and stalled are the waste.",
        lambda d: {s.value: d.state_energy_joules.get(s, 0.0) for s in State},
        label="state",
        counter=True,
    ),
    Family(
        "deployment_suspected_cause",
        "1 while the cause is suspected; a hint for people, never an alert condition of its own.",
        lambda d: {c.value: float(any(s.cause is c for s in d.suspicions)) for c in Cause},
        label="cause",
    ),
)

SOURCE_FAMILIES: tuple[Family[SourceView], ...] = (
    Family("source_up", "1 while the source can be read.", lambda s: float(s.up)),
    Family("source_age_seconds", "Age of the last successful reading.", lambda s: s.age_seconds),
    Family("source_errors", "Calls that gave nothing, by kind.", lambda s: s.errors, label="kind", counter=True),
    Family(
        "source_rejected_readings",
        "Readings dropped because the hardware cannot do that, by the name of the reading.",
        lambda s: s.rejected,
        label="reading",
        counter=True,
    ),
)

SNAPSHOT_FAMILIES: tuple[Family[Snapshot], ...] = (
    Family("window_seconds", "What a verdict looks at, and what every mean is over.", lambda s: s.window or None),
)

PRICE_FAMILIES: tuple[Family[Price], ...] = (
    Family(
        "energy_price_per_kilowatt_hour",
        "What a kilowatt-hour costs at the meter, as configured.",
        lambda p: {p.currency: p.per_kwh},
        label="currency",
    ),
    Family(
        "energy_pue_ratio",
        "Energy of the whole site for each unit of energy of its computers, as configured.",
        lambda p: p.pue,
    ),
    Family(
        "energy_co2_kilograms_per_kilowatt_hour",
        "CO2 for a kilowatt-hour at the meter, as configured.",
        lambda p: p.co2_per_kwh,
    ),
)
