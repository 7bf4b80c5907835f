"""``wattline explain``: the timeline of a recording in words and as a picture."""

from __future__ import annotations

import io
import struct
import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.explain.make import EXPLAINED, GOLDEN, explained
from tests.recording.make import path_of
from tests.recording.simulated import plan
from wattline.analysis.causes import Cause, Suspicion
from wattline.analysis.snapshot import DeploymentView, EngineView, GpuView, Snapshot, State
from wattline.explain import picture
from wattline.explain import timeline as module
from wattline.explain.explain import run
from wattline.explain.lines import clock
from wattline.explain.picture import PictureError
from wattline.explain.timeline import timeline
from wattline.publish.colours import STATE_COLOURS
from wattline.readings import EngineReading, GpuIdentity, GpuSample
from wattline.recording.layout import RecordingError
from wattline.recording.reader import read_recording
from wattline.recording.replay import replay
from wattline.recording.writer import RecordingWriter

if TYPE_CHECKING:
    from collections.abc import Iterable

    from wattline.explain.timeline import Story


@pytest.mark.parametrize("scenario", EXPLAINED)
def test_people_read(scenario: str) -> None:
    assert explained(scenario) == (GOLDEN / f"{scenario}.txt").read_text()


def verdict(t: float, state: State, *causes: Cause, tokens: float | None = None) -> Snapshot:
    view = DeploymentView(
        "a",
        state,
        f"reason at {t:.0f}",
        0.0,
        (),
        ("head",),
        suspicions=tuple(Suspicion(c, f"{c} at {t:.0f}") for c in causes),
        tokens_per_second={} if tokens is None else {"generation": tokens},
    )
    return Snapshot(t=t, deployments=(view,))


def story(snapshots: Iterable[Snapshot]) -> Story:
    (only,) = timeline(snapshots).stories.values()
    return only


def test_a_stretch_lasts_until_the_next_one_begins() -> None:
    states = [State.IDLE] * 3 + [State.WORKING] * 2
    found = story(verdict(float(t), state) for t, state in enumerate(states))
    assert [(s.state, s.start, s.end) for s in found.stretches] == [(State.IDLE, 0.0, 3.0), (State.WORKING, 3.0, 4.0)]


def test_a_stretch_has_the_last_reason_and_the_causes_of_most_of_its_time() -> None:
    causes = [(), (Cause.SPINNING, Cause.NOT_FED), (Cause.SPINNING,), (Cause.SPINNING,)]
    (stretch,) = story(verdict(float(t), State.STALLED, *c) for t, c in enumerate(causes)).stretches
    assert stretch.reason == "reason at 3"
    assert [(s.cause, s.evidence) for s in stretch.causes()] == [(Cause.SPINNING, "spinning at 3")]


def test_numbers_are_those_of_the_stretch_and_not_of_the_window_before_it() -> None:
    """A verdict's window still holds what was before: here it says 999 tokens/s."""

    def moment(t: float, total: float, watts: float | None) -> Snapshot:
        whole = verdict(t, State.IDLE, tokens=999.0)
        sample = GpuSample(t, "GPU-a", power_watts=watts)
        gpu = GpuView(GpuIdentity("GPU-a", 0), "a", up=True, sample=sample)
        reading = EngineReading(t, "head", up=True)
        engine = EngineView("head", "", "a", reading, generation_tokens_total=total)
        view = replace(whole.deployments[0], gpus=("GPU-a",), power_watts=500.0, power_limit_watts=400.0)
        return replace(whole, gpus=(gpu,), engines=(engine,), deployments=(view,))

    (stretch,) = story([moment(0.0, 0.0, 90.0), moment(1.0, 10.0, None), moment(2.0, 30.0, 110.0)]).stretches
    assert stretch.tokens_per_second.value() == 15.0, "10 and 20; before the first poll there is none"
    assert stretch.power_watts.value() == 100.0
    assert stretch.tdp_fraction.value() == 0.25
    assert stretch.tokens_per_joule() == 20.0 / 110.0, "the one moment in which both are known"


def test_nothing_is_said_about_the_time_in_which_the_machine_slept() -> None:
    found = story(verdict(t, State.IDLE) for t in (0.0, 1.0, 3600.0, 3601.0))
    assert [(s.start, s.end) for s in found.stretches] == [(0.0, 1.0), (3600.0, 3601.0)]


