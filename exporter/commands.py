"""What each command does, from parsed options to an exit code."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from exporter.config import load

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Coroutine

    from exporter.config import Config


async def serve(options: argparse.Namespace) -> int:
    """Serve this host, or a recording."""
    values = vars(options)
    path = values["config.file"]
    config = load(path)
    if values["config.check"]:
        print(f"{path or 'the default configuration'}: right, {_summary(config)}")  # noqa: T201 - what it was asked for
        return 0
    from exporter.app import Exporter, Session
    from exporter.gpus.nvml import NvmlSource
    from exporter.publish.server import Publication

    publication = Publication()
    session = Session(config, NvmlSource(), on_read=publication.registry.observe_read)
    exporter = Exporter(
        session, publication, **_web(options), reload_config=(lambda: load(path)) if path is not None else None
    )
    await exporter.run()
    return 0


async def demo(options: argparse.Namespace) -> int:
    """Serve the simulated rig."""
    from msgspec.structs import replace

    from exporter.app import Exporter, Session
    from exporter.config import Deployment, Engine, parse
    from exporter.publish.server import Publication
    from exporter.simulation.demo import Demo
    from exporter.yamlfile import ConfigError

    try:
        rig = Demo(speed=options.speed, scenario=options.scenario, seed=options.seed)
    except ValueError as error:
        raise ConfigError("wattline demo", str(error)) from None
    url = await rig.start()
    try:
        publication = Publication()
        defaults = parse("", "defaults")
        deployment = Deployment(name="glm5", engines=(Engine(url=url, name="head"),))
        session = Session(
            replace(defaults, deployments=(deployment,)),
            rig.source,
            clock=rig.clock.now,
            speed=options.speed,
            on_read=publication.registry.observe_read,
        )
        await Exporter(session, publication, **_web(options), phase=rig.phase).run()
    finally:
        await rig.close()
    return 0


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


RUN: dict[str, Callable[[argparse.Namespace], Coroutine[None, None, int]]] = {"serve": serve, "demo": demo}
