"""The chart, rendered by Helm's own library."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import helm_python
import yaml

HELM = Path(__file__).parents[2] / "deploy" / "helm"
CHART = HELM / "wattline"
REPOSITORY = "registry.example/wattline"
OPERATOR = "monitoring.coreos.com/v1"

Manifest = dict[str, Any]


@cache
def _chart() -> helm_python.Chart:
    return helm_python.Chart.load(CHART)


def values(name: str) -> dict[str, Any]:
    """An example's values."""
    found: dict[str, Any] = yaml.safe_load((HELM / f"values-{name}.yaml").read_text())
    return found


def with_image(given: dict[str, Any]) -> dict[str, Any]:
    """The values, with the one that has no default."""
    return {**given, "image": {"repository": REPOSITORY, **given.get("image", {})}}


def render(given: dict[str, Any] | None = None, **more: Any) -> list[Manifest]:
    """Every manifest that an installation would send, with these values."""
    texts = _chart().render(with_image({**(given or {}), **more}), name="wattline", namespace="monitoring")
    manifests = (yaml.safe_load_all(text) for path, text in texts.items() if path.endswith(".yaml"))
    return [manifest for file in manifests for manifest in file if manifest]


def the(kind: str, manifests: list[Manifest]) -> Manifest:
    """The only manifest of a kind."""
    (found,) = [m for m in manifests if m["kind"] == kind]
    return found


def pod(manifests: list[Manifest]) -> Manifest:
    """What the DaemonSet makes."""
    found: Manifest = the("DaemonSet", manifests)["spec"]["template"]["spec"]
    return found
