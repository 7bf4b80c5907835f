"""Recording a host that is read over real HTTP, and a recording in the place of a host."""

from __future__ import annotations

import asyncio
import io
import logging
import os
import signal
import socket
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, cast

import msgspec.structs
import pytest

from tests.engines.servers import Server, answer
from tests.recording.make import path_of
from tests.recording.simulated import plan
from wattline.analysis.snapshot import State
from wattline.analysis.thresholds import Thresholds
from wattline.config import ConfigError, Deployment, Engine, parse
from wattline.gpus.source import SourceError
from wattline.readings import EngineReading, GpuIdentity
from wattline.recording.layout import RecordingError, Restored
from wattline.recording.reader import read_recording
from wattline.recording.record import run
from wattline.recording.replay import replay
from wattline.recording.served import LONGEST_PAUSE, ReplaySession
from wattline.recording.writer import RecordingWriter
from wattline.session import Session
from wattline.simulation.demo import Demo

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from wattline.analysis.snapshot import Snapshot

SPEED = 30.0


class Watching(Session):
    """A session that keeps its verdicts."""

    verdicts: list[Snapshot]

    def judge(self) -> Snapshot:
        snapshot = super().judge()
        self.verdicts.append(snapshot)
        return snapshot


@pytest.fixture
async def session() -> AsyncIterator[Watching]:
    """The simulated rig in a phase that is held, scraped over HTTP, thirty times as fast as real time."""
    rig = Demo(speed=SPEED, scenario="collectives")
    url = await rig.start()
    config = msgspec.structs.replace(
        parse("", "defaults"),
        deployments=(Deployment(name="glm5", engines=(Engine(url=url, name="head"),)),),
        window=15.0,
    )
    watching = Watching(config, rig.source, clock=rig.clock.now, speed=SPEED)
    watching.verdicts = []
    yield watching
    await rig.close()


async def test_a_recorded_host_gives_the_same_verdicts_again(session: Watching, tmp_path: Path) -> None:
    path, err = tmp_path / "a.gz", io.StringIO()
    session.observer.restore_idle("GPU-51a0ded0-0000-4000-8000-000000000000", 86.0)
    assert await run(session, path, seconds=40.0, err=err) == 0
    assert err.getvalue() == "", "nothing is said but on a terminal"
    recording = read_recording(path)
    again = list(replay(recording))
    assert recording.cut_short == ""
    assert [s.t for s in again] == [s.t for s in session.verdicts]
    # A replay knows no wall clock.
    lived = [tuple(replace(d, state_since=None) for d in s.deployments) for s in session.verdicts]
    assert [s.deployments for s in again] == lived
    # On a machine that is too busy for this speed, the last poll may come late.
    assert State.LOW_POWER in {s.deployments[0].state for s in again[-15:]}
    # All but the ages of sources, which are not kept, and the buffered samples, which are kept in whole watts.
    assert [
        [replace(g, power_fraction_buckets=(), power_fraction_sum=0.0, sample=None) for g in s.gpus] for s in again
    ] == [
        [replace(g, power_fraction_buckets=(), power_fraction_sum=0.0, sample=None) for g in s.gpus]
        for s in session.verdicts
    ]
    assert Restored("GPU-51a0ded0-0000-4000-8000-000000000000", 86.0) in list(recording)


async def test_an_interrupt_ends_a_recording_well(session: Watching, tmp_path: Path) -> None:
    async def interrupt(_: float) -> None:
        if len(session.verdicts) >= 3 and any(gpu.sample for gpu in session.verdicts[-1].gpus):
            os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.sleep(0.001)

    assert await run(session, tmp_path / "a.gz", err=io.StringIO(), sleep=interrupt) == 0
    recording = read_recording(tmp_path / "a.gz")
    assert len(list(replay(recording))) >= 3
    assert recording.cut_short == ""


async def test_a_file_that_is_there_is_kept(session: Watching, tmp_path: Path) -> None:
    (tmp_path / "a.gz").write_text("precious")
    with pytest.raises(RecordingError, match="expected a new file"):
        await run(session, tmp_path / "a.gz", err=io.StringIO())
    assert (tmp_path / "a.gz").read_text() == "precious"


def entries(folder: Path) -> list[Path]:
    return list(folder.iterdir())


class NoDriver:
    name = "nvml"
    unidentified: ClassVar[dict[int, str]] = {}

    def discover(self) -> tuple[GpuIdentity, ...]:
        raise SourceError("library_not_found", "no driver")

    def close(self) -> None:
        pass


