from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.alerts.rules import alerts
from tests.alerts.servers import (
    ALERTS,
    SUITES,
    alertmanager,
    faster,
    output,
    program,
    receiving,
    wait_for,
)

CONFIGS = ("alertmanager.yml", "examples/slack.yml", "examples/pagerduty.yml", "examples/email.yml")
SPEED = 20

pytestmark = pytest.mark.servers


@pytest.mark.parametrize("suite", SUITES)
@pytest.mark.parametrize("config", CONFIGS)
def test_amtool_accepts_the_configuration_and_finds_the_templates(config: str, suite: str) -> None:
    said = output(program("amtool", suite), "check-config", ALERTS / config)
    assert " - 1 templates\n" in said
    assert "SUCCESS" in said
    pattern = yaml.safe_load((ALERTS / config).read_text())["templates"][0]
    assert list((ALERTS / config).parent.glob(pattern)) == [(ALERTS / config).parent / pattern.replace("*", "wattline")]


def test_a_configuration_with_a_variable_of_the_environment_is_refused(tmp_path: Path) -> None:
    """Alertmanager does not expand them: it would start with a literal ${...} or not at all."""
    text = (ALERTS / "alertmanager.yml").read_text().replace("http://alert-log:9099/pages", "${WEBHOOK_URL}")
    (tmp_path / "alertmanager.yml").write_text(text)
    output(program("amtool", "trixie"), "check-config", tmp_path / "alertmanager.yml", ok=False)
    for config in CONFIGS:
        assert "${" not in (ALERTS / config).read_text()


def strings(node: Any) -> list[str]:
    if isinstance(node, dict):
        return [text for key, value in node.items() for text in (str(key), *strings(value))]
    if isinstance(node, list):
        return [text for value in node for text in strings(value)]
    return [str(node)]


@pytest.mark.parametrize("config", CONFIGS)
def test_no_secret_stands_in_a_configuration(config: str) -> None:
    """Every receiver that needs one names a file."""
    keys = strings(yaml.safe_load((ALERTS / config).read_text())["receivers"])
    for key in ("api_url", "routing_key", "service_key", "auth_password", "password", "credentials", "bot_token"):
        assert key not in keys
    files = [text for text in keys if text.startswith("/etc/")]
    assert all(text.startswith("/etc/alertmanager/secrets/") for text in files)
    assert bool(files) is config.startswith("examples/")


@pytest.mark.parametrize("config", CONFIGS)
def test_every_configuration_has_the_same_routes_and_receivers(config: str) -> None:
    bundle, example = (yaml.safe_load((ALERTS / name).read_text()) for name in ("alertmanager.yml", config))
    assert example["route"] == bundle["route"]
    assert example["inhibit_rules"] == bundle["inhibit_rules"]
    assert [r["name"] for r in example["receivers"]] == [r["name"] for r in bundle["receivers"]]


@pytest.mark.parametrize("suite", SUITES)
@pytest.mark.parametrize("config", CONFIGS)
def test_every_alert_goes_where_its_severity_says(config: str, suite: str) -> None:
    where = {"critical": "pages", "warning": "warnings", "info": "info"}
    told: dict[str, set[str]] = {}
    for name, rule in alerts().items():
        severity = rule["labels"]["severity"]
        told.setdefault("watchdog" if name == "Watchdog" else where[severity], set()).add(f"{name} {severity}")
    assert set(told) == {"pages", "warnings", "info", "watchdog"}
    for receiver, names in told.items():
        for name, severity in (text.split() for text in names):
            output(
                program("amtool", suite),
                *("config", "routes", "test", f"--config.file={ALERTS / config}", f"--verify.receivers={receiver}"),
                *(f"alertname={name}", f"severity={severity}", "deployment=glm5"),
            )


def test_a_wrong_receiver_is_noticed_by_amtool() -> None:
    output(
        program("amtool", "trixie"),
        *("config", "routes", "test", f"--config.file={ALERTS / 'alertmanager.yml'}", "--verify.receivers=info"),
        *("alertname=GpuLost", "severity=critical"),
        ok=False,
    )


def alert(name: str, **labels: str) -> dict[str, Any]:
    severity = alerts()[name]["labels"]["severity"]
    return {
        "labels": {"alertname": name, "severity": severity, **labels},
        "annotations": {"summary": f"Summary of {name}.", "description": f"Description of {name}."},
        # Far ahead: nobody resolves it but the test.
        "endsAt": "2100-01-01T00:00:00Z",
    }


