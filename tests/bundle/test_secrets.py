"""A secret that is put down as the documents say is read by Alertmanager's container, and by nobody else."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SECRETS = Path("deploy/compose/secrets")
ALERTMANAGER, EXPORTER = 65534, 65532

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")


def read_by(user: int, folder: Path) -> subprocess.CompletedProcess[str]:
    """Read the secret as a container does: what lies above a mount does not count, its own folder does."""
    return subprocess.run(
        ["cat", "slack_url"], check=False, capture_output=True, text=True, cwd=folder, user=user, group=user
    )


@pytest.fixture(params=["docs/deployment.md", SECRETS / "README.md"], ids=["deployment", "README"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """The folder of a clone in which the document was followed, without the sudo that root does not need."""
    (command,) = re.findall(r"^sudo (install [^<]*slack_url <<< )", (ROOT / request.param).read_text(), re.MULTILINE)
    secrets = tmp_path / SECRETS
    secrets.mkdir(parents=True)
    secrets.chmod((ROOT / SECRETS).stat().st_mode & 0o777)
    subprocess.run(["bash", "-c", f"{command} https://slack.example/s3cret"], check=True, cwd=tmp_path)
    return secrets


def test_alertmanager_reads_its_secret(folder: Path) -> None:
    assert read_by(ALERTMANAGER, folder).stdout == "https://slack.example/s3cret\n"


def test_the_exporter_that_has_the_folder_mounted_too_cannot_read_it(folder: Path) -> None:
    assert "Permission denied" in read_by(EXPORTER, folder).stderr


def test_a_closed_folder_keeps_alertmanager_out(folder: Path) -> None:
    """The document says so; the folder must stay open."""
    folder.chmod(0o700)
    assert "Permission denied" in read_by(ALERTMANAGER, folder).stderr
