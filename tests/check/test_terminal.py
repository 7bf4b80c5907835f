"""``wattline check`` in a pseudo-terminal and in a pipe, with a clock that does not wait."""

from __future__ import annotations

import fcntl
import itertools
import json
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.recording.make import path_of
from wattline.check.render import plain
from wattline.check.report import report
from wattline.recording.reader import read_recording
from wattline.recording.replay import replay

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
COMMAND = (sys.executable, "-m", "tests.check.on_a_terminal")
CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class Terminal:
    """A program in a terminal of a given size, and everything that it has written there."""

    def __init__(self, *arguments: str, columns: int = 100, rows: int = 40, **environment: str) -> None:
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        inherited = {k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "COLUMNS", "LINES", "FORCE_COLOR")}
        self.program = subprocess.Popen(
            (*COMMAND, *arguments),
            stdin=slave,
            stdout=slave,
            stderr=slave,
            cwd=ROOT,
            env={**inherited, "TERM": "xterm-256color", **environment},
            start_new_session=True,
        )
        os.close(slave)
        self.written = ""

    def until(self, words: str) -> None:
        """Read until the words were written, or the program has ended."""
        while words not in self.written and self._read():
            pass
        assert words in self.written

    def end(self) -> int:
        """Read all that is left; the exit code."""
        while self._read():
            pass
        os.close(self._master)
        return self.program.wait()

    def _read(self) -> bool:
        try:
            chunk = os.read(self._master, 65536)
        except OSError:  # The other side is closed.
            return False
        self.written += chunk.decode()
        return bool(chunk)


@pytest.fixture
def terminals() -> Iterator[list[Terminal]]:
    started: list[Terminal] = []
    yield started
    for terminal in started:
        if terminal.program.poll() is None:
            terminal.program.kill()
            terminal.end()


def text(written: str) -> str:
    """What stays legible without colours and movements of the cursor."""
    return CONTROL.sub("", written).replace("\r", "")


def test_a_bar_moves_while_it_watches_and_gives_way_to_a_coloured_answer(terminals: list[Terminal]) -> None:
    terminal = Terminal("collectives")
    terminals.append(terminal)
    assert terminal.end() == 1
    progress, answer = terminal.written.split("Watched", 1)
    # The bar speaks of now: about 250 W on each of 8 GPUs, and what the server holds.
    assert re.search(r"Watching: [12],\d{3} W on 8 GPUs, 1,0\d\d requests held", text(progress))
    assert "━" in progress
    assert "\x1b[?25l" in progress, "no cursor blinks in the bar"
    assert "\x1b[2K" in progress[-40:], "the bar is gone at the end"
    assert "\x1b[1mLook next at:" in answer
    assert re.search(r"glm5: \x1b\[[0-9;]*mLow power\x1b\[0m", answer)
    assert "Collectives over PCIe" in text(answer)


def test_nothing_is_wider_than_the_terminal(terminals: list[Terminal]) -> None:
    terminal = Terminal("throttled", columns=80)
    terminals.append(terminal)
    terminal.end()
    answer = text(terminal.written.split("Watched", 1)[1])
    # But for what is copied from it, which would be broken.
    copied = re.compile(r" +(nvidia-smi|py-spy|ps|top|dmesg|wattline|curl|https:)")
    assert max(len(line) for line in answer.splitlines() if not copied.match(line)) <= 80
    table = answer[answer.index("GPU  Power") : answer.index("Server 127")].splitlines()
    # The columns that matter least have gone, and no row is broken: eight GPUs, their header, an empty line.
    assert len([line for line in table if line.strip()]) == 9
    assert "DRAM" in table[0]
    assert "SM clock" not in table[0]


@pytest.mark.parametrize(
    ("columns", "titles"),
    [
        (40, ["GPU", "Power", "Limit", "Of limit", "Util"]),
        (60, ["GPU", "Power", "Limit", "Of limit", "Active", "Util", "SM", "DRAM"]),
        (72, ["GPU", "Power", "Limit", "Of limit", "Active", "Util", "SM", "DRAM"]),
    ],
)
def test_on_a_narrow_terminal_whole_columns_are_left_out(
    terminals: list[Terminal], columns: int, titles: list[str]
) -> None:
    terminal = Terminal("throttled", columns=columns)
    terminals.append(terminal)
    terminal.end()
    answer = text(terminal.written.split("Watched", 1)[1])
    header = next(line for line in answer.splitlines() if "GPU  " in line)
    assert re.split(r"\s{2,}", header.strip()) == titles
    table = answer[answer.index("GPU  ") : answer.index("Server 127")]
    assert "…" not in table


