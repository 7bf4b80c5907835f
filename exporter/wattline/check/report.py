"""The answer of a check, made of the verdicts of the time that was watched. Pure."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
from msgspec import Struct

from wattline import __version__
from wattline.analysis.gpu import mean
from wattline.analysis.snapshot import State
from wattline.analysis.steps import Step
from wattline.check.advice import next_steps
from wattline.check.headroom import Headroom, headroom
from wattline.engines.errors import hint
from wattline.publish.status import IdleFloor, Suspicion, says
from wattline.publish.words import cause_runbook, sentence, summary

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from wattline.analysis.plan import Plan
    from wattline.analysis.snapshot import DeploymentView, EngineView, GpuView, Snapshot, SourceView
    from wattline.readings import GpuActivity, GpuSample

NOT_HELD_BACK = frozenset({"gpu_idle"})

Verdict = Literal["nothing_found", "finding", "could_not_tell"]
EXIT_CODES: dict[Verdict, int] = {"nothing_found": 0, "finding": 1, "could_not_tell": 2}


class Gpu(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One GPU. All but the limits are means over the window."""

    index: Annotated[int, says("NVML's index; may change over a reboot.")]
    uuid: str
    name: str
    deployment: Annotated[str, says("Empty when it serves none.")]
    up: Annotated[bool, says("Whether it answers.")]
    power_watts: float | None = None
    limit_watts: Annotated[float | None, says("What the board may draw now: the denominator of the fractions.")] = None
    limit_default_watts: float | None = None
    tdp_fraction: Annotated[float | None, says("Power as a share of the limit, never clamped.")] = None
    active_power_fraction: Annotated[float | None, says("Share of the power between idle floor and limit.")] = None
    idle_floor: IdleFloor | None = None
    utilization_ratio: Annotated[float | None, says("Share of time in which some kernel was resident.")] = None
    sm_active_ratio: float | None = None
    tensor_active_ratio: float | None = None
    dram_active_ratio: float | None = None
    pcie_transmit_bytes_per_second: Annotated[float | None, says("From the GPU to the host.")] = None
    pcie_receive_bytes_per_second: float | None = None
    pcie_link_bytes_per_second: Annotated[float | None, says("What the current link could carry one way.")] = None
    sm_clock_hertz: float | None = None
    sm_clock_max_hertz: float | None = None
    held_back: Annotated[
        dict[str, float] | None,
        says("Share of the readings by clocks event reason; left out when the driver does not tell."),
    ] = None
    temperature_celsius: float | None = None


