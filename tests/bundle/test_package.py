"""The distributions that a release publishes, built and installed as a user would."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import helm_python
import pytest
import yaml

from tests.bundle.test_compose import config
from wattline import __version__
from wattline.shipped import files

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent


def run(*command: str | Path, **more: Any) -> str:
    told = subprocess.run(command, check=False, capture_output=True, text=True, **more)
    assert told.returncode == 0, told.stdout + told.stderr
    return str(told.stdout)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a wheel and a source distribution."""
    folder = tmp_path_factory.mktemp("dist")
    run(BIN / "hatchling", "build", "--directory", folder, cwd=ROOT)
    return folder


@pytest.fixture(scope="module")
def wheel(built: Path) -> Path:
    (found,) = built.glob("*.whl")
    return found


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel, installed after another distribution that has a module `exporter`."""
    folder = tmp_path_factory.mktemp("installed")
    other = tmp_path_factory.mktemp("other")
    (other / "exporter").mkdir()
    (other / "exporter" / "__init__.py").write_text("WHOSE = 'another distribution'\n")
    (other / "pyproject.toml").write_text(
        '[build-system]\nrequires = ["hatchling"]\nbuild-backend = "hatchling.build"\n'
        '[project]\nname = "other-exporter"\nversion = "1"\n'
        '[tool.hatch.build.targets.wheel]\npackages = ["exporter"]\n'
    )
    run(BIN / "hatchling", "build", "--target", "wheel", "--directory", other / "dist", cwd=other)
    for each in (*other.glob("dist/*.whl"), wheel):
        run(sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-index", "--target", folder, each)
    return folder


def python(installed: Path, *arguments: str | Path) -> str:
    """What Python prints where the distributions are installed, away from the repository."""
    return run(sys.executable, *arguments, cwd=installed, env={**os.environ, "PYTHONPATH": str(installed)})


def test_the_wheel_is_clean(wheel: Path) -> None:
    run(BIN / "check-wheel-contents", wheel, cwd=ROOT)


def test_the_wheel_has_one_top_level_module(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[0] for name in names} == {"wattline", f"wattline-{__version__}.dist-info"}


def test_the_wheel_carries_what_is_shipped_and_no_secret(wheel: Path) -> None:
    prefix = "wattline/shipped/"
    carried = {name.removeprefix(prefix) for name in zipfile.ZipFile(wheel).namelist() if name.startswith(prefix)}
    assert carried == {str(path) for path in files()}
    assert {n for n in carried if "secrets/" in n} == {
        f"deploy/compose/secrets/{n}" for n in (".gitignore", "README.md")
    }


def test_the_source_distribution_can_be_built_from_and_tested(built: Path) -> None:
    (found,) = built.glob("*.tar.gz")
    with tarfile.open(found) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"Makefile", "tools/wheel_files.py", "tests/conftest.py", "requirements-dev.txt", "Dockerfile"} <= names
    assert {str(path) for path in files()} <= names


def test_it_lives_beside_a_distribution_with_a_module_called_exporter(installed: Path) -> None:
    code = "import exporter, wattline, wattline.cli; print(exporter.WHOSE, wattline.__version__)"
    assert python(installed, "-c", code) == f"another distribution {__version__}\n"


def test_an_installed_package_writes_a_bundle_that_can_be_deployed(
    installed: Path, tmp_path: Path, docker_compose: str
) -> None:
    bundle = tmp_path / "bundle"
    told = python(installed, "-m", "wattline", "bundle", bundle)
    assert told.startswith(f"{bundle}: ")
    assert {str(p.relative_to(bundle)) for p in bundle.rglob("*") if p.is_file()} == {
        "Dockerfile",
        *(str(path) for path in files()),
    }
    assert f"wattline=={__version__}" in (bundle / "Dockerfile").read_text()
    for profile in ("gpu", "demo"):
        services = config(docker_compose, "--profile", profile, cwd=bundle)["services"]
        for mount in (m for s in services.values() for m in s.get("volumes", ()) if m["type"] == "bind"):
            assert Path(mount["source"]).exists(), mount
    chart = helm_python.Chart.load(bundle / "deploy" / "helm" / "wattline")
    rendered = chart.render(
        {"image": {"repository": "r"}, "prometheusRule": {"enabled": True}}, name="w", namespace="n"
    )
    assert any("InferenceStalled" in text for text in rendered.values())
    rules = yaml.safe_load((bundle / "alerts" / "wattline.rules.yml").read_text())
    assert rules == yaml.safe_load((ROOT / "alerts" / "wattline.rules.yml").read_text())


def test_a_bundle_never_mixes_with_what_is_there(tmp_path: Path) -> None:
    (tmp_path / "docker-compose.yml").write_text("mine")
    told = subprocess.run([BIN / "wattline", "bundle", tmp_path], check=False, capture_output=True, text=True)
    assert told.returncode == 2
    assert told.stderr == f"wattline: {tmp_path}: found files in it, expected a new or empty directory\n"
    assert (tmp_path / "docker-compose.yml").read_text() == "mine"


def test_a_runbook_opens_where_only_the_package_is(installed: Path) -> None:
    assert "InferenceStalled" in python(installed, "-m", "wattline", "runbook").split()
    assert "Mitigation" in python(installed, "-m", "wattline", "runbook", "InferenceStalled")


def test_an_unknown_runbook_names_those_that_exist() -> None:
    told = subprocess.run([BIN / "wattline", "runbook", "Nope"], check=False, capture_output=True, text=True)
    assert told.returncode == 2
    assert "found no runbook 'Nope', expected one of AlertmanagerDown, AlertmanagerNotificationsFailing," in told.stderr


def test_the_workflows_are_what_the_service_accepts() -> None:
    run(BIN / "check-jsonschema", "--builtin-schema", "vendor.github-workflows", *ROOT.glob(".github/workflows/*.yml"))