async def test_where_nothing_can_be_read_that_is_said_and_no_file_is_left(tmp_path: Path) -> None:
    """Without a driver and with a port that nobody listens on, the file held nothing and the command said nothing."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        engine = Engine(url=f"http://127.0.0.1:{unused.getsockname()[1]}/metrics", name="e")
        config = msgspec.structs.replace(parse("", "defaults"), deployments=(Deployment(engines=(engine,)),))
        err = io.StringIO()
        assert await run(Session(config, cast(Any, NoDriver())), tmp_path / "a.gz", seconds=1.0, err=err) == 2
    assert err.getvalue() == "wattline: nothing could be read: nvml: no driver; engine:e: connection_refused\n"
    assert entries(tmp_path) == []


async def test_an_engine_alone_is_worth_a_recording(tmp_path: Path) -> None:
    async with Server(answer()) as server:
        engine = Engine(url=server.url, name="e")
        config = msgspec.structs.replace(parse("", "defaults"), deployments=(Deployment(engines=(engine,)),))
        err = io.StringIO()
        assert await run(Session(config, None), tmp_path / "a.gz", seconds=1.0, err=err) == 0
    assert err.getvalue() == ""
    assert any(isinstance(event, EngineReading) and event.up for event in read_recording(tmp_path / "a.gz"))


async def test_a_recording_takes_a_second_at_least(session: Watching, tmp_path: Path) -> None:
    for seconds in (0.0, 0.9):
        with pytest.raises(ConfigError, match=rf"^--for: expected at least 1s, found {seconds:g}s$"):
            await run(session, tmp_path / "a.gz", seconds=seconds, err=io.StringIO())
    assert entries(tmp_path) == []


class Clock:
    t = 500.0

    def __call__(self) -> float:
        return self.t


def test_a_replay_shows_each_verdict_when_it_is_due() -> None:
    recording = read_recording(path_of("collectives"))
    recorded = list(replay(recording))
    clock = Clock()
    session = ReplaySession(recording, speed=4.0, clock=clock)
    assert session.beat() == 0.25
    assert session.judge() == recorded[0]
    clock.t += 0.25
    assert session.judge() == recorded[1]
    clock.t += 0.2
    assert session.judge() == recorded[1], "the next one is not due yet"
    clock.t += 7.3
    # Whoever asks rarely still gets the time in each state: the verdicts between were given.
    assert session.judge() == recorded[31]


def test_after_its_end_a_replay_knows_nothing_any_more(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "wattline.replay")
    recording = read_recording(path_of("collectives"))
    clock = Clock()
    session = ReplaySession(recording, clock=clock)
    session.judge()
    assert caplog.records == []
    clock.t += 45.0
    assert session.judge().deployments[0].state is State.LOW_POWER
    clock.t += 30.0
    snapshot = session.judge()
    assert session.over
    assert snapshot.deployments[0].state is State.UNKNOWN
    assert not any(gpu.up for gpu in snapshot.gpus)
    assert [r.message for r in caplog.records] == ["The recording is over"]


def test_a_damaged_recording_is_replayed_as_far_as_it_goes(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    content = bytearray(path_of("collectives").read_bytes())
    content[len(content) // 2] ^= 0x55
    (tmp_path / "a.gz").write_bytes(content)
    clock = Clock()
    session = ReplaySession(read_recording(tmp_path / "a.gz"), clock=clock)
    assert session.judge().t == 0.0
    clock.t += 100.0
    session.judge()
    assert "The rest of the recording is not understood" in caplog.text
    assert session.judge().deployments[0].state is State.UNKNOWN


def test_nobody_waits_through_a_night(tmp_path: Path) -> None:
    with RecordingWriter(tmp_path / "a.gz", plan()) as writer:
        for t in (0.0, 1.0, 40_000.0, 40_001.0):
            writer.judge(t)
    clock = Clock()
    session = ReplaySession(read_recording(tmp_path / "a.gz"), clock=clock)
    shown = []
    for _ in range(14):
        shown.append(session.judge().t)
        clock.t += 1.0
    assert shown == [0.0, *[1.0] * int(LONGEST_PAUSE), 40_000.0, 40_001.0, 40_002.0]


def test_a_replay_may_be_judged_by_another_configuration() -> None:
    recording = read_recording(path_of("collectives"))
    clock = Clock()
    lenient = replace(recording.header.plan, thresholds=Thresholds(low_tdp_fraction=0.40))
    session = ReplaySession(recording, plan=lenient, clock=clock)
    session.judge()
    clock.t += 45.0
    assert session.judge().deployments[0].state is State.WORKING


def test_an_empty_recording_knows_nothing(tmp_path: Path) -> None:
    RecordingWriter(tmp_path / "a.gz", plan()).close()
    session = ReplaySession(read_recording(tmp_path / "a.gz"), clock=Clock())
    assert session.judge().deployments[0].state is State.UNKNOWN
