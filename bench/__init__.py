"""What it costs, and whether it is true: one command each, described in docs/benchmarks.md."""
