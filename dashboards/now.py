"""What somebody who was woken wants to know of a deployment: its state, since when, what comes, and what to do."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from grafana_foundation_sdk.models import common as c

from dashboards import panels as p
from dashboards.common import (
    ALL,
    OF_ONE,
    REMEMBERED,
    alerts_here,
    blind,
    no_alert,
    runbook_of,
    seconds_in_state,
    state_code,
    state_now,
)
from dashboards.palette import CALM, FAULT, FINE
from wattline.analysis.causes import Cause
from wattline.analysis.plan import Plan
from wattline.analysis.snapshot import State
from wattline.analysis.steps import Step

if TYPE_CHECKING:
    from grafana_foundation_sdk.builders import stat, statetimeline, table


WINDOW = f"{Plan().window:g} s"
"""Over which the exporter judges, unless it is configured otherwise."""
NO_NAME = "\N{NO-BREAK SPACE}"
SILENT = "no_data"
"""Beside the states: nobody looks."""
NOTHING = Step("Nothing is to be done")
OTHER_STEPS: dict[str, Step] = {
    SILENT: Step("Whether the exporter and its host are up", "systemctl status wattline"),
    State.UNKNOWN: Step("Which source cannot be read", "wattline check"),
}
OTHER_RUNBOOKS = {SILENT: "WattlineExporterDown", State.UNKNOWN: "WattlineDeploymentUnknown"}


def state() -> stat.Panel:
    """Show the state, in its colour."""
    return (
        p.number(
            "State now",
            f"The state over the exporter's last window ({WINDOW} by default); over several hosts the one that matters "
            f"most. “No data”: the exporter was there within the last {REMEMBERED} and is silent, so nobody knows.",
            "none",
            p.now(state_now(OF_ONE, ALL), "state"),
        )
        .mappings(p.words(p.STATES))
        .color_mode(c.BigValueColorMode.BACKGROUND_SOLID)
        .text_mode(c.BigValueTextMode.VALUE)
        .color_scheme(p.by_thresholds())
    )


def since() -> stat.Panel:
    """Show for how long it has been in that state."""
    return p.number(
        "For",
        "How long the state has lasted, from its onset; for “No data”, how long the exporter has been silent.",
        "dtdurations",
        p.now(seconds_in_state(OF_ONE, ALL), "for"),
    ).decimals(0)


def coming() -> stat.Panel:
    """Show the verdict that is about to come, and how much of its first window the exporter has seen."""
    pending = f"max by (state) (wattline_deployment_pending_seconds{{{OF_ONE}}})"
    watched = f"min(wattline_deployment_watched_seconds{{{OF_ONE}}})"
    young = f'({watched} < on () max(wattline_window_seconds{{instance=~"$node"}}))'
    nothing = "coming"
    panel = p.number(
        "What is coming?",
        "Signs of a bad state that have not lasted long enough for the verdict, and for how long they have been seen; "
        "and how long a young exporter has watched, since it judges over a whole window. Neither is a verdict.",
        "s",
        p.now(pending, "{{state}}"),
        p.now(young, f"watched so far, of {WINDOW}"),
        p.now(f"0 * {watched} unless on () {pending} unless on () {young}", nothing),
    ).decimals(0)
    panel.text_mode(c.BigValueTextMode.VALUE_AND_NAME)
    panel.override_by_name(
        nothing, p.properties(displayName=NO_NAME, mappings=p.words_property({"0": ("Nothing", CALM)}))
    )
    for each in State:
        if each.bad:
            title = f"{each.record.title} at {WINDOW}; so far"
            panel.override_by_name(each.value, p.properties(displayName=title, color=p.fixed(each.record.colour)))
    return panel


class Advice(NamedTuple):
    """One row of what to do: a state, or a cause."""

    name: str
    title: str
    step: Step
    runbook: str
    colour: str | None = None


def _of_states() -> list[Advice]:
    silence = Advice(SILENT, "No data", OTHER_STEPS[SILENT], OTHER_RUNBOOKS[SILENT])
    return [
        silence,
        *(
            Advice(
                each.value,
                each.record.title,
                OTHER_STEPS.get(each) or next(iter(each.record.steps), NOTHING),
                OTHER_RUNBOOKS.get(each, each.record.runbook),
                each.record.colour,
            )
            for each in State
        ),
    ]


def _of_causes(*weights: str) -> list[Advice]:
    return [
        Advice(
            cause.value,
            cause.record.title,
            next(iter(cause.record.steps), Step(cause.record.sign)),
            cause.record.runbook,
        )
        for cause in Cause
        if cause.record.weight in weights
    ]


def what_next() -> table.Panel:
    """List the state and what is suspected, each with the first step to take and its runbook."""

    def with_label(expr: str, label: str, value: str) -> str:
        return f'label_replace({expr}, "{label}", "{value}", "", "")'

    holding: dict[str, str] = {
        state: f'max(wattline_deployment_state{{{OF_ONE}, state="{state}"}} == 1) * {1 + state.record.rank}'
        for state in State
    }
    holding |= {SILENT: f"max({blind(OF_ONE)} > bool -1) * {1 + p.NO_DATA}"}
    states = [
        with_label(with_label(holding[state.name], "what", state.name), "runbook", state.runbook)
        for state in _of_states()
    ]
    told = [f"topk(1, {' or '.join(states)})"]
    bad = "|".join(each for each in State if each.bad)
    # What only explains a bad state says nothing beside a good one.
    for weight, only in (
        ("finding", ""),
        ("explains", f' and on () (max(wattline_deployment_state{{{OF_ONE}, state=~"{bad}"}}) == 1)'),
    ):
        causes = _of_causes(weight)
        for runbook in sorted({cause.runbook for cause in causes}):
            names = "|".join(cause.name for cause in causes if cause.runbook == runbook)
            suspected = f'max by (cause) (wattline_deployment_suspected_cause{{{OF_ONE}, cause=~"{names}"}}) == 1{only}'
            told.append(with_label(f'0 * label_join({suspected}, "what", "", "cause")', "runbook", runbook))
    listed = f"sort_desc(max by (what, runbook) ({' or '.join(told)}))"
    known = _of_states() + _of_causes("finding", "explains")
    return p.rows(
        "What to do next?",
        "The state, and below it the causes that are suspected now, each with the first thing to look at and its "
        "runbook. A suspicion is no verdict, and none raises an alert by itself: the evidence stands further below.",
        [
            ("", p.column(f'label_join(label_join({listed}, "step", "", "what"), "command", "", "what")'), {}),
            (
                "Because of",
                "what",
                {
                    "custom__width": 135,
                    "mappings": p.words_property({each.name: (each.title, each.colour) for each in known}),
                }
                | p.COLOURED_TEXT,
            ),
            (
                "First step",
                "step",
                {
                    "custom__minWidth": 230,
                    "mappings": p.words_property({each.name: (each.step.what, None) for each in known}),
                },
            ),
            (
                "Command",
                "command",
                {
                    "custom__minWidth": 180,
                    "custom__inspect": True,
                    "mappings": p.words_property({each.name: (each.step.command or "", None) for each in known}),
                },
            ),
            (
                "Runbook",
                "runbook",
                {
                    "custom__width": 200,
                    "links": p.link("Open the runbook", runbook_of("__data.fields.Runbook")),
                },
            ),
        ],
    )


def alerts_firing() -> stat.Panel:
    """Show how many alerts fire."""
    return (
        p.number(
            "Alerts firing",
            "Alerts of this deployment and of its nodes that fire now. “No data” means that no rules are evaluated.",
            "none",
            p.now(f"count({alerts_here()}) or {no_alert(OF_ONE, ALL)}", "alerts"),
        )
        .thresholds(p.steps((None, FINE), (1, FAULT)))
        .color_scheme(p.by_thresholds())
    )


def alerts() -> table.Panel:
    """List the alerts of the deployment that fire."""
    begun = f"ALERTS_FOR_STATE and ignoring (alertstate) ({alerts_here()})"
    return p.rows(
        "Which alerts fire?",
        "Alerts of this deployment and of its nodes that fire now, and for how long their condition has held. Click a "
        "name for its runbook. None is listed where none fires, and where nobody looks: the number above tells which.",
        [
            (
                "Alert",
                "alertname",
                {
                    "custom__minWidth": 130,
                    "links": p.link("Open the runbook", runbook_of("__data.fields.Alert")),
                },
            ),
            ("Severity", "severity", {"custom__width": 75}),
            (
                "For",
                p.column(f"time() - min by (alertname, severity) ({begun})"),
                {"unit": "dtdurations", "decimals": 0, "custom__width": 100},
            ),
        ],
        sort=("For", False),
    ).no_value("None is listed: see “Alerts firing”")


def states_as_blocks() -> statetimeline.Panel:
    """Draw the states over time, as blocks."""
    return p.timeline(
        "Which state when?",
        "The state at each moment; over several hosts the one that matters most. A gap means that nobody looked. Each "
        "verdict is about the window before it, so a block begins later than its cause; the marks stand at the onset.",
        p.over_time(state_code(OF_ONE, ALL), "State"),
    ).mappings(p.words(p.STATES))
