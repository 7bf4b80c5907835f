"""Any file is read, or refused with its name, the line and what was expected there."""

from __future__ import annotations

import gzip
import json
import zlib
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.recording.make import path_of
from tests.recording.simulated import plan
from wattline.readings import GpuSample
from wattline.recording import layout, reader
from wattline.recording.layout import RecordingError
from wattline.recording.reader import read_recording
from wattline.recording.replay import replay
from wattline.recording.writer import RecordingWriter

if TYPE_CHECKING:
    from pathlib import Path

WHOLE = path_of("host_bound").read_bytes()
LINES = gzip.decompress(WHOLE).splitlines(keepends=True)
HEADER = LINES[0]
SAMPLE = b'{"sample":{"t":1.0,"uuid":"GPU-a","power_watts":90.0}}\n'


def problem_of(path: Path) -> str:
    """The message that replaying the whole file ends with."""
    with pytest.raises(RecordingError) as raised:
        for _ in replay(read_recording(path)):
            pass
    return str(raised.value)


def written(path: Path, *lines: bytes) -> Path:
    path.write_bytes(gzip.compress(b"".join(lines)))
    return path


def with_header(**changes: Any) -> bytes:
    return json.dumps({**json.loads(HEADER), **changes}).encode() + b"\n"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "a.gz"


def test_no_such_file(file: Path) -> None:
    assert problem_of(file) == f"{file}: cannot be read: No such file or directory"


def test_a_folder(tmp_path: Path) -> None:
    assert problem_of(tmp_path) == f"{tmp_path}: cannot be read: Is a directory"


def test_an_empty_file(file: Path) -> None:
    file.touch()
    assert problem_of(file) == f"{file}: expected a recording, found an empty file"


@pytest.mark.parametrize("length", [1, 2, 5, 20, 400])
def test_a_file_cut_within_its_first_line_was_not_empty(file: Path, length: int) -> None:
    """Of a copy that broke off there may be more to be had; of an empty file there is not."""
    file.write_bytes(WHOLE[:length])
    expected = "expected a recording, found one that was cut short before its first line was whole"
    assert problem_of(file) == f"{file}: {expected}"
    written(file, HEADER[:-1])
    assert problem_of(file) == f"{file}: {expected}", "the same where the end of the file is right"


def test_a_file_of_another_kind(file: Path) -> None:
    file.write_bytes(b"\x89PNG\r\n\x1a\n and so on")
    assert "expected a file that 'wattline record' wrote, found '\ufffdPNG\\r\\n\\x1a\\n'" in problem_of(file)


def test_compressed_text_of_another_kind(file: Path) -> None:
    written(file, b"# HELP up\n")
    assert problem_of(file).startswith(f"{file}:1: expected the header of a wattline-recording")


def test_json_of_another_kind(file: Path) -> None:
    written(file, b'{"format": "wattline-state", "version": 1}\n')
    assert problem_of(file).startswith(f"{file}:1: expected the header of a wattline-recording, found '{{")


def test_a_recording_of_a_later_version(file: Path) -> None:
    written(file, with_header(version=2))
    assert problem_of(file) == f"{file}:1: expected version 1 of the format, found '2'"


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"plan": {"window": -60.0}}, "expected plan.window from 1 to 3600 s, found -60"),
        ({"plan": {"engine_interval": 0.0}}, "expected plan.engine_interval from 0.05 to 300 s, found 0"),
        ({"plan": {"window": "long"}}, "Expected `float`, got `str` - at `$.plan.window`"),
        ({"plan": {"deployments": [{"name": "a"}, {"name": "a"}]}}, "expected deployments with different names"),
        ({"plan": {"thresholds": {"low_tdp_fraction": 7}}}, "at `$.plan.thresholds.low_tdp_fraction`"),
    ],
)
def test_a_header_that_asks_for_the_impossible(file: Path, changes: dict[str, Any], problem: str) -> None:
    written(file, with_header(**changes))
    assert problem_of(file).startswith(f"{file}:1: ")
    assert problem in problem_of(file)


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        (b"{}\n", "expected one event, found '{}'"),
        (b"\n", "expected one event, found ''"),
        (b"no JSON\n", "expected one event, found 'no JSON': JSON is malformed"),
        (b'{"video":{}}\n', "unknown field `video`"),
        (b'{"sample":{"t":1.0}}\n', "missing required field `uuid`"),
        (b'{"sample":{"t":-1,"uuid":"a"}}\n', "expected t from 0 to 1e+12 s, found -1"),
        (b'{"sample":{"t":1,"uuid":"a","power_watts":1e300}}\n', "expected numbers up to 1e+18, found 1e+300"),
        (b'{"idle_floor":{"uuid":"a","watts":-1}}\n', "at `$.idle_floor.watts`"),
        (b'{"gone":{"t":1,"uuid":"a"},"judged":{"t":1}}\n', "expected one event"),
        (b'{"judged":{"t":1,"sources":' + b"[" * 5000 + b"\n", "expected one event"),
    ],
)
def test_a_line_that_is_no_event(file: Path, line: bytes, problem: str) -> None:
    written(file, HEADER, SAMPLE, line)
    assert problem_of(file).startswith(f"{file}:3: ")
    assert problem in problem_of(file)


