"""TLS and basic authentication by the web configuration, read again while serving."""

from __future__ import annotations

import asyncio
import base64
import hmac
import logging
import secrets
import ssl
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Self

from aiohttp import hdrs, web

from wattline.publish.webconfig import CIPHERS, WebConfig, WebConfigFile
from wattline.yamlfile import ConfigError

if TYPE_CHECKING:
    from aiohttp.typedefs import Handler

    from wattline.publish.webconfig import TlsServerConfig, TlsVersion

log = logging.getLogger(__name__)

REMEMBERED = 64
"""Verified passwords that are remembered, so that a scrape does not pay for bcrypt each time."""
MAX_PASSWORD_BYTES = 72
"""bcrypt looks at no more; a longer password is refused rather than cut."""

_TLS_VERSIONS: dict[TlsVersion, ssl.TLSVersion] = {
    "TLS10": ssl.TLSVersion.TLSv1,
    "TLS11": ssl.TLSVersion.TLSv1_1,
    "TLS12": ssl.TLSVersion.TLSv1_2,
    "TLS13": ssl.TLSVersion.TLSv1_3,
}
_CLIENT_AUTH = {
    "NoClientCert": ssl.CERT_NONE,
    "VerifyClientCertIfGiven": ssl.CERT_OPTIONAL,
    "RequireAndVerifyClientCert": ssl.CERT_REQUIRED,
}


class WebSecurity:
    """The web configuration in force.

    A change of the file, or of a certificate that it names, takes effect with the next connection or request. A change
    that cannot be used is logged once, and what was in force stays in force. Whether TLS is spoken at all is decided
    at the start.

    Args:
        path: the file; ``None`` for neither TLS nor users.

    Raises:
        ConfigError: the file, or a certificate that it names, cannot be used.
    """

    def __init__(self, path: str | Path | None) -> None:
        self._path = path
        self._config = WebConfig()
        self._context: ssl.SSLContext | None = None
        self._seen: tuple[object, ...] = ()
        self._passwords = _Passwords()
        if path is not None:
            self._config, self._context = _use(WebConfigFile(path))
            self._seen = self._fingerprint()

    def ssl_context(self) -> ssl.SSLContext | None:
        """For the server socket; ``None`` when plain HTTP is configured."""
        return None if self._context is None else _FreshContext(self)

    def install(self, app: web.Application) -> None:
        """Protect everything that the application serves."""
        app.middlewares.append(self._authenticate)
        app.on_response_prepare.append(self._add_headers)
        app.on_cleanup.append(self._close)

    def fresh_context(self) -> ssl.SSLContext:
        """The context of the next connection."""
        self._refresh()
        assert self._context is not None  # noqa: S101 - TLS cannot be switched off while serving
        return self._context

    def _refresh(self) -> None:
        """Read again what has changed."""
        if self._path is None or (now := self._fingerprint()) == self._seen:
            return
        self._seen = now
        try:
            file = WebConfigFile(self._path)
            config, context = _use(file)
            if (context is None) != (self._context is None):
                raise file.error(("tls_server_config",), "TLS is switched on or off only by a restart")
        except ConfigError as error:
            log.warning("the web configuration has changed and cannot be used; the old one stays in force: %s", error)
            return
        self._config, self._context = config, context
        self._seen = self._fingerprint()
        log.info("the web configuration was read again: %s", self._path)

    def _fingerprint(self) -> tuple[object, ...]:
        """Changes with any file that the configuration is made of."""
        tls = self._config.tls_server_config
        named = (tls.cert_file, tls.key_file, tls.client_ca_file) if tls else ()
        return tuple(_stamp(file) for file in (self._path, *named) if file is not None)

    @web.middleware
    async def _authenticate(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        self._refresh()
        users = self._config.basic_auth_users
        if users and not await self._passwords.allow(request.headers.get(hdrs.AUTHORIZATION, ""), users):
            return web.Response(
                status=401, text="Unauthorized\n", headers={hdrs.WWW_AUTHENTICATE: 'Basic realm="wattline"'}
            )
        return await handler(request)

    async def _add_headers(self, _: web.Request, response: web.StreamResponse) -> None:
        response.headers.update(self._config.http_server_config.headers)

    async def _close(self, _: web.Application) -> None:
        self._passwords.close()


class _FreshContext(ssl.SSLContext):
    """Stands at the server socket and hands each new connection to the context in force."""

    _security: WebSecurity

    def __new__(cls, security: WebSecurity) -> Self:
        self = super().__new__(cls, ssl.PROTOCOL_TLS_SERVER)
        self._security = security
        return self

    def wrap_bio(
        self,
        incoming: ssl.MemoryBIO,
        outgoing: ssl.MemoryBIO,
        server_side: bool = False,
        server_hostname: str | bytes | None = None,
        session: ssl.SSLSession | None = None,
    ) -> ssl.SSLObject:
        context = self._security.fresh_context()
        return context.wrap_bio(incoming, outgoing, server_side, server_hostname, session)


class _Passwords:
    """Checks passwords on a thread of its own, one at a time: guessing costs one core at most."""

    def __init__(self) -> None:
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="passwords")
        self._key = secrets.token_bytes(32)
        self._verified: dict[bytes, None] = {}

    async def allow(self, header: str, users: dict[str, str]) -> bool:
        """Whether an Authorization header names a user and their password."""
        try:
            user, password = _credentials(header)
        except ValueError:
            return False
        if len(password) > MAX_PASSWORD_BYTES or b"\0" in password:
            return False
        # For an unknown user some hash is checked too: the time does not tell who exists.
        known = user in users
        hashed = users[user] if known else next(iter(users.values()))
        # The hash is part of it: with another password the memory of the old one is void.
        proof = hmac.digest(self._key, b"\0".join((user.encode(), password, hashed.encode())), "sha256")
        if known and proof in self._verified:
            return True
        right = await asyncio.get_running_loop().run_in_executor(self._executor, _check, password, hashed.encode())
        if not (known and right):
            return False
        self._verified[proof] = None
        while len(self._verified) > REMEMBERED:
            del self._verified[next(iter(self._verified))]
        return True

    def close(self) -> None:
        """Let go of the thread."""
        self._executor.shutdown(wait=False, cancel_futures=True)


