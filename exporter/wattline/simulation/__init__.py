"""Eight simulated GPUs and a simulated inference server that live through the stories this exporter was made for.

What the exporter reads of it is of the same shapes, units and bad habits as what real ones give; nothing in the
exporter knows that it looks at a simulation.
"""
