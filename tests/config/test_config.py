from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from wattline.config import Config, ConfigError, Deployment, Engine, GpuSettings, Thresholds, load, parse, schema
from wattline.engines.tables import KINDS
from wattline.yamlfile import Document

UUID = "GPU-5f1c0e6a-90b3-4a2d-8c71-3d2e4b5a6f70"


def only_engine(config: Config) -> Engine:
    (deployment,) = config.deployments
    assert not isinstance(deployment.engines, str)
    (engine,) = deployment.engines
    return engine


def engine_of(line: str, filename: str = "wattline.yml") -> Engine:
    return only_engine(parse(f"deployments: [{{engines: [{{{line}}}]}}]", filename))


@pytest.mark.parametrize("text", ["", "\n", "# nothing but a remark\n", "---\n", "{}", "~"])
def test_an_empty_file_gives_the_same_as_no_file(text: str) -> None:
    assert parse(text, "wattline.yml") == load(None)


def test_without_a_file_every_gpu_and_the_sglang_at_its_default_address_are_watched() -> None:
    assert load(None) == Config(
        deployments=(
            Deployment(
                name="default",
                gpus=None,
                engines=(Engine(url="http://127.0.0.1:30000/metrics", name="127.0.0.1:30000"),),
            ),
        ),
        window=60.0,
        grace=600.0,
        sample_interval=1.0,
        engine_interval=5.0,
        state_file=None,
        thresholds=Thresholds(),
        gpus={},
    )


def test_every_key_is_read(tmp_path: Path) -> None:
    file = tmp_path / "wattline.yml"
    file.write_text(f"""
deployments:
  - name: glm5
    engines:
      - url: https://head.example:30000/metrics
        name: head
        kind: sglang
        count_tokens: false
        bearer_token_file: token
        ca_file: /etc/ca.pem
        server_name: glm5.example
      - url: http://127.0.0.1:30001/metrics
        bearer_token_env: TOKEN
      - {{url: "https://127.0.0.1:30002/metrics", insecure_skip_verify: true}}
    gpus: [0, 1, {UUID}, "0000:17:00.0", 0000:18:00.0]
  - {{name: small, engines: auto, gpus: auto}}
window: 2m
grace: 1h30m
sample_interval: 500ms
engine_interval: 2.5
state_file: /var/lib/wattline/state.json
thresholds: {{busy_requests: 8, low_tdp_fraction: 0.4}}
gpus:
  {UUID}: {{idle_power_watts: 80, power_limit_watts: 600.5}}
""")
    assert load(file) == Config(
        deployments=(
            Deployment(
                name="glm5",
                engines=(
                    Engine(
                        url="https://head.example:30000/metrics",
                        name="head",
                        kind="sglang",
                        count_tokens=False,
                        bearer_token_file=str(tmp_path / "token"),
                        ca_file="/etc/ca.pem",
                        server_name="glm5.example",
                    ),
                    Engine(
                        url="http://127.0.0.1:30001/metrics",
                        name="127.0.0.1:30001",
                        bearer_token_env="TOKEN",
                    ),
                    Engine(url="https://127.0.0.1:30002/metrics", name="127.0.0.1:30002", insecure_skip_verify=True),
                ),
                gpus=(0, 1, UUID, "00000000:17:00.0", "00000000:18:00.0"),
            ),
            Deployment(name="small", engines="auto", gpus="auto"),
        ),
        window=120.0,
        grace=5400.0,
        sample_interval=0.5,
        engine_interval=2.5,
        state_file="/var/lib/wattline/state.json",
        thresholds=Thresholds(busy_requests=8, low_tdp_fraction=0.4),
        gpus={UUID: GpuSettings(idle_power_watts=80, power_limit_watts=600.5)},
    )


@pytest.mark.parametrize(
    ("url", "full", "name"),
    [
        ("http://127.0.0.1:30000", "http://127.0.0.1:30000/metrics", "127.0.0.1:30000"),
        ("http://127.0.0.1:30000/", "http://127.0.0.1:30000/metrics", "127.0.0.1:30000"),
        ("http://head:8000/metrics", "http://head:8000/metrics", "head:8000"),
        ("http://head:8000/a/metrics", "http://head:8000/a/metrics", "head:8000/a/metrics"),
        ("http://[::1]:30000", "http://[::1]:30000/metrics", "[::1]:30000"),
        ("https://head/metrics/?format=text", "https://head/metrics/?format=text", "head/metrics/"),
    ],
)
def test_an_engine_is_named_by_its_address_and_found_at_metrics(url: str, full: str, name: str) -> None:
    engine = engine_of(f'url: "{url}"')
    assert (engine.url, engine.name) == (full, name)


@pytest.mark.parametrize("kind", KINDS)
def test_an_engine_of_a_known_kind_is_found_where_that_kind_serves(kind: str) -> None:
    assert engine_of(f'url: "http://head:8000", kind: {kind}').url == f"http://head:8000{KINDS[kind].path}"


def test_relative_paths_are_relative_to_the_file() -> None:
    engine = engine_of("url: https://head, bearer_token_file: secrets/token, ca_file: ../ca.pem", "/etc/w/w.yml")
    assert engine.bearer_token_file == "/etc/w/secrets/token"
    assert engine.ca_file == "/etc/w/../ca.pem"
    assert parse("state_file: state.json", "/etc/w/w.yml").state_file == "/etc/w/state.json"


