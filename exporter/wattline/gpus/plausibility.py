"""Readings that no hardware can have: drivers do answer success with garbage, rarely and for a single reading.

An impossible value becomes ``None`` with an ``implausible`` error. Nothing is ever clamped: 720 W at a limit of 700 W
is real, and so is a draw of three times the limit for an instant. Pure functions.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

from wattline.gpus.pcie import link_bytes_per_second
from wattline.readings import GpuActivity, GpuCondition, GpuSample, ReadingError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


IMPLAUSIBLE = "implausible"
STEPPED_BACK = "stepped_back"

MIN_WATTS = 0.001
"""What NVML can tell that is not nothing: it counts in milliwatts."""
MAX_WATTS = 20_000.0
"""No board draws more; modules of 2.9 kW exist."""
POWER_OVER_LIMIT = 3.0
"""Instants of 1.26 times the limit were measured on an H200."""
POWER_OVER_LIMIT_WATTS = 100.0
"""For limits below 50 W: a laptop's may be 5 W, and may just have been ten times that."""
LIMIT_OUTSIDE_RANGE = 1.1
"""The range is of what may be requested; what is enforced may be rounded, and lie a little beside it."""
MIN_LIMIT_WATTS = 1.0
"""The smallest limits of real boards are some watts."""
LIMIT_SHARE = 0.1
"""Where a board tells no range, the least share of its default and requested limit that may be enforced."""
LIMITS = {
    "limit_enforced_watts": "limit_enforced",
    "limit_requested_watts": "limit_requested",
    "limit_default_watts": "limit_default",
}
"""By field, its reading; what the board may draw now comes first."""
MAX_PCIE_BYTES_PER_SECOND = 200e9
PCIE_OVER_LINK = 1.1
"""Traffic is counted with its headers, and the rates of lanes are rounded."""
MAX_RATIO = 1.0
MAX_CLOCK_HERTZ = 10e9
MIN_CELSIUS, MAX_CELSIUS = -50.0, 150.0
NOT_AVAILABLE = -1.0
"""NVML_VALUE_NOT_AVAILABLE, where the type has a sign."""
MAX_MEMORY_BYTES = 2.0**50
MAX_ENERGY_JOULES = 2.0**63 / 1000
"""Half of what NVML's 64 bits of millijoules can hold: ten thousand years at 30 kW."""
ENERGY_SLACK_SECONDS = 1.0
"""The counter moves in steps of 0.1 s and may catch up."""
MAX_LINK_GENERATION, MAX_LINK_WIDTH = 10, 32

_Reading = TypeVar("_Reading", bound=GpuSample | GpuActivity | GpuCondition)


@dataclass(frozen=True, slots=True)
class EnergyMark:
    """An energy reading that was believed: joules at a time."""

    t: float
    joules: float


def power_ceiling(limit_watts: float | None) -> float:
    """Return the highest draw in watts that is believed under this enforced limit."""
    if limit_watts is None:
        return MAX_WATTS
    return max(POWER_OVER_LIMIT * limit_watts, limit_watts + POWER_OVER_LIMIT_WATTS)


def check_sample(sample: GpuSample, limit_watts: float | None, before: EnergyMark | None = None) -> GpuSample:
    """Drop what cannot be.

    Args:
        sample: as it was read.
        limit_watts: the enforced limit of this GPU, if known.
        before: the last energy reading of this GPU that was believed. A counter that went back is kept and only
            marked (``stepped_back``): it was reset, and who takes deltas begins anew.
    """
    ceiling = power_ceiling(limit_watts)
    # No board that answers draws nothing: 0 W is a sensor that does not measure.
    drawn = _within(MIN_WATTS, ceiling)
    checked = _drop(
        sample,
        {
            "power_watts": ("power", drawn),
            "power_instant_watts": ("power_instant", drawn),
            "energy_joules": ("energy", lambda joules: _can_be_energy(joules, sample.t, before, ceiling)),
            "utilization_ratio": ("utilization", _within(0, MAX_RATIO)),
            "memory_busy_ratio": ("utilization", _within(0, MAX_RATIO)),
            "sm_clock_hertz": ("sm_clock", _within(0, MAX_CLOCK_HERTZ)),
        },
    )
    errors = list(checked.errors)
    samples = tuple(watts for watts in checked.power_samples_watts if drawn(watts))
    if len(samples) < len(checked.power_samples_watts):
        errors.append(ReadingError("power_samples", IMPLAUSIBLE))
    if before and checked.energy_joules is not None and checked.energy_joules < before.joules:
        errors.append(ReadingError("energy", STEPPED_BACK))
    return replace(checked, power_samples_watts=samples, errors=tuple(errors))


