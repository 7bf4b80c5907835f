"""NVIDIA Dynamo's HTTP frontend.

Its queue is part of its in-flight requests: a request is queued until its first token and in flight until its last.
Running is therefore the difference. The workers behind it serve their engine's own metrics on their own port and are
read as that engine.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from wattline.engines.command_lines import ServerKind
from wattline.engines.kinds import Comparison, EngineKind, Off, Progress, Rule, Term, metric

if TYPE_CHECKING:
    from wattline.engines.exposition import Exposition
    from wattline.readings import EngineReading

_LIVE_TOKENS = "dynamo_frontend_output_tokens_total"
_ALL_TOKENS = "dynamo_frontend_output_sequence_tokens_sum"
_READY = frozenset({"dynamo_frontend_model_ready"})
"""A frontend shows a request gauge once it had a request; before, this one tells that it could have had one."""
_IN_FLIGHT = Term(
    # Some releases spell their gauges as if they were counters.
    (
        "dynamo_frontend_inflight_requests",
        "dynamo_frontend_active_requests",
        "dynamo_frontend_inflight_requests_total",
    ),
    zero_beside=_READY,
)
_QUEUED = Term(("dynamo_frontend_queued_requests", "dynamo_frontend_queued_requests_total"), zero_beside=_READY)


def _finish(reading: EngineReading, exposition: Exposition) -> EngineReading:
    """Take the counter that has more of the tokens; where requests are held and none was shown, nothing is missing."""
    everything = sum(series.value for series in exposition.series.get(_ALL_TOKENS, ()))
    if reading.generation_tokens_source == _LIVE_TOKENS and everything > (reading.generation_tokens or 0.0):
        reading = replace(reading, generation_tokens=everything, generation_tokens_source=_ALL_TOKENS)
    return reading


_WORKER = ServerKind(
    kind="dynamo",
    command="dynamo.trtllm",
    port=8081,
    port_flags=(),
    port_variable="DYN_SYSTEM_PORT",
    model_flags=("--served-model-name", "--model-path", "--model"),
)
DYNAMO = EngineKind(
    name="dynamo",
    prefix="dynamo_frontend_",
    servers=(
        _WORKER,
        replace(_WORKER, command="dynamo.sglang", workers="sglang::scheduler"),
        replace(_WORKER, command="dynamo.vllm", workers="VLLM::Worker"),
    ),
    start="ask Dynamo's frontend, or a worker with DYN_SYSTEM_PORT set",
    running=(Rule((_IN_FLIGHT, replace(_QUEUED, minus=True, optional=True))),),
    queued=(Rule((_QUEUED,)),),
    held_http=(Rule((_IN_FLIGHT,)),),
    prompt_tokens=metric("dynamo_frontend_input_sequence_tokens_sum"),
    finished_requests=metric("dynamo_frontend_request_duration_seconds_count"),
    request_seconds=metric("dynamo_frontend_request_duration_seconds_sum"),
    cached_prompt_tokens=metric("dynamo_frontend_cached_tokens_sum"),
    # The first moves with every token, but only of streamed answers, and not for tokens that decode to no text. The
    # second has all of them, when their request finishes: see _finish.
    generation_tokens=(*metric(_LIVE_TOKENS), *metric(_ALL_TOKENS)),
    progress=Progress(
        (
            Term(("dynamo_frontend_output_tokens_total",)),
            Term(("dynamo_frontend_inter_token_latency_seconds_count",)),
            Term(("dynamo_frontend_time_to_first_token_seconds_count",)),
            Term((_ALL_TOKENS,)),
            Term(("dynamo_frontend_request_duration_seconds_count",)),
        )
    ),
    model_labels=("model",),
    compared=Comparison(
        "1.6.1 (mocker)",
        held=Off(-0.1, 0.0),
        front=Off(-0.1, 0.0),
        inside=Off(-0.12, -0.01),
        tokens=Off(0.0, 0.0),
        pause_seconds=0.0,
    ),
    finish=_finish,
)
