"""What is known and believed at one moment: the result of judging, and all that publishing sees."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Self

from wattline.analysis.steps import PROCESSES, STACKS, Step

if TYPE_CHECKING:
    from wattline.analysis.causes import Suspicion
    from wattline.readings import EngineReading, GpuActivity, GpuCondition, GpuIdentity, GpuSample


@dataclass(frozen=True, slots=True, kw_only=True)
class StateRecord:
    """Everything that is particular to one state, but for its rule."""

    title: str
    colour: str
    """``#RRGGBB``, of the palette of Okabe and Ito ("Color Universal Design", https://jfly.uni-koeln.de/color/): its
    colours stay apart for people with any of the common colour-vision deficiencies."""
    rank: int
    """Rises with how much the state matters: the greatest of several is the one to look at."""
    runbook: str = ""
    """An alert. With one, somebody should act."""
    waste: bool = False
    """Energy spent in it bought nothing: work was held, and the GPUs did not work on it."""
    headroom: bool = False
    """Unused power may be worth tokens: there is work, and the limit is not reached."""
    steps: tuple[Step, ...] = ()
    """What to look at next where no cause says so."""


class State(StrEnum):
    """What a deployment does right now. The order of definition is the order on every picture."""

    record: StateRecord

    def __new__(cls, value: str, record: StateRecord) -> Self:
        """A string with its record."""
        state = str.__new__(cls, value)
        state._value_ = value
        state.record = record
        return state

    UNKNOWN = "unknown", StateRecord(title="Unknown", colour="#6E6E6E", rank=3)
    """Ranks above the good ones: nobody may say that all is well. What is known to be wrong matters more."""
    IDLE = "idle", StateRecord(title="Idle", colour="#56B4E9", rank=0)
    WORKING = "working", StateRecord(title="Working", colour="#009E73", rank=1, headroom=True)
    SATURATED = "saturated", StateRecord(title="Saturated", colour="#0072B2", rank=2)
    LOW_POWER = (
        "low_power",
        StateRecord(
            title="Low power",
            colour="#F0E442",
            rank=4,
            runbook="PowerFractionLow",
            headroom=True,
            steps=(Step("Whether more requests at once change anything", "wattline check --watch"),),
        ),
    )
    IDLE_WHILE_BUSY = (
        "idle_while_busy",
        StateRecord(
            title="Idle while busy",
            colour="#D55E00",
            rank=5,
            runbook="GpuIdleWhileBusy",
            waste=True,
            headroom=True,
            steps=(PROCESSES, STACKS),
        ),
    )
    STALLED = (
        "stalled",
        StateRecord(
            title="Stalled",
            colour="#CC79A7",
            rank=6,
            runbook="InferenceStalled",
            waste=True,
            headroom=True,
            steps=(STACKS, PROCESSES),
        ),
    )

    @property
    def bad(self) -> bool:
        """Whether somebody should act."""
        return bool(self.record.runbook)


@dataclass(frozen=True, slots=True)
class IdleFloor:
    """The idle power in use for one GPU. ``source`` is learned, configured or assumed."""

    watts: float
    source: str


@dataclass(frozen=True, slots=True)
class GpuMeans:
    """Means of one GPU over the window; ``None`` where nothing was obtained."""

    power_watts: float | None = None
    """By the energy counter where there is one; ``None`` when readings cover too little of the window."""
    utilization_ratio: float | None = None
    sm_active_ratio: float | None = None
    tensor_active_ratio: float | None = None
    dram_active_ratio: float | None = None
    pcie_transmit_bytes_per_second: float | None = None
    pcie_receive_bytes_per_second: float | None = None
    sm_clock_hertz: float | None = None
    event_reasons: dict[str, float] | None = None
    """Share of the readings by active clocks event reason."""


@dataclass(frozen=True, slots=True)
class GpuView:
    """One GPU now. A reading that is too old or was not obtained is ``None``, and so is what derives from it."""

    identity: GpuIdentity
    deployment: str
    up: bool
    sample: GpuSample | None = None
    activity: GpuActivity | None = None
    condition: GpuCondition | None = None
    means: GpuMeans = field(default_factory=GpuMeans)
    limit_watts: float | None = None
    """The denominator of every fraction: enforced, else requested, else default, else configured."""
    tdp_fraction: float | None = None
    active_power_fraction: float | None = None
    idle_floor: IdleFloor | None = None
    energy_joules: float | None = None
    """A counter that never goes back, whatever the driver's counter does."""
    energy_source: str = "none"
    """counter, integrated or none."""
    energy_disagreement_ratio: float | None = None
    """How far the energy counter and integrated power differ over the window, as a share of the greater."""
    utilization_stuck: bool | None = None
    """Utilisation shows 100 % although power is idle and no process holds the GPU."""
    event_seconds: dict[str, float] = field(default_factory=dict)
    """Counter of seconds held back, by reason."""
    power_fraction_buckets: tuple[int, ...] = ()
    """Cumulative counts for :data:`POWER_FRACTION_EDGES`, +Inf last; empty when there are no buffered samples."""
    power_fraction_sum: float = 0.0
    pcie_link_bytes_per_second: float | None = None
    """What the current link could carry one way."""


