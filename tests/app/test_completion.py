"""The completion script, in a real bash."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from wattline.cli import main
from wattline.simulation.scenario import SCENARIOS

ASK = """
source ./script
COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1))
_shtab_wattline wattline "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD - 1]}"
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.fixture
def folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    """Where the files are that are completed, with the script."""
    assert main(["completion", "bash"]) == 0
    (tmp_path / "script").write_text(capsys.readouterr().out)
    (tmp_path / "tty.one").touch()
    (tmp_path / "tail.gz").touch()
    return tmp_path


def completed(folder: Path, line: str) -> list[str]:
    """What the last word of a line is completed to."""
    asked = subprocess.run(
        ["bash", "-c", ASK, "bash", *line.split(" ")], cwd=folder, capture_output=True, text=True, check=True
    )
    assert asked.stderr == ""
    return asked.stdout.split()


@pytest.mark.parametrize(
    "line",
    [
        "explain tty.o",
        "explain tail.gz --plot tty.o",
        "record tty.o",
        "record new.gz --config.file tty.o",
        "check --replay tty.o",
        "check --config.file tty.o",
        "serve --replay tty.o",
        "serve --config.file tty.o",
        "serve --web.config.file tty.o",
        "demo --web.config.file tty.o",
    ],
)
def test_files_are_completed_wherever_one_is_named(folder: Path, line: str) -> None:
    assert completed(folder, f"wattline {line}") == ["tty.one"]


def test_scenarios_are_completed(folder: Path) -> None:
    assert "wedged" in SCENARIOS
    assert completed(folder, "wattline demo --scenario wed") == ["wedged"]
    assert set(completed(folder, "wattline demo --scenario ")) >= set(SCENARIOS)


def test_commands_and_flags_are_completed_as_ever(folder: Path) -> None:
    assert completed(folder, "wattline exp") == ["explain"]
    assert completed(folder, "wattline check --repl") == ["--replay"]


@pytest.mark.parametrize(("shell", "files"), [("zsh", ":_files"), ("tcsh", "/f/")])
def test_the_other_shells_know_files_and_scenarios_too(
    shell: str, files: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["completion", shell]) == 0
    script = capsys.readouterr().out
    assert files in script
    assert "wedged" in script
