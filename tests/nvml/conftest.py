from __future__ import annotations

import ctypes
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pynvml
import pytest

from tests.nvml.standin import StandIn, build, h200


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("nvml"))


@pytest.fixture
def standin(library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[StandIn]:
    """Two H200s; nvidia-ml-py of this process loads the stand-in."""
    # Asked for libnvidia-ml.so.1, the loader gives what is loaded under that name already.
    ctypes.CDLL(str(library))
    standin = StandIn(library, tmp_path, h200(2))
    for name, value in standin.environment.items():
        monkeypatch.setenv(name, value)
    yield standin
    standin.say("* * hang=0", "- * hang=0", "- nvmlShutdown value=0")
    _shut_down()


def _shut_down() -> None:
    """Leave the library as a test expects to find it, whatever the last one did."""
    try:
        while True:
            pynvml.nvmlShutdown()
    except pynvml.NVMLError:
        pass


@pytest.fixture
def in_new_process(library: Path, tmp_path: Path) -> Callable[..., str]:
    """Run Python lines in a process that has loaded nothing yet; gives what they print."""

    def run(code: str, environment: dict[str, str] | None = None) -> str:
        done = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(code)],
            env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(Path(__file__).parents[2]), **(environment or {})},
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        )
        return done.stdout

    return run
