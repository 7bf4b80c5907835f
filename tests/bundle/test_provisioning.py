"""Prometheus' and Grafana's files, by their own programs where these can be had."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
GRAFANA = ROOT / "dashboards" / "provisioning"
SOURCES = yaml.safe_load((GRAFANA / "datasources/prometheus.yml").read_text())
PROVIDERS = yaml.safe_load((GRAFANA / "dashboards/wattline.yml").read_text())
PROMETHEUS = yaml.safe_load((ROOT / "deploy/prometheus/prometheus.yml").read_text())
COMPOSE = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]


@pytest.mark.servers
@pytest.mark.parametrize("suite", ["trixie", "sid"])
def test_prometheus_takes_its_configuration_with_all_rules(suite: str, tmp_path: Path) -> None:
    """Laid out as the containers see it."""
    etc = tmp_path / "etc"
    shutil.copytree(ROOT / "deploy/prometheus", etc / "prometheus")
    (etc / "wattline").mkdir()
    (etc / "wattline/alerts").symlink_to(ROOT / "alerts")
    promtool = ROOT / ".servers" / suite / "usr/bin/promtool"
    told = subprocess.run(
        [promtool, "check", "config", etc / "prometheus/prometheus.yml"], check=False, capture_output=True, text=True
    )
    assert told.returncode == 0, told.stdout + told.stderr
    assert "2 rule files found" in told.stdout


def test_prometheus_scrapes_the_exporter_under_the_name_that_alerts_and_dashboards_expect() -> None:
    jobs = {job["job_name"]: job for job in PROMETHEUS["scrape_configs"]}
    assert jobs["wattline"]["honor_labels"] is True, "a label of a target must not rename the exporter's"
    assert jobs["wattline"]["static_configs"] == [{"targets": ["exporter:10087"]}]
    assert PROMETHEUS["alerting"]["alertmanagers"][0]["static_configs"][0]["targets"] == ["alertmanager:9093"]
    assert set(jobs) == {"wattline", "engines", "prometheus", "alertmanager"}


def test_rates_have_four_scrapes() -> None:
    scrape = PROMETHEUS["global"]["scrape_interval"]
    assert SOURCES["datasources"][0]["jsonData"]["timeInterval"] == scrape == "15s"
    windows = re.findall(r"\[(\d+)([smhd])\]", "".join(p.read_text() for p in (ROOT / "alerts").glob("*.rules.yml")))
    assert windows
    assert min(int(number) * {"s": 1, "m": 60, "h": 3600, "d": 86400}[unit] for number, unit in windows) >= 60


def test_the_data_source_has_a_uid_that_never_changes_and_replaces_an_older_one() -> None:
    (source,) = SOURCES["datasources"]
    assert source["uid"] == "wattline-prometheus"
    assert source["url"] == "http://prometheus:9090"
    assert source["isDefault"] is True
    assert SOURCES["deleteDatasources"] == [{"name": source["name"], "orgId": source["orgId"]}]


def test_dashboards_are_where_grafana_looks() -> None:
    (provider,) = PROVIDERS["providers"]
    mounted = {m["target"]: m["source"] for m in COMPOSE["grafana"]["volumes"] if isinstance(m, dict)}
    # Grafana's entry point copies them there, with the address of the runbooks.
    assert provider["options"]["path"] in COMPOSE["grafana"]["tmpfs"]
    folder = ROOT / mounted[provider["options"]["path"] + "-source"]
    assert {path.name for path in folder.rglob("*.json")} == {"fleet.json", "deployment.json", "gpu.json"}
    home = COMPOSE["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
    assert home == provider["options"]["path"] + "/fleet.json"


def test_alertmanager_writes_to_the_log_that_runs_beside_it() -> None:
    alertmanager = yaml.safe_load((ROOT / "alerts/alertmanager.yml").read_text())
    urls = {hook["url"] for each in alertmanager["receivers"] for hook in each.get("webhook_configs") or ()}
    assert urls
    assert {re.match(r"http://([\w-]+):(\d+)/", url).groups() for url in urls} == {("alert-log", "9099")}  # type: ignore[union-attr]
    assert COMPOSE["alert-log"]["command"] == [":9099"]


def test_secrets_are_read_where_they_are_mounted() -> None:
    named = set()
    for example in (ROOT / "alerts/examples").glob("*.yml"):
        named |= set(re.findall(r"_file: (\S+)", example.read_text()))
    assert named
    targets = {m["target"] for m in COMPOSE["alertmanager"]["volumes"] if isinstance(m, dict)}
    assert {str(Path(path).parent) for path in named} <= targets


def write_password(file: Path, chosen: str = "") -> str:
    told = subprocess.run(
        [sys.executable, ROOT / "dashboards/provisioning/grafana_password.py", file],
        check=True,
        capture_output=True,
        text=True,
        env={"GRAFANA_PASSWORD": chosen},
    )
    return told.stdout


def test_a_password_is_made_up_once_and_told(tmp_path: Path) -> None:
    file = tmp_path / "password"
    first = write_password(file)
    made_up = file.read_text()
    assert len(made_up) >= 16
    assert made_up in first
    assert write_password(file) == first
    assert file.read_text() == made_up
    other = tmp_path / "other"
    write_password(other)
    assert other.read_text() != made_up


def test_a_password_of_the_environment_wins_and_is_not_told(tmp_path: Path) -> None:
    file = tmp_path / "password"
    write_password(file)
    assert "chosen" not in write_password(file, "chosen")
    assert file.read_text() == "chosen"
