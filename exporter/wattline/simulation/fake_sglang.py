"""A simulated SGLang server: the one file beside the reader of SGLang that knows its metric names, as it stands for it.

Names, labels, help texts and buckets are those of SGLang 0.5.17. So are the habits of its numbers: load gauges are
written at a prefill batch and every 40 decode passes, ``gen_throughput`` keeps its last value when the work is over,
``realtime_tokens_total`` and the inter-token latency move while tokens come, prompt and generation tokens only when a
request ends, and behind a hung scheduler everything stands still but the count of open HTTP requests.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import accumulate
from typing import TYPE_CHECKING

from aiohttp import web
from prometheus_client import generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

from wattline.simulation.noise import Noise, seeded
from wattline.simulation.scenario import Engine

if TYPE_CHECKING:
    from collections.abc import Iterator

    from prometheus_client import Metric

    from wattline.simulation.clock import SimClock
    from wattline.simulation.scenario import Phase, Timeline

MODEL_NAME = "glm-5-fp4"
VERSION = "0.5.17"
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_TICK_SECONDS = 0.1
_TICKS_BEFORE = 600
"""The server has been at it for a minute when the simulation begins."""
_ARRIVALS_PER_TICK = 50
"""A client program does not send a thousand requests in one instant."""
_DECODE_LOG_INTERVAL = 40
"""SGLang's default: passes between two reports of the decode statistics."""
_REQUEST_TOKENS_PER_SECOND = 60.0
"""One request alone goes no faster."""
_PROMPT_TOKENS = 1024
_OUTPUT_TOKENS = 256
_CACHED_SHARE = 0.2
"""Share of a prompt that the prefix cache holds."""
_PREFILL_SECONDS = 0.05
_PREFILL_TOKENS_PER_SECOND = 50_000.0
_RATE_SWING = 0.02
_KV_TOKENS = 1_900_000
_SLOWER = ((1.0, 0.9), (1.5, 0.08), (2.5, 0.02))
"""Inter-token latencies as multiples of the usual one, and their shares."""

_LATENCY_EDGES = (
    0.1, 0.2, 0.4, 0.6, 0.8, 1, 2, 4, 6, 8, 10, 20, 40, 60, 80, 100, 200, 400,
)  # fmt: skip
_E2E_EDGES = (*_LATENCY_EDGES, 600, 1200, 1800, 2400)
_ITL_EDGES = (
    0.002, 0.004, 0.006, 0.008, 0.01, 0.015, 0.02, 0.025, 0.03, 0.035, 0.04, 0.06, 0.08, 0.1, 0.2, 0.4, 0.6, 0.8,
    1, 2, 4, 6, 8,
)  # fmt: skip
_QUEUE_EDGES = (
    0, 0.001, 0.005, 0.01, 0.05, 0.1, 0.2, 0.5, 1, 2, 3, 4, 5, 10, 15, 20, 30, 40, 50, 60, 70, 80, 90, 100, 200, 300,
    400, 500, 600, 700, 800, 900, 1000, 1200, 1400, 1600, 1800, 2000, 2500, 3000,
)  # fmt: skip

_TOKENIZER = {"engine_type": "unified", "model_name": MODEL_NAME}
_STREAMING = {"engine_type": "unified", "is_streaming": "true", "model_name": MODEL_NAME}
_SCHEDULER = {**_TOKENIZER, "moe_ep_rank": "0", "pp_rank": "0", "tp_rank": "0"}

