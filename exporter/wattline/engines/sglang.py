"""SGLang, from 0.4.6 on: the only place that knows its names.

Who writes what, as measured on releases 0.4.6 to 0.5.23:

- Schedulers write gauges and live counters, one series a rank. Data-parallel ranks hold different requests; tensor,
  pipeline, expert and context ranks repeat them. Up to 0.4.9 there are no rank labels, and with data parallelism the
  one series is that of a random rank.
- The tokenizer manager writes token and latency metrics of the whole server. Its token counters move when a request
  *finishes*. Its inter-token histogram moves while tokens are made.
- ``realtime_tokens_total`` (0.5.7) is the one live token counter. The first token of a request comes from its prefill
  and is not in ``mode="decode"``.
- ``gen_throughput`` keeps its last value when the server is idle or hangs, and is not used.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from wattline.engines.command_lines import ServerKind
from wattline.engines.exposition import plain
from wattline.engines.kinds import Comparison, EngineKind, Off, Over, Progress, Ranks, Rule, Term, metric

if TYPE_CHECKING:
    from wattline.engines.exposition import Exposition
    from wattline.readings import EngineReading

SLOW_LAG_SECONDS = 31.0
"""The idle hook rewrites the gauges 30 s after the last report (every release to 0.5.15)."""
FAST_LAG_SECONDS = 2.0
"""From 0.5.16 on they are rewritten as soon as the number of running requests has changed."""

_MODEL = ("model_name", "name")
"""The second is that of the oldest releases."""
_RANKS = Ranks(
    parts=(*_MODEL, "engine_type", "dp_rank"),
    replicas=frozenset(
        {
            "tp_rank",
            "pp_rank",
            "ep_rank",
            "cp_rank",
            "moe_ep_rank",
            "moe_dp_rank",
            "attn_tp_rank",
            "attn_cp_rank",
            "node_rank",
            "pid",
        }
    ),
    total="priority",
)


def _scheduler(*names: str, optional: bool = False) -> Term:
    return Term(names, ranks=_RANKS, optional=optional)


def _estimated(what: str) -> tuple[Rule, ...]:
    return (Rule((Term((f"sglang:estimated_{what}_per_gpu_total",), ranks=_RANKS, over=Over.MEAN),)),)


_FIRST_TOKENS = Term(("sglang:time_to_first_token_seconds_count",), optional=True)
"""The first token of a request comes from its prefill, and no counter of decoded tokens has it."""
_WAITING_FOR_PEER = (
    _scheduler("sglang:num_prefill_bootstrap_queue_reqs", "sglang:num_prefill_prealloc_queue_reqs", optional=True),
    _scheduler(
        # The second spelling is SGLang's own, up to 0.5.1.
        "sglang:num_prefill_inflight_queue_reqs",
        "sglang:num_prefill_infight_queue_reqs",
        optional=True,
    ),
    _scheduler("sglang:num_decode_prealloc_queue_reqs", optional=True),
    _scheduler("sglang:num_decode_transfer_queue_reqs", optional=True),
    _scheduler("sglang:num_decode_host_receive_queue_reqs", optional=True),
)
"""A prefill server waits for the decode server to take a request over, and the other way round."""


def _live_tokens(*modes: str) -> Term:
    return Term(("sglang:realtime_tokens_total",), where={"mode": frozenset(modes)}, ranks=_RANKS)


def _passes(mode: str) -> tuple[Rule, ...]:
    return (Rule((Term(("sglang:cuda_graph_passes_total",), where={"mode": frozenset({mode})}, ranks=_RANKS),)),)


_GENERATION_ENDPOINTS = frozenset(
    {
        "/generate",
        "/generate_from_file",
        "/encode",
        "/classify",
        "/invocations",
        "/vertex_generate",
        "/api/chat",
        "/api/generate",
        "/v1/chat/completions",
        "/v1/completions",
        "/v1/responses",
        "/v1/messages",
        "/v1/embeddings",
        "/v1/classify",
        "/v1/rerank",
        "/v1/score",
        "/v1/audio/transcriptions",
        # The Rust front end names /generate, health and information; whatever is left is this.
        "other",
    }
)

_SINCE_0_5_16 = frozenset(
    {
        "sglang:weight_memory_usage_gb",
        "sglang:prefill_effective_tokens_total",
        "sglang:scheduler_idle_seconds_total",
    }
)
"""Written from the start by every scheduler of 0.5.17, 0.5.18 and 0.5.20 on."""


def _finish(reading: EngineReading, exposition: Exposition) -> EngineReading:
    """Settle what depends on the release and on the role of the server."""
    recent = any(plain(name) in exposition.names for name in _SINCE_0_5_16)
    # With nothing running before and after, even a recent release waits for the idle hook to rewrite the queue.
    queue_may_be_old = reading.running == 0 and (reading.queued or 0) > 0
    lag = FAST_LAG_SECONDS if recent and not queue_may_be_old else SLOW_LAG_SECONDS
    reading = replace(reading, gauge_lag_seconds=lag)
    # A prefill server and a decode server both count every request when it finishes. Prompts belong to the one,
    # generated tokens to the other; counted on both sides they would be twice as many.
    roles = {
        series.labels.get("engine_type", "")
        for name in ("sglang:num_running_reqs", "sglang:realtime_tokens_total", "sglang:scheduler_idle_seconds_total")
        for series in exposition.series.get(plain(name), ())
    }
    if roles == {"decode"}:
        return replace(reading, prompt_tokens=None, prompt_tokens_source=None, cached_prompt_tokens=None)
    if roles == {"prefill"}:
        return replace(reading, generation_tokens=None, generation_tokens_source=None)
    return reading


_SERVER = ServerKind(
    kind="sglang",
    command="sglang.launch_server",
    port=30000,
    model_flags=("--served-model-name", "--model-path", "--model"),
    needs="--enable-metrics",
    workers="sglang::scheduler",
    aside_modes=("--grpc-mode", "--smg-grpc-mode"),
    aside_flags=("--grpc-http-sidecar-port", "--smg-http-sidecar-port"),
    rank_flag="--node-rank",
    head_flags=("--dist-init-addr", "--nccl-init-addr"),
    own_metrics_modes=("--enable-dp-attention", "--attn-dp-size"),
)
SGLANG = EngineKind(
    name="sglang",
    prefix="sglang:",
    servers=(
        _SERVER,
        replace(_SERVER, command="sglang", verb="serve"),
    ),
    start="start SGLang with --enable-metrics; up to 0.5.9 it says nothing until its first request",
    running=(Rule((_scheduler("sglang:num_running_reqs"),)),),
    queued=(
        Rule(
            (
                _scheduler("sglang:num_queue_reqs"),
                _scheduler("sglang:num_grammar_queue_reqs", optional=True),
                *_WAITING_FOR_PEER,
            )
        ),
    ),
    waiting_for_peer=(Rule(_WAITING_FOR_PEER),),
    held_http=(
        Rule(
            (
                Term(
                    ("sglang:http_requests_active",),
                    where={"endpoint": _GENERATION_ENDPOINTS},
                    zero_without_match=True,
                ),
            )
        ),
    ),
    kv_cache_usage_ratio=(Rule((Term(("sglang:token_usage",), ranks=_RANKS, over=Over.MEAN),)),),
    finished_requests=metric("sglang:e2e_request_latency_seconds_count"),
    request_seconds=metric("sglang:e2e_request_latency_seconds_sum"),
    prompt_tokens=(
        Rule((_live_tokens("prefill_compute"),)),
        # That of finished requests has the cached ones in it.
        Rule((Term(("sglang:prompt_tokens_total",)), Term(("sglang:cached_tokens_total",), minus=True, optional=True))),
    ),
    cached_prompt_tokens=(
        Rule((_live_tokens("prefill_cache"),)),
        *metric("sglang:cached_tokens_total"),
    ),
    generation_tokens=(
        Rule((_live_tokens("decode"), _FIRST_TOKENS)),
        # Up to 0.5.6 there is no live counter; every token but the first of a request is one observation here.
        Rule((Term(("sglang:inter_token_latency_seconds_count",)), _FIRST_TOKENS)),
        *metric("sglang:generation_tokens_total"),
    ),
    # Each data-parallel rank keeps its own account: the mean is the share of the schedulers' time without work.
    scheduler_idle_seconds=(Rule((Term(("sglang:scheduler_idle_seconds_total",), ranks=_RANKS, over=Over.MEAN),)),),
    flops=_estimated("flops"),
    read_bytes=_estimated("read_bytes"),
    write_bytes=_estimated("write_bytes"),
    cuda_graph_passes=_passes("decode_cuda_graph"),
    eager_passes=_passes("decode_none"),
    progress=Progress(
        (
            Term(("sglang:realtime_tokens_total",), by=("mode",), ranks=_RANKS),
            Term(("sglang:inter_token_latency_seconds_count",)),
            Term(("sglang:time_to_first_token_seconds_count",)),
            Term(("sglang:e2e_request_latency_seconds_count",)),
        ),
        evidence=_SINCE_0_5_16 | {"sglang:http_requests_active"},
    ),
    model_labels=_MODEL,
    compared=Comparison(
        "0.5.23 (CPU)",
        held=Off(-0.82, -0.35),
        front=Off(0.0, 1.45),
        inside=Off(-0.07, -0.07),
        tokens=Off(0.0, 0.0),
        pause_seconds=2.2,
    ),
    gauge_lag_seconds=SLOW_LAG_SECONDS,
    evidence=_SINCE_0_5_16,
    finish=_finish,
)
