"""Why an engine could not be read: a bounded set of words, and what to do about each."""

from __future__ import annotations

import errno
import socket
import ssl
from http import HTTPStatus

import aiohttp

from wattline.engines.tables import KINDS

_BY_ERRNO = {
    errno.ECONNREFUSED: "connection_refused",
    errno.ECONNRESET: "connection_reset",
    errno.EPIPE: "connection_reset",
    errno.ECONNABORTED: "connection_reset",
    errno.ENETUNREACH: "unreachable",
    errno.EHOSTUNREACH: "unreachable",
    errno.EHOSTDOWN: "unreachable",
    errno.ETIMEDOUT: "timeout",
}

# The first class that fits gives the word; order is from the special to the general.
_BY_CLASS: tuple[tuple[tuple[type[BaseException], ...], str], ...] = (
    ((TimeoutError,), "timeout"),
    ((aiohttp.ClientSSLError, aiohttp.ServerFingerprintMismatch, ssl.SSLError), "tls"),
    ((aiohttp.ClientConnectorDNSError, socket.gaierror, UnicodeError), "dns"),
    ((aiohttp.ServerDisconnectedError,), "connection_reset"),
)

_NO_METRICS = frozenset({"empty", "http_404", "no_engine_metrics", "not_metrics"})
"""Words for which the way out is to have the engine serve metrics."""
_AUTHORISATION = "name the token by bearer_token_file or bearer_token_env"
_HINTS = {
    "connection_refused": (
        "is the server running, and is the port right? From a container, localhost is the container itself, and a "
        "server on the host must listen on 0.0.0.0 (--host 0.0.0.0)"
    ),
    "credentials": "the configured token is not one word of printable characters",
    "dns": "the host has no address here; in Docker on Linux, host.docker.internal needs extra_hosts",
    "http_401": _AUTHORISATION,
    "http_403": _AUTHORISATION,
    "no_engine_metrics": "metrics, but of no engine known here, or not of the configured kind",
    "no_token": "bearer_token_file is missing or may not be read, or the variable of bearer_token_env is not set",
    "not_metrics": "the answer is no metrics text",
    "redirect": "redirects are followed within one origin only, three at most; configure the final address",
    "router": (
        "this is a router or the merged metrics of several servers; configure each server's own address. A worker that "
        "speaks gRPC serves its metrics over HTTP beside it: SGLang with --enable-metrics on its port + 1, or that of "
        "--smg-http-sidecar-port"
    ),
    "timeout": "the server answers too slowly, or not at all",
    "tls": "name the authority by ca_file, the certificate's host by server_name",
    "too_large": "the answer is larger than any engine's metrics",
}


def classify(error: BaseException) -> str:
    """Give the bounded word for what a request raised."""
    for classes, word in _BY_CLASS:
        if isinstance(error, classes):
            return word
    if isinstance(error, aiohttp.ClientConnectorError) and isinstance(error.os_error, socket.gaierror):
        return "dns"
    if isinstance(error, OSError):
        return _BY_ERRNO.get(error.errno or 0, "connection_failed")
    return "protocol" if isinstance(error, (aiohttp.ClientError, ValueError)) else "internal"


def http_word(status: int) -> str:
    """Give the bounded word for an HTTP status that is not success: ``http_404``, or ``http_5xx`` for made-up ones."""
    known = status in set(HTTPStatus)
    return f"http_{status}" if known else f"http_{status // 100}xx"


def hint(error: str, kind: str | None = None) -> str:
    """Say what an operator can do about an error word; empty where there is nothing special to say.

    Args:
        error: the word.
        kind: the configured kind of the engine, if any: the hint then speaks of that kind alone.
    """
    kinds = [KINDS[kind]] if kind in KINDS else [*KINDS.values()]
    special = kinds[0].hints.get(error) if len(kinds) == 1 else None
    general = special or _HINTS.get(error, "")
    starts = "; ".join(k.start for k in kinds if k.start) if error in _NO_METRICS else ""
    return ": ".join(filter(None, (general, starts)))
