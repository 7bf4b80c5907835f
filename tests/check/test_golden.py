"""The answers of ``wattline check``, as they were read and found right.

``python -m tests.check.make`` makes them anew.
"""

from __future__ import annotations

from typing import Any

import jsonschema
import msgspec
import pytest

from tests.check.cases import CASES, made
from tests.check.make import GOLDEN, PEOPLE, PROGRAMS
from wattline.check.render import plain
from wattline.check.report import encode, schema
from wattline.simulation.scenario import EXTRAS, STORY


def json_of(case: str) -> dict[str, Any]:
    decoded: dict[str, Any] = msgspec.json.decode(encode(made(case)))
    return decoded


def same(found: Any, expected: Any, at: str = "$") -> None:
    """Compare all but the last digits of numbers."""
    if isinstance(expected, dict):
        assert isinstance(found, dict), at
        assert list(found) == list(expected), at
        for key, value in expected.items():
            same(found[key], value, f"{at}.{key}")
    elif isinstance(expected, list):
        assert isinstance(found, list), at
        assert len(found) == len(expected), at
        for i, value in enumerate(expected):
            same(found[i], value, f"{at}[{i}]")
    elif isinstance(expected, float):
        assert found == pytest.approx(expected, rel=1e-4, abs=1e-9), at
    else:
        assert found == expected, at


@pytest.mark.parametrize("case", PEOPLE)
def test_people_read(case: str) -> None:
    assert plain(made(case)) == (GOLDEN / f"{case}.txt").read_text()


@pytest.mark.parametrize("case", PROGRAMS)
def test_programs_read(case: str) -> None:
    same(json_of(case), msgspec.json.decode((GOLDEN / f"{case}.json").read_bytes()))


@pytest.mark.parametrize("case", CASES)
def test_the_json_is_what_its_schema_promises(case: str) -> None:
    jsonschema.validate(json_of(case), schema(), cls=jsonschema.Draft202012Validator)


def test_the_schema_refuses_what_is_not_an_answer() -> None:
    answer = json_of("demo-idle")
    for damage in ({"verdict": "fine"}, {"gpus": [{"index": "one"}]}, {"deployments": None}):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate({**answer, **damage}, schema(), cls=jsonschema.Draft202012Validator)


def test_there_is_no_golden_output_that_nobody_compares() -> None:
    right = {f"{case}.txt" for case in PEOPLE} | {f"{case}.json" for case in PROGRAMS}
    assert {path.name for path in GOLDEN.iterdir()} == right


@pytest.mark.parametrize("phase", [*STORY, *EXTRAS], ids=lambda phase: phase.name)
def test_every_phase_of_the_demo_gets_its_state_and_its_causes(phase: Any) -> None:
    (deployment,) = made(f"demo-{phase.name}").deployments
    # When the last request has drained the server is idle; until then it works.
    assert deployment.state == ("idle" if phase.name == "draining" else phase.state)
    assert {s.cause for s in deployment.suspicions} >= phase.causes


@pytest.mark.parametrize(
    ("code", "cases"),
    [
        (0, {"idle", "benchmark_over", "tuned", "healthy", "power_capped", "draining", "limit_lowered"}),
        (2, {"engine_down", "gpu_lost"}),
    ],
)
def test_exit_codes_of_the_phases_of_the_demo(code: int, cases: set[str]) -> None:
    assert {c.removeprefix("demo-") for c in CASES if c.startswith("demo-") and made(c).exit_code == code} == cases


@pytest.mark.parametrize("case", ["no-engine", "no-gpu", "no-power-sensor", "metrics-not-enabled"])
def test_what_is_missing_is_never_called_healthy(case: str) -> None:
    assert made(case).exit_code == 2


def test_plain_output_has_no_colour_and_no_trailing_space() -> None:
    for case in CASES:
        text = plain(made(case))
        assert "\x1b" not in text
        assert text.isascii(), case
        assert not [line for line in text.splitlines() if line != line.rstrip()]
