"""The snapshot as JSON, for the page and for anybody's script: ``GET /api/v1/status``.

What was not obtained is left out: no field is ever 0, NaN or an older value in place of a reading. Units are base
units, and stand in the names. The structures below are the documentation: the schema is made from them.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, Protocol

import msgspec
from msgspec import Meta, Struct

from wattline import __version__
from wattline.analysis.snapshot import State
from wattline.publish import shape
from wattline.publish.shape import clean, says

if TYPE_CHECKING:
    from collections.abc import Mapping

    from wattline.analysis.snapshot import DeploymentView, Snapshot
    from wattline.publish.history import History


class PhaseNow(Protocol):
    """What a demo goes through now."""

    @property
    def name(self) -> str:
        """A short name."""

    @property
    def title(self) -> str:
        """What goes on, in words."""

    @property
    def seconds_left(self) -> float | None:
        """Real seconds until the next phase; ``None`` when this one is held."""


class Phase(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the simulated rig of a demo goes through now."""

    name: Annotated[str, says("As --scenario takes it.")]
    title: Annotated[str, says("What goes on, in words.")]
    seconds_left: Annotated[float | None, says("Until the next phase; left out when this one is held.")] = None


class Point(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One deployment at one moment of the last 15 minutes."""

    seconds_ago: Annotated[float, says("Before the latest verdict, on the clock of the readings.")]
    state: State
    tdp_fraction: Annotated[float | None, says("Power as a share of the limits.")] = None
    tokens_per_second: Annotated[float | None, says("Generated tokens per second.")] = None


class Deployment(shape.Deployment, frozen=True, kw_only=True, omit_defaults=True):
    """One deployment: the verdict and what it stands on. Means are over the window of the verdict."""

    history: Annotated[tuple[Point, ...], says("The last 15 minutes, oldest first.")]


class Status(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Everything that Wattline knows and believes now. What was not obtained is left out."""

    version: Annotated[str, says("Of Wattline.")]
    time: Annotated[datetime, Meta(tz=True), says("When this was answered, by the exporter's wall clock.")]
    ready: Annotated[bool, says("As /-/ready: some GPU can be read.")]
    why_not_ready: Annotated[str | None, says("As /-/ready answers it.")] = None
    judged_seconds_ago: Annotated[
        float | None, says("How old the latest verdict is, in real seconds; left out before the first one.")
    ] = None
    window_seconds: Annotated[
        float | None, says("What a verdict looks at, and what means are over; left out before the first one.")
    ] = None
    phase: Annotated[Phase | None, says("Only in a demo.")] = None
    deployments: Annotated[tuple[Deployment, ...], says("In the order of the configuration.")]
    gpus: Annotated[tuple[shape.Gpu, ...], says("All of this host, by index.")]
    engines: Annotated[tuple[shape.Engine, ...], says("All that are configured.")]
    sources: Annotated[tuple[shape.Source, ...], says("How well reading goes.")]
    configuration: Annotated[dict[str, Any], says("What is in force, without secrets.")]


def build(
    snapshot: Snapshot,
    history: History,
    *,
    why_not_ready: str | None = None,
    judged_seconds_ago: float | None = None,
    phase: PhaseNow | None = None,
    configuration: Mapping[str, Any] | None = None,
    now: datetime | None = None,
) -> Status:
    """The status of a snapshot. ``now`` is the wall clock, asked when it is not given."""
    return Status(
        version=__version__,
        time=now or datetime.now(UTC),
        ready=why_not_ready is None,
        why_not_ready=None if why_not_ready is None else clean(why_not_ready),
        judged_seconds_ago=judged_seconds_ago,
        window_seconds=snapshot.window or None,
        phase=None if phase is None else Phase(name=phase.name, title=phase.title, seconds_left=phase.seconds_left),
        deployments=tuple(_deployment(d, snapshot, history) for d in snapshot.deployments),
        gpus=tuple(shape.gpu(g) for g in snapshot.gpus),
        engines=tuple(shape.engine(e) for e in snapshot.engines),
        sources=tuple(shape.source(s) for s in snapshot.sources),
        configuration=dict(configuration or {}),
    )


def encode(status: Status) -> bytes:
    """The JSON text."""
    return msgspec.json.encode(status)


def schema() -> dict[str, Any]:
    """JSON Schema (2020-12) of what :func:`encode` gives."""
    return shape.schema(Status, "Wattline's status")


def _deployment(view: DeploymentView, snapshot: Snapshot, history: History) -> Deployment:
    return Deployment(
        **shape.deployment(view, snapshot),
        history=tuple(
            Point(
                seconds_ago=round(snapshot.t - p.t, 3),
                state=p.state,
                tdp_fraction=p.tdp_fraction,
                tokens_per_second=p.tokens_per_second,
            )
            for p in history.of(view.name)
        ),
    )
