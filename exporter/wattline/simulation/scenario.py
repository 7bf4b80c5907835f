"""What happens on the simulated rig, and when: tables of phases, and the clockwork that finds the phase of a moment.

Everything here is pure. A phase says what the GPUs show and what the clients ask of the server; beside it stand, for
readers and tests, the state and the causes that a right verdict names.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field, replace
from enum import Enum
from itertools import accumulate
from typing import NamedTuple

from wattline.analysis.causes import Cause
from wattline.analysis.snapshot import State

GPU_COUNT = 8
LIMIT_WATTS = 600.0
"""Power limit of the board as it boots, and the most that can be set (RTX PRO 6000 Blackwell Server Edition)."""
LIMIT_MIN_WATTS = 300.0
CLOCK_MAX_HERTZ = 2430e6
LINK_GENERATION = 5
LINK_WIDTH = 16


class Engine(Enum):
    """What the inference server is able to do."""

    SERVING = "serving"
    WEDGED = "wedged"
    """Its scheduler hangs: /metrics answers with frozen values, only the HTTP front still counts its requests."""
    DOWN = "down"
    """Nobody answers. When it comes back, its counters begin at zero."""


@dataclass(frozen=True, slots=True)
class Load:
    """What every GPU of the rig shows. Ratios run from 0 to 1."""

    power_watts: float
    """Mean over the phase and over the GPUs: single boards differ by 1.5 %."""
    swing: float = 0.002
    """Standard deviation of the true power, in 20 ms steps, as a share of the mean. A steadily loaded server swings by
    a tenth; an idle board is calm."""
    utilization: float = 0.0
    sm_active: float = 0.0
    tensor_active: float = 0.0
    dram_active: float = 0.0
    pcie_transmit: float = 0.8e6
    """Bytes per second; a link without traffic still shows a megabyte or so."""
    pcie_receive: float = 0.6e6
    clock_hertz: float = CLOCK_MAX_HERTZ
    """An open context holds the clock up even when nothing runs."""
    event_reasons: frozenset[str] = frozenset()
    link_width: int = LINK_WIDTH
    inlet_celsius: float = 24.0
    limit_watts: float = LIMIT_WATTS


IDLE = Load(power_watts=87.0)
"""Loaded model, no work: what the first story's ``nvidia-smi`` showed, too."""
SPINNING = Load(power_watts=140.0, swing=0.004, utilization=1.0, sm_active=0.03)
"""Kernels that wait for each other: resident, and computing nothing."""
HEALTHY = Load(
    power_watts=520.0,
    swing=0.08,
    utilization=1.0,
    sm_active=0.78,
    tensor_active=0.30,
    dram_active=0.68,
    pcie_transmit=14e9,
    pcie_receive=14e9,
)


@dataclass(frozen=True, slots=True)
class Phase:
    """A stretch of time in which one thing goes on."""

    name: str
    title: str
    """What goes on, in words."""
    seconds: float
    load: Load
    state: State
    """The right verdict, once the window that is judged lies wholly within this state."""
    causes: frozenset[Cause] = frozenset()
    """Causes that must be suspected then."""
    concurrency: int = 0
    """Requests that the clients keep in the server: each one that ends is followed by another. When this is lower than
    before, the rest drains."""
    tokens_per_second: float = 0.0
    """Decoded by the whole server. Where it is 0, the requests that were held end at once."""
    max_running: int = 4096
    """The rest waits in the queue."""
    cuda_graphs: bool = True
    engine: Engine = Engine.SERVING
    idle_gpus: frozenset[int] = field(default_factory=frozenset)
    """Indices of GPUs that show :data:`IDLE` all the same."""
    lost_gpus: frozenset[int] = field(default_factory=frozenset)
    """Indices of GPUs that have fallen off the bus."""

    def load_of(self, gpu: int) -> Load:
        """What the GPU with this index shows."""
        return IDLE if gpu in self.idle_gpus else self.load