class Engine(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One inference server, as it answered last."""

    name: str
    deployment: str
    up: Annotated[bool, says("Whether its last scrape gave usable metrics.")]
    error: Annotated[str | None, says("Why not.")] = None
    hint: Annotated[str | None, says("What to do about it.")] = None
    kind: Annotated[str | None, says("sglang, vllm, ...")] = None
    model: str | None = None
    version: str | None = None
    running_requests: float | None = None
    queued_requests: float | None = None
    kv_cache_usage_ratio: float | None = None
    scheduler_idle_ratio: Annotated[float | None, says("By the engine's own account, over the window.")] = None


class Deployment(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One deployment: the verdict at the end, and what it stands on. Means are over the window."""

    name: str
    state: State
    title: Annotated[str, says("The state as people read it.")]
    finding: Annotated[bool, says("Whether somebody should act.")]
    summary: Annotated[str, says("What is held and what the GPUs draw, in one sentence.")]
    reason: Annotated[str, says("Why it is in this state, with numbers.")]
    suspicions: Annotated[tuple[Suspicion, ...], says("Suspected causes, the most telling first.")]
    power_watts: float | None = None
    power_limit_watts: Annotated[float | None, says("Sum of its GPUs' limits.")] = None
    tdp_fraction: float | None = None
    active_power_fraction: float | None = None
    work_requests: Annotated[float | None, says("Requests held at the end, by the best signal.")] = None
    tokens_per_second: Annotated[dict[str, float], says("By kind: prompt, generation.")]
    tokens_per_watt: Annotated[
        dict[str, float],
        says("Tokens per second per watt, that is tokens per joule. By kind: generation, total."),
    ]
    headroom: Headroom | None = None
    next_steps: tuple[Step, ...]
    runbooks: tuple[str, ...]
    unseen: Annotated[tuple[str, ...], says("What could not be looked at, and why.")]
    state_seconds: Annotated[dict[State, float], says("Time spent in each state while watching.")]


class Source(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One thing that could not be read."""

    name: Annotated[str, says("nvml, a GPU's UUID, or engine:NAME.")]
    detail: str | None = None


class Report(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a check found. What was not obtained is left out: no field is ever 0 in place of a reading."""

    format: Literal["wattline-check"] = "wattline-check"
    version: Annotated[str, says("Of Wattline.")]
    verdict: Verdict
    exit_code: Annotated[int, says("0 nothing found, 1 finding, 2 could not tell.")]
    watched_seconds: float
    window_seconds: Annotated[float, says("What the verdict looks at: the end of what was watched.")]
    deployments: tuple[Deployment, ...]
    gpus: tuple[Gpu, ...]
    engines: tuple[Engine, ...]
    not_read: Annotated[tuple[Source, ...], says("Sources that could not be read at the end.")]
    note: Annotated[str | None, says("About what was watched, for instance a recording that was cut short.")] = None


def encode(report: Report) -> bytes:
    """The report as JSON."""
    # ``format`` has a default, and is no less a part of it.
    told = {"format": report.format, **msgspec.to_builtins(report)}
    return msgspec.json.encode(told)


def schema() -> dict[str, Any]:
    """JSON Schema (2020-12) of what :func:`encode` gives."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "The answer of wattline check",
        **msgspec.json.schema(Report),
    }


class Watched:
    """What was judged while watching, as much of it as the report needs.

    Args:
        plan: what is judged and how.
    """

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.seconds = 0.0
        self._first: float | None = None
        self._window: deque[Snapshot] = deque()

    @property
    def last(self) -> Snapshot | None:
        """The latest verdict."""
        return self._window[-1] if self._window else None

    def add(self, snapshot: Snapshot) -> None:
        """Take the next verdict."""
        self._first = snapshot.t if self._first is None else self._first
        self.seconds = snapshot.t - self._first
        self._window.append(snapshot)
        while self._window[0].t < snapshot.t - self.plan.window:
            self._window.popleft()

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
            version=__version__,
            verdict=verdict,
            exit_code=EXIT_CODES[verdict],
            watched_seconds=self.seconds,
            window_seconds=min(self.plan.window, self.seconds),
            deployments=deployments,
            gpus=tuple(self._gpu(g) for g in last.gpus),
            engines=tuple(_engine(e) for e in last.engines),
            not_read=tuple(_source(s) for s in last.sources if not s.up),
            note=note or None,
        )

    def _deployment(self, view: DeploymentView, last: Snapshot) -> Deployment:
        gpus = [g for g in last.gpus if g.identity.uuid in view.gpus]
        engines = [e for e in last.engines if e.name in view.engines]
        steps, runbooks = next_steps(view, gpus, engines, some_gpu=bool(last.gpus))
        return Deployment(
            name=view.name,
            state=view.state,
            title=view.state.record.title,
            finding=view.state.bad or any(s.cause.record.weight == "finding" for s in view.suspicions),
            summary=summary(view),
            reason=sentence(view.reason),
            suspicions=tuple(
                Suspicion(
                    cause=s.cause,
                    title=s.cause.record.title,
                    evidence=s.evidence,
                    runbook=cause_runbook(s.cause, view.state),
                )
                for s in view.suspicions
            ),
            power_watts=view.power_watts,
            power_limit_watts=view.power_limit_watts,
            tdp_fraction=view.tdp_fraction,
            active_power_fraction=view.active_power_fraction,
            work_requests=view.work,
            tokens_per_second=view.tokens_per_second,
            tokens_per_watt=view.tokens_per_watt,
            headroom=headroom(view, self.plan.thresholds),
            next_steps=steps,
            runbooks=runbooks,
            unseen=view.unseen,
            state_seconds={state: seconds for state, seconds in view.state_seconds.items() if seconds > 0},
        )

    def _gpu(self, view: GpuView) -> Gpu:
        identity = view.identity
        if not view.up:
            return Gpu(
                index=identity.index, uuid=identity.uuid, name=identity.name, deployment=view.deployment, up=False
            )
        past = [g for s in self._window for g in s.gpus if g.identity.uuid == identity.uuid and g.up]
        # One reading is shown by several snapshots: it counts once.
        samples = list({g.sample.t: g.sample for g in past if g.sample is not None}.values())
        activities = list({g.activity.t: g.activity for g in past if g.activity is not None}.values())

        def sampled(get: Callable[[GpuSample], float | None]) -> float | None:
            return mean(get(s) for s in samples)

        def active(get: Callable[[GpuActivity], float | None]) -> float | None:
            return mean(get(a) for a in activities)

        power = view.power_watts_mean if view.power_watts_mean is not None else sampled(lambda s: s.power_watts)
        return Gpu(
            index=identity.index,
            uuid=identity.uuid,
            name=identity.name,
            deployment=view.deployment,
            up=True,
            power_watts=power,
            limit_watts=view.limit_watts,
            limit_default_watts=view.condition.limit_default_watts if view.condition else None,
            tdp_fraction=view.tdp_fraction,
            active_power_fraction=view.active_power_fraction,
            idle_floor=IdleFloor(watts=view.idle_floor.watts, source=view.idle_floor.source)
            if view.idle_floor
            else None,
            utilization_ratio=sampled(lambda s: s.utilization_ratio),
            sm_active_ratio=active(lambda a: a.sm_active_ratio),
            tensor_active_ratio=active(lambda a: a.tensor_active_ratio),
            dram_active_ratio=active(lambda a: a.dram_active_ratio),
            pcie_transmit_bytes_per_second=active(lambda a: a.pcie_transmit_bytes_per_second),
            pcie_receive_bytes_per_second=active(lambda a: a.pcie_receive_bytes_per_second),
            pcie_link_bytes_per_second=view.pcie_link_bytes_per_second,
            sm_clock_hertz=sampled(lambda s: s.sm_clock_hertz),
            sm_clock_max_hertz=view.condition.sm_clock_max_hertz if view.condition else None,
            held_back=_held_back(samples),
            temperature_celsius=view.condition.temperature_celsius if view.condition else None,
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


def _held_back(samples: Sequence[GpuSample]) -> dict[str, float] | None:
    told = [s.event_reasons for s in samples if s.event_reasons is not None]
    if not told:
        return None
    reasons = sorted({r for told_now in told for r in told_now} - NOT_HELD_BACK)
    return {reason: sum(reason in told_now for told_now in told) / len(told) for reason in reasons}


def _engine(view: EngineView) -> Engine:
    reading = view.reading
    if reading is None or not reading.up:
        error = "not read yet" if reading is None else reading.error
        return Engine(name=view.name, deployment=view.deployment, up=False, error=error, hint=hint(error or "") or None)
    return Engine(
        name=view.name,
        deployment=view.deployment,
        up=True,
        kind=reading.kind,
        model=reading.model,
        version=reading.version,
        running_requests=reading.running,
        queued_requests=reading.queued,
        kv_cache_usage_ratio=reading.kv_cache_usage_ratio,
        scheduler_idle_ratio=view.scheduler_idle_ratio,
    )


def _source(view: SourceView) -> Source:
    return Source(name=view.name, detail=view.detail or None)
