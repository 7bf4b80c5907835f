"""Series of ranks, replicas and dead processes: what is added, what is one number told twice."""

from __future__ import annotations

import pytest

from tests.engines.texts import lines, reading
from wattline.readings import ReadingError


def running(*labels: str, value: float = 12) -> str:
    return lines(*(f"sglang:num_running_reqs{{{label}}} {value}" for label in labels))


@pytest.mark.parametrize(
    ("labels", "value", "expected"),
    [
        ([f'model_name="m",tp_rank="{i}",pp_rank="0"' for i in range(4)], 12, 12),
        ([f'model_name="m",dp_rank="{i}",tp_rank="0"' for i in range(2)], 12, 24),
        ([f'model_name="m",dp_rank="{i}",tp_rank="{i}"' for i in range(8)], 5, 40),
        # Attention context parallelism before 0.5.23 shows up as tensor ranks.
        ([f'model_name="m",tp_rank="{i}"' for i in range(8)], 12, 12),
        ([f'model_name="m",pp_rank="{i}",tp_rank="0"' for i in range(2)], 192, 192),
        ([f'model_name="m",moe_ep_rank="{i}",tp_rank="{i}"' for i in range(4)], 12, 12),
        # Without a label there is one rank, rank 0.
        (['model_name="m"'], 12, 12),
        (['model_name="m",tp_rank="0"', 'model_name="m",dp_rank="0",tp_rank="0"'], 12, 12),
        # A prefill server and a decode server behind one address hold different requests.
        (['engine_type="prefill",tp_rank="0"', 'engine_type="decode",tp_rank="0"'], 3, 6),
        (['model_name="a",tp_rank="0"', 'model_name="b",tp_rank="0"'], 3, 6),
    ],
    ids=["tp", "dp", "dp-attention", "cp", "pp", "ep", "none", "some", "roles", "models"],
)
def test_data_parallel_ranks_are_added_and_all_other_ranks_are_replicas(
    labels: list[str], value: float, expected: float
) -> None:
    result = reading(running(*labels, value=value))
    assert result.running == expected
    assert not result.ranks_disagree
    assert result.errors == ()


def test_stages_of_a_pipeline_that_differ_a_little_are_not_added() -> None:
    body = lines('sglang:num_running_reqs{pp_rank="0"} 192', 'sglang:num_running_reqs{pp_rank="1"} 193')
    result = reading(body)
    assert result.running == 193
    assert not result.ranks_disagree


def test_a_rank_that_reports_zero_beside_one_that_reports_load_is_no_load_of_its_own() -> None:
    # All tensor ranks create their series, only the first writes them.
    body = lines('sglang:num_running_reqs{tp_rank="0"} 0', 'sglang:num_running_reqs{tp_rank="1"} 12')
    assert reading(body).running == 12


def test_processes_that_agree_are_one() -> None:
    result = reading(running('pid="910",tp_rank="0"', 'pid="1444",tp_rank="0"', value=7))
    assert (result.running, result.ranks_disagree) == (7, False)


def test_a_dead_process_that_keeps_its_last_value_makes_the_load_doubtful() -> None:
    body = lines(
        'sglang:num_running_reqs{pid="910",tp_rank="0"} 7', 'sglang:num_running_reqs{pid="1444",tp_rank="0"} 0'
    )
    assert reading(body).ranks_disagree


def test_processes_of_different_ranks_may_differ() -> None:
    body = lines(
        'sglang:num_running_reqs{dp_rank="0",pid="1"} 7',
        'sglang:num_running_reqs{dp_rank="1",pid="2"} 0',
        'sglang:num_running_reqs{dp_rank="1",pid="2",tp_rank="1"} 3',
    )
    result = reading(body)
    assert (result.running, result.ranks_disagree) == (10, False)


def test_an_unknown_label_is_taken_for_a_replica_and_reported() -> None:
    body = lines('sglang:num_running_reqs{new_rank="0"} 12', 'sglang:num_running_reqs{new_rank="1"} 12')
    result = reading(body)
    assert result.running == 12
    assert result.errors == (ReadingError("sglang_num_running_reqs", "unknown_label"),)


def test_a_label_that_an_operator_adds_to_every_series_is_nothing_to_report() -> None:
    result = reading(running('tp_rank="0",rack="r1"', 'tp_rank="1",rack="r1"'))
    assert (result.running, result.errors) == (12, ())


def test_the_empty_priority_is_the_total_and_without_it_priorities_are_added() -> None:
    total = 'sglang:num_queue_reqs{priority=""} 9'
    parts = ('sglang:num_queue_reqs{priority="1"} 4', 'sglang:num_queue_reqs{priority="-9223372036854775808"} 5')
    assert reading(lines(total, *parts)).queued == 9
    assert reading(lines(*parts)).queued == 9


def test_tokens_of_streaming_and_other_requests_are_added() -> None:
    body = lines(
        'sglang:generation_tokens_total{is_streaming="true",priority="1"} 100',
        'sglang:generation_tokens_total{is_streaming="false",priority=""} 11',
    )
    # Here a priority is a share, not a total: each request is counted under its own.
    assert reading(body).generation_tokens == 111


def test_live_tokens_of_tensor_ranks_that_repeat_them_are_counted_once() -> None:
    body = lines(
        *(
            f'sglang:realtime_tokens_total{{mode="{mode}",dp_rank="{dp}",tp_rank="{tp}"}} {value}'
            for mode, value in (("decode", 100), ("prefill_compute", 30), ("prefill_cache", 20))
            for dp in (0, 1)
            for tp in (0, 1)
        )
    )
    result = reading(body)
    assert result.generation_tokens == 200
    assert (result.prompt_tokens, result.cached_prompt_tokens) == (60, 40)
    assert list(result.progress) == [300, 0, 0, 0]


def test_graph_and_eager_decode_passes_are_told_apart() -> None:
    body = lines(
        *(
            f'sglang:cuda_graph_passes_total{{mode="{mode}",tp_rank="{tp}"}} {value}'
            for mode, value in (("decode_cuda_graph", 90), ("decode_none", 10), ("prefill_none", 5))
            for tp in (0, 1)
        )
    )
    result = reading(body)
    assert (result.cuda_graph_passes, result.eager_passes) == (90, 10)


def test_an_engine_core_that_several_api_servers_tell_of_is_one() -> None:
    """vLLM's core tells its state to one API server at a step, so each process repeats the same number."""
    body = lines(
        *(
            f'vllm:{name}{{engine="{engine}",model_name="m",pid="{pid}"}} {value}'
            for name, value in (("num_requests_running", 7), ("num_requests_waiting", 2), ("kv_cache_usage_perc", 0.5))
            for engine in (0, 1)
            for pid in (11, 12)
        )
    )
    result = reading(body)
    assert (result.running, result.queued, result.kv_cache_usage_ratio) == (14, 4, 0.5)
    assert not result.ranks_disagree


def test_api_servers_of_which_one_tells_the_past_make_the_load_doubtful() -> None:
    body = lines('vllm:num_requests_running{pid="11"} 7', 'vllm:num_requests_running{pid="12"} 0')
    result = reading(body)
    assert (result.running, result.ranks_disagree) == (7, True)


def test_counters_of_several_processes_are_shares_and_are_added() -> None:
    body = lines('vllm:generation_tokens_total{pid="11"} 7', 'vllm:generation_tokens_total{pid="12"} 5')
    result = reading(body)
    assert (result.generation_tokens, result.ranks_disagree) == (12, False)
