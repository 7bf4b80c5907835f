"""The reference of the command line names what the parser takes, no more and no less."""

from __future__ import annotations

import argparse
import re
from pathlib import Path

import pytest

from wattline.analysis.causes import Cause
from wattline.cli import build_parser

TEXT = (Path(__file__).parents[2] / "docs" / "cli.md").read_text()
SHARED = {"demo": r"--(web|log)\."}
"""Flags of a command that its section only refers to."""


def commands() -> dict[str, argparse.ArgumentParser]:
    (action,) = [a for a in build_parser()._actions if isinstance(a, argparse._SubParsersAction)]
    return dict(action.choices)


def section(command: str) -> str:
    return TEXT.split(f"\n## wattline {command}\n", 1)[1].split("\n## ", 1)[0]


def rows(command: str) -> dict[str, str]:
    """The environment variable by flag, as documented."""
    return dict(re.findall(r"^\| `([^` ]+)[^`]*` \| `?([A-Z_]*)`? ?\|", section(command), re.MULTILINE))


@pytest.mark.parametrize("command", commands())
def test_every_flag_of_a_command_is_in_its_section(command: str) -> None:
    taken: dict[str, str] = {}
    for action in commands()[command]._actions:
        name = action.option_strings[-1] if action.option_strings else action.metavar
        if name in ("--help", None) or re.match(SHARED.get(command, r"\Z.^"), str(name)):
            continue
        variable = re.search(r"\[(WATTLINE_[A-Z_]+)\]", action.help or "")
        taken[str(name)] = variable[1] if variable else ""
    assert rows(command) == taken


def test_every_command_is_listed() -> None:
    assert set(re.findall(r"^\| \[`(\w+)`\]", TEXT, re.MULTILINE)) == set(commands())


def test_every_cause_that_makes_a_finding_is_named() -> None:
    paragraph = TEXT.split("**A finding**", 1)[1].split("\n\n", 1)[0]
    assert all(f"`{cause}`" in paragraph for cause in Cause if cause.record.weight == "finding")
