"""vLLM, TensorRT-LLM, TGI, llama.cpp and Dynamo: each by its own table, and what is no single engine is refused."""

from __future__ import annotations

import re

import pytest

from tests.engines.texts import lines, reading, real, recorded, text
from wattline.engines.errors import hint
from wattline.engines.tables import KINDS


@pytest.mark.parametrize("name", ["vllm_v0.prom", "vllm_v1.prom", "vllm_both.prom"])
def test_cache_usage_of_vllm_is_read_under_its_old_name_and_its_new(name: str) -> None:
    result = reading(text(name))
    assert result.kv_cache_usage_ratio == 0.5
    assert (result.kind, result.model) == ("vllm", "meta-llama/Llama-3.1-8B-Instruct")
    assert (result.running, result.prompt_tokens, result.generation_tokens) == (12, 5000, 7000)
    assert list(result.progress)[:3] == [7000, 5000, 900]  # all move with every step
    assert result.start_time == 1.75e9
    assert result.gauge_lag_seconds == 0


def test_requests_that_vllm_swapped_out_are_waiting() -> None:
    assert reading(text("vllm_v0.prom")).queued == 3 + 2
    assert reading(text("vllm_v1.prom")).queued == 3


def test_data_parallel_cores_of_vllm_are_added_and_their_cache_usage_is_the_mean() -> None:
    result = reading(text("vllm_dp2.prom"))
    assert (result.running, result.queued, result.kv_cache_usage_ratio) == (5, 3, 0.5)
    assert (result.generation_tokens, result.prompt_tokens) == (400, 100)
    assert result.model == "qwen"


def test_two_models_behind_one_vllm_are_added_and_both_named() -> None:
    body = lines('vllm:num_requests_running{model_name="b"} 2', 'vllm:num_requests_running{model_name="a"} 3')
    assert (reading(body).running, reading(body).model) == (5, "a, b")


def test_more_models_than_can_be_named_are_not_named() -> None:
    body = lines(*(f'vllm:num_requests_running{{model_name="m{i}"}} 1' for i in range(5)))
    assert (reading(body).running, reading(body).model) == (5, None)


def test_a_metric_that_a_release_no_longer_has_costs_only_itself() -> None:
    body = text("vllm_v1.prom").replace(b"vllm:num_requests_waiting{", b"vllm:num_requests_awaiting{")
    result = reading(body)
    assert (result.up, result.running, result.queued) == (True, 12, None)


def test_tensorrt_llm_counts_when_requests_finish_and_so_shows_no_progress() -> None:
    result = reading(text("tensorrt_llm.prom"))
    assert (result.kind, result.model) == ("tensorrt_llm", "llama")
    assert (result.running, result.queued, result.kv_cache_usage_ratio) == (8, 4, 0.25)
    assert (result.prompt_tokens, result.generation_tokens) == (4096, 10240)
    assert result.progress == ()


def test_tensorrt_llm_1_1_has_latencies_only() -> None:
    result = reading(text("tensorrt_llm_1.1.prom"))
    assert (result.up, result.kind) == (True, "tensorrt_llm")
    assert (result.running, result.queued, result.generation_tokens) == (None, None, None)


def test_tgi() -> None:
    result = reading(text("tgi.prom"))
    assert (result.kind, result.model) == ("tgi", None)
    assert (result.running, result.queued, result.kv_cache_usage_ratio) == (6, 2, None)
    assert (result.prompt_tokens, result.generation_tokens) == (15_000, 3_900)
    assert list(result.progress) == [4_131, 0]  # forward passes: generated tokens move only when a request finishes


def test_llama_cpp_with_and_without_cache_usage() -> None:
    result = reading(text("llamacpp.prom"))
    assert (result.kind, result.running, result.queued) == ("llamacpp", 1, 3)
    assert (result.prompt_tokens, result.generation_tokens, result.kv_cache_usage_ratio) == (16_185, 394, None)
    assert list(result.progress) == [125]
    assert reading(text("llamacpp.prom") + b"llamacpp:kv_cache_usage_ratio 0.4\n").kv_cache_usage_ratio == 0.4


def test_requests_that_dynamo_queues_are_in_flight_too_and_counted_once() -> None:
    result = reading(text("dynamo.prom"))
    assert (result.kind, result.model) == ("dynamo", "qwen/qwen3-0.6b")
    assert (result.running, result.queued, result.held_http) == (7, 5, 12)
    assert (result.prompt_tokens, result.generation_tokens) == (65_536, 8_200)
    assert result.generation_tokens_source == "dynamo_frontend_output_tokens_total"
    assert list(result.progress) == [8_200, 8_136, 64, 0, 0]


def test_a_frontend_that_counts_a_request_as_queued_first_runs_nothing_rather_than_less() -> None:
    body = lines("dynamo_frontend_inflight_requests 3", "dynamo_frontend_queued_requests 4")
    assert reading(body).running == 0


def test_an_older_dynamo_counts_tokens_when_requests_finish() -> None:
    body = lines("dynamo_frontend_inflight_requests 3", "dynamo_frontend_output_sequence_tokens_sum 77")
    result = reading(body)
    assert (result.generation_tokens, result.generation_tokens_source) == (
        77,
        "dynamo_frontend_output_sequence_tokens_sum",
    )


