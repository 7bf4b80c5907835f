"""What the power that is not drawn may be worth. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from msgspec import Struct

from wattline.analysis.snapshot import State
from wattline.publish.shape import says

if TYPE_CHECKING:
    from wattline.analysis.snapshot import DeploymentView
    from wattline.analysis.thresholds import Thresholds


class Headroom(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The power that is not drawn, and what it may be worth."""

    unused_watts: float
    unused_fraction: Annotated[float, says("Of the limit.")]
    tokens_per_second_at_limit: Annotated[
        float | None,
        says("Generated tokens at the limit and at today's tokens per watt, where that is an honest guess."),
    ] = None
    why_no_estimate: Annotated[str | None, says("Why there is no such guess.")] = None


def headroom(view: DeploymentView, thresholds: Thresholds) -> Headroom | None:
    """The headroom of a deployment; ``None`` when power is unknown or unused for a good reason.

    The guess multiplies today's tokens per watt by the limit. That is honest only where the GPUs compute and are held
    up, so that the same work would come with more power if they were not: they work or are low on power, there is
    enough work to fill them, tokens are counted, and none of the suspected causes sets the pace. The mix
    of prompts and answers is taken to stay. A smaller share of waiting would make more of each watt: the guess is to
    the careful side.
    """
    power, limit = view.power_watts, view.power_limit_watts
    if not view.state.record.headroom or power is None or not limit or power >= limit:
        return None
    why = _why_not(view, thresholds)
    return Headroom(
        unused_watts=limit - power,
        unused_fraction=1.0 - power / limit,
        tokens_per_second_at_limit=None if why else view.tokens_per_watt["generation"] * limit,
        why_no_estimate=why or None,
    )


def _why_not(view: DeploymentView, thresholds: Thresholds) -> str:
    if view.state not in (State.WORKING, State.LOW_POWER):
        return "today's tokens are not made by the power that is drawn"
    for suspicion in view.suspicions:
        if suspicion.cause.record.sets_pace:
            return suspicion.cause.record.sets_pace
    if not view.tokens_per_watt.get("generation"):
        return "no token was counted against the power"
    if view.work is None or view.work < thresholds.loaded_requests:
        return f"fewer than {thresholds.loaded_requests:.0f} requests are held, and more of them may be all it takes"
    return ""
