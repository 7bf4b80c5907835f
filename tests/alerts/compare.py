"""What today's usual alerts see of the simulated and recorded situations, and what Wattline's see.

``python -m tests.alerts.compare`` writes docs/alerting-comparison.md anew.

Each situation is judged by the exporter's own analysis until its verdict has settled. What it then publishes is held
for 45 minutes, after 100 minutes of healthy decoding: gauges stay, counters go on at their pace. All rules are
evaluated on that by promtool, every half minute.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import yaml
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from tests.alerts.rules import all_rules
from tests.alerts.servers import ROOT, program
from tests.recording.simulated import identities, plan, readings
from tests.traces.sglang import verdicts
from wattline.analysis.observer import Observer
from wattline.analysis.snapshot import Snapshot
from wattline.publish.collector import SnapshotCollector
from wattline.readings import GpuGone
from wattline.simulation.rig import Rig
from wattline.simulation.scenario import EXTRAS, STORY, timeline

PAGE = ROOT / "docs" / "alerting-comparison.md"
STEP = 30
HEALTHY_MINUTES = 100
HELD_MINUTES = 45
RATE_SECONDS = 10

USUAL = {
    "Utilisation < 10 % for 10 min": ("UtilisationBelow10", "wattline_gpu_utilization_ratio < 0.10", "10m"),
    "Utilisation < 30 % for 30 min": ("UtilisationBelow30", "wattline_gpu_utilization_ratio < 0.30", "30m"),
    "Power < 100 W for 10 min": ("PowerBelow100", "wattline_gpu_power_watts < 100", "10m"),
    "Power < 300 W for 10 min": ("PowerBelow300", "wattline_gpu_power_watts < 300", "10m"),
}
"""Heading: name, condition and patience of what people alert on today, with NVML's readings of single GPUs."""

BEFORE = {"tuned": "collectives"}
"""What went on before a phase, where that was not healthy decoding."""

SOUND = {
    "idle",
    "benchmark_over",
    "tuned",
    "healthy",
    "power_capped",
    "idle_loaded",
    "one_request",
    "c32",
    "c256",
    "prefill_heavy",
    "draining",
    "just_after",
}
"""Situations in which nothing is wrong; all others are faults that somebody should hear of."""

RECORDED = {
    "idle_loaded": "A model is loaded, nobody asks",
    "one_request": "One stream",
    "c32": "32 clients",
    "c256": "256 clients",
    "prefill_heavy": "Long prompts, short answers",
    "draining": "The clients are gone, the server still decodes",
    "just_after": "The load has just ended",
    "no_cuda_graph_c64": "CUDA graphs off, 64 clients",
    "host_starved_3": "The scheduler shares its core with busy loops, 32 clients",
    "hung": "The scheduler hangs",
    "queue_blocked": "The batch is held at 2 of 64 requests by a flag",
    "spin_beside": "Another process spins on the GPU, the server is idle",
}
RECORDED_WORKLOAD = "c32"


@dataclass
class Held:
    """What is published in a situation, by series: its value, and for counters how fast they grow a second."""

    title: str
    gauges: dict[str, float] = field(default_factory=dict)
    counters: dict[str, float] = field(default_factory=dict)


def scraped(snapshot: Snapshot) -> dict[str, float]:
    """Everything that a scrape at this moment gives."""
    registry = CollectorRegistry()
    collector = SnapshotCollector()
    collector.snapshot = snapshot
    registry.register(collector)
    found = {}
    for family in text_string_to_metric_families(generate_latest(registry).decode()):
        for sample in family.samples:
            if family.type != "histogram" and not sample.name.endswith("_created"):
                labels = ", ".join(f"{name}={_quoted(value)}" for name, value in sorted(sample.labels.items()))
                found[f"{sample.name}{{{labels}}}"] = sample.value
    return found


def _quoted(value: str) -> str:
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'


def held(title: str, snapshots: list[Snapshot]) -> Held:
    """A situation from its last seconds: the mean of readings, the last of verdicts, the pace of counters."""
    scrapes = [scraped(snapshot) for snapshot in snapshots[-RATE_SECONDS - 1 :]]
    seconds = snapshots[-1].t - snapshots[-len(scrapes)].t
    result = Held(title)
    for series, last in scrapes[-1].items():
        name = series.split("{")[0]
        if name.endswith("_total"):
            result.counters[series] = max(0.0, last - scrapes[0].get(series, 0.0)) / seconds
        elif re.search(r"_(state|cause|up|info)$", name):
            result.gauges[series] = last
        else:
            values = [scrape[series] for scrape in scrapes if series in scrape]
            result.gauges[series] = sum(values) / len(values)
    return result


