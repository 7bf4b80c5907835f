from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest
import yaml

from alerts.build import ThresholdError, Values, load_thresholds, load_values, render
from tests.alerts.servers import ALERTS
from wattline.analysis.thresholds import Thresholds

VALUES = load_values()


def test_a_threshold_is_changed_in_one_place() -> None:
    thresholds = load_thresholds()
    changed = {
        name: t if name != "page_share" else type(t)(name, "0.123", t.unit, t.why) for name, t in thresholds.items()
    }
    before, after = (render(t, VALUES)["wattline.rules.yml"] for t in (thresholds, changed))
    assert after.count("> 0.123") >= 2, "two rules"
    assert after.replace("0.123", "0.7") == before


def test_outer_labels_and_addresses_are_changed_in_one_place() -> None:
    addresses = {name: f"https://{name}.example" for name in VALUES.addresses}
    files = render(load_thresholds(), Values(("dc", "cluster"), addresses))
    rules = files["wattline.rules.yml"]
    assert "max by (dc, cluster, deployment) (" in rules
    assert "unless on (dc, cluster, uuid)" in rules
    assert "{dc=%q,cluster=%q,deployment=%q}" in rules
    assert "$labels.dc $labels.cluster $labels.deployment" in rules
    assert "&var-dc={{ $labels.dc | urlquery }}" in rules
    assert "equal: [dc, cluster, instance]" in files["examples/slack.yml"]
    assert "https://runbooks_url.example/GpuLost" in rules
    assert "localhost" not in "".join(files.values())
    alone = "".join(render(load_thresholds(), Values((), addresses)).values())
    assert "max by (deployment) (" in alone
    assert "namespace" not in alone
    assert not re.search(r"%\{\w", alone)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[]", "values.yml: expected the keys outer_labels, "),
        ("outer_labels: []", "values.yml: expected the keys outer_labels, "),
        (
            "{outer_labels: [a b], runbooks_url: 'http://a', dashboards_url: 'http://a', incidents_url: 'http://a'}",
            "values.yml: outer_l",
        ),
        (
            "{outer_labels: a, runbooks_url: 'http://a', dashboards_url: 'http://a', incidents_url: 'http://a'}",
            "values.yml: outer_l",
        ),
        (
            "{outer_labels: [], runbooks_url: a, dashboards_url: 'http://a', incidents_url: 'http://a'}",
            "values.yml: runbooks_url: e",
        ),
    ],
)
def test_a_mistake_in_the_values_is_told(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "values.yml").write_text(text)
    with pytest.raises(ThresholdError) as raised:
        load_values(tmp_path / "values.yml")
    assert str(raised.value).startswith(message)


def test_a_number_that_the_exporter_judges_with_is_the_exporters(tmp_path: Path) -> None:
    """An alert and the verdict beside it must not disagree because one of two copies was changed."""
    judged = Thresholds()
    thresholds = load_thresholds()
    for name, theirs in (
        ("idle_active_fraction", judged.idle_active_fraction),
        ("busy_active_fraction", judged.partial_active_fraction),
        ("throttled_share", judged.throttled_share),
        ("link_utilization", judged.link_loaded_utilization),
        ("limit_below_default", judged.power_capped_share),
    ):
        assert float(thresholds[name].value) == theirs, name
    (tmp_path / "thresholds.yml").write_text("a: {value: low_tdp_fraction, unit: ratio, why: x}")
    assert load_thresholds(tmp_path / "thresholds.yml")["a"].value == str(judged.low_tdp_fraction)


def test_one_name_means_one_number_in_the_rules_and_in_the_exporter() -> None:
    judged = msgspec.structs.asdict(Thresholds())
    for name in load_thresholds().keys() & judged.keys():
        assert float(load_thresholds()[name].value) == judged[name], name


def test_every_threshold_gives_evidence() -> None:
    for threshold in load_thresholds().values():
        assert len(threshold.why) > 30, threshold.name
        assert threshold.why.endswith("."), threshold.name


def test_no_number_of_a_rule_stands_outside_of_the_thresholds() -> None:
    """Apart from what is no matter of opinion: nothing, everything, per cent, and the joules of a kilowatt hour."""
    source = (ALERTS / "source" / "wattline.rules.yml.in").read_text()
    compared = re.findall(r"(?:[<>]=?|==) (?!%\{)([\d.e]+)", "\n".join(expressions(source)))
    assert set(compared) <= {"0", "1", "100"}
    assert set(re.findall(r"\[(\w+)\]|offset (\w+)", "\n".join(expressions(source)))) == set()


def expressions(source: str) -> list[str]:
    text = re.sub(r"%\{(\w+)\}", r"PLACE_\1", source)
    rules = [rule for group in yaml.safe_load(text)["groups"] for rule in group["rules"]]
    return [re.sub(r"PLACE_(\w+)", r"%{\1}", rule["expr"]) for rule in rules]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[]", "thresholds.yml: expected a mapping of names"),
        ("a: 3", "thresholds.yml: a: expected the keys value, unit and why"),
        ("a: {value: 3, unit: ratio}", "thresholds.yml: a: expected the keys value, unit and why"),
        ("a: {value: 3, unit: metres, why: x}", "thresholds.yml: a: unit is 'metres', expected one of duration, "),
        ("a: {value: 3, unit: duration, why: x}", "thresholds.yml: a: value is '3', expected a duration such as 30s"),
        ("a: {value: 3m, unit: ratio, why: x}", "thresholds.yml: a: value is '3m', expected a number"),
        ("a: {value: idle_fraction, unit: ratio, why: x}", "thresholds.yml: a: value is 'idle_fraction', expected a "),
        ("a: {value: [1], unit: ratio, why: x}", "thresholds.yml: a: value is '[1]', expected a number or a threshold"),
        (
            "a: {value: 3-4, unit: codes, why: x}",
            "thresholds.yml: a: value is '3-4', expected numbers with | between them",
        ),
        ("a: {value: true, unit: ratio, why: x}", "thresholds.yml: a: value is 'True', expected a number"),
    ],
)
def test_a_mistake_in_the_thresholds_is_told(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "thresholds.yml").write_text(text)
    with pytest.raises(ThresholdError) as raised:
        load_thresholds(tmp_path / "thresholds.yml")
    assert str(raised.value).startswith(message)


def test_a_threshold_that_is_missing_or_unused_is_told() -> None:
    thresholds = load_thresholds()
    without = {name: t for name, t in thresholds.items() if name != "page_share"}
    with pytest.raises(ThresholdError, match=r"source/wattline\.rules\.yml\.in: no threshold is called page_share"):
        render(without, VALUES)
    extra = {**thresholds, "extra": thresholds["page_share"]}
    with pytest.raises(ThresholdError, match=r"extra: not used by any source"):
        render(extra, VALUES)
