"""What stands in a recording and what does not."""

from __future__ import annotations

import gzip
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pytest

from tests.recording.simulated import plan, watch
from wattline import __version__
from wattline.analysis.plan import DeploymentPlan, EnginePlan, GpuOverride, Plan
from wattline.analysis.snapshot import SourceView
from wattline.readings import EngineReading, GpuActivity, GpuCondition, GpuGone, GpuIdentity, GpuProcess, GpuSample
from wattline.recording.layout import Judged, RecordingError, Restored, bare_url
from wattline.recording.reader import read_recording
from wattline.recording.replay import replay
from wattline.recording.writer import RecordingObserver, RecordingWriter

if TYPE_CHECKING:
    from wattline.readings import Reading

A, B = "GPU-ab12cd34-0000-0000-0000-00000000000a", "GPU-ab12cd34-0000-0000-0000-00000000000b"
NAMED = Plan(
    deployments=(
        DeploymentPlan(
            "secret-customer",
            (EnginePlan("gpu-host-17:30000", "http://gpu-host-17.corp.example:30000/metrics?token=hunter2"),),
            (A.upper(), 1, "00000000:C1:00.0"),
        ),
        DeploymentPlan("other", (EnginePlan("gpu-host-18:30000", "http://user:hunter2@gpu-host-18:30000/metrics"),)),
    ),
    overrides={A: GpuOverride(idle_power_watts=90.0)},
)
READINGS: tuple[Reading, ...] = (
    GpuIdentity(A, 0, "NVIDIA H200", "00000000:C1:00.0"),
    GpuIdentity(B, 1, "NVIDIA H200", "00000000:C2:00.0"),
    GpuSample(1.0, A, power_watts=100.0),
    GpuActivity(1.0, B, sm_active_ratio=0.5),
    GpuCondition(1.0, A, limit_enforced_watts=700.0, processes=(GpuProcess(31337, 5), GpuProcess(31338, None))),
    EngineReading(1.0, "gpu-host-17:30000", up=True, model="/srv/secret-customer/llama", version="0.5.17", running=3.0),
    EngineReading(1.0, "gpu-host-18:30000", up=False, error="dns"),
)
SOURCES = (
    SourceView(A, up=True, age_seconds=0.3, errors={"unknown": 2}),
    SourceView("nvml", up=True),
    SourceView("engine:gpu-host-18:30000", up=False, detail="gpu-host-18 has no address"),
)
FULL = Path("/dev/full")
PRIVATE = ("secret", "customer", "host-1", "corp", "hunter2", "llama", "srv", "ab12cd34", "31337", "31338")


def record(path: Path, *, anonymous: bool) -> str:
    """Write all of the above, and answer the text in the file."""
    with RecordingWriter(path, NAMED, anonymous=anonymous) as writer:
        writer.restore_idle(A, 88.0)
        for reading in READINGS:
            writer.write(reading)
        writer.write(GpuGone(2.0, B))
        writer.judge(2.0, SOURCES)
    return gzip.decompress(path.read_bytes()).decode()


def test_no_password_and_no_key_of_an_address_is_written(tmp_path: Path) -> None:
    text = record(tmp_path / "a.gz", anonymous=False)
    assert "hunter2" not in text
    assert "gpu-host-17.corp.example:30000/metrics" in text


@pytest.mark.parametrize(
    ("url", "bare"),
    [
        ("https://user:pw@host:1/metrics?key=x#y", "https://host:1/metrics"),
        ("http://[::1]:30000/metrics", "http://[::1]:30000/metrics"),
        ("http://host", "http://host"),
        ("host:30000/metrics?key=x", ""),
        ("http://host:port/?key=x", ""),
        ("", ""),
    ],
)
def test_an_address_is_bared_of_all_that_may_be_a_key(url: str, bare: str) -> None:
    assert bare_url(url) == bare


def test_an_anonymous_recording_holds_no_name_in_any_line(tmp_path: Path) -> None:
    named = record(tmp_path / "named.gz", anonymous=False).lower()
    anonymous = record(tmp_path / "anonymous.gz", anonymous=True).lower()
    assert [word for word in PRIVATE if word in anonymous] == []
    # The test itself looks for the right words.
    assert [word for word in PRIVATE if word not in named] == ["hunter2"]


