from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import aiohttp
import jsonschema
import pytest

from wattline import __version__
from wattline.analysis.causes import Cause, Suspicion
from wattline.analysis.snapshot import GpuMeans, GpuView, Pending, Snapshot, State
from wattline.publish.history import History
from wattline.publish.shape import LONGEST_TEXT
from wattline.publish.status import build, encode, schema

from .conftest import Exporter
from .snapshots import snapshot, uuid

SCHEMA = schema()
RUNBOOK_FILES = Path(__file__).parents[2] / "docs" / "runbooks"


@dataclass(frozen=True)
class Now:
    name: str = "climb_1024"
    title: str = "A benchmark holds 1024 requests"
    seconds_left: float | None = 23.0


def told(shown: Snapshot, history: History | None = None, **more: Any) -> dict[str, Any]:
    """What a client gets, after a check against the schema."""
    answer: dict[str, Any] = json.loads(encode(build(shown, history or History(), **more)))
    jsonschema.validate(answer, SCHEMA)
    return answer


def with_deployment(state: State = State.WORKING, **changes: Any) -> Snapshot:
    whole = snapshot(state)
    return replace(whole, deployments=(replace(whole.deployments[0], **changes),))


def leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        for item in value.values():
            yield from leaves(item)
    elif isinstance(value, list):
        for item in value:
            yield from leaves(item)
    else:
        yield value


def test_the_schema_is_one() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)


def test_the_schema_refuses_what_is_not_a_status() -> None:
    answer = told(snapshot(State.WORKING))
    answer["deployments"][0]["state"] = "sleepy"
    with pytest.raises(jsonschema.ValidationError, match="sleepy"):
        jsonschema.validate(answer, SCHEMA)


@pytest.mark.parametrize("state", State)
def test_every_state_is_told_with_its_title_and_reason(state: State) -> None:
    answer = told(snapshot(state, 1000.0, since=940.0))
    (d,) = answer["deployments"]
    assert (d["state"], d["title"]) == (state.value, state.record.title)
    assert d["seconds_in_state"] == 60.0
    assert d["reason"][0].isupper() or d["reason"][0].isdigit()
    assert set(d["state_seconds"]) == set(State)


def test_the_numbers_are_those_of_the_snapshot() -> None:
    answer = told(snapshot(State.IDLE_WHILE_BUSY))
    (d,) = answer["deployments"]
    assert d["summary"] == "1,024 requests are held, GPUs draw 14.5 % of their limit"
    assert d["tdp_fraction"] == 87 / 600
    assert d["power_mean_watts"] == 8 * 87
    assert d["power_watts"] == sum(g["power_watts"] for g in answer["gpus"])
    assert d["power_limit_watts"] == 4800
    assert d["work_requests"] == 1024
    assert d["tokens_per_second"]["generation"] == 3740
    assert d["tokens_per_watt"]["generation"] == 3740 / 696
    assert d["joules_per_token"]["generation"] == 696 / 3740
    gpu = answer["gpus"][7]
    assert (gpu["index"], gpu["uuid"], gpu["deployment"]) == (7, uuid(7), "glm5")
    assert gpu["limit_watts"] == 600
    assert gpu["idle_floor"] == {"watts": 84, "source": "learned"}
    assert gpu["event_reasons"] == []
    assert gpu["temperature_celsius"] == pytest.approx(35.9, abs=0.1)
    (engine,) = answer["engines"]
    assert (engine["up"], engine["running_requests"], engine["queued_requests"]) == (True, 1024, 0)
    assert engine["kv_cache_usage_ratio"] == 0.37
    assert [s["name"] for s in answer["sources"]] == ["nvml", *(uuid(i) for i in range(8)), "engine:glm5-engine"]


