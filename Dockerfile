# The exporter's image: Python, the locked dependencies and the package, nothing else. See docs/deployment.md.
#
#   docker build --tag wattline .
#   docker run --rm --publish 127.0.0.1:10087:10087 wattline demo
#
# For several architectures: docker buildx build --platform linux/amd64,linux/arm64 . Nothing here is of one machine: the
# dependencies are wheels of the platform that is built for, and NVIDIA's container toolkit mounts the driver's library.

ARG PYTHON_IMAGE=docker.io/library/python:3.13-slim-bookworm

FROM ${PYTHON_IMAGE} AS build
# A build without network takes its wheels from a folder: PIP_NO_INDEX=1, PIP_FIND_LINKS=/that/folder.
ARG PIP_NO_INDEX
ARG PIP_FIND_LINKS
ARG PIP_ROOT_USER_ACTION=ignore
ARG PIP_DISABLE_PIP_VERSION_CHECK=1
WORKDIR /build

COPY requirements-build.txt ./
RUN python -m venv --without-pip tools \
    && pip --python tools/bin/python install --no-cache-dir --require-hashes --only-binary :all: \
        --requirement requirements-build.txt

# A layer of its own, which changes only with the lock.
COPY requirements.txt ./
RUN python -m venv --without-pip /opt/wattline \
    && pip --python /opt/wattline/bin/python install --no-cache-dir --no-compile --require-hashes --only-binary :all: \
        --requirement requirements.txt

COPY pyproject.toml README.md LICENSE .env.example docker-compose.yml docker-compose.host.yml ./
COPY exporter ./exporter
COPY alerts ./alerts
COPY dashboards ./dashboards
COPY deploy ./deploy
COPY docs/runbooks ./docs/runbooks
COPY tools/wheel_files.py ./tools/wheel_files.py
# Byte code that is not checked against the time of its source gives the same image from the same files.
RUN pip --python tools/bin/python wheel --no-cache-dir --no-deps --no-build-isolation --wheel-dir dist . \
    && pip --python /opt/wattline/bin/python install --no-cache-dir --no-compile --no-deps --no-index dist/*.whl \
    && python -m compileall -q --invalidation-mode unchecked-hash /opt/wattline/lib \
    && /opt/wattline/bin/wattline --version

FROM ${PYTHON_IMAGE}
# The address of the repository that the image is built from; a release sets it.
ARG SOURCE
ARG VERSION=dev
ARG REVISION=unknown
LABEL org.opencontainers.image.title="Wattline" \
      org.opencontainers.image.description="Do your GPUs earn their watts? Joins GPU power with inference load." \
      org.opencontainers.image.source="${SOURCE}" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"

# What is learned is kept here; a named volume takes over the owner.
RUN install --directory --owner 65532 --group 65532 --mode 0755 /var/lib/wattline
COPY --from=build /opt/wattline /opt/wattline

# `utility` brings NVML (libnvidia-ml) and nothing that could compute.
ENV PATH=/opt/wattline/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=utility

USER 65532:65532
WORKDIR /var/lib/wattline
EXPOSE 10087
STOPSIGNAL SIGTERM
# Any answer below 500 will do: behind basic authentication it is 401. Behind TLS, bring your own check.
HEALTHCHECK --interval=30s --timeout=5s --start-period=15s --retries=3 \
    CMD ["python", "-c", "import http.client as h; c = h.HTTPConnection('127.0.0.1', 10087, timeout=3); c.request('GET', '/-/healthy'); raise SystemExit(c.getresponse().status >= 500)"]

ENTRYPOINT ["wattline"]
CMD ["serve"]
