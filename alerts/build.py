"""The rule files and the Alertmanager configurations, from their sources and thresholds.yml.

A source (``source/*.in``) names a threshold as ``%{name}``; its value is put there, and what it stands for is written
above the rule, or above the line, that uses it. ``%{hosts}``, ``%{load}`` and ``%{evidence}`` are texts that many
descriptions share: they tell about the hosts that the query in ``$hosts`` finds, by deployment and instance. A cause
has the title that the exporter's page and the dashboards give it, and the evidence that ``source/causes/`` asks for.
``%{runbook}`` is the address of the page of the alert that it stands in.
"""

from __future__ import annotations

import re
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import yaml

from wattline.analysis.causes import Cause
from wattline.analysis.thresholds import Thresholds

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

HERE = Path(__file__).parent
RUNBOOKS = "https://github.com/wattline/wattline/blob/main/docs/runbooks"
UNITS = ("duration", "seconds_per_second", "ratio", "requests", "kilowatt_hours", "seconds")
WIDTH = 120
_PLACEHOLDER = re.compile(r"%\{(\w+)\}")
_RULE = re.compile(r"\s*- (?:alert|record): (\w+)")
_DURATION = re.compile(r"\d+(?:ms|s|m|h|d)")
_JUDGED = msgspec.structs.asdict(Thresholds())
"""What the exporter judges with: a number that both use stands there."""
_HEADER = "# Written by `make generate`: change alerts/source/{source} or alerts/thresholds.yml, not this file."


class ThresholdError(Exception):
    """thresholds.yml or a source is not as it must be; the message says where."""


@dataclass(frozen=True, slots=True)
class Threshold:
    """One number: ``value`` as it is written into a rule, its unit, and the evidence behind it."""

    name: str
    value: str
    unit: str
    why: str


def load_thresholds(path: Path = HERE / "thresholds.yml") -> dict[str, Threshold]:
    """All thresholds by name.

    Raises:
        ThresholdError: an entry lacks a key, has one too many, or a value that does not fit its unit.
    """
    entries = yaml.safe_load(path.read_text(encoding="utf-8"))
    if not isinstance(entries, dict):
        raise ThresholdError(f"{path.name}: expected a mapping of names")
    thresholds = {}
    for name, entry in entries.items():
        if not isinstance(entry, dict) or set(entry) != {"value", "unit", "why"}:
            raise ThresholdError(f"{path.name}: {name}: expected the keys value, unit and why")
        number = _JUDGED.get(str(entry["value"]), entry["value"])
        value, unit = str(number), str(entry["unit"])
        if unit not in UNITS:
            raise ThresholdError(f"{path.name}: {name}: unit is {unit!r}, expected one of {', '.join(UNITS)}")
        is_number = isinstance(number, int | float) and not isinstance(number, bool)
        if not (_DURATION.fullmatch(value) if unit == "duration" else is_number):
            expected = "a duration such as 30s" if unit == "duration" else "a number or a threshold of the exporter"
            raise ThresholdError(f"{path.name}: {name}: value is {value!r}, expected {expected}")
        thresholds[str(name)] = Threshold(str(name), value, unit, " ".join(str(entry["why"]).split()))
    return thresholds


def render(thresholds: Mapping[str, Threshold]) -> dict[str, str]:
    """The text of every written file, by its path below alerts/.

    Raises:
        ThresholdError: a source names a threshold that does not exist, or one is used nowhere.
    """
    shared = {name: _source(f"{name}.in") for name in ("hosts", "hosts_at_work", "load", "evidence")}
    # A newer exporter may suspect what these rules do not know yet.
    shared["cause_titles"] = _by_cause({cause: cause.record.title for cause in Cause}, "{{ $c.Labels.cause }}")
    shared["cause_evidence"] = _by_cause(
        {c: f" {_source(f'causes/{c}.in')}" for c in Cause if (HERE / f"source/causes/{c}.in").exists()}
    )
    used: set[str] = set()
    files = {
        name: _render(name, thresholds, shared, {}, used) for name in ("recording.rules.yml", "wattline.rules.yml")
    }
    for path, receivers, templates in (
        ("alertmanager.yml", "log", "templates/*.tmpl"),
        ("examples/slack.yml", "slack", "../templates/*.tmpl"),
        ("examples/pagerduty.yml", "pagerduty", "../templates/*.tmpl"),
        ("examples/email.yml", "email", "../templates/*.tmpl"),
    ):
        routes = _render("alertmanager.yml", thresholds, {}, {"templates": templates}, used)
        files[path] = "\n".join((routes, _source(f"receivers/{receivers}.in")))
    if unused := set(thresholds) - used:
        raise ThresholdError(f"thresholds.yml: {', '.join(sorted(unused))}: not used by any source")
    return files


