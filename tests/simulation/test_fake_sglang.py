import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import aiohttp
import pytest
from prometheus_client.parser import text_string_to_metric_families

from wattline.simulation.clock import SimClock
from wattline.simulation.fake_sglang import FakeSglangServer, SimulatedSglang
from wattline.simulation.scenario import EXTRAS, STORY, Timeline, timeline

# Names, types, help texts, label names and bucket edges of a real SGLang 0.5.17 that had served for a few minutes;
# cached_tokens, which appears with the first hit of the prefix cache, from a 0.5.20.
REAL = json.loads((Path(__file__).parent / "data" / "sglang-0.5.17-families.json").read_text())
CYCLE = int(sum(each.seconds for each in STORY))
STARTS = {each.name: int(timeline().start(number)) for number, each in enumerate(STORY)}
DOWN = next(each for each in EXTRAS if each.name == "engine_down")

Series = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def parse(text: str, types: tuple[str, ...] = ("gauge", "counter", "histogram")) -> Series:
    """All series but fwd_occupancy, which is NaN as on a real server, and so is never equal to itself."""
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        if family.type in types and family.name != "sglang:fwd_occupancy"
        for sample in family.samples
    }


def counters(text: str) -> Series:
    return parse(text, ("counter", "histogram"))


def value(series: Series, name: str, **labels: str) -> float:
    found = [
        number
        for (each, told), number in series.items()
        if each == f"sglang:{name}" and labels.items() <= dict(told).items()
    ]
    assert len(found) == 1, f"{name} {labels}: {found}"
    return found[0]


def decoded(series: Series) -> float:
    return value(series, "realtime_tokens_total", mode="decode")


def play(scenario: str, times: list[int], seed: int = 1) -> list[Series]:
    engine = SimulatedSglang(timeline(scenario), seed)
    texts = [engine.text(float(t)) for t in times]
    return [parse(text) for text in texts if text is not None]


@pytest.fixture(scope="module")
def story() -> dict[int, str]:
    """What is scraped every five seconds through two loops of the story."""
    engine = SimulatedSglang(timeline(), seed=1)
    texts = {t: engine.text(float(t)) for t in range(0, 2 * CYCLE + 1, 5)}
    assert None not in texts.values()
    return {t: text for t, text in texts.items() if text is not None}


def test_every_family_has_the_type_the_help_the_labels_and_the_buckets_of_the_real_one(story: dict[int, str]) -> None:
    families = list(text_string_to_metric_families(story[CYCLE]))
    assert len(families) > 35
    for family in families:
        real = REAL[family.name]
        labels = sorted({tuple(sorted(set(sample.labels) - {"le"})) for sample in family.samples})
        edges = sorted({float(sample.labels["le"]) for sample in family.samples if "le" in sample.labels})
        told = (family.type, family.documentation, [list(each) for each in labels], [str(edge) for edge in edges])
        assert told == (real["type"], real["help"], real["labels"], real.get("edges", [])), family.name


@pytest.mark.parametrize(
    "name", ["climb_64", "climb_256", "climb_512", "climb_1024", "collectives", "tuned", "healthy", "power_capped"]
)
def test_tokens_come_at_the_rate_that_the_phase_tells(name: str, story: dict[int, str]) -> None:
    phase = next(each for each in STORY if each.name == name)
    start, end = STARTS[name], int(STARTS[name] + phase.seconds)
    rate = (decoded(parse(story[end])) - decoded(parse(story[start]))) / phase.seconds
    assert rate == pytest.approx(phase.tokens_per_second, rel=0.02)


@pytest.mark.parametrize("name", ["climb_64", "climb_256", "climb_512", "climb_1024", "healthy"])
def test_the_clients_keep_as_many_requests_in_the_server_as_the_phase_tells(name: str, story: dict[int, str]) -> None:
    phase = next(each for each in STORY if each.name == name)
    series = parse(story[int(STARTS[name] + phase.seconds) - 5])
    assert value(series, "num_running_reqs") == phase.concurrency
    assert value(series, "num_queue_reqs") == 0
    # One that has just ended is followed by another within a tick.
    assert value(series, "http_requests_active", endpoint="/generate") == pytest.approx(phase.concurrency, abs=10)


