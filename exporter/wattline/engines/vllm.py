"""vLLM, V0 and V1. Every data-parallel engine core has its own series (label ``engine``): counts are added.

Its token counters move with every step of the engine. Two models behind one port are added up and named together.

With several API servers (``--api-server-count``) an engine core tells its state to one of them at a step, whichever is
answered: releases that show gauges by process (label ``pid``) show one number several times, some of them old. Counters
have no such label: the client library adds them.
"""

from __future__ import annotations

from dataclasses import replace

from wattline.engines.command_lines import ServerKind
from wattline.engines.kinds import Comparison, EngineKind, Off, Over, Progress, Rule, Term, metric

_PROCESSES = frozenset({"pid"})

_SERVER = ServerKind(
    kind="vllm",
    command="vllm.entrypoints.openai.api_server",
    model_flags=("--served-model-name", "--model"),
    mute="--disable-log-stats",
    workers="VLLM::Worker",
    rank_flag="--node-rank",
    headless_flag="--headless",
    head_flags=("--data-parallel-address", "-dpa", "--master-addr"),
)
VLLM = EngineKind(
    name="vllm",
    prefix="vllm:",
    passed_on_as=("ray_vllm:",),
    servers=(
        _SERVER,
        replace(_SERVER, command="vllm", verb="serve", model_first=True),
    ),
    start="start vLLM without --disable-log-stats",
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
    awake=(Rule((Term(("vllm:engine_sleep_state",), where={"sleep_state": frozenset({"awake"})}),)),),
    finished_requests=metric("vllm:e2e_request_latency_seconds_count"),
    request_seconds=metric("vllm:e2e_request_latency_seconds_sum"),
    prompt_tokens=(
        Rule(
            (Term(("vllm:prompt_tokens_total",)), Term(("vllm:prompt_tokens_cached_total",), minus=True, optional=True))
        ),
    ),
    cached_prompt_tokens=metric("vllm:prompt_tokens_cached_total"),
    generation_tokens=metric("vllm:generation_tokens_total"),
    flops=metric("vllm:estimated_flops_per_gpu_total", over=Over.MEAN),
    read_bytes=metric("vllm:estimated_read_bytes_per_gpu_total", over=Over.MEAN),
    write_bytes=metric("vllm:estimated_write_bytes_per_gpu_total", over=Over.MEAN),
    progress=Progress(
        (
            Term(("vllm:generation_tokens_total",)),
            Term(("vllm:prompt_tokens_total",)),
            Term(("vllm:iteration_tokens_total_count",)),
            Term(("vllm:e2e_request_latency_seconds_count",)),
        )
    ),
    model_labels=("model_name",),
    compared=Comparison(
        "0.32.0 (CPU)", held=Off(-0.48, 0.0), inside=Off(-0.36, -0.11), tokens=Off(0.0, 0.0), pause_seconds=1.2
    ),
)
