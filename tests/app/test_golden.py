"""A change of what is published shows as a difference of the golden file."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from tests.app.golden import GOLDEN, metrics
from wattline.publish.families import DEPLOYMENT_FAMILIES, ENGINE_FAMILIES, GPU_FAMILIES, PREFIX


def test_the_metrics_are_those_of_the_golden_file() -> None:
    assert metrics() == GOLDEN.read_text()


def test_the_healthy_rig_publishes_every_family_there_is() -> None:
    published = {f.name for f in text_string_to_metric_families(GOLDEN.read_text())}
    expected = {PREFIX + f.name for f in GPU_FAMILIES}
    expected |= {PREFIX + f.name for f in ENGINE_FAMILIES} | {PREFIX + f.name for f in DEPLOYMENT_FAMILIES}
    assert expected - published == {
        # Only SGLang 0.5.20 and newer tell how idle their scheduler is, or count operations; the rig has an older one.
        "wattline_engine_scheduler_idle_ratio",
        "wattline_deployment_flops_ratio",
        # Nothing bad is coming, and a recorded clock is no wall clock.
        "wattline_deployment_pending_seconds",
        "wattline_deployment_state_since_timestamp_seconds",
    }


def test_series_stay_within_the_budget() -> None:
    lines = [x for x in GOLDEN.read_text().splitlines() if not x.startswith("#")]
    assert sum('gpu="0"' in x for x in lines) <= 100
    assert sum('deployment="glm5"' in x and "gpu=" not in x for x in lines) <= 60