def test_a_damaged_byte_is_noticed(file: Path) -> None:
    damaged = bytearray(WHOLE)
    damaged[len(damaged) // 2] ^= 0x55
    file.write_bytes(damaged)
    assert problem_of(file).startswith(f"{file}:")


def test_what_follows_the_end_is_not_overlooked(file: Path) -> None:
    file.write_bytes(WHOLE + gzip.compress(SAMPLE))
    assert problem_of(file) == f"{file}: expected nothing after its end, found more"


def test_a_recording_cut_short_reads_up_to_the_cut_and_says_so(file: Path) -> None:
    everything = list(read_recording(path_of("host_bound")))
    file.write_bytes(WHOLE[: len(WHOLE) * 2 // 3])
    recording = read_recording(file)
    events = list(recording)
    assert events == everything[: len(events)]
    assert len(events) > len(everything) // 3
    assert recording.cut_short.startswith("it was not closed")


def test_a_whole_file_that_ends_within_a_line_says_so(file: Path) -> None:
    written(file, HEADER, SAMPLE, SAMPLE[:20])
    recording = read_recording(file)
    assert [type(event) for event in recording] == [GpuSample]
    assert recording.cut_short == "it ends within a line"


def test_a_process_that_is_killed_leaves_all_but_the_last_half_minute(file: Path) -> None:
    writer = RecordingWriter(file, plan())
    for second in range(100):
        writer.write(GpuSample(float(second), "GPU-a", power_watts=100.0 + second))
        writer.judge(float(second))
    # Nothing is closed: the file as a kill would leave it.
    recording = read_recording(file)
    times = [event.t for event in recording if isinstance(event, GpuSample)]
    assert times[-1] >= 90.0
    assert recording.cut_short
    writer.close()
    assert [event.t for event in recording if isinstance(event, GpuSample)][-1] == 99.0
    assert recording.cut_short == ""


def test_a_line_without_end_is_refused_before_it_fills_the_memory(file: Path) -> None:
    # 64 MiB of one line in 64 KiB; all that is ever held of it is one line's bound and one piece.
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    packed = packer.compress(HEADER) + b"".join(packer.compress(bytes(1 << 20)) for _ in range(64)) + packer.flush()
    file.write_bytes(packed)
    assert problem_of(file) == f"{file}:2: expected a line of at most {layout.MAX_LINE_BYTES} bytes, found a longer one"


def test_a_file_that_unpacks_without_end_is_refused(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "MAX_BYTES", 1 << 20)
    written(file, HEADER, SAMPLE * 40_000)
    assert "expected at most 0 GiB unpacked, found more" in problem_of(file)


def test_more_gpus_than_any_host_has_are_refused(file: Path) -> None:
    gpus = (b'{"gpu":{"uuid":"GPU-%d","index":0}}\n' % i for i in range(layout.MAX_GPUS + 1))
    written(file, HEADER, *gpus)
    assert problem_of(file) == f"{file}:258: expected at most 256 different GPUs, found more"


def test_more_reasons_than_any_driver_has_are_refused(file: Path) -> None:
    lines = (b'{"sample":{"t":1,"uuid":"a","event_reasons":["%d"]}}\n' % i for i in range(layout.MAX_REASONS + 1))
    written(file, HEADER, *lines)
    assert "expected at most 64 different clocks event reasons, found more" in problem_of(file)


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=300))
@example(b"\x1f\x8b")
@example(gzip.compress(b""))
@example(gzip.compress(b"\n\n"))
def test_any_bytes_either_load_or_are_refused(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    path = tmp_path_factory.mktemp("any") / "file"
    path.write_bytes(content)
    with suppress(RecordingError):
        list(replay(read_recording(path)))


@settings(max_examples=200, deadline=None)
@given(st.integers(0, len(WHOLE) - 1), st.integers(1, 255), st.integers(0, len(WHOLE)))
def test_a_recording_with_a_damaged_byte_or_a_cut_either_loads_or_is_refused(
    tmp_path_factory: pytest.TempPathFactory, place: int, damage: int, length: int
) -> None:
    content = bytearray(WHOLE)
    content[place] ^= damage
    path = tmp_path_factory.mktemp("damaged") / "file"
    path.write_bytes(content[:length])
    with suppress(RecordingError):
        list(replay(read_recording(path)))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
NUMBER = st.integers(-5, 200) | st.floats(allow_nan=False, allow_infinity=False)


@st.composite
def damaged_lines(draw: st.DrawFn) -> list[bytes]:
    """Real lines in which values have been replaced: well-formed all the way to the analysis."""
    lines = []
    for at in draw(st.lists(st.integers(0, min(300, len(LINES) - 1)), min_size=1, max_size=30)):
        line = json.loads(LINES[at])
        inner = line[next(iter(line))]
        if isinstance(inner, dict) and draw(st.booleans()):
            inner[draw(st.sampled_from(sorted(inner)))] = draw(NUMBER | JSON)
        lines.append(json.dumps(line).encode() + b"\n")
    return lines


@settings(max_examples=150, deadline=None)
@given(damaged_lines())
def test_readings_that_no_hardware_gives_either_replay_or_are_refused(
    tmp_path_factory: pytest.TempPathFactory, lines: list[bytes]
) -> None:
    path = tmp_path_factory.mktemp("values") / "file"
    written(path, HEADER, *lines, b'{"judged":{"t":60}}\n')
    with suppress(RecordingError):
        list(replay(read_recording(path)))
