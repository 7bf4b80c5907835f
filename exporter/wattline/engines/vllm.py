"""vLLM, V0 and V1. Every data-parallel engine core has its own series (label ``engine``): counts are added.

Its token counters move with every step of the engine. Two models behind one port are added up and named together.

With several API servers (``--api-server-count``) an engine core tells its state to one of them at a step, whichever is
answered: releases that show gauges by process (label ``pid``) show one number several times, some of them old. Counters
have no such label: the client library adds them.
"""

from __future__ import annotations

from wattline.engines.kinds import EngineKind, Over, Progress, Rule, Term, metric

_PROCESSES = frozenset({"pid"})

VLLM = EngineKind(
    name="vllm",
    prefix="vllm:",
    running=(Rule((Term(("vllm:num_requests_running",), replicas=_PROCESSES),)),),
    queued=(
        Rule(
            (
                Term(("vllm:num_requests_waiting",), replicas=_PROCESSES),
                # V0 only: preempted requests whose cache lies in host memory.
                Term(("vllm:num_requests_swapped",), optional=True, replicas=_PROCESSES),
            )
        ),
    ),
    # Renamed around 0.10; both are there in between.
    kv_cache_usage_ratio=(
        Rule((Term(("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"), over=Over.MEAN, replicas=_PROCESSES),)),
    ),
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
