"""Latency comes from the engines' own histograms: under their names, scraped as the bundle and the chart do."""

from __future__ import annotations

import re
from typing import Any

import pytest
import yaml

from dashboards.latency import HISTOGRAMS
from tests.dashboards.boards import ROOT, targets
from tests.helm.chart import render, the

KNOWN = (
    # Of real servers: SGLang 0.4.6 to 0.5.22, vLLM 0.10 and older, Dynamo 0.9.
    ("time_to_first_token", "sglang:time_to_first_token_seconds"),
    ("time_to_first_token", "sglang_time_to_first_token_seconds"),
    ("time_to_first_token", "vllm:time_to_first_token_seconds"),
    ("time_to_first_token", "dynamo_frontend_time_to_first_token_seconds"),
    ("inter_token", "sglang:inter_token_latency_seconds"),
    ("inter_token", "vllm:inter_token_latency_seconds"),
    ("inter_token", "vllm:time_per_output_token_seconds"),
    ("inter_token", "dynamo_frontend_inter_token_latency_seconds"),
    ("e2e", "sglang:e2e_request_latency_seconds"),
    ("e2e", "vllm:e2e_request_latency_seconds"),
    ("e2e", "dynamo_frontend_request_duration_seconds"),
)


@pytest.mark.parametrize(("latency", "name"), KNOWN)
def test_each_histogram_is_found_by_one_panel(latency: str, name: str) -> None:
    found = [histogram.names for histogram in HISTOGRAMS if re.fullmatch(histogram.names, f"{name}_bucket")]
    assert len(found) == 1
    assert latency in found[0]


def kept_by_bundle() -> str:
    jobs = yaml.safe_load((ROOT / "deploy" / "prometheus" / "prometheus.yml").read_text())["scrape_configs"]
    (engines,) = (job for job in jobs if job["job_name"] == "engines")
    assert engines["file_sd_configs"] == [{"files": ["engines/*.yml"]}], "on request"
    return str(engines["metric_relabel_configs"][0]["regex"])


def monitor() -> dict[str, Any]:
    wanted = {"deployment": "glm5", "namespace": "serving", "selector": {"matchLabels": {"app": "x"}}, "port": "http"}
    return the("PodMonitor", render(engineMonitors=[wanted]))


def test_the_bundle_and_the_chart_keep_the_histograms_and_nothing_else() -> None:
    (endpoint,) = monitor()["spec"]["podMetricsEndpoints"]
    for keep in (kept_by_bundle(), endpoint["metricRelabelings"][0]["regex"]):
        for _, name in KNOWN:
            assert all(re.fullmatch(keep, name + part) for part in ("_bucket", "_sum", "_count"))
        assert not re.fullmatch(keep, "sglang:num_running_reqs")


def test_the_chart_scrapes_engines_on_request_and_says_which_deployment_they_serve() -> None:
    assert not [each for each in render() if each["kind"] == "PodMonitor"]
    spec = monitor()["spec"]
    assert spec["namespaceSelector"] == {"matchNames": ["serving"]}
    (endpoint,) = spec["podMetricsEndpoints"]
    assert endpoint["relabelings"] == [{"targetLabel": "deployment", "replacement": "glm5"}]


def test_only_the_engines_of_the_deployment_are_asked() -> None:
    asked = [target.expr for target in targets("deployment") if "_seconds_bucket" in target.expr]
    asked = [expr for expr in asked if "__name__" in expr]
    assert len(asked) == 2 * len(HISTOGRAMS)
    assert all('deployment="$deployment"' in expr for expr in asked)
