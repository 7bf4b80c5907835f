"""The rule files and the Alertmanager configurations, from their sources, ``thresholds.yml`` and ``values.yml``.

A source (``source/*.in``) is the file that is written, but for ``%{name}``, which is a number of ``thresholds.yml`` or
an address of ``values.yml``. The outer labels come in by themselves: first in every ``by (...)`` and ``on (...)``, and
where a source says so: ``%{outer}`` in a selector of a text, whose values are ``%{outer_values}``, and
``%{outer_variables}`` in the address of a dashboard.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import yaml

from wattline.analysis.thresholds import Thresholds

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

HERE = Path(__file__).parent
UNITS = ("duration", "seconds_per_second", "ratio", "requests", "kilowatt_hours", "seconds", "codes")
ADDRESSES = ("runbooks_url", "dashboards_url", "incidents_url")
_PLACEHOLDER = re.compile(r"%\{(\w+)\}")
_GROUPING = re.compile(r"\b(by|on) \(|\b(group_by: |equal: )\[")
_DURATION = re.compile(r"\d+(?:ms|s|m|h|d)")
_JUDGED = msgspec.structs.asdict(Thresholds())
"""What the exporter judges with: a number that both use stands there."""
_HEADER = (
    "# Written by `make generate`: change alerts/source/{source} and not this file. Why each number is what it is: "
    "alerts/thresholds.yml"
)


class ThresholdError(Exception):
    """thresholds.yml, values.yml or a source is not as it must be; the message says where."""


@dataclass(frozen=True, slots=True)
class Threshold:
    """One number: ``value`` as it is written into a rule, its unit, and the evidence behind it."""

    name: str
    value: str
    unit: str
    why: str


@dataclass(frozen=True, slots=True)
class Values:
    """What differs from one installation to another."""

    outer_labels: tuple[str, ...]
    """Labels around everything, such as ``cluster``."""
    addresses: Mapping[str, str]
    """By name, :data:`ADDRESSES`."""


def load_values(path: Path = HERE / "values.yml") -> Values:
    """Read ``values.yml``.

    Raises:
        ThresholdError: a key is missing, unknown, or of another type.
    """
    found: Any = yaml.safe_load(path.read_text(encoding="utf-8"))
    if not isinstance(found, dict) or set(found) != {"outer_labels", *ADDRESSES}:
        raise ThresholdError(f"{path.name}: expected the keys outer_labels, {', '.join(ADDRESSES)}")
    labels = found["outer_labels"]
    if not isinstance(labels, list) or not all(isinstance(n, str) and re.fullmatch(r"[a-z_]\w*", n) for n in labels):
        raise ThresholdError(f"{path.name}: outer_labels: expected a list of label names")
    for name in ADDRESSES:
        if not re.match(r"https?://\S", str(found[name])):
            raise ThresholdError(f"{path.name}: {name}: expected an address that begins with http:// or https://")
    return Values(tuple(labels), {name: str(found[name]).rstrip("/") for name in ADDRESSES})


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
        if unit == "codes":
            fits, expected = bool(re.fullmatch(r"\d+(\|\d+)*", value)), "numbers with | between them"
        elif unit == "duration":
            fits, expected = bool(_DURATION.fullmatch(value)), "a duration such as 30s"
        else:
            fits = isinstance(number, int | float) and not isinstance(number, bool)
            expected = "a number or a threshold of the exporter"
        if not fits:
            raise ThresholdError(f"{path.name}: {name}: value is {value!r}, expected {expected}")
        thresholds[str(name)] = Threshold(str(name), value, unit, " ".join(str(entry["why"]).split()))
    return thresholds


def render(thresholds: Mapping[str, Threshold], values: Values) -> dict[str, str]:
    """The text of every written file, by its path below alerts/.

    Raises:
        ThresholdError: a source names a threshold that does not exist, or one is used nowhere.
    """
    names = {name: threshold.value for name, threshold in thresholds.items()}
    names |= dict(values.addresses) | {
        "outer": "".join(f"{label}=%q," for label in values.outer_labels),
        "outer_values": "".join(f"$labels.{label} " for label in values.outer_labels),
        "outer_variables": "".join(
            f"&var-{label}={{{{ $labels.{label} | urlquery }}}}" for label in values.outer_labels
        ),
    }
    sources = {
        "recording.rules.yml": ("recording.rules.yml.in",),
        "wattline.rules.yml": ("wattline.rules.yml.in",),
        "alertmanager.yml": ("alertmanager.yml.in", "receivers/log.in"),
        "examples/slack.yml": ("alertmanager.yml.in", "receivers/slack.in"),
        "examples/pagerduty.yml": ("alertmanager.yml.in", "receivers/pagerduty.in"),
        "examples/email.yml": ("alertmanager.yml.in", "receivers/email.in"),
    }
    used: set[str] = set()
    files = {}
    for path, parts in sources.items():
        text = "\n".join((HERE / "source" / part).read_text(encoding="utf-8") for part in parts)
        given = {**names, "templates": "../templates/*.tmpl" if "/" in path else "templates/*.tmpl"}
        needed = set(_PLACEHOLDER.findall(text))
        if missing := needed - given.keys():
            raise ThresholdError(f"source/{parts[0]}: no threshold is called {', '.join(sorted(missing))}")
        used |= needed
        filled = _PLACEHOLDER.sub(lambda match, given=given: given[match[1]], text)  # type: ignore[misc]
        files[path] = f"{_HEADER.format(source=parts[0])}\n{_with_outer_labels(filled, values.outer_labels)}"
    if unused := set(thresholds) - used:
        raise ThresholdError(f"thresholds.yml: {', '.join(sorted(unused))}: not used by any source")
    return files


def _with_outer_labels(text: str, labels: Sequence[str]) -> str:
    """The text with these labels before those that it groups and joins by."""
    before = "".join(f"{label}, " for label in labels)
    return _GROUPING.sub(lambda match: match[0] + before, text)


def written() -> dict[Path, str]:
    """Every written file with its text.

    Raises:
        ThresholdError: see :func:`load_thresholds`, :func:`load_values` and :func:`render`.
    """
    return {HERE / name: text for name, text in render(load_thresholds(), load_values()).items()}