@pytest.mark.parametrize(
    ("written", "canonical"),
    [
        ("0000:17:00.0", "00000000:17:00.0"),
        ("00000000:AB:00.0", "00000000:AB:00.0"),
        ("0001:ab:1f.0", "00000001:AB:1F.0"),
        ("17:00", "00000000:17:00.0"),
        ("GPU-5F1C0E6A-90B3-4A2D-8C71-3D2E4B5A6F70", UUID),
    ],
)
def test_a_gpu_is_held_as_nvml_writes_it(written: str, canonical: str) -> None:
    (deployment,) = parse(f"deployments: [{{gpus: [{written!r}]}}]", "wattline.yml").deployments
    assert deployment.gpus == (canonical,)


def test_one_deployment_may_take_what_the_others_leave() -> None:
    text = 'deployments: [{name: a, gpus: [0]}, {name: b, gpus: all, engines: [{url: "http://127.0.0.1:30001"}]}]'
    assert [deployment.gpus for deployment in parse(text, "w.yml").deployments] == [(0,), "all"]


def test_gpus_may_be_watched_without_any_deployment() -> None:
    assert parse("deployments: []", "wattline.yml").deployments == ()


@pytest.mark.parametrize("text", ["yes", "no", "on", "off", "012", "1:30", "0x10", "1_000", "2024-01-01", ".inf", "<<"])
def test_text_that_yaml_once_took_for_something_else_stays_text(text: str) -> None:
    assert Document(f"a: {text}", "w.yml").data == {"a": text}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1", 1),
        ("-1", -1),
        ("0.5", 0.5),
        (".5", 0.5),
        ("1e3", 1000.0),
        ("true", True),
        ("false", False),
        ("null", None),
        ("", None),
        ("'1'", "1"),
        ('"true"', "true"),
        ("|\n  1", "1"),
        ("123456789012345678901234", 1.2345678901234568e23),
        ("1.", 1.0),
        (".", "."),
        ("E0", "E0"),
        (".e1", ".e1"),
        ("+", "+"),
        ("-", [None]),
    ],
)
def test_plain_values_follow_the_core_rules(text: str, value: object) -> None:
    found = Document(f"a:\n  {text}" if text == "-" else f"a: {text}", "w.yml").data["a"]
    assert found == value
    assert type(found) is type(value)


def test_a_configuration_shows_no_secret() -> None:
    with pytest.raises(ConfigError) as caught:
        engine_of('url: "http://someone:hunter2@head"')
    assert "hunter2" not in str(caught.value)
    engine = engine_of("url: http://head, bearer_token_env: TOKEN")
    assert set(msgspec.structs.asdict(engine)) == {
        "url",
        "name",
        "kind",
        "count_tokens",
        "bearer_token_file",
        "bearer_token_env",
        "ca_file",
        "server_name",
        "insecure_skip_verify",
    }, "a new key must hold where a secret is, not the secret: everything here is shown"


def test_the_schema_knows_every_key_and_allows_no_other() -> None:
    described = json.loads(json.dumps(schema()))["$defs"]
    assert set(described) == {"Config", "Deployment", "Engine", "GpuSettings", "Price", "Thresholds"}
    assert set(described["Config"]["properties"]) == set(Config.__struct_fields__)
    assert described["Config"]["properties"]["window"]["type"] == ["number", "string"]
    assert all(part["additionalProperties"] is False for part in described.values())


KEYS = sorted(
    {name for struct in (Config, Deployment, Engine, GpuSettings, Thresholds) for name in struct.__struct_fields__}
)
scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=20),
    st.sampled_from(["all", "auto", "10s", "http://127.0.0.1:30000", "https://u:p@h", UUID, "0000:17:00.0", "head"]),
)
values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from([*KEYS, UUID]) | st.text(max_size=5), inner, max_size=4)
    ),
    max_leaves=12,
)


def assert_loads_or_explains(text: str) -> None:
    try:
        config = parse(text, "wattline.yml")
    except ConfigError as caught:
        problem = caught
    else:
        assert isinstance(config, Config)
        return
    assert str(problem).startswith("wattline.yml:")
    assert problem.line is None or 1 <= problem.line <= len(text.splitlines()) + 1


@given(st.text())
@example("a: !!int x")
@example("? [a]\n: b")
@example("&a [*a]")
@example("%YAML 9.9\n---\na: 1")
@example("\ud800")
@example("!<tag:yaml.org,2002:map> x")
@example("!!map [1]")
@settings(max_examples=300, deadline=None)
def test_any_text_loads_or_is_explained(text: str) -> None:
    assert_loads_or_explains(text)


@given(st.dictionaries(st.sampled_from(KEYS), values, max_size=4))
@settings(max_examples=300, deadline=None)
def test_any_values_load_or_are_explained(data: dict[str, object]) -> None:
    assert_loads_or_explains(json.dumps(data))


@given(st.text(alphabet=st.sampled_from("ab:-[]{}&*!|>'\"%@`,? \n\t#0.") | st.characters(), max_size=40))
@settings(max_examples=300, deadline=None)
def test_anything_that_looks_like_yaml_loads_or_is_explained(text: str) -> None:
    assert_loads_or_explains(text)


KEYS = ["name", "url", "engines", "gpus", "low_tdp_fraction", "kind", "GPU-a"]
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-3, 2**70)
    | st.floats(-1.0, 9.0)
    | st.sampled_from(["auto", "all", "60s", ""]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=3),
    max_leaves=6,
)


@given(st.dictionaries(st.sampled_from(Config.__struct_fields__), VALUES))
@settings(max_examples=200)
def test_any_values_give_a_configuration_or_an_error_for_their_author(data: dict[str, object]) -> None:
    """The walk over the types refuses at least what msgspec refuses: else its own error would get out."""
    with suppress(ConfigError):
        parse(json.dumps(data), "wattline.yml")
