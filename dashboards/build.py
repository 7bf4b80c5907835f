"""The dashboards as JSON, written by ``make generate``.

The same sources give the same bytes. The JSON is committed, so that nobody needs Python to use it.
"""

from __future__ import annotations

from pathlib import Path

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


def written() -> dict[Path, str]:
    """Every dashboard, beside this file."""
    return {HERE / f"{name}.json": encoded(name) for name in DASHBOARDS}
