#!/bin/sh
# Real servers for the tests, beside the system: nothing is installed, nothing is started, no root is needed.
#
#   tools/servers.sh [SUITE [PACKAGE ...]]
#
# Downloads packages of a newer Debian suite and unpacks them into .servers/SUITE/, whose usr/bin/ then holds the
# binaries. A package that is there already is left alone, so a second run takes no time. Without packages it is the
# alerting pair: prometheus, promtool, prometheus-alertmanager (amtool is in it). On request for example
# victoria-metrics or docker-compose.
#
#   tools/servers.sh             what the tests need: the pair of trixie, the pair of sid, and a VictoriaMetrics
#   tools/servers.sh trixie      Prometheus 2.53, Alertmanager 0.28
#   tools/servers.sh sid         the newest: Prometheus 3.x (moves with the suite)
#   tools/servers.sh trixie victoria-metrics docker-compose
#
# The address of the archive is taken from apt's own sources; DEBIAN_MIRROR overrides it, DEBIAN_KEYRING the keyring.
# To fetch a newer build, remove .servers/SUITE. Needs Debian 12 or newer (apt, dpkg-deb, libc 2.34).
set -eu

if [ $# -eq 0 ]; then
    for suite in trixie sid; do
        "$0" "$suite"
    done
    "$0" trixie victoria-metrics
    exit 0
fi
suite=$1
shift
packages=${*:-prometheus promtool prometheus-alertmanager}
root=$(cd "$(dirname "$0")/.." && pwd)
dest=$root/.servers/$suite

fail() {
    echo "servers.sh: $*" >&2
    exit 1
}

missing=
for package in $packages; do
    [ -e "$dest/.have/$package" ] || missing="$missing $package"
done
if [ -z "$missing" ]; then
    echo "$dest: all there ($packages)"
    exit 0
fi

command -v apt-get >/dev/null && command -v dpkg-deb >/dev/null || fail "apt-get and dpkg-deb are needed: this script is for Debian"
# The archive itself, not its security or backports siblings: the first source whose path ends in /debian.
mirror=${DEBIAN_MIRROR:-$(apt-get --print-uris update | sed -n "/^'.*\/debian\/*dists\//{s/^'\(.*\)dists\/.*/\1/p;q;}")}
[ -n "$mirror" ] || fail "no Debian archive in apt's sources; set DEBIAN_MIRROR to one"
keyring=${DEBIAN_KEYRING:-/usr/share/keyrings/debian-archive-keyring.gpg}
[ -r "$keyring" ] || fail "cannot read $keyring: install debian-archive-keyring, or set DEBIAN_KEYRING"

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 1' INT TERM HUP
mkdir -p "$work/lists/partial" "$work/cache/archives/partial" "$work/debs" "$work/unpacked" "$work/none" "$dest/.have"
echo "deb [signed-by=$keyring] $mirror $suite main" >"$work/sources.list"

# A private world for apt: own sources, lists and cache, so that the system's are neither used nor changed.
apt_private() {
    apt-get -q -o "Dir::Etc::sourcelist=$work/sources.list" -o "Dir::Etc::sourceparts=$work/none" \
        -o "Dir::Etc::preferences=$work/none/file" -o "Dir::Etc::preferencesparts=$work/none" \
        -o "Dir::State::lists=$work/lists" -o "Dir::Cache=$work/cache" -o APT::Sandbox::User= \
        -o Acquire::Languages=none -o Acquire::Retries=3 "$@"
}
apt_private update >"$work/log" 2>&1 || { cat "$work/log" >&2; fail "cannot read the index of $suite"; }
# shellcheck disable=SC2086 # a list of words on purpose
(cd "$work/debs" && apt_private download $missing >"$work/log" 2>&1) || { cat "$work/log" >&2; fail "cannot download:$missing"; }

for deb in "$work"/debs/*.deb; do
    dpkg-deb -x "$deb" "$work/unpacked"
done

# Debian's Alertmanager reads its default templates from an absolute path. Unpacked beside the system it finds them
# through descriptor 9: a path of the same length in the program, and a wrapper that opens the folder as that.
alertmanager=$work/unpacked/usr/bin/prometheus-alertmanager
if [ -e "$alertmanager" ]; then
    LC_ALL=C sed -i 's|/usr/share/prometheus/alertmanager|/proc/self/fd/9/./././././././././|g' "$alertmanager"
    mv "$alertmanager" "$alertmanager.unpacked"
    cat >"$alertmanager" <<'WRAPPER'
#!/bin/sh
set -eu
bin=$(dirname "$(readlink -f "$0")")
exec 9<"$bin/../share/prometheus/alertmanager"
exec "$bin/prometheus-alertmanager.unpacked" "$@"
WRAPPER
    chmod +x "$alertmanager"
fi

cp -a "$work/unpacked/." "$dest/"
for package in $missing; do
    touch "$dest/.have/$package"
done
for deb in "$work"/debs/*.deb; do
    dpkg-deb -W --showformat='${Package} ${Version}\n' "$deb"
done
echo "$dest: ready"
