"""Are the verdicts right? Precision, recall and delay, second by second, over everything whose right verdict is known.

That is: every phase of the simulated rig that can be held and its whole story (a window of 60 s), a real SGLang on a
real H200 (15 s, since its situations are short), labelled loads of an H200 beside a busy and beside an idle server, and
real servers of four kinds on a CPU beside a card whose power is given (10 s).
Beside our states, what a threshold on NVML's utilisation or power would say when it must hold for the same window.
Whole alerts with their patience of minutes are compared in ``docs/alerting-comparison.md``.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from bench.engine_servers import SERVERS
from bench.real_engines import SITUATIONS
from bench.tables import Table, number
from tests.real_engines import replay
from tests.recording.simulated import identities, plan, readings
from tests.traces import test_loads as loads
from tests.traces.sglang import verdicts
from tests.traces.test_sglang_h200 import LABELS
from wattline.analysis.observer import Observer
from wattline.analysis.snapshot import State
from wattline.readings import GpuGone
from wattline.simulation.scenario import SCENARIOS, STORY_NAME, timeline

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from wattline.analysis.snapshot import GpuView

WASTE = frozenset({State.IDLE_WHILE_BUSY, State.STALLED, State.LOW_POWER})
"""States in which GPUs waste their watts on work that is held."""
SIMULATED_WINDOW, RECORDED_WINDOW = 60.0, 15.0
MARGIN = 10.0
"""Seconds that a reading may come later than at once: engines are polled every 5 s."""
HELD_SECONDS = 150.0
BUSY_LOADS = {
    "idle_context": State.IDLE_WHILE_BUSY,
    "launch_bound_small_kernels": State.IDLE_WHILE_BUSY,
    "spin_one_thread": State.IDLE_WHILE_BUSY,
    "pcie_h2d": State.IDLE_WHILE_BUSY,
    "burst_10pct_gemm": State.IDLE_WHILE_BUSY,
    "dram_copy": State.WORKING,
    "decode_like_skinny_gemm_graph": State.WORKING,
    "gemm_bf16": State.SATURATED,
}
IDLE_LOADS = ("idle_no_context", "idle_context", "idle_end", "spin_one_thread", "burst_10pct_gemm")
DETECTORS: dict[str, tuple[str, float]] = {
    "utilisation < 10 %": ("utilization_ratio", 0.10),
    "utilisation < 30 %": ("utilization_ratio", 0.30),
    "power < 100 W": ("power_watts", 100.0),
    "power < 300 W": ("power_watts", 300.0),
}
"""What must stay below what on some GPU for the whole window."""
OURS = "Wattline"


@dataclass(frozen=True, slots=True)
class Second:
    """One verdict beside the right one."""

    since: float
    """Seconds since the situation began."""
    right: State
    judged: State
    settled: bool
    """Whether the window lies within this situation."""
    fired: frozenset[str]
    """The detectors that tell."""


@dataclass(slots=True)
class Situation:
    """A stretch of time with one right verdict."""

    name: str
    right: State
    seconds: list[Second] = field(default_factory=list)

    def delay(self, tells: Callable[[Second], bool]) -> float | None:
        """Seconds until it was told, if it was."""
        return next((second.since for second in self.seconds if tells(second)), None)


class Thresholds:
    """What the detectors say, second by second."""

    def __init__(self, window: float) -> None:
        self._window = window
        self._above: dict[tuple[str, str], float] = defaultdict(lambda: float("-inf"))
        self._begun: float | None = None

    def fired(self, t: float, gpus: Sequence[GpuView]) -> frozenset[str]:
        """The detectors whose reading of some GPU was below for the whole window."""
        self._begun = t if self._begun is None else self._begun
        found = set()
        for name, (reading, threshold) in DETECTORS.items():
            for gpu in gpus:
                value = getattr(gpu.sample, reading) if gpu.sample else None
                if value is None or value >= threshold:
                    self._above[name, gpu.identity.uuid] = t
                elif t - max(self._above[name, gpu.identity.uuid], self._begun) >= self._window:
                    found.add(name)
        return frozenset(found)


def simulated(scenario: str) -> Iterator[Situation]:
    """The situations of one scenario. A phase that has the same right verdict as the one before goes on."""
    line = timeline(scenario)
    end = line.cycle_seconds if scenario == STORY_NAME else line.lead_seconds + HELD_SECONDS
    observer, thresholds = Observer(plan()), Thresholds(SIMULATED_WINDOW)
    for identity in identities(scenario):
        observer.observe(identity)
    lost = {i for phase in (line.at(end - 1).phase,) for i in phase.lost_gpus}
    situation: Situation | None = None
    began = due = 0.0
    for t, reading in readings(scenario, 0.0, end):
        while t > due:
            moment = line.at(due)
            if lost and due > line.lead_seconds + MARGIN:
                for uuid in [u for u, g in observer.gpus.items() if g.identity.index in lost]:
                    observer.observe(GpuGone(due, uuid))
            snapshot = observer.judge(due)
            if situation is None or moment.phase.state is not situation.right:
                if situation is not None:
                    yield situation
                situation, began = Situation(moment.phase.name, moment.phase.state), due
            settled = line.settled_state(due, SIMULATED_WINDOW, MARGIN) is not None
            judged = snapshot.deployments[0].state
            told = thresholds.fired(due, snapshot.gpus)
            situation.seconds.append(Second(due - began, situation.right, judged, settled, told))
            due += 1.0
        observer.observe(reading)
    if situation is not None:
        yield situation


def recorded() -> Iterator[Situation]:
    """The situations of the recorded server. ``settle:X`` is the beginning of X."""
    right = {label: state for label, state, _ in LABELS}
    for run in (1, 2):
        thresholds = Thresholds(RECORDED_WINDOW)
        situation: Situation | None = None
        began = 0.0
        for label, snapshot in verdicts(run, RECORDED_WINDOW):
            name = label.removeprefix("settle:")
            told = thresholds.fired(snapshot.t, snapshot.gpus)
            if situation is not None and situation.name != name:
                yield situation
                situation = None
            if name not in right or name == "draining":  # Draining is over before a window is.
                continue
            if situation is None:
                situation, began = Situation(name, right[name]), snapshot.t
            since = snapshot.t - began
            judged = snapshot.deployments[0].state
            settled = since >= RECORDED_WINDOW + 2
            situation.seconds.append(Second(since, situation.right, judged, settled, told))
        if situation is not None:
            yield situation


def loaded() -> Iterator[Situation]:
    """The labelled loads, each judged once at its end, beside an engine that holds 64 requests or none."""
    cases = [*((label, 64.0, state) for label, state in BUSY_LOADS.items())]
    cases += [(label, 0.0, State.IDLE) for label in IDLE_LOADS]
    for label, work, state in cases:
        rows = [row for row in loads.ROWS if row["label"] == label]
        rows = rows[len(rows) // 3 :]
        readings_of = {
            "utilization_ratio": [row["util_gpu"] / 100 for row in rows],
            "power_watts": [row["power_mw"] / 1000 for row in rows],
        }
        told = {name for name, (reading, limit) in DETECTORS.items() if max(readings_of[reading]) < limit}
        judged = loads.verdict(label, work=work).state
        second = Second(0.0, state, judged, settled=True, fired=frozenset(told))
        yield Situation(f"{label}, {'busy' if work else 'idle'} engine", state, [second])


def real() -> Iterator[Situation]:
    """Real servers on a CPU beside a client that counted itself (``make engines``), one engine after the other."""
    known = {situation.name: situation for situation in SITUATIONS}
    states = {state.value: state for state in State}
    for engine in replay.ENGINES:
        thresholds = Thresholds(replay.WINDOW)
        situation: Situation | None = None
        for row, snapshot in replay.verdicts(engine):
            told = thresholds.fired(snapshot.t, snapshot.gpus)
            truth = known.get(row["label"])
            if situation is not None and (truth is None or situation.name != f"{engine}, {truth.name}"):
                yield situation
                situation = None
            if truth is None:
                continue
            right = truth.truth(SERVERS[engine])
            likeliest = next(states[s] for s in ("working", "idle", *sorted(right)) if s in right)
            if situation is None:
                situation = Situation(f"{engine}, {truth.name}", likeliest)
            judged = snapshot.deployments[0].state
            # Several states can be true of one moment: a frontend that was never asked, a card near its limit.
            expected = judged if judged.value in right else likeliest
            settled = row["since"] >= truth.settle
            situation.seconds.append(Second(row["since"], expected, judged, settled, told))
        if situation is not None:
            yield situation


def percent(part: int, whole: int) -> str:
    """A share, or a dash when there is nothing to share."""
    return f"{100 * part / whole:.1f} %" if whole else "-"


def delays(found: Sequence[float | None]) -> str:
    """Median and greatest of the delays that are known."""
    known = [value for value in found if value is not None]
    return f"{statistics.median(known):.0f} / {max(known):.0f}" if known else "-"


def by_state(situations: Sequence[Situation]) -> Table:
    """How right each state is."""
    settled = [second for s in situations for second in s.seconds if second.settled]
    rows = []
    for state in State:
        truly = [s for s in settled if s.right is state]
        judged = [s for s in settled if s.judged is state]
        right = sum(s.judged is state for s in truly)
        of = [s for s in situations if s.right is state]
        timed = [s for s in of if len(s.seconds) > 1]
        waits = [s.delay(lambda second, state=state: second.judged is state) for s in timed]  # type: ignore[misc]
        rows.append(
            [
                f"`{state.value}`",
                str(len(of)),
                number(len(truly), 6),
                percent(right, len(judged)),
                percent(right, len(truly)),
                delays(waits),
            ]
        )
    columns = ("state", "situations", "seconds", "precision", "recall", "delay s, median / greatest")
    note = (
        "Seconds whose window lies within the situation. The delay is from its beginning to the first right verdict; "
        "the window is 60 s in the simulation, 15 s in the recording and 10 s with real servers on a CPU."
    )
    return Table("Our states", columns, rows, note)


def against_thresholds(situations: Sequence[Situation]) -> Table:
    """Wasted watts on held work: our states beside thresholds."""
    known = [s for s in situations if s.right is not State.UNKNOWN]
    settled = [second for s in known for second in s.seconds if second.settled]
    faults = [s for s in known if s.right in WASTE]
    rows = []
    for name in (OURS, *DETECTORS):

        def tells(second: Second, name: str = name) -> bool:
            return second.judged in WASTE if name == OURS else name in second.fired

        told = [second for second in settled if tells(second)]
        right = sum(second.right in WASTE for second in told)
        found = [s for s in faults if any(tells(x) for x in s.seconds if x.settled)]
        false = [s for s in known if s.right not in WASTE and any(tells(x) for x in s.seconds if x.settled)]
        waits = [s.delay(tells) for s in found if len(s.seconds) > 1]
        rows.append(
            [
                name,
                percent(right, len(told)),
                percent(right, sum(second.right in WASTE for second in settled)),
                f"{len(found)} of {len(faults)}",
                f"{len(false)} of {len(known) - len(faults)}",
                delays(waits),
            ]
        )
    columns = ("", "precision", "recall", "faults found", "falsely told", "delay s, median / greatest")
    note = (
        "A fault is a situation whose right verdict is idle_while_busy, stalled or low_power. A threshold must hold on "
        "some GPU for the whole window. Situations in which nobody can know are left out."
    )
    return Table("Wasted watts: our states beside thresholds", columns, rows, note)


def measure(*, quick: bool = False) -> list[Table]:
    """Both tables."""
    scenarios = ("climb_64", "healthy") if quick else SCENARIOS
    situations = [s for scenario in scenarios for s in simulated(scenario)]
    situations += list(loaded())
    if not quick:
        situations += list(recorded())
        situations += list(real())
    return [by_state(situations), against_thresholds(situations)]
