"""Reading GPUs: one contract (:mod:`wattline.gpus.source`), real hardware behind it (:mod:`wattline.gpus.nvml`)."""
