"""What the real Compose does to bring up the bundle, told by an engine that runs nothing."""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path

import pytest
import yaml

from tests.bundle.engine import Engine, serving
from tests.bundle.test_compose import COMPOSE, EVERYBODY, ROOT, environment

pytestmark = pytest.mark.servers

OTHERS = {
    service["image"]
    for service in yaml.safe_load(COMPOSE.read_text())["services"].values()
    if service.get("image", "").startswith("docker.io/")
}
LOCAL = "wattline:local"


def up(program: str, engine: Engine, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Bring up the bundle."""
    # Not pytest's folder: the path of a socket has to be short.
    with tempfile.TemporaryDirectory() as folder:
        socket = Path(folder) / "socket"
        with serving(engine, socket):
            return subprocess.run(
                [program, *arguments, "up", "--detach"],
                check=False,
                capture_output=True,
                text=True,
                cwd=ROOT,
                env=environment({"DOCKER_HOST": f"unix://{socket}", "DOCKER_CONFIG": folder} | variables),
            )


@pytest.mark.parametrize(("profile", "exporter"), [("gpu", "exporter"), ("demo", "demo")])
def test_everything_starts_and_the_exporter_last(docker_compose: str, profile: str, exporter: str) -> None:
    engine = Engine(OTHERS | {LOCAL})
    done = up(docker_compose, engine, "--profile", profile)
    assert done.returncode == 0, done.stderr
    assert set(engine.started) == EVERYBODY | {exporter}
    assert engine.started[-1] == exporter


def test_without_nvidias_toolkit_everything_but_the_exporter_runs(docker_compose: str) -> None:
    engine = Engine(OTHERS | {LOCAL}, no_gpus=True)
    done = up(docker_compose, engine)
    assert done.returncode != 0
    assert "could not select device driver" in done.stderr
    assert set(engine.started) == EVERYBODY


def test_a_published_image_is_pulled_once_and_not_built(docker_compose: str) -> None:
    image = "registry.example/wattline:1"
    engine = Engine(set(OTHERS), registry={image})
    done = up(docker_compose, engine, "--profile", "demo", WATTLINE_IMAGE=image)
    assert done.returncode == 0, done.stderr
    assert engine.pulled == [image]
    assert set(engine.started) == EVERYBODY | {"demo"}


def test_what_cannot_be_pulled_is_built_once_and_before_any_container_is_created(docker_compose: str) -> None:
    """The engine here cannot build; it sees the builder of one service begin."""
    engine = Engine(set(OTHERS))
    done = up(docker_compose, engine, "--profile", "demo")
    assert done.returncode != 0
    image, builder = engine.pulled
    assert image.endswith(LOCAL)
    assert "moby/buildkit" in builder
    assert engine.containers == {}
