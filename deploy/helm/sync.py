"""Copies the rules and dashboards into the chart, since a chart can only hold what lies in its folder.

``python deploy/helm/sync.py`` writes the copies anew; a test says when they are old.
"""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[2]
FILES = ROOT / "deploy" / "helm" / "wattline" / "files"


def wanted() -> dict[Path, bytes]:
    """What each copy must hold."""
    rules = {FILES / "rules" / path.name: path for path in ROOT.glob("alerts/*.rules.yml")}
    dashboards = {FILES / "dashboards" / path.name: path for path in ROOT.glob("dashboards/*.json")}
    return {copy: original.read_bytes() for copy, original in (rules | dashboards).items()}


def present() -> dict[Path, bytes]:
    """What each copy holds."""
    return {path: path.read_bytes() for path in FILES.glob("*/*")}


if __name__ == "__main__":
    copies = wanted()
    for old in present().keys() - copies.keys():
        old.unlink()
    for path, content in copies.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
