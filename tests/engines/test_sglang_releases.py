"""Every release in every state: the names differ, the reading must not.

The values of the ``_t0``/``_t15`` texts are made up, all else is the release's own: busy is 1024 running and 300 queued
requests, and 15 s later 12 of them have finished and each has made 320 tokens. The ``real_cpu`` texts come from a
real server.
"""

from __future__ import annotations

import pytest

from tests.engines.texts import reading, recorded

RELEASES = ("0.4.6", "0.4.9.post6", "0.5.2", "0.5.9", "0.5.20", "0.5.23")
WITH_RANKS = RELEASES[1:]
WITH_LIVE_TOKENS = ("0.5.9", "0.5.20", "0.5.23")
WITH_FINISH_TOKENS_ONLY = ("0.4.6", "0.4.9.post6", "0.5.2")
MODEL = "meta-llama/Llama-3.1-70B-Instruct"
LIVE = "sglang:realtime_tokens_total"


@pytest.mark.parametrize("release", RELEASES)
def test_a_busy_server_holds_what_runs_and_what_waits(release: str) -> None:
    busy = reading(recorded(f"{release}_busy_t0"))
    assert busy.up
    assert (busy.kind, busy.model) == ("sglang", MODEL)
    assert (busy.running, busy.queued, busy.kv_cache_usage_ratio) == (1024, 300, 0.87)
    assert busy.errors == ()
    assert not busy.ranks_disagree


@pytest.mark.parametrize("release", RELEASES)
def test_an_idle_server_holds_nothing_and_its_counters_stand_still(release: str) -> None:
    before, after = reading(recorded(f"{release}_idle_t0")), reading(recorded(f"{release}_idle_t15"))
    assert (before.running, before.queued, before.kv_cache_usage_ratio) == (0, 0, 0)
    assert before.progress == after.progress != ()
    assert before.generation_tokens == after.generation_tokens is not None


@pytest.mark.parametrize("release", WITH_LIVE_TOKENS)
@pytest.mark.parametrize("state", ["busy", "dp8", "dpattn8"])
def test_live_tokens_advance_by_what_each_request_made_in_fifteen_seconds(release: str, state: str) -> None:
    before, after = reading(recorded(f"{release}_{state}_t0")), reading(recorded(f"{release}_{state}_t15"))
    assert before.generation_tokens is not None
    assert after.generation_tokens is not None
    # 320 for each that runs, and the first token of the twelve that came in.
    assert after.generation_tokens - before.generation_tokens == 320 * 1024 + 12
    assert before.generation_tokens_source == after.generation_tokens_source == LIVE
    assert (before.prompt_tokens, before.cached_prompt_tokens) == (840_000, 360_000)  # computed, found in the cache
    assert before.prompt_tokens_source == LIVE


@pytest.mark.parametrize(
    ("release", "made", "prompt", "cached"),
    [
        ("0.4.6", 340_833, 1_176_263, 352_702),
        ("0.4.9.post6", 340_241, 1_267_608, 380_104),
        ("0.5.2", 337_212, 1_177_821, 353_166),
    ],
)
def test_without_live_tokens_gaps_between_tokens_are_counted(
    release: str, made: float, prompt: float, cached: float
) -> None:
    """Of the 1,024 that run only twelve finish: the counter of finished requests would tell a thirtieth of this."""
    before, after = (reading(recorded(f"{release}_busy_{moment}")) for moment in ("t0", "t15"))
    assert after.generation_tokens is not None
    assert before.generation_tokens is not None
    assert after.generation_tokens - before.generation_tokens == made
    assert after.generation_tokens_source == "sglang:inter_token_latency_seconds_count"
    assert (before.prompt_tokens, before.cached_prompt_tokens) == (prompt - cached, cached)
    assert before.prompt_tokens_source == "sglang:prompt_tokens_total"


@pytest.mark.parametrize("release", RELEASES)
def test_progress_moves_while_tokens_are_made(release: str) -> None:
    before, after = reading(recorded(f"{release}_busy_t0")), reading(recorded(f"{release}_busy_t15"))
    live, inter_token, first_token, finished = (b - a for a, b in zip(before.progress, after.progress, strict=True))
    # 320 decoded tokens a request, and the prompts of the 12 that came in for those that finished.
    assert live == (320 * 1024 + 36_000 if release in WITH_LIVE_TOKENS else 0)
    assert inter_token > 320 * 1024
    assert first_token == 12
    assert finished == 12


