"""A past with a known truth, under the names of dcgm-exporter and vLLM."""

from __future__ import annotations

from collections.abc import Callable, Iterator

START = 1_760_000_400
"""A moment that the scrapes of any interval here meet."""
UUIDS = ("GPU-aaaaaaaa-0000-0000-0000-000000000000", "GPU-bbbbbbbb-0000-0000-0000-000000000000")
IDLE, WORK = 100.0, 420.0
PHASES = (("idle", 3600), ("work", 3600), ("bad", 1800), ("work", 3600), ("stall", 1200), ("work", 600))
SECONDS = sum(length for _, length in PHASES)


def phase(t: float) -> str:
    for name, length in PHASES:
        if t < length:
            return name
        t -= length
    return "work"


def energy(t: float) -> float:
    """Joules of one GPU since the beginning."""
    joules = 0.0
    for name, length in PHASES:
        here = min(t, length)
        joules += here * (WORK if name == "work" else IDLE)
        t -= here
    return joules


def tokens(t: float) -> float:
    """A thousand a second while it works, ten while it is starved, none while it hangs."""
    made = 0.0
    for name, length in PHASES:
        here = min(t, length)
        made += here * {"work": 1000.0, "bad": 30.0}.get(name, 0.0)
        t -= here
    return made


def lines(step: int = 15, *, limit: bool = True) -> Iterator[str]:
    """The past as OpenMetrics."""
    times = range(0, SECONDS + 1, step)
    gpu = 'gpu="{i}",UUID="{u}",modelName="NVIDIA H200",Hostname="node1",instance="10.0.0.1:9400",job="dcgm"'
    engine = 'model_name="m",instance="node1:8000",job="vllm"'

    def family(name: str, kind: str = "gauge") -> str:
        return f"# TYPE {name.removesuffix('_total')} {kind}\n"

    gauges: dict[str, Callable[[float], float]] = {
        "DCGM_FI_DEV_POWER_USAGE": lambda t: WORK if phase(t) == "work" else IDLE,
        "DCGM_FI_DEV_GPU_UTIL": lambda t: {"work": 98, "stall": 100}.get(phase(t), 0),
        "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION": lambda t: energy(t) * 1000,
    }
    if limit:
        gauges["DCGM_FI_DEV_POWER_MGMT_LIMIT"] = lambda _: 700
    for name, value in gauges.items():
        yield family(name)
        for i, u in enumerate(UUIDS):
            labels = gpu.format(i=i, u=u)
            yield from (f"{name}{{{labels}}} {value(t)} {START + t}\n" for t in times)
    for name, held in (("vllm:num_requests_running", 40), ("vllm:num_requests_waiting", 2)):
        yield family(name)
        yield from (f"{name}{{{engine}}} {0 if phase(t) == 'idle' else held} {START + t}\n" for t in times)
    for name, share in (("vllm:generation_tokens_total", 1.0), ("vllm:prompt_tokens_total", 0.5)):
        yield family(name, "counter")
        yield from (f"{name}{{{engine}}} {tokens(t) * share} {START + t}\n" for t in times)
    yield "# EOF\n"