def check_activity(activity: GpuActivity) -> GpuActivity:
    """Drop what cannot be: PCIe traffic above what the link can carry, ratios outside 0 to 1."""
    checked = _drop(
        activity,
        {
            "pcie_link_generation": ("link_generation", _within(1, MAX_LINK_GENERATION)),
            "pcie_link_generation_max": ("link_generation_max", _within(1, MAX_LINK_GENERATION)),
            "pcie_link_width": ("link_width", _within(1, MAX_LINK_WIDTH)),
            "pcie_link_width_max": ("link_width_max", _within(1, MAX_LINK_WIDTH)),
            "sm_active_ratio": ("sm_active", _within(0, MAX_RATIO)),
            "tensor_active_ratio": ("tensor_active", _within(0, MAX_RATIO)),
            "dram_active_ratio": ("dram_active", _within(0, MAX_RATIO)),
        },
    )
    # The greater of both: a link slows down when idle, perhaps just after the traffic that was averaged.
    carries = max(
        link_bytes_per_second(checked.pcie_link_generation, checked.pcie_link_width) or 0.0,
        link_bytes_per_second(checked.pcie_link_generation_max, checked.pcie_link_width_max) or 0.0,
    )
    believable = _within(0, carries * PCIE_OVER_LINK if carries else MAX_PCIE_BYTES_PER_SECOND)
    return _drop(
        checked,
        {
            "pcie_transmit_bytes_per_second": ("pcie_transmit", believable),
            "pcie_receive_bytes_per_second": ("pcie_receive", believable),
        },
    )


def check_condition(condition: GpuCondition) -> GpuCondition:
    """Drop what cannot be: limits the board cannot have, memory used beyond its total, absurd temperatures."""
    limit = _within(MIN_LIMIT_WATTS, MAX_WATTS)
    memory = _within(0, MAX_MEMORY_BYTES)
    total = condition.memory_total_bytes
    checked = _drop(
        condition,
        {
            **{name: (reading, limit) for name, reading in LIMITS.items()},
            "limit_min_watts": ("limit_range", _within(0, MAX_WATTS)),
            "limit_max_watts": ("limit_range", limit),
            "memory_total_bytes": ("memory", _within(1, MAX_MEMORY_BYTES)),
            "memory_used_bytes": ("memory", memory if total is None else _within(0, total)),
            "sm_clock_max_hertz": ("sm_clock_max", _within(1, MAX_CLOCK_HERTZ)),
            "temperature_celsius": ("temperature", _can_be_temperature),
        },
    )
    checked = _check_limits(checked)
    if not checked.processes:
        return checked
    processes = tuple(
        replace(p, memory_bytes=None) if p.memory_bytes is not None and not memory(p.memory_bytes) else p
        for p in checked.processes
    )
    return replace(checked, processes=processes)


def _check_limits(condition: GpuCondition) -> GpuCondition:
    """Drop the limits outside the board's own range, or that range when it is what cannot be.

    Where a board tells no range, its default and requested limits say what may be enforced.
    """
    least, most = condition.limit_min_watts, condition.limit_max_watts
    if least is None or most is None:
        others = [w for w in (condition.limit_default_watts, condition.limit_requested_watts) if w is not None]
        if len(others) < 2:  # noqa: PLR2004 - one against one: nobody knows which is wrong
            return condition
        believable = _within(min(others) * LIMIT_SHARE, max(others) * LIMIT_OUTSIDE_RANGE)
        return _drop(condition, {"limit_enforced_watts": ("limit_enforced", believable)})
    inside = _within(least / LIMIT_OUTSIDE_RANGE, most * LIMIT_OUTSIDE_RANGE)
    told = [watts for name in LIMITS if (watts := getattr(condition, name)) is not None]
    if least > most or (len(told) > 1 and not any(map(inside, told))):
        # One answer against itself, or against all others: the others are right. Against a single one nobody knows,
        # and no limit makes no verdict.
        return _drop(condition, dict.fromkeys(("limit_min_watts", "limit_max_watts"), ("limit_range", lambda _: False)))
    return _drop(condition, {name: (reading, inside) for name, reading in LIMITS.items()})


def _within(least: float, most: float) -> Callable[[float], bool]:
    return lambda value: least <= value <= most  # False for NaN.


def _can_be_temperature(celsius: float) -> bool:
    return MIN_CELSIUS <= celsius <= MAX_CELSIUS and celsius != NOT_AVAILABLE


def _can_be_energy(joules: float, t: float, before: EnergyMark | None, ceiling_watts: float) -> bool:
    if not 0 <= joules <= MAX_ENERGY_JOULES:
        return False
    if before is None:
        return True
    return joules - before.joules <= ceiling_watts * (max(0.0, t - before.t) + ENERGY_SLACK_SECONDS)


def _drop(reading: _Reading, checks: Mapping[str, tuple[str, Callable[[float], bool]]]) -> _Reading:
    """Blank the fields whose value does not pass; ``checks`` is field: (reading, test)."""
    values = {name: getattr(reading, name) for name in checks}
    bad = [name for name, value in values.items() if value is not None and not checks[name][1](value)]
    if not bad:
        return reading
    errors = [ReadingError(name, IMPLAUSIBLE) for name in sorted({checks[name][0] for name in bad})]
    blank: dict[str, Any] = {**dict.fromkeys(bad), "errors": (*reading.errors, *errors)}
    return replace(reading, **blank)
