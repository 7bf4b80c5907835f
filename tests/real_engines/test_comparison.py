"""Real servers driven through known situations: what their tables read, and what is judged, beside the truth."""

from __future__ import annotations

from functools import cache

import pytest

from bench.engine_servers import SERVERS
from bench.real_engines import BAD, SITUATIONS, Situation
from tests.real_engines.compare import measured
from tests.real_engines.replay import ENGINES, rows, verdicts
from wattline.engines.tables import KINDS

# SGLang's has no clients that leave: it still held requests of the situation before, and the client counted its own.
CASES = [(e, s) for e in ENGINES for s in SITUATIONS if any(row["label"] == s.name for row in rows(e))]


@cache
def said(engine: str) -> dict[str, tuple[str, ...]]:
    """The states by situation, where a whole window lies within."""
    settle = {situation.name: situation.settle for situation in SITUATIONS}
    found: dict[str, list[str]] = {}
    for row, snapshot in verdicts(engine):
        if row["since"] >= settle.get(row["label"], float("inf")):
            found.setdefault(row["label"], []).append(snapshot.deployments[0].state.value)
    return {name: tuple(states) for name, states in found.items()}


def test_each_engine_that_can_be_had_is_compared() -> None:
    assert set(ENGINES) == set(SERVERS)


@pytest.mark.parametrize("engine", ENGINES)
def test_the_evidence_in_a_table_is_what_the_recording_says(engine: str) -> None:
    evidence = KINDS[engine].compared
    assert evidence is not None
    assert measured(engine, evidence.release) == evidence


@pytest.mark.parametrize(("engine", "situation"), CASES, ids=[f"{e}-{s.name}" for e, s in CASES])
def test_what_is_judged_is_so(engine: str, situation: Situation) -> None:
    states = said(engine)[situation.name]
    right = situation.truth(SERVERS[engine])
    assert states
    if right & BAD:
        # A fault is told once it is sure, and nothing else that is bad meanwhile.
        assert states[-1] in right
        assert not set(states) & (BAD - right)
    else:
        assert set(states) <= right
