"""The format of the web configuration. Each file in ``bad`` has one fault; its message stands beside it."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wattline.publish.webconfig import (
    CIPHERS,
    HttpServerConfig,
    TlsServerConfig,
    WebConfig,
    WebConfigFile,
    load_web_config,
)
from wattline.yamlfile import ConfigError

BAD = Path(__file__).parent / "bad"
FILES = sorted(BAD.glob("*.yml"))
HASH = "$2y$10$abcdefghijklmnopqrstuuABCDEFGHIJKLMNOPQRSTUVWXYZ01234"


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_bad_file_is_refused_with_its_message_and_without_its_secret(file: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        load_web_config(file)
    assert str(caught.value) == f"{BAD}/{file.with_suffix('.txt').read_text().rstrip()}"
    assert not any(secret in str(caught.value) for secret in ("hunter2", "4711", HASH))


def test_every_key_is_read(tmp_path: Path) -> None:
    file = tmp_path / "web.yml"
    file.write_text(f"""
tls_server_config:
  cert_file: server.pem
  key_file: /etc/keys/server.key
  client_auth_type: VerifyClientCertIfGiven
  client_ca_file: ca.pem
  min_version: TLS12
  max_version: TLS12
  cipher_suites: [{", ".join(CIPHERS)}]
  prefer_server_cipher_suites: false
http_server_config:
  http2: true
  headers: {{Strict-Transport-Security: max-age=31536000}}
basic_auth_users:
  alice: {HASH}
""")
    assert load_web_config(file) == WebConfig(
        tls_server_config=TlsServerConfig(
            cert_file=f"{tmp_path}/server.pem",
            key_file="/etc/keys/server.key",
            client_auth_type="VerifyClientCertIfGiven",
            client_ca_file=f"{tmp_path}/ca.pem",
            min_version="TLS12",
            max_version="TLS12",
            cipher_suites=tuple(CIPHERS),
            prefer_server_cipher_suites=False,
        ),
        http_server_config=HttpServerConfig(headers={"Strict-Transport-Security": "max-age=31536000"}),
        basic_auth_users={"alice": HASH},
    )


def test_a_web_configuration_shows_no_hash() -> None:
    shown = repr(WebConfig(basic_auth_users={"alice": HASH}))
    assert "alice" in shown
    assert HASH not in shown


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8) | st.sampled_from(["hunter2", HASH, "TLS12"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["alice", "headers"]), inner),
    max_leaves=5,
)
keys = st.sampled_from(["basic_auth_users", "tls_server_config", "http_server_config", "rate_limit"])


@given(st.dictionaries(keys, values, max_size=3))
@settings(max_examples=200, deadline=None)
def test_any_values_load_or_are_explained_without_a_secret(
    tmp_path_factory: pytest.TempPathFactory, data: dict[str, object]
) -> None:
    import json

    file = tmp_path_factory.getbasetemp() / "web.yml"
    file.write_text(json.dumps(data))
    try:
        WebConfigFile(file)
    except ConfigError as error:
        message = str(error)
    else:
        return
    if "basic_auth_users" in message:
        assert "hunter2" not in message
