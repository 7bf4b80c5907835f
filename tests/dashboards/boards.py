"""The committed dashboards as a test sees them: panels, queries, and the variables filled in as Grafana would."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
NAMES = ("fleet", "deployment", "gpu")

VARIABLE = re.compile(r"\$(?:\{(\w+)[^}]*\}|([a-z_]\w*))")
"""``$1`` is none: it stands for what a pattern found."""

BUILT_IN = {
    "__rate_interval": "1m",
    "__interval": "15s",
    "__range": "15m",
    "__range_s": "900",
}
"""What Grafana fills in by itself, for a scrape interval of 15 s."""
AROUND = {"cluster": ".*", "namespace": ".*"}
"""What the outer labels are while nothing is picked."""


def load(name: str) -> dict[str, Any]:
    """Read a dashboard as it is committed."""
    board: dict[str, Any] = json.loads((ROOT / "dashboards" / f"{name}.json").read_text(encoding="utf-8"))
    return board


BOARDS = {name: load(name) for name in NAMES}


@dataclass(frozen=True)
class Target:
    """One query of one panel."""

    board: str
    panel: dict[str, Any]
    target: dict[str, Any]

    @property
    def expr(self) -> str:
        """The query as it is written."""
        return str(self.target["expr"])

    @property
    def where(self) -> str:
        """For messages: dashboard, panel, query."""
        return f"{self.board}: {self.panel['title']}: {self.target['refId']}"


def panels(name: str) -> list[dict[str, Any]]:
    """Every panel but the headings, those behind folded headings too."""
    listed = [inner for panel in BOARDS[name]["panels"] for inner in (panel, *panel.get("panels", ()))]
    return [panel for panel in listed if panel["type"] != "row"]


def targets(name: str) -> list[Target]:
    """Every query of every panel."""
    return [Target(name, panel, target) for panel in panels(name) for target in panel["targets"]]


def every_target() -> list[Target]:
    """Every query of all dashboards."""
    return [target for name in NAMES for target in targets(name)]


def variables(name: str) -> dict[str, dict[str, Any]]:
    """The variables of a dashboard by name."""
    return {each["name"]: each for each in BOARDS[name]["templating"]["list"]}


def used_variables(text: str) -> set[str]:
    """Names of the variables in a text: ``$name``, ``${name}``, ``${name:format}``."""
    return {match[1] or match[2] for match in VARIABLE.finditer(text)}


def filled(expr: str, **values: str) -> str:
    """Put values in the place of variables.

    Raises:
        KeyError: there is a variable that has no value.
    """
    known = BUILT_IN | AROUND | values
    return VARIABLE.sub(lambda match: known[match[1] or match[2]], expr)
