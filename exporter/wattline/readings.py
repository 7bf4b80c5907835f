"""What was read, and when: the only vocabulary that the steps of the way share.

Every reading is an immutable record of one attempt. ``None`` means *not obtained in this attempt*; it is never
replaced by 0, NaN or an older value. ``t`` is in seconds on one monotonic clock (:func:`time.monotonic` live, the
recorded clock in a replay); wall time appears nowhere in a reading. Units are base units: watts, joules, seconds,
bytes, hertz, ratios from 0 to 1.

This module imports nothing of ours.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class GpuIdentity:
    """What is asked once per GPU and does not change while the driver stays loaded.

    ``uuid`` is the identity everywhere; ``index`` is NVML's and may change over a reboot.
    """

    uuid: str
    index: int
    name: str = ""
    pci_bus_id: str = ""
    architecture: str = ""
    driver: str = ""
    virtualization: str = "unknown"
    """none, passthrough, vgpu, host_vgpu, host_vsga or unknown (nvmlDeviceGetVirtualizationMode)."""
    mig: bool | None = None
    """Whether MIG is on (nvmlDeviceGetMigMode); utilisation is then not available."""
    unified_memory: bool = False
    """Both memory calls answer NotSupported: the GPU shares the host's memory (GB10 and kin)."""
    has_energy_counter: bool | None = None
    p2p_peers: int | None = None
    """Other GPUs reachable peer to peer for reads (nvmlDeviceGetP2PStatus); None when topology is not visible."""
    p2p_peers_possible: int | None = None
    """Other GPUs on this host that were asked about."""
    nvlink_active: bool | None = None
    """Whether any NVLink is up; None when the driver does not tell."""


@dataclass(frozen=True, slots=True)
class GpuSample:
    """Read every ``sample_interval`` (1 s)."""

    t: float
    uuid: str
    power_watts: float | None = None
    power_instant_watts: float | None = None
    energy_joules: float | None = None
    """NVML's own counter, raw: joules since the driver was loaded (nvmlDeviceGetTotalEnergyConsumption)."""
    power_samples_watts: tuple[float, ...] = ()
    """The driver's buffered power samples since the last reading (nvmlDeviceGetSamples)."""
    utilization_ratio: float | None = None
    memory_busy_ratio: float | None = None
    sm_clock_hertz: float | None = None
    event_reasons: frozenset[str] | None = None
    """Names of the active clocks event reasons, e.g. ``sw_power_cap``; empty when none is active."""
    errors: tuple[ReadingError, ...] = ()


@dataclass(frozen=True, slots=True)
class GpuActivity:
    """Read every 5 s: PCIe traffic and link, and the GPM activity of Hopper and newer."""

    t: float
    uuid: str
    pcie_transmit_bytes_per_second: float | None = None
    """From the GPU to the host."""
    pcie_receive_bytes_per_second: float | None = None
    pcie_link_generation: int | None = None
    pcie_link_generation_max: int | None = None
    pcie_link_width: int | None = None
    pcie_link_width_max: int | None = None
    sm_active_ratio: float | None = None
    tensor_active_ratio: float | None = None
    dram_active_ratio: float | None = None
    errors: tuple[ReadingError, ...] = ()


@dataclass(frozen=True, slots=True)
class GpuProcess:
    """A compute process that holds a context on the GPU (host PID as NVML tells it)."""

    pid: int
    memory_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class GpuCondition:
    """Read every 30 s: limits, memory, temperature, processes."""

    t: float
    uuid: str
    limit_enforced_watts: float | None = None
    limit_default_watts: float | None = None
    limit_requested_watts: float | None = None
    limit_min_watts: float | None = None
    limit_max_watts: float | None = None
    memory_used_bytes: float | None = None
    memory_total_bytes: float | None = None
    sm_clock_max_hertz: float | None = None
    temperature_celsius: float | None = None
    processes: tuple[GpuProcess, ...] | None = None
    xid_errors: int | None = None
    """XID events seen by this process since it began to listen."""
    xids: tuple[tuple[int, int], ...] = ()
    """The same by code, as (code, count); 0 stands for codes that cannot be."""
    errors: tuple[ReadingError, ...] = ()


