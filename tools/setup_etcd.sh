#!/usr/bin/env bash
# etcd, which keeps the metadata of a cluster. It is a Debian package; a broker that is alone needs none.
set -euo pipefail

# Releases before 3.4.22 and 3.5.6 lose data, and no node uses them.
usable() {
    [[ "$(etcd --version 2>/dev/null)" =~ etcd\ Version:\ ([0-9]+)\.([0-9]+)\.([0-9]+) ]] || return 1
    local major=${BASH_REMATCH[1]} minor=${BASH_REMATCH[2]} patch=${BASH_REMATCH[3]}
    [ "$major" -gt 3 ] && return 0
    [ "$major" -eq 3 ] || return 1
    case "$minor" in
        4) [ "$patch" -ge 22 ] ;;
        5) [ "$patch" -ge 6 ] ;;
        *) [ "$minor" -gt 5 ] ;;
    esac
}

usable && exit 0
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    echo "installing etcd-server ..."
    apt-get update -qq
    # The package starts a server of its own, which would hold the ports of the nodes'.
    RUNLEVEL=1 DEBIAN_FRONTEND=noninteractive apt-get install --yes --no-install-recommends -qq etcd-server
    usable && exit 0
fi
if command -v etcd >/dev/null; then
    echo "$(command -v etcd) is too old: releases before 3.4.22 and 3.5.6 lose data. Install a newer etcd-server" >&2
    exit 1
fi
echo "a cluster needs etcd. Install it with: sudo apt install etcd-server" >&2
exit 1
