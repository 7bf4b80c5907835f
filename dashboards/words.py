"""What the dashboards say about states and causes, beside the names that the exporter's page gives them."""

from __future__ import annotations

from wattline.analysis.snapshot import Cause, State

STATE_CODES: dict[State, int] = {
    state: code
    for code, state in enumerate(
        (
            State.IDLE,
            State.WORKING,
            State.SATURATED,
            # Nobody knows, so nobody may say that all is well; but what is known to be wrong matters more.
            State.UNKNOWN,
            State.LOW_POWER,
            State.IDLE_WHILE_BUSY,
            State.STALLED,
        )
    )
}
"""A number for each state, rising with how much it matters: the greatest of several is the one to look at."""

WASTE_STATES = (State.IDLE_WHILE_BUSY, State.STALLED)
"""Energy spent in these states bought nothing: work was held, and the GPUs did not work on it."""

EVIDENCE: dict[Cause, str] = {
    Cause.NOT_FED: "Utilisation near 0 although requests are held: the GPUs wait for the host.",
    Cause.SPINNING: "Utilisation near 100 % with SM activity or power near idle: kernels wait, they do not compute.",
    Cause.COLLECTIVES_OVER_PCIE: "No peer-to-peer path, as much PCIe traffic out as in: GPUs talk through the host.",
    Cause.PCIE_BANDWIDTH: "PCIe traffic close to what the link carries one way.",
    Cause.HOST_BOUND: "Utilisation well below 100 % with requests held, little SM and DRAM activity: the CPU is late.",
    Cause.BATCH_LIMITED: "Requests queue while the KV cache has room: a server flag keeps the batch small.",
    Cause.PARTIAL_IDLE: "Some GPUs draw idle power while others work: see the table of GPUs.",
    Cause.MEMORY_BOUND: "DRAM activity high, tensor activity low: normal for decoding, not a fault.",
    Cause.POWER_CAPPED: "The enforced limit is below the board's default: see the limits of each GPU.",
    Cause.THROTTLED: "Clocks are held back by heat or by the power brake: see the clocks event reasons.",
    Cause.LINK_DEGRADED: "The PCIe link runs below its own maximum under load: see the dashboard of each GPU.",
}
"""What speaks for a cause, and where to see it."""
