"""The bundle as Docker Compose reads it."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

if TYPE_CHECKING:
    from collections.abc import Mapping

ROOT = Path(__file__).parents[2]
COMPOSE = ROOT / "docker-compose.yml"
HOST = ROOT / "docker-compose.host.yml"
EVERYBODY = {"alert-log", "alertmanager", "grafana", "grafana-password", "prometheus"}
ONE_SHOT = {"grafana-password"}

pytestmark = pytest.mark.servers


def environment(variables: Mapping[str, str]) -> dict[str, str]:
    """An environment in which nobody has set anything of ours."""
    kept = {name: value for name, value in os.environ.items() if name in {"PATH", "HOME"}}
    return kept | dict(variables)


def config(
    program: str, *arguments: str | Path, cwd: Path = ROOT, variables: Mapping[str, str] | None = None
) -> dict[str, Any]:
    told = subprocess.run(
        [program, *arguments, "config", "--format", "json"],
        check=False,
        capture_output=True,
        text=True,
        cwd=cwd,
        env=environment(variables or {}),
    )
    assert told.returncode == 0, told.stderr
    assert told.stderr == "", "no variable is left without a value"
    read: dict[str, Any] = json.loads(told.stdout)
    return read


@pytest.fixture(scope="module")
def both(docker_compose: str) -> dict[str, Any]:
    return config(docker_compose, "--profile", "gpu", "--profile", "demo")


def services(bundle: dict[str, Any]) -> dict[str, dict[str, Any]]:
    listed: dict[str, dict[str, Any]] = bundle["services"]
    return listed


@pytest.mark.parametrize(
    ("arguments", "exporter"),
    [((), "exporter"), (("--profile", "gpu"), "exporter"), (("--profile", "demo"), "demo")],
    ids=["no profile", "gpu", "demo"],
)
def test_one_command_brings_an_exporter_and_everything_around_it(
    docker_compose: str, arguments: tuple[str, ...], exporter: str
) -> None:
    found = config(docker_compose, *arguments)
    assert set(found["services"]) == EVERYBODY | {exporter}
    # Prometheus finds either under one name.
    assert "exporter" in found["services"][exporter]["networks"]["default"]["aliases"]


def test_the_demo_runs_at_the_speed_of_the_rules(both: dict[str, Any]) -> None:
    """Faster, its state seconds would outrun Prometheus' own, and a page would tell of 240% of the last two minutes."""
    assert services(both)["demo"]["command"][0] == "demo"
    assert not [flag for flag in services(both)["demo"]["command"] if flag.startswith("--speed")]
    assert "DEMO_SPEED" not in used_variables()


def rules_of(bundle: dict[str, Any], folder: Path) -> str:
    """The alert rules as Prometheus finds them: its entry point is run as it stands, but for the paths."""
    prometheus = services(bundle)["prometheus"]
    shell, flags, script, name = prometheus["entrypoint"]
    script = script.replace("$$", "$").replace("/etc/wattline/alerts-source", str(ROOT / "alerts"))
    script = script.replace("/etc/wattline/alerts", str(folder)).replace("exec prometheus", "echo prometheus")
    environment = {"PATH": "/usr/bin:/bin", **prometheus["environment"]}
    done = subprocess.run(
        [shell, flags, script, name, "--a b"], check=True, text=True, capture_output=True, env=environment
    )
    assert done.stdout == "prometheus --a b\n", "it is started with its flags"
    return "".join(path.read_text() for path in sorted(folder.glob("*.rules.yml")))


def test_the_links_of_dashboards_lead_where_people_reach_the_exporter(docker_compose: str, tmp_path: Path) -> None:
    grafana = services(config(docker_compose, variables={"WATTLINE_URL": "https://gpu.example"}))["grafana"]
    shell, flags, script, name = grafana["entrypoint"]
    script = script.replace("$$", "$").replace("/etc/wattline/dashboards-source", str(ROOT / "dashboards"))
    script = script.replace("/etc/wattline/dashboards", str(tmp_path)).replace("exec /run.sh", "echo started")
    environment = {"PATH": "/usr/bin:/bin", **grafana["environment"]}
    done = subprocess.run([shell, flags, script, name], check=True, text=True, capture_output=True, env=environment)
    assert done.stdout.strip() == "started"
    for path in (ROOT / "dashboards").glob("*.json"):
        text = path.read_text()
        assert (tmp_path / path.name).read_text() == text.replace("http://localhost:10087", "https://gpu.example")


def test_the_links_of_messages_lead_where_people_reach_the_servers(docker_compose: str, tmp_path: Path) -> None:
    rules = rules_of(config(docker_compose), tmp_path)
    assert rules == "".join(path.read_text() for path in sorted((ROOT / "alerts").glob("*.rules.yml")))
    rules = rules_of(config(docker_compose, variables={"WATTLINE_PORT": "1", "GRAFANA_PORT": "2"}), tmp_path)
    assert "http://localhost:1/runbooks/GpuLost" in rules
    assert "http://localhost:2/d/wattline-deployment?" in rules
    variables = {"WATTLINE_URL": "https://w.example", "GRAFANA_URL": "https://g.example"}
    rules = rules_of(config(docker_compose, variables=variables), tmp_path)
    assert "localhost" not in rules
    assert "https://w.example/runbooks/GpuLost" in rules
    assert "https://g.example/d/wattline-deployment?" in rules
    assert "https://w.example/incidents/{{ .Labels.incident }}" in rules


