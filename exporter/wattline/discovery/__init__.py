"""Who serves what: from the processes that NVML sees on a GPU to the inference server behind them, and its metrics.

``processes`` alone reads ``/proc``; ``commands`` is the table of known servers; ``servers`` puts the two together;
``resolve`` turns a configuration that says ``auto`` into one that does not; ``periodic`` does so in its rhythm.
"""