@cache
def simulated(scenario: str) -> Held:
    """A phase of the simulated rig, 150 s after it began."""
    line = timeline(scenario)
    phase = next(phase for phase in (*STORY, *EXTRAS) if phase.name == scenario)
    lost = {gpu.identity().uuid for gpu in Rig(line, 1).gpus if gpu.identity().index in phase.lost_gpus}
    observer = Observer(plan())
    for identity in identities(scenario):
        observer.observe(identity)
    snapshots = []
    due = 0.0
    for t, reading in readings(scenario, 0.0, line.lead_seconds + 150):
        while t > due:
            if due > line.lead_seconds + 10:
                for uuid in lost:
                    observer.observe(GpuGone(due, uuid))
            snapshots.append(observer.judge(due))
            due += 1
        observer.observe(reading)
    return held(phase.title, snapshots)


@cache
def recorded() -> dict[str, Held]:
    """The situations of a real SGLang on a real H200. They are short, hence the window of 15 s."""
    found: dict[str, list[Snapshot]] = defaultdict(list)
    for run in (1, 2):
        for label, snapshot in verdicts(run, 15.0):
            if label in RECORDED:
                found[label].append(snapshot)
    return {label: held(title, found[label]) for label, title in RECORDED.items()}


def series(before: Held, now: Held) -> list[dict[str, str]]:
    """Input of promtool: healthy decoding, and then the situation."""
    first, second = HEALTHY_MINUTES * 60 // STEP, HELD_MINUTES * 60 // STEP
    result = [{"series": 'up{job="wattline", instance="a:1"}', "values": f"1x{first + second}"}]
    for name in sorted({*before.gauges, *now.gauges}):
        parts = [
            f"{gauges[name]:.9g}x{steps - 1}" if name in gauges else f"stale _x{steps - 1}"
            for gauges, steps in ((before.gauges, first), (now.gauges, second))
        ]
        result.append({"series": _with_instance(name), "values": " ".join(parts)})
    for name in sorted({*before.counters, *now.counters}):
        value, parts = 0.0, []
        for counters, steps in ((before.counters, first), (now.counters, second)):
            pace = counters.get(name)
            parts.append(f"stale _x{steps - 1}" if pace is None else f"{value:.9g}+{pace * STEP:.9g}x{steps - 1}")
            value += (pace or 0.0) * STEP * steps
        result.append({"series": _with_instance(name), "values": " ".join(parts)})
    return result


def _with_instance(name: str) -> str:
    return name.replace("{", '{instance="a:1", ', 1)


def fired(situations: Mapping[str, tuple[Held, Held]]) -> dict[str, dict[str, int]]:
    """By situation: which alerts begin to fire within it, and after how many minutes."""
    usual = [{"alert": name, "expr": expr, "for": patience} for name, expr, patience in USUAL.values()]
    found: dict[str, dict[str, int]] = {name: {} for name in situations}
    minutes = range(HELD_MINUTES)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        # One group, so that the order in which they are evaluated is always the same.
        (folder / "rules.yml").write_text(
            yaml.safe_dump({"groups": [{"name": "all", "rules": [*all_rules(), *usual]}]})
        )
        for name, (before, now) in situations.items():
            checks = [
                {
                    "eval_time": f"{HEALTHY_MINUTES + minute}m",
                    "expr": 'count by (alertname) (ALERTS{alertstate="firing", alertname!="Watchdog"})',
                }
                for minute in minutes
            ]
            test = {"interval": f"{STEP}s", "input_series": series(before, now), "promql_expr_test": checks}
            text = yaml.safe_dump({"rule_files": ["rules.yml"], "evaluation_interval": f"{STEP}s", "tests": [test]})
            (folder / f"{name}.yml").write_text(text)
            # Every alert is an unexpected one, and is told with its time.
            done = subprocess.run(
                [program("promtool", "trixie"), "test", "rules", f"{name}.yml"],
                check=False,
                capture_output=True,
                text=True,
                cwd=folder,
            )
            told = re.findall(r"time: (?:(\d+)h)?(?:(\d+)m)?,\s+exp: nil\s+got: (.+)", done.stdout + done.stderr)
            assert done.returncode == 0 or told, done.stdout + done.stderr
            for hours, mins, got in told:
                minute = int(hours or 0) * 60 + int(mins or 0) - HEALTHY_MINUTES
                for alert in re.findall(r'alertname="(\w+)"', got):
                    found[name][alert] = min(minute, found[name].get(alert, minute))
    # What fires in minute 0 is about what went on before.
    return {name: {alert: minute for alert, minute in told.items() if minute} for name, told in found.items()}


def simulated_situations(names: Iterable[str]) -> dict[str, tuple[Held, Held]]:
    """Phases of the simulated rig, and what went on before."""
    return {name: (simulated(BEFORE.get(name, "healthy")), simulated(name)) for name in names}


def recorded_situations() -> dict[str, tuple[Held, Held]]:
    """Recorded situations after 32 clients that are served well."""
    return {name: (recorded()[RECORDED_WORKLOAD], situation) for name, situation in recorded().items()}


ALL_PHASES = tuple(dict.fromkeys(phase.name for phase in (*STORY, *EXTRAS) if phase.name != "draining"))
"""Every phase that can be held."""


