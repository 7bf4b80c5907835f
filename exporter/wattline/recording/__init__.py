"""Recordings: what was read, in a small file, and the same verdicts from it at any speed.

``layout`` says what a file looks like, ``writer`` and ``reader`` write and read it, ``anonymous`` takes names out of
it, ``replay`` lets it through the analysis again.
"""
