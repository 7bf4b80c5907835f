"""vLLM, V0 and V1. Every data-parallel engine core has its own series (label ``engine``): counts are added.

Its token counters move with every step of the engine. Two models behind one port are added up and named together.
"""

from __future__ import annotations

from exporter.engines.kinds import EngineKind, Over, Progress, Rule, Term, metric

VLLM = EngineKind(
    name="vllm",
    prefix="vllm:",
    running=metric("vllm:num_requests_running"),
    queued=(
        Rule(
            (
                Term(("vllm:num_requests_waiting",)),
                # V0 only: preempted requests whose cache lies in host memory.
                Term(("vllm:num_requests_swapped",), optional=True),
            )
        ),
    ),
    # Renamed around 0.10; both are there in between.
    kv_cache_usage_ratio=metric("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc", over=Over.MEAN),
    prompt_tokens=metric("vllm:prompt_tokens_total"),
    generation_tokens=metric("vllm:generation_tokens_total"),
    progress=Progress(
        (
            Term(("vllm:generation_tokens_total",)),
            Term(("vllm:prompt_tokens_total",)),
            Term(("vllm:iteration_tokens_total_count",)),
        )
    ),
    model_label="model_name",
)
