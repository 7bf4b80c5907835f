"""Words for NVML's numbers. Sources: ``nvml.h`` of CUDA 12.9 and 13.5, and NVML's change log."""

from __future__ import annotations

EVENT_REASONS = {
    # Literal bits: nvidia-ml-py names the last two only by the old "throttle" name, and its "all" leaves them out.
    0x001: "gpu_idle",
    0x002: "applications_clocks_setting",
    0x004: "sw_power_cap",
    0x008: "hw_slowdown",
    0x010: "sync_boost",
    0x020: "sw_thermal_slowdown",
    0x040: "hw_thermal_slowdown",
    0x080: "hw_power_brake_slowdown",
    0x100: "display_clock_setting",
    0x200: "board_limit",
    0x400: "reliability",
}

ARCHITECTURES = {
    2: "kepler",
    3: "maxwell",
    4: "pascal",
    5: "volta",
    6: "turing",
    7: "ampere",
    8: "ada",
    9: "hopper",
    10: "blackwell",
    13: "rubin",
}

VIRTUALIZATION = {0: "none", 1: "passthrough", 2: "vgpu", 3: "host_vgpu", 4: "host_vsga"}

VALUE_TYPES = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")
"""Member of nvmlValue_t by nvmlValueType_t."""

HINTS = {
    "library_not_found": "libnvidia-ml.so.1 was not found: install the NVIDIA driver, "
    "or give the container its 'utility' capability (NVIDIA_DRIVER_CAPABILITIES)",
    "driver_not_loaded": "the NVIDIA kernel driver is not loaded",
    "no_permission": "this user may not open the NVIDIA devices (/dev/nvidiactl, /dev/nvidia0, ...)",
    "lib_rm_version_mismatch": "the driver's library and its kernel module have different versions, as after an "
    "upgrade: reboot the host, or restart this container if the host was rebooted",
    "unknown": "NVML answers 'Unknown Error': in a container, the devices were probably taken away "
    "('systemctl daemon-reload' on the host does that) and the container must be restarted",
    "busy": "a call into the driver has not come back yet, so the library cannot be opened anew",
}
"""What an operator can do about an error of the library as a whole, by its kind."""

LOSSES = {
    "gpu_is_lost": "the GPU has fallen off the bus",
    "reset_required": "the GPU needs a reset",
    "gpu_not_found": "the GPU is not there any more",
}
"""Why a GPU cannot be read, by the kind of the error."""


def reason_names(mask: int) -> frozenset[str]:
    """Name the bits of a clocks event reasons mask; a bit that has no name yet is ``unknown_0x...``."""
    bits = (1 << position for position in range(mask.bit_length()))
    return frozenset(EVENT_REASONS.get(bit, f"unknown_{bit:#x}") for bit in bits if mask & bit)
