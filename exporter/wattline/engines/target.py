"""One engine to be read: where it is, and how to prove who asks."""

from __future__ import annotations

import os
import re
import ssl
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import SplitResult, urlsplit

from msgspec import Struct
from msgspec.structs import replace
from yarl import URL

from wattline.engines.tables import KINDS

if TYPE_CHECKING:
    from collections.abc import Iterator

DEFAULT_ENGINE_URL = "http://127.0.0.1:30000/metrics"


class CredentialsError(Exception):
    """The configured token cannot be had. The message never holds any of it.

    Args:
        message: what is wrong.
        word: the bounded word for it: ``no_token`` when there is none, ``credentials`` when it cannot be one.
    """

    def __init__(self, message: str, word: str = "credentials") -> None:
        super().__init__(message)
        self.word = word


class Engine(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One inference server and how to reach its metrics, as configured. Holds where secrets are, never a secret."""

    url: str
    """``http`` or ``https``. Without a path, the path where this kind serves its metrics is meant."""
    name: str = ""
    """Unique; derived from the address when it is not given."""
    kind: str | None = None
    """A name from :data:`wattline.engines.tables.KINDS`; recognised from its metrics when it is not given."""
    count_tokens: bool = True
    """False: read for its load only, since another exporter counts its tokens."""
    bearer_token_file: str | None = None
    """Read anew for every request, so that a rotated token is used at once."""
    bearer_token_env: str | None = None
    """Name of an environment variable that holds the token."""
    ca_file: str | None = None
    """PEM file of the authorities to trust instead of the system's."""
    server_name: str | None = None
    """The name to expect in the certificate, when it is not the host of the address."""
    insecure_skip_verify: bool = False

    def completed(self, folder: Path) -> Engine:
        """With a name and a full address; paths are relative to ``folder``."""

        def resolved(path: str | None) -> str | None:
            return None if path is None else str(folder / path)

        return replace(
            self,
            url=_full_url(self.url, self.kind),
            name=self.name or _derived_name(self.url),
            bearer_token_file=resolved(self.bearer_token_file),
            ca_file=resolved(self.ca_file),
        )

    def problems(self) -> Iterator[tuple[str, str]]:
        """What is wrong with it: the key, and what was expected and found. No secret is repeated."""
        parts = _split(self.url)
        if parts is None:
            yield (
                "url",
                f"expected an address such as {DEFAULT_ENGINE_URL}, found {_without_userinfo(self.url)[:100]!r}",
            )
            return
        if parts.username is not None:
            yield "url", "expected no user or password in the address; use bearer_token_file or bearer_token_env"
        if self.name != _derived_name(self.url) and (problem := bad_name(self.name)):
            yield "name", problem
        if self.kind is not None and self.kind not in KINDS:
            yield "kind", f"expected one of {', '.join(KINDS)}, found {self.kind[:60]!r}"
        if self.bearer_token_file is not None and self.bearer_token_env is not None:
            yield "bearer_token_env", "expected one of bearer_token_file and bearer_token_env, found both"
        if self.bearer_token_env is not None and not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", self.bearer_token_env):
            # Not quoted: it may well be the token itself.
            yield "bearer_token_env", "expected the name of an environment variable, found something else"
        if self.ca_file is not None and self.insecure_skip_verify:
            yield "insecure_skip_verify", "expected no ca_file beside it: nothing is verified"
        for key in ("ca_file", "server_name", "insecure_skip_verify"):
            if parts.scheme == "http" and getattr(self, key):
                yield key, "is for https addresses, and this one is http"

    @property
    def source(self) -> str:
        """The value of the ``source`` label in the exporter's metrics about itself."""
        return f"engine:{self.name}"

    def headers(self) -> dict[str, str]:
        """Give the header that authorises a request; none when no token is configured.

        Raises:
            CredentialsError: the file or variable cannot be read, or does not hold a token.
        """
        if self.bearer_token_file:
            try:
                token = Path(self.bearer_token_file).read_text(encoding="ascii").strip()
            except OSError:
                raise CredentialsError("the token file cannot be read", "no_token") from None
            except ValueError:
                raise CredentialsError("the token is not ASCII text") from None
        elif self.bearer_token_env:
            if self.bearer_token_env not in os.environ:
                raise CredentialsError("the variable of the token is not set", "no_token")
            token = os.environ[self.bearer_token_env].strip()
        else:
            return {}
        if not token or not token.isascii() or not token.isprintable() or " " in token:
            raise CredentialsError("the token is not one word of printable characters")
        return {"Authorization": f"Bearer {token}"}

    def tls(self) -> ssl.SSLContext:
        """Make the context that decides which certificates are believed.

        Raises:
            OSError: ``ca_file`` cannot be read or holds no certificate (:class:`ssl.SSLError`).
        """
        context = ssl.create_default_context(cafile=self.ca_file)
        if self.insecure_skip_verify:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        return context


_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9 ._:/@+-]*[A-Za-z0-9])?")
_MAX_NAME = 64


def bad_name(name: str) -> str | None:
    """What is wrong with the name of a deployment or an engine; ``None`` when nothing is."""
    if _NAME.fullmatch(name) and len(name) <= _MAX_NAME:
        return None
    return (
        f"expected a name of up to {_MAX_NAME} letters, digits, spaces and ._:/@+- that begins and ends with a letter "
        f"or digit, found {name[:_MAX_NAME]!r}"
    )


def _split(url: str) -> SplitResult | None:
    try:
        parts = urlsplit(url)
        _ = parts.port
        usable = URL(url).host  # Whoever fetches it is more particular about names.
    except ValueError:
        return None
    return parts if parts.scheme in ("http", "https") and parts.hostname and usable else None


def _full_url(url: str, kind: str | None) -> str:
    """With the path where this kind of engine serves its metrics, unless another is given."""
    parts = _split(url)
    if parts is None or parts.path not in ("", "/"):
        return url
    return parts._replace(path=KINDS[kind].path if kind in KINDS else "/metrics").geturl()


def _derived_name(url: str) -> str:
    parts = _split(url)
    if parts is None:
        return url
    return parts.netloc if parts.path in ("", "/", "/metrics") else parts.netloc + parts.path


def _without_userinfo(url: str) -> str:
    return re.sub(r"[^/@]*@", "...@", url)
