"""What each command does, from parsed options to an exit code."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from exporter.config import load, parse

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Coroutine

    from exporter.config import Config
    from exporter.session import Session


async def serve(options: argparse.Namespace) -> int:
    """Serve this host, or a recording."""
    values = vars(options)
    path = values["config.file"]
    config = load(path)
    if values["config.check"]:
        print(f"{path or 'the default configuration'}: right, {_summary(config)}")  # noqa: T201 - what it was asked for
        return 0
    from exporter.app import Exporter, for_people
    from exporter.publish.server import Publication

    publication = Publication()
    if options.replay is not None:
        from exporter.recording.reader import read_recording
        from exporter.recording.session import ReplaySession
        from exporter.session import plan_of

        replayed = ReplaySession(
            read_recording(Path(options.replay)),
            speed=values["replay.speed"],
            plan=plan_of(config) if path is not None else None,
        )
        await Exporter(replayed, publication, **_web(options)).run()
        return 0
    session = _session(config, persist=True, on_read=publication.registry.observe_read)

    async def reload_config() -> None:
        await session.apply(load(path))

    exporter = Exporter(
        session,
        publication,
        **_web(options),
        configuration=lambda: for_people(session.config),
        reload_config=reload_config,
    )
    await exporter.run()
    return 0


async def demo(options: argparse.Namespace) -> int:
    """Serve the simulated rig."""
    from msgspec.structs import replace

    from exporter.app import Exporter, for_people
    from exporter.config import Deployment, Engine
    from exporter.publish.server import Publication
    from exporter.session import Session
    from exporter.simulation.demo import Demo
    from exporter.yamlfile import ConfigError

    try:
        rig = Demo(speed=options.speed, scenario=options.scenario, seed=options.seed)
    except ValueError as error:
        raise ConfigError("wattline demo", str(error)) from None
    url = await rig.start()
    try:
        publication = Publication()
        deployment = Deployment(name="glm5", engines=(Engine(url=url, name="head"),))
        config = replace(parse("", "defaults"), deployments=(deployment,))
        session = Session(
            config,
            rig.source,
            clock=rig.clock.now,
            speed=options.speed,
            on_read=publication.registry.observe_read,
        )
        configuration = for_people(config)
        exporter = Exporter(session, publication, **_web(options), phase=rig.phase, configuration=lambda: configuration)
        await exporter.run()
    finally:
        await rig.close()
    return 0


async def check(options: argparse.Namespace) -> int:
    """Watch this host or a recording, and answer."""
    from exporter.check.command import at_once, judged, run, shortened

    if options.replay is not None:
        from exporter.recording.reader import read_recording
        from exporter.recording.replay import replay
        from exporter.session import plan_of

        recording = read_recording(Path(options.replay))
        named = vars(options)["config.file"] is not None or options.engine or options.gpus
        plan = plan_of(_targets(options)) if named else recording.header.plan

        def cut_short() -> str:
            return f"the recording is not complete: {recording.cut_short}" if recording.cut_short else ""

        return await run(at_once(replay(recording, plan)), plan, as_json=options.json, note=cut_short)
    seconds = None if options.watch else options.seconds
    session = _session(shortened(_targets(options), options.seconds))
    await session.start()
    try:
        return await run(
            judged(session, seconds),
            session.observer.plan,
            seconds=seconds,
            live=options.watch,
            as_json=options.json,
        )
    finally:
        await session.stop()


async def record(options: argparse.Namespace) -> int:
    """Write the readings of this host to a file."""
    from exporter.recording.command import run

    session = _session(_targets(options))
    return await run(session, Path(options.file), seconds=options.seconds, anonymous=options.anonymous)


async def explain(options: argparse.Namespace) -> int:
    """Tell what a recording shows."""
    from exporter.explain.command import run

    return run(Path(options.file), plot=Path(options.plot) if options.plot else None)


def _session(config: Config, *, persist: bool = False, on_read: Callable[[str, float], None] | None = None) -> Session:
    from exporter.gpus.nvml import NvmlSource
    from exporter.session import Session

    source = NvmlSource(gpm=config.gpm) if config.nvml else None
    return Session(config, source, persist=persist, on_read=on_read)


def _targets(options: argparse.Namespace) -> Config:
    """The configuration, or what ``--engine`` and ``--gpus`` say in its place."""
    if not options.engine and not options.gpus:
        return load(vars(options)["config.file"])
    deployment: dict[str, Any] = {}
    if options.engine:
        deployment["engines"] = [{"url": url} for url in options.engine]
    if options.gpus:
        named = [gpu.strip() for gpu in options.gpus.split(",")]
        listed = [int(gpu) if gpu.isdigit() else gpu for gpu in named]
        deployment["gpus"] = options.gpus if options.gpus in ("all", "auto") else listed
    return parse(yaml.safe_dump({"deployments": [deployment]}), "--engine, --gpus")


def _web(options: argparse.Namespace) -> dict[str, Any]:
    values = vars(options)
    return {
        "listen": values["web.listen_address"],
        "telemetry_path": values["web.telemetry_path"],
        "web_config": values["web.config.file"],
        "max_requests": values["web.max_requests"],
        "enable_lifecycle": values["web.enable_lifecycle"],
    }


def _summary(config: Config) -> str:
    engines = sum(len(d.engines) for d in config.deployments if not isinstance(d.engines, str))
    return f"{len(config.deployments)} deployments with {engines} engines"


RUN: dict[str, Callable[[argparse.Namespace], Coroutine[None, None, int]]] = {
    "serve": serve,
    "demo": demo,
    "check": check,
    "record": record,
    "explain": explain,
}
