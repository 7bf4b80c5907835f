"""Reading GPUs: one contract (:mod:`exporter.gpus.source`), real hardware behind it (:mod:`exporter.gpus.nvml`)."""