def test_throughput_is_what_was_counted_between_two_polls() -> None:
    def polled(t: float, poll: float, total: float | None, *, up: bool = True) -> Snapshot:
        reading = EngineReading(poll, "head", up=up)
        engines = (EngineView("head", "", "a", reading, generation_tokens_total=total),)
        return Snapshot(t=t, engines=engines, deployments=verdict(t, State.WORKING).deployments)

    snapshots = [
        polled(0, 0, 100.0),
        polled(1, 0, 100.0),
        polled(5, 5, 600.0),
        polled(6, 5, 600.0),
        polled(10, 10, 600.0, up=False),
        polled(15, 15, 900.0),
    ]
    assert [p.tokens_per_second for p in story(snapshots).points] == [None, None, 100.0, 100.0, None, None]


def test_a_long_recording_does_not_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_POINTS", 100)
    monkeypatch.setattr(module, "MOST_STRETCHES", 10)
    states = (State.IDLE, State.WORKING)
    found = story(verdict(float(t), states[t % 2]) for t in range(1000))
    assert len(found.points) <= 101
    assert (found.points[0].t, found.points[-1].t) == (0.0, pytest.approx(999.0, abs=16))
    assert len(found.stretches) == 10
    assert found.too_many


@pytest.mark.parametrize(("seconds", "shown"), [(0, "0:00"), (65, "1:05"), (3599.6, "1:00:00"), (7209, "2:00:09")])
def test_time_as_people_read_it(seconds: float, shown: str) -> None:
    assert clock(seconds) == shown


def test_a_recording_that_was_cut_short_says_so(tmp_path: Path) -> None:
    content = path_of("wedged").read_bytes()
    (tmp_path / "cut.gz").write_bytes(content[: len(content) // 2])
    out = io.StringIO()
    assert run(tmp_path / "cut.gz", out=out) == 0
    assert out.getvalue().splitlines()[1].startswith("The recording is not complete: it was not closed")


def test_a_recording_without_a_verdict_says_so(tmp_path: Path) -> None:
    RecordingWriter(tmp_path / "empty.gz", plan()).close()
    out = io.StringIO()
    assert run(tmp_path / "empty.gz", out=out) == 0
    assert "Nothing was judged in it." in out.getvalue()
    with pytest.raises(PictureError, match="there is nothing to draw"):
        run(tmp_path / "empty.gz", plot=tmp_path / "a.png", out=io.StringIO())


def test_a_file_of_another_kind_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(b"no recording")
    with pytest.raises(RecordingError):
        run(tmp_path / "a.png", out=io.StringIO())


def test_a_picture_shows_power_throughput_and_every_state_in_its_colour(tmp_path: Path) -> None:
    run(path_of("wedged"), plot=tmp_path / "a.svg", out=io.StringIO())
    svg = (tmp_path / "a.svg").read_text()
    root = ET.fromstring(svg)  # noqa: S314 - our own file
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    seen = {s.state for s in timeline(replay(read_recording(path_of("wedged")))).stories["glm5"].stretches}
    assert seen == {State.UNKNOWN, State.WORKING, State.LOW_POWER, State.STALLED}
    for state in State:
        assert (STATE_COLOURS[state].lower() in svg.lower()) == (state in seen), state
    for words in ("watts", "generated tokens/s", "limit", "idle floor", "Stalled", "glm5", "wedged.jsonl.gz"):
        assert f"<!-- {words}" in svg, words


def test_the_same_recording_gives_the_same_picture(tmp_path: Path) -> None:
    for name in ("a.svg", "b.svg"):
        picture.draw(timeline(replay(read_recording(path_of("idle")))), tmp_path / name)
    assert (tmp_path / "a.svg").read_text() == (tmp_path / "b.svg").read_text()


def test_a_picture_can_be_png(tmp_path: Path) -> None:
    run(path_of("engine_down"), plot=tmp_path / "a.png", out=io.StringIO())
    content = (tmp_path / "a.png").read_bytes()
    assert content.startswith(b"\x89PNG\r\n\x1a\n")
    width, height = struct.unpack(">II", content[16:24])
    assert width == 1320
    assert height > 600


def test_other_kinds_of_pictures_are_refused_before_anything_is_read(tmp_path: Path) -> None:
    with pytest.raises(PictureError, match=r"a\.bmp: expected a name that ends in \.png or \.svg"):
        run(tmp_path / "missing.gz", plot=tmp_path / "a.bmp")


def test_without_the_library_the_message_says_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(picture, "find_spec", lambda _: None)
    with pytest.raises(PictureError, match=r"pip install 'wattline\[plot\]'"):
        run(path_of("idle"), plot=tmp_path / "a.png")


def test_a_place_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    with pytest.raises(PictureError, match="cannot be written: No such file or directory"):
        run(path_of("idle"), plot=tmp_path / "no" / "a.png", out=io.StringIO())
