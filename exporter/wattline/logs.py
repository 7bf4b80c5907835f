"""Logs for machines: one line an event, logfmt or JSON, on standard error."""

from __future__ import annotations

import logging
import sys
import time
from datetime import UTC, datetime
from typing import Literal

import msgspec

LEVELS = ("debug", "info", "warning", "error")
FORMATS = ("logfmt", "json")
Format = Literal["logfmt", "json"]


REPEAT_AFTER = 3600.0
"""Seconds."""


class Repeated(logging.Filter):
    """Lets the trace of one fault pass once an hour: what fails at every scrape must not fill the disk."""

    def __init__(self) -> None:
        super().__init__()
        self._told: dict[tuple[object, ...], float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the event is to be told."""
        if not record.exc_info or record.exc_info[1] is None:
            return True
        trace = record.exc_info[2]
        while trace is not None and trace.tb_next is not None:
            trace = trace.tb_next
        # A place in the code, so that there is no end of neither lines nor memory.
        place = (trace.tb_frame.f_code.co_filename, trace.tb_lineno) if trace is not None else None
        fault = (record.name, type(record.exc_info[1]), place)
        now = time.monotonic()
        if now - self._told.get(fault, -REPEAT_AFTER) < REPEAT_AFTER:
            return False
        self._told[fault] = now
        return True


def _fields(record: logging.LogRecord) -> dict[str, str]:
    fields = {
        "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
        "level": record.levelname.lower(),
        "logger": record.name,
        "msg": record.getMessage(),
    }
    if record.exc_info and record.exc_info[1] is not None:
        fields["error"] = f"{type(record.exc_info[1]).__name__}: {record.exc_info[1]}"
        if trace := logging.Formatter().formatException(record.exc_info):
            fields["trace"] = trace
    return fields


class LogfmtFormatter(logging.Formatter):
    """``key=value`` pairs; a value with spaces, quotes or control characters is quoted and stays on its line."""

    def format(self, record: logging.LogRecord) -> str:
        """Format one event."""
        return " ".join(f"{key}={self._quoted(value)}" for key, value in _fields(record).items())

    @staticmethod
    def _quoted(value: str) -> str:
        if value and value.isprintable() and not set(value) & {" ", '"', "="}:
            return value
        return msgspec.json.encode(value).decode()


class JsonFormatter(logging.Formatter):
    """One JSON object an event."""

    def format(self, record: logging.LogRecord) -> str:
        """Format one event."""
        return msgspec.json.encode(_fields(record)).decode()


def setup(level: str = "info", form: str = "logfmt") -> None:
    """Log to standard error from now on.

    Args:
        level: one of :data:`LEVELS`.
        form: one of :data:`FORMATS`.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if form == "json" else LogfmtFormatter())
    handler.addFilter(Repeated())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    # Each request is somebody's scrape: a line for each would be the bulk of the log.
    logging.getLogger("aiohttp.access").setLevel(logging.WARNING)
    logging.getLogger("asyncio").setLevel(logging.WARNING)
