"""The file of ``--web.config.file``: TLS, users and headers, in the format that Prometheus' own exporters share.

Keys of that format that would be ignored here are refused instead: a security setting is in force or is an error.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from msgspec import Struct, field
from msgspec.structs import replace

from wattline.yamlfile import Document, read_text

if TYPE_CHECKING:
    from collections.abc import Iterator

    from wattline.yamlfile import ConfigError, KeyPath

TlsVersion = Literal["TLS10", "TLS11", "TLS12", "TLS13"]
_VERSIONS: tuple[TlsVersion, ...] = ("TLS10", "TLS11", "TLS12", "TLS13")

CIPHERS = {
    "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256": "ECDHE-ECDSA-AES128-GCM-SHA256",
    "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384": "ECDHE-ECDSA-AES256-GCM-SHA384",
    "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256": "ECDHE-ECDSA-CHACHA20-POLY1305",
    "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256": "ECDHE-RSA-AES128-GCM-SHA256",
    "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384": "ECDHE-RSA-AES256-GCM-SHA384",
    "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256": "ECDHE-RSA-CHACHA20-POLY1305",
    # Always on with TLS 1.3, named or not.
    "TLS_AES_128_GCM_SHA256": "",
    "TLS_AES_256_GCM_SHA384": "",
    "TLS_CHACHA20_POLY1305_SHA256": "",
}
"""The format's (IANA's) names of the suites that are still sound, and OpenSSL's."""

HEADERS = (
    "Content-Security-Policy",
    "Strict-Transport-Security",
    "X-Content-Type-Options",
    "X-Frame-Options",
    "X-XSS-Protection",
)
"""The response headers that may be set."""

_NOT_SUPPORTED = {
    ("tls_server_config", "cert"): "give the certificate as cert_file",
    ("tls_server_config", "key"): "give the key as key_file",
    ("tls_server_config", "client_ca"): "give the authority as client_ca_file",
    ("tls_server_config", "client_allowed_sans"): "let client_ca_file sign only those who may come in",
    ("tls_server_config", "curve_preferences"): "OpenSSL's own order is used",
    ("rate_limit",): "the number of requests at a time is always bounded",
}
"""Keys of the format that are not supported here, and what to do instead."""


class TlsServerConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The certificate to show, and what is asked of clients."""

    cert_file: str
    key_file: str
    client_auth_type: Literal[
        "NoClientCert",
        "RequestClientCert",
        "RequireAnyClientCert",
        "VerifyClientCertIfGiven",
        "RequireAndVerifyClientCert",
    ] = "NoClientCert"
    client_ca_file: str | None = None
    min_version: TlsVersion = "TLS12"
    max_version: TlsVersion = "TLS13"
    cipher_suites: tuple[str, ...] = ()
    prefer_server_cipher_suites: bool = True


class HttpServerConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``http2`` is accepted and changes nothing: only HTTP/1.1 is spoken."""

    http2: bool = True
    headers: dict[str, str] = field(default_factory=dict)


class WebConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Who may come in, and how."""

    tls_server_config: TlsServerConfig | None = None
    http_server_config: HttpServerConfig = field(default_factory=HttpServerConfig)
    basic_auth_users: dict[str, str] = field(default_factory=dict)
    """bcrypt hashes by user name."""

    def __repr__(self) -> str:
        """Without the hashes."""
        users = ", ".join(self.basic_auth_users)
        return f"WebConfig({self.tls_server_config!r}, {self.http_server_config!r}, users: {users})"


class WebConfigFile:
    """A web configuration and where in its file each key stands.

    Raises:
        ConfigError: with file, line, key, what was found and what was expected; never with a hash or password.
    """

    def __init__(self, path: str | Path) -> None:
        self._document = Document(read_text(path), str(path), secret={"basic_auth_users"})
        self._refuse_unsupported()
        config = self._document.convert(WebConfig)
        for key, problem in _contradictions(config):
            raise self.error(key, problem)
        self.config = _resolved(config, Path(path).parent)

    def error(self, path: KeyPath, problem: str) -> ConfigError:
        """An error at a key of this file."""
        return self._document.error(path, problem)

    def _refuse_unsupported(self) -> None:
        for (first, *rest), instead in _NOT_SUPPORTED.items():
            section = self._document.data.get(first) if rest else self._document.data
            key = rest[0] if rest else first
            if isinstance(section, dict) and key in section:
                raise self.error((first, *rest), f"is not supported here; {instead}")


def load_web_config(path: str | Path) -> WebConfig:
    """The web configuration in a file; relative paths in it are relative to the file.

    Raises:
        ConfigError: as :class:`WebConfigFile`.
    """
    return WebConfigFile(path).config


def _resolved(config: WebConfig, folder: Path) -> WebConfig:
    tls = config.tls_server_config
    if tls is None:
        return config
    files = {key: getattr(tls, key) for key in ("cert_file", "key_file", "client_ca_file")}
    resolved = {key: str(folder / file) for key, file in files.items() if file is not None}
    return replace(config, tls_server_config=replace(tls, **resolved))


_BCRYPT = re.compile(r"\$2[aby]\$(0[4-9]|[12][0-9]|3[01])\$[./A-Za-z0-9]{53}")


def _contradictions(config: WebConfig) -> Iterator[tuple[KeyPath, str]]:
    if config.tls_server_config is not None:
        for key, problem in _bad_tls(config.tls_server_config):
            yield ("tls_server_config", *key), problem
    for name, value in config.http_server_config.headers.items():
        path = ("http_server_config", "headers", name)
        if name not in HEADERS:
            yield path, f"expected one of the headers {', '.join(HEADERS)}"
        if not value.isprintable() or not value.isascii():
            yield path, "expected printable ASCII text on one line"
    for user, hashed in config.basic_auth_users.items():
        if not user or ":" in user or not user.isprintable():
            yield ("basic_auth_users", user), "expected a user name of printable characters without a colon"
        if not _BCRYPT.fullmatch(hashed):
            yield ("basic_auth_users", user), "expected a bcrypt hash, as printed by: htpasswd -nBC 10 '' | tr -d ':'"


def _bad_tls(tls: TlsServerConfig) -> Iterator[tuple[KeyPath, str]]:
    verifies = tls.client_auth_type in ("VerifyClientCertIfGiven", "RequireAndVerifyClientCert")
    if tls.client_auth_type in ("RequestClientCert", "RequireAnyClientCert"):
        expected = "expected 'NoClientCert', 'VerifyClientCertIfGiven' or 'RequireAndVerifyClientCert'"
        yield ("client_auth_type",), f"{tls.client_auth_type!r} verifies nothing and is not supported here; {expected}"
    if verifies and tls.client_ca_file is None:
        yield ("client_auth_type",), f"{tls.client_auth_type!r} needs a client_ca_file"
    if tls.client_ca_file is not None and not verifies:
        yield ("client_ca_file",), f"expected a client_auth_type that verifies, found {tls.client_auth_type!r}"
    if _VERSIONS.index(tls.min_version) > _VERSIONS.index(tls.max_version):
        yield ("min_version",), f"expected at most max_version ({tls.max_version}), found {tls.min_version}"
    for index, suite in enumerate(tls.cipher_suites):
        if suite not in CIPHERS:
            yield ("cipher_suites", index), f"expected one of {', '.join(CIPHERS)}, found {suite[:60]!r}"
