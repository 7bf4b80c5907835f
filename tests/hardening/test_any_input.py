"""Whatever is configured, asked or answered: no traceback, no number that cannot be, no wrong way to write it down."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from tests.engines.test_any_text import TEXTS
from wattline.analysis.observer import Observer
from wattline.app import for_people
from wattline.config import ConfigError, parse
from wattline.engines.normalise import normalise
from wattline.publish.server import Publication, accepts_gzip, negotiate
from wattline.publish.webconfig import WebConfigFile
from wattline.readings import GpuCondition, GpuIdentity, GpuSample
from wattline.session import plan_of, targets_of

hosts = st.one_of(
    st.sampled_from(
        ["127.0.0.1", "[::1]", "localhost", "a.example", "a_b", "xn--", "[fe80::1%25lo]", "127.1", "0", ""]
    ),
    st.text(max_size=8),
)
addresses = st.builds(
    lambda scheme, host, port, rest: f"{scheme}://{host}{port}{rest}",
    st.sampled_from(["http", "https", "HTTP", "ftp", ""]),
    hosts,
    st.sampled_from(["", ":1", ":65535", ":65536", ":0", ":x", ":-1", ":"]),
    st.sampled_from(["", "/", "/metrics", "/a b", "/%", "/?k=v", "#f", "?k", "/\u2028", "/\x7f"]) | st.text(max_size=6),
)
names = st.sampled_from(["head", "a b", "x" * 64, "-", "ä", ""]) | st.text(max_size=6)
engines = st.fixed_dictionaries({"url": addresses}, optional={"name": names, "bearer_token_file": st.text(max_size=4)})
deployments = st.fixed_dictionaries(
    {"engines": st.lists(engines, min_size=1, max_size=2)},
    optional={"name": names, "gpus": st.sampled_from(["all", [0], ["0000:05:00.0"], [255], []])},
)


@given(st.fixed_dictionaries({"deployments": st.lists(deployments, min_size=1, max_size=2)}))
@example({"deployments": [{"engines": [{"url": "http://x\\y:1/"}]}]})
@example({"deployments": [{"engines": [{"url": "http://ex\u00adample:1/"}]}]})
@settings(max_examples=400)
def test_a_configuration_that_is_accepted_can_be_put_into_force(data: dict[str, object]) -> None:
    try:
        config = parse(json.dumps(data), "wattline.yml")
    except ConfigError:
        return
    assert len(targets_of(config)) == sum(len(d.engines) for d in config.deployments)
    observer = Observer(plan_of(config))
    publication = Publication()
    publication.publish(observer.judge(1.0))
    for accept in ("", "application/openmetrics-text;version=1.0.0"):
        body, _ = publication.render(accept, compressed=False)
        assert b"wattline_deployment_state{" in body
    assert json.loads(json.dumps(for_people(config)))["deployments"]


@given(TEXTS, TEXTS)
@settings(max_examples=100)
def test_whatever_an_engine_says_the_text_of_the_metrics_can_be_read(first: str | bytes, then: str | bytes) -> None:
    config = parse("deployments: [{engines: [{url: 'http://h:1', name: e}]}]", "wattline.yml")
    observer = Observer(plan_of(config))
    observer.observe(GpuIdentity(uuid="GPU-a", index=0))
    publication = Publication()
    for t, body in ((5.0, first), (10.0, then), (15.0, then)):
        observer.observe(GpuCondition(t=t, uuid="GPU-a", limit_enforced_watts=700.0))
        observer.observe(GpuSample(t=t, uuid="GPU-a", power_watts=500.0))
        observer.observe(normalise(body, engine="e", t=t))
        publication.publish(observer.judge(t))
        text, _ = publication.render("", compressed=False)
        openmetrics, _ = publication.render("application/openmetrics-text;version=1.0.0", compressed=False)
        families = [*parse_text(text.decode()), *parse_openmetrics(openmetrics.decode())]  # type: ignore[no-untyped-call]
        for family in families:
            for sample in family.samples:
                assert math.isfinite(sample.value)
                assert sample.value >= 0
        assert publication.ready


tokens = st.sampled_from(
    ["text/plain", "application/openmetrics-text", "version=", "1.0.0", "escaping=", "q=0", ";", ","]
)


@given(st.one_of(st.text(max_size=40), st.lists(tokens | st.text(max_size=3), max_size=12).map("".join)))
@example("application/openmetrics-text;version=1.0.0\n;escaping=values")
@settings(max_examples=500)
def test_any_accept_header_is_answered_in_a_form_that_exists(header: str) -> None:
    _, content_type = negotiate(header)
    kind, _, rest = content_type.partition("; ")
    assert kind in {"text/plain", "application/openmetrics-text"}
    assert rest.startswith(("version=0.0.4; charset=utf-8", "version=1.0.0; charset=utf-8"))
    assert content_type.isascii()
    assert content_type.isprintable()
    assert accepts_gzip(header) in {True, False}


@given(st.text(max_size=60) | st.binary(max_size=60))
@example("basic_auth_users: {a: &b [*b]}")
@example("basic_auth_users: !!python/name:os.system ''")
@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_text_for_a_web_configuration_loads_or_is_explained(tmp_path: Path, text: str | bytes) -> None:
    file = tmp_path / "web.yml"
    file.write_bytes(text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass"))
    try:
        WebConfigFile(file)
    except ConfigError as error:
        said = str(error)
    else:
        return
    assert said.startswith(f"{file}")
    assert "\n" not in said


def test_the_fuzzers_reach_both_fates() -> None:
    """Else they would show nothing."""
    parse(json.dumps({"deployments": [{"engines": [{"url": "http://127.0.0.1:1/metrics"}]}]}), "wattline.yml")
    with pytest.raises(ConfigError):
        parse(json.dumps({"deployments": [{"engines": [{"url": "http://x\\y:1/"}]}]}), "wattline.yml")