def _credentials(header: str) -> tuple[str, bytes]:
    """User and password of a Basic Authorization header; ValueError for anything else."""
    scheme, _, encoded = header.partition(" ")
    user, colon, password = base64.b64decode(encoded.strip(), validate=True).partition(b":")
    if scheme.lower() != "basic" or not colon:
        raise ValueError("no basic authentication")
    return user.decode(), password


def _check(password: bytes, hashed: bytes) -> bool:
    import bcrypt

    return bcrypt.checkpw(password, hashed)


def _stamp(file: str | Path) -> tuple[int, int, int] | None:
    try:
        stat = Path(file).stat()
    except OSError:
        return None
    return stat.st_mtime_ns, stat.st_size, stat.st_ino


def _use(file: WebConfigFile) -> tuple[WebConfig, ssl.SSLContext | None]:
    tls = file.config.tls_server_config
    return file.config, None if tls is None else _make_context(tls, file)


def _make_context(tls: TlsServerConfig, file: WebConfigFile) -> ssl.SSLContext:
    def error(key: str, cause: OSError) -> ConfigError:
        reason = getattr(cause, "reason", None) or cause.strerror or str(cause)
        return file.error(("tls_server_config", key), f"{getattr(tls, key)} cannot be used: {reason}")

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = _TLS_VERSIONS[tls.min_version]
    context.maximum_version = _TLS_VERSIONS[tls.max_version]
    context.set_alpn_protocols(["http/1.1"])
    if not tls.prefer_server_cipher_suites:
        context.options &= ~ssl.OP_CIPHER_SERVER_PREFERENCE
    if suites := [CIPHERS[name] for name in tls.cipher_suites if CIPHERS[name]]:
        context.set_ciphers(":".join(suites))
    for key in ("cert_file", "key_file", "client_ca_file"):
        try:
            if name := getattr(tls, key):
                Path(name).read_bytes()
        except OSError as cause:
            raise error(key, cause) from None
    try:
        # Asked for a passphrase, it gives an empty one instead of asking at a terminal.
        context.load_cert_chain(tls.cert_file, tls.key_file, password="")
    except OSError as cause:
        raise error("cert_file", cause) from None
    if tls.client_ca_file is not None:
        try:
            context.load_verify_locations(tls.client_ca_file)
        except OSError as cause:
            raise error("client_ca_file", cause) from None
    context.verify_mode = _CLIENT_AUTH[tls.client_auth_type]
    return context
