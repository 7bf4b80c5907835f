"""An engine that another distribution brings, and what happens to one that cannot be used."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from importlib.metadata import EntryPoint
from typing import TYPE_CHECKING

import pytest

from wattline.engines.tables import BUILT_IN, GROUP, known

if TYPE_CHECKING:
    from pathlib import Path

TABLE = """
from wattline.engines.command_lines import ServerKind
from wattline.engines.kinds import EngineKind, Progress, Term, metric

MINE = EngineKind(
    name="mine",
    prefix="mine:",
    path="/stats",
    servers=(ServerKind(kind="mine", command="mine-server", port=9000, path="/stats"),),
    start="start it with --stats",
    running=metric("mine:running"),
    queued=metric("mine:waiting"),
    generation_tokens=metric("mine:tokens_total"),
    progress=Progress((Term(("mine:steps_total",)),)),
)
"""
ASK = r"""
import json
from wattline.config import parse
from wattline.discovery.servers import _kind
from wattline.engines.command_lines import Command
from wattline.engines.errors import hint
from wattline.engines.normalise import normalise

reading = normalise("mine:running 3\nmine:waiting 2\nmine:tokens_total 50\nmine:steps_total 9\n", engine="e", t=1.0)
row = _kind(Command.of(("/usr/bin/mine-server", "--port", "1")))
configuration = parse("deployments: [{name: d, engines: [{url: 'http://h:1', kind: mine}]}]", "a test")
print(json.dumps({
    "kind": reading.kind,
    "held": reading.running + reading.queued,
    "tokens": reading.generation_tokens,
    "progress": reading.progress,
    "found": row.kind if row else None,
    "url": configuration.deployments[0].engines[0].url,
    "hint": hint("http_404", "mine"),
}))
"""


def distribution(folder: Path) -> Path:
    """A wheel with one module and one entry point, as any build tool makes it."""
    wheel = folder / "mine_wattline-1.0-py3-none-any.whl"
    about = "mine_wattline-1.0.dist-info"
    with zipfile.ZipFile(wheel, "w") as file:
        file.writestr("mine_wattline.py", TABLE)
        file.writestr(f"{about}/METADATA", "Metadata-Version: 2.1\nName: mine-wattline\nVersion: 1.0\n")
        file.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        file.writestr(f"{about}/entry_points.txt", f"[{GROUP}]\nmine = mine_wattline:MINE\n")
        file.writestr(f"{about}/RECORD", "")
    return wheel


def test_a_distribution_brings_an_engine_without_a_fork(tmp_path: Path) -> None:
    site = tmp_path / "site"
    with zipfile.ZipFile(distribution(tmp_path)) as wheel:
        wheel.extractall(site)
    program = (sys.executable, "-c", f"import sys; sys.path.insert(0, {str(site)!r})\n{ASK}")
    answer = subprocess.run(program, check=True, capture_output=True, text=True)
    assert json.loads(answer.stdout) == {
        "kind": "mine",
        "held": 5,
        "tokens": 50,
        "progress": [9],
        "found": "mine",
        "url": "http://h:1/stats",
        "hint": "start it with --stats",
    }


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("no_such_module:TABLE", "cannot be loaded: ModuleNotFoundError"),
        ("wattline.engines.tables:GROUP", "expected an EngineKind, found str"),
        ("wattline.engines.vllm:VLLM", "there is an engine vllm already"),
    ],
)
def test_a_table_that_cannot_be_used_is_left_out_with_a_warning(
    value: str, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    kinds = known([EntryPoint("theirs", value, GROUP)])
    assert [*kinds.values()] == [*BUILT_IN]
    assert said in caplog.text
    assert f"theirs = {value}" in caplog.text
