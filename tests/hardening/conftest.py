from __future__ import annotations

from pathlib import Path

import pytest

from tests.nvml.standin import StandIn, build, h200


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("nvml"))


@pytest.fixture
def standin(library: Path, tmp_path: Path) -> StandIn:
    """Two H200s, for another process: see ``serving``."""
    folder = tmp_path / "standin"
    folder.mkdir()
    return StandIn(library, folder, h200(2))
