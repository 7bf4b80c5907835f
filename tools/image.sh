#!/usr/bin/env bash
# Builds the image and runs it without a container engine, to see that it works: for machines that have none, CI too.
#
#   tools/image.sh            build it, run its demo as an ordinary user, read /metrics, say its size
#   tools/image.sh --keep     ... and leave the image behind (buildah images)
#
# Needs root on Debian (buildah, debootstrap, curl: installed when missing), some 1.5 GB of disk and two minutes. The
# base image is a stand-in: a minimal Debian 13 with its Python, made by debootstrap, since no registry is asked. Where
# there is an engine, plain `docker build .` does it on the real base image.
set -euo pipefail
cd "$(dirname "$0")/.."

keep=
[ "${1:-}" = --keep ] && keep=yes

tools/system-packages.sh buildah:buildah debootstrap:debootstrap curl:curl
version=$(sed -n 's/^__version__ = "\(.*\)"/\1/p' exporter/wattline/__init__.py)
python=.venv/bin/python
[ -x "$python" ] || python=python3

work=$(mktemp -d)
storage=$work/storage
container=
server=
buildah() { command buildah --root "$storage" --runroot "$work/run" --storage-driver vfs "$@"; }
clean() {
    [ -z "$server" ] || kill "$server" 2>/dev/null || true
    [ -z "$container" ] || buildah rm "$container" >/dev/null 2>&1 || true
    rm -rf --one-file-system "$work"
}
trap clean EXIT
trap 'exit 1' INT TERM HUP
if [ -n "$keep" ]; then
    buildah() { command buildah --storage-driver vfs "$@"; }
fi

say() { printf '\n== %s\n' "$*"; }

say "The stand-in for the base image"
mirror=${DEBIAN_MIRROR:-$(apt-get --print-uris update 2>/dev/null | sed -n "/^'.*\/debian\/*dists\//{s/^'\(.*\)dists\/.*/\1/p;q;}")}
[ -n "$mirror" ] || { echo "image.sh: no Debian archive in apt's sources; set DEBIAN_MIRROR to one" >&2; exit 1; }
debootstrap --variant=minbase --include=python3,python3-pip,python3-venv,ca-certificates trixie "$work/base" "$mirror" \
    >"$work/debootstrap.log" 2>&1 || { tail -n 20 "$work/debootstrap.log" >&2; exit 1; }
ln -s python3 "$work/base/usr/bin/python"
# Debian's pip refuses to touch Debian's Python; the base image's own has no such mark.
rm -f "$work"/base/usr/lib/python3*/EXTERNALLY-MANAGED
rm -rf "$work"/base/var/cache/apt/* "$work"/base/var/lib/apt/lists/*
base=$(buildah from scratch)
buildah add --quiet "$base" "$work/base" / >/dev/null
buildah config --env PATH=/usr/local/bin:/usr/bin:/bin --cmd python3 "$base"
buildah commit --quiet "$base" localhost/python-stand-in >/dev/null
buildah rm "$base" >/dev/null
rm -rf --one-file-system "$work/base"

say "The wheels of the lock"
target=$(buildah run --isolation chroot "$(buildah from localhost/python-stand-in)" \
    python3 -c 'import sys; print("%d.%d" % sys.version_info[:2])')
"$python" -m pip download --quiet --disable-pip-version-check --require-hashes --only-binary :all: \
    --python-version "$target" --dest "$work/wheels" -r requirements.txt -r requirements-build.txt \
    2>"$work/pip.log" || { cat "$work/pip.log" >&2; exit 1; }

say "The image"
buildah build --isolation chroot --format docker --pull-never --quiet --tag "localhost/wattline:$version" \
    --build-arg PYTHON_IMAGE=localhost/python-stand-in --build-arg "VERSION=$version" \
    --build-arg "REVISION=$(git rev-parse HEAD 2>/dev/null || echo unknown)" \
    --build-arg PIP_NO_INDEX=1 --build-arg PIP_FIND_LINKS=/wheels --volume "$work/wheels:/wheels:ro" .
container=$(buildah from --pull-never "localhost/wattline:$version")
tree=$(buildah mount "$container")
echo "what it adds to its base: $(du -sm "$tree/opt/wattline" | cut -f1) MB"
echo "user: $(buildah inspect --format '{{.OCIv1.Config.User}}' "$container")"

say "Run as that user: the demo"
port=$("$python" -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
buildah run --isolation chroot --user 65532:65532 "$container" -- \
    wattline demo --web.listen-address "127.0.0.1:$port" >"$work/log" 2>&1 &
server=$!
end=$((SECONDS + 60))
until curl --silent --fail --output "$work/metrics" "http://127.0.0.1:$port/metrics" \
    && grep -q '^wattline_gpu_power_watts{' "$work/metrics"; do
    if ! kill -0 "$server" 2>/dev/null || [ "$SECONDS" -gt "$end" ]; then
        cat "$work/log" >&2
        echo "image.sh: the image does not serve its metrics" >&2
        exit 1
    fi
    sleep 0.2
done
owner=$(ps -eo uid=,args= | awk -v port=":$port" '/[w]attline demo/ && index($0, port) && $1 != 0 { print $1; exit }')
[ "$owner" = 65532 ] || { echo "image.sh: it runs as user ${owner:-0}, not as 65532" >&2; exit 1; }
grep -c '^wattline_' "$work/metrics" | sed 's/$/ series on \/metrics/'
grep '^wattline_deployment_state{.* 1.0$' "$work/metrics"
echo "image.sh: the image works"