def _climb(concurrency: int, tokens_per_second: float, seconds: float) -> Phase:
    return Phase(
        name=f"climb_{concurrency}",
        title=(
            f"A benchmark holds {concurrency} requests and reports {tokens_per_second:,.0f} tok/s, "
            "while every GPU shows 0 % and 87 W"
        ),
        seconds=seconds,
        load=IDLE,
        state=State.IDLE_WHILE_BUSY,
        causes=frozenset({Cause.NOT_FED}),
        concurrency=concurrency,
        tokens_per_second=tokens_per_second,
    )


_HEALTHY = Phase(
    name="healthy",
    title="Healthy decoding: the GPUs spend 520 W of 600 W on work",
    seconds=75,
    load=HEALTHY,
    state=State.WORKING,
    causes=frozenset({Cause.MEMORY_BOUND}),
    concurrency=1024,
    tokens_per_second=9400,
)

STORY: tuple[Phase, ...] = (
    Phase(
        name="idle",
        title="The model is loaded and nobody asks",
        seconds=75,
        load=IDLE,
        state=State.IDLE,
    ),
    _climb(64, 689, 40),
    _climb(256, 1950, 40),
    _climb(512, 2800, 40),
    _climb(1024, 3740, 90),
    Phase(
        name="benchmark_over",
        title="The benchmark is over, but the server's throughput gauge still shows 3,740 tok/s",
        seconds=75,
        load=IDLE,
        state=State.IDLE,
    ),
    Phase(
        name="collectives",
        title="Utilisation shows 100 %, power 250 W of 600 W: kernels wait for all-reduces over PCIe",
        seconds=80,
        load=Load(
            power_watts=250.0,
            swing=0.05,
            utilization=1.0,
            sm_active=0.34,
            tensor_active=0.07,
            dram_active=0.22,
            pcie_transmit=12.5e9,
            pcie_receive=12.2e9,
        ),
        state=State.LOW_POWER,
        causes=frozenset({Cause.COLLECTIVES_OVER_PCIE}),
        concurrency=1024,
        tokens_per_second=3740,
    ),
    Phase(
        name="tuned",
        title="After the first tuning: 330 W a GPU and more tokens from each watt",
        seconds=25,
        # 2 W above the round number: exactly 0.55 of the limit is a threshold of the causes.
        load=Load(
            power_watts=332.0,
            swing=0.06,
            utilization=1.0,
            sm_active=0.55,
            tensor_active=0.15,
            dram_active=0.48,
            pcie_transmit=13e9,
            pcie_receive=12.8e9,
        ),
        state=State.WORKING,
        concurrency=1024,
        tokens_per_second=5400,
    ),
    _HEALTHY,
    Phase(
        name="power_capped",
        title="Long prompts: the GPUs draw all that they may, and the power cap holds their clocks",
        seconds=75,
        load=Load(
            power_watts=582.0,
            swing=0.035,
            utilization=1.0,
            sm_active=0.95,
            tensor_active=0.72,
            dram_active=0.35,
            pcie_transmit=18e9,
            pcie_receive=18e9,
            clock_hertz=1905e6,
            event_reasons=frozenset({"sw_power_cap"}),
        ),
        state=State.SATURATED,
        concurrency=1024,
        tokens_per_second=8600,
    ),
    Phase(
        name="wedged",
        title="The scheduler hangs: gauges and counters stand still, the kernels spin at 140 W",
        seconds=210,
        load=SPINNING,
        state=State.STALLED,
        causes=frozenset({Cause.SPINNING}),
        concurrency=1024,
        engine=Engine.WEDGED,
    ),
    Phase(
        name="draining",
        title="The scheduler goes on, and the requests that it held drain",
        seconds=30,
        load=replace(HEALTHY, power_watts=430.0),
        state=State.WORKING,
        tokens_per_second=6000,
    ),
)
"""The two true stories, and what a healthy and a broken server look like beside them: one loop of 14 minutes.

The climb and the hang last 210 s each: that is how long it takes at worst until a page fires (docs/alerting.md, without
the delivery). Everything else is as short as a verdict over 60 s allows.
"""

