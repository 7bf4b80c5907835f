"""A GPU that this host has had is missed over a restart, until somebody says that it was taken out."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.nvml.conftest import library, standin  # noqa: F401 - fixtures
from tests.nvml.reading import NOWHERE
from tests.nvml.standin import StandIn, bus_id, uuid
from wattline import cli
from wattline.analysis.snapshot import Snapshot, State
from wattline.config import load
from wattline.gpus.nvml import NvmlSource
from wattline.session import Session
from wattline.state import KnownGpu, Memory, StateFile

A, B, GONE = uuid(0), uuid(1), uuid(7)
HAD = Memory(idle_power_watts={GONE: 87.0}, gpus={GONE: KnownGpu(index=7, pci_bus_id=bus_id(7), name="NVIDIA H200")})


@pytest.fixture
def configuration(tmp_path: Path) -> Path:
    file = tmp_path / "wattline.yml"
    # An engine that nobody serves, and all GPUs.
    file.write_text(
        "deployments: [{engines: [{url: 'http://127.0.0.1:9/metrics'}], gpus: all}]\n"
        "state_file: state.json\nsample_interval: 200ms\nengine_interval: 1s\nwindow: 3s\n"
    )
    StateFile(tmp_path / "state.json").save(HAD)
    return file


async def judged(session: Session, *, up: dict[str, bool]) -> Snapshot:
    """The first verdict with just these GPUs."""
    async with asyncio.timeout(20):
        while True:
            snapshot = session.judge()
            if {gpu.identity.uuid: gpu.up for gpu in snapshot.gpus} == up:
                return snapshot
            await asyncio.sleep(0.02)


def run(*arguments: object) -> int:
    return cli.main([*map(str, arguments)])


async def test_it_is_lost_until_it_is_forgotten_by_command(
    standin: StandIn,  # noqa: F811 - the fixture
    configuration: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    file = configuration.parent / "state.json"
    session = Session(load(configuration), NvmlSource(inventory=NOWHERE), persist=True)
    await session.start()
    try:
        snapshot = await judged(session, up={A: True, B: True, GONE: False})
        (deployment,) = snapshot.deployments
        assert deployment.gpus == (A, B, GONE)
        assert deployment.state is State.UNKNOWN
        assert deployment.power_watts is None, "a sum over a part of the GPUs would be wrong"
        async with asyncio.timeout(20):
            while set(StateFile(file).load().gpus) != {A, B, GONE}:
                session.judge()
                await asyncio.sleep(0.02)

        assert await asyncio.to_thread(run, "forget", "7", "--config.file", configuration) == 0
        assert f"GPU 7 ({GONE}, NVIDIA H200 at {bus_id(7)}) is forgotten." in capsys.readouterr().out
        session._looked_at -= 60.0
        await judged(session, up={A: True, B: True})
        async with asyncio.timeout(20):
            while StateFile(file).load().forgotten:  # noqa: ASYNC110 - a file tells nobody that it has changed
                await asyncio.sleep(0.02)
    finally:
        await session.stop()
    left = StateFile(file).load()
    assert (set(left.gpus), left.idle_power_watts) == ({A, B}, {})


def test_a_gpu_that_is_not_known_is_an_error(configuration: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = (configuration.parent / "state.json").read_bytes()
    assert run("forget", "3", "--config.file", configuration) == 2
    said = capsys.readouterr().err
    assert "state.json: found no GPU by '3', expected one of:" in said
    assert f"7  {GONE}  {bus_id(7)}  NVIDIA H200" in said
    assert (configuration.parent / "state.json").read_bytes() == before


def test_without_a_state_file_nothing_can_be_forgotten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("forget", "3") == 2
    assert "state_file: expected one in a configuration file (--config.file), found none" in capsys.readouterr().err
