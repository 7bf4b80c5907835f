"""The unit, by systemd's own checks."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

UNIT = Path(__file__).parents[2] / "deploy/systemd/wattline.service"
ANALYZE = shutil.which("systemd-analyze")

with_systemd = pytest.mark.skipif(ANALYZE is None, reason="systemd is not installed")


def settings() -> dict[str, str]:
    return dict(re.findall(r"^(\w+)=(.*)$", UNIT.read_text(), re.MULTILINE))


@with_systemd
def test_systemd_understands_every_line(tmp_path: Path) -> None:
    # It insists on a program that is there.
    unit = tmp_path / UNIT.name
    unit.write_text(UNIT.read_text().replace("/opt/wattline/bin/wattline", shutil.which("true") or "/bin/true"))
    told = subprocess.run([str(ANALYZE), "verify", unit], check=False, capture_output=True, text=True)
    assert (told.returncode, [line for line in told.stderr.splitlines() if UNIT.name in line]) == (0, [])


@with_systemd
def test_systemd_finds_little_that_it_exposes() -> None:
    told = subprocess.run(
        [str(ANALYZE), "security", "--offline=true", "--threshold=20", UNIT],
        check=False,
        capture_output=True,
        text=True,
    )
    assert told.returncode == 0, told.stdout


def test_it_runs_as_nobody_in_particular_with_the_gpus_and_nothing_else() -> None:
    unit = settings()
    assert unit["DynamicUser"] == "yes"
    assert unit["DevicePolicy"] == "closed"
    assert unit["DeviceAllow"] == "char-nvidia* rw"
    assert unit["ProtectSystem"] == "strict"
    assert unit["CapabilityBoundingSet"] == ""
    assert "PrivateDevices" not in unit, "it would hide the GPUs"


def test_what_it_writes_is_where_it_may_write() -> None:
    text = UNIT.read_text()
    assert settings()["StateDirectory"] == "wattline"
    assert "state_file: /var/lib/wattline/state.json" in text


def test_it_comes_back_and_reloads() -> None:
    unit = settings()
    assert unit["Restart"] == "always"
    assert unit["ExecReload"].endswith("-HUP $MAINPID")
