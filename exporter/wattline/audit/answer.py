"""The answer of an audit: hours, energy and money by deployment, and what could not be told. Pure."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
from msgspec import Struct

from wattline import __version__
from wattline.analysis.snapshot import State
from wattline.audit.past import DAY, HELD_FOR_NOTHING
from wattline.publish.shape import says

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from wattline.audit.find import FoundEngine, FoundGpu
    from wattline.audit.past import Incident, Past
    from wattline.config import Price

JOULES_PER_KWH = 3.6e6
WORST = 10
COARSE = 30.0
"""Seconds between samples from which short trouble is not seen."""


class Money(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What energy costs, the site's overhead included."""

    amount: float
    currency: str
    co2_kilograms: float | None = None


class BadTime(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A stretch in which requests were held for nothing."""

    deployment: str
    state: State
    start: str
    seconds: float
    kwh: float
    reason: str
    query: Annotated[str, says("Shows its power in Grafana or Prometheus.")]


class Day(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One day (UTC)."""

    date: str
    kwh: float
    generated_tokens: float
    tokens_per_joule: float | None = None


class AuditedDeployment(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One deployment over the whole time."""

    name: str
    joined_by: Annotated[str, says("What put engines and GPUs together: pod, host or --join.")]
    engines: tuple[str, ...]
    gpus: int
    gpu_source: str
    sample_seconds: Annotated[float, says("Between two samples.")]
    window_seconds: Annotated[float, says("What a verdict looks at.")]
    hours: dict[State, float]
    kwh: dict[State, float]
    idle_gpu_hours: Annotated[float, says("GPU hours without a request while an engine was loaded.")]
    wasted_kwh: Annotated[float, says("Burnt while requests were held for nothing.")]
    wasted: Money | None = None
    most_of_limit: Annotated[float | None, says("The greatest share of the limit over a window.")] = None
    days: tuple[Day, ...]
    sure: Annotated[str, says("How sure its verdicts can be, and why.")]
    missing: Annotated[tuple[str, ...], says("What no series tells, and what cannot be claimed for it.")]


class Audit(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What an audit found. What is not known is left out."""

    format: Literal["wattline-audit"] = "wattline-audit"
    version: Annotated[str, says("Of Wattline.")]
    exit_code: Annotated[int, says("0 nothing found, 1 finding, 2 could not tell.")]
    start: str
    end: str
    deployments: tuple[AuditedDeployment, ...]
    worst: Annotated[tuple[BadTime, ...], says("The ten that burnt most.")]
    without_gpus: Annotated[tuple[str, ...], says("Engines that no label joins with a GPU.")]
    without_engine: Annotated[tuple[str, ...], says("GPUs that no label joins with an engine.")]
    power_limits: Annotated[dict[str, float], says("Limits that were given, in watts by model; none is assumed.")]


def encode(audit: Audit) -> bytes:
    """The audit as JSON."""
    return msgspec.json.encode({"format": audit.format, **msgspec.to_builtins(audit)})


def schema() -> dict[str, Any]:
    """JSON Schema (2020-12) of what :func:`encode` gives."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "The answer of wattline audit",
        **msgspec.json.schema(Audit),
    }


def answer(
    pasts: Sequence[Past],
    lonely: Sequence[FoundEngine],
    unserved: Sequence[FoundGpu],
    *,
    span: tuple[float, float],
    limits: Mapping[str, float],
    price: Price | None = None,
) -> Audit:
    """Add everything up."""
    deployments = tuple(_deployment(past, limits, price) for past in pasts)
    worst = sorted(((i, p) for p in pasts for i in p.incidents), key=lambda x: -x[0].joules)[:WORST]
    known = sum(h for d in deployments for state, h in d.hours.items() if state is not State.UNKNOWN)
    code = 1 if worst else 0 if known else 2
    return Audit(
        version=__version__,
        exit_code=code,
        start=_time(span[0]),
        end=_time(span[1]),
        deployments=deployments,
        worst=tuple(_bad(incident, past) for incident, past in worst),
        without_gpus=tuple(e.name for e in lonely),
        without_engine=tuple(g.uuid for g in unserved),
        power_limits=dict(limits),
    )


def _time(t: float) -> str:
    return datetime.fromtimestamp(t, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _money(kwh: float, price: Price | None) -> Money | None:
    if price is None:
        return None
    metered = kwh * price.pue
    co2 = None if price.co2_per_kwh is None else metered * price.co2_per_kwh
    return Money(amount=metered * price.per_kwh, currency=price.currency, co2_kilograms=co2)


def _deployment(past: Past, limits: Mapping[str, float], price: Price | None) -> AuditedDeployment:
    gpus = past.joined.gpus
    wasted = sum(past.joules[state] for state in HELD_FOR_NOTHING) / JOULES_PER_KWH
    return AuditedDeployment(
        name=past.joined.name,
        joined_by=past.joined.by,
        engines=tuple(e.name for e in past.joined.engines),
        gpus=len(gpus),
        gpu_source=", ".join(sorted({g.source.name for g in gpus})),
        sample_seconds=past.interval,
        window_seconds=past.window,
        hours={s: seconds / 3600 for s, seconds in past.seconds.items() if seconds > 0},
        kwh={s: joules / JOULES_PER_KWH for s, joules in past.joules.items() if joules > 0},
        idle_gpu_hours=past.seconds[State.IDLE] / 3600 * len(gpus),
        wasted_kwh=wasted,
        wasted=_money(wasted, price),
        most_of_limit=past.most_fraction,
        days=tuple(
            Day(
                date=_time(day * DAY)[:10],
                kwh=joules / JOULES_PER_KWH,
                generated_tokens=tokens,
                tokens_per_joule=tokens / joules if joules > 0 else None,
            )
            for day, (tokens, joules) in sorted(past.days.items())
        ),
        sure=_sure(past),
        missing=tuple(_missing(gpus, limits)),
    )


def _sure(past: Past) -> str:
    if past.interval > COARSE:
        return (
            f"fair: one sample in {past.interval:.0f} s; trouble shorter than {past.window:.0f} s is not seen, and "
            f"starts and ends are right to {past.window:.0f} s"
        )
    return f"good: one sample in {past.interval:.0f} s; live it is one a second"


def _missing(gpus: Sequence[FoundGpu], limits: Mapping[str, float]) -> list[str]:
    told = {f for g in gpus for f in g.fields}
    missing = []
    if not any(f.startswith("limit_") for f in told):
        given = [m for m in limits if any(m.lower() in g.model.lower() for g in gpus)]
        missing.append(
            f"no series tells a power limit; {', '.join(f'{limits[m]:g} W was given for {m}' for m in given)}"
            if given
            else "no series tells a power limit: without --power-limit only stalls are claimed"
        )
    if "utilization_ratio" not in told:
        missing.append("no series tells utilisation: idle floors are assumed, not learned")
    if "energy_joules" not in told:
        missing.append("no energy counter: energy is integrated from samples of power")
    return missing


def _bad(incident: Incident, past: Past) -> BadTime:
    source = past.joined.gpus[0].source
    uuids = "|".join(sorted(s[source.uuid] for g in past.joined.gpus for s in g.labels[:1]))
    return BadTime(
        deployment=incident.deployment,
        state=incident.state,
        start=_time(incident.start),
        seconds=incident.end - incident.start,
        kwh=incident.joules / JOULES_PER_KWH,
        reason=incident.reason,
        query=f'sum({source.power}{{{source.uuid}=~"{uuids}"}})',
    )
