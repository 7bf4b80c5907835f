#!/usr/bin/env bash
# Makes sure that programs are there, by installing Debian packages where that is possible.
#
#   tools/system-packages.sh PROGRAM:PACKAGE...
#
# Installs only what is missing, and only as root on a system with apt-get; otherwise it says what to install.
set -euo pipefail

missing=()
for pair in "$@"; do
    command -v "${pair%%:*}" >/dev/null || missing+=("${pair##*:}")
done
[ ${#missing[@]} -eq 0 ] && exit 0

if [ "$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null; then
    printf 'Missing on this machine: %s\nOn Debian or Ubuntu: sudo apt-get install --no-install-recommends %s\n' \
        "${missing[*]}" "${missing[*]}" >&2
    exit 1
fi

export DEBIAN_FRONTEND=noninteractive
install() { apt-get install -qq -y --no-install-recommends "${missing[@]}" >/dev/null; }
# The list of packages may be absent or old: ask for it only when the first try fails.
install 2>/dev/null || { apt-get update -qq && install; }
