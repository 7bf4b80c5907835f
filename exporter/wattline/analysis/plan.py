"""What to judge and how: everything that the analysis must be told. Built from the configuration, or by a test."""

from __future__ import annotations

from dataclasses import dataclass, field

from wattline.analysis.thresholds import Thresholds


@dataclass(frozen=True, slots=True)
class EnginePlan:
    """One engine of a deployment.

    With ``count_tokens`` false it tells load only: another exporter counts its tokens.
    """

    name: str
    url: str = ""
    count_tokens: bool = True
    kind: str | None = None
    """The configured kind."""


@dataclass(frozen=True, slots=True)
class DeploymentPlan:
    """A named set of engines and the GPUs that serve them.

    ``gpus`` holds NVML indices, UUIDs or PCI bus ids; ``None`` means every GPU that no other deployment names.
    """

    name: str
    engines: tuple[EnginePlan, ...] = ()
    gpus: tuple[int | str, ...] | None = None
    unplaced: tuple[str, ...] = ()
    """What runs of it on GPUs that nobody can name, so that its other GPUs are only a part."""


@dataclass(frozen=True, slots=True)
class GpuOverride:
    """What an operator knows better than the driver tells, per UUID."""

    idle_power_watts: float | None = None
    power_limit_watts: float | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """Times are in seconds."""

    deployments: tuple[DeploymentPlan, ...] = ()
    window: float = 60.0
    grace: float = 600.0
    sample_interval: float = 1.0
    activity_interval: float = 5.0
    condition_interval: float = 30.0
    engine_interval: float = 5.0
    thresholds: Thresholds = field(default_factory=Thresholds)
    overrides: dict[str, GpuOverride] = field(default_factory=dict)
