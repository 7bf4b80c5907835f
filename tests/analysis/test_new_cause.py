"""A cause is one record: with a rule and a record added to ``causes.py``, everything knows it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import CodeType

import pytest

from wattline.analysis.causes import Cause
from wattline.analysis.thresholds import Thresholds

ROOT = Path(__file__).parents[2]
RULE = """
def _windy(s: Signs, t: Thresholds) -> str:
    return "the wind comes from the north"


@dataclass(frozen=True, slots=True, kw_only=True)
class CauseRecord:"""
RECORD = """
    WINDY = "windy", CauseRecord(title="Windy day", rule=_windy, sign="Leaves on the roof.", weight="finding")

    BATCH_LIMITED = ("""
SCRIPT = """
import json, sys
from pathlib import Path
from dashboards import build as dashboards
from tools.metrics_reference import reference
from wattline.analysis.causes import Cause
from wattline.check.render import plain
from wattline.check.report import report
from wattline.publish import page, status
from wattline.publish.history import History
from wattline.recording.reader import read_recording
from wattline.recording.replay import replay
from wattline.explain.lines import lines
from wattline.explain.timeline import timeline

recording = read_recording(Path(sys.argv[1]))
snapshots = list(replay(recording))
told = status.build(snapshots[-1], History())
print(json.dumps({
    "check": plain(report(snapshots, recording.header.plan)),
    "status": status.encode(told).decode(),
    "schema": json.dumps(status.schema()),
    "explain": "\\n".join(text.plain for text, _ in lines(timeline(snapshots), recording.header)),
    "dashboards": "".join(dashboards.encoded(name) for name in dashboards.DASHBOARDS),
    "reference": reference(),
}))
"""


def test_a_cause_that_is_added_is_known_everywhere(tmp_path: Path) -> None:
    """As CONTRIBUTING says. The first record is the most telling: its title leads every list."""
    shutil.copytree(ROOT / "exporter" / "wattline", tmp_path / "wattline")
    causes = tmp_path / "wattline" / "analysis" / "causes.py"
    text = causes.read_text()
    for at, addition in (
        ("\n@dataclass(frozen=True, slots=True, kw_only=True)\nclass CauseRecord:", RULE),
        ("\n    BATCH_LIMITED = (", RECORD),
    ):
        assert text.count(at) == 1
        text = text.replace(at, addition)
    causes.write_text(text)
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(ROOT / "tests" / "recording" / "data" / "wedged.jsonl.gz")],
        env={**os.environ, "PYTHONPATH": f"{tmp_path}:{ROOT}"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert "Suspected cause: Windy day\n    The wind comes from the north.\n" in told["check"]
    assert "Windy day: the wind comes from the north." in told["explain"]
    (deployment,) = json.loads(told["status"])["deployments"]
    assert deployment["suspicions"][0]["title"] == "Windy day"
    assert deployment["suspicions"][0]["runbook"] == "InferenceStalled", "that of the state"
    for name in ("schema", "reference"):
        assert "windy" in told[name], name
    assert "Windy day" in told["dashboards"]
    assert "Leaves on the roof." in told["dashboards"]


def names(code: CodeType) -> set[str]:
    """Every attribute that a function reads, those of the comprehensions in it too."""
    inner = (names(constant) for constant in code.co_consts if isinstance(constant, CodeType))
    return set(code.co_names).union(*inner)


@pytest.mark.parametrize("cause", Cause)
def test_a_record_lists_the_thresholds_that_its_rule_reads(cause: Cause) -> None:
    read = names(cause.record.rule.__code__) & set(Thresholds.__struct_fields__)
    assert set(cause.record.thresholds) == read
