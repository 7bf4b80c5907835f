from __future__ import annotations

import ctypes
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.nvml.conftest import _shut_down
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


@pytest.fixture
def gpus(standin: StandIn, monkeypatch: pytest.MonkeyPatch) -> Iterator[StandIn]:
    """Two H200s without an energy counter, for this process and its virtual time."""
    # Asked for libnvidia-ml.so.1, the loader gives what is loaded under that name already.
    ctypes.CDLL(str(standin.library))
    clock = standin.control.with_name("clock")
    clock.write_bytes(bytes(8))
    for name, value in standin.environment.items() | {("NVML_STANDIN_CLOCK", str(clock))}:
        monkeypatch.setenv(name, value)
    standin.say("* nvmlDeviceGetTotalEnergyConsumption error=3", "* nvmlDeviceGetSamples.0 error=3")
    yield standin
    standin.say("* * hang=0", "- * hang=0", "- nvmlShutdown value=0")
    _shut_down()
