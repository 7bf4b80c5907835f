"""Every number that judging compares with, its default and the evidence behind it.

This is the one place: the configuration fills this structure, the documentation is written from it.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

Ratio = Annotated[float, Meta(ge=0.0, le=2.0)]
Requests = Annotated[float, Meta(gt=0.0)]


class Thresholds(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Thresholds of the states and causes. All ratios are shares of one; requests are counts."""

    # States.
    idle_active_fraction: Ratio = 0.10
    """Busiest GPU below this active fraction, with work held: idle while busy. One of 838 healthy ML.ENERGY servers is
    below it even with the most pessimistic idle floor."""
    idle_tdp_fraction: Ratio = 0.20
    """Or below this fraction of its limit: none of the 838 is."""
    stalled_active_fraction: Ratio = 0.35
    """Above this the GPUs compute something, and a missing token is not called a stall."""
    long_stall_seconds: Annotated[float, Meta(ge=0.0)] = 300.0
    """Requests held and not one token for so long is a stall at any power: no prompt takes five minutes a chunk."""
    unfed_utilization: Ratio = 0.02
    """Busiest GPU below it over the window, with work held: nothing runs there, whatever idle floor was assumed."""
    unfed_tdp_fraction: Ratio = 0.60
    """Unless the board draws more than any idle board does (an L4 idles at 0.50): then utilisation is not believed."""
    low_tdp_fraction: Ratio = 0.45
    """Loaded text servers below it: 3 of 350 healthy ones."""
    saturated_tdp_fraction: Ratio = 0.95
    power_cap_share: Ratio = 0.5
    """Share of the window in which the power cap holds the clocks down, to call a GPU saturated."""
    power_cap_tdp_fraction: Ratio = 0.75
    """The cap saturates only where the mean is high, too: bursts at half the time touch it at 0.70 of the limit."""
    busy_requests: Requests = 4.0
    """A single request on a big rig is not a busy server."""
    loaded_requests: Requests = 32.0
    """Small batches may draw little and be healthy; from this load on they should not."""

    # Causes.
    not_fed_utilization: Ratio = 0.10
    spin_utilization: Ratio = 0.95
    spin_sm_active: Ratio = 0.05
    """One spinning thread shows 100 % utilisation and 0.8 % SM activity on an H200."""
    spin_active_fraction: Ratio = 0.12
    """Spinning collectives on 8 RTX PRO 6000 draw 140 W of 600 W over an idle floor of 87 W: 0.10."""
    pcie_share: Ratio = 0.65
    """Of the theoretical link rate, one way; pinned copies reach 0.94 on PCIe 5 x16."""
    collectives_tdp_fraction: Ratio = 0.55
    """Collectives are suspected only where power is low enough to ask for a reason."""
    collectives_balance: Ratio = 0.5
    """The smaller direction is at least this share of the greater: a ring sends what it receives."""
    pcie_noise_bytes_per_second: Annotated[float, Meta(ge=0.0)] = 50e6
    """Idle links carry up to a few MB/s; a decoding tensor-parallel server hundreds."""
    host_bound_utilization: Ratio = 0.60
    """Healthy loaded servers show 0.94 and more, launch-bound ones 0.25, starved ones 0.45 (H200, SGLang 0.5.17)."""
    host_bound_activity: Ratio = 0.45
    """DRAM and SM activity both below it; healthy decode has 0.5 and more of either."""
    batch_kv_usage: Ratio = 0.50
    """Requests wait although the KV cache is at most this full."""
    batch_queue_per_running: Ratio = 1.0
    """At least this many wait for each one that runs."""
    partial_active_fraction: Ratio = 0.30
    """One GPU above this while another is below idle_active_fraction."""
    memory_bound_dram: Ratio = 0.6
    power_capped_share: Ratio = 0.98
    """Enforced limit below this share of the default."""
    throttled_share: Ratio = 0.5
    """Share of the window with a thermal or brake reason active."""
    link_loaded_utilization: Ratio = 0.5
    """Links retrain to a lower generation when idle: a lower one counts only above this utilisation."""
