"""The numbers that colour a panel: the same ones that judge and alert."""

from __future__ import annotations

from pathlib import Path

import yaml

from alerts.build import load_values
from wattline.analysis.thresholds import Thresholds

ALERTS = Path(__file__).parent.parent / "alerts"


def judged_by() -> Thresholds:
    """Return the exporter's default thresholds.

    Prometheus is not told which thresholds an exporter runs with: whoever configures others regenerates the dashboards
    with them, or accepts that colours follow the defaults.
    """
    return Thresholds()


def alerted_by(name: str) -> float:
    """Return a number that alert rules compare with, by its name in ``alerts/thresholds.yml``.

    Raises:
        KeyError: there is no such threshold.
    """
    return float(yaml.safe_load((ALERTS / "thresholds.yml").read_text())[name]["value"])


def alerted_over(name: str) -> str:
    """Return a window that alert rules look at, by its name in ``alerts/thresholds.yml``, as PromQL writes it.

    Raises:
        KeyError: there is no such window.
    """
    return str(yaml.safe_load((ALERTS / "thresholds.yml").read_text())[name]["value"])


def alert_names() -> list[str]:
    """Return the names of all alert rules, sorted; the sign of life that always fires is not one of them.

    Raises:
        LookupError: no rule file has an alert.
    """
    names = {
        rule["alert"]
        for path in ALERTS.glob("*.rules.yml")
        for group in (yaml.safe_load(path.read_text()) or {}).get("groups", ())
        for rule in group["rules"]
        if "alert" in rule
    }
    if not names:
        raise LookupError(f"no alert rule in {ALERTS}/*.rules.yml")
    return sorted(names - {SIGN_OF_LIFE})


SIGN_OF_LIFE = "Watchdog"
"""The alert that always fires: without it, no alert at all means nothing."""

INSTALLATION = load_values()
"""What differs from one installation to another: ``alerts/values.yml``."""
OUTER = INSTALLATION.outer_labels
"""Labels around everything, where there are any: deployments of one name in two clusters are two."""
