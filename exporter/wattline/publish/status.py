"""The snapshot as JSON, for the page and for anybody's script: ``GET /api/v1/status``.

What was not obtained is left out: no field is ever 0, NaN or an older value in place of a reading. Units are base
units, and stand in the names. The structures below are the documentation: the schema is made from them.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, Protocol

import msgspec
from msgspec import Meta, Struct

from wattline import __version__
from wattline.analysis.causes import Cause
from wattline.analysis.snapshot import State
from wattline.publish.history import finite
from wattline.publish.words import ENGINE_DOWN, GPU_LOST, cause_runbook, sentence, summary

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from wattline.analysis.snapshot import DeploymentView, EngineView, GpuView, Snapshot, SourceView
    from wattline.publish.history import History

LONGEST_TEXT = 500
"""Characters of one text: an engine may call its model anything."""


def says(text: str) -> Meta:
    """What a field means, for the schema."""
    return Meta(description=text)


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


class Suspicion(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Why power may be low, and what speaks for it."""

    cause: Cause
    title: Annotated[str, says("The cause as people read it.")]
    evidence: Annotated[str, says("What speaks for it, with numbers.")]
    runbook: Annotated[str | None, says("The runbook, at /runbooks/NAME; left out when there is nothing to do.")] = None


class Point(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One deployment at one moment of the last 15 minutes."""

    seconds_ago: Annotated[float, says("Before the latest verdict, on the clock of the readings.")]
    state: State
    tdp_fraction: Annotated[float | None, says("Power as a share of the limits.")] = None
    tokens_per_second: Annotated[float | None, says("Generated tokens per second.")] = None


class Deployment(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One deployment: the verdict and what it stands on. Means are over the window of the verdict."""

    name: str
    state: State
    title: Annotated[str, says("The state as people read it.")]
    summary: Annotated[str, says("What is held and what the GPUs draw, in one sentence.")]
    reason: Annotated[str, says("Why it is in this state, with numbers.")]
    seconds_in_state: Annotated[float, says("On the clock of the readings, which may run faster in a demo.")]
    runbook: Annotated[str | None, says("The runbook, at /runbooks/NAME; left out when there is nothing to do.")] = None
    suspicions: Annotated[tuple[Suspicion, ...], says("Suspected causes, the most telling first.")]
    unseen: Annotated[tuple[str, ...], says("What could not be looked at for a cause, and why.")]
    gpus: Annotated[tuple[str, ...], says("UUIDs of its GPUs on this host.")]
    unresolved_gpus: Annotated[tuple[str, ...], says("Configured GPUs that are not visible.")]
    engines: Annotated[tuple[str, ...], says("Names of its engines.")]
    tdp_fraction: Annotated[float | None, says("Power of its GPUs as a share of their limits, never clamped.")] = None
    active_power_fraction: Annotated[
        float | None, says("Share of the power between idle floors and limits that is drawn.")
    ] = None
    power_watts: Annotated[float | None, says("Sum over its GPUs.")] = None
    power_limit_watts: Annotated[float | None, says("Sum of its GPUs' limits.")] = None
    work_requests: Annotated[float | None, says("Requests held now, by the best signal.")] = None
    tokens_per_second: Annotated[dict[str, float], says("By kind: prompt, generation.")]
    tokens_per_watt: Annotated[
        dict[str, float],
        says("Tokens per second per watt, that is tokens per joule. By kind: generation, total."),
    ]
    joules_per_token: Annotated[dict[str, float], says("By kind: generation, total.")]
    state_seconds: Annotated[dict[State, float], says("Time spent in each state since the exporter started.")]
    state_energy_joules: Annotated[dict[State, float], says("Energy spent in each state since the exporter started.")]
    history: Annotated[tuple[Point, ...], says("The last 15 minutes, oldest first.")]


class IdleFloor(Struct, frozen=True, kw_only=True):
    """What a GPU draws with the model loaded and no work."""

    watts: float
    source: Annotated[str, says("learned, configured or assumed.")]


class Gpu(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One GPU. A GPU that does not answer has its identity only."""

    index: Annotated[int, says("NVML's index; may change over a reboot.")]
    uuid: str
    name: str
    pci_bus_id: str
    architecture: str
    driver: str
    deployment: Annotated[str, says("Empty when it serves none.")]
    up: Annotated[bool, says("Whether it answers.")]
    power_watts: Annotated[float | None, says("Now, by the driver's own average.")] = None
    power_mean_watts: Annotated[float | None, says("Over the window of the verdict.")] = None
    limit_watts: Annotated[float | None, says("What the board may draw now: the denominator of the fractions.")] = None
    limit_default_watts: Annotated[float | None, says("As the board was made.")] = None
    idle_floor: IdleFloor | None = None
    tdp_fraction: Annotated[float | None, says("Mean power as a share of the limit, never clamped.")] = None
    active_power_fraction: Annotated[float | None, says("Share of the power between idle floor and limit.")] = None
    energy_source: Annotated[str, says("counter, integrated or none.")]
    utilization_ratio: Annotated[float | None, says("Share of time in which some kernel was resident.")] = None
    utilization_stuck: Annotated[
        bool | None, says("Utilisation shows 100 % although power is idle and no process holds the GPU.")
    ] = None
    sm_active_ratio: Annotated[float | None, says("Share of SM cycles with work (Hopper and newer).")] = None
    tensor_active_ratio: Annotated[float | None, says("Share of cycles with tensor work.")] = None
    dram_active_ratio: Annotated[float | None, says("Share of the DRAM bandwidth in use.")] = None
    pcie_transmit_bytes_per_second: Annotated[float | None, says("From the GPU to the host.")] = None
    pcie_receive_bytes_per_second: Annotated[float | None, says("From the host to the GPU.")] = None
    pcie_link_bytes_per_second: Annotated[float | None, says("What the current link could carry one way.")] = None
    pcie_link_generation: int | None = None
    pcie_link_generation_max: int | None = None
    pcie_link_width: int | None = None
    pcie_link_width_max: int | None = None
    event_reasons: Annotated[
        tuple[str, ...] | None, says("What holds the clocks back now; left out when the driver does not tell.")
    ] = None
    temperature_celsius: float | None = None
    memory_used_bytes: float | None = None
    memory_total_bytes: float | None = None
    xid_errors: Annotated[int | None, says("Since the exporter listens.")] = None


class Engine(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One inference server. When it is not up only its identity and counters are there."""

    name: str
    deployment: str
    up: Annotated[bool, says("Whether its last scrape gave usable metrics.")]
    error: Annotated[str | None, says("Why not.")] = None
    kind: Annotated[str | None, says("sglang, vllm, ...")] = None
    model: str | None = None
    version: str | None = None
    running_requests: Annotated[float | None, says("Run now.")] = None
    queued_requests: Annotated[float | None, says("Wait now.")] = None
    work_requests: Annotated[float | None, says("Requests it holds now, by the best signal.")] = None
    kv_cache_usage_ratio: Annotated[float | None, says("Share of the KV cache in use.")] = None
    scheduler_idle_ratio: Annotated[float | None, says("By the engine's own account, over the window.")] = None
    prompt_tokens_total: Annotated[float | None, says("Across restarts of the engine.")] = None
    generation_tokens_total: Annotated[float | None, says("Across restarts of the engine.")] = None


class Source(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One thing that the exporter reads, and how well that goes."""

    name: Annotated[str, says("nvml (or simulated), a GPU's UUID, or engine:NAME.")]
    up: bool
    age_seconds: Annotated[float | None, says("Of the last successful reading.")] = None
    detail: Annotated[str | None, says("Why it is not up.")] = None
    errors: Annotated[dict[str, int], says("Calls that gave nothing, by kind.")]
    rejected: Annotated[dict[str, int], says("Readings that the hardware cannot have meant, by name.")]


class Status(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Everything that Wattline knows and believes now. What was not obtained is left out."""

    version: Annotated[str, says("Of Wattline.")]
    time: Annotated[datetime, Meta(tz=True), says("When this was answered, by the exporter's wall clock.")]
    ready: Annotated[bool, says("As /-/ready: some GPU can be read.")]
    why_not_ready: Annotated[str | None, says("As /-/ready answers it.")] = None
    judged_seconds_ago: Annotated[
        float | None, says("How old the latest verdict is, in real seconds; left out before the first one.")
    ] = None
    phase: Annotated[Phase | None, says("Only in a demo.")] = None
    deployments: Annotated[tuple[Deployment, ...], says("In the order of the configuration.")]
    gpus: Annotated[tuple[Gpu, ...], says("All of this host, by index.")]
    engines: Annotated[tuple[Engine, ...], says("All that are configured.")]
    sources: Annotated[tuple[Source, ...], says("How well reading goes.")]
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
        why_not_ready=None if why_not_ready is None else _clean(why_not_ready),
        judged_seconds_ago=judged_seconds_ago,
        phase=None if phase is None else Phase(name=phase.name, title=phase.title, seconds_left=phase.seconds_left),
        deployments=tuple(_deployment(d, snapshot, history) for d in snapshot.deployments),
        gpus=tuple(_gpu(g) for g in snapshot.gpus),
        engines=tuple(_engine(e) for e in snapshot.engines),
        sources=tuple(_source(s) for s in snapshot.sources),
        configuration=dict(configuration or {}),
    )


def encode(status: Status) -> bytes:
    """The JSON text."""
    return msgspec.json.encode(status)


def schema() -> dict[str, Any]:
    """JSON Schema (2020-12) of what :func:`encode` gives."""
    described = _without_null(msgspec.json.schema(Status))
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "Wattline's status", **described}


def _without_null(node: Any) -> Any:  # noqa: ANN401 - any part of a schema
    """The same schema, in which nothing is ever null: what is not there is left out."""
    if isinstance(node, list):
        return [_without_null(item) for item in node]
    if not isinstance(node, dict):
        return node
    kept = {key: _without_null(value) for key, value in node.items() if (key, value) != ("default", None)}
    kinds = [kind for kind in kept.get("anyOf", []) if kind != {"type": "null"}]
    if len(kinds) == 1:
        del kept["anyOf"]
        kept.update(kinds[0])
    return kept


UNPRINTABLE = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u2028\u2029\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)
"""Control characters, those that turn the direction of a whole line, and halves of characters."""