def row(name: str, title: str, alerts: Mapping[str, int]) -> str:
    """One line of the table."""
    sound = name in SOUND
    cells = [f"`{name}`", title, "sound" if sound else "**fault**"]
    for usual, _, _ in USUAL.values():
        cells.append(_verdict(sound, [alerts[usual]] if usual in alerts else []))
    ours = {alert: minute for alert, minute in alerts.items() if alert not in {u for u, _, _ in USUAL.values()}}
    cells.append(_verdict(sound, list(ours.values())))
    cells.append(
        ", ".join(f"{alert} ({minute})" for alert, minute in sorted(ours.items(), key=lambda pair: pair[::-1]))
    )
    return f"| {' | '.join(cells)} |"


def _verdict(sound: bool, minutes: list[int]) -> str:
    if sound:
        return "false alarm" if minutes else "silent"
    return f"found, {min(minutes)} min" if minutes else "missed"


HEADER = ("situation", "what goes on", "", *USUAL, "Wattline", "its alerts (minutes)")


def table(situations: Mapping[str, tuple[Held, Held]]) -> tuple[list[str], dict[str, dict[str, int]]]:
    """The lines of a table, and what they say."""
    alerts = fired(situations)
    lines = [f"| {' | '.join(HEADER)} |", f"|{'---|' * len(HEADER)}"]
    lines += [row(name, situations[name][1].title, alerts[name]) for name in situations]
    return lines, alerts


def summary(alerts: Mapping[str, Mapping[str, int]]) -> list[str]:
    """How often each kind of alert is right."""
    sound = [name for name in alerts if name in SOUND]
    faults = [name for name in alerts if name not in SOUND]
    usual = {name for name, _, _ in USUAL.values()}
    lines = [f"| | of {len(faults)} faults found | of {len(sound)} sound situations falsely told |", "|---|---|---|"]
    for heading, names in (*((h, {u}) for h, (u, _, _) in USUAL.items()), ("Wattline", None)):

        def tells(situation: str, names: set[str] | None = names) -> bool:
            return any(a in names if names else a not in usual for a in alerts[situation])

        lines.append(f"| {heading} | {sum(map(tells, faults))} | {sum(map(tells, sound))} |")
    return lines


def page() -> str:
    """The whole page."""
    simulation, told_simulated = table(simulated_situations(ALL_PHASES))
    recording, told_recorded = table(recorded_situations())
    return "\n".join(
        (
            "# Alerts of today and Wattline's, side by side",
            "",
            *INTRODUCTION,
            "",
            "## In short",
            "",
            *summary({**told_simulated, **told_recorded}),
            "",
            *LESSONS,
            "",
            "## The simulated rig",
            "",
            *SIMULATED,
            "",
            *simulation,
            "",
            "## A recorded server",
            "",
            *RECORDING,
            "",
            *recording,
            "",
        )
    )


INTRODUCTION = (
    "Written by `python -m tests.alerts.compare`, not by hand. Each situation is judged by the exporter's own",
    "analysis until its verdict has settled; what it then publishes is held for 45 minutes, after 100 minutes of",
    "healthy decoding. The usual alerts and Wattline's rules, as they are delivered, are evaluated on the same",
    "series by promtool.",
    "",
    "*Found* says after how many minutes, *missed* that nothing was told within 45 minutes. A *false alarm* is",
    "any alert in a situation in which nothing is wrong. Wattline's minutes begin when the verdict has settled,",
    "which takes up to one minute more. The usual alerts read NVML's utilisation and power of each GPU, as DCGM's",
    "exporter gives them.",
)
LESSONS = (
    "- **Utilisation** finds GPUs that do nothing, after 10 to 30 minutes, and cannot know whether anybody asked:",
    "  it tells every quiet hour as well. Whatever keeps a kernel resident is invisible to it: spinning",
    "  collectives, PCIe, a batch that is held small.",
    "- **A fixed number of watts** fits one board at best. Below 100 W lies the idle power of one board here, but",
    "  not that of the other (119 W): its hung server is missed. Below 300 W lie nearly all faults of these two",
    "  boards, every quiet hour, and the full load of any board with a limit of 300 W. And a server that wastes",
    "  its power is not seen at all.",
    "- **Wattline** misses what no request waits for: another process that spins on the GPU of an idle server is",
    "  no concern of the deployment, and only the status page names it. Several warnings need a quarter of an",
    "  hour on purpose.",
    "- Whoever wants to reclaim GPUs that nobody uses asks another question, and a utilisation alert is right for",
    "  that.",
)
SIMULATED = (
    "Eight RTX PRO 6000 Blackwell with limits of 600 W; their idle power with a model loaded is 87 W. Every phase",
    "of [the demo](demo.md) that can be held, after healthy decoding (`tuned` after `collectives`, which it",
    "mends).",
)
RECORDING = (
    "SGLang 0.5.17 on one H200 with a limit of 700 W; its idle power with a model loaded is 119 W. Before each",
    "situation 32 clients are served well. The situations lasted from seconds to minutes, therefore they are",
    "judged over 15 s.",
)

if __name__ == "__main__":
    PAGE.write_text(page())
    sys.stdout.write(f"{PAGE.relative_to(ROOT)} written\n")
