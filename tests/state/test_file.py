"""The state file: what is kept, and that nothing on the disk can do harm or be harmed."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from wattline.state import MAX_BYTES, KnownGpu, Memory, StateFile

FLOORS = {"GPU-5f1c0e6a-90b3-4a2d-8c71-3d2e4b5a6f70": 87.0, "00000000:05:00.0": 122.5}
OURS = {"format": "wattline-state", "version": 1, "idle_power_watts": {"GPU-a": 87.0}}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "state.json"


def around(file: Path) -> list[str]:
    """What else is in its folder."""
    return sorted(entry.name for entry in file.parent.iterdir() if entry != file)


def test_what_was_saved_is_loaded(file: Path) -> None:
    assert StateFile(file).save(Memory(idle_power_watts=FLOORS))
    assert StateFile(file).load() == Memory(idle_power_watts=FLOORS)
    assert around(file) == []


def test_it_belongs_to_its_owner_alone(file: Path) -> None:
    StateFile(file).save(Memory(idle_power_watts=FLOORS))
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_without_a_file_nothing_is_known_and_nothing_is_said(file: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert StateFile(file).load() == Memory()
    assert caplog.records == []


FOREIGN = {
    "nothing": b"",
    "zeros": bytes(4096),
    "no text": b"\xff\xfe\x00\x01",
    "half of it": json.dumps(OURS).encode()[:-9],
    "twice": json.dumps(OURS).encode() * 2,
    "a list": b"[]",
    "an empty object": b"{}",
    "only floors": b'{"idle_power_watts": {"GPU-a": 87.0}}',
    "of another program": b'{"format": "other", "version": 1, "idle_power_watts": {}}',
    "of a later release": json.dumps({**OURS, "version": 3}).encode(),
    "an unknown key": json.dumps({**OURS, "more": True}).encode(),
    "text for watts": json.dumps({**OURS, "idle_power_watts": {"GPU-a": "87"}}).encode(),
    "no watts": json.dumps({**OURS, "idle_power_watts": {"GPU-a": None}}).encode(),
    "negative watts": json.dumps({**OURS, "idle_power_watts": {"GPU-a": -1.0}}).encode(),
    "nothing drawn": json.dumps({**OURS, "idle_power_watts": {"GPU-a": 0.0}}).encode(),
    "a power station": json.dumps({**OURS, "idle_power_watts": {"GPU-a": 1e9}}).encode(),
    "not a number": b'{"format": "wattline-state", "version": 1, "idle_power_watts": {"GPU-a": NaN}}',
    "infinite watts": b'{"format": "wattline-state", "version": 1, "idle_power_watts": {"GPU-a": 1e999}}',
    "a long name": json.dumps({**OURS, "idle_power_watts": {"G" * 129: 87.0}}).encode(),
    "too deep": b"[" * 100_000,
    "a configuration": b"window: 60s\n",
    "too large": b" " * MAX_BYTES + json.dumps(OURS).encode(),
}


@pytest.mark.parametrize("content", FOREIGN.values(), ids=FOREIGN)
def test_a_file_that_is_not_understood_is_told_and_set_aside_before_anything_is_saved(
    file: Path, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    file.write_bytes(content)
    state = StateFile(file)
    assert state.load() == Memory()
    # Only who saves touches the disk.
    assert file.read_bytes() == content
    assert around(file) == []
    assert state.save(Memory(idle_power_watts=FLOORS))
    assert StateFile(file).load() == Memory(idle_power_watts=FLOORS)
    (aside,) = around(file)
    assert aside.startswith("state.json.unreadable-")
    assert (file.parent / aside).read_bytes() == content
    assert [record.levelname for record in caplog.records] == ["WARNING", "WARNING"]
    assert all(len(record.getMessage()) < 1000 for record in caplog.records)


def test_what_is_saved_without_looking_first_is_set_aside_all_the_same(file: Path) -> None:
    file.write_text("somebody else's")
    assert StateFile(file).save(Memory(idle_power_watts=FLOORS))
    assert len(around(file)) == 1


def test_a_foreign_file_that_has_gone_by_itself_is_no_obstacle(file: Path) -> None:
    file.write_text("somebody else's")
    state = StateFile(file)
    state.load()
    file.unlink()
    assert state.save(Memory(idle_power_watts=FLOORS))
    assert around(file) == []


def pipe(at: Path) -> None:
    os.mkfifo(at)


def folder(at: Path) -> None:
    at.mkdir()
    (at / "precious").write_text("kept")


def socket_file(at: Path) -> None:
    import socket

    with socket.socket(socket.AF_UNIX) as s:
        s.bind(str(at))


@pytest.mark.parametrize("make", [pipe, folder, socket_file])
def test_what_is_no_file_is_left_alone_and_told_once(
    file: Path, make: object, caplog: pytest.LogCaptureFixture
) -> None:
    assert callable(make)
    make(file)
    kind = stat.S_IFMT(file.lstat().st_mode)
    state = StateFile(file)
    assert state.load() == Memory()
    assert not state.save(Memory(idle_power_watts=FLOORS))
    assert not state.save(Memory(idle_power_watts=FLOORS))
    assert stat.S_IFMT(file.lstat().st_mode) == kind
    assert around(file) == []
    assert len(caplog.records) == 2


def test_the_null_device_is_not_replaced_by_a_file(caplog: pytest.LogCaptureFixture) -> None:
    state = StateFile(Path("/dev/null"))
    assert state.load() == Memory()
    assert not state.save(Memory(idle_power_watts=FLOORS))
    assert Path("/dev/null").is_char_device()


def test_a_symbolic_link_stays_one_and_what_it_leads_to_is_replaced(tmp_path: Path) -> None:
    real, link = tmp_path / "elsewhere" / "real.json", tmp_path / "state.json"
    real.parent.mkdir()
    link.symlink_to(real)
    assert StateFile(link).save(Memory(idle_power_watts=FLOORS))
    assert link.is_symlink()
    assert StateFile(real).load() == Memory(idle_power_watts=FLOORS)
    assert [entry.name for entry in real.parent.iterdir()] == ["real.json"]


def test_a_folder_that_is_not_there_is_told_once_and_its_coming_too(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    file = tmp_path / "later" / "state.json"
    state = StateFile(file)
    assert state.load() == Memory()
    for _ in range(288):
        assert not state.save(Memory(idle_power_watts=FLOORS))
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "No such file or directory" in caplog.text
    file.parent.mkdir()
    assert state.save(Memory(idle_power_watts=FLOORS))
    assert state.save(Memory(idle_power_watts=FLOORS))
    assert [record.getMessage() for record in caplog.records[1:]] == [f"State file {file} is written again"]


@pytest.mark.parametrize("step", ["os.fsync", "pathlib.Path.replace"])
def test_a_full_disk_leaves_the_old_file_and_nothing_else(
    file: Path, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    StateFile(file).save(Memory(idle_power_watts=FLOORS))

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(step, full)
    assert not StateFile(file).save(Memory(idle_power_watts={"GPU-a": 1.0}))
    monkeypatch.undo()
    assert StateFile(file).load() == Memory(idle_power_watts=FLOORS)
    assert around(file) == []


def test_what_killed_writes_have_left_is_removed_and_nothing_else_is(file: Path) -> None:
    for name in (".state.json.abc123.unfinished", ".state.json.swp", ".other.json.x.unfinished", "state.json.bak"):
        (file.parent / name).write_text("half")
    StateFile(file).load()
    assert len(around(file)) == 4
    StateFile(file).save(Memory(idle_power_watts=FLOORS))
    assert around(file) == [".other.json.x.unfinished", ".state.json.swp", "state.json.bak"]


@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(content=st.one_of(st.binary(max_size=200), st.text(max_size=200).map(str.encode)))
def test_any_bytes_load_or_are_set_aside(file: Path, content: bytes) -> None:
    file.write_bytes(content)
    assert StateFile(file).load() == Memory()


values = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5))


@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    document=st.fixed_dictionaries(
        {},
        optional={
            "format": st.one_of(st.just("wattline-state"), values),
            "version": st.one_of(st.just(1), values),
            "idle_power_watts": st.one_of(values, st.dictionaries(st.text(max_size=5), values)),
        },
    )
)
def test_whatever_loads_is_a_power_that_a_board_may_draw(file: Path, document: dict[str, object]) -> None:
    file.write_text(json.dumps(document))
    for watts in StateFile(file).load().idle_power_watts.values():
        assert 0 < watts <= 20_000


@given(
    floors=st.dictionaries(st.text(st.characters(exclude_categories=["Cs"]), max_size=128), st.floats(0.001, 20_000))
)
@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_floors_come_back_as_they_were(file: Path, floors: dict[str, float]) -> None:
    assert StateFile(file).save(Memory(idle_power_watts=floors))
    assert StateFile(file).load() == Memory(idle_power_watts=floors)


GPUS = {
    "GPU-5f1c0e6a-90b3-4a2d-8c71-3d2e4b5a6f70": KnownGpu(index=0, pci_bus_id="00000000:05:00.0", name="NVIDIA H200"),
    "GPU-5f1caaaa-90b3-4a2d-8c71-3d2e4b5a6f70": KnownGpu(index=1, pci_bus_id="00000000:06:00.0", name="NVIDIA H200"),
}


def test_a_file_of_the_version_before_keeps_its_floors(file: Path) -> None:
    file.write_text(json.dumps(OURS))
    assert StateFile(file).load() == Memory(idle_power_watts={"GPU-a": 87.0})


def test_what_another_process_saves_is_news_once(file: Path) -> None:
    ours, theirs = StateFile(file), StateFile(file)
    assert ours.news() is None, "nothing was looked at yet"
    ours.save(Memory(gpus=GPUS))
    assert ours.news() is None
    theirs.save(Memory(forgotten=tuple(GPUS)))
    assert ours.news() == Memory(forgotten=tuple(GPUS))
    assert ours.news() is None


@pytest.mark.parametrize(
    ("wanted", "at"),
    [("0", 0), ("1", 1), ("GPU-5f1c0", 0), ("5F1CAA", 1), ("0000:05:00.0", 0), ("06:00", 1), ("00000000:06:00.0", 1)],
)
def test_a_gpu_is_found_by_its_index_address_or_the_beginning_of_its_uuid(wanted: str, at: int) -> None:
    assert Memory(gpus=GPUS).find(wanted) == list(GPUS)[at]


@pytest.mark.parametrize(
    ("wanted", "found"), [("2", "no GPU"), ("GPU-5f1c", "several GPUs"), ("", "no GPU"), ("GPU", "no GPU")]
)
def test_a_gpu_that_is_not_known_is_an_error_that_names_those_that_are(wanted: str, found: str) -> None:
    with pytest.raises(LookupError, match=f"found {found} by '{wanted}', expected one of:\n  0  GPU-5f1c0e6a"):
        Memory(gpus=GPUS).find(wanted)