def test_one_name_is_one_pseudonym_throughout(tmp_path: Path) -> None:
    record(tmp_path / "a.gz", anonymous=True)
    recording = read_recording(tmp_path / "a.gz")
    events = list(recording)
    gpu = "GPU-00000000-0000-0000-0000-000000000001"
    first, second = recording.header.plan.deployments
    assert (first.name, first.engines) == ("deployment-1", (EnginePlan("engine-1"),))
    assert (second.name, second.engines) == ("deployment-2", (EnginePlan("engine-2"),))
    assert first.gpus == (gpu, 1, "00000000:C1:00.0")
    assert set(recording.header.plan.overrides) == {gpu}
    assert events[0] == Restored(gpu, 88.0)
    assert [e.uuid for e in events if isinstance(e, (GpuIdentity, GpuSample, GpuCondition))] == [
        gpu,
        "GPU-00000000-0000-0000-0000-000000000002",
        gpu,
        gpu,
    ]
    assert [e.processes for e in events if isinstance(e, GpuCondition)] == [(GpuProcess(1, 5), GpuProcess(2, None))]
    engines = [e for e in events if isinstance(e, EngineReading)]
    assert [(e.engine, e.model) for e in engines] == [("engine-1", "model-1"), ("engine-2", None)]
    (judged,) = [e for e in events if isinstance(e, Judged)]
    assert [(s.name, s.detail) for s in judged.sources or ()] == [(gpu, ""), ("nvml", ""), ("engine:engine-2", "")]


def test_an_anonymous_recording_gives_the_same_states_and_causes(tmp_path: Path) -> None:
    with RecordingWriter(tmp_path / "a.gz", plan(30.0), anonymous=True) as writer:
        live = list(watch(RecordingObserver(plan(30.0), writer), "collectives", 0.0, 60.0))
    replayed = list(replay(read_recording(tmp_path / "a.gz")))
    assert [s.deployments[0].state for s in replayed] == [s.deployments[0].state for s in live]
    assert replayed[-1].deployments[0].suspicions == live[-1].deployments[0].suspicions


def test_the_header_says_what_it_is(tmp_path: Path) -> None:
    text = record(tmp_path / "a.gz", anonymous=True)
    header = msgspec.json.decode(text.splitlines()[0])
    assert (header["format"], header["version"], header["wattline"], header["anonymous"]) == (
        "wattline-recording",
        1,
        __version__,
        True,
    )
    assert header["plan"]["window"] == 60.0
    assert header["plan"]["thresholds"]["busy_requests"] == 4.0


def test_what_was_not_obtained_is_not_written(tmp_path: Path) -> None:
    line = record(tmp_path / "a.gz", anonymous=False).splitlines()[4]
    assert line == f'{{"sample":{{"t":1.0,"uuid":"{A}","power_watts":100.0}}}}'


def test_no_reason_at_all_and_an_unknown_one_stay_apart(tmp_path: Path) -> None:
    path = tmp_path / "a.gz"
    with RecordingWriter(path, plan()) as writer:
        writer.write(GpuSample(1.0, A, event_reasons=frozenset()))
        writer.write(GpuSample(2.0, A, event_reasons=None))
    assert [e.event_reasons for e in read_recording(path) if isinstance(e, GpuSample)] == [frozenset(), None]


def test_sources_are_written_when_they_change(tmp_path: Path) -> None:
    path = tmp_path / "a.gz"
    down = (replace(SOURCES[1], up=False, detail="no driver"),)
    with RecordingWriter(path, plan()) as writer:
        for t, sources in ((1.0, SOURCES[1:2]), (2.0, SOURCES[1:2]), (3.0, down)):
            writer.judge(t, sources)
    assert [e.sources for e in read_recording(path) if isinstance(e, Judged)] == [(SOURCES[1],), None, down]
    assert [s.sources[0].up for s in replay(read_recording(path))] == [True, True, False]


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "a.gz"
    path.write_text("precious")
    with pytest.raises(RecordingError, match="expected a new file, found one with this name"):
        RecordingWriter(path, plan())
    assert path.read_text() == "precious"


def test_a_place_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    path = tmp_path / "no" / "such" / "folder.gz"
    with pytest.raises(RecordingError, match=r"folder\.gz: cannot be written: No such file or directory"):
        RecordingWriter(path, plan())


@pytest.mark.skipif(not FULL.exists(), reason="needs a device that is always full")
def test_a_full_disk_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = RecordingWriter(tmp_path / "a.gz", plan())
    with writer._file, FULL.open("wb", buffering=0) as full:
        monkeypatch.setattr(writer, "_file", full)
        with pytest.raises(RecordingError, match="cannot be written: No space left on device"):
            writer.flush()


def test_an_hour_of_a_loaded_gpu_is_small_enough_for_a_bug_report(tmp_path: Path) -> None:
    # 8 GPUs, a minute of full load with the driver's buffered power samples: the worst case.
    path = tmp_path / "a.gz"
    with RecordingWriter(path, plan()) as writer:
        for _ in watch(RecordingObserver(plan(), writer), "healthy", 0.0, 60.0, power_samples=True):
            pass
    assert path.stat().st_size / 8 * 60 < 500_000
