"""One engine to be read: where it is, and how to prove who asks."""

from __future__ import annotations

import os
import ssl
from dataclasses import dataclass
from pathlib import Path

from yarl import URL

from wattline.engines.normalise import KINDS

_DEFAULT_PATH = "/metrics"


class CredentialsError(Exception):
    """The configured token cannot be had. The message never holds any of it.

    Args:
        message: what is wrong.
        word: the bounded word for it: ``no_token`` when there is none, ``credentials`` when it cannot be one.
    """

    def __init__(self, message: str, word: str = "credentials") -> None:
        super().__init__(message)
        self.word = word


@dataclass(frozen=True, slots=True)
class EngineTarget:
    """An inference server and how to reach its metrics. Holds where secrets are, never a secret.

    Raises:
        ValueError: the address, the kind or the combination of settings is wrong; the message says how.
    """

    name: str
    """Unique among the engines; empty: host and port of the address."""
    url: str
    """``http`` or ``https``. Without a path, the path where this kind serves its metrics is meant."""
    kind: str | None = None
    """A name from :data:`wattline.engines.normalise.KINDS`; ``None``: recognised by the metrics."""
    bearer_token_file: str | None = None
    """Read anew for every request, so that a rotated token is used at once."""
    bearer_token_env: str | None = None
    """Name of an environment variable that holds the token."""
    ca_file: str | None = None
    """PEM file of the authorities to trust instead of the system's."""
    server_name: str | None = None
    """The name to expect in the certificate, when it is not the host of the address."""
    insecure_skip_verify: bool = False

    def __post_init__(self) -> None:
        try:
            url = URL(self.url)
            usable = url.scheme in {"http", "https"} and bool(url.host) and url.port is not None
        except ValueError:
            url, usable = URL(), False
        if not usable:
            # Not quoted: there may be a password in it.
            raise ValueError("expected an address such as http://127.0.0.1:30000/metrics")
        if url.user is not None or url.password is not None:
            raise ValueError("expected no user or password in the address; use bearer_token_file or bearer_token_env")
        if self.kind is not None and self.kind not in KINDS:
            raise ValueError(f"expected a kind of {', '.join(KINDS)}, found {self.kind!r}")
        if self.bearer_token_file and self.bearer_token_env:
            raise ValueError("expected one of bearer_token_file and bearer_token_env, found both")
        if url.path in {"", "/"}:
            url = url.with_path(KINDS[self.kind].path if self.kind else _DEFAULT_PATH).with_query(url.query)
        object.__setattr__(self, "url", str(url.with_fragment(None)))
        if not self.name:
            host = f"[{url.host}]" if ":" in str(url.host) else url.host
            object.__setattr__(self, "name", f"{host}:{url.port}")

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
