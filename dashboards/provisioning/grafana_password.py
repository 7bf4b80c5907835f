"""Write Grafana's first password where Grafana reads it: the one of the environment, or one made up here.

    python grafana_password.py FILE

With GRAFANA_PASSWORD set, that is it. Otherwise a password is made up at the first start, kept in FILE, and printed:
`docker compose logs grafana-password` shows it. No bundle ever runs with a password that stands in a manual.
"""

from __future__ import annotations

import os
import secrets
import sys
from pathlib import Path


def main(file: Path) -> None:
    """Write the password into ``file``, unless one that was made up stands there already."""
    chosen = os.environ.get("GRAFANA_PASSWORD", "")
    if chosen:
        file.write_text(chosen)
        print("Grafana: user admin, password from GRAFANA_PASSWORD (it counts at Grafana's first start only)")
        return
    if not file.exists() or not file.read_text():
        file.write_text(secrets.token_urlsafe(12))
    print(f"Grafana: user admin, password {file.read_text()}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