def test_no_counter_and_no_bucket_ever_goes_back(story: dict[int, str]) -> None:
    before: Series = {}
    for text in story.values():
        now = counters(text)
        assert before.keys() <= now.keys()
        assert [key for key, number in before.items() if now[key] < number] == []
        before = now


def test_generated_tokens_move_only_when_requests_finish_while_realtime_tokens_move_all_the_time() -> None:
    times = list(range(STARTS["collectives"] + 5, STARTS["collectives"] + 60))
    read = play("story", times)
    unmoved = 0
    for before, after in pairwise(read):
        finished = value(after, "num_requests_total") - value(before, "num_requests_total")
        generated = value(after, "generation_tokens_total") - value(before, "generation_tokens_total")
        # Each request asks for 128 to 384 tokens.
        assert 128 * finished <= generated <= 384 * finished
        assert decoded(after) - decoded(before) > 3000
        unmoved += generated == 0
    # All requests of the phase began together, and the shortest needs 35 s.
    assert unmoved > 20


def test_of_every_request_all_tokens_but_the_first_are_decoded(story: dict[int, str]) -> None:
    for t in (STARTS["benchmark_over"] + 10, CYCLE + 30):
        series = parse(story[t])
        tokens = decoded(series) + value(series, "num_requests_total")
        # A request that its client ended between two tokens is rounded to a whole one.
        assert value(series, "generation_tokens_total") == pytest.approx(tokens, rel=0.001)


def test_inter_token_latency_counts_the_decoded_tokens_and_sums_to_the_time_between_them() -> None:
    before, after = play("healthy", [100, 160])
    count, total = (
        value(after, f"inter_token_latency_seconds_{each}") - value(before, f"inter_token_latency_seconds_{each}")
        for each in ("count", "sum")
    )
    assert count == decoded(after) - decoded(before)
    assert total / count == pytest.approx(1024 / 9400, rel=0.02)


def test_first_tokens_take_longer_than_nothing_and_shorter_than_whole_requests() -> None:
    (series,) = play("healthy", [300])
    first, whole = (
        value(series, f"{name}_sum") / value(series, f"{name}_count")
        for name in ("time_to_first_token_seconds", "e2e_request_latency_seconds")
    )
    assert 0.05 < first < 3
    # 255 tokens on average at 9,400 tok/s shared by 1,024.
    assert whole == pytest.approx(255 * 1024 / 9400, rel=0.1)


def test_the_throughput_gauge_keeps_showing_the_benchmark_that_is_over(story: dict[int, str]) -> None:
    start = STARTS["benchmark_over"]
    for t in range(start + 5, start + 75, 5):
        series = parse(story[t])
        assert value(series, "gen_throughput") == pytest.approx(3740, rel=0.02)
        assert value(series, "num_running_reqs") == 0
        assert value(series, "token_usage") == 0
        assert value(series, "http_requests_active", endpoint="/generate") == 0
        assert decoded(series) == decoded(parse(story[start + 5]))


def test_the_first_throughput_after_idle_is_far_too_low() -> None:
    # The server divides by the time since its last report, and nothing was reported while it was idle.
    (series,) = play("story", [STARTS["climb_64"] + 5])
    assert 0 < value(series, "gen_throughput") < 100


def test_a_phase_that_is_held_has_been_going_on_when_the_simulation_begins() -> None:
    (series,) = play("healthy", [0])
    assert value(series, "num_running_reqs") == 1024
    assert decoded(series) == pytest.approx(60 * 9400, rel=0.02)


def test_the_cache_hit_rate_is_of_the_last_prefill_or_zero() -> None:
    read = {value(series, "cache_hit_rate") for series in play("healthy", list(range(60, 90)))}
    assert read <= {0.0, 0.2}


