"""What is published when engines tell the past, tell nothing, begin anew or answer anything at all."""

from __future__ import annotations

import asyncio
import gc
import tracemalloc

import pytest

from tests.engines.servers import Request, Server, answer
from tests.hardening.process import Answer
from tests.hardening.world import IDLE, World, busy, live
from tests.nvml.standin import StandIn
from wattline.analysis.snapshot import State

RATE = "wattline_tokens_per_second"
EFFICIENCY = "wattline_tokens_per_watt"
TOTAL = "wattline_engine_generation_tokens_total"
RUNNING = "wattline_engine_running_requests"
WORK = "wattline_deployment_work_requests"
ERRORS = "wattline_source_errors_total"
UP = "wattline_engine_up"

WORKS = "* nvmlDeviceGetPowerUsage value=500000"
IDLES = "* nvmlDeviceGetPowerUsage value=80000"


def rate(text: Answer) -> float | None:
    return text.value(RATE, kind="generation")


# Counters that move late, gauges that stay.


def test_tokens_that_are_counted_when_a_request_ends_give_no_spike_and_no_stall(gpus: StandIn) -> None:
    gpus.say(WORKS)

    async def scenario(world: World) -> None:
        # One request of 600 tokens takes 18 s; the counter stands until it is done.
        async def engine(_: Request, __: asyncio.StreamWriter) -> bytes:
            done = int(world.now // 18) * 600
            return answer(
                f'sglang:num_running_reqs 1\nsglang:generation_tokens_total{{model_name="m"}} {done}\n'.encode()
            )

        world.engine = engine
        await world.after(75)
        for _ in range(120):
            now = rate(await world.after(1))
            assert now is not None
            # 600 tokens in 18 s are 33 a second; a window of 60 s holds three or four of them.
            assert 3 * 600 / 60 * 0.8 <= now <= 4 * 600 / 55
            assert world.deployment.state is State.WORKING

    live(gpus, scenario)


def test_a_live_counter_is_the_better_one_where_both_are_there(gpus: StandIn) -> None:
    gpus.say(WORKS)

    async def scenario(world: World) -> None:
        world.tokens_per_second = 33
        world.engine = (
            'sglang:num_running_reqs 1\nsglang:generation_tokens_total{model_name="m"} 1000\n'
            'sglang:realtime_tokens_total{mode="decode"} TOKENS\n'
        )
        await world.after(20)
        for _ in range(60):
            assert rate(await world.after(1)) == pytest.approx(33, rel=0.05)

    live(gpus, scenario)


def test_a_throughput_gauge_that_stays_when_the_work_is_done_makes_no_token(gpus: StandIn) -> None:
    async def scenario(world: World) -> None:
        world.engine = IDLE + "sglang:gen_throughput 386.27\nsglang:generation_tokens_total 123456\n"
        text = await world.after(70)
        assert rate(text) == 0.0
        assert text.value(EFFICIENCY, kind="generation") == 0.0
        assert text.values("wattline_joules_per_token") == []
        assert world.deployment.state is State.IDLE

    live(gpus, scenario)


def test_a_gauge_that_shows_the_past_for_half_a_minute_is_no_alarm(gpus: StandIn) -> None:
    # 0.5.15 and older: the last busy value is shown for 30 s after the work ended.
    gpus.say(WORKS)

    async def scenario(world: World) -> None:
        world.tokens_per_second = 500
        running = (
            "sglang:num_running_reqs {}\nsglang:num_queue_reqs 0\nsglang:inter_token_latency_seconds_count TOKENS\n"
        )
        world.engine = running.format(24)
        await world.after(100)
        assert world.deployment.state is State.WORKING
        world.engine = running.replace("TOKENS", "50000").format(24)
        gpus.say(IDLES)
        seen = []
        for second in range(90):
            if second == 31:
                world.engine = running.replace("TOKENS", "50000").format(0)
            await world.after(1)
            seen.append(world.deployment.state)
        assert set(seen) <= {State.WORKING, State.UNKNOWN, State.IDLE, State.SATURATED}
        assert seen[-1] is State.IDLE

    live(gpus, scenario)


@pytest.mark.parametrize("counters", [True, False], ids=["with live counters", "without any"])
def test_a_queue_that_nothing_is_taken_from_is_work_and_idle_gpus_beside_it_are_an_alarm(
    gpus: StandIn, counters: bool
) -> None:
    gpus.say(IDLES)

    async def scenario(world: World) -> None:
        idle = "sglang:num_running_reqs 0\n"
        world.engine = idle + ("sglang:inter_token_latency_seconds_count 5\n" if counters else "")
        await world.after(70)
        world.engine += "sglang:num_queue_reqs 37\n"
        text = await world.after(180)
        assert text.value(WORK) == 37.0
        assert world.deployment.state is (State.STALLED if counters else State.IDLE_WHILE_BUSY)
        assert text.value("wattline_deployment_suspected_cause", cause="not_fed") == 1.0

    live(gpus, scenario)


def test_an_engine_that_is_dead_while_its_port_answers_is_stalled(gpus: StandIn) -> None:
    gpus.say(IDLES)

    async def scenario(world: World) -> None:
        world.engine = busy(running=2, queued=3, generation_tokens_total=123456, inter_token_latency_seconds_count=9)
        text = await world.after(300)
        assert text.value(UP) == 1.0
        assert world.deployment.state is State.STALLED
        assert rate(text) == 0.0

    live(gpus, scenario)


# Engines that begin anew.


def test_a_restart_takes_nothing_back_and_invents_no_token(gpus: StandIn) -> None:
    gpus.say(WORKS)

    async def scenario(world: World) -> None:
        # What is said at 5, 10, 15 ... s; at the start it was idle and had no counter.
        told = iter([1_000_000, 1_000_600, 0, 450, 900])

        async def engine(_: Request, __: asyncio.StreamWriter) -> bytes:
            tokens = next(told, 900)
            start = 1.7e9 if tokens >= 1_000_000 else 1.7e9 + 3600
            lines = f"process_start_time_seconds {start}\nvllm:num_requests_running 9\n"
            return answer(f"{lines}vllm:generation_tokens_total {tokens}\n".encode())

        world.engine = engine
        shown = [(await world.after(5)).value(TOTAL) for _ in range(5)]
        # The restart itself counts nothing.
        assert shown == [0, 600, 600, 1_050, 1_500]
        assert (rate(world.scrape()) or -1) <= 600 / 5

    live(gpus, scenario)


@pytest.mark.parametrize("said", ["N/A", "NaN", "-1", None], ids=["bad", "nan", "negative", "missing"])
def test_a_rank_that_one_poll_does_not_tell_silences_no_page_and_invents_no_token(
    gpus: StandIn, said: str | None
) -> None:
    gpus.say(IDLES)

    async def scenario(world: World) -> None:
        odd = False

        async def engine(_: Request, __: asyncio.StreamWriter) -> bytes:
            told = [f"{1e6 + 50 * world.now:.0f}"] * 2
            lines = [
                f'sglang:realtime_tokens_total{{mode="decode",dp_rank="{rank}"}} {value}\n'
                for rank, value in enumerate([told[0], said] if odd else told)
                if value is not None
            ]
            return answer((busy() + "".join(lines)).encode())

        world.engine = engine
        await world.after(100)
        for second in range(200):
            odd = 50 <= second < 55
            text = await world.after(1)
            assert world.deployment.state is State.IDLE_WHILE_BUSY, second
            assert rate(text) == pytest.approx(100, rel=0.02)
        # From the first poll with counters on, at 5 s, to the last.
        assert text.value(TOTAL) == pytest.approx(100 * 295, abs=510)

    live(gpus, scenario)


def test_a_restart_whose_counter_is_already_higher_is_seen_by_its_start_time(gpus: StandIn) -> None:
    gpus.say(WORKS)

    async def scenario(world: World) -> None:
        told = iter([(1, 1_000_000), (1, 1_000_600), (2, 2_000_000), (2, 2_000_450)])

        async def engine(_: Request, __: asyncio.StreamWriter) -> bytes:
            process, tokens = next(told, (2, 2_000_450))
            lines = f"process_start_time_seconds {1.7e9 + 100 * process}\nvllm:num_requests_running 9\n"
            return answer(f"{lines}vllm:generation_tokens_total {tokens}\n".encode())

        world.engine = engine
        text = await world.after(25)
        assert text.value(TOTAL) == 1_050
        assert world.deployment.tokens_per_second["generation"] < 600 / 5

    live(gpus, scenario)


def test_an_engine_that_begins_anew_every_minute_makes_no_false_alarm_and_no_jump(gpus: StandIn) -> None:
    gpus.say(WORKS)

    async def scenario(world: World) -> None:
        async def engine(_: Request, __: asyncio.StreamWriter) -> bytes | None:
            start, age = divmod(world.now, 60)
            if age < 8:
                return None  # Down.
            model = f'model_name="m-{start:.0f}"'
            decoded = f'sglang:realtime_tokens_total{{mode="decode",{model}}} {(age - 8) * 900:.0f}\n'
            return answer(f"sglang:num_running_reqs{{{model}}} 12\n{decoded}".encode())

        world.engine = engine
        await world.after(70)
        series, last = world.scrape().text.count("\nwattline_"), 0.0
        for _ in range(240):
            await world.after(1)
            (seen,) = world.snapshot.engines
            total = seen.generation_tokens_total or 0.0
            assert last <= total <= last + 900 * 5.01 or last == 0.0
            last = total
            assert world.deployment.tokens_per_second.get("generation", 0.0) <= 900.1
            assert world.deployment.state in {State.WORKING, State.UNKNOWN}
        text = world.scrape()
        assert len(text.values("wattline_engine_info")) <= 1
        # 8 s down, and up to 5 s until that is seen, of each minute: what is counted is what was seen.
        assert 0.5 * 900 * 310 < last < 900 * 310
        # At the same second of a minute the same series are there.
        assert text.text.count("\nwattline_") == series

    live(gpus, scenario)


def test_efficiency_while_an_engine_was_away_is_of_the_time_in_which_it_was_there(gpus: StandIn) -> None:
    # 30 s of work at 500 W a GPU, 25 s away at 80 W, 5 s there again: tokens are not divided by the idle time.
    async def scenario(world: World) -> None:
        away = False

        async def engine(_: Request, __: asyncio.StreamWriter) -> bytes | None:
            tokens = f'sglang:realtime_tokens_total{{mode="decode"}} {world.now * 1000:.0f}\n'
            return None if away else answer(f"sglang:num_running_reqs 64\n{tokens}".encode())

        gpus.say(WORKS)
        world.engine = engine
        await world.after(90)
        away = True
        gpus.say(IDLES)
        await world.after(25)
        away = False
        gpus.say(WORKS)
        text = await world.after(6)
        assert rate(text) == pytest.approx(1000, rel=0.01)
        assert text.value(EFFICIENCY, kind="generation") == pytest.approx(1.0, rel=0.05)

    live(gpus, scenario)


# Answers of every kind.


def test_one_engine_that_never_answers_costs_neither_the_others_nor_the_scrape(gpus: StandIn) -> None:
    gpus.say(WORKS)

    async def hang(_: Request, __: asyncio.StreamWriter) -> None:
        await asyncio.Event().wait()

    async def drip(_: Request, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        while True:
            writer.write(b"sglang:num_running_reqs 1\n")
            await writer.drain()
            await asyncio.sleep(0.3)

    async def late(_: Request, __: asyncio.StreamWriter) -> bytes:
        await asyncio.sleep(12)
        return answer()

    async def scenario(world: World) -> None:
        from wattline.config import parse

        async with Server(hang) as a, Server(drip) as b, Server(late) as c:
            urls = {"hangs": a.url, "drips": b.url, "late": c.url, "well": world.server.url}
            engines = ", ".join(f"{{url: '{url}', name: {name}}}" for name, url in urls.items())
            await world.session.apply(parse(f"deployments: [{{name: d, engines: [{engines}]}}]", "a test"))
            world.engine = busy()
            await world.after(10)
            for _ in range(12):
                text = await world.after(5)
                assert text.values(UP, engine="well") == [1.0]
                assert (text.value("wattline_source_age_seconds", source="engine:well") or 0.0) <= 6
                assert text.value(RUNNING) == 64.0
                for name in ("hangs", "drips", "late"):
                    assert text.value(UP, engine=name) == 0.0
            for name in ("hangs", "drips", "late"):
                assert (text.value(ERRORS, source=f"engine:{name}", kind="timeout") or 0) >= 12
            # What the others hold is not known, so the whole is not.
            assert text.values(WORK) == []

    live(gpus, scenario)


@pytest.mark.parametrize(
    ("said", "word"),
    [
        (answer(b'{"detail":"Not Found"}', "404 Not Found", Content_Type="application/json"), "http_404"),
        (answer(b""), "empty"),
        (answer(b"# HELP x y\n# TYPE x gauge\n"), "empty"),
        (answer(b"python_gc_objects_collected_total 5\nprocess_cpu_seconds_total 1\n"), "no_engine_metrics"),
        (answer(b"<!doctype html><title>Sign in</title>", Content_Type="text/html"), "not_metrics"),
        (answer(b"", "401 Unauthorized", WWW_Authenticate="Bearer"), "http_401"),
        (answer(b"", "302 Found", Location="http://127.0.0.2:1/"), "redirect"),
        (answer(b"x" * 17_000_000), "too_large"),
        (b"SSH-2.0-OpenSSH_9.9\r\n\r\n", "protocol"),
        (answer(b"sglang:num_running_reqs 1\n", Content_Encoding="gzip"), "protocol"),
        (answer(b"sglang:num_running_reqs N/A\nsglang:num_queue_reqs{ 3\n"), "not_metrics"),
        (answer(b"sgl_router_requests_total 4\n"), "router"),
    ],
)
def test_an_answer_that_tells_nothing_is_no_zero_and_no_old_value(
    gpus: StandIn, said: bytes, word: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(world: World) -> None:
        world.engine = busy()
        before = await world.after(10)
        assert before.value(RUNNING) == 64.0
        caplog.clear()
        world.engine = said
        text = await world.after(60)
        assert text.value(UP) == 0.0
        for name in (RUNNING, WORK, "wattline_engine_queued_requests", "wattline_engine_info", RATE, EFFICIENCY):
            assert text.values(name) == [], name
        assert (text.value(ERRORS, source="engine:e", kind=word) or 0) >= 11
        assert world.deployment.state is State.UNKNOWN
        assert word in world.deployment.reason
        assert len(text.values("wattline_gpu_power_watts")) == 2
        told = [record for record in caplog.records if record.name == "wattline.engines"]
        assert len(told) == 1
        world.engine = busy()
        assert (await world.after(6)).value(RUNNING) == 64.0

    live(gpus, scenario)


def test_values_that_are_no_numbers_are_absent_and_make_nobody_idle(gpus: StandIn) -> None:
    gpus.say(WORKS)

    async def scenario(world: World) -> None:
        world.engine = (
            "sglang:num_running_reqs 3\nsglang:num_queue_reqs NaN\nsglang:token_usage NaN\n"
            "sglang:gen_throughput +Inf\nsglang:fwd_occupancy NaN\nsglang:generation_tokens_total NaN\n"
        )
        text = await world.after(70)
        assert text.value(RUNNING) == 3.0
        # Three at the least; how many wait nobody knows.
        assert text.values(WORK) == []
        for name in ("wattline_engine_queued_requests", "wattline_engine_kv_cache_usage_ratio", TOTAL, RATE):
            assert text.values(name) == []
        assert "nan" not in text.text.lower().replace("nanoseconds", "")
        assert world.deployment.state is State.WORKING

    live(gpus, scenario)


def test_what_a_usable_answer_lacks_is_counted_by_a_word(gpus: StandIn) -> None:
    gpus.say(WORKS)

    async def scenario(world: World) -> None:
        world.engine = (
            'sglang:num_running_reqs{pid="1",tp_rank="0"} 7\nsglang:num_running_reqs{pid="2",tp_rank="0"} 0\n'
            'sglang:num_queue_reqs{zone="a"} 2\nsglang:num_queue_reqs{zone="b"} 2\n'
            "sglang:token_usage 1.5\nsglang:generation_tokens_total N/A\n"
        )
        text = await world.after(70)
        assert text.value(UP) == 1.0
        for word in ("bad_line", "unknown_label", "ranks_disagree"):
            assert (text.value(ERRORS, source="engine:e", kind=word) or 0) >= 13, word
        rejected = "wattline_source_rejected_readings_total"
        assert (text.value(rejected, source="engine:e", reading="sglang:token_usage") or 0) >= 13
        assert text.value(ERRORS, source="engine:e", kind="implausible") is None

    live(gpus, scenario)


def test_replicas_that_disagree_are_believed_by_nobody(gpus: StandIn) -> None:
    gpus.say(IDLES)

    async def scenario(world: World) -> None:
        world.engine = (
            'sglang:num_running_reqs{pid="910",tp_rank="0"} 7\nsglang:num_running_reqs{pid="1444",tp_rank="0"} 0\n'
            "sglang:num_queue_reqs 0\n"
        )
        text = await world.after(120)
        assert text.values(WORK) == []
        assert world.deployment.state is State.UNKNOWN
        world.engine = world.engine.replace("} 0", "} 7")
        assert (await world.after(120)).value(WORK) == 7.0

    live(gpus, scenario)


def test_labels_that_change_from_scrape_to_scrape_add_no_series(gpus: StandIn) -> None:
    gpus.say(WORKS)

    async def scenario(world: World) -> None:
        polls = 0

        async def engine(_: Request, __: asyncio.StreamWriter) -> bytes:
            nonlocal polls
            polls += 1
            labels = f'{{model_name="m{polls}",request_id="{polls * 7919}",tp_rank="{polls % 8}"}}'
            return answer(f"sglang:num_running_reqs{labels} 5\nsglang:lora{labels} 1\n".encode())

        world.engine = engine
        first = (await world.after(60)).text.count("\nwattline_")
        last = (await world.after(300)).text.count("\nwattline_")
        assert last == first
        assert polls > 60

    live(gpus, scenario)


def test_a_model_of_any_name_is_text_and_nothing_else(gpus: StandIn) -> None:
    name = 'a\\\\b \\"c\\" {d=\\"e\\"} \\n# TYPE x 1 \u202e\U0001f600'

    async def scenario(world: World) -> None:
        world.engine = f'sglang:num_running_reqs{{model_name="{name}"}} 1\n'
        text = await world.after(6)
        expected = 'a\\b "c" {d="e"} \n# TYPE x 1 \u202e\U0001f600'
        assert text.values("wattline_engine_info", model=expected) == [1.0]
        assert text.values("x") == []

    live(gpus, scenario)


def test_an_engine_is_asked_for_its_metrics_every_five_seconds_and_for_nothing_else(gpus: StandIn) -> None:
    async def scenario(world: World) -> None:
        world.engine = busy()
        await world.after(600)
        assert {request.line for request in world.server.requests} == {"GET /metrics HTTP/1.1"}
        assert len(world.server.requests) == pytest.approx(600 / 5 + 1, abs=1)
        assert world.server.connections == 1
        assert all("wattline/" in request.headers["User-Agent"] for request in world.server.requests)

    live(gpus, scenario)


def test_texts_that_are_too_large_leave_no_memory_behind(gpus: StandIn) -> None:
    huge = answer(b'vllm:lora_requests_info{running_lora_adapters="a"} 1.7e9\n' * 400_000)
    large = answer(
        b'vllm:lora_requests_info{running_lora_adapters="a"} 1.7e9\n' * 100_000 + b"vllm:num_requests_running 4\n"
    )

    async def scenario(world: World) -> None:
        world.engine = huge
        text = await world.after(10)
        assert (text.value(ERRORS, source="engine:e", kind="too_large") or 0) >= 2
        world.engine = large
        # What was not asked for is passed over, and a time is no count.
        text = await world.after(10)
        assert text.value(RUNNING) == 4.0
        gc.collect()
        tracemalloc.start()
        try:
            await world.after(10)
            gc.collect()
            before = tracemalloc.get_traced_memory()[0]
            await world.after(30)
            gc.collect()
            assert tracemalloc.get_traced_memory()[0] - before < 1_000_000
        finally:
            tracemalloc.stop()

    live(gpus, scenario)
