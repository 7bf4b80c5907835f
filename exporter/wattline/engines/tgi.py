"""Hugging Face's Text Generation Inference.

Tokens are the sums of its length histograms, which move when a request finishes. Each forward pass, prefill or decode,
is counted as it succeeds: that is its progress.
"""

from __future__ import annotations

from wattline.engines.command_lines import ServerKind
from wattline.engines.kinds import EngineKind, Progress, Term, metric

TGI = EngineKind(
    name="tgi",
    prefix="tgi_",
    servers=(
        ServerKind(
            kind="tgi",
            command="text-generation-launcher",
            port=3000,
            host_flags=("--hostname",),
            model_flags=("--model-id",),
            front="text-generation-router",
        ),
    ),
    running=metric("tgi_batch_current_size"),
    queued=metric("tgi_queue_size"),
    finished_requests=metric("tgi_request_duration_count"),
    request_seconds=metric("tgi_request_duration_sum"),
    prompt_tokens=metric("tgi_request_input_length_sum"),
    generation_tokens=metric("tgi_request_generated_tokens_sum"),
    progress=Progress(
        (
            Term(("tgi_batch_inference_success", "tgi_batch_inference_duration_count")),
            Term(("tgi_request_duration_count",)),
        )
    ),
)
