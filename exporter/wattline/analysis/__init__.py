"""Joining and judging: pure functions of readings with timestamps."""
