"""NVIDIA Triton with the TensorRT-LLM backend, on Triton's metrics port.

The backend tells the statistics of its last iteration. Of the *active* requests those that the iteration did not take
are *waiting*: it computes them as active less scheduled, so running is the difference. Triton with the vLLM backend
passes vLLM's counters on under vLLM's names and is read as vLLM; it has no load gauges.
"""

from __future__ import annotations

from wattline.engines.kinds import EngineKind, Over, Progress, Rule, Term, metric


def _requests(kind: str, *, minus: bool = False) -> Term:
    return Term(("nv_trt_llm_request_metrics",), where={"request_type": frozenset({kind})}, minus=minus)


TRITON = EngineKind(
    name="triton",
    prefix="nv_trt_llm_",
    start="Triton serves metrics on a port of their own, 8002",
    running=(Rule((_requests("active"), _requests("waiting", minus=True))),),
    queued=(Rule((_requests("waiting"),)),),
    kv_cache_usage_ratio=(
        Rule(
            (
                Term(
                    ("nv_trt_llm_kv_cache_block_metrics",),
                    where={"kv_cache_block_type": frozenset({"fraction"})},
                    over=Over.MEAN,
                ),
            )
        ),
    ),
    prompt_tokens=metric("nv_llm_input_token_len_sum"),
    generation_tokens=metric("nv_llm_output_token_len_sum"),
    progress=Progress(
        (
            Term(("nv_trt_llm_general_metrics",), where={"general_type": frozenset({"iteration_counter"})}),
            Term(("nv_inference_request_success",)),
        )
    ),
    model_labels=("model",),
    gauge_lag_seconds=30.0,
)