@pytest.mark.parametrize("release", WITH_RANKS)
@pytest.mark.parametrize("state", ["dp8", "dpattn8"])
def test_eight_data_parallel_ranks_are_added_up(release: str, state: str) -> None:
    ranks = reading(recorded(f"{release}_{state}_t0"))
    assert (ranks.running, ranks.queued) == (1024, 300)  # 8 x 128, and 7 x 37 + 41
    assert ranks.kv_cache_usage_ratio == pytest.approx(0.87)


def test_without_rank_labels_a_data_parallel_server_shows_one_of_its_ranks() -> None:
    # That is all that 0.4.6 tells: one rank of eight. Its token counters are of the whole server.
    one = reading(recorded("0.4.6_dp8_t0"))
    assert (one.running, one.queued) == (128, 37)
    assert one.generation_tokens == 519_084


@pytest.mark.parametrize("release", ["0.4.6", "0.4.9.post6", "0.5.2", "0.5.9"])
def test_a_fresh_server_that_says_nothing_yet_is_empty(release: str) -> None:
    # The recorded text of these releases has no byte.
    fresh = reading(b"")
    assert (fresh.up, fresh.error) == (False, "empty")


@pytest.mark.parametrize("release", ["0.5.20", "0.5.23"])
def test_a_fresh_server_has_no_load_to_tell_but_an_idle_scheduler(release: str) -> None:
    before, after = reading(recorded(f"{release}_fresh_t0")), reading(recorded(f"{release}_fresh_t15"))
    assert before.up
    assert (before.running, before.queued, before.kv_cache_usage_ratio) == (None, None, None)
    assert (before.prompt_tokens, before.generation_tokens, before.generation_tokens_source) == (None, None, None)
    assert (before.scheduler_idle_seconds, after.scheduler_idle_seconds) == (300, 315)
    assert list(before.progress) == [0, 0, 0, 0]  # it has the counters and has not used them


@pytest.mark.parametrize(
    ("release", "queued"),
    [("0.4.6", 0), ("0.4.9.post6", 26), ("0.5.2", 26), ("0.5.9", 26), ("0.5.20", 26), ("0.5.23", 26)],
)
def test_the_queues_of_a_decode_server_are_work(release: str, queued: float) -> None:
    # 17 wait for room in the cache, 9 for their cache to arrive; 0.4.6 has no such gauges.
    decode = reading(recorded(f"{release}_pd_decode_t0"))
    assert (decode.running, decode.queued) == (1024, queued)


@pytest.mark.parametrize(
    ("release", "running", "queued"),
    [
        ("0.4.6", 0, 40),
        ("0.4.9.post6", 0, 74),
        ("0.5.2", 0, 74),
        ("0.5.9", 0, 74),
        ("0.5.20", 6, 74),
        ("0.5.23", 6, 74),
    ],
)
def test_the_queues_of_a_prefill_server_are_work(release: str, running: float, queued: float) -> None:
    # 40 wait, 11 for their connection, 23 for their cache to be sent; nothing "runs" here up to 0.5.15.
    prefill = reading(recorded(f"{release}_pd_prefill_t0"))
    assert (prefill.running, prefill.queued) == (running, queued)


@pytest.mark.parametrize("release", WITH_LIVE_TOKENS)
def test_prompts_are_counted_by_the_prefill_server_and_generated_tokens_by_the_decode_server(release: str) -> None:
    prefill, decode = reading(recorded(f"{release}_pd_prefill_t0")), reading(recorded(f"{release}_pd_decode_t0"))
    assert (prefill.prompt_tokens, prefill.cached_prompt_tokens) == (840_000, 360_000)
    assert (prefill.generation_tokens, prefill.generation_tokens_source) == (None, None)
    assert (decode.prompt_tokens, decode.prompt_tokens_source, decode.generation_tokens) == (
        None,
        None,
        522_880 + 1_424,
    )


