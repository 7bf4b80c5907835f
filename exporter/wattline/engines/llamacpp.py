"""llama.cpp's server, started with ``--metrics``.

Generated tokens are counted when a request leaves its slot, prompt tokens when the prompt is done. Every call of
``llama_decode`` is counted at once: that is its progress.

A server of several models (``--models-dir``, ``--models-preset``) answers 400 unless the address names one of them. To
be asked for its metrics counts as use: it loads a model unless ``autoload=false`` is asked for, and it begins the time
of ``--sleep-idle-seconds`` anew (llama.cpp issues 19346, 20227 and 23096). No pause between polls that a verdict could
bear is longer than that time, so an idle server is asked as often as a busy one.
"""

from __future__ import annotations

from wattline.engines.command_lines import ServerKind
from wattline.engines.kinds import Comparison, EngineKind, Off, Progress, Term, metric

LLAMACPP = EngineKind(
    name="llamacpp",
    prefix="llamacpp:",
    servers=(
        ServerKind(
            kind="llamacpp",
            command="llama-server",
            port=8080,
            port_variable="LLAMA_ARG_PORT",
            model_flags=("--alias", "-a", "--model", "-m", "--hf-repo", "-hf", "-hfr"),
            needs="--metrics",
        ),
    ),
    start="start llama.cpp with --metrics",
    hints={
        "http_400": (
            "a llama.cpp server of several models wants to know which: add ?model=NAME&autoload=false to url, once for "
            "each model"
        ),
        "http_501": "start llama.cpp with --metrics",
    },
    running=metric("llamacpp:requests_processing"),
    queued=metric("llamacpp:requests_deferred"),
    # Gone from recent builds.
    kv_cache_usage_ratio=metric("llamacpp:kv_cache_usage_ratio"),
    prompt_tokens=metric("llamacpp:prompt_tokens_total"),
    cached_prompt_tokens=metric("llamacpp:prompt_tokens_cached_total"),
    generation_tokens=metric("llamacpp:tokens_predicted_total"),
    progress=Progress((Term(("llamacpp:n_decode_total",)),)),
    compared=Comparison("0.7.0", held=Off(-0.34, 0.02), tokens=Off(0.0, 0.0), pause_seconds=1.0),
)
