"""What a recording looks like: gzip over lines of JSON, a header first, then one event a line, in the order of arrival.

A line is an object with one key, the kind of the event; fields of a reading that hold their default are left out. The
events are everything that the analysis was told, the moments of judging included: the same file therefore gives the
same verdicts, however fast it is replayed.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import urlsplit

import msgspec
from msgspec import Meta, Struct

from wattline.analysis.plan import Plan
from wattline.analysis.snapshot import SourceView
from wattline.readings import EngineReading, GpuActivity, GpuCondition, GpuGone, GpuIdentity, GpuSample
from wattline.yamlfile import UsageError

if TYPE_CHECKING:
    from pathlib import Path

    from wattline.readings import Reading

FORMAT = "wattline-recording"
VERSION = 1
MAX_LINE_BYTES = 1 << 20
"""The longest line, a header with hundreds of engines, is far shorter."""
MAX_BYTES = 2 << 30
"""Of all lines together, unpacked: days of a big host, and an end to a file that unpacks without one."""
MAX_GPUS = 256
MAX_REASONS = 64
"""Distinct clocks event reasons: the driver has ten."""
MAX_SECONDS = 1e12
MAX_NUMBER = 1e18
"""Beyond it no reading has a meaning, and products of two would no longer be finite."""

LINE_KINDS = {
    GpuIdentity: "gpu",
    GpuSample: "sample",
    GpuActivity: "activity",
    GpuCondition: "condition",
    GpuGone: "gone",
    EngineReading: "engine",
}


class RecordingError(UsageError):
    """A recording cannot be written, or cannot be understood.

    Args:
        path: the file.
        line: the line, counted from 1; ``None`` when it is about the file as a whole.
        problem: what was expected and what was found.
    """

    def __init__(self, path: Path, line: int | None, problem: str) -> None:
        super().__init__(f"{path}: {problem}" if line is None else f"{path}:{line}: {problem}")


class Header(Struct, frozen=True, kw_only=True):
    """The first line. Holds no secret: addresses of engines come without query, user and password."""

    format: str
    version: int
    created: Annotated[str, Meta(max_length=64)]
    """UTC, ISO 8601."""
    wattline: Annotated[str, Meta(max_length=64)]
    """The version that wrote it."""
    anonymous: bool = False
    plan: Plan


class Judged(Struct, frozen=True):
    """A verdict was given at ``t``. ``sources`` is ``None`` where they are as before; their ages are not kept."""

    t: float
    sources: tuple[SourceView, ...] | None = None


class Restored(Struct, frozen=True):
    """The idle floor of a GPU was known from before."""

    uuid: str
    watts: Annotated[float, Meta(gt=0.0, le=20_000.0)]


Event = GpuIdentity | GpuSample | GpuActivity | GpuCondition | GpuGone | EngineReading | Restored | Judged | Plan
"""A plan is by what is judged from then on: servers were found, or the configuration was read again."""


class Line(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """One line after the header: exactly one of these."""

    gpu: GpuIdentity | None = None
    sample: GpuSample | None = None
    activity: GpuActivity | None = None
    condition: GpuCondition | None = None
    engine: EngineReading | None = None
    gone: GpuGone | None = None
    idle_floor: Restored | None = None
    judged: Judged | None = None
    plan: Plan | None = None


def header_line(header: Header) -> bytes:
    """The first line."""
    return msgspec.json.encode(header) + b"\n"


def reading_line(reading: Reading) -> bytes:
    """The line of a reading.

    The driver's buffered power samples are rounded to whole watts: they are two thirds of a recording even so, and
    feed a histogram whose steps are twenty times as wide.
    """
    fields = _told(reading)
    if isinstance(reading, GpuSample) and reading.power_samples_watts:
        fields["power_samples_watts"] = [round(watts) for watts in reading.power_samples_watts]
    return msgspec.json.encode({LINE_KINDS[type(reading)]: fields}) + b"\n"


def event_line(event: Restored | Judged | Plan) -> bytes:
    """The line of what is not a reading."""
    if isinstance(event, Plan):
        return msgspec.json.encode({"plan": event}) + b"\n"
    if isinstance(event, Restored):
        return msgspec.json.encode(Line(idle_floor=event)) + b"\n"
    told: dict[str, Any] = {"t": event.t}
    if event.sources is not None:
        told["sources"] = [_told(source) for source in event.sources]
    return msgspec.json.encode({"judged": told}) + b"\n"


def _told(value: Any) -> dict[str, Any]:  # noqa: ANN401 - any dataclass
    """The fields that say something, in their order."""
    told: dict[str, Any] = {}
    for f in dataclasses.fields(value):
        content = getattr(value, f.name)
        default = f.default_factory() if callable(f.default_factory) else f.default
        if content != default:
            told[f.name] = sorted(content) if isinstance(content, frozenset) else content
    return told


def without_secrets(plan: Plan) -> Plan:
    """The plan with addresses that name a server, and no more: a query may hold a key."""
    return dataclasses.replace(
        plan,
        deployments=tuple(
            dataclasses.replace(d, engines=tuple(dataclasses.replace(e, url=bare_url(e.url)) for e in d.engines))
            for d in plan.deployments
        ),
    )


def bare_url(url: str) -> str:
    """Scheme, host, port and path of an address; empty when it has no such parts."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return ""
    if not parts.scheme or not parts.hostname:
        return ""
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return f"{parts.scheme}://{host}{'' if port is None else f':{port}'}{parts.path}"


@dataclass(frozen=True, slots=True)
class _Range:
    low: float
    high: float


_PLAN_RANGES = {
    "window": _Range(1.0, 3600.0),
    "grace": _Range(0.0, 86_400.0),
    "sample_interval": _Range(0.05, 300.0),
    "activity_interval": _Range(0.05, 300.0),
    "condition_interval": _Range(0.05, 300.0),
    "engine_interval": _Range(0.05, 300.0),
}


def bad_plan(plan: Plan) -> str:
    """What is wrong with a plan that has the right fields; empty when nothing is."""
    for name, allowed in _PLAN_RANGES.items():
        value: float = getattr(plan, name)
        if not allowed.low <= value <= allowed.high:
            return f"expected plan.{name} from {allowed.low:g} to {allowed.high:g} s, found {value:g}"
    deployments = [d.name for d in plan.deployments]
    engines = [e.name for d in plan.deployments for e in d.engines]
    for what, names in (("deployments", deployments), ("engines", engines)):
        if len(set(names)) < len(names):
            return f"expected {what} with different names, found one name twice"
    return ""


def bad_event(event: Event) -> str:
    """What is wrong with an event that has the right fields; empty when nothing is."""
    if isinstance(event, Plan) and (problem := bad_plan(event)):
        return problem
    t = getattr(event, "t", 0.0)
    if not 0.0 <= t <= MAX_SECONDS:
        return f"expected t from 0 to {MAX_SECONDS:g} s, found {t:g}"
    for number in _numbers(event):
        if not (math.isfinite(number) and abs(number) <= MAX_NUMBER):
            return f"expected numbers up to {MAX_NUMBER:g}, found {number:g}"
    return ""


def _numbers(value: object) -> list[float]:
    if isinstance(value, (int, float)):
        return [value]
    if isinstance(value, (tuple, list)):
        return [n for item in value for n in _numbers(item)]
    if isinstance(value, dict):
        return _numbers(list(value.values()))
    if dataclasses.is_dataclass(value):
        return [n for f in dataclasses.fields(value) for n in _numbers(getattr(value, f.name))]
    return []