@pytest.mark.parametrize("release", RELEASES)
def test_a_prefill_server_shows_progress_of_its_own(release: str) -> None:
    before, after = reading(recorded(f"{release}_pd_prefill_t0")), reading(recorded(f"{release}_pd_prefill_t15"))
    assert before.progress != after.progress


@pytest.mark.parametrize(
    ("release", "lag"), [("0.4.6", 31), ("0.5.2", 31), ("0.5.9", 31), ("0.5.20", 2), ("0.5.23", 2)]
)
def test_load_gauges_lag_half_a_minute_in_older_releases(release: str, lag: float) -> None:
    assert reading(recorded(f"{release}_busy_t0")).gauge_lag_seconds == lag


def test_a_queue_beside_nothing_running_may_be_old_in_every_release() -> None:
    body = recorded("0.5.23_busy_t0").replace(b'tp_rank="0"} 1024.0', b'tp_rank="0"} 0.0')
    wedged = reading(body)
    assert (wedged.running, wedged.queued, wedged.gauge_lag_seconds) == (0, 300, 31)


def test_underscored_openmetrics_is_the_same_reading_as_plain_text() -> None:
    assert reading(recorded("0.5.23_busy_t0_openmetrics_underscores")) == reading(recorded("0.5.23_busy_t0"))


def test_a_real_server_under_load() -> None:
    load = reading(recorded("real_cpu_0.5.23_under_load"))
    assert (load.running, load.queued, load.held_http) == (48, 0, 48)  # /metrics itself is no work
    assert load.kv_cache_usage_ratio == 0.8
    # 13,791 were decoded; the first token of each of the 49 requests comes from its prefill.
    assert load.generation_tokens == 13_791 + 49
    assert (load.prompt_tokens, load.cached_prompt_tokens) == (3_363, 376)
    assert list(load.progress) == [3_363 + 376 + 13_791, 11_688, 49, 1]
    assert (load.cuda_graph_passes, load.eager_passes) == (None, 302)
    assert load.scheduler_idle_seconds == pytest.approx(66.08, abs=0.01)
    assert (load.start_time, load.version) == (None, None)  # it tells neither
    assert load.model == "tiny-llama"
    assert load.gauge_lag_seconds == 2


def test_a_real_server_just_after_its_scheduler_is_done_still_holds_answers() -> None:
    after = reading(recorded("real_cpu_0.5.23_just_after"))
    assert (after.running, after.queued, after.held_http) == (0, 0, 24)


def test_a_real_server_idle_for_45_seconds() -> None:
    idle = reading(recorded("real_cpu_0.5.23_idle_after_45s"))
    assert (idle.running, idle.queued, idle.held_http, idle.kv_cache_usage_ratio) == (0, 0, 0, 0)
    assert idle.generation_tokens == 14_416  # as generation_tokens_total says, now that all have finished
    assert idle.finished_requests == 49
    assert idle.scheduler_idle_seconds == pytest.approx(111.35, abs=0.01)


def test_priorities_are_not_added_to_their_total_and_two_real_ranks_are() -> None:
    load = reading(recorded("real_cpu_0.5.23_dp2_priority_mfu_under_load"))
    assert (load.running, load.queued, load.held_http) == (4, 0, 4)  # rank 1: 0, rank 0: 4, shown twice each
    assert load.kv_cache_usage_ratio == pytest.approx(0.01)  # 0 and 0.02
    assert load.generation_tokens == 780 + 772 + 40  # 40 first tokens
    assert (load.prompt_tokens, load.cached_prompt_tokens) == (1_458 + 1_424, 164 + 164)
    assert load.flops is not None
    assert load.read_bytes is not None
    assert load.eager_passes == 117 + 115
    # One rank was idle for 24.35 s, the other for 22.38 s.
    assert load.scheduler_idle_seconds == pytest.approx((24.353781510 + 22.375529756) / 2)


def test_the_idle_account_of_eight_tensor_parallel_ranks_is_one() -> None:
    # All eight write it; added up it would run eight times as fast as the clock.
    before, after = reading(recorded("0.5.23_idle_t0")), reading(recorded("0.5.23_idle_t15"))
    assert before.scheduler_idle_seconds == 300
    assert after.scheduler_idle_seconds == 315
