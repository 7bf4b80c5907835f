"""Texts as engines, proxies and accidents produce them: spelled otherwise, cut, garbled, huge, or no metrics at all."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.engines.texts import lines, reading, recorded, text
from wattline.engines import exposition
from wattline.engines.tables import KINDS
from wattline.readings import ReadingError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from prometheus_client import Metric

BUSY = recorded("0.5.9_busy_t0")
VLLM = text("vllm_v1.prom")


def test_colons_underscores_and_both_at_once_are_one_reading() -> None:
    colons = BUSY
    underscores = BUSY.replace(b"sglang:", b"sglang_")
    assert reading(colons).running == 1024
    assert reading(underscores) == reading(colons)
    assert reading(colons + underscores) == reading(colons)
    assert reading(underscores + colons) == reading(colons)


def test_both_spellings_with_different_labels_are_still_one() -> None:
    body = lines('sglang:num_running_reqs{dp_rank="0"} 5', 'sglang_num_running_reqs{dp_rank="1"} 7')
    assert reading(body).running == 5


def test_names_are_matched_whole() -> None:
    body = lines("sglang:num_running_reqs 3", "sglang:num_running_reqs_offline_batch 500")
    assert reading(body).running == 3


@pytest.mark.parametrize("end", ["# EOF\n", "# EOF", ""])
@pytest.mark.parametrize("family", ["vllm:prompt_tokens", "vllm:prompt_tokens_total"])
def test_a_counter_reads_the_same_however_its_family_is_declared(family: str, end: str) -> None:
    body = f'# TYPE {family} counter\nvllm:prompt_tokens_total{{engine="0",model_name="m"}} 34567503\n{end}'
    result = reading(body, content_type="application/openmetrics-text; version=1.0.0")
    assert result.prompt_tokens == 34_567_503
    assert result.errors == ()


def test_timestamps_and_exemplars_are_passed_over() -> None:
    body = lines(
        'vllm:prompt_tokens_total{model_name="a # b"} 17.0 1520879607.789 # {trace_id="x # y"} 0.67 1.5',
        'vllm:generation_tokens_total{model_name="a # b"} 5 # {trace_id="x"} 1',
        "vllm:num_requests_running 3 1395066363000",
    )
    result = reading(body)
    assert (result.prompt_tokens, result.generation_tokens, result.running) == (17, 5, 3)
    assert result.errors == ()


@pytest.mark.parametrize(
    "bad",
    [
        'vllm:num_requests_running{x-y="1"} 1',
        'vllm:num_requests_running{l="1",l="2"} 3',
        "vllm:num_requests_running N/A",
        'vllm:num_requests_running{engine="0" 3',
        "vllm:num_requests_running{engine=0} 3",
        "vllm:num_requests_running",
        'vllm:num_requests_running{a="' + "x" * exposition.MAX_LINE_BYTES + '"} 3',
    ],
)
def test_a_bad_line_costs_its_metric_and_is_told_and_the_rest_is_kept(bad: str) -> None:
    result = reading(VLLM + bad.encode() + b"\n")
    # What the bad line would have added is not known, and a sum without it would tell less than there is.
    assert (result.up, result.running, result.queued, result.generation_tokens) == (True, None, 3, 7000)
    assert result.errors == (ReadingError("vllm_num_requests_running", "bad_line"),)


def test_a_text_cut_in_its_last_line_keeps_the_lines_before() -> None:
    cut = VLLM[: VLLM.index(b'vllm:generation_tokens_total{engine="0",mod') + 40]
    result = reading(cut)
    assert (result.running, result.prompt_tokens, result.generation_tokens) == (12, 5000, None)
    assert result.errors == (ReadingError("vllm_generation_tokens_total", "bad_line"),)


def test_a_last_line_without_its_end_counts() -> None:
    assert reading("vllm:num_requests_running 3").running == 3


def test_windows_line_ends_and_blank_lines_do_not_matter() -> None:
    assert reading(VLLM.replace(b"\n", b"\r\n\r\n")) == reading(VLLM)


def test_more_bad_lines_than_good_ones_are_no_metrics() -> None:
    body = lines("vllm:num_requests_running 3", "vllm:num_requests_waiting x", "vllm:prompt_tokens_total y")
    assert reading(body).error == "not_metrics"


def test_of_a_series_told_twice_the_last_counts() -> None:
    assert reading(lines("vllm:num_requests_running 3", "vllm:num_requests_running 4")).running == 4


def test_not_a_number_is_no_value_and_neither_is_a_sum_without_it() -> None:
    body = lines(
        "sglang:fwd_occupancy NaN",
        "sglang:token_usage NaN",
        "sglang:gen_throughput +Inf",
        'sglang:num_running_reqs{dp_rank="0"} 3',
        'sglang:num_running_reqs{dp_rank="1"} NaN',
        "sglang:num_queue_reqs -Inf",
        "sglang:num_decode_prealloc_queue_reqs 4",
    )
    result = reading(body)
    assert (result.running, result.kv_cache_usage_ratio) == (None, None)
    # The main queue has no value; the others alone would tell less than there is.
    assert result.queued is None
    assert result.errors == ()


def test_values_that_cannot_be_are_dropped_and_told() -> None:
    body = lines(
        'sglang:num_running_reqs{dp_rank="0"} 3',
        'sglang:num_running_reqs{dp_rank="1"} -1',
        "sglang:token_usage 1.5",
        "sglang:generation_tokens_total 1e300",
    )
    result = reading(body)
    assert (result.running, result.kv_cache_usage_ratio, result.generation_tokens) == (None, None, None)
    assert {error.kind for error in result.errors} == {"implausible"}
    assert len(result.errors) == 3


@pytest.mark.parametrize("bad", ["N/A", "NaN", "-1", "+Inf", "1e300"])
@pytest.mark.parametrize("line", ['decode",dp_rank="1"', 'prefill_compute",dp_rank="1"'])
def test_counters_of_which_a_rank_cannot_be_read_are_not_obtained(line: str, bad: str) -> None:
    """The sum of the ranks that remain would be a fall now, and a leap at the next poll."""
    rest = ('decode",dp_rank="0"', 'decode",dp_rank="1"', 'prefill_compute",dp_rank="1"')
    good = [f'sglang:realtime_tokens_total{{mode="{labels}}} 1000' for labels in rest if labels != line]
    damaged = [f'sglang:realtime_tokens_total{{mode="{line}}} {bad}', "sglang:generation_tokens_total 77"]
    result = reading(lines("sglang:num_running_reqs 3", "sglang:num_queue_reqs 0", *good, *damaged))
    assert (result.running, result.queued) == (3, 0)
    # Nor does the other counter stand in for one poll: that would look like another engine.
    assert (result.generation_tokens, result.prompt_tokens, result.progress) == (None, None, ())
    assert (result.generation_tokens_source, result.prompt_tokens_source) == (None, None)


@pytest.mark.parametrize("part", ["vllm:num_requests_waiting", "vllm:num_requests_swapped"])
def test_a_queue_of_which_a_part_cannot_be_read_is_not_obtained(part: str) -> None:
    body = lines("vllm:num_requests_running 3", "vllm:num_requests_waiting 5", "vllm:num_requests_swapped 1")
    assert reading(body).queued == 6
    assert reading(body.replace(f"{part} ", f"{part} -")).queued is None


@pytest.mark.parametrize("body", [b"", b"\n\n", b"   \n", b"# HELP x y\n# TYPE x gauge\n", b"# EOF\n", b"# EOF"])
def test_nothing_but_comments_is_empty(body: bytes) -> None:
    result = reading(body)
    assert (result.up, result.error) == (False, "empty")


@pytest.mark.parametrize(
    ("body", "content_type"),
    [
        (b'{"detail":"Not Found"}', "application/json"),
        (b'{"detail":"Not Found"}', None),
        (b"[]", "application/json"),
        (b"<!doctype html>\n<html><body>Sign in</body></html>", "text/html"),
        (b"<html>", None),
        (b"404 page not found\n", "text/plain"),
        (b"Not Found", "text/plain"),
        (bytes(range(256)) * 100, "application/octet-stream"),
        (b"\x1f\x8b\x08\x00\x00\x00\x00\x00", None),
        ("sglang:num_running_reqs 3\n".encode("utf-16"), None),
    ],
)
def test_what_is_no_metrics_text_is_told_so(body: bytes, content_type: str | None) -> None:
    result = reading(body, content_type=content_type)
    assert (result.up, result.error, result.running, result.progress) == (False, "not_metrics", None, ())


@pytest.mark.parametrize("content_type", [None, "", "text/html", "application/json", "nonsense"])
def test_metrics_with_a_wrong_content_type_are_metrics(content_type: str | None) -> None:
    assert reading(VLLM, content_type=content_type) == reading(VLLM)


def test_a_metric_with_a_label_set_for_every_adapter_mix_is_passed_over() -> None:
    noise = b"".join(b'vllm:lora_requests_info{running_lora_adapters="a%d"} 1.7e9\n' % i for i in range(300_000))
    result = reading(noise + VLLM)
    assert (result.running, result.model) == (12, "meta-llama/Llama-3.1-8B-Instruct")
    assert result.errors == ()


@pytest.mark.parametrize("piece", [b"x", b"\n", b"\nsglang", b"\x00", b"{", b"# "])
def test_thirty_megabytes_of_junk_are_no_metrics(piece: bytes) -> None:
    junk = piece * (30_000_000 // len(piece))
    assert reading(junk).error in {"empty", "not_metrics"}


def test_a_wanted_name_without_end_is_too_large_to_be_believed() -> None:
    line = 'sglang:num_running_reqs{dp_rank="%d"} 1\n'
    enough = exposition.MAX_WANTED_BYTES // len(line)
    result = reading("".join(line % i for i in range(enough)))
    assert (result.up, result.error, result.running) == (False, "too_large", None)
    assert reading("".join(line % i for i in range(1000))).running == 1000


@pytest.mark.parametrize(
    ("begin", "again", "end"),
    [
        ("a", " ", "!"),
        ("a", "\t", "!"),
        ("", " ", "!"),
        ("a{", "} ", "!"),
        ("a", "{", "!"),
        ("a", "a", "!"),
        ("vllm:num_requests_running", " ", "!"),
        ("vllm:num_requests_running{", " ", "!"),
        ('vllm:num_requests_running{a="', '\\"', '"} x'),
        ("vllm:num_requests_running{", 'a="b",', " # "),
    ],
)
def test_a_hostile_line_takes_time_by_its_length_and_not_by_the_square_of_it(begin: str, again: str, end: str) -> None:
    """A small body is read on the event loop: what is slow there stops everything."""

    def seconds(length: int) -> float:
        body = begin + again * (length // len(again)) + end
        return min(_seconds_of(body) for _ in range(5))

    # Eight times the length: eight times the time, where the square would be 64.
    assert seconds(16_000) < 25 * max(seconds(2_000), 20e-6)


def _seconds_of(body: str) -> float:
    began = time.process_time()
    reading(body)
    return time.process_time() - began


def test_of_a_long_text_only_the_wanted_lines_reach_the_parser(monkeypatch: pytest.MonkeyPatch) -> None:
    parsed: list[str] = []

    def noting(part: str) -> Iterable[Metric]:
        parsed.append(part)
        return text_string_to_metric_families(part)

    monkeypatch.setattr(exposition, "text_string_to_metric_families", noting)
    body = recorded("0.5.23_dp8_t0")
    assert reading(body).running == 1024
    assert sum(map(len, parsed)) < len(body) / 5


@pytest.mark.parametrize(
    ("endpoint", "held"),
    [
        ("/generate", 5),
        ("/v1/chat/completions", 5),
        ("/v1/completions", 5),
        ("/v1/embeddings", 5),
        ("other", 5),
        ("/metrics", 0),
        ("/health", 0),
        ("/health_generate", 0),
        ("/server_info", 0),
        ("/get_server_info", 0),
        ("/v1/loads", 0),
        ("/model_info", 0),
        ("/v1/models", 0),
        ("/freeze_gc", 0),
    ],
)
def test_open_http_requests_are_work_when_they_generate(endpoint: str, held: float) -> None:
    body = lines(
        f'sglang:http_requests_active{{endpoint="{endpoint}",method="POST"}} 5',
        'sglang:http_requests_active{endpoint="/metrics",method="GET"} 1',
    )
    assert reading(body).held_http == held


def test_a_release_without_the_gauge_says_nothing_of_open_requests() -> None:
    assert reading(BUSY.replace(b"sglang:http_requests_active", b"sglang:x")).held_http is None


def test_throughput_gauges_are_never_used() -> None:
    idle = lines("sglang:gen_throughput 386.27", "sglang:num_running_reqs 0", "sglang:num_queue_reqs 0")
    result = reading(idle)
    assert (result.generation_tokens, result.progress) == (None, ())
    assert not [name for kind in KINDS.values() for name in kind.wanted() if "throughput" in name]


def test_work_that_only_waits_is_seen() -> None:
    body = lines("sglang:num_running_reqs 0", "sglang:num_queue_reqs 37")
    assert (reading(body).running, reading(body).queued) == (0, 37)


def test_a_server_that_has_never_counted_a_token_has_counters_at_zero() -> None:
    # A hang on the very first request would else look like a release without such counters.
    body = lines("sglang:num_running_reqs 1", 'sglang:http_requests_active{endpoint="/generate"} 1')
    assert list(reading(body).progress) == [0, 0, 0, 0]
    assert reading(lines("sglang:num_running_reqs 1")).progress == ()
