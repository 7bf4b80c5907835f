"""The past of GPUs and engines from a Prometheus that has watched them, judged as if Wattline had been there."""
