"""Draws the dashboards: ``python -m dashboards.pictures.draw [--grafana 12] [NAME ...]`` from the repository's root.

The simulated rig lives through its story without waiting, a real Prometheus holds that past and what the alert rules
say about it, every query of the committed dashboards is run, and Grafana's own components draw the answers in a
headless Chromium. Pictures that docs/ shows go to docs/img, all others to build/pictures/seen: look at them.
Needs what ``make servers`` fetches, Pillow, npm, and the Debian package chromium; npm's packages (half a gigabyte for
each line of Grafana) go to build/pictures.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from PIL import Image

from dashboards.pictures.scenes import SCENES, START
from tests.dashboards.alarms import alarms
from tests.dashboards.boards import filled, load
from tests.dashboards.prometheus import serving

if TYPE_CHECKING:
    from tests.dashboards.prometheus import Prometheus

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent
BUILD = ROOT / "build" / "pictures"
PICTURES = ROOT / "docs" / "img"

GRAFANA = {"12": "12.4.10", "13": "13.2.3"}
"""Releases of @grafana/data and @grafana/ui, by line."""
PACKAGES = {
    "esbuild": "0.28.2",
    "react": "18.3.1",
    "react-dom": "18.3.1",
    "rxjs": "7.8.2",
}
"""Of npm. Written into build/pictures only: Grafana takes every JSON file under dashboards/ for a dashboard."""

SCRAPE = 15
WIDTH = 1424
ROW_PIXELS = 38
COLOURS = 256
VALUES = {"deployment": ".*", "node": ".+", "gpu": ".+"}
"""All of everything."""


class Picture(NamedTuple):
    """Some lines of one dashboard, or what stands behind one of its folded headings."""

    board: str
    first_row: int
    last_row: int
    values: dict[str, str]
    mode: str = "dark"
    folded: str = ""
    """How the heading begins."""
    scene: str = "day"


STORY = {"deployment": "glm5"}
ONE_GPU = {"gpu": "GPU-01a0ded0-0000-4000-8000-000000000003"}
DEPLOYMENT_SCREEN = 24
WANTED = {
    "fleet": Picture("fleet", 0, 40, {}),
    "fleet-night": Picture("fleet", 0, 20, {}, scene="night"),
    "deployment": Picture("deployment", 0, 27, STORY),
    "deployment-causes": Picture("deployment", 54, 89, STORY),
    "deployment-scaling": Picture("deployment", 0, 0, STORY, folded="Is it still scaling?"),
    "gpu": Picture("gpu", 0, 34, ONE_GPU),
}
"""Those that docs/ shows."""
NIGHT = {
    "fleet": Picture("fleet", 0, 40, {}),
    "fleet-light": Picture("fleet", 0, 20, {}, mode="light"),
    "latency": Picture("deployment", 0, 0, {"deployment": "phi-4"}, folded="Latency"),
    "cost": Picture("fleet", 0, 0, {}, folded="What does it cost?"),
    "fleet-trust": Picture("fleet", 0, 0, {}, folded="Can these"),
    "dead": Picture("deployment", 0, DEPLOYMENT_SCREEN, {"deployment": "glm5"}),
    "dead-gpu": Picture("gpu", 0, 34, ONE_GPU),
    "one-of-eight": Picture("deployment", 0, 60, {"deployment": "llama-405b"}),
    "one-of-eight-light": Picture("deployment", 0, DEPLOYMENT_SCREEN, {"deployment": "llama-405b"}, mode="light"),
    "one-gpu": Picture("deployment", 0, 46, {"deployment": "phi-4"}),
    "no-engine": Picture("deployment", 0, 90, {"deployment": "training"}),
    "renamed": Picture("deployment", 0, DEPLOYMENT_SCREEN, {"deployment": "mistral-2"}),
    "renamed-gpu": Picture("gpu", 0, 48, {"gpu": ONE_GPU["gpu"].replace("GPU-0", "GPU-e")}),
    "engines": Picture("deployment", 0, 0, {"deployment": "llama-405b"}, folded="The engines"),
}
PICTURED = WANTED | {f"night-{name}": picture._replace(scene="night") for name, picture in NIGHT.items()}


def panels(picture: Picture) -> list[dict[str, Any]]:
    """Return the panels that stand wholly within the picture, moved up to its top."""
    board = load(picture.board)["panels"]
    if picture.folded:
        (row,) = (panel for panel in board if panel["type"] == "row" and panel["title"].startswith(picture.folded))
        top = row["gridPos"]["y"] + 1
        return [panel | {"gridPos": panel["gridPos"] | {"y": panel["gridPos"]["y"] - top}} for panel in row["panels"]]
    chosen = []
    for panel in board:
        place = panel["gridPos"]
        if place["y"] >= picture.first_row and place["y"] + place["h"] <= picture.last_row:
            chosen.append(panel | {"gridPos": place | {"y": place["y"] - picture.first_row}})
    return chosen


def answered(prometheus: Prometheus, panel: dict[str, Any], picture: Picture) -> dict[str, Any]:
    """Return the panel with the answers to its queries."""
    start, end = START + SCRAPE, START + SCENES[picture.scene].seconds // SCRAPE * SCRAPE
    points = panel.get("maxDataPoints") or WIDTH * panel["gridPos"]["w"] // 24
    step = SCRAPE * max(1, round((end - start) / points / SCRAPE))
    own = {"__range": f"{end - start:.0f}s", "__rate_interval": f"{max(4 * SCRAPE, step + SCRAPE)}s"}
    targets = []
    for target in panel["targets"]:
        expr = filled(target["expr"], **(VALUES | own | picture.values))
        result = prometheus.at(expr, end) if target.get("instant") else prometheus.over_time(expr, start, end, step)
        targets.append(target | {"result": result, "start": start, "end": end, "step": step})
    return panel | {"targets": targets}


def bundle(line: str) -> Path:
    """Build the page's program with the components of one line of Grafana."""
    folder = BUILD / line
    folder.mkdir(parents=True, exist_ok=True)
    grafana = dict.fromkeys(("@grafana/data", "@grafana/ui"), GRAFANA[line])
    (folder / "package.json").write_text(json.dumps({"private": True, "dependencies": grafana | PACKAGES}, indent=2))
    shutil.copy(HERE / "page.tsx", folder / "page.tsx")
    if not (folder / "node_modules").exists():
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
            cwd=folder,
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
        cwd=folder,
        check=True,
    )
    return folder


