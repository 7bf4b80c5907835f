"""What is published of a GPU, an engine, a deployment and a source: one record each, for the API, the page and checks.

What was not obtained is left out: no field is ever 0, NaN or an older value in place of a reading. Units are base
units, and stand in the names. A number of now and its mean over the window are two fields.
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from msgspec import Meta, Struct

from wattline.analysis.causes import Cause
from wattline.analysis.snapshot import State
from wattline.engines.errors import hint
from wattline.publish.words import ENGINE_DOWN, GPU_LOST, cause_runbook, sentence, summary

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from wattline.analysis.snapshot import DeploymentView, EngineView, GpuView, Snapshot, SourceView

LONGEST_TEXT = 500
"""Characters of one text: an engine may call its model anything."""


def says(text: str) -> Meta:
    """What a field means, for the schema."""
    return Meta(description=text)


class IdleFloor(Struct, frozen=True, kw_only=True):
    """What a GPU draws with the model loaded and no work."""

    watts: float
    source: Annotated[str, says("learned, configured or assumed.")]


class Gpu(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One GPU: the last reading, and means over the window. A GPU that does not answer has its identity only."""

    index: Annotated[int, says("NVML's index; may change over a reboot.")]
    uuid: str
    name: str
    pci_bus_id: str
    architecture: str
    driver: str
    deployment: Annotated[str, says("Empty when it serves none.")]
    up: Annotated[bool, says("Whether it answers.")]
    power_watts: Annotated[float | None, says("Now, by the driver's own average.")] = None
    power_mean_watts: Annotated[float | None, says("Over the window, by the energy counter where there is one.")] = None
    limit_watts: Annotated[float | None, says("What the board may draw now: the denominator of the fractions.")] = None
    limit_default_watts: Annotated[float | None, says("As the board was made.")] = None
    idle_floor: IdleFloor | None = None
    tdp_fraction: Annotated[float | None, says("Mean power as a share of the limit, never clamped.")] = None
    active_power_fraction: Annotated[
        float | None, says("Share of the power between idle floor and limit that is drawn, over the window.")
    ] = None
    energy_source: Annotated[str, says("counter, integrated or none.")]
    utilization_ratio: Annotated[float | None, says("Share of time in which some kernel was resident.")] = None
    utilization_mean_ratio: float | None = None
    utilization_stuck: Annotated[
        bool | None, says("Utilisation shows 100 % although power is idle and no process holds the GPU.")
    ] = None
    sm_active_ratio: Annotated[float | None, says("Share of SM cycles with work (Hopper and newer).")] = None
    sm_active_mean_ratio: float | None = None
    tensor_active_ratio: Annotated[float | None, says("Share of cycles with tensor work.")] = None
    tensor_active_mean_ratio: float | None = None
    dram_active_ratio: Annotated[float | None, says("Share of the DRAM bandwidth in use.")] = None
    dram_active_mean_ratio: float | None = None
    pcie_transmit_bytes_per_second: Annotated[float | None, says("From the GPU to the host.")] = None
    pcie_transmit_mean_bytes_per_second: float | None = None
    pcie_receive_bytes_per_second: Annotated[float | None, says("From the host to the GPU.")] = None
    pcie_receive_mean_bytes_per_second: float | None = None
    pcie_link_bytes_per_second: Annotated[float | None, says("What the current link could carry one way.")] = None
    pcie_link_generation: int | None = None
    pcie_link_generation_max: int | None = None
    pcie_link_width: int | None = None
    pcie_link_width_max: int | None = None
    sm_clock_hertz: float | None = None
    sm_clock_mean_hertz: float | None = None
    sm_clock_max_hertz: float | None = None
    event_reasons: Annotated[
        tuple[str, ...] | None, says("What holds the clocks back now; left out when the driver does not tell.")
    ] = None
    held_back: Annotated[
        dict[str, float] | None,
        says("Share of the window's readings by what held the clocks back; left out when the driver does not tell."),
    ] = None
    temperature_celsius: float | None = None
    memory_used_bytes: float | None = None
    memory_total_bytes: float | None = None
    xid_errors: Annotated[int | None, says("Since the exporter listens.")] = None


