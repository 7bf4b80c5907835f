"""The answer of a check, made of the verdicts of the time that was watched. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
from msgspec import Struct

from wattline import __version__
from wattline.analysis.snapshot import State
from wattline.analysis.steps import Step  # noqa: TC001 - the schema is made from the fields
from wattline.check.advice import next_steps
from wattline.check.headroom import Headroom, headroom
from wattline.publish import shape
from wattline.publish.shape import says

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from wattline.analysis.plan import Plan
    from wattline.analysis.snapshot import DeploymentView, Snapshot

Verdict = Literal["nothing_found", "finding", "could_not_tell"]
EXIT_CODES: dict[Verdict, int] = {"nothing_found": 0, "finding": 1, "could_not_tell": 2}


class Deployment(shape.Deployment, frozen=True, kw_only=True, omit_defaults=True):
    """One deployment: the verdict at the end, and what it stands on. Means are over the window."""

    finding: Annotated[bool, says("Whether somebody should act.")]
    headroom: Headroom | None = None
    next_steps: tuple[Step, ...]
    runbooks: tuple[str, ...]


class Report(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a check found. What was not obtained is left out: no field is ever 0 in place of a reading."""

    format: Literal["wattline-check"]
    version: Annotated[str, says("Of Wattline.")]
    verdict: Verdict
    exit_code: Annotated[int, says("0 nothing found, 1 finding, 2 could not tell.")]
    watched_seconds: float
    window_seconds: Annotated[float, says("What the verdict looks at: the end of what was watched.")]
    deployments: tuple[Deployment, ...]
    gpus: tuple[shape.Gpu, ...]
    engines: tuple[shape.Engine, ...]
    not_read: Annotated[tuple[shape.Source, ...], says("Sources that could not be read at the end.")]
    note: Annotated[str | None, says("About what was watched, for instance a recording that was cut short.")] = None


def encode(report: Report) -> bytes:
    """The report as JSON."""
    return msgspec.json.encode(report)


def schema() -> dict[str, Any]:
    """JSON Schema (2020-12) of what :func:`encode` gives."""
    return shape.schema(Report, "The answer of wattline check")


class Watched:
    """What was judged while watching: the last verdict, and for how long.

    Args:
        plan: what is judged and how.
    """

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.seconds = 0.0
        self.last: Snapshot | None = None
        self._first: float | None = None

    def add(self, snapshot: Snapshot) -> None:
        """Take the next verdict."""
        self._first = snapshot.t if self._first is None else self._first
        self.seconds = snapshot.t - self._first
        self.last = snapshot

    def report(self, note: str = "") -> Report:
        """The answer as of now.

        Raises:
            ValueError: nothing was watched.
        """
        last = self.last
        if last is None:
            raise ValueError("nothing was watched")
        deployments = tuple(self._deployment(d, last) for d in last.deployments)
        verdict = _verdict(deployments, last)
        return Report(
            format="wattline-check",
            version=__version__,
            verdict=verdict,
            exit_code=EXIT_CODES[verdict],
            watched_seconds=self.seconds,
            window_seconds=min(self.plan.window, self.seconds),
            deployments=deployments,
            gpus=tuple(shape.gpu(g) for g in last.gpus),
            engines=tuple(shape.engine(e) for e in last.engines),
            not_read=tuple(shape.source(s) for s in last.sources if not s.up),
            note=note or None,
        )

    def _deployment(self, view: DeploymentView, last: Snapshot) -> Deployment:
        gpus = [g for g in last.gpus if g.identity.uuid in view.gpus]
        engines = [e for e in last.engines if e.name in view.engines]
        steps, runbooks = next_steps(view, gpus, engines, some_gpu=bool(last.gpus))
        return Deployment(
            **shape.deployment(view, last),
            finding=view.state.bad or any(s.cause.record.weight == "finding" for s in view.suspicions),
            headroom=headroom(view, self.plan.thresholds),
            next_steps=steps,
            runbooks=runbooks,
        )


def report(snapshots: Iterable[Snapshot], plan: Plan, note: str = "") -> Report:
    """The answer of a whole series of verdicts. Raises as :meth:`Watched.report`."""
    watched = Watched(plan)
    for snapshot in snapshots:
        watched.add(snapshot)
    return watched.report(note)


def _verdict(deployments: Sequence[Deployment], last: Snapshot) -> Verdict:
    if any(d.finding for d in deployments):
        return "finding"
    if not deployments or not last.gpus or any(d.state is State.UNKNOWN for d in deployments):
        return "could_not_tell"
    return "nothing_found"
