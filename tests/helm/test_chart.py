"""What the chart installs, and what it refuses."""

from __future__ import annotations

import base64
import gzip
import json
import re
from typing import Any

import helm_python
import jsonschema
import pytest
import yaml

from tests.helm.chart import CHART, REPOSITORY, pod, render, the, values
from tools.generate import chart_copies
from wattline import __version__
from wattline.cli import build_parser
from wattline.config import parse

AUTO = {"config": {"deployments": [{"engines": "auto", "gpus": "auto"}]}}
POD_ENGINES = {"config": {"deployments": [{"engines": "pods", "gpus": "all"}]}}
NAMED = {"config": {"deployments": [{"name": "a", "engines": [{"url": "http://engine:8000"}]}]}}


def container(given: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    (found,) = pod(render(given, **more))["containers"]
    assert isinstance(found, dict)
    return found


def test_it_is_the_chart_of_this_release() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert chart["appVersion"] == __version__
    assert container()["image"].endswith(f":{__version__}")


def test_a_digest_wins_over_a_tag() -> None:
    digest = "sha256:" + 64 * "a"
    assert container(image={"digest": digest, "tag": "1"})["image"] == f"{REPOSITORY}@{digest}"


def test_without_an_image_it_says_what_is_missing() -> None:
    with pytest.raises(helm_python.HelmError, match=r"image\.repository is empty"):
        render(image={"repository": ""})


class TestHostProcesses:
    def test_they_are_shared_while_something_is_to_be_discovered(self) -> None:
        assert pod(render(AUTO))["hostPID"] is True
        half = {"config": {"deployments": [{"name": "a", "engines": [{"url": "http://x:1"}], "gpus": "auto"}]}}
        assert pod(render(half))["hostPID"] is True

    def test_and_only_then(self) -> None:
        assert "hostPID" not in pod(render(NAMED))
        assert "hostPID" not in pod(render(POD_ENGINES))

    def test_they_are_shared_where_pods_are_on_some_of_the_gpus(self) -> None:
        for gpus in ("auto", [0, 1]):
            given = {"config": {"deployments": [{"name": "a", "engines": "pods", "gpus": gpus}]}}
            assert pod(render(given))["hostPID"] is True


class TestPodsAsEngines:
    def test_it_may_list_pods_and_knows_its_node(self) -> None:
        manifests = render(POD_ENGINES)
        assert pod(manifests)["automountServiceAccountToken"] is True
        node = {"name": "NODE_NAME", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}
        assert node in container(POD_ENGINES)["env"]
        assert the("ClusterRole", manifests)["rules"] == [{"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]}]
        binding = the("ClusterRoleBinding", manifests)
        assert binding["roleRef"]["name"] == the("ClusterRole", manifests)["metadata"]["name"]
        assert binding["subjects"] == [
            {"kind": "ServiceAccount", "name": pod(manifests)["serviceAccountName"], "namespace": "monitoring"}
        ]

    def test_and_only_where_it_asks(self) -> None:
        assert not {m["kind"] for m in render(AUTO)} & {"ClusterRole", "ClusterRoleBinding"}
        assert "NODE_NAME" not in [variable["name"] for variable in container(AUTO)["env"]]


class TestSecurity:
    def test_the_pod_may_do_as_little_as_possible(self) -> None:
        spec = pod(render(NAMED))
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["automountServiceAccountToken"] is False
        assert container(NAMED)["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert not any("hostPath" in volume for volume in spec["volumes"])

    def test_no_gpu_is_taken_from_an_engine(self) -> None:
        assert "nvidia.com/gpu" not in json.dumps(container()["resources"])
        assert {"name": "NVIDIA_DRIVER_CAPABILITIES", "value": "utility"} in container()["env"]

    def test_nothing_but_scrapes_gets_in(self) -> None:
        policy = the("NetworkPolicy", render())["spec"]
        assert policy["policyTypes"] == ["Ingress"]
        assert [rule["ports"] for rule in policy["ingress"]] == [[{"port": "metrics", "protocol": "TCP"}]]
        assert "from" in the("NetworkPolicy", render(values("large")))["spec"]["ingress"][0]


class TestExporter:
    @pytest.mark.parametrize("given", [AUTO, NAMED, POD_ENGINES, values("large")])
    def test_its_configuration_is_right(self, given: dict[str, Any]) -> None:
        text = the("ConfigMap", render(given, dashboards={"enabled": False}))["data"]["wattline.yml"]
        assert parse(text, "wattline.yml").state_file == "/var/lib/wattline/state.json"

    def test_a_state_file_of_ones_own_wins(self) -> None:
        text = the("ConfigMap", render({"config": {**NAMED["config"], "state_file": "/x/y.json"}}))["data"]
        assert parse(text["wattline.yml"], "wattline.yml").state_file == "/x/y.json"

    def test_its_arguments_are_understood(self) -> None:
        args = container(web={"configSecret": "web", "port": 9900}, extraArgs=["--log.level=debug"])["args"]
        options = vars(build_parser().parse_args(args))
        assert options["web.listen_address"] == (None, 9900)
        assert options["web.config.file"] == "/etc/wattline-web/web.yml"
        assert options["log.level"] == "debug"

    def test_another_configuration_makes_other_pods(self) -> None:
        def checksum(given: dict[str, Any]) -> str:
            annotations = the("DaemonSet", render(given))["spec"]["template"]["metadata"]["annotations"]
            assert isinstance(annotations, dict)
            return str(annotations["checksum/config"])

        assert checksum(AUTO) == checksum(AUTO)
        assert checksum(AUTO) != checksum(NAMED)

    def test_the_kubelet_asks_only_what_it_may(self) -> None:
        """Behind users, even the health pages want a password."""
        assert container()["livenessProbe"]["httpGet"]["path"] == "/-/healthy"
        assert container()["readinessProbe"]["httpGet"]["path"] == "/-/ready"
        behind = container(web={"configSecret": "web"})
        assert "tcpSocket" in behind["livenessProbe"]
        assert "readinessProbe" not in behind


class TestScraping:
    def test_the_job_is_what_the_rules_ask_for_and_the_instance_is_the_node(self) -> None:
        (endpoint,) = the("PodMonitor", render(values("small")))["spec"]["podMetricsEndpoints"]
        targets = {r["targetLabel"]: r.get("replacement", r.get("sourceLabels")) for r in endpoint["relabelings"]}
        assert targets == {"job": "wattline", "instance": ["__meta_kubernetes_pod_node_name"]}
        jobs = re.findall(r'job="([^"]*)"', "".join(p.read_text() for p in CHART.glob("files/rules/*")))
        assert set(jobs) <= {"wattline", "alertmanager"}
        assert endpoint["honorLabels"] is True, "a label of the target must not rename the exporter's"

    def test_it_reaches_the_port_of_the_pod_by_name(self) -> None:
        (endpoint,) = the("PodMonitor", render(values("small")))["spec"]["podMetricsEndpoints"]
        assert endpoint["port"] in [port["name"] for port in container()["ports"]]
        selector = the("PodMonitor", render(values("small")))["spec"]["selector"]["matchLabels"]
        labels = the("DaemonSet", render())["spec"]["template"]["metadata"]["labels"]
        assert selector.items() <= labels.items()

    def test_two_monitors_would_scrape_twice_and_are_refused(self) -> None:
        with pytest.raises(helm_python.HelmError, match="scraped twice"):
            render(podMonitor={"enabled": True}, serviceMonitor={"enabled": True})

    def test_a_monitor_without_its_service_is_refused(self) -> None:
        with pytest.raises(helm_python.HelmError, match=r"needs service\.enabled"):
            render(service={"enabled": False}, serviceMonitor={"enabled": True})


class TestCopies:
    def test_rules_arrive_as_they_are_with_the_braces_of_their_templates(self) -> None:
        rules = [m["spec"] for m in render(values("small")) if m["kind"] == "PrometheusRule"]
        originals = [yaml.safe_load(content) for path, content in chart_copies().items() if path.suffix == ".yml"]
        assert len(originals) == 2
        assert rules == originals
        assert "{{ $labels.deployment }}" in json.dumps(rules)

    def test_links_of_messages_lead_where_the_values_say(self) -> None:
        """A release is for many people: localhost opens for the one who forwards a port."""
        links = {name: f"https://{name}.example" for name in ("runbooks", "dashboards", "incidents")}
        rule = {"enabled": True, "links": links}
        rules = json.dumps([m["spec"] for m in render(prometheusRule=rule) if m["kind"] == "PrometheusRule"])
        assert "localhost" not in rules
        for address in (
            "https://runbooks.example/GpuLost",
            "https://dashboards.example/wattline-deployment?",
            "https://incidents.example/{{ .Labels.incident }}",
        ):
            assert address in rules

    def test_dashboards_arrive_as_they_are(self) -> None:
        maps = [m for m in render(values("small")) if "dashboard" in m["metadata"]["name"]]
        data = {name: text for m in maps for name, text in m["data"].items()}
        originals = {
            f"wattline-{path.name}": content for path, content in chart_copies().items() if path.suffix == ".json"
        }
        assert len(originals) >= 3
        assert {name: json.loads(text) for name, text in data.items()} == {
            name: json.loads(text) for name, text in originals.items()
        }
        assert all(m["metadata"]["labels"]["grafana_dashboard"] == "1" for m in maps)

    def test_a_release_fits_into_its_secret(self) -> None:
        """Helm keeps chart and manifests of a release in one object of 1 MiB at most, compressed and in base 64."""
        chart = "".join(p.read_text() for p in sorted(CHART.rglob("*")) if p.is_file())
        everything = json.dumps([chart, render(values("small"))])
        assert len(base64.b64encode(gzip.compress(everything.encode()))) < 2**20 / 2


class TestValues:
    def test_every_value_is_described(self) -> None:
        schema = json.loads((CHART / "values.schema.json").read_text())
        defaults = yaml.safe_load((CHART / "values.yaml").read_text())

        def described(given: Any, known: dict[str, Any], path: str) -> None:
            if "$ref" in known:
                known = schema["$defs"][known["$ref"].rpartition("/")[2]]
            if known.get("additionalProperties") is False:
                assert set(given) == set(known["properties"]) - {"global"}, path
                for key, value in given.items():
                    described(value, known["properties"][key], f"{path}.{key}")

        described(defaults, schema, "")
        jsonschema.Draft7Validator.check_schema(schema)

    @pytest.mark.parametrize(
        ("given", "named"),
        [
            ({"podMonitr": {"enabled": True}}, "podMonitr"),
            ({"podMonitor": {"enabled": "yes"}}, "podMonitor"),
            ({"podMonitor": {"interval": "15"}}, "interval"),
            ({"web": {"port": 80}}, "port"),
            ({"image": {"digest": "latest"}}, "digest"),
            ({"config": {"deployments": [{"engines": "all"}]}}, "engines"),
            ({"extraArgs": ["serve"]}, "extraArgs"),
        ],
    )
    def test_a_wrong_value_is_refused_by_name(self, given: dict[str, Any], named: str) -> None:
        with helm_python.Chart.load(CHART) as chart, pytest.raises(helm_python.HelmError, match=named):
            chart.validate_schema(given)


def test_dashboards_open_with_the_data_source_that_is_named_and_link_to_the_runbooks() -> None:
    def boards(**values: Any) -> list[dict[str, Any]]:
        maps = [
            m for m in render(dashboards={"enabled": True, **values}, prometheusRule=links) if m["kind"] == "ConfigMap"
        ]
        return [json.loads(text) for each in maps for name, text in each["data"].items() if name.endswith(".json")]

    links = {"links": {"runbooks": "https://gpu.example/runbooks"}}
    for named, expected in (("", "default"), ('The "fleet"', 'The "fleet"')):
        listed = boards(datasource=named)
        assert len(listed) == 3
        for board in listed:
            variables = {each["name"]: each for each in board["templating"]["list"]}
            assert variables["datasource"]["current"] == {"text": expected, "value": expected}
            assert variables["runbooks"]["query"] == "https://gpu.example/runbooks"