def _clean(text: str) -> str:
    """The text, printable and of bounded length."""
    printable = UNPRINTABLE.sub("\ufffd", text[: LONGEST_TEXT + 1])
    return printable if len(printable) <= LONGEST_TEXT else printable[: LONGEST_TEXT - 1] + "…"


def _all_clean(texts: Iterable[str]) -> tuple[str, ...]:
    return tuple(_clean(t) for t in texts)


def _told(text: str | None) -> str | None:
    return _clean(text) if text else None


def _known(values: Mapping[str, float]) -> dict[str, float]:
    return {key: value for key, value in values.items() if finite(value) is not None}


def _deployment(view: DeploymentView, snapshot: Snapshot, history: History) -> Deployment:
    return Deployment(
        name=_clean(view.name),
        state=view.state,
        title=view.state.record.title,
        summary=_clean(summary(view)),
        reason=_clean(sentence(view.reason)),
        seconds_in_state=max(0.0, snapshot.t - view.since),
        runbook=_state_runbook(view, snapshot),
        suspicions=tuple(
            Suspicion(
                cause=s.cause,
                title=s.cause.record.title,
                evidence=_clean(s.evidence),
                runbook=cause_runbook(s.cause, view.state),
            )
            for s in view.suspicions
        ),
        unseen=_all_clean(view.unseen),
        gpus=_all_clean(view.gpus),
        unresolved_gpus=_all_clean(view.unresolved_gpus),
        engines=_all_clean(view.engines),
        tdp_fraction=finite(view.tdp_fraction),
        active_power_fraction=finite(view.active_power_fraction),
        power_watts=finite(view.power_watts),
        power_limit_watts=finite(view.power_limit_watts),
        work_requests=finite(view.work),
        tokens_per_second=_known(view.tokens_per_second),
        tokens_per_watt=_known(view.tokens_per_watt),
        joules_per_token=_known(view.joules_per_token),
        state_seconds={s: view.state_seconds.get(s, 0.0) for s in State},
        state_energy_joules={s: view.state_energy_joules.get(s, 0.0) for s in State},
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


def _state_runbook(view: DeploymentView, snapshot: Snapshot) -> str | None:
    if view.state.record.runbook:
        return view.state.record.runbook
    if view.state is not State.UNKNOWN:
        return None
    if view.unresolved_gpus or _any_down(snapshot.gpus, view):
        return GPU_LOST
    read = [e.reading for e in snapshot.engines if e.name in view.engines and e.reading is not None]
    return ENGINE_DOWN if any(not r.up for r in read) else None


def _any_down(gpus: Sequence[GpuView], view: DeploymentView) -> bool:
    return any(not g.up for g in gpus if g.identity.uuid in view.gpus)


def _gpu(view: GpuView) -> Gpu:
    sample, activity, condition, floor = view.sample, view.activity, view.condition, view.idle_floor
    identity = view.identity
    # A reading's fields are asked for by name, so that a reading that is not there leaves all of them out.
    return Gpu(
        index=identity.index,
        uuid=_clean(identity.uuid),
        name=_clean(identity.name),
        pci_bus_id=_clean(identity.pci_bus_id),
        architecture=_clean(identity.architecture),
        driver=_clean(identity.driver),
        deployment=_clean(view.deployment),
        up=view.up,
        power_mean_watts=finite(view.power_watts_mean),
        limit_watts=finite(view.limit_watts),
        idle_floor=IdleFloor(watts=floor.watts, source=floor.source) if floor else None,
        tdp_fraction=finite(view.tdp_fraction),
        active_power_fraction=finite(view.active_power_fraction),
        energy_source=view.energy_source,
        utilization_stuck=view.utilization_stuck,
        pcie_link_bytes_per_second=finite(view.pcie_link_bytes_per_second),
        event_reasons=_all_clean(sorted(sample.event_reasons)) if sample and sample.event_reasons is not None else None,
        xid_errors=condition.xid_errors if condition else None,
        **_fields(sample, "power_watts", "utilization_ratio"),
        **_fields(
            activity,
            "sm_active_ratio",
            "tensor_active_ratio",
            "dram_active_ratio",
            "pcie_transmit_bytes_per_second",
            "pcie_receive_bytes_per_second",
            "pcie_link_generation",
            "pcie_link_generation_max",
            "pcie_link_width",
            "pcie_link_width_max",
        ),
        **_fields(
            condition,
            "limit_default_watts",
            "temperature_celsius",
            "memory_used_bytes",
            "memory_total_bytes",
        ),
    )


def _fields(reading: object | None, *names: str) -> dict[str, Any]:
    return {name: finite(getattr(reading, name)) for name in names} if reading is not None else {}


def _engine(view: EngineView) -> Engine:
    reading = view.reading
    up = reading is not None and reading.up
    return Engine(
        name=_clean(view.name),
        deployment=_clean(view.deployment),
        up=up,
        error=None if up else _told(reading.error if reading else "no recent reading"),
        work_requests=finite(view.work),
        scheduler_idle_ratio=finite(view.scheduler_idle_ratio),
        prompt_tokens_total=finite(view.prompt_tokens_total),
        generation_tokens_total=finite(view.generation_tokens_total),
        kind=_told(reading.kind) if reading else None,
        model=_told(reading.model) if reading else None,
        version=_told(reading.version) if reading else None,
        running_requests=finite(reading.running) if reading and up else None,
        queued_requests=finite(reading.queued) if reading and up else None,
        kv_cache_usage_ratio=finite(reading.kv_cache_usage_ratio) if reading and up else None,
    )


def _source(view: SourceView) -> Source:
    return Source(
        name=_clean(view.name),
        up=view.up,
        age_seconds=finite(view.age_seconds),
        detail=_told(view.detail),
        errors={_clean(kind): count for kind, count in view.errors.items()},
        rejected={_clean(reading): count for reading, count in view.rejected.items()},
    )