EXTRAS: tuple[Phase, ...] = (
    Phase(
        name="batch_limited",
        title="A server flag holds the batch at 16 requests while a thousand wait; power looks healthy",
        seconds=120,
        load=replace(HEALTHY, power_watts=380.0, dram_active=0.55, sm_active=0.60),
        state=State.WORKING,
        causes=frozenset({Cause.BATCH_LIMITED}),
        concurrency=1024,
        tokens_per_second=700,
        max_running=16,
    ),
    Phase(
        name="host_bound",
        title="CUDA graphs are off: the host cannot launch kernels fast enough",
        seconds=120,
        load=Load(
            power_watts=200.0,
            swing=0.05,
            utilization=0.25,
            sm_active=0.17,
            tensor_active=0.04,
            dram_active=0.14,
            pcie_transmit=0.4e9,
            pcie_receive=0.9e9,
        ),
        state=State.LOW_POWER,
        causes=frozenset({Cause.HOST_BOUND}),
        concurrency=64,
        tokens_per_second=1100,
        cuda_graphs=False,
    ),
    Phase(
        name="spinning",
        title="Kernels spin at 100 % and 140 W, and hardly a token comes",
        seconds=120,
        load=SPINNING,
        state=State.LOW_POWER,
        causes=frozenset({Cause.SPINNING}),
        concurrency=64,
        tokens_per_second=120,
    ),
    Phase(
        name="cpu_offload",
        title="Weights stream from the host: the PCIe link is the limit",
        seconds=120,
        load=Load(
            power_watts=190.0,
            swing=0.04,
            utilization=0.97,
            sm_active=0.22,
            tensor_active=0.08,
            dram_active=0.12,
            pcie_transmit=2.8e9,
            pcie_receive=52e9,
        ),
        state=State.LOW_POWER,
        causes=frozenset({Cause.PCIE_BANDWIDTH}),
        concurrency=64,
        tokens_per_second=450,
    ),
    Phase(
        name="partial_idle",
        title="Half of the GPUs work, the other half does nothing",
        seconds=120,
        load=HEALTHY,
        state=State.WORKING,
        causes=frozenset({Cause.PARTIAL_IDLE}),
        concurrency=256,
        tokens_per_second=3900,
        idle_gpus=frozenset({4, 5, 6, 7}),
    ),
    Phase(
        name="throttled",
        title="Hot air at the inlet: the GPUs slow down to survive",
        seconds=120,
        load=replace(
            HEALTHY,
            power_watts=380.0,
            dram_active=0.50,
            sm_active=0.80,
            clock_hertz=1200e6,
            event_reasons=frozenset({"sw_thermal_slowdown", "hw_thermal_slowdown", "hw_slowdown"}),
            inlet_celsius=58.0,
        ),
        state=State.WORKING,
        causes=frozenset({Cause.THROTTLED}),
        concurrency=1024,
        tokens_per_second=5600,
    ),
    Phase(
        name="limit_lowered",
        title="Somebody set the power limit to 300 W: 290 W is now all there is",
        seconds=120,
        load=replace(
            HEALTHY,
            power_watts=290.0,
            swing=0.03,
            clock_hertz=1400e6,
            event_reasons=frozenset({"sw_power_cap"}),
            limit_watts=300.0,
        ),
        state=State.SATURATED,
        causes=frozenset({Cause.POWER_CAPPED}),
        concurrency=1024,
        tokens_per_second=7100,
    ),
    Phase(
        name="link_degraded",
        title="The PCIe links came up with half of their lanes",
        seconds=120,
        load=replace(
            HEALTHY,
            power_watts=345.0,
            sm_active=0.55,
            dram_active=0.48,
            pcie_transmit=9e9,
            pcie_receive=9e9,
            link_width=8,
        ),
        state=State.WORKING,
        causes=frozenset({Cause.LINK_DEGRADED}),
        concurrency=1024,
        tokens_per_second=5600,
    ),
    Phase(
        name="engine_down",
        title="The server is gone: nobody can say whether there is work",
        seconds=120,
        load=IDLE,
        state=State.UNKNOWN,
        engine=Engine.DOWN,
    ),
    Phase(
        name="gpu_lost",
        title="A GPU has fallen off the bus; the others wait for it forever",
        seconds=120,
        load=SPINNING,
        state=State.UNKNOWN,
        concurrency=1024,
        engine=Engine.WEDGED,
        lost_gpus=frozenset({3}),
    ),
)
"""What is not in the story and can be held on its own."""