POWER_FRACTION_EDGES: tuple[float, ...] = tuple(round(0.05 * i, 2) for i in range(1, 23))
"""Bucket edges of the power fraction histogram: 0.05 ... 1.1 of the enforced limit."""


@dataclass(frozen=True, slots=True)
class EngineView:
    """One engine now. ``reading`` is the last attempt; counters survive restarts of the engine."""

    name: str
    url: str
    deployment: str
    reading: EngineReading | None
    prompt_tokens_total: float | None = None
    generation_tokens_total: float | None = None
    cached_prompt_tokens_total: float | None = None
    rejected: int = 0
    """Readings of the front gauge that the requests which ended have refuted."""
    scheduler_idle_ratio: float | None = None
    work: float | None = None
    """Requests it holds now by the best signal; ``None`` when that cannot be told."""
    counted_here: bool = True
    """False: it is read for its load only, and another exporter counts its requests and tokens."""
    kind: str | None = None
    """The kind that is configured, if one is."""


@dataclass(frozen=True, slots=True)
class Pending:
    """A bad state whose signs are there now, but have not been for a whole window."""

    state: State
    seconds: float
    """How long they have been there."""


@dataclass(frozen=True, slots=True)
class DeploymentView:
    """One deployment now: the verdict and what it stands on."""

    name: str
    state: State
    reason: str
    """Why this state, in one sentence with numbers."""
    since: float
    """When this state began, on the readings' clock. A blip in between does not begin it anew."""
    gpus: tuple[str, ...]
    """UUIDs of its GPUs."""
    engines: tuple[str, ...]
    state_since: float | None = None
    """The same in Unix seconds; ``None`` in a replay."""
    pending: Pending | None = None
    watched_seconds: float = 0.0
    """How long it has been watched, up to a window."""
    bandwidth_ratio: float | None = None
    """Memory traffic of its GPUs as a share of what their memory can carry: measured, or by the engines' estimate."""
    flops_ratio: float | None = None
    """Operations as a share of the dense bf16 peak of its GPUs, by the engines' estimate."""
    unresolved_gpus: tuple[str, ...] = ()
    """Configured GPUs that are not visible: nothing is derived from a partial set."""
    foreign_gpus: dict[str, str] = field(default_factory=dict)
    """Configured GPUs that another deployment has, which is named: nor from these."""
    unplaced: tuple[str, ...] = ()
    """Processes and pods of its engines whose GPUs are not known: nor then."""
    suspicions: tuple[Suspicion, ...] = ()
    unseen: tuple[str, ...] = ()
    """What could not be looked at for a cause, and why."""
    tdp_fraction: float | None = None
    active_power_fraction: float | None = None
    power_watts: float | None = None
    power_limit_watts: float | None = None
    work: float | None = None
    """Requests held now by the best signal."""
    work_counted: float | None = None
    """Those of engines that no other exporter counts: what may be added up over hosts."""
    tokens_per_second: dict[str, float] = field(default_factory=dict)
    """By kind: prompt, generation."""
    tokens_per_watt: dict[str, float] = field(default_factory=dict)
    """By kind: generation, total. Tokens per second per watt, that is tokens per joule."""
    joules_per_token: dict[str, float] = field(default_factory=dict)
    state_seconds: dict[State, float] = field(default_factory=dict)
    state_energy_joules: dict[State, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SourceView:
    """The exporter's own honesty about one thing that it reads."""

    name: str
    up: bool
    age_seconds: float | None = None
    detail: str = ""
    """Why it is not up, for people."""
    errors: dict[str, int] = field(default_factory=dict)
    """Counter of failed calls, by kind."""
    rejected: dict[str, int] = field(default_factory=dict)
    """Counter of readings that the hardware cannot have meant, by the name of the reading."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Everything at one moment."""

    t: float
    window: float = 0.0
    """Seconds that each verdict looks at; 0 before the first."""
    gpus: tuple[GpuView, ...] = ()
    engines: tuple[EngineView, ...] = ()
    deployments: tuple[DeploymentView, ...] = ()
    sources: tuple[SourceView, ...] = ()
    watches_gpus: bool = True
    """False: this host is to have none."""
