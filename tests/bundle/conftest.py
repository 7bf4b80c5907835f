from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session", params=["trixie", "sid"])
def docker_compose(request: pytest.FixtureRequest) -> str:
    """The program that reads compose files, in an old and a new release; it needs no engine for that. Fetched once."""
    program = ROOT / ".servers" / request.param / "usr" / "bin" / "docker-compose"
    if not program.exists():
        subprocess.run([ROOT / "tools" / "servers.sh", request.param, "docker-compose"], check=True)
    return str(program)
