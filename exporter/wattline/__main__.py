"""Where the program begins: from here on Ctrl-C ends it without a traceback, also while everything is imported."""

from __future__ import annotations

import sys


def main() -> int:
    """Run the command that the arguments name, and give its exit code."""
    try:
        from wattline.cli import main as run

        return run()
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
