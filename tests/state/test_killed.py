"""A process that is killed while it saves leaves the old file or the new one."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from wattline.state import Memory, StateFile

ROOT = Path(__file__).parents[2]
OLD = Memory(idle_power_watts={"GPU-old": 87.0})
NEW = Memory(idle_power_watts={f"GPU-{number}": 122.0 for number in range(500)})

SAVE = """
import os, signal, sys
from pathlib import Path
from wattline import state
NEW = state.Memory(idle_power_watts={f"GPU-{number}": 122.0 for number in range(500)})
file = state.StateFile(Path(sys.argv[1]))
"""
AT_A_LINE = (
    SAVE
    + """
left = int(sys.argv[2])
def trace(frame, event, _):
    global left
    if frame.f_code.co_filename == state.__file__:
        if event == "line":
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
        return trace
    return None
sys.settrace(trace)
file.save(NEW)
"""
)
FOR_EVER = (
    SAVE
    + """
print("saves", flush=True)
while True:
    file.save(NEW)
    print("saved", flush=True)
"""
)


def run(code: str, *arguments: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", code, *map(str, arguments)], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )


def test_at_every_line_of_saving(tmp_path: Path) -> None:
    file = tmp_path / "state.json"
    found = []
    # Several at a time: each is mostly the start of Python.
    for first in range(1, 100, 8):
        copies = {line: tmp_path / str(line) / "state.json" for line in range(first, first + 8)}
        for copy in copies.values():
            copy.parent.mkdir()
            StateFile(copy).save(OLD)
        processes = {line: run(AT_A_LINE, copy, line) for line, copy in copies.items()}
        codes = {line: process.wait() for line, process in processes.items()}
        for process in processes.values():
            process.communicate()
        for line, copy in copies.items():
            loaded = StateFile(copy).load()
            assert loaded in (OLD, NEW), line
            assert StateFile(copy).save(NEW)
            assert [entry.name for entry in copy.parent.iterdir()] == ["state.json"], line
            if codes[line] == -signal.SIGKILL:
                found.append(loaded)
        if 0 in codes.values():
            break
    assert not file.exists()
    assert OLD in found
    assert NEW in found


@pytest.mark.parametrize("seed", range(6))
def test_at_any_instant(tmp_path: Path, seed: int) -> None:
    file = tmp_path / "state.json"
    StateFile(file).save(OLD)
    process = run(FOR_EVER, file)
    assert process.stdout is not None
    chance = random.Random(seed)  # noqa: S311 - when to kill
    for _ in range(chance.randrange(1, 40)):
        process.stdout.readline()
    for _ in range(chance.randrange(20_000)):
        pass
    process.kill()
    process.communicate()
    assert StateFile(file).load() in (OLD, NEW)
    assert StateFile(file).save(NEW)
    assert [entry.name for entry in tmp_path.iterdir()] == ["state.json"]
