"""Wattline: do your GPUs earn their watts?"""

__version__ = "0.1.0"
