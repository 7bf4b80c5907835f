"""A receiver that prints every message of Alertmanager as one line for each alert, and keeps nothing.

    python alerts/webhook_log.py [HOST:PORT]        default :9099

The bundle sends all alerts here until you have chosen where people are to hear of them (alerts/examples/). It needs
nothing but Python's standard library. `GET /` answers with the last lines.
"""

from __future__ import annotations

import json
import signal
import sys
from collections import deque
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar

KEPT_LINES = 200
MAX_BODY = 4 * 1024 * 1024


def lines(route: str, message: dict[str, Any], now: datetime) -> list[str]:
    """One line for each alert of a message.

    Raises:
        KeyError, TypeError, AttributeError: it is not a message of Alertmanager.
    """
    stamp = now.strftime("%Y-%m-%dT%H:%M:%SZ")
    return [
        f"{stamp} {route} {alert['status']} {alert['labels']['severity']} {alert['labels']['alertname']}: "
        f"{alert['annotations'].get('summary', '')} {alert['annotations'].get('description', '')}".rstrip()
        for alert in message["alerts"]
    ]


class Handler(BaseHTTPRequestHandler):
    """POST takes a message, GET shows the last lines."""

    last: ClassVar[deque[str]] = deque(maxlen=KEPT_LINES)
    timeout = 10

    def do_POST(self) -> None:
        """Print a message."""
        try:
            length = min(max(int(self.headers["Content-Length"]), 0), MAX_BODY)
            told = lines(self.path.strip("/") or "alerts", json.loads(self.rfile.read(length)), datetime.now(tz=UTC))
        except (ValueError, KeyError, TypeError, AttributeError):
            self._answer(400, "expected a message of Alertmanager\n")
            return
        for line in told:
            print(line, flush=True)
        self.last.extend(told)
        self._answer(200, "")

    def do_GET(self) -> None:
        """Show the last lines."""
        self._answer(200, "".join(f"{line}\n" for line in self.last))

    def _answer(self, status: int, text: str) -> None:
        body = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", "text/plain; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name that the standard library uses
        """Say nothing: the alerts are the log."""


def main(arguments: list[str]) -> int:
    """Serve until SIGTERM or SIGINT."""
    host, _, port = (arguments[0] if arguments else ":9099").rpartition(":")
    if len(arguments) > 1 or not port.isdecimal():
        print(f"webhook_log.py: expected one address HOST:PORT, found {' '.join(arguments)}", file=sys.stderr)
        return 2
    try:
        server = ThreadingHTTPServer((host, int(port)), Handler)
    except (OSError, OverflowError) as err:
        print(f"webhook_log.py: cannot listen on {host}:{port}: {err}", file=sys.stderr)
        return 2
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    print(f"listening on {server.server_address[0]!s}:{server.server_address[1]}", flush=True)
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        pass
    finally:
        server.server_close()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
