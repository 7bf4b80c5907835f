"""One host's GPUs and the engines of one configuration, read and judged."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from wattline.analysis.observer import Observer
from wattline.analysis.plan import DeploymentPlan, EnginePlan, GpuOverride, Plan
from wattline.analysis.snapshot import SourceView
from wattline.discovery.periodic import Discovery
from wattline.discovery.resolve import Discoverer
from wattline.engines.scrape import EngineScraper, open_session
from wattline.gpus.reader import GpuReader, Intervals
from wattline.readings import GpuGone, GpuIdentity
from wattline.state import KnownGpu, Memory, StateFile
from wattline.worker import Worker

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import aiohttp

    from wattline.analysis.snapshot import Snapshot
    from wattline.config import Config, Deployment, Engine
    from wattline.gpus.source import GpuSource
    from wattline.readings import GpuCondition, Reading

ACTIVITY_INTERVAL = 5.0
CONDITION_INTERVAL = 30.0
DISCOVER_INTERVAL = 30.0
SAVE_EVERY = 300.0
"""Seconds between two writes of the state file, if no GPU has come or gone."""
LOOK_EVERY = 20.0
"""Seconds between two looks whether somebody else has written it: ``wattline forget`` does."""
DISK_SECONDS = 0.5
"""A disk that takes longer is not waited for."""


def plan_of(config: Config, unplaced: Mapping[str, tuple[str, ...]] | None = None) -> Plan:
    """What the analysis must know of a configuration, and by deployment what runs on GPUs that are not known."""
    blind = unplaced or {}
    return Plan(
        deployments=tuple(replace(deployment_plan(d), unplaced=blind.get(d.name, ())) for d in config.deployments),
        window=config.window,
        grace=config.grace,
        sample_interval=config.sample_interval,
        activity_interval=max(ACTIVITY_INTERVAL, config.sample_interval),
        condition_interval=CONDITION_INTERVAL,
        engine_interval=config.engine_interval,
        thresholds=config.thresholds,
        overrides={u: GpuOverride(g.idle_power_watts, g.power_limit_watts) for u, g in config.gpus.items()},
    )


def deployment_plan(deployment: Deployment) -> DeploymentPlan:
    """What the analysis must know of a deployment."""
    return DeploymentPlan(
        name=deployment.name,
        engines=tuple(EnginePlan(e.name, e.url, e.count_tokens, e.kind) for e in _engines(deployment.engines)),
        gpus=None if deployment.gpus is None or isinstance(deployment.gpus, str) else deployment.gpus,
    )


def targets_of(config: Config) -> dict[str, Engine]:
    """Every engine to be scraped, by name."""
    return {e.name: e for d in config.deployments for e in _engines(d.engines)}


def _engines(engines: tuple[Engine, ...] | str) -> tuple[Engine, ...]:
    return () if isinstance(engines, str) else engines


class Session:
    """Everything that reads, and the observer that is fed: one host's GPUs and the engines of one configuration.

    Args:
        config: what to watch.
        source: the GPUs; ``None`` on a host that is to have none.
        clock: the clock of all readings, in seconds.
        speed: how many seconds of that clock pass in a real one.
        on_read: is told the name of a source and the seconds that one reading took.
        persist: whether to keep what was learned in the configured state file; it is always read.
        discoverer: finds out what ``auto`` in the configuration means.
    """

    def __init__(
        self,
        config: Config,
        source: GpuSource | None,
        *,
        clock: Callable[[], float] = time.monotonic,
        speed: float = 1.0,
        on_read: Callable[[str, float], None] | None = None,
        persist: bool = False,
        discoverer: Discoverer | None = None,
    ) -> None:
        self._configured = config
        self._discovery = Discovery(
            discoverer or Discoverer(),
            conditions=self._conditions,
            listed=self._listed,
            deliver=self._go_on,
            on_read=on_read,
        )
        self.config = self._discovery.known(config, {})
        """What is in force; ``auto`` has been found out."""
        self.clock = clock
        self.observer = Observer(plan_of(self.config, self._discovery.unplaced))
        self._source = source
        self._speed = speed
        self._on_read = on_read
        self._persist = persist
        self._state: StateFile | None = None
        self._disk = Worker("state file")
        self._saved_at = self._looked_at = clock()
        self._saved_gpus: frozenset[str] = frozenset()
        self._remembered: tuple[GpuIdentity, ...] = ()
        self._saving: asyncio.Task[None] | None = None
        self._one_save = asyncio.Lock()
        self._http: aiohttp.ClientSession | None = None
        self._reader: GpuReader | None = None
        self._scrapers: dict[str, EngineScraper] = {}
        self._scrape_interval = 0.0
        self._changing = asyncio.Lock()

    async def start(self) -> None:
        """Begin to read, from what an earlier run has learned."""
        await self._restore(self._configured)
        self._http = open_session()
        if self._source is not None:
            self._reader = GpuReader(
                self._source,
                self.take,
                intervals=self._intervals(),
                remembered=self._remembered,
                expected=self._configured.expected_gpus,
                clock=self.clock,
                on_read=self._on_read or (lambda *_: None),
            )
            await self._reader.start()
        await self.apply(self._configured)

    async def stop(self) -> None:
        """Stop reading; bounded even when a driver call or an engine hangs."""
        await self._discovery.stop()
        stops = [scraper.stop() for scraper in self._scrapers.values()]
        if self._reader is not None:
            stops.append(self._reader.stop())
        await asyncio.gather(*stops)
        if self._http is not None:
            await self._http.close()
        with suppress(TimeoutError):
            async with asyncio.timeout(DISK_SECONDS):
                await self._save()
        self._disk.retire()

    async def apply(self, config: Config) -> None:
        """Go on with another configuration; whatever stays the same keeps its past."""
        await self._restore(config)
        await self._go_on(self._discovery.begin(config))

    async def _go_on(self, config: Config) -> None:
        async with self._changing:
            # Whatever cannot be is found out before anything is changed.
            plan, wanted = plan_of(config, self._discovery.unplaced), targets_of(config)
            self.config = config
            self.observer.replan(plan)
            await self._start_scrapers(wanted)
            if self._reader is not None:
                # Not started anew: what hangs in the driver would keep it from being opened again.
                self._reader.pace(self._intervals(), config.expected_gpus)

    def _conditions(self) -> tuple[Mapping[str, GpuCondition], bool]:
        """The last condition of every GPU that is read, and whether none is missing."""
        now = self.clock()
        present = {uuid: gpu for uuid, gpu in self.observer.gpus.items() if not gpu.lost}
        known = {uuid: c for uuid, gpu in present.items() if (c := gpu.condition_now(now)) is not None}
        return known, bool(known) and len(known) == len(present)

    def _listed(self, config: Config) -> Mapping[str, tuple[str, ...]]:
        """The UUIDs behind the GPUs that a configuration lists, by deployment."""
        plans = plan_of(config).deployments
        return {plan.name: self.observer.members(plan)[0] for plan in plans if plan.gpus is not None}

    def _intervals(self) -> Intervals:
        return Intervals(
            sample=self.config.sample_interval / self._speed,
            activity=self.observer.plan.activity_interval / self._speed,
            condition=CONDITION_INTERVAL / self._speed,
            discover=DISCOVER_INTERVAL / self._speed,
        )

    async def _start_scrapers(self, wanted: Mapping[str, Engine]) -> None:
        """Begin to scrape what is configured now, and stop what is not or is reached another way."""
        assert self._http is not None  # noqa: S101 - start() comes first
        interval = self.config.engine_interval / self._speed
        same_beat, self._scrape_interval = self._scrape_interval == interval, interval
        for name, scraper in list(self._scrapers.items()):
            if wanted.get(name) != scraper.target or not same_beat:
                await self._scrapers.pop(name).stop()
        for name, target in wanted.items():
            if name not in self._scrapers:
                self._scrapers[name] = EngineScraper(
                    target,
                    session=self._http,
                    interval=interval,
                    deliver=self.take,
                    on_read=self._on_read,
                    clock=self.clock,
                )
                await self._scrapers[name].start()

    def take(self, reading: Reading) -> None:
        """Take in one reading."""
        self.observer.observe(reading)

    def sources(self, now: float) -> tuple[SourceView, ...]:
        """How reading goes, source by source."""
        views = [
            SourceView(
                name=health.source,
                up=health.up,
                age_seconds=health.age_seconds,
                detail=health.detail,
                errors=dict(health.errors),
                rejected=dict(health.rejected),
            )
            for health in (self._reader.health(now) if self._reader else ())
        ]
        views += self._discovery.source()
        for name, scraper in self._scrapers.items():
            track = self.observer.engines.get(name)
            if track is None:  # It is being stopped.
                continue
            good = track.good[-1].t if track.good else None
            last = track.last
            views.append(
                SourceView(
                    name=scraper.target.source,
                    up=last is not None and last.up and track.readable(now),
                    age_seconds=None if good is None else max(0.0, now - good),
                    detail="" if last is None or last.up else last.error or "",
                    errors=dict(scraper.errors),
                    rejected=dict(scraper.rejected),
                )
            )
        return tuple(views)

    def beat(self) -> float:
        """Real seconds from one verdict to the next."""
        return self.config.sample_interval / self._speed

    def judge(self) -> Snapshot:
        """Everything that is known and believed now."""
        now = self.clock()
        self._keep(now)
        for gone in self._gone(now):
            self.take(gone)
        self.observer.unix_offset = time.time() - now
        snapshot = self.observer.judge(now, self.sources(now))
        return snapshot if self._source is not None else replace(snapshot, watches_gpus=False)

    def _keep(self, now: float) -> None:
        """See to the state file when it is time for that."""
        known = frozenset(gpu.uuid for gpu in self._reader.known) if self._reader is not None else self._saved_gpus
        if self._one_save.locked():
            return
        if known != self._saved_gpus or now - self._saved_at > SAVE_EVERY:
            self._saving = asyncio.create_task(self._save())
        elif now - self._looked_at > LOOK_EVERY:
            self._saving = asyncio.create_task(self._save(only_news=True))

    def _gone(self, now: float) -> list[GpuGone]:
        """The GPUs that the reader does not read any more, each once."""
        if self._reader is None:
            return []
        up = {health.source: health.up for health in self._reader.health(now)}
        gpus = self.observer.gpus
        lost = [GpuGone(now, uuid) for uuid, gpu in gpus.items() if not gpu.lost and not up.get(uuid, True)]
        return lost + [GpuGone(now, uuid, forgotten=True) for uuid in gpus if uuid not in up]

    async def _restore(self, config: Config) -> None:
        """Begin from what the configured state file tells, if it is another one than before."""
        path = None if config.state_file is None else Path(config.state_file)
        if path == (self._state.path if self._state is not None else None):
            return
        self._disk.retire()
        self._disk, self._state = Worker("state file"), StateFile(path) if path is not None else None
        if self._state is None:
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(DISK_SECONDS):
                outcome = await self._disk.run(self._state.load)
            memory = outcome.value or Memory()
            for uuid, watts in memory.idle_power_watts.items():
                self.observer.restore_idle(uuid, watts)
            self._remembered = tuple(
                GpuIdentity(uuid, gpu.index, name=gpu.name, pci_bus_id=gpu.pci_bus_id)
                for uuid, gpu in memory.gpus.items()
                if uuid not in memory.forgotten
            )
            self._saved_gpus = frozenset(gpu.uuid for gpu in self._remembered)

    async def _save(self, *, only_news: bool = False) -> None:
        """Forget the GPUs that the file says were taken out, and keep what is known."""
        async with self._one_save:
            self._looked_at = self.clock()
            if not only_news:
                self._saved_at = self._looked_at
                self._saved_gpus = frozenset(gpu.uuid for gpu in self._reader.known) if self._reader else frozenset()
            if not self._persist or self._state is None or self._disk.busy:
                return
            news = (await self._disk.run(self._state.news)).value
            if only_news and news is None:
                return
            for uuid in news.forgotten if news is not None else ():
                if self._reader is not None:
                    self._reader.forget(uuid)
            await self._disk.run(partial(self._state.save, self._memory()))

    def _memory(self) -> Memory:
        known = self._reader.known if self._reader is not None else self._remembered
        return Memory(
            idle_power_watts=self.observer.learned_idle(),
            gpus={gpu.uuid: KnownGpu(index=gpu.index, name=gpu.name, pci_bus_id=gpu.pci_bus_id) for gpu in known},
        )
