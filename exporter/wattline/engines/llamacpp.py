"""llama.cpp's server, started with ``--metrics``.

Generated tokens are counted when a request leaves its slot, prompt tokens when the prompt is done. Every call of
``llama_decode`` is counted at once: that is its progress.
"""

from __future__ import annotations

from wattline.engines.kinds import EngineKind, Progress, Term, metric

LLAMACPP = EngineKind(
    name="llamacpp",
    prefix="llamacpp:",
    running=metric("llamacpp:requests_processing"),
    queued=metric("llamacpp:requests_deferred"),
    # Gone from recent builds.
    kv_cache_usage_ratio=metric("llamacpp:kv_cache_usage_ratio"),
    prompt_tokens=metric("llamacpp:prompt_tokens_total"),
    cached_prompt_tokens=metric("llamacpp:prompt_tokens_cached_total"),
    generation_tokens=metric("llamacpp:tokens_predicted_total"),
    progress=Progress((Term(("llamacpp:n_decode_total",)),)),
)