def shoot(folder: Path, name: str, content: dict[str, Any], kept: Path) -> None:
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
    kept.parent.mkdir(parents=True, exist_ok=True)
    with Image.open(raw) as picture:
        small = picture.convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE)
        small.save(kept, optimize=True)


def draw(prometheus: Prometheus, folder: Path, name: str, kept: Path) -> None:
    """Draw one picture."""
    picture = PICTURED[name]
    content = {
        "panels": [
            panel if panel["type"] == "row" else answered(prometheus, panel, picture) for panel in panels(picture)
        ],
        "mode": picture.mode,
        "width": WIDTH,
        "range": {"start": START + SCRAPE, "end": START + SCENES[picture.scene].seconds},
    }
    shoot(folder, name, content, kept)
    print(kept)


def main() -> None:
    """Draw the pictures that are named, or those that docs/ shows."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument(
        "--grafana", choices=sorted(GRAFANA), default="13", help="line of Grafana (docs/ has those of 13)"
    )
    parser.add_argument(
        "name", nargs="*", default=list(WANTED), help=f"one of {', '.join(PICTURED)}; or night, for all"
    )
    given = parser.parse_args()
    names = [
        each
        for name in given.name
        for each in ([n for n in PICTURED if n.startswith("night-")] if name == "night" else [name])
    ]
    folder = bundle(given.grafana)
    for scene, (seconds, lines) in SCENES.items():
        wanted = [name for name in names if PICTURED[name].scene == scene]
        if not wanted:
            continue
        end = START + seconds // SCRAPE * SCRAPE
        with (
            tempfile.TemporaryDirectory() as past,
            serving(Path(past), lines(seconds), more=lambda asked: alarms(asked, START + SCRAPE, end)) as prometheus,  # noqa: B023
        ):
            for name in wanted:
                in_docs = name in WANTED and given.grafana == "13"
                kept = PICTURES if in_docs else BUILD / "seen" / given.grafana
                draw(prometheus, folder, name, kept / f"{name}.png")


if __name__ == "__main__":
    main()
