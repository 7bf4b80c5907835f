"""Everything that the chart renders is what Kubernetes and the Prometheus operator accept."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import helm_python
import jsonschema
import kubernetes_validate
import pytest
import yaml

from tests.alerts.servers import program
from tests.helm.chart import CHART, OPERATOR, Manifest, render, values, with_image

OPERATOR_SCHEMAS = json.loads((Path(__file__).parent / "operator_schemas.json").read_text())
EVERYTHING = {
    "podMonitor": {
        "enabled": True,
        "tlsConfig": {"insecureSkipVerify": True},
        "basicAuth": {"username": {"name": "scrape", "key": "u"}, "password": {"name": "scrape", "key": "p"}},
        "relabelings": [{"targetLabel": "cluster", "replacement": "a"}],
        "metricRelabelings": [{"sourceLabels": ["__name__"], "regex": "go_.*", "action": "drop"}],
    },
    "prometheusRule": {"enabled": True},
    "dashboards": {"enabled": True},
    "web": {"configSecret": "web", "tls": True},
    "hostNetwork": True,
    "priorityClassName": "gpu-monitoring",
    "imagePullSecrets": [{"name": "pull"}],
    "image": {"digest": "sha256:" + 64 * "0"},
    "podAnnotations": {"a": "b"},
    "podLabels": {"team": "serving"},
    "affinity": {"nodeAffinity": {}},
    "extraArgs": ["--log.format=json"],
    "extraVolumes": [{"name": "tokens", "secret": {"secretName": "tokens"}}],
    "extraVolumeMounts": [{"name": "tokens", "mountPath": "/tokens", "readOnly": True}],
    "networkPolicy": {"from": [{"namespaceSelector": {"matchLabels": {"a": "b"}}}]},
    "serviceAccount": {"annotations": {"a": "b"}},
    "service": {"annotations": {"a": "b"}},
}
CASES: dict[str, dict[str, Any]] = {
    "default": {},
    "small": values("small"),
    "large": values("large"),
    "everything": EVERYTHING,
    "pods": {"config": {"deployments": [{"engines": "pods", "gpus": "all"}]}},
    "service monitor": {"serviceMonitor": {"enabled": True}},
    "bare": {
        "service": {"enabled": False},
        "networkPolicy": {"enabled": False},
        "serviceAccount": {"create": False},
        "runtimeClassName": "",
        "config": {"deployments": []},
        "tolerations": [],
        "nodeSelector": {},
    },
}
each_case = pytest.mark.parametrize("case", CASES)


@each_case
@pytest.mark.parametrize("version", ["1.25", "1.29", kubernetes_validate.latest_version()])
def test_kubernetes_accepts_it(case: str, version: str) -> None:
    """Strictly: a key that the schema does not have is an error."""
    checked = [m for m in render(CASES[case]) if m["apiVersion"] != OPERATOR]
    assert {m["kind"] for m in checked} >= {"DaemonSet", "ConfigMap"}
    for manifest in checked:
        kubernetes_validate.validate(manifest, version, strict=True)


def operator_accepts(manifest: Manifest) -> None:
    """By the operator's own definitions."""
    jsonschema.validate(manifest["spec"], OPERATOR_SCHEMAS[manifest["kind"]], jsonschema.Draft202012Validator)


@pytest.mark.parametrize("case", ["small", "large", "everything", "service monitor"])
def test_the_prometheus_operator_accepts_it(case: str) -> None:
    checked = [m for m in render(CASES[case]) if m["apiVersion"] == OPERATOR]
    assert checked
    for manifest in checked:
        operator_accepts(manifest)


def test_these_checks_find_faults() -> None:
    daemonset = next(m for m in render() if m["kind"] == "DaemonSet")
    daemonset["spec"]["template"]["spec"]["hostPid"] = True
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(daemonset, "1.29", strict=True)
    monitor = next(m for m in render(CASES["small"]) if m["kind"] == "PodMonitor")
    monitor["spec"]["podMetricsEndpoints"][0]["intervall"] = "15s"
    with pytest.raises(jsonschema.ValidationError, match="intervall"):
        operator_accepts(monitor)
    monitor["spec"]["podMetricsEndpoints"][0] = {"port": "metrics", "interval": "soon"}
    with pytest.raises(jsonschema.ValidationError, match="soon"):
        operator_accepts(monitor)


@each_case
def test_helm_has_no_complaint(case: str) -> None:
    report = helm_python.chart.lint(CHART, with_image(CASES[case]), strict=True)
    complaints = [m["error"] for m in report["messages"] if m["error"] != "icon is recommended"]
    assert (complaints, report["errors"]) == ([], [])


@pytest.mark.servers
def test_prometheus_accepts_the_rules(tmp_path: Path) -> None:
    rules = [m for m in render(CASES["small"]) if m["kind"] == "PrometheusRule"]
    assert len(rules) == 2
    for number, rule in enumerate(rules):
        file = tmp_path / f"{number}.yml"
        file.write_text(yaml.safe_dump(rule["spec"]))
        subprocess.run([program("promtool", "trixie"), "check", "rules", file], check=True, capture_output=True)
