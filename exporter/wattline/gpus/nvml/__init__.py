"""The GPUs of this host, read through NVIDIA's management library.

:mod:`~wattline.gpus.nvml.calls` makes the calls, :mod:`~wattline.gpus.nvml.questions` is the table of readings and the
calls that answer them, :mod:`~wattline.gpus.nvml.visit` decides what a failing call means. Facts and costs:
``docs/nvml.md``.
"""

from wattline.gpus.nvml.source import NvmlSource

__all__ = ["NvmlSource"]
