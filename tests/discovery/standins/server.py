"""Stands in for an inference server: same command line, same tree of processes, a real socket.

STANDIN_TITLES names the processes that compute, STANDIN_GPU is a file that they hold open like a GPU's device, and
STANDIN_METRICS is what is served. Says its port and their ids on standard output, and ends with its standard input.
"""

from __future__ import annotations

import http.server
import json
import os
import subprocess
import sys
import threading
from pathlib import Path

COMPUTE = "import sys; device = open(sys.argv[1]); print(flush=True); sys.stdin.read()"


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        body = Path(os.environ["STANDIN_METRICS"]).read_bytes()
        self.send_response(200)
        self.send_header("Content-Type", "text/plain; version=0.0.4")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


def main() -> None:
    children = [
        subprocess.Popen(
            [title, "-c", COMPUTE, os.environ["STANDIN_GPU"]],
            executable=sys.executable,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        for title in os.environ["STANDIN_TITLES"].split(",")
    ]
    for child in children:
        assert child.stdout is not None
        child.stdout.readline()
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    told = json.dumps({"port": server.server_port, "pids": [child.pid for child in children]})
    sys.stdout.write(f"{told}\n")
    sys.stdout.flush()
    sys.stdin.read()
    for child in children:
        child.kill()
        child.wait()


if __name__ == "__main__":
    main()