_LOAD_GAUGES = {
    "num_running_reqs": "The number of running requests.",
    "num_queue_reqs": "The number of requests in the waiting queue.",
    "num_grammar_queue_reqs": "The number of requests in the grammar waiting queue.",
    "gen_throughput": "The generation throughput (token/s).",
    "cache_hit_rate": "The prefix cache hit rate.",
    "decode_sum_seq_lens": "The sum of all sequence lengths in decode.",
    "token_usage": "The token usage.",
    "full_token_usage": "The token usage for full attention layers.",
    "num_used_tokens": "The number of used tokens.",
    "kv_available_tokens": "Number of free token slots in the KV cache pool.",
    "kv_used_tokens": "Number of actively used token slots in the KV cache pool.",
    "is_cuda_graph": "Whether the batch is using CUDA graph.",
    "utilization": "The utilization.",
    "fwd_occupancy": "Forward pass GPU occupancy percentage.",
    "new_token_ratio": "The new token ratio.",
}
_CONSTANTS = {
    "max_total_num_tokens": ("Maximum total number of tokens in the KV cache pool.", _KV_TOKENS),
    "weight_memory_usage_gb": ("Memory used by model weights in GB.", 52.4),
    "kv_cache_memory_usage_gb": ("Memory used by the KV cache pools in GB.", 30.9),
    "page_size": ("KV cache page size in tokens.", 1),
    "num_pages": ("Number of KV cache pages.", _KV_TOKENS),
    "context_len": ("Maximum context length.", 131_072),
    "startup_available_gpu_memory_gb": ("Available GPU memory in GB at startup.", 9.1),
}


class _Histogram:
    """Observations by bucket."""

    def __init__(self, edges: tuple[float, ...]) -> None:
        self._edges = edges
        self._counts = [0] * (len(edges) + 1)
        self._sum = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        place = next((i for i, edge in enumerate(self._edges) if value <= edge), len(self._edges))
        self._counts[place] += times
        self._sum += value * times

    def family(self, name: str, text: str, labels: dict[str, str]) -> Metric:
        family = HistogramMetricFamily(f"sglang:{name}", text, labels=tuple(labels))
        edges = (*(str(float(edge)) for edge in self._edges), "+Inf")
        buckets = list(zip(edges, map(float, accumulate(self._counts)), strict=True))
        family.add_metric(tuple(labels.values()), buckets, self._sum)
        return family


@dataclass(slots=True)
class _Request:
    arrived: float
    prompt_tokens: int
    output_tokens: int
    begun: float = 0.0
    """Passes that the server had decoded when this request joined the batch."""


class _Life:
    """What the processes of one server know: gone when it ends."""

    def __init__(self, t: float) -> None:
        self.running: list[tuple[float, int, _Request]] = []
        """A heap by the pass at which the request will have all its tokens."""
        self.queue: deque[_Request] = deque()
        self.running_prompts = 0
        """Sum of the prompt tokens of what runs."""
        self.running_begun = 0.0
        """Sum of ``begun`` of what runs: with the one above, the use of the KV cache without a walk over requests."""
        self.admitted = 0
        self.arrived = 0
        self.scrapes = 0
        self.born = t
        self.passes = 0.0
        """Every running request has got a token by each."""
        self.graph_passes = 0.0
        self.eager_passes = 0.0
        self.prefills = 0
        self.decoded = 0.0
        self.prefilled = 0
        self.cached = 0
        self.finished = 0
        self.aborted = 0
        self.prompt_tokens = 0
        self.cached_tokens = 0
        self.generation_tokens = 0
        self.reported_t = t
        self.reported_passes = 0.0
        self.reported_decoded = 0.0
        self.gauges = dict.fromkeys(_LOAD_GAUGES, 0.0)
        self.gauges["fwd_occupancy"] = float("nan")
        self.ttft = _Histogram(_LATENCY_EDGES)
        self.itl = _Histogram(_ITL_EDGES)
        self.e2e = _Histogram(_E2E_EDGES)
        self.queue_time = _Histogram(_QUEUE_EDGES)


