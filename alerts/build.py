"""Writes the rule files and the Alertmanager configurations from their sources and from thresholds.yml.

    python -m alerts.build            write them anew
    python -m alerts.build --check    exit 1 when a written file differs from what would be written

A source (``source/*.in``) names a threshold as ``%{name}``; its value is put there, and what it stands for is written
above the rule, or above the line, that uses it. ``%{load}`` and ``%{evidence}`` are texts that many descriptions share,
``%{runbook}`` is the address of the page of the alert that it stands in.
"""

from __future__ import annotations

import argparse
import re
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import yaml

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

HERE = Path(__file__).parent
RUNBOOKS = "https://github.com/wattline/wattline/blob/main/docs/runbooks"
UNITS = ("duration", "seconds_per_second", "ratio", "requests", "kilowatt_hours", "seconds")
WIDTH = 120

_PLACEHOLDER = re.compile(r"%\{(\w+)\}")
_RULE = re.compile(r"\s*- (?:alert|record): (\w+)")
_DURATION = re.compile(r"\d+(?:ms|s|m|h|d)")
_HEADER = """\
# Written by `python -m alerts.build` from alerts/source/{source}: change that file or alerts/thresholds.yml, not this one.
"""


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
        value, unit = str(entry["value"]), str(entry["unit"])
        if unit not in UNITS:
            raise ThresholdError(f"{path.name}: {name}: unit is {unit!r}, expected one of {', '.join(UNITS)}")
        is_number = isinstance(entry["value"], int | float) and not isinstance(entry["value"], bool)
        if not (_DURATION.fullmatch(value) if unit == "duration" else is_number):
            expected = "a duration such as 30s" if unit == "duration" else "a number"
            raise ThresholdError(f"{path.name}: {name}: value is {value!r}, expected {expected}")
        thresholds[str(name)] = Threshold(str(name), value, unit, " ".join(str(entry["why"]).split()))
    return thresholds


def render(thresholds: Mapping[str, Threshold]) -> dict[str, str]:
    """The text of every written file, by its path below alerts/.

    Raises:
        ThresholdError: a source names a threshold that does not exist, or one is used nowhere.
    """
    used: set[str] = set()

    def rendered(source: str, **texts: str) -> str:
        lines = (HERE / "source" / source).read_text(encoding="utf-8").splitlines()
        return _HEADER.format(source=source) + "".join(f"{x}\n" for x in _render(lines, source, thresholds, texts, used))

    shared = {name: (HERE / "source" / f"{name}.in").read_text(encoding="utf-8") for name in ("load", "evidence")}
    files = {name: rendered(f"{name}.in", **shared) for name in ("recording.rules.yml", "wattline.rules.yml")}
    for path, receivers, templates in (
        ("alertmanager.yml", "log", "templates/*.tmpl"),
        ("examples/slack.yml", "slack", "../templates/*.tmpl"),
        ("examples/pagerduty.yml", "pagerduty", "../templates/*.tmpl"),
        ("examples/email.yml", "email", "../templates/*.tmpl"),
    ):
        who = (HERE / "source" / "receivers" / f"{receivers}.in").read_text(encoding="utf-8")
        files[path] = rendered("alertmanager.yml.in", templates=templates) + "\n" + who
    if unused := set(thresholds) - used:
        raise ThresholdError(f"thresholds.yml: {', '.join(sorted(unused))}: not used by any source")
    return files


def _render(
    lines: list[str],
    source: str,
    thresholds: Mapping[str, Threshold],
    texts: Mapping[str, str],
    used: set[str],
) -> Iterator[str]:
    """Lines with values for placeholders; each rule, and each line outside of rules, is preceded by its thresholds."""
    for block in _blocks(lines):
        rule = _RULE.match(block[0])
        known = {**texts, "runbook": f"{RUNBOOKS}/{rule[1]}.md"} if rule else texts
        whole = "\n".join(block)
        # Shared texts come first: they may name thresholds, too.
        body = re.sub(
            r"(?m)^( *)%\{(\w+)\}$",
            lambda m: textwrap.indent(known[m[2]].rstrip(), m[1]) if m[2] in known else m[0],
            whole,
        )
        names = dict.fromkeys(n for n in _PLACEHOLDER.findall(body) if n not in known)
        if missing := [n for n in names if n not in thresholds]:
            raise ThresholdError(f"source/{source}: %{{{missing[0]}}} is no threshold")
        used.update(names)
        indent = " " * (len(block[0]) - len(block[0].lstrip()))
        for name in names:
            t = thresholds[name]
            yield from textwrap.wrap(
                f"{name} = {t.value}: {t.why}",
                WIDTH,
                initial_indent=f"{indent}# ",
                subsequent_indent=f"{indent}#   ",
                break_on_hyphens=False,
            )
        yield from _PLACEHOLDER.sub(
            lambda m, known=known: known[m[1]] if m[1] in known else thresholds[m[1]].value, body
        ).splitlines()


def _blocks(lines: list[str]) -> Iterator[list[str]]:
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


def main() -> int:
    """Write the files, or check them."""
    parser = argparse.ArgumentParser(description="Write the rule files and the Alertmanager configurations.")
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 when a file is not up to date")
    check = parser.parse_args().check
    try:
        files = render(load_thresholds())
    except (ThresholdError, OSError, yaml.YAMLError) as err:
        print(f"alerts/build.py: {err}", file=sys.stderr)
        return 2
    stale = [n for n, text in files.items() if not (HERE / n).exists() or (HERE / n).read_text(encoding="utf-8") != text]
    for name in stale:
        if not check:
            (HERE / name).write_text(text := files[name], encoding="utf-8")
        print(f"alerts/{name}: {'not up to date' if check else f'{len(text.splitlines())} lines written'}")
    return int(check and bool(stale))


if __name__ == "__main__":
    sys.exit(main())
