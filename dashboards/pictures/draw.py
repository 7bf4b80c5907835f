"""Draws the pictures of docs/: ``python -m dashboards.pictures.draw [NAME ...]`` from the repository's root.

The simulated rig lives through its story without waiting, a real Prometheus holds that past and what the alert rules
say about it, every query of the committed dashboards is run, and Grafana's own components draw the answers in a
headless Chromium. Needs what ``make servers`` fetches, Pillow, npm, and the Debian package chromium; npm's packages
(half a gigabyte) go to build/pictures.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from PIL import Image

from tests.dashboards.alarms import alarms
from tests.dashboards.boards import filled, load
from tests.dashboards.history import openmetrics
from tests.dashboards.prometheus import serving

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.dashboards.prometheus import Prometheus

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent
BUILD = ROOT / "build" / "pictures"
PICTURES = ROOT / "docs" / "img"

PACKAGES = {
    "@grafana/data": "13.2.3",
    "@grafana/ui": "13.2.3",
    "esbuild": "0.28.2",
    "react": "18.3.1",
    "react-dom": "18.3.1",
    "rxjs": "7.8.2",
}
"""Of npm. Written into build/pictures only: Grafana takes every JSON file under dashboards/ for a dashboard."""

START = 1_700_000_000.0
SECONDS = 1990.0
"""Two rounds of the story, up to the moment in the third at which the GPUs idle although requests are held."""
SCRAPE = 15
WIDTH = 1424
ROW_PIXELS = 38
COLOURS = 256
VALUES = {"deployment": ".*", "node": ".+", "gpu": ".+"}
"""All of everything."""


class Picture(NamedTuple):
    """Some lines of one dashboard."""

    board: str
    first_row: int
    last_row: int
    values: dict[str, str]
    mode: str = "dark"


STORY = {"deployment": "glm5"}
ONE_GPU = {"gpu": "GPU-01a0ded0-0000-4000-8000-000000000003"}
WANTED = {
    "fleet": Picture("fleet", 0, 40, {}),
    "fleet-light": Picture("fleet", 0, 20, {}, mode="light"),
    "deployment": Picture("deployment", 0, 19, STORY),
    "deployment-scaling": Picture("deployment", 19, 56, STORY),
    "deployment-causes": Picture("deployment", 56, 91, STORY),
    "gpu": Picture("gpu", 0, 34, ONE_GPU),
}


def panels(picture: Picture) -> list[dict[str, Any]]:
    """Return the panels that stand wholly within the picture, moved up to its top."""
    chosen = []
    for panel in load(picture.board)["panels"]:
        place = panel["gridPos"]
        folded = panel["type"] == "row" and panel.get("collapsed")
        if place["y"] >= picture.first_row and place["y"] + place["h"] <= picture.last_row and not folded:
            chosen.append(panel | {"gridPos": place | {"y": place["y"] - picture.first_row}})
    return chosen


def answered(prometheus: Prometheus, panel: dict[str, Any], picture: Picture) -> dict[str, Any]:
    """Return the panel with the answers to its queries."""
    start, end = START + SCRAPE, START + SECONDS // SCRAPE * SCRAPE
    points = panel.get("maxDataPoints") or WIDTH * panel["gridPos"]["w"] // 24
    step = SCRAPE * max(1, round((end - start) / points / SCRAPE))
    own = {"__range": f"{end - start:.0f}s", "__rate_interval": f"{max(4 * SCRAPE, step + SCRAPE)}s"}
    targets = []
    for target in panel["targets"]:
        expr = filled(target["expr"], **(VALUES | own | picture.values))
        result = prometheus.at(expr, end) if target.get("instant") else prometheus.over_time(expr, start, end, step)
        targets.append(target | {"result": result, "start": start, "end": end, "step": step})
    return panel | {"targets": targets}


def judged(prometheus: Prometheus) -> Iterator[str]:
    """Return what the alert rules say about that past."""
    return alarms(prometheus, START + SCRAPE, START + SECONDS // SCRAPE * SCRAPE)


def bundle() -> Path:
    """Build the page's program, once for each version of its sources."""
    BUILD.mkdir(parents=True, exist_ok=True)
    (BUILD / "package.json").write_text(json.dumps({"private": True, "dependencies": PACKAGES}, indent=2))
    shutil.copy(HERE / "page.tsx", BUILD / "page.tsx")
    if not (BUILD / "node_modules").exists():
        subprocess.run(
            [
                "npm",
                "install",
                "--no-package-lock",
                "--no-audit",
                "--no-fund",
                "--legacy-peer-deps",
                "--ignore-scripts",
            ],
            cwd=BUILD,
            check=True,
        )
    text_files = [f"--loader:.{suffix}=dataurl" for suffix in ("svg", "woff2", "ttf")]
    subprocess.run(
        [
            "node_modules/.bin/esbuild",
            "page.tsx",
            "--bundle",
            "--outfile=page.js",
            "--jsx=automatic",
            '--define:process.env.NODE_ENV="production"',
            "--define:global=window",
            "--log-level=error",
            *text_files,
        ],
        cwd=BUILD,
        check=True,
    )
    return BUILD


def shoot(folder: Path, name: str, content: dict[str, Any]) -> None:
    """Let a browser draw the page, and keep the picture with few colours."""
    rows = max(panel["gridPos"]["y"] + panel["gridPos"]["h"] for panel in content["panels"])
    told = json.dumps(content).replace("</", "<\\/")
    page = folder / f"{name}.html"
    page.write_text(
        '<!doctype html><meta charset="utf-8"><link rel="stylesheet" href="page.css"><style>body { margin: 0 }</style>'
        f'<div id="root"></div><script>window.INPUT = {told}; window.__grafana_public_path__ = "";</script>'
        '<script src="page.js"></script>'
    )
    raw = folder / f"{name}.png"
    done = subprocess.run(
        [
            "chromium",
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-quic",
            "--disable-sync",
            "--no-first-run",
            "--hide-scrollbars",
            "--allow-file-access-from-files",
            "--virtual-time-budget=15000",
            "--enable-logging=stderr",
            f"--window-size={WIDTH},{rows * ROW_PIXELS + 8}",
            f"--screenshot={raw}",
            page.as_uri(),
        ],
        check=True,
        capture_output=True,
        text=True,
    )
    if errors := re.findall(r"CONSOLE.*(?:Error|Uncaught).*", done.stderr):
        raise RuntimeError("\n".join(errors))
    PICTURES.mkdir(parents=True, exist_ok=True)
    with Image.open(raw) as picture:
        small = picture.convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE)
        small.save(PICTURES / f"{name}.png", optimize=True)


def main(names: list[str]) -> None:
    """Draw the pictures that are named, or all."""
    folder = bundle()
    with (
        tempfile.TemporaryDirectory() as past,
        serving(Path(past), openmetrics(START, SECONDS), more=judged) as prometheus,
    ):
        for name in names or WANTED:
            picture = WANTED[name]
            content = {
                "panels": [
                    panel if panel["type"] == "row" else answered(prometheus, panel, picture)
                    for panel in panels(picture)
                ],
                "mode": picture.mode,
                "width": WIDTH,
                "range": {"start": START + SCRAPE, "end": START + SECONDS},
            }
            shoot(folder, name, content)
            print(PICTURES / f"{name}.png")


if __name__ == "__main__":
    main(sys.argv[1:])