def test_only_the_exporter_on_gpus_asks_for_a_gpu_and_nobody_waits_for_it(both: dict[str, Any]) -> None:
    asking = {name for name, service in services(both).items() if service.get("deploy", {}).get("resources")}
    assert asking == {"exporter"}
    (device,) = services(both)["exporter"]["deploy"]["resources"]["reservations"]["devices"]
    assert device == {"driver": "nvidia", "count": -1, "capabilities": ["gpu", "utility"]}
    waited_for = {name for service in services(both).values() for name in service.get("depends_on") or ()}
    assert not waited_for & {"exporter", "demo"}


def brought(bundle: dict[str, Any], name: str) -> set[str]:
    """What is started before this service, even when it alone is asked for."""
    waited_for = set(services(bundle)[name].get("depends_on") or ())
    return waited_for.union(*(brought(bundle, each) for each in waited_for))


def test_the_exporter_is_started_last(both: dict[str, Any]) -> None:
    """Compose gives up at the first container that does not start: it must find all the others running."""
    assert brought(both, "exporter") == brought(both, "demo") == EVERYBODY


@pytest.mark.parametrize("image", ["wattline:local", "registry.example/wattline:1"])
def test_one_service_builds_the_image_or_fetches_it_and_the_others_bring_it_along(
    docker_compose: str, image: str
) -> None:
    """Of two services that export one tag at the same time, the second fails: the image already exists."""
    bundle = config(docker_compose, "--profile", "gpu", "--profile", "demo", variables={"WATTLINE_IMAGE": image})
    assert {name for name, service in services(bundle).items() if "build" in service} == {"grafana-password"}
    ours = {name for name, service in services(bundle).items() if service["image"] == image}
    assert ours == {"alert-log", "demo", "exporter", "grafana-password"}
    for name in ours - {"grafana-password"}:
        # Nor do they look for it in a registry, where a local one is not.
        assert services(bundle)[name]["pull_policy"] == "never", name
        assert "grafana-password" in brought(bundle, name), name
    # It builds what it cannot pull.
    assert services(bundle)["grafana-password"].get("pull_policy", "missing") == "missing"
    assert "profiles" not in services(bundle)["grafana-password"], "it is there in every profile"


def test_every_image_is_pinned(both: dict[str, Any]) -> None:
    for name, service in services(both).items():
        if service["image"] == "wattline:local":
            continue
        assert re.fullmatch(r"docker\.io/[\w/]+:v?\d+\.\d+\.\d+", service["image"]), name
    assert re.search(r"prometheus:v3\.", services(both)["prometheus"]["image"])


def test_no_container_can_do_more_than_it_must(both: dict[str, Any]) -> None:
    for name, service in services(both).items():
        assert service["read_only"] is True, name
        assert service["cap_drop"] == ["ALL"], name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        assert not {"privileged", "cap_add", "devices", "pid", "ipc", "user"} & set(service), name
        assert service["pids_limit"] > 0, name
        assert int(service["mem_limit"]) >= 64 * 2**20, name


def test_every_service_comes_back_and_fills_no_disk_with_logs(both: dict[str, Any]) -> None:
    for name, service in services(both).items():
        assert service["restart"] == ("no" if name in ONE_SHOT else "unless-stopped"), name
        assert service["logging"] == {"driver": "json-file", "options": {"max-size": "10m", "max-file": "3"}}, name
        assert service["stop_grace_period"], name


def test_every_service_that_stays_has_a_health_check(both: dict[str, Any]) -> None:
    image = (ROOT / "Dockerfile").read_text()
    for name, service in services(both).items():
        if name in ONE_SHOT:
            assert service["healthcheck"] == {"disable": True}
        elif name in {"exporter", "demo"}:
            assert "HEALTHCHECK" in image
            assert "healthcheck" not in service
        else:
            assert service["healthcheck"]["test"][0] == "CMD", "no shell is needed"


def test_ports_are_on_loopback_and_each_can_be_changed(docker_compose: str, both: dict[str, Any]) -> None:
    ports = {name: service["ports"] for name, service in services(both).items() if service.get("ports")}
    assert {port["host_ip"] for each in ports.values() for port in each} == {"127.0.0.1"}
    assert {name: [port["published"] for port in each] for name, each in ports.items()} == {
        "exporter": ["10087"],
        "demo": ["10087"],
        "prometheus": ["9090"],
        "alertmanager": ["9093"],
        "grafana": ["3000"],
    }
    changed = config(
        docker_compose,
        "--profile",
        "demo",
        variables={
            "WATTLINE_PORT": "1",
            "PROMETHEUS_PORT": "2",
            "ALERTMANAGER_PORT": "3",
            "GRAFANA_PORT": "4",
            "BIND_ADDRESS": "127.0.0.2",
        },
    )
    published = [(p["host_ip"], p["published"]) for s in services(changed).values() for p in s.get("ports") or ()]
    assert sorted(published) == [("127.0.0.2", str(port)) for port in range(1, 5)]