def _source(name: str) -> str:
    return (HERE / "source" / name).read_text(encoding="utf-8")


def _by_cause(texts: Mapping[Cause, str], otherwise: str = "") -> str:
    """A text of a template for each cause; ``$c`` is a series of the suspected causes."""
    conditions = [f'{{{{- if eq $c.Labels.cause "{cause}" }}}}{text.rstrip()}' for cause, text in texts.items()]
    others = [c.replace("{{- if", "{{- else if", 1) for c in conditions[1:]]
    return "\n".join((conditions[0], *others, f"{{{{- else }}}}{otherwise}{{{{ end }}}}"))


def _render(
    name: str,
    thresholds: Mapping[str, Threshold],
    shared: Mapping[str, str],
    values: Mapping[str, str],
    used: set[str],
) -> str:
    """A source with values for its placeholders, and their explanation above each rule and each other line."""
    lines = [_HEADER.format(source=f"{name}.in")]
    for block in _blocks(_with_shared_texts(_source(f"{name}.in").splitlines(), shared)):
        rule = _RULE.match(block[0])
        given = {**values, "runbook": f"{RUNBOOKS}/{rule[1]}.md"} if rule else values
        names = dict.fromkeys(n for line in block for n in _PLACEHOLDER.findall(line) if n not in given)
        if missing := names.keys() - thresholds.keys():
            raise ThresholdError(f"source/{name}.in: no threshold is called {', '.join(sorted(missing))}")
        used.update(names)
        indent = block[0][: len(block[0]) - len(block[0].lstrip())]
        lines += [line for n in names for line in _explanation(thresholds[n], indent)]
        filled = {**given, **{n: thresholds[n].value for n in names}}
        lines += [_filled(line, filled) for line in block]
    return "\n".join((*lines, ""))


def _filled(line: str, values: Mapping[str, str]) -> str:
    return _PLACEHOLDER.sub(lambda match: values[match[1]], line)


def _with_shared_texts(lines: list[str], shared: Mapping[str, str]) -> Iterator[str]:
    """Lines, with a text for each that consists of nothing but the text's placeholder."""
    for line in lines:
        match = _PLACEHOLDER.fullmatch(line.strip())
        if match and match[1] in shared:
            text = "\n".join(_with_shared_texts(shared[match[1]].splitlines(), shared))
            yield from textwrap.indent(text, line[: line.index("%")]).splitlines()
        else:
            yield line


def _explanation(threshold: Threshold, indent: str) -> list[str]:
    return textwrap.wrap(
        f"{threshold.name} = {threshold.value}: {threshold.why}",
        WIDTH,
        initial_indent=f"{indent}# ",
        subsequent_indent=f"{indent}#   ",
        break_on_hyphens=False,
    )


def _blocks(lines: Iterable[str]) -> Iterator[list[str]]:
    """A rule with all its lines, or one line that belongs to none."""
    block: list[str] = []
    depth = 0
    for line in lines:
        indent = len(line) - len(line.lstrip())
        if block and (not line.strip() or indent <= depth):
            yield block
            block = []
        if _RULE.match(line):
            depth = indent
            block = [line]
        elif block:
            block.append(line)
        else:
            yield [line]
    if block:
        yield block


def written() -> dict[Path, str]:
    """Every written file with its text. Raises as :func:`load_thresholds` and :func:`render`."""
    return {HERE / name: text for name, text in render(load_thresholds()).items()}