@pytest.mark.parametrize(
    ("state", "words"),
    [
        (State.UNKNOWN, "Engine 127.0.0.1:30000: connection_refused"),
        (State.IDLE, "No request is held, GPUs draw 14.5 % of their limit"),
        (State.LOW_POWER, "1,024 requests are held, GPUs draw 41.7 % of their limit"),
        (State.STALLED, "1,024 requests are held, no token comes, GPUs draw 23.3 % of their limit"),
    ],
)
def test_the_summary_says_what_is_held_and_what_is_drawn(state: State, words: str) -> None:
    assert told(snapshot(state))["deployments"][0]["summary"] == words


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"work": 1.0}, "1 request is held, GPUs draw 86.7 % of their limit"),
        ({"work": None}, "GPUs draw 86.7 % of their limit"),
        ({"tdp_fraction": None}, "1,024 requests are held"),
        ({"work": None, "tdp_fraction": None}, "86.7% of the power limit"),
    ],
)
def test_the_summary_names_only_what_is_known(changes: dict[str, Any], words: str) -> None:
    assert told(with_deployment(**changes))["deployments"][0]["summary"] == words


def test_what_is_coming_and_since_when_are_told() -> None:
    (d,) = told(with_deployment(pending=Pending(State.STALLED, 12.0), state_since=1.7e9, bandwidth_ratio=0.62))[
        "deployments"
    ]
    assert d["pending"] == {"state": "stalled", "title": "Stalled", "seconds": 12.0}
    assert (d["state_since"], d["bandwidth_ratio"]) == (1.7e9, 0.62)
    assert not {"pending", "state_since", "flops_ratio"} & set(told(with_deployment())["deployments"][0])


def test_an_engine_that_sleeps_and_one_that_waits_for_its_peer_say_so() -> None:
    whole = snapshot(State.WORKING)
    (view,) = whole.engines
    assert view.reading is not None
    reading = replace(view.reading, asleep=True, waiting_for_peer=3.0)
    (engine,) = told(replace(whole, engines=(replace(view, reading=reading),)))["engines"]
    assert (engine["asleep"], engine["waiting_for_peer_requests"]) == (True, 3.0)


def test_a_gpu_that_does_not_answer_has_its_identity_only() -> None:
    whole = snapshot(State.UNKNOWN)
    lost = GpuView(whole.gpus[3].identity, "glm5", up=False)
    gpu = told(replace(whole, gpus=(lost,)))["gpus"][0]
    identity = {"index", "uuid", "name", "pci_bus_id", "architecture", "driver", "deployment", "up", "energy_source"}
    assert set(gpu) == identity
    assert gpu["up"] is False


def test_a_reading_that_was_not_obtained_is_left_out() -> None:
    whole = snapshot(State.WORKING)
    view = whole.gpus[0]
    assert view.sample is not None
    assert view.activity is not None
    blind = replace(
        view,
        sample=replace(view.sample, utilization_ratio=None, event_reasons=None),
        activity=replace(view.activity, sm_active_ratio=None, pcie_transmit_bytes_per_second=None),
        condition=None,
        limit_watts=None,
        idle_floor=None,
    )
    gpu = told(replace(whole, gpus=(blind,)))["gpus"][0]
    missing = {
        "utilization_ratio",
        "event_reasons",
        "sm_active_ratio",
        "pcie_transmit_bytes_per_second",
        "temperature_celsius",
        "memory_used_bytes",
        "xid_errors",
        "limit_watts",
        "limit_default_watts",
        "idle_floor",
    }
    assert not missing & set(gpu)
    assert gpu["power_watts"] == pytest.approx(515.45)
    assert gpu["tensor_active_ratio"] == 0.3


def test_an_engine_that_is_down_tells_why_and_no_load() -> None:
    whole = snapshot(State.UNKNOWN)
    (engine,) = told(whole)["engines"]
    assert (engine["up"], engine["error"]) == (False, "connection_refused")
    assert not {"running_requests", "queued_requests", "kv_cache_usage_ratio", "work_requests", "model"} & set(engine)
    (silent,) = told(replace(whole, engines=(replace(whole.engines[0], reading=None),)))["engines"]
    assert silent["error"] == "no recent reading"


