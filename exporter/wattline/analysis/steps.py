"""What to look at next: a step, and those that several states and causes share."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct


class Step(Struct, frozen=True, omit_defaults=True):
    """One thing to look at."""

    what: str
    command: Annotated[
        str | None, Meta(description="To run in a shell. PID stands for a process of the inference server.")
    ] = None


PROCESSES = Step(
    "Which processes are on the GPUs",
    "nvidia-smi --query-compute-apps=gpu_uuid,pid,process_name,used_memory --format=csv",
)
STACKS = Step("What the server's scheduler waits for", "py-spy dump --nonblocking --pid PID")
FLAGS = "ps -o args= -p PID"
"""The flags that the server was started with."""
