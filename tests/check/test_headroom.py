"""What unused power may be worth, and when nobody should say so."""

from __future__ import annotations

from dataclasses import replace

import pytest

from wattline.analysis.causes import Cause, Suspicion
from wattline.analysis.snapshot import DeploymentView, State
from wattline.analysis.thresholds import Thresholds
from wattline.check.headroom import headroom

# The second true story: eight GPUs at 250 of 600 W make 3,740 tokens a second, that is 1.87 a joule.
COLLECTIVES = DeploymentView(
    name="glm5",
    state=State.LOW_POWER,
    reason="",
    since=0.0,
    gpus=(),
    engines=("head",),
    suspicions=(Suspicion(Cause.COLLECTIVES_OVER_PCIE, ""),),
    power_watts=2000.0,
    power_limit_watts=4800.0,
    work=1024.0,
    tokens_per_second={"generation": 3740.0, "prompt": 18_000.0},
    tokens_per_watt={"generation": 1.87},
)


def test_the_second_story_has_58_percent_of_headroom_worth_nine_thousand_tokens_a_second() -> None:
    room = headroom(COLLECTIVES, Thresholds())
    assert room is not None
    assert room.unused_watts == 2800.0
    assert room.unused_fraction == pytest.approx(0.5833, abs=1e-4)
    assert room.tokens_per_second_at_limit == pytest.approx(1.87 * 4800)
    assert room.why_no_estimate is None


@pytest.mark.parametrize("cause", [c for c in Cause if c.record.sets_pace])
def test_no_worth_is_named_where_something_else_sets_the_pace(cause: Cause) -> None:
    room = headroom(replace(COLLECTIVES, suspicions=(Suspicion(cause, ""),)), Thresholds())
    assert room is not None
    assert room.tokens_per_second_at_limit is None
    assert room.why_no_estimate == cause.record.sets_pace


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"work": 5.0}, "fewer than 32 requests"),
        ({"work": None}, "fewer than 32 requests"),
        ({"tokens_per_watt": {}}, "no token was counted"),
        ({"tokens_per_watt": {"generation": 0.0}}, "no token was counted"),
        ({"state": State.IDLE_WHILE_BUSY}, "today's tokens are not made by the power"),
        ({"state": State.STALLED}, "today's tokens are not made by the power"),
    ],
)
def test_no_worth_is_named_without_grounds(changes: dict[str, object], why: str) -> None:
    room = headroom(replace(COLLECTIVES, **changes), Thresholds())  # type: ignore[arg-type]
    assert room is not None
    assert room.tokens_per_second_at_limit is None
    assert why in (room.why_no_estimate or "")


@pytest.mark.parametrize(
    "changes",
    [
        {"state": State.IDLE},
        {"state": State.SATURATED},
        {"state": State.UNKNOWN},
        {"power_watts": None},
        {"power_limit_watts": None},
        {"power_watts": 4900.0},
    ],
)
def test_there_is_no_headroom_to_speak_of(changes: dict[str, object]) -> None:
    assert headroom(replace(COLLECTIVES, **changes), Thresholds()) is None  # type: ignore[arg-type]
