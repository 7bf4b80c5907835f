"""Every number that judging compares with, its default and the evidence behind it.

This is the one place: the configuration fills this structure, the documentation and the schema are written from it.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta


def says(text: str) -> Meta:
    """What a threshold means, with its evidence: a row of docs/configuration.md, and what an editor shows."""
    return Meta(description=text)


Ratio = Annotated[float, Meta(ge=0.0, le=2.0)]
Requests = Annotated[float, Meta(gt=0.0)]
Positive = Annotated[float, Meta(ge=0.0)]


class Thresholds(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Thresholds of the states and causes. All ratios are shares of one; requests are counts."""

    # States.
    busy_requests: Annotated[
        Requests,
        says("`idle_while_busy` needs so many requests held throughout the window: one does not make a big rig busy"),
    ] = 4.0
    idle_active_fraction: Annotated[
        Ratio,
        says(
            "`idle_while_busy` when the busiest GPU is below it; 0 of 838 healthy servers are with a bare idle floor, "
            "1 with the most pessimistic one"
        ),
    ] = 0.10
    idle_tdp_fraction: Annotated[
        Ratio, says("or when the busiest GPU is below this share of its limit; the lowest of the 838 is at 0.27")
    ] = 0.20
    stalled_active_fraction: Annotated[
        Ratio, says("`stalled` only below it: above, the GPUs compute something, and a missing token is no stall")
    ] = 0.35
    long_stall_seconds: Annotated[
        Positive,
        says(
            "`stalled` at any power when requests are held and no token comes for so long: no prompt takes five "
            "minutes a chunk"
        ),
    ] = 300.0
    unfed_utilization: Annotated[
        Ratio,
        says(
            "`idle_while_busy` when the busiest GPU is below this utilisation and the idle floor is only assumed: "
            "nothing runs there. An L4 draws half of its limit with a loaded model"
        ),
    ] = 0.02
    unfed_tdp_fraction: Annotated[
        Ratio,
        says("above this share of the limit utilisation is not believed: no idle board draws so much (an L4: 0.50)"),
    ] = 0.60
    working_activity: Annotated[
        Ratio,
        says(
            "SM or memory activity from it on forbids `idle_while_busy`, whatever the power: the GPU works. A spinning "
            "thread shows 0.01, a starved server 0.05, one that decodes 0.5 and more (H200, SGLang 0.5.17)"
        ),
    ] = 0.30
    loaded_requests: Annotated[
        Requests,
        says(
            "`low_power` needs so many requests held throughout the window: small batches draw little and are healthy"
        ),
    ] = 32.0
    low_tdp_fraction: Annotated[
        Ratio, says("`low_power` when a loaded deployment is below it; 3 of 350 healthy loaded text servers are")
    ] = 0.45
    saturated_tdp_fraction: Annotated[Ratio, says("`saturated` from it on")] = 0.95
    power_cap_share: Annotated[
        Ratio, says("or when the power cap holds the clocks down for this share of the window")
    ] = 0.5
    power_cap_tdp_fraction: Annotated[
        Ratio,
        says(
            "while the mean is at least this share of the limit: bursts at half the time touch the cap at a mean of "
            "0.70"
        ),
    ] = 0.75

    # Causes.
    not_fed_utilization: Annotated[Ratio, says("no GPU reaches this utilisation: none is fed")] = 0.10
    spin_utilization: Annotated[
        Ratio, says("utilisation from it on, with power or SM activity near nothing: kernels spin")
    ] = 0.95
    spin_sm_active: Annotated[
        Ratio,
        says(
            "SM activity near nothing; one spinning thread block shows 100 % utilisation and less than 0.01 SM "
            "activity on an H200"
        ),
    ] = 0.05
    spin_active_fraction: Annotated[
        Ratio,
        says(
            "power near nothing; collectives that spin on eight RTX PRO 6000 draw 140 W of 600 W over an idle floor of "
            "87 W, an active fraction of 0.10"
        ),
    ] = 0.12
    pcie_share: Annotated[
        Ratio, says("share of what the link carries one way; pinned copies reach 0.94 on PCIe 5 x16")
    ] = 0.65
    collectives_tdp_fraction: Annotated[
        Ratio, says("collectives are suspected only below it, where power is low enough to ask why")
    ] = 0.55
    collectives_balance: Annotated[
        Ratio, says("the smaller direction ÷ the greater: a ring sends what it receives")
    ] = 0.5
    pcie_noise_bytes_per_second: Annotated[
        Positive,
        says("traffic below it is noise: idle links carry a few MB/s, a decoding tensor-parallel server hundreds"),
    ] = 50e6
    host_bound_utilization: Annotated[
        Ratio,
        says(
            "utilisation below it with work held; healthy loaded servers show 0.94 and more, launch-bound ones 0.25, "
            "starved ones 0.45 (H200, SGLang 0.5.17)"
        ),
    ] = 0.60
    host_bound_activity: Annotated[
        Ratio, says("with DRAM and SM activity both below it; healthy decoding has 0.5 and more of either")
    ] = 0.45
    batch_kv_usage: Annotated[Ratio, says("requests wait although the KV cache is at most this full")] = 0.50
    batch_queue_per_running: Annotated[Ratio, says("at least this many requests wait for each that runs")] = 1.0
    partial_active_fraction: Annotated[
        Ratio, says("one GPU above it while another is below `idle_active_fraction`")
    ] = 0.30
    memory_bound_dram: Annotated[Ratio, says("DRAM activity from it on: normal decoding, not a fault")] = 0.6
    other_cap_share: Annotated[
        Ratio,
        says(
            "share of the readings with the power cap active, at a mean below `power_cap_tdp_fraction`; bursts that "
            "touch the limit show it in 0.45 of them (H200)"
        ),
    ] = 0.9
    power_capped_share: Annotated[Ratio, says("the enforced limit below this share of the default one")] = 0.98
    throttled_share: Annotated[Ratio, says("share of the window with a thermal or brake reason")] = 0.5
    clocks_held_share: Annotated[
        Ratio,
        says(
            "SM clock below this share of its maximum under load; an H200 that computes at its power limit, which is "
            "no fault, runs at 0.75"
        ),
    ] = 0.6
    clocks_held_utilization: Annotated[
        Ratio, says("clocks fall when idle: a low one counts only from this utilisation on")
    ] = 0.5
    link_loaded_utilization: Annotated[
        Ratio, says("links fall to a lower generation when idle: a lower one counts only from this utilisation on")
    ] = 0.5