@dataclass(frozen=True, slots=True)
class GpuGone:
    """A GPU that was read is not read any more: it is lost, or it was taken out and is forgotten."""

    t: float
    uuid: str
    forgotten: bool = False
    """It is not to be missed: nothing of it is published any more."""


@dataclass(frozen=True, slots=True)
class ReadingError:
    """One call that gave nothing. ``kind`` is a bounded word: ``not_supported``, ``gpu_is_lost``, ``implausible``."""

    reading: str
    kind: str


@dataclass(frozen=True, slots=True)
class EngineReading:
    """One scrape of one inference engine, normalised over kinds and versions.

    When ``up`` is false every value is ``None`` and ``error`` says why. Counts are of the whole engine: ranks are
    already aggregated.
    """

    t: float
    """When the answer had arrived."""
    engine: str
    """The configured or derived name of the engine, unique in the process."""
    up: bool
    error: str | None = None
    """A bounded word: connection_refused, timeout, dns, tls, http_404, empty, not_metrics, too_large, ..."""
    kind: str | None = None
    """sglang, vllm, tensorrt_llm, triton, tgi, llamacpp, dynamo, or that of a further table."""
    model: str | None = None
    version: str | None = None
    start_time: float | None = None
    """process_start_time_seconds of the engine, where it tells: a change is a restart."""
    running: float | None = None
    queued: float | None = None
    """Waiting requests, the queues of a disaggregated engine included."""
    held_http: float | None = None
    """Requests that the HTTP front holds now (generation endpoints only). Live even when the scheduler hangs."""
    waiting_for_peer: float | None = None
    """Those of ``queued`` that wait for the other role of a disaggregated deployment: this engine cannot move them."""
    kv_cache_usage_ratio: float | None = None
    asleep: bool | None = None
    """Whether the engine was put to sleep: it keeps requests and works on none."""
    finished_requests: float | None = None
    """Counter of requests that have ended, however."""
    request_seconds: float | None = None
    """Counter of the time from arrival to end, over all requests that have ended. Its rate is the mean number of
    requests inside (Little's law), once requests end."""
    prompt_tokens: float | None = None
    """Counter of prompt tokens that the engine computed, by its best counter."""
    cached_prompt_tokens: float | None = None
    """Counter of prompt tokens that its cache saved."""
    generation_tokens: float | None = None
    """Counter of generated tokens by the best counter of the engine."""
    generation_tokens_source: str | None = None
    """Name of the counter behind ``generation_tokens``; a delta is taken only between readings of one source."""
    prompt_tokens_source: str | None = None
    progress: tuple[float, ...] = ()
    """Counters of which at least one moves while the engine makes any progress on work. Empty: none exists."""
    scheduler_idle_seconds: float | None = None
    """Counter of the time in which the scheduler had no work (SGLang 0.5.20 and newer)."""
    flops: float | None = None
    """Counter of floating-point operations a GPU, by the engine's own estimate."""
    read_bytes: float | None = None
    """Counter of bytes read from the memory of a GPU, by the same estimate."""
    write_bytes: float | None = None
    """Counter of bytes written to it."""
    cuda_graph_passes: float | None = None
    """Counter of decode passes that ran as a CUDA graph."""
    eager_passes: float | None = None
    """Counter of decode passes that ran without one."""
    gauge_lag_seconds: float = 0.0
    """How long ``running`` and ``queued`` may go on showing an old value after the work ended."""
    ranks_disagree: bool = False
    """Replicas that must tell the same number told different ones: load is then not trusted."""
    errors: tuple[ReadingError, ...] = field(default=())
    """Lines or values that were skipped."""


GpuReading = GpuSample | GpuActivity | GpuCondition
Reading = GpuIdentity | GpuSample | GpuActivity | GpuCondition | GpuGone | EngineReading