class Engine(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One inference server, as it answered last. When it is not up only its identity and counters are there."""

    name: str
    deployment: str
    up: Annotated[bool, says("Whether its last scrape gave usable metrics.")]
    error: Annotated[str | None, says("Why not.")] = None
    hint: Annotated[str | None, says("What to do about it.")] = None
    kind: Annotated[str | None, says("sglang, vllm, ...")] = None
    model: str | None = None
    version: str | None = None
    running_requests: Annotated[float | None, says("Run now.")] = None
    queued_requests: Annotated[float | None, says("Wait now.")] = None
    waiting_for_peer_requests: Annotated[
        float | None, says("Queued requests that wait for the other role of a disaggregated deployment.")
    ] = None
    work_requests: Annotated[float | None, says("Requests it holds now, by the best signal.")] = None
    asleep: Annotated[bool | None, says("Whether it was put to sleep: it keeps requests and works on none.")] = None
    kv_cache_usage_ratio: Annotated[float | None, says("Share of the KV cache in use.")] = None
    scheduler_idle_ratio: Annotated[float | None, says("By the engine's own account, over the window.")] = None
    prompt_tokens_total: Annotated[float | None, says("Across restarts of the engine.")] = None
    cached_prompt_tokens_total: Annotated[float | None, says("Prompt tokens that its cache saved.")] = None
    generation_tokens_total: Annotated[float | None, says("Across restarts of the engine.")] = None


class Suspicion(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Why power may be low, and what speaks for it."""

    cause: Cause
    title: Annotated[str, says("The cause as people read it.")]
    evidence: Annotated[str, says("What speaks for it, with numbers.")]
    runbook: Annotated[str | None, says("The runbook, at /runbooks/NAME; left out when there is nothing to do.")] = None


class Pending(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A bad state that comes if what is so now goes on for a whole window."""

    state: State
    title: Annotated[str, says("The state as people read it.")]
    seconds: Annotated[float, says("How long its signs have been there.")]


class Deployment(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One deployment: the verdict and what it stands on. Means are over the window of the verdict."""

    name: str
    state: State
    title: Annotated[str, says("The state as people read it.")]
    summary: Annotated[str, says("What is held and what the GPUs draw, in one sentence.")]
    reason: Annotated[str, says("Why it is in this state, with numbers.")]
    seconds_in_state: Annotated[float, says("On the clock of the readings, which may run faster in a demo.")]
    state_since: Annotated[float | None, says("When this state began, in Unix seconds; absent in a replay.")] = None
    pending: Annotated[Pending | None, says("What is coming; left out when nothing is.")] = None
    watched_seconds: Annotated[float, says("How long it has been watched, up to a window.")]
    bandwidth_ratio: Annotated[float | None, says("Memory traffic over what the memory can carry.")] = None
    flops_ratio: Annotated[float | None, says("Operations over the dense bf16 peak, by the engines' estimate.")] = None
    runbook: Annotated[str | None, says("The runbook, at /runbooks/NAME; left out when there is nothing to do.")] = None
    suspicions: Annotated[tuple[Suspicion, ...], says("Suspected causes, the most telling first.")]
    unseen: Annotated[tuple[str, ...], says("What could not be looked at for a cause, and why.")]
    gpus: Annotated[tuple[str, ...], says("UUIDs of its GPUs on this host.")]
    unresolved_gpus: Annotated[tuple[str, ...], says("Configured GPUs that are not visible.")]
    foreign_gpus: Annotated[dict[str, str], says("Configured GPUs that another deployment has: its name, by UUID.")]
    unplaced: Annotated[tuple[str, ...], says("Processes and pods of its engines whose GPUs are not known.")]
    engines: Annotated[tuple[str, ...], says("Names of its engines.")]
    power_watts: Annotated[float | None, says("Now, summed over its GPUs.")] = None
    power_mean_watts: Annotated[float | None, says("Over the window, summed over its GPUs.")] = None
    power_limit_watts: Annotated[float | None, says("Sum of its GPUs' limits.")] = None
    tdp_fraction: Annotated[float | None, says("Mean power of its GPUs as a share of their limits, never clamped.")] = (
        None
    )
    active_power_fraction: Annotated[
        float | None, says("Share of the power between idle floors and limits that is drawn, over the window.")
    ] = None
    work_requests: Annotated[float | None, says("Requests held now, by the best signal.")] = None
    tokens_per_second: Annotated[dict[str, float], says("By kind: prompt, generation.")]
    tokens_per_watt: Annotated[
        dict[str, float],
        says("Tokens per second per watt, that is tokens per joule. By kind: generation, total."),
    ]
    joules_per_token: Annotated[dict[str, float], says("By kind: generation, total.")]
    state_seconds: Annotated[dict[State, float], says("Time spent in each state since watching began.")]
    state_energy_joules: Annotated[dict[State, float], says("Energy spent in each state since watching began.")]


class Source(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One thing that is read, and how well that goes."""

    name: Annotated[str, says("nvml (or simulated), a GPU's UUID, or engine:NAME.")]
    up: bool
    age_seconds: Annotated[float | None, says("Of the last successful reading.")] = None
    detail: Annotated[str | None, says("Why it is not up.")] = None
    errors: Annotated[dict[str, int], says("Calls that gave nothing, by kind.")]
    rejected: Annotated[dict[str, int], says("Readings that the hardware cannot have meant, by name.")]


def schema(struct: type[Struct], title: str) -> dict[str, Any]:
    """JSON Schema (2020-12) of a record as it is encoded: nothing is ever null, what is not there is left out."""
    described = _without_null(msgspec.json.schema(struct))
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": title, **described}


def _without_null(node: Any) -> Any:  # noqa: ANN401 - any part of a schema
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


def clean(text: str) -> str:
    """The text, printable and of bounded length."""
    printable = UNPRINTABLE.sub("\ufffd", text[: LONGEST_TEXT + 1])
    return printable if len(printable) <= LONGEST_TEXT else printable[: LONGEST_TEXT - 1] + "…"


def finite(value: float | None) -> float | None:
    """The value, or ``None`` when it is no number that can be drawn or written as JSON."""
    return value if value is not None and math.isfinite(value) else None


def _all_clean(texts: Iterable[str]) -> tuple[str, ...]:
    return tuple(clean(t) for t in texts)


def _told(text: str | None) -> str | None:
    return clean(text) if text else None


def _known(values: Mapping[str, float]) -> dict[str, float]:
    return {key: value for key, value in values.items() if finite(value) is not None}


def _fields(reading: object | None, *names: str) -> dict[str, Any]:
    """Fields of a reading by name, so that a reading that is not there leaves all of them out."""
    return {name: finite(getattr(reading, name)) for name in names} if reading is not None else {}


_UNITS = re.compile(r"_(ratio|watts|hertz|bytes_per_second)$")
_MEANS = (
    "power_watts",
    "utilization_ratio",
    "sm_active_ratio",
    "tensor_active_ratio",
    "dram_active_ratio",
    "pcie_transmit_bytes_per_second",
    "pcie_receive_bytes_per_second",
    "sm_clock_hertz",
)


def gpu(view: GpuView) -> Gpu:
    """What is published of a GPU."""
    sample, activity, condition, floor = view.sample, view.activity, view.condition, view.idle_floor
    identity, shares = view.identity, view.means.event_reasons
    return Gpu(
        index=identity.index,
        uuid=clean(identity.uuid),
        name=clean(identity.name),
        pci_bus_id=clean(identity.pci_bus_id),
        architecture=clean(identity.architecture),
        driver=clean(identity.driver),
        deployment=clean(view.deployment),
        up=view.up,
        limit_watts=finite(view.limit_watts),
        idle_floor=IdleFloor(watts=floor.watts, source=floor.source) if floor else None,
        tdp_fraction=finite(view.tdp_fraction),
        active_power_fraction=finite(view.active_power_fraction),
        energy_source=view.energy_source,
        utilization_stuck=view.utilization_stuck,
        pcie_link_bytes_per_second=finite(view.pcie_link_bytes_per_second),
        event_reasons=_all_clean(sorted(sample.event_reasons)) if sample and sample.event_reasons is not None else None,
        # Idle clocks are slow by themselves.
        held_back=None if shares is None else {r: share for r, share in sorted(shares.items()) if r != "gpu_idle"},
        xid_errors=condition.xid_errors if condition else None,
        **_fields(sample, "power_watts", "utilization_ratio", "sm_clock_hertz"),
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
            "sm_clock_max_hertz",
            "temperature_celsius",
            "memory_used_bytes",
            "memory_total_bytes",
        ),
        **{_UNITS.sub(r"_mean_\1", name): value for name, value in _fields(view.means, *_MEANS).items()},
    )


def engine(view: EngineView) -> Engine:
    """What is published of an engine."""
    reading = view.reading
    up = reading is not None and reading.up
    error = None if up else _told((reading.error if reading else "") or "no recent reading")
    return Engine(
        name=clean(view.name),
        deployment=clean(view.deployment),
        up=up,
        error=error,
        hint=hint(error or "", view.kind) or None,
        work_requests=finite(view.work),
        scheduler_idle_ratio=finite(view.scheduler_idle_ratio),
        prompt_tokens_total=finite(view.prompt_tokens_total),
        cached_prompt_tokens_total=finite(view.cached_prompt_tokens_total),
        generation_tokens_total=finite(view.generation_tokens_total),
        kind=_told(reading.kind) if reading else None,
        model=_told(reading.model) if reading else None,
        version=_told(reading.version) if reading else None,
        running_requests=finite(reading.running) if reading and up else None,
        queued_requests=finite(reading.queued) if reading and up else None,
        waiting_for_peer_requests=finite(reading.waiting_for_peer) if reading and up else None,
        asleep=reading.asleep if reading and up else None,
        kv_cache_usage_ratio=finite(reading.kv_cache_usage_ratio) if reading and up else None,
    )


def deployment(view: DeploymentView, snapshot: Snapshot) -> dict[str, Any]:
    """What is published of a deployment: the fields of :class:`Deployment`, for those who add their own."""
    gpus = [g for g in snapshot.gpus if g.identity.uuid in view.gpus]
    return {
        "name": clean(view.name),
        "state": view.state,
        "title": view.state.record.title,
        "summary": clean(summary(view)),
        "reason": clean(sentence(view.reason)),
        "seconds_in_state": max(0.0, snapshot.t - view.since),
        "state_since": finite(view.state_since),
        "pending": Pending(
            state=view.pending.state, title=view.pending.state.record.title, seconds=view.pending.seconds
        )
        if view.pending
        else None,
        "watched_seconds": view.watched_seconds,
        "bandwidth_ratio": finite(view.bandwidth_ratio),
        "flops_ratio": finite(view.flops_ratio),
        "runbook": _state_runbook(view, snapshot, gpus),
        "suspicions": tuple(
            Suspicion(
                cause=s.cause,
                title=s.cause.record.title,
                evidence=clean(s.evidence),
                runbook=cause_runbook(s.cause, view.state),
            )
            for s in view.suspicions
        ),
        "unseen": _all_clean(view.unseen),
        "gpus": _all_clean(view.gpus),
        "unresolved_gpus": _all_clean(view.unresolved_gpus),
        "foreign_gpus": {clean(uuid): clean(owner) for uuid, owner in view.foreign_gpus.items()},
        "unplaced": _all_clean(view.unplaced),
        "engines": _all_clean(view.engines),
        "power_watts": _sum(g.sample.power_watts if g.sample else None for g in gpus),
        "power_mean_watts": finite(view.power_watts),
        "power_limit_watts": finite(view.power_limit_watts),
        "tdp_fraction": finite(view.tdp_fraction),
        "active_power_fraction": finite(view.active_power_fraction),
        "work_requests": finite(view.work),
        "tokens_per_second": _known(view.tokens_per_second),
        "tokens_per_watt": _known(view.tokens_per_watt),
        "joules_per_token": _known(view.joules_per_token),
        "state_seconds": {s: view.state_seconds.get(s, 0.0) for s in State},
        "state_energy_joules": {s: view.state_energy_joules.get(s, 0.0) for s in State},
    }


def _sum(values: Iterable[float | None]) -> float | None:
    """The sum, when all are known: a partial sum would be another number."""
    known = [finite(value) for value in values]
    return None if not known or None in known else math.fsum(v for v in known if v is not None)


def _state_runbook(view: DeploymentView, snapshot: Snapshot, gpus: Sequence[GpuView]) -> str | None:
    if view.state.record.runbook:
        return view.state.record.runbook
    if view.state is not State.UNKNOWN:
        return None
    if view.unresolved_gpus or any(not g.up for g in gpus):
        return GPU_LOST
    read = [e.reading for e in snapshot.engines if e.name in view.engines and e.reading is not None]
    return ENGINE_DOWN if any(not r.up for r in read) else None


def source(view: SourceView) -> Source:
    """What is published of a source."""
    return Source(
        name=clean(view.name),
        up=view.up,
        age_seconds=finite(view.age_seconds),
        detail=_told(view.detail),
        errors={clean(kind): count for kind, count in view.errors.items()},
        rejected={clean(reading): count for reading, count in view.rejected.items()},
    )
