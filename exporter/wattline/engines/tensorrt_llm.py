"""TensorRT-LLM's ``trtllm-serve``, with ``return_perf_metrics`` and ``enable_iter_perf_stats`` set.

Every counter and latency moves only when a request finishes: nothing shows progress while it generates. Running,
waiting and cache usage come from the statistics of the last iteration; how long they stay after it is not known, so
they are taken to lag. Releases up to 1.1 have request latencies only.
"""

from __future__ import annotations

from dataclasses import replace

from wattline.engines.command_lines import ServerKind
from wattline.engines.kinds import EngineKind, Over, metric

_PATH = "/prometheus/metrics"
_SERVER = ServerKind(
    kind="tensorrt_llm",
    command="trtllm-serve",
    path=_PATH,
    model_flags=("--served-model-name",),
    model_first=True,
)
TENSORRT_LLM = EngineKind(
    name="tensorrt_llm",
    prefix="trtllm_",
    path=_PATH,
    servers=(replace(_SERVER, verb="serve"), _SERVER),
    start="TensorRT-LLM serves /prometheus/metrics",
    running=metric("trtllm_num_requests_running"),
    queued=metric("trtllm_num_requests_waiting"),
    kv_cache_usage_ratio=metric("trtllm_kv_cache_utilization", over=Over.MEAN),
    prompt_tokens=metric("trtllm_prompt_tokens_total"),
    generation_tokens=metric("trtllm_generation_tokens_total"),
    model_labels=("model_name",),
    gauge_lag_seconds=30.0,
)