STORY_NAME = "story"
# A drain is over when the last request is: it cannot be held.
_PHASES = {phase.name: phase for phase in (*STORY, *EXTRAS) if phase.name != "draining"}
_LEADS = {
    # These are the end of something: it must have been there first, long enough for a verdict.
    "benchmark_over": (_climb(1024, 3740, 75),),
    "wedged": (_HEALTHY,),
    "engine_down": (_HEALTHY,),
    "gpu_lost": (_HEALTHY,),
}
SCENARIOS: tuple[str, ...] = (STORY_NAME, *_PHASES)
"""Names of everything that can be played: the whole story, or one phase that is held."""


class Moment(NamedTuple):
    """A phase as it happens: ``number`` counts the phases since the beginning."""

    phase: Phase
    number: int
    start: float
    end: float


class Timeline:
    """Which phase goes on at a moment: first the lead, once, and then the cycle for ever.

    Time is in simulated seconds since the beginning; before it, the first phase has always been going on.
    """

    def __init__(self, cycle: tuple[Phase, ...], lead: tuple[Phase, ...] = ()) -> None:
        self._lead = lead
        self._cycle = cycle
        self._lead_ends = tuple(accumulate(phase.seconds for phase in lead))
        self._cycle_ends = tuple(accumulate(phase.seconds for phase in cycle))
        self.lead_seconds = self._lead_ends[-1] if lead else 0.0
        self.cycle_seconds = self._cycle_ends[-1]

    @property
    def held(self) -> bool:
        """Whether one phase is held for ever."""
        return len(self._cycle) == 1

    def at(self, t: float) -> Moment:
        """The phase at ``t``; a phase begins at its first moment and ends before its last."""
        t = max(t, 0.0)
        if t < self.lead_seconds:
            return self._moment(bisect_right(self._lead_ends, t))
        loop, within = divmod(t - self.lead_seconds, self.cycle_seconds)
        # A rounding error of the division must not point behind the last phase.
        place = min(bisect_right(self._cycle_ends, within), len(self._cycle) - 1)
        return self._moment(len(self._lead) + int(loop) * len(self._cycle) + place)

    def start(self, number: int) -> float:
        """When the phase with this number begins."""
        if number <= len(self._lead):
            return (0.0, *self._lead_ends)[number]
        loop, place = divmod(number - len(self._lead), len(self._cycle))
        return self.lead_seconds + loop * self.cycle_seconds + (0.0, *self._cycle_ends)[place]

    def phase(self, number: int) -> Phase:
        """The phase with this number."""
        if number < len(self._lead):
            return self._lead[number]
        return self._cycle[(number - len(self._lead)) % len(self._cycle)]

    def settled_state(self, t: float, window: float = 60.0, margin: float = 10.0) -> State | None:
        """The right verdict at ``t``; ``None`` while what is judged still straddles two states, or the beginning.

        Args:
            t: the moment, simulated seconds.
            window: how far back the verdict looks, seconds.
            margin: how much later than at once a reading may arrive, seconds.
        """
        now = moment = self.at(t)
        first = t - window - margin
        if first < 0.0:
            return None
        while moment.start > first:
            moment = self._moment(moment.number - 1)
            if moment.phase.state is not now.phase.state:
                return None
        return now.phase.state

    def _moment(self, number: int) -> Moment:
        return Moment(self.phase(number), number, self.start(number), self.start(number + 1))


def timeline(scenario: str = STORY_NAME) -> Timeline:
    """The timeline of the scenario with this name.

    Raises:
        ValueError: there is none; the message names those that are.
    """
    if scenario == STORY_NAME:
        return Timeline(STORY)
    phase = _PHASES.get(scenario)
    if phase is None:
        raise ValueError(f"unknown scenario {scenario!r}: expected one of {', '.join(SCENARIOS)}")
    return Timeline((phase,), _LEADS.get(scenario, ()))