def resolved(what: dict[str, Any]) -> dict[str, Any]:
    return {**what, "startsAt": "2020-01-01T00:00:00Z", "endsAt": "2020-01-01T00:10:00Z"}


@pytest.mark.parametrize("suite", SUITES)
def test_one_incident_is_one_message_and_what_it_explains_is_held_back(suite: str, tmp_path: Path) -> None:
    stalled = alert("InferenceStalled", deployment="glm5")
    exporter_down = alert("WattlineExporterDown", instance="down:1", job="wattline")
    with receiving() as receiver:
        config = faster((ALERTS / "alertmanager.yml").read_text(), SPEED).replace("http://alert-log:9099", receiver.url)
        with alertmanager(tmp_path, config, suite) as manager:
            # Sources of inhibition first: both kinds arrive together, and a page is not delayed by it.
            manager.post(
                stalled,
                alert("InferenceEngineDown", deployment="glm5", engine="e0", instance="a:1"),
                # A critical silences warnings and info of its deployment.
                alert("PowerFractionLow", deployment="glm5"),
                alert("EnergyWasted", deployment="glm5"),
                # Not those of another, nor those of no deployment at all.
                alert("PowerFractionLow", deployment="other"),
                alert("GpuXidErrors", instance="a:1", uuid="GPU-0", gpu="0"),
                # A critical one without a deployment silences nobody.
                alert("GpuLost", instance="b:1", uuid="GPU-9", gpu="9"),
                # An exporter that is down silences the rest of its node, pages included.
                exporter_down,
                alert("GpuLost", instance="down:1", uuid="GPU-1", gpu="1", deployment="third"),
                alert("PcieLinkDegraded", instance="down:1", uuid="GPU-1", gpu="1", deployment="third"),
                alert("WattlineConfigReloadFailed", instance="down:1"),
                alert("WattlineConfigReloadFailed", instance="up:1"),
                alert("Watchdog"),
            )
            wait_for("the warnings", lambda: len(receiver.told("firing", severity="warning")) >= 3)
            wait_for("the sign of life", lambda: receiver.told("firing", alertname="Watchdog"))
            told = {
                (a["labels"]["alertname"], a["labels"].get("deployment") or a["labels"].get("instance", ""))
                for message in receiver.messages
                for a in message["alerts"]
            }
            assert told == {
                ("InferenceStalled", "glm5"),
                ("InferenceEngineDown", "glm5"),
                ("PowerFractionLow", "other"),
                ("GpuXidErrors", "a:1"),
                ("GpuLost", "b:1"),
                ("WattlineExporterDown", "down:1"),
                ("WattlineConfigReloadFailed", "up:1"),
                ("Watchdog", ""),
            }
            pages = [m for m in receiver.messages if m["groupLabels"] == {"deployment": "glm5"}]
            assert [len(m["alerts"]) for m in pages] == [2], "one deployment, one message"
            assert {m["receiver"] for m in pages} == {"pages"}
            # When the critical ones are over, this is told, and so is what they held back.
            manager.post(resolved(stalled), resolved(exporter_down))
            manager.post(resolved(alert("InferenceEngineDown", deployment="glm5", engine="e0", instance="a:1")))
            wait_for("the resolution", lambda: receiver.told("resolved", alertname="InferenceStalled"))
            wait_for("the warning", lambda: receiver.told("firing", alertname="PowerFractionLow", deployment="glm5"))
            wait_for("the lost GPU", lambda: receiver.told("firing", alertname="GpuLost", deployment="third"))


