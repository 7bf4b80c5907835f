from __future__ import annotations

from dataclasses import replace

from wattline.analysis.snapshot import Snapshot, State
from wattline.publish.history import History
from wattline.publish.server import Publication

from .snapshots import snapshot


def fed(*moments: float, state: State = State.WORKING) -> History:
    history = History()
    for t in moments:
        history.add(snapshot(state, t))
    return history


def test_a_point_holds_the_state_the_power_fraction_and_the_generated_tokens() -> None:
    (point,) = fed(100.0).of("glm5")
    assert (point.t, point.state) == (100.0, State.WORKING)
    assert point.tdp_fraction == 520 / 600
    assert point.tokens_per_second == 9400.0


def test_snapshots_of_every_second_leave_a_point_every_five() -> None:
    assert [p.t for p in fed(*range(100, 121)).of("glm5")] == [100, 105, 110, 115, 120]


def test_it_reaches_back_fifteen_minutes_and_no_further() -> None:
    points = fed(*range(0, 4000, 1)).of("glm5")
    assert len(points) == 181
    assert points[-1].t - points[0].t == 900.0


def test_a_clock_that_runs_faster_leaves_its_own_distances() -> None:
    """A demo at speed 20 is judged every 20 s of its clock."""
    points = fed(*range(0, 2000, 20)).of("glm5")
    assert [p.t for p in points[:2]] == [1080.0, 1100.0]
    assert len(points) == 46


def test_what_was_not_obtained_stays_unknown() -> None:
    (point,) = fed(100.0, state=State.UNKNOWN).of("glm5")
    assert point.tdp_fraction is None
    assert point.tokens_per_second is None


def test_a_value_that_is_no_number_is_unknown() -> None:
    history = History()
    whole = snapshot(State.WORKING)
    view = replace(whole.deployments[0], tdp_fraction=float("nan"), tokens_per_second={"generation": float("inf")})
    history.add(replace(whole, deployments=(view,)))
    (point,) = history.of("glm5")
    assert point.tdp_fraction is None
    assert point.tokens_per_second is None


def test_a_clock_that_goes_back_begins_anew() -> None:
    assert [p.t for p in fed(500.0, 600.0, 10.0, 20.0).of("glm5")] == [10.0, 20.0]


def test_a_deployment_that_is_gone_is_forgotten_after_fifteen_minutes() -> None:
    history = fed(0.0)
    history.add(Snapshot(t=900.0))
    assert len(history.of("glm5")) == 1
    history.add(Snapshot(t=906.0))
    assert history.of("glm5") == ()


def test_nothing_is_known_of_a_deployment_that_never_was() -> None:
    assert History().of("nobody") == ()


def test_publishing_feeds_it() -> None:
    publication = Publication()
    publication.publish(snapshot(State.IDLE, 100.0))
    publication.publish(snapshot(State.WORKING, 105.0))
    assert [p.state for p in publication.history.of("glm5")] == [State.IDLE, State.WORKING]
