"""Opening, closing and losing the library as a whole, in processes that load it for the first time."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.nvml.reading import NOWHERE
from tests.nvml.standin import StandIn, h200, uuid
from wattline.gpus.nvml import NvmlSource
from wattline.gpus.source import GpuLostError, SourceError


def test_without_the_library_every_attempt_says_that_it_was_not_found(in_new_process: Callable[..., str]) -> None:
    # nvidia-ml-py answers 12 (library not found) to nvmlInit and then 1 (uninitialised) to every other call.
    printed = in_new_process("""
        from wattline.gpus.nvml import NvmlSource
        from wattline.gpus.source import SourceError
        source = NvmlSource()
        for attempt in (source.discover, lambda: source.sample("GPU-x"), source.discover):
            try:
                attempt()
            except SourceError as error:
                print(error.kind, "|", error)
        source.close()
    """)
    lines = printed.splitlines()
    assert [line.partition(" |")[0] for line in lines] == ["library_not_found"] * 3
    assert "libnvidia-ml.so.1" in lines[0]


def test_the_library_is_loaded_by_its_own_name(
    in_new_process: Callable[..., str], library: Path, tmp_path: Path
) -> None:
    standin = StandIn(library, tmp_path, h200(1))
    printed = in_new_process(
        """
        from wattline.gpus.nvml import NvmlSource
        source = NvmlSource()
        identity, = source.discover()
        print(identity.name, source.sample(identity.uuid).power_watts)
        source.close()
        """,
        standin.environment,
    )
    assert printed == "NVIDIA H200 122.631\n"
    assert standin.count("init succeeded") == standin.count("nvmlShutdown") == 1


def test_a_library_that_appears_later_is_opened(
    in_new_process: Callable[..., str], library: Path, tmp_path: Path
) -> None:
    standin = StandIn(library, tmp_path, h200(1))
    folder = tmp_path / "later"
    folder.mkdir()
    printed = in_new_process(
        f"""
        import os
        from wattline.gpus.nvml import NvmlSource
        from wattline.gpus.source import SourceError
        source = NvmlSource()
        try:
            source.discover()
        except SourceError as error:
            print(error.kind)
        os.symlink({str(library)!r}, {str(folder / library.name)!r})
        print(len(source.discover()))
        """,
        {**standin.environment, "LD_LIBRARY_PATH": str(folder)},
    )
    assert printed == "library_not_found\n1\n"


def test_the_hint_about_two_versions_names_both(standin: StandIn, tmp_path: Path) -> None:
    standin.say("- nvmlInit error=18")
    with pytest.raises(SourceError) as failed:
        NvmlSource(inventory=NOWHERE).discover()
    assert "library unknown, kernel module unknown" in str(failed.value), "neither is known of a stand-in"


def test_it_is_initialised_once_however_often_gpus_are_listed(standin: StandIn) -> None:
    source = NvmlSource(inventory=NOWHERE)
    for _ in range(5):
        source.discover()
    assert standin.count("init succeeded") == 1
    source.close()
    source.close()
    assert standin.count("nvmlShutdown") == 1


def test_what_was_allocated_is_freed_at_the_end(standin: StandIn) -> None:
    source = NvmlSource(inventory=NOWHERE)
    for _ in range(3):
        source.discover()
        source.activity(uuid(0))
        source.activity(uuid(1))
        source.close()
    assert standin.count("nvmlGpmSampleAlloc") == standin.count("nvmlGpmSampleFree") == 12
    assert standin.count("nvmlEventSetCreate") == standin.count("nvmlEventSetFree") == 3
    assert standin.count("init succeeded") == standin.count("nvmlShutdown") == 3
    assert standin.count("stale handle") == 0


def test_a_listing_that_fails_right_after_opening_closes_again(standin: StandIn) -> None:
    standin.say("- nvmlDeviceGetCount error=999")
    source = NvmlSource(inventory=NOWHERE)
    with pytest.raises(SourceError):
        source.discover()
    assert standin.count("init succeeded") == standin.count("nvmlShutdown") == 1
    with pytest.raises(SourceError) as failed:
        source.sample(uuid(0))
    assert failed.value.kind == "unknown", "and not 'uninitialized', which would hide why"


def test_a_listing_that_fails_later_leaves_the_open_handles_at_work(standin: StandIn) -> None:
    # After an unattended upgrade of the driver, what is open often works on.
    source = NvmlSource(inventory=NOWHERE)
    source.discover()
    standin.say("- nvmlDeviceGetCount error=18")
    with pytest.raises(SourceError):
        source.discover()
    assert source.sample(uuid(0)).power_watts is not None
    assert standin.count("nvmlShutdown") == 0


def test_after_closing_nothing_is_asked(standin: StandIn) -> None:
    source = NvmlSource(inventory=NOWHERE)
    source.discover()
    source.close()
    before = standin.counts()
    with pytest.raises(SourceError) as failed:
        source.sample(uuid(0))
    assert not isinstance(failed.value, GpuLostError)
    assert standin.counts() == before


def test_it_is_opened_anew_when_the_gpus_of_the_host_have_changed(standin: StandIn, tmp_path: Path) -> None:
    # NVML lists the GPUs that were there when it was opened; one that a rescan of the bus finds is not among them.
    inventory = tmp_path / "gpus"
    (inventory / "0000:05:00.0").mkdir(parents=True)
    (inventory / "0000:06:00.0").mkdir()
    source = NvmlSource(inventory=inventory)
    source.discover()
    source.discover()
    assert standin.count("init succeeded") == 1
    (inventory / "0000:07:00.0").mkdir()
    standin.say(*h200(3).splitlines())
    assert len(source.discover()) == 3
    assert standin.count("init succeeded") == 2
    assert standin.count("nvmlShutdown") == 1
    assert source.sample(uuid(2)).power_watts is not None