def test_what_is_mounted_is_there_and_is_of_the_right_kind(both: dict[str, Any]) -> None:
    declared = yaml.safe_load(COMPOSE.read_text())["services"]
    for name, service in services(both).items():
        for mount in service.get("volumes") or ():
            if mount["type"] != "bind":
                continue
            source = Path(mount["source"])
            assert source.exists(), (name, source)
            assert source.is_dir() == (Path(mount["target"]).suffix == ""), "a file is mounted on a file"
            assert mount["read_only"] is True, (name, source)
    for service in declared.values():
        for mount in service.get("volumes") or ():
            if isinstance(mount, dict) and mount["type"] == "bind":
                assert mount["bind"] == {"create_host_path": False}, "a missing file never becomes a directory"


def test_others_may_read_what_is_mounted(both: dict[str, Any]) -> None:
    """The containers run as users of their own. A secret that somebody has put down is for one of them alone."""
    secrets = ROOT / "deploy/compose/secrets"
    sources = {
        Path(mount["source"])
        for service in services(both).values()
        for mount in service.get("volumes") or ()
        if mount["type"] == "bind"
    }
    for source in sources:
        for path in (source, *source.rglob("*")):
            if "__pycache__" not in path.parts and (path.parent != secrets or path.name == "README.md"):
                assert path.stat().st_mode & 0o004, path


def test_data_lives_in_named_volumes(both: dict[str, Any]) -> None:
    used = {
        mount["source"]
        for service in services(both).values()
        for mount in service.get("volumes") or ()
        if mount["type"] == "volume"
    }
    assert used == set(both["volumes"])
    assert used == {"wattline", "demo-targets", "prometheus", "alertmanager", "grafana", "grafana-password"}


def test_it_works_from_another_folder(docker_compose: str, tmp_path: Path) -> None:
    there = config(docker_compose, "--file", COMPOSE, "--profile", "demo", cwd=tmp_path)
    assert there == config(docker_compose, "--profile", "demo")


def test_a_set_password_reaches_only_the_service_that_writes_it_down(docker_compose: str) -> None:
    bundle = config(docker_compose, "--profile", "demo", variables={"GRAFANA_PASSWORD": "s3cret"})
    holders = {name for name, service in services(bundle).items() if "s3cret" in json.dumps(service)}
    assert holders == {"grafana-password"}
    grafana = services(bundle)["grafana"]
    assert grafana["environment"]["GF_SECURITY_ADMIN_PASSWORD__FILE"] == "/run/wattline/grafana_password"
    assert grafana["depends_on"]["grafana-password"]["condition"] == "service_completed_successfully"


def test_the_engine_on_the_host_is_reached_by_its_name(both: dict[str, Any]) -> None:
    assert services(both)["exporter"]["extra_hosts"] == ["host.docker.internal=host-gateway"]
    watched = yaml.safe_load((ROOT / "deploy/compose/wattline.yml").read_text())
    assert watched["deployments"][0]["engines"][0]["url"] == "http://host.docker.internal:30000/metrics"


def test_in_the_network_of_the_host_there_are_no_ports_and_prometheus_looks_there(docker_compose: str) -> None:
    bundle = config(docker_compose, "--file", COMPOSE, "--file", HOST, "--profile", "gpu")
    exporter = services(bundle)["exporter"]
    assert exporter["network_mode"] == "host"
    assert not exporter.get("ports")
    assert not exporter.get("networks")
    assert exporter["command"] == ["serve", "--config.file=/etc/wattline/wattline.host.yml"]
    assert "exporter=host-gateway" in services(bundle)["prometheus"]["extra_hosts"]


def used_variables() -> set[str]:
    return set(re.findall(r"\$\{(\w+)", COMPOSE.read_text() + HOST.read_text()))


def offered() -> dict[str, str]:
    """What the example offers, with the values that stand there."""
    return dict(re.findall(r"^#?([A-Z_]+)=(.*)$", (ROOT / ".env.example").read_text(), re.MULTILINE))


def test_the_example_names_every_variable_and_no_other() -> None:
    assert set(offered()) == used_variables()


def test_the_example_shows_the_defaults(docker_compose: str) -> None:
    shown = {name: value for name, value in offered().items() if value}
    assert config(docker_compose, "--profile", "gpu", variables=shown) == config(docker_compose, "--profile", "gpu")


def test_exporters_configuration_is_right() -> None:
    from wattline.config import load

    for name, host in (("wattline.yml", "host.docker.internal"), ("wattline.host.yml", "127.0.0.1")):
        read = load(ROOT / "deploy" / "compose" / name)
        assert read.state_file == "/var/lib/wattline/state.json"
        engines = read.deployments[0].engines
        assert not isinstance(engines, str)
        assert host in engines[0].url