@pytest.mark.parametrize("suite", SUITES)
def test_a_second_node_without_a_deployment_is_a_page_of_its_own(suite: str, tmp_path: Path) -> None:
    """A pager opens one incident for each group: in a common one the second node would only add a line to it."""
    first = alert("WattlineExporterDown", instance="a:1", job="wattline")
    second = alert("WattlineExporterDown", instance="b:1", job="wattline")
    with receiving() as receiver:
        config = faster((ALERTS / "alertmanager.yml").read_text(), SPEED).replace("http://alert-log:9099", receiver.url)
        with alertmanager(tmp_path, config, suite) as manager:
            manager.post(first)
            wait_for("the first node", lambda: receiver.told("firing", instance="a:1"))
            manager.post(second, alert("GpuLost", instance="c:1", uuid="GPU-0", gpu="0"))
            manager.post(alert("GpuLost", instance="c:1", uuid="GPU-1", gpu="1"))
            wait_for("the second node", lambda: receiver.told("firing", instance="b:1"))
            wait_for("both GPUs of the third", lambda: len(receiver.told("firing", instance="c:1")) >= 2)
    groups = {
        (message["groupKey"], alert["labels"]["instance"])
        for message in receiver.messages
        for alert in message["alerts"]
    }
    assert len(groups) == len({key for key, _ in groups}) == 3, "a group is a node"
    assert {m["receiver"] for m in receiver.messages} == {"pages"}


@pytest.mark.parametrize("config", CONFIGS[1:])
def test_alertmanager_starts_with_an_example_before_its_secrets_are_there(config: str, tmp_path: Path) -> None:
    with alertmanager(tmp_path / "examples", (ALERTS / config).read_text().replace("../templates", "templates")):
        pass


MESSAGE: dict[str, Any] = {
    "receiver": "pages",
    "status": "firing",
    "externalURL": "http://alertmanager",
    "groupLabels": {"deployment": "glm5"},
    "commonLabels": {"deployment": "glm5", "severity": "critical"},
    "commonAnnotations": {},
    "alerts": [
        {
            "status": "firing",
            "labels": {
                "alertname": "GpuIdleWhileBusy",
                "severity": "critical",
                "deployment": "glm5",
                "cluster": "east",
            },
            "annotations": {
                "summary": "The GPUs of glm5 draw idle power while requests are held.",
                "description": "glm5 is <b>&</b> idle while busy.\nHosts: a:1 for 4 min.",
                "runbook_url": "https://example.com/GpuIdleWhileBusy",
                "dashboard_url": "https://grafana/d/x?var-deployment=glm5",
                "incident_url": "https://example.com/incidents/7",
            },
            "startsAt": "2026-01-02T03:04:05Z",
        },
        {
            "status": "firing",
            "labels": {"alertname": "GpuLost", "severity": "critical", "deployment": "glm5"},
            "annotations": {
                "summary": "GPU 1 of a:1 is gone.",
                "description": "GPU 1 was there.",
                "runbook_url": "https://example.com/GpuLost",
            },
            "startsAt": "2026-01-02T03:05:05Z",
        },
        {
            "status": "resolved",
            "labels": {"alertname": "InferenceStalled", "severity": "critical", "deployment": "glm5"},
            "annotations": {
                "summary": "glm5 holds requests and makes no token.",
                "description": "No token.",
                "runbook_url": "https://example.com/InferenceStalled",
            },
            "startsAt": "2026-01-02T02:00:00Z",
            "endsAt": "2026-01-02T02:30:00Z",
        },
    ],
}


def rendered(template: str, message: dict[str, Any], tmp_path: Path, suite: str, kind: str = "text") -> str:
    (tmp_path / "message.json").write_text(json.dumps(message))
    return output(
        program("amtool", suite),
        *("template", "render", f"--template.glob={ALERTS / 'templates' / '*.tmpl'}", f"--template.type={kind}"),
        *(f"--template.data={tmp_path / 'message.json'}", f'--template.text={{{{ template "{template}" . }}}}'),
    )


@pytest.mark.parametrize("suite", SUITES)
def test_a_message_reads_well(suite: str, tmp_path: Path) -> None:
    assert rendered("wattline.title", MESSAGE, tmp_path, suite) == (
        "[critical] The GPUs of glm5 draw idle power while requests are held. (and 1 more)"
    )
    assert rendered("wattline.text", MESSAGE, tmp_path, suite) == (
        "glm5 is <b>&</b> idle while busy.\nHosts: a:1 for 4 min.\n"
        "GpuIdleWhileBusy (critical, cluster east), alert of 2026-01-02 03:04 UTC\n"
        "Runbook: https://example.com/GpuIdleWhileBusy\n"
        "Dashboard: https://grafana/d/x?var-deployment=glm5&from=1767321245000&to=now\n"
        "Incident: https://example.com/incidents/7\n"
        "\n"
        "GPU 1 was there.\n"
        "GpuLost (critical), alert of 2026-01-02 03:05 UTC\n"
        "Runbook: https://example.com/GpuLost\n"
        "\n"
        "InferenceStalled is over. From 2026-01-02 02:00 to 02:30 UTC it said: glm5 holds requests and makes no token."
    )
    assert rendered("wattline.link.dashboard", MESSAGE, tmp_path, suite) == (
        "https://grafana/d/x?var-deployment=glm5&from=1767321245000&to=now"
    )
    assert rendered("wattline.link.incident", MESSAGE, tmp_path, suite) == "https://example.com/incidents/7"
    assert rendered("wattline.link", MESSAGE, tmp_path, suite) == "https://example.com/GpuIdleWhileBusy"
    assert rendered("wattline.color", MESSAGE, tmp_path, suite) == "danger"