def test_before_the_first_reading_there_is_nothing_but_the_reason() -> None:
    answer = told(Snapshot(t=0.0), why_not_ready="no reading yet")
    assert (answer["ready"], answer["why_not_ready"]) == (False, "no reading yet")
    assert [answer[k] for k in ("deployments", "gpus", "engines", "sources")] == [[], [], [], []]
    assert "judged_seconds_ago" not in answer
    assert "phase" not in answer


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_no_number_is_left_out(value: float) -> None:
    whole = with_deployment(
        tdp_fraction=value,
        work=value,
        tokens_per_second={"generation": value, "prompt": 7.0},
        tokens_per_watt={"generation": value},
    )
    gpu = replace(whole.gpus[0], tdp_fraction=value, means=GpuMeans(power_watts=value))
    answer = told(replace(whole, gpus=(gpu,)))
    (d,) = answer["deployments"]
    assert not {"tdp_fraction", "work_requests"} & set(d)
    assert d["tokens_per_second"] == {"prompt": 7.0}
    assert d["tokens_per_watt"] == {}
    assert not {"tdp_fraction", "power_mean_watts"} & set(answer["gpus"][0])


@pytest.mark.parametrize("state", State)
def test_nothing_in_it_is_null(state: State) -> None:
    """Absent and null would be two ways to say one thing."""
    history = History()
    history.add(snapshot(state))
    assert None not in list(leaves(told(snapshot(state), history)))


def test_the_history_is_told_from_the_oldest_with_gaps() -> None:
    history = History()
    for t, state in ((100.0, State.IDLE), (105.0, State.UNKNOWN), (110.0, State.WORKING)):
        history.add(snapshot(state, t))
    points = told(snapshot(State.WORKING, 112.0), history)["deployments"][0]["history"]
    assert points == [
        {"seconds_ago": 12.0, "state": "idle", "tdp_fraction": 0.145, "tokens_per_second": 0.0},
        {"seconds_ago": 7.0, "state": "unknown"},
        {"seconds_ago": 2.0, "state": "working", "tdp_fraction": 520 / 600, "tokens_per_second": 9400.0},
    ]


def test_the_version_the_time_the_phase_and_the_configuration_are_told() -> None:
    answer = told(
        snapshot(State.IDLE),
        now=datetime(2026, 3, 1, 12, 30, tzinfo=UTC),
        phase=Now(),
        configuration={"window": "60s", "deployments": [{"name": "glm5"}]},
        judged_seconds_ago=0.25,
    )
    assert answer["version"] == __version__
    assert answer["time"] == "2026-03-01T12:30:00Z"
    assert answer["phase"] == {"name": "climb_1024", "title": "A benchmark holds 1024 requests", "seconds_left": 23.0}
    assert answer["configuration"] == {"window": "60s", "deployments": [{"name": "glm5"}]}
    assert answer["judged_seconds_ago"] == 0.25


def test_a_phase_that_is_held_has_no_end() -> None:
    assert "seconds_left" not in told(snapshot(State.IDLE), phase=Now(seconds_left=None))["phase"]


def test_every_cause_has_a_title_and_all_but_the_normal_one_a_runbook() -> None:
    causes = tuple(Suspicion(c, "evidence") for c in Cause)
    (d,) = told(with_deployment(State.LOW_POWER, suspicions=causes))["deployments"]
    without = {s["cause"] for s in d["suspicions"] if "runbook" not in s}
    assert without == {"memory_bound"}
    by_cause = {s["cause"]: s.get("runbook") for s in d["suspicions"]}
    assert by_cause["throttled"] == "GpuThrottled"
    assert by_cause["host_bound"] == "PowerFractionLow"


@pytest.mark.parametrize(
    ("state", "name"),
    [
        (State.IDLE_WHILE_BUSY, "GpuIdleWhileBusy"),
        (State.STALLED, "InferenceStalled"),
        (State.LOW_POWER, "PowerFractionLow"),
        (State.UNKNOWN, "InferenceEngineDown"),
        (State.IDLE, None),
        (State.WORKING, None),
        (State.SATURATED, None),
    ],
)
def test_a_state_to_act_on_leads_to_its_runbook(state: State, name: str | None) -> None:
    (d,) = told(snapshot(state))["deployments"]
    assert d.get("runbook") == name


