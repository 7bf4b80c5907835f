from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def docker_compose() -> str:
    """The program that reads compose files; it needs no engine for that. Fetched once."""
    program = ROOT / ".servers" / "trixie" / "usr" / "bin" / "docker-compose"
    if not program.exists():
        subprocess.run([ROOT / "tools" / "servers.sh", "trixie", "docker-compose"], check=True)
    return str(program)