def test_behind_a_hung_scheduler_everything_stands_still_and_open_requests_are_still_counted(
    story: dict[int, str],
) -> None:
    start = STARTS["wedged"]
    before, after = (parse(story[t]) for t in (start, start + 105))
    moved = {name for (name, labels), number in after.items() if before[name, labels] != number}
    assert moved == {"sglang:http_requests_total", "sglang:http_responses_total", "sglang:process_cpu_seconds_total"}
    assert value(after, "num_running_reqs") == 1024
    assert value(after, "gen_throughput") > 8000
    assert value(after, "http_requests_active", endpoint="/generate") == pytest.approx(1024, abs=10)


def test_what_the_hung_scheduler_held_drains_when_it_goes_on(story: dict[int, str]) -> None:
    start = STARTS["draining"]
    running = [value(parse(story[t]), "num_running_reqs") for t in (start, start + 15, start + 25, CYCLE + 5)]
    assert running == sorted(running, reverse=True)
    assert running[0] == 1024
    assert 0 < running[1] < 1024
    assert running[3] == 0


def test_a_batch_that_a_flag_holds_small_leaves_the_rest_in_the_queue() -> None:
    (series,) = play("batch_limited", [90])
    # The report may come between the end of one request and the beginning of the next.
    assert value(series, "num_running_reqs") == pytest.approx(16, abs=1)
    assert value(series, "num_queue_reqs") == pytest.approx(1008, abs=2)
    assert value(series, "token_usage") < 0.05


def test_without_cuda_graphs_only_eager_passes_are_counted() -> None:
    before, after = play("host_bound", [30, 90])
    eager, graph = (
        [value(series, "cuda_graph_passes_total", mode=mode) for series in (before, after)]
        for mode in ("decode_none", "decode_cuda_graph")
    )
    assert eager[1] - eager[0] == pytest.approx(60 * 1100 / 64, rel=0.02)
    assert graph[1] == graph[0]


def test_a_server_that_comes_back_counts_from_the_beginning() -> None:
    serving = replace(STORY[7], seconds=60)
    engine = SimulatedSglang(Timeline((serving, replace(DOWN, seconds=60))), seed=1)
    first, down, second = engine.text(59.0), engine.text(90.0), engine.text(121.0)
    assert first is not None
    assert down is None
    assert second is not None
    assert decoded(parse(first)) > 50 * serving.tokens_per_second
    assert 0 < decoded(parse(second)) < 2 * serving.tokens_per_second
    assert value(parse(second), "generation_tokens_total") == 8


def test_one_seed_gives_the_same_text_however_often_it_is_scraped_and_another_seed_another() -> None:
    rare, often, other = SimulatedSglang(timeline(), 1), SimulatedSglang(timeline(), 1), SimulatedSglang(timeline(), 2)
    for t in range(0, 300, 3):
        often.text(float(t))
    texts = [engine.text(300.0) or "" for engine in (rare, often, other)]
    without_scrapes = [
        {key: number for key, number in parse(text).items() if ("endpoint", "/metrics") not in key[1]} for text in texts
    ]
    assert without_scrapes[0] == without_scrapes[1]
    assert without_scrapes[0] != without_scrapes[2]


async def test_the_server_answers_over_http_on_the_loopback_interface() -> None:
    hand = [0.0]
    server = FakeSglangServer(SimulatedSglang(timeline("engine_down"), 1), SimClock(1.0, lambda: hand[0]))
    url = await server.start()
    try:
        assert url.startswith("http://127.0.0.1:")
        hand[0] = 20.0
        async with aiohttp.ClientSession() as session:
            async with session.get(url) as response:
                assert response.status == 200
                assert response.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
                assert decoded(parse(await response.text())) > 100_000
            hand[0] = 80.0
            with pytest.raises(aiohttp.ClientConnectionError):
                await session.get(url)
    finally:
        await server.close()
        await server.close()
    async with aiohttp.ClientSession() as session:
        with pytest.raises(aiohttp.ClientConnectorError):
            await session.get(url)
