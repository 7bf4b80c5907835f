"""The exporter over the stand-in for NVIDIA's library and an engine on loopback, in time that does not wait.

Everything is real but the driver, the engine and the clock: reader, scrapers, observer, text of the metrics.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from bench.virtual_time import VirtualLoop, run
from tests.engines.servers import Request, Server, answer
from tests.hardening.process import Answer
from tests.nvml.standin import StandIn
from wattline.analysis.snapshot import DeploymentView, Snapshot
from wattline.config import parse
from wattline.gpus.nvml import NvmlSource
from wattline.publish.server import Publication
from wattline.session import Session

ENERGY_EVERY = 5.0
NOWHERE = Path("/nonexistent")
IDLE = "sglang:num_running_reqs 0\nsglang:num_queue_reqs 0\nsglang:weight_memory_usage_gb 1\n"


def busy(running: float = 64, queued: float = 0, tokens: float | None = None, **more: float) -> str:
    """The metrics of a recent SGLang that holds so much and has made so many tokens."""
    counters = "" if tokens is None else f'sglang:realtime_tokens_total{{mode="decode"}} {tokens}\n'
    lines = "".join(f"sglang:{name} {value}\n" for name, value in more.items())
    return (
        f"sglang:num_running_reqs {running}\nsglang:num_queue_reqs {queued}\nsglang:weight_memory_usage_gb 1\n"
        f"{counters}{lines}"
    )


class World:
    """What a test looks at and steers."""

    def __init__(self, loop: VirtualLoop, standin: StandIn) -> None:
        self.loop = loop
        self.standin = standin
        self.engine: str | bytes | Callable[[Request, asyncio.StreamWriter], Coroutine[Any, Any, bytes | None]] = IDLE
        """What the engine says: its metrics, its whole answer, or what makes it."""
        self.tokens_per_second = 0.0
        self.server = Server(self._handle)
        self.publication = Publication()
        self.session: Session
        self.snapshot: Snapshot
        self._began = loop.time()

    @property
    def now(self) -> float:
        """Seconds since the beginning."""
        return self.loop.time() - self._began

    async def _handle(self, request: Request, writer: asyncio.StreamWriter) -> bytes | None:
        said = self.engine
        if isinstance(said, str):
            return answer(said.replace("TOKENS", f"{self.now * self.tokens_per_second:.0f}").encode())
        return said if isinstance(said, bytes) else await said(request, writer)

    async def after(self, seconds: float) -> Answer:
        """Let so many seconds pass, with a verdict in each; give what a scrape then says."""
        for _ in range(round(seconds)):
            await asyncio.sleep(1)
            self.snapshot = self.session.judge()
            self.publication.publish(self.snapshot)
        return self.scrape()

    def scrape(self) -> Answer:
        """What a scrape says now."""
        body, content_type = self.publication.render("", compressed=False)
        return Answer(200, body, {"Content-Type": content_type})

    @property
    def deployment(self) -> DeploymentView:
        """The verdict on the only deployment."""
        (deployment,) = self.snapshot.deployments
        return deployment


def live(
    standin: StandIn,
    scenario: Callable[[World], Coroutine[Any, Any, None]],
    *,
    configuration: str = "deployments: [{name: d, engines: [{url: URL, name: e}]}]",
    inventory: Path = NOWHERE,
) -> None:
    """Run a scenario.

    Args:
        standin: the GPUs; without an energy counter unless it is given one.
        scenario: the test.
        configuration: YAML, with ``URL`` for the engine's.
        inventory: see :class:`NvmlSource`.
    """

    async def main(loop: VirtualLoop) -> None:
        world = World(loop, standin)
        async with world.server:
            world.session = Session(
                parse(configuration.replace("URL", f"'{world.server.url}'"), "a test"),
                NvmlSource(clock=loop.time, inventory=inventory, energy_every=ENERGY_EVERY),
                clock=loop.time,
                on_read=world.publication.registry.observe_read,
            )
            await world.session.start()
            # Between the beats of readings and verdicts, so that each verdict has seen the reading of its second.
            await asyncio.sleep(0.5)
            try:
                await scenario(world)
            finally:
                await world.session.stop()

    run(main, shown_in=standin.control.with_name("clock"))
