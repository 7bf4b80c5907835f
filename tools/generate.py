"""Writes every file that is made from something else: ``make generate``. With ``--check`` it only says which are old.

Two kinds are not made here, since they take minutes or must be read before they are kept: pictures
(``python -m dashboards.pictures.draw``) and the expected outputs beside their tests.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from alerts import build as alerts
from dashboards import build as dashboards
from tools import api_reference, engines_reference, metrics_reference, thresholds_reference
from wattline import config
from wattline.audit import answer
from wattline.check import report

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

ROOT = Path(__file__).parent.parent
CHART = ROOT / "deploy" / "helm" / "wattline" / "files"


def _schemas() -> dict[Path, str]:
    def text(schema: Mapping[str, Any]) -> str:
        return json.dumps(schema, indent=2, ensure_ascii=False) + "\n"

    return {
        ROOT / "docs" / "wattline.schema.json": text(config.schema()),
        ROOT / "docs" / "check.schema.json": text(report.schema()),
        ROOT / "docs" / "audit.schema.json": text(answer.schema()),
    }


def chart_copies() -> dict[Path, str]:
    """Rules and dashboards in the chart, since it can hold only what lies in its folder."""
    rules = {CHART / "rules" / path.name: path for path in ROOT.glob("alerts/*.rules.yml")}
    boards = {CHART / "dashboards" / path.name: path for path in ROOT.glob("dashboards/*.json")}
    return {copy: path.read_text(encoding="utf-8") for copy, path in sorted((rules | boards).items())}


GENERATORS: tuple[Callable[[], Mapping[Path, str]], ...] = (
    alerts.written,
    dashboards.written,
    chart_copies,
    metrics_reference.written,
    api_reference.written,
    thresholds_reference.written,
    engines_reference.written,
    _schemas,
)
"""In this order: the dashboards name the alerts, and the chart copies both."""


def old() -> Iterator[tuple[Path, str | None]]:
    """Each file that is not as it must be, with its text; ``None`` is a file that must go."""
    for generator in GENERATORS:
        for path, text in generator().items():
            if not path.exists() or path.read_text(encoding="utf-8") != text:
                yield path, text
    yield from ((path, None) for path in CHART.glob("*/*") if path not in chart_copies())


def main() -> int:
    """Write the files, or check them."""
    parser = argparse.ArgumentParser(description="Write every file that is made from something else.")
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 when a file is not up to date")
    check = parser.parse_args().check
    found = 0
    for path, text in old():
        found += 1
        print(f"{path.relative_to(ROOT)}: {'not up to date' if check else 'removed' if text is None else 'written'}")
        if check:
            continue
        if text is None:
            path.unlink()
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
    return int(check and found > 0)


if __name__ == "__main__":
    sys.exit(main())
