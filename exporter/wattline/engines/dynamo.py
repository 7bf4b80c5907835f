"""NVIDIA Dynamo's HTTP frontend.

Its queue is part of its in-flight requests: a request is queued until its first token and in flight until its last.
Running is therefore the difference. The workers behind it serve their engine's own metrics on their own port and are
read as that engine.
"""

from __future__ import annotations

from wattline.engines.kinds import EngineKind, Progress, Rule, Term, metric

_IN_FLIGHT = ("dynamo_frontend_inflight_requests", "dynamo_frontend_active_requests")

DYNAMO = EngineKind(
    name="dynamo",
    prefix="dynamo_frontend_",
    running=(Rule((Term(_IN_FLIGHT), Term(("dynamo_frontend_queued_requests",), minus=True, optional=True))),),
    queued=metric("dynamo_frontend_queued_requests"),
    held_http=metric(*_IN_FLIGHT),
    prompt_tokens=metric("dynamo_frontend_input_sequence_tokens_sum"),
    # The first moves with every token, the second when a request finishes.
    generation_tokens=(
        *metric("dynamo_frontend_output_tokens_total"),
        *metric("dynamo_frontend_output_sequence_tokens_sum"),
    ),
    progress=Progress(
        (
            Term(("dynamo_frontend_output_tokens_total",)),
            Term(("dynamo_frontend_inter_token_latency_seconds_count",)),
            Term(("dynamo_frontend_time_to_first_token_seconds_count",)),
        )
    ),
    model_label="model",
)
