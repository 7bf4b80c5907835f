"""Ctrl-C as an end as good as any."""

from __future__ import annotations

import asyncio
import signal
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def until_interrupted() -> Iterator[None]:
    """Within it, SIGINT and SIGTERM end the block and nothing else: what comes after it goes on."""
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    interrupted = False

    def interrupt() -> None:
        nonlocal interrupted
        if task is not None and not interrupted:
            interrupted = True
            task.cancel()

    # Outside the main thread no signal arrives, and none can be asked for.
    with suppress(NotImplementedError, ValueError, RuntimeError):
        for number in SIGNALS:
            loop.add_signal_handler(number, interrupt)
    try:
        yield
    except asyncio.CancelledError:
        if not interrupted:
            raise
        if task is not None:
            task.uncancel()
    finally:
        with suppress(NotImplementedError, ValueError, RuntimeError):
            for number in SIGNALS:
                loop.remove_signal_handler(number)
