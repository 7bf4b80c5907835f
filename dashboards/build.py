"""Writes the dashboards: ``python -m dashboards.build`` from the root of the repository.

The same sources give the same bytes. The JSON is committed, so that nobody needs Python to use it.
"""

from __future__ import annotations

from pathlib import Path

from grafana_foundation_sdk.cog.encoder import JSONEncoder

from dashboards import deployment, fleet, gpu

HERE = Path(__file__).parent
DASHBOARDS = {"fleet": fleet.build, "deployment": deployment.build, "gpu": gpu.build}


def encoded(name: str) -> str:
    """Return the JSON text of the dashboard ``name``."""
    return JSONEncoder(sort_keys=True, indent=2, ensure_ascii=False).encode(DASHBOARDS[name]().build()) + "\n"


def main() -> None:
    """Write every dashboard beside this file."""
    for name in DASHBOARDS:
        (HERE / f"{name}.json").write_text(encoded(name), encoding="utf-8")


if __name__ == "__main__":
    main()
