"""Puts the files that `exporter/wattline/shipped.py` lists into the wheel: a build hook of hatchling."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

ROOT = Path(__file__).parents[1]


class ShippedFiles(BuildHookInterface):  # type: ignore[type-arg] # generic only for type checkers
    """The hook."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Add the files, except to an installation in place: that finds them where they are."""
        if version == "editable":
            return
        spec = importlib.util.spec_from_file_location("shipped", ROOT / "exporter" / "wattline" / "shipped.py")
        if spec is None or spec.loader is None:
            raise RuntimeError("exporter/wattline/shipped.py cannot be loaded")
        shipped = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(shipped)
        build_data["force_include"] |= {str(ROOT / path): f"wattline/shipped/{path}" for path in shipped.files()}
