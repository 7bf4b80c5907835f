"""The dashboards as JSON, written by ``make generate``.

The same sources give the same bytes. The JSON is committed, so that nobody needs Python to use it.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import dashboard as d

from dashboards import deployment, fleet, gpu

HERE = Path(__file__).parent
DASHBOARDS = {"fleet": fleet.build, "deployment": deployment.build, "gpu": gpu.build}


class Encoder(JSONEncoder):
    """Writes links and annotations without a placement, as whoever makes them in Grafana does.

    The SDK gives every one of them the menu of controls, and offers no other place: newer Grafana then takes the
    links between the dashboards and the switches of the annotations away from the top.
    """

    def default(self, obj: object) -> object:
        """Return what can be written for an object of the SDK."""
        told = super().default(obj)
        if isinstance(obj, (d.DashboardLink, d.AnnotationQuery)):
            told.pop("placement", None)
        return told


def encoded(name: str) -> str:
    """Return the JSON text of the dashboard ``name``."""
    return Encoder(sort_keys=True, indent=2, ensure_ascii=False).encode(DASHBOARDS[name]().build()) + "\n"


UNITS = {
    "Bps": "bytes/s",
    "bytes": "bytes",
    "celsius": "°C",
    "count:tok/s": "tokens/s",
    "cps": "1/s",
    "dtdurations": "time",
    "hertz": "Hz",
    "joule": "J",
    "locale": "requests",
    "none": "number",
    "percentunit": "%",
    "s": "s",
    "suffix:tok/J": "tokens/J",
    "watt": "W",
    "watth": "Wh",
}
"""Grafana's units, as people write them."""


def _unit(panel: dict[str, Any]) -> str:
    if panel["type"] == "table":
        return "table"
    if panel["type"] == "state-timeline" or panel["fieldConfig"]["defaults"].get("mappings"):
        return "words"
    return UNITS[panel["fieldConfig"]["defaults"]["unit"]]


def reference() -> str:
    """Return the list of every panel with its question and its unit, as Markdown."""
    lines = ["# Panels", "", "Written by `make generate` from the dashboards: change those, not this file."]
    lines += ["", "What a panel says in full stands behind its **i** in Grafana; here is the first sentence."]
    for name in DASHBOARDS:
        board = json.loads(encoded(name))
        lines += ["", f"## {board['title'].removeprefix('Wattline / ')}"]
        heading = "First screen"
        for panel in board["panels"]:
            if heading or panel["type"] == "row":
                heading = panel["title"] if panel["type"] == "row" else heading
                folded = " (folded)" if panel.get("collapsed") else ""
                lines += ["", f"### {heading}{folded}", "", "| panel | what it shows | unit |", "|---|---|---|"]
                heading = ""
            for shown in panel.get("panels", ()) if panel["type"] == "row" else [panel]:
                sentence = re.split(r"(?<=[.?!]) ", shown["description"], maxsplit=1)[0]
                lines.append(f"| {shown['title']} | {sentence} | {_unit(shown)} |")
    return "\n".join(lines) + "\n"


def written() -> dict[Path, str]:
    """Every dashboard, beside this file, and the list of their panels."""
    boards = {HERE / f"{name}.json": encoded(name) for name in DASHBOARDS}
    return boards | {HERE.parent / "docs" / "panels.md": reference()}
