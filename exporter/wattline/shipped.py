"""The files that are installed beside the code: rules, dashboards, runbooks, compose file, chart.

In the repository they lie at its top. A wheel carries them in ``wattline/shipped/`` under the same paths; the build
takes them from here (``tools/wheel_files.py``), so this module imports nothing but the standard library.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

FILES = (
    ".env.example",
    "alerts/*.yml",
    "alerts/examples/*.yml",
    "alerts/templates/*.tmpl",
    "alerts/webhook_log.py",
    "dashboards/*.json",
    "dashboards/provisioning/**/*",
    "deploy/compose/*",
    "deploy/compose/secrets/README.md",
    "deploy/compose/secrets/.gitignore",
    "deploy/helm/wattline/**/*",
    "deploy/prometheus/**/*",
    "deploy/systemd/*",
    "docker-compose*.yml",
    "docs/runbooks/*.md",
    "requirements.txt",
)
"""What is shipped, as patterns. Secrets that somebody put into a checkout are not."""

_PACKAGE = Path(__file__).parent
_INSTALLED = _PACKAGE / "shipped"
ROOT = _INSTALLED if _INSTALLED.is_dir() else _PACKAGE.parents[1]
"""The folder that holds them."""
RUNBOOKS = ROOT / "docs" / "runbooks"


def files() -> Iterator[Path]:
    """Every shipped file, relative to :data:`ROOT`, in order."""
    found = {path for pattern in FILES for path in ROOT.glob(pattern) if path.is_file()}
    return (path.relative_to(ROOT) for path in sorted(found) if "__pycache__" not in path.parts)