def test_sglang_behind_a_dynamo_worker_is_sglang() -> None:
    body = lines(
        'dynamo_component_inflight_requests{dynamo_component="backend"} 3',
        'sglang:num_running_reqs{dynamo_component="backend",model_name="m",tp_rank="0"} 3',
        'sglang:num_running_reqs{dynamo_component="backend",model_name="m",tp_rank="1"} 3',
    )
    result = reading(body)
    assert (result.kind, result.running, result.errors) == ("sglang", 3, ())


@pytest.mark.parametrize(
    "name", ["gateway.prom", "gateway_0.2.prom", "gateway_engine_metrics.prom", "vllm_router.prom"]
)
def test_a_router_is_refused_because_its_servers_are_read_themselves(name: str) -> None:
    result = reading(text(name))
    assert (result.up, result.error, result.kind, result.running) == (False, "router", None, None)


def test_a_server_is_no_router_because_the_text_of_one_stands_beside_it() -> None:
    assert reading(text("gateway.prom") + recorded("0.5.9_busy_t0")).running == 1024


def test_metrics_of_a_plain_python_process_are_of_no_engine() -> None:
    result = reading(text("python_process.prom"))
    assert (result.up, result.error, result.start_time) == (False, "no_engine_metrics", None)


def test_the_configured_kind_is_the_only_one_looked_for() -> None:
    both = text("vllm_v1.prom") + recorded("0.5.9_busy_t0")
    assert reading(both).kind == "sglang"
    assert reading(both, kind="vllm").running == 12
    assert reading(text("vllm_v1.prom"), kind="tgi").error == "no_engine_metrics"
    with pytest.raises(KeyError):
        reading(both, kind="unheard-of")


def test_gauges_that_a_dynamo_spells_as_counters_are_its_load() -> None:
    body = lines(
        'dynamo_frontend_inflight_requests_total{model="m"} 40', 'dynamo_frontend_queued_requests_total{model="m"} 10'
    )
    result = reading(body)
    assert (result.kind, result.running, result.queued, result.held_http) == ("dynamo", 30, 10, 40)


def test_a_dynamo_frontend_that_never_had_a_request_holds_none() -> None:
    result = reading(real("dynamo_1.6.1_frontend_fresh"))
    assert (result.running, result.queued, result.held_http) == (0, 0, 0)
    # Without a model nothing could have been asked of it, and nothing is known.
    without = re.sub(rb"(?m)^dynamo_frontend_model_ready.*\n", b"", real("dynamo_1.6.1_frontend_fresh"))
    assert (reading(without).running, reading(without).queued) == (None, None)


def test_a_configured_kind_is_read_under_names_without_its_prefix() -> None:
    bare = text("vllm_v1.prom").replace(b"\nvllm:", b"\n")
    assert reading(bare).error == "no_engine_metrics"  # Nobody can tell whose names these are.
    assert reading(bare, kind="vllm") == reading(text("vllm_v1.prom"))
    tensorrt = text("tensorrt_llm.prom")
    assert reading(tensorrt.replace(b"\ntrtllm_", b"\n"), kind="tensorrt_llm") == reading(tensorrt)
    # What every Python process serves is of no engine, whatever is configured.
    assert reading(text("python_process.prom"), kind="vllm").error == "no_engine_metrics"


@pytest.mark.parametrize("prefix", [b"ray_vllm_", b"ray_vllm:"])
def test_vllm_behind_ray_is_vllm(prefix: bytes) -> None:
    body = text("vllm_v1.prom").replace(b"\nvllm:", b"\n" + prefix)
    assert reading(body) == reading(text("vllm_v1.prom"))
    assert reading(body, kind="vllm") == reading(text("vllm_v1.prom"))


def test_triton_counts_as_waiting_what_of_its_active_requests_is_not_scheduled() -> None:
    result = reading(text("triton_tensorrt_llm.prom"))
    assert (result.kind, result.model) == ("triton", "tensorrt_llm")
    assert (result.running, result.queued, result.kv_cache_usage_ratio) == (4, 3, 0.25)
    assert (result.prompt_tokens, result.generation_tokens) == (5_000, 70_000)
    assert list(result.progress) == [6_189, 700]


def test_triton_with_vllm_tells_tokens_and_no_load() -> None:
    body = lines(
        'vllm:prompt_tokens_total{model="vllm_model",version="1"} 10',
        'vllm:generation_tokens_total{model="vllm_model",version="1"} 160',
        'nv_inference_request_success{model="vllm_model",version="1"} 2',
    )
    result = reading(body)
    assert (result.kind, result.running, result.queued, result.generation_tokens) == ("vllm", None, None, 160)
    assert list(result.progress)[:2] == [160, 10]


def test_two_models_of_the_oldest_sglang_are_told_apart_by_its_old_label() -> None:
    body = lines('sglang:num_running_reqs{name="a"} 3', 'sglang:num_running_reqs{name="b"} 4')
    assert (reading(body).running, reading(body).model) == (7, "a, b")


def test_the_hint_speaks_of_the_configured_kind() -> None:
    assert "--disable-log-stats" in hint("no_engine_metrics", "vllm")
    assert "SGLang" not in hint("no_engine_metrics", "vllm")
    assert all(flag in hint("no_engine_metrics") for flag in ("--disable-log-stats", "--enable-metrics", "--metrics"))
    assert "autoload=false" in hint("http_400", "llamacpp")
    assert hint("http_400") == ""
    assert "gRPC" in hint("router")


def test_kinds_are_those_that_a_reading_can_have() -> None:
    assert list(KINDS) == ["sglang", "vllm", "tensorrt_llm", "triton", "tgi", "llamacpp", "dynamo"]
