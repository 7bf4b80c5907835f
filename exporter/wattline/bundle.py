"""`wattline bundle DIR`: rules, dashboards, compose file and chart of the installed version, as files."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

from wattline import __version__
from wattline.shipped import ROOT, files
from wattline.yamlfile import UsageError

if TYPE_CHECKING:
    from pathlib import Path

DOCKERFILE = f"""# The image for this compose file: the locked dependencies and the package, from the package index.
FROM docker.io/library/python:3.13-slim-bookworm
COPY requirements.txt ./
RUN pip install --no-cache-dir --require-hashes --only-binary :all: --requirement requirements.txt \\
    && pip install --no-cache-dir --no-deps wattline=={__version__} \\
    && install --directory --owner 65532 --group 65532 /var/lib/wattline
ENV PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1 NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=utility
USER 65532:65532
WORKDIR /var/lib/wattline
EXPOSE 10087
ENTRYPOINT ["wattline"]
CMD ["serve"]
"""


def write(directory: Path) -> int:
    """Write the bundle into a directory that is new or empty.

    Returns:
        How many files were written.

    Raises:
        UsageError: the directory holds something, or cannot be written.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
        if any(directory.iterdir()):
            raise UsageError(f"{directory}: found files in it, expected a new or empty directory")
        count = 0
        for path in files():
            target = directory / path
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / path, target)
            count += 1
        (directory / "Dockerfile").write_text(DOCKERFILE, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{directory}: cannot write the bundle: {error.strerror}") from None
    return count + 1