def test_what_is_copied_is_in_one_piece(terminals: list[Terminal]) -> None:
    terminal = Terminal("collectives", columns=60)
    terminals.append(terminal)
    terminal.end()
    lines = [line.rstrip("\r") for line in text(terminal.written).splitlines()]
    assert "      nvidia-smi topo -p2p r" in lines
    assert "      wattline runbook PowerFractionLow" in lines


def watched(terminals: list[Terminal], phase: str, until: str, *, columns: int, rows: int) -> str:
    """What the live screen has shown until some words were on it."""
    terminal = Terminal(phase, "--watch", columns=columns, rows=rows)
    terminals.append(terminal)
    terminal.until(until)
    terminal.program.send_signal(signal.SIGINT)
    terminal.end()
    screen, _ = terminal.written.split("\x1b[?1049l")
    return text(screen)


def test_watch_shows_the_verdict_whatever_the_height(terminals: list[Terminal]) -> None:
    assert "glm5: Low power" in watched(terminals, "collectives", "held throughout", columns=80, rows=12)


def test_watch_says_how_many_gpus_have_no_room(terminals: list[Terminal]) -> None:
    screen = watched(terminals, "healthy", "Working", columns=100, rows=14)
    assert re.search(r"\.\.\. [2-8] more GPUs", screen)


def test_a_terminal_that_cannot_redraw_gets_lines(terminals: list[Terminal]) -> None:
    terminal = Terminal("collectives", "--watch", TERM="dumb")
    terminals.append(terminal)
    terminal.until("glm5: Low power")
    terminal.program.send_signal(signal.SIGINT)
    terminal.end()
    assert "\x1b[?1049h" not in terminal.written


def test_watching_ends_when_nobody_reads() -> None:
    """Nothing is written while no state changes, so the next write would never tell."""
    with subprocess.Popen((*COMMAND, "idle", "--watch"), cwd=ROOT, stdout=subprocess.PIPE, text=True) as program:
        assert program.stdout is not None
        assert program.stdout.readline()
        program.stdout.close()
        assert program.wait(30) != 0


def test_no_color_is_respected(terminals: list[Terminal]) -> None:
    terminal = Terminal("collectives", NO_COLOR="1")
    terminals.append(terminal)
    terminal.end()
    assert not re.search(r"\x1b\[[0-9;]*(3[0-7]|4[0-7]|[34]8;)[0-9;]*m", terminal.written)


def test_watch_keeps_the_table_live_until_it_is_interrupted(terminals: list[Terminal]) -> None:
    terminal = Terminal("collectives", "--watch")
    terminals.append(terminal)
    terminal.until("Low power")
    assert "\x1b[?1049h" in terminal.written, "the live table has a screen of its own"
    assert "Unknown" in terminal.written, "before there was enough to judge by"
    terminal.program.send_signal(signal.SIGINT)
    assert terminal.end() in (1, 2)
    screen, answer = terminal.written.split("\x1b[?1049l")
    assert screen.count("GPU") > 1, "it was drawn again and again"
    assert "Watched 8 x NVIDIA RTX PRO 6000" in text(answer), "the answer stays when the screen is left"
    assert "Traceback" not in terminal.written


def piped(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run((*COMMAND, *arguments), cwd=ROOT, capture_output=True, text=True, check=False)


def test_a_pipe_gets_plain_text_and_no_bar() -> None:
    done = piped("collectives")
    assert done.returncode == 1
    assert done.stderr == ""
    recording = read_recording(path_of("collectives"))
    assert done.stdout == plain(report(itertools.islice(replay(recording), 31), recording.header.plan))


def test_a_pipe_gets_json() -> None:
    done = piped("healthy", "--json")
    assert done.returncode == 0
    assert json.loads(done.stdout)["verdict"] == "nothing_found"
    assert done.stderr == ""


def test_watching_into_a_pipe_says_when_a_state_changes() -> None:
    with subprocess.Popen(
        (*COMMAND, "collectives", "--watch"), cwd=ROOT, stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as program:
        assert program.stdout is not None
        first, second = program.stdout.readline(), program.stdout.readline()
        program.send_signal(signal.SIGINT)
        rest = program.stdout.read()
    assert first == "    0 s  glm5: Unknown: Watching for 0 s of the 30 s that a verdict looks at.\n"
    assert second.startswith("   23 s  glm5: Low power: At least 1024 requests held throughout, at 41.")
    assert "Watched 8 x NVIDIA RTX PRO 6000" in rest


def test_watching_into_a_pipe_in_json_gives_one_line_a_verdict() -> None:
    with subprocess.Popen(
        (*COMMAND, "collectives", "--watch", "--json"),
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as program:
        assert program.stdout is not None
        lines = [json.loads(program.stdout.readline()) for _ in range(25)]
        program.send_signal(signal.SIGINT)
        program.stdout.read()
    assert [line["watched_seconds"] for line in lines] == [float(i) for i in range(25)]
    assert lines[-1]["deployments"][0]["state"] == "low_power"