class SimulatedSglang(Collector):
    """The server without its HTTP: a stepper of simulated time, the same at every run of one seed.

    Requests share the server's token rate evenly; each asks for as many tokens as a seeded draw says.
    """

    def __init__(self, timeline: Timeline, seed: int) -> None:
        self._timeline = timeline
        self._noise = Noise(seeded(seed, "engine"))
        self._rng = seeded(seed, "requests")
        self._ticks = -_TICKS_BEFORE
        self._up = True
        self._life = _Life(self._ticks * _TICK_SECONDS)
        self._warm_up(self._life.born)

    def text(self, t: float) -> str | None:
        """The answer of ``/metrics`` at ``t``; ``None`` while nobody answers. ``t`` must not go back."""
        self._advance(t)
        if not self._up:
            return None
        self._life.scrapes += 1
        return generate_latest(self).decode()

    def _advance(self, t: float) -> None:
        while (self._ticks + 1) * _TICK_SECONDS <= t + 1e-6:
            start = self._ticks * _TICK_SECONDS
            self._ticks += 1
            self._tick(self._timeline.at(start + _TICK_SECONDS / 2).phase, start + _TICK_SECONDS)

    def _tick(self, phase: Phase, t: float) -> None:
        if phase.engine is Engine.DOWN:
            self._up = False
            return
        if not self._up:
            self._up = True
            self._life = _Life(t)
            self._warm_up(t)
        if phase.engine is Engine.WEDGED:
            return
        self._arrive(phase, t)
        if phase.tokens_per_second == 0.0:
            self._end_all(t)
        self._admit(phase, t)
        if self._life.running:
            self._decode(phase, t)
        self._report_idle()

    def _warm_up(self, t: float) -> None:
        """SGLang sends itself one request before it says that it is ready."""
        life = self._life
        life.prefills, life.prefilled, life.decoded, life.graph_passes = 1, 7, 7.0, 7.0
        life.finished, life.prompt_tokens, life.generation_tokens = 1, 7, 8
        life.arrived = 1
        life.reported_t, life.reported_decoded = t, life.decoded

    def _arrive(self, phase: Phase, t: float) -> None:
        life = self._life
        missing = phase.concurrency - len(life.running) - len(life.queue)
        for _ in range(min(missing, _ARRIVALS_PER_TICK)):
            life.arrived += 1
            life.queue.append(
                _Request(
                    arrived=t,
                    prompt_tokens=self._rng.randint(_PROMPT_TOKENS // 2, _PROMPT_TOKENS * 3 // 2),
                    output_tokens=self._rng.randint(_OUTPUT_TOKENS // 2, _OUTPUT_TOKENS * 3 // 2),
                )
            )

    def _admit(self, phase: Phase, t: float) -> None:
        """A prefill batch: all that fits from the queue."""
        life = self._life
        free = max(phase.max_running - len(life.running), 0)
        batch = [life.queue.popleft() for _ in range(min(len(life.queue), free))]
        prefill = _PREFILL_SECONDS + sum(request.prompt_tokens for request in batch) / _PREFILL_TOKENS_PER_SECOND
        for request in batch:
            cached = int(_CACHED_SHARE * request.prompt_tokens)
            life.cached += cached
            life.prefilled += request.prompt_tokens - cached
            life.queue_time.observe(t - request.arrived)
            life.ttft.observe(t - request.arrived + prefill)
            request.begun = life.passes
            life.admitted += 1
            life.running_prompts += request.prompt_tokens
            life.running_begun += request.begun
            # The first token comes out of the prefill.
            heappush(life.running, (life.passes + request.output_tokens - 1, life.admitted, request))
        if batch:
            life.prefills += 1
            life.gauges["cache_hit_rate"] = _CACHED_SHARE
            self._report_load()

    def _decode(self, phase: Phase, t: float) -> None:
        life = self._life
        requests = len(life.running)
        rate = phase.tokens_per_second * (1.0 + _RATE_SWING * self._noise.at(t))
        speed = min(rate / requests, _REQUEST_TOKENS_PER_SECOND)
        passes = speed * _TICK_SECONDS
        life.passes += passes
        if phase.cuda_graphs:
            life.graph_passes += passes
        else:
            life.eager_passes += passes
        before = int(life.decoded)
        life.decoded += passes * requests
        while life.running and life.running[0][0] <= life.passes:
            end, _, request = heappop(life.running)
            # It had its last token before this tick was over.
            life.decoded -= life.passes - end
            self._finish(request, request.output_tokens, t)
        self._observe_latency(int(life.decoded) - before, 1.0 / speed)
        if life.passes - life.reported_passes >= _DECODE_LOG_INTERVAL:
            life.gauges["gen_throughput"] = (life.decoded - life.reported_decoded) / (t - life.reported_t)
            life.gauges["cache_hit_rate"] = 0.0
            life.gauges["decode_sum_seq_lens"] = float(self._used_tokens())
            life.reported_t, life.reported_passes, life.reported_decoded = t, life.passes, life.decoded
            self._report_load()

    def _observe_latency(self, tokens: int, seconds: float) -> None:
        usual = seconds / sum(factor * share for factor, share in _SLOWER)
        left = tokens
        for factor, share in reversed(_SLOWER):
            times = left if factor == 1.0 else int(share * tokens)
            self._life.itl.observe(factor * usual, times)
            left -= times

    def _finish(self, request: _Request, output_tokens: int, t: float) -> None:
        life = self._life
        life.running_prompts -= request.prompt_tokens
        life.running_begun -= request.begun
        life.finished += 1
        life.prompt_tokens += request.prompt_tokens
        life.cached_tokens += int(_CACHED_SHARE * request.prompt_tokens)
        life.generation_tokens += output_tokens
        life.e2e.observe(t - request.arrived)

    def _end_all(self, t: float) -> None:
        life = self._life
        for _, _, request in life.running:
            self._finish(request, 1 + round(life.passes - request.begun), t)
        life.aborted += len(life.queue)
        life.running.clear()
        life.queue.clear()

    def _used_tokens(self) -> int:
        life = self._life
        return round(life.running_prompts + len(life.running) * life.passes - life.running_begun)

    def _report_load(self) -> None:
        gauges, used = self._life.gauges, self._used_tokens()
        gauges["num_running_reqs"] = float(len(self._life.running))
        gauges["num_queue_reqs"] = float(len(self._life.queue))
        gauges["token_usage"] = round(used / _KV_TOKENS, 2)
        gauges["full_token_usage"] = used / _KV_TOKENS
        gauges["num_used_tokens"] = gauges["kv_used_tokens"] = float(used)
        gauges["kv_available_tokens"] = float(_KV_TOKENS - used)

    def _report_idle(self) -> None:
        """The idle hook: it puts the load to 0 at once and leaves the throughput as it is."""
        if not self._life.running and not self._life.queue and self._life.gauges["num_running_reqs"]:
            self._report_load()

    # The exposition.

    def collect(self) -> Iterator[Metric]:
        """The families of ``/metrics`` as they stand."""
        life = self._life
        yield from self._http()
        yield _gauge("num_retracted_reqs", "The number of retracted requests.", {**_SCHEDULER, "pid": "676"}, 0)
        yield life.ttft.family(
            "time_to_first_token_seconds", "Histogram of time to first token in seconds.", _STREAMING
        )
        yield life.itl.family("inter_token_latency_seconds", "Histogram of inter-token latency in seconds.", _TOKENIZER)
        yield life.e2e.family(
            "e2e_request_latency_seconds", "Histogram of End-to-end request latency in seconds", _STREAMING
        )
        yield life.queue_time.family("queue_time_seconds", "Histogram of queueing time in seconds.", _SCHEDULER)
        yield _counter("prompt_tokens", "Number of prefill tokens processed.", _STREAMING, life.prompt_tokens)
        yield _counter(
            "generation_tokens", "Number of generation tokens processed.", _STREAMING, life.generation_tokens
        )
        yield _counter(
            "cached_tokens",
            "Number of cached prompt tokens by source (device/host/storage).",
            {"cache_source": "device", **_TOKENIZER},
            life.cached_tokens,
        )
        yield _counter("num_requests", "Number of requests processed.", _STREAMING, life.finished)
        yield _counter("num_aborted_requests", "Number of requests aborted.", _TOKENIZER, life.aborted)
        yield self._by_mode(
            "cuda_graph_passes",
            "Total number of forward passes categorized by CUDA graph.",
            {
                "prefill_none": life.prefills,
                "decode_cuda_graph": int(life.graph_passes),
                "decode_none": int(life.eager_passes),
            },
        )
        yield self._by_mode(
            "realtime_tokens",
            "Total number of tokens processed (updated on each log interval). "
            "mode: prefill_compute, prefill_cache, decode.",
            {"prefill_compute": life.prefilled, "prefill_cache": life.cached, "decode": int(life.decoded)},
        )
        for name, (text, value) in _CONSTANTS.items():
            yield _gauge(name, text, _SCHEDULER, value)
        for name, text in _LOAD_GAUGES.items():
            yield _gauge(name, text, _SCHEDULER, life.gauges[name])

    def _http(self) -> Iterator[Metric]:
        life = self._life
        held = len(life.running) + len(life.queue)
        generate, metrics = ("/generate", "POST"), ("/metrics", "GET")
        active = GaugeMetricFamily(
            "sglang:http_requests_active", "Number of currently active HTTP requests", labels=("endpoint", "method")
        )
        active.add_metric(metrics, 1.0)
        active.add_metric(generate, float(held))
        yield active
        requests = CounterMetricFamily(
            "sglang:http_requests",
            "Total number of HTTP requests by endpoint and method",
            labels=("endpoint", "method"),
        )
        requests.add_metric(metrics, float(life.scrapes))
        requests.add_metric(generate, float(life.arrived))
        yield requests
        responses = CounterMetricFamily(
            "sglang:http_responses",
            "Total number of HTTP responses by endpoint and status code",
            labels=("endpoint", "method", "status_code"),
        )
        responses.add_metric((*metrics, "200"), float(life.scrapes - 1))
        responses.add_metric((*generate, "200"), float(life.arrived - held))
        yield responses
        cpu = CounterMetricFamily(
            "sglang:process_cpu_seconds",
            "Total CPU time consumed by this process (user + system)",
            labels=("component",),
        )
        alive = self._ticks * _TICK_SECONDS - life.born
        cpu.add_metric(("detokenizer",), round(2.1 + 0.01 * alive + 4e-6 * life.decoded, 2))
        cpu.add_metric(("tokenizer",), round(6.4 + 0.03 * alive + 1e-5 * life.decoded, 2))
        yield cpu

    @staticmethod
    def _by_mode(name: str, text: str, values: dict[str, int]) -> Metric:
        """A series appears when it first counts something."""
        labels = ("mode", *_SCHEDULER)
        family = CounterMetricFamily(f"sglang:{name}", text, labels=labels)
        for mode, value in values.items():
            if value:
                family.add_metric((mode, *_SCHEDULER.values()), float(value))
        return family


def _gauge(name: str, text: str, labels: dict[str, str], value: float) -> Metric:
    family = GaugeMetricFamily(f"sglang:{name}", text, labels=tuple(labels))
    family.add_metric(tuple(labels.values()), float(value))
    return family


def _counter(name: str, text: str, labels: dict[str, str], value: float) -> Metric:
    family = CounterMetricFamily(f"sglang:{name}", text, labels=tuple(labels))
    family.add_metric(tuple(labels.values()), float(value))
    return family


class FakeSglangServer:
    """The simulated server over real HTTP, on a port of the loopback interface that the system chooses."""

    def __init__(self, engine: SimulatedSglang, clock: SimClock) -> None:
        self._engine = engine
        self._clock = clock
        app = web.Application()
        app.router.add_get("/metrics", self._metrics)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)

    async def start(self) -> str:
        """Begin to listen.

        Returns:
            The URL of ``/metrics``.
        """
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        host, port = self._runner.addresses[0][:2]
        return f"http://{host}:{port}/metrics"

    async def close(self) -> None:
        """Stop listening; may be called twice."""
        await self._runner.cleanup()

    async def _metrics(self, request: web.Request) -> web.Response:
        text = self._engine.text(self._clock.now())
        if text is None:
            # A dead process has no HTTP to say so: its connections break.
            if request.transport is not None:
                request.transport.abort()
            return web.Response()
        return web.Response(body=text.encode(), headers={"Content-Type": CONTENT_TYPE})