@pytest.mark.parametrize("suite", SUITES)
def test_a_resolution_speaks_of_its_own_alert(suite: str, tmp_path: Path) -> None:
    over = {**MESSAGE, "status": "resolved", "alerts": MESSAGE["alerts"][2:]}
    assert rendered("wattline.title", over, tmp_path, suite) == "[over] glm5 holds requests and makes no token."
    assert rendered("wattline.text", over, tmp_path, suite) == (
        "InferenceStalled is over. From 2026-01-02 02:00 to 02:30 UTC it said: glm5 holds requests and makes no token."
    )
    assert rendered("wattline.color", over, tmp_path, suite) == "good"
    # The dashboard as it was then.
    link = {**over["alerts"][0]["annotations"], "dashboard_url": "https://grafana/d/x?y=z"}
    seen = {**over, "alerts": [{**over["alerts"][0], "annotations": link}]}
    assert rendered("wattline.link.dashboard", seen, tmp_path, suite) == (
        "https://grafana/d/x?y=z&from=1767317400000&to=1767321000000"
    )
    # A warning may end because nobody looks any more.
    warning = {**over["alerts"][0], "labels": {"alertname": "PowerFractionLow", "severity": "warning"}}
    assert rendered("wattline.title", {**over, "alerts": [warning]}, tmp_path, suite).startswith(
        "[no longer reported] "
    )


@pytest.mark.parametrize("suite", SUITES)
def test_a_resolution_tells_the_day_of_its_end(suite: str, tmp_path: Path) -> None:
    """Two times without days read as three hours where it was 27."""
    gone = {**MESSAGE["alerts"][1], "status": "resolved"}
    gone |= {"startsAt": "2026-01-01T00:00:00Z", "endsAt": "2026-01-02T03:00:00Z"}
    over = {**MESSAGE, "status": "resolved", "alerts": [gone]}
    assert rendered("wattline.text", over, tmp_path, suite) == (
        "GpuLost is over. From 2026-01-01 00:00 to 2026-01-02 03:00 UTC it said: GPU 1 of a:1 is gone."
    )
    html = rendered("wattline.email.html", over, tmp_path, suite, "html")
    assert "GpuLost is over, from 2026-01-01 00:00 to 2026-01-02 03:00 UTC" in html


@pytest.mark.parametrize("suite", SUITES)
def test_an_email_is_html_that_loads_nothing_and_trusts_no_label(suite: str, tmp_path: Path) -> None:
    html = rendered("wattline.email.html", MESSAGE, tmp_path, suite, "html")
    assert "glm5 is &lt;b&gt;&amp;&lt;/b&gt; idle while busy.\nHosts: a:1 for 4 min." in html
    assert not re.search(r"<(img|script|link|iframe)|url\(|@import", html)
    assert [link.replace("&amp;", "&") for link in re.findall(r'href="([^"]+)"', html)] == [
        "https://example.com/GpuIdleWhileBusy",
        "https://grafana/d/x?var-deployment=glm5&from=1767321245000&to=now",
        "https://example.com/incidents/7",
        "https://example.com/GpuLost",
    ]
    assert "InferenceStalled is over, from 2026-01-02 02:00 to 02:30 UTC" in html


def test_templates_of_the_examples_exist() -> None:
    defined = set(re.findall(r'define "([\w.]+)"', (ALERTS / "templates" / "wattline.tmpl").read_text()))
    for config in CONFIGS:
        used = set(re.findall(r'template "([\w.]+)"', (ALERTS / config).read_text()))
        assert used <= defined
        assert bool(used) is config.startswith("examples/")