def test_an_unknown_state_with_a_lost_gpu_leads_to_the_runbook_of_lost_gpus() -> None:
    whole = snapshot(State.UNKNOWN)
    lost = (GpuView(whole.gpus[0].identity, "glm5", up=False), *whole.gpus[1:])
    (d,) = told(replace(whole, gpus=lost))["deployments"]
    assert d["runbook"] == "GpuLost"


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("<script>alert(1)</script>", "<script>alert(1)</script>"),
        ("a\u202egnp.exe", "a\ufffdgnp.exe"),
        ("half \ud800 of a character", "half \ufffd of a character"),
        ("bell\x07", "bell\ufffd"),
        ("ü" * (LONGEST_TEXT + 1), "ü" * (LONGEST_TEXT - 1) + "…"),
    ],
)
def test_a_hostile_model_name_is_text_and_nothing_else(name: str, shown: str) -> None:
    whole = snapshot(State.WORKING)
    reading = whole.engines[0].reading
    assert reading is not None
    engine = replace(whole.engines[0], reading=replace(reading, model=name))
    assert told(replace(whole, engines=(engine,)))["engines"][0]["model"] == shown


def test_a_hostile_text_anywhere_costs_no_answer() -> None:
    """Every text of every reading at once."""
    bad = "\ud800\x00\u202e" + "x" * 5000

    def spoilt(value: Any) -> Any:
        texts = {f.name: bad for f in fields(value) if isinstance(getattr(value, f.name), str)}
        return replace(value, **{name: text for name, text in texts.items() if name not in ("state", "energy_source")})

    whole = snapshot(State.WORKING)
    reading = whole.engines[0].reading
    assert reading is not None
    gpu = replace(whole.gpus[0], identity=spoilt(whole.gpus[0].identity), deployment=bad)
    answer = told(
        Snapshot(
            t=1000.0,
            gpus=(gpu,),
            engines=(replace(spoilt(whole.engines[0]), reading=spoilt(reading)),),
            deployments=(spoilt(replace(whole.deployments[0], unseen=(bad,), unresolved_gpus=(bad,), gpus=(bad,))),),
            sources=(replace(spoilt(whole.sources[0]), errors={bad: 1}, rejected={bad: 1}),),
        ),
        why_not_ready=bad,
    )
    texts = [value for value in leaves(answer) if isinstance(value, str)]
    assert all(len(text) <= LONGEST_TEXT for text in texts)
    assert not any(re.search("[\x00\u202e]", text) for text in texts)


def test_a_deployment_finds_its_gpus_and_engines_by_the_same_names() -> None:
    answer = told(snapshot(State.WORKING))
    (d,) = answer["deployments"]
    assert d["gpus"] == [g["uuid"] for g in answer["gpus"]]
    assert d["engines"] == [e["name"] for e in answer["engines"]]


async def test_it_is_served_as_json_that_nobody_keeps(exporter: Exporter) -> None:
    exporter.publication.publish(snapshot(State.STALLED))
    async with aiohttp.ClientSession() as session, session.get(exporter.url + "api/v1/status") as response:
        assert response.status == 200
        assert response.content_type == "application/json"
        assert response.headers["Cache-Control"] == "no-store"
        assert response.headers["Content-Encoding"] in ("gzip", "deflate")
        answer = await response.json()
    jsonschema.validate(answer, SCHEMA)
    assert answer["deployments"][0]["state"] == "stalled"
    assert len(answer["deployments"][0]["history"]) == 1
    assert 0 <= answer["judged_seconds_ago"] < 60


async def test_its_schema_is_served_beside_it(exporter: Exporter) -> None:
    async with aiohttp.ClientSession() as session, session.get(exporter.url + "api/v1/status/schema") as response:
        assert response.content_type == "application/schema+json"
        assert json.loads(await response.text()) == SCHEMA


async def test_it_answers_before_the_first_reading(exporter: Exporter) -> None:
    async with aiohttp.ClientSession() as session, session.get(exporter.url + "api/v1/status") as response:
        answer = await response.json()
    jsonschema.validate(answer, SCHEMA)
    assert answer["why_not_ready"] == "no reading yet"
