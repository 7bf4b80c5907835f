"""Rules that are wrong in one place."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from alerts.build import load_values
from tests.alerts.rules import seconds
from tests.dashboards.promql import parse, walk

if TYPE_CHECKING:
    from collections.abc import Iterator

_COMPARISON = re.compile(r"(==|[<>]=?) (\d[\d.]*)")
_WINDOW = re.compile(r"(\[|offset )(\d+[smhd])\b")
_WORST_HOST = re.compile(r"\b(?:max|min) by(?= \([\w, ]*deployment\) \(sum by)")
_ALTERNATIVES = re.compile(r'=~"([\w|]+)"')
_HELD = re.compile(r" or +(?=max (?:by|without) \([\w, ]+\)\(ALERTS)")
_LABELS = re.compile(r"\b(by|on) \(([\w, ]*)\)")


@dataclass(frozen=True)
class Mutant:
    """A rule that is wrong in one place, and in words where."""

    fault: str
    rule: dict[str, Any]


def mutants(rule: dict[str, Any]) -> Iterator[Mutant]:
    """Every way in which this rule is broken once.

    What holds a page while its exporter is gone is the same in all of them, and is broken as a whole.
    """
    whole = str(parse(rule["expr"]))
    begins, *held = _HELD.split(whole, 1)
    for fault, expr in _expressions(begins):
        yield Mutant(fault, {**rule, "expr": " or ".join((expr, *held))})
    if held:
        yield Mutant("the page does not outlive its exporter", {**rule, "expr": begins})
    if "for" in rule:
        yield Mutant("no for", {key: value for key, value in rule.items() if key != "for"})
        yield Mutant("for is five times as long", {**rule, "for": _times(rule["for"], 5)})
    if "keep_firing_for" in rule:
        yield Mutant("no keep_firing_for", {key: value for key, value in rule.items() if key != "keep_firing_for"})
    if "labels" in rule:
        yield Mutant("another severity", {**rule, "labels": {"severity": "error"}})


def _expressions(expr: str) -> Iterator[tuple[str, str]]:
    for match in _COMPARISON.finditer(expr):
        for number in _other_numbers(float(match[2])):
            yield f"{match[0]} becomes {number:g}", _replaced(expr, match, f"{match[1]} {number:g}")
    for window in sorted({match[2] for match in _WINDOW.finditer(expr)}):
        for factor in (5, 1 / 4):
            yield (
                f"{window} becomes {_times(window, factor)}",
                _WINDOW.sub(lambda m, w=window, f=factor: m[1] + (_times(m[2], f) if m[2] == w else m[2]), expr),  # type: ignore[misc]
            )
    for match in _LABELS.finditer(expr):
        labels = [label for label in match[2].split(", ") if label]
        # The outer ones are looked at as a whole, in test_rules.py.
        for label in (label for label in labels if label not in load_values().outer_labels):
            rest = ", ".join(other for other in labels if other != label)
            yield f"{match[0]} at {match.start()} loses {label}", _replaced(expr, match, f"{match[1]} ({rest})")
    yield from _hosts_and_states(expr)
    for node, _ in walk(parse(expr)):
        if type(node).__name__ == "BinaryExpr" and str(node.op) in {"and", "or", "unless"}:
            for kept, lost in ((node.lhs, node.rhs), (node.rhs, node.lhs)):
                yield f"{node.op} loses {lost}", expr.replace(str(node), str(kept))


def _hosts_and_states(expr: str) -> Iterator[tuple[str, str]]:
    """The sum over hosts instead of one of them, and one state, source or reason that is forgotten."""
    for match in _WORST_HOST.finditer(expr):
        yield f"{match[0]} at {match.start()} becomes sum by", _replaced(expr, match, "sum by")
    for match in _ALTERNATIVES.finditer(expr):
        values = match[1].split("|")
        for value in values:
            rest = "|".join(other for other in values if other != value)
            yield f"{match[0]} at {match.start()} loses {value}", _replaced(expr, match, f'=~"{rest}"')


def _other_numbers(number: float) -> tuple[float, ...]:
    return (number * 0.6, number * 1.4) if number else (5.0,)


def _times(duration: str, factor: float) -> str:
    return f"{round(seconds(duration) * factor)}s"


def _replaced(text: str, match: re.Match[str], by: str) -> str:
    return text[: match.start()] + by + text[match.end() :]
