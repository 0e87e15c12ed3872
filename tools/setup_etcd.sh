#!/usr/bin/env bash
# etcd, which keeps the metadata of a cluster. It is a Debian package; a broker that is alone needs none.
set -euo pipefail

command -v etcd >/dev/null && exit 0
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    echo "installing etcd-server ..."
    apt-get update -qq
    # The package starts a server of its own, which would hold the ports of the nodes'.
    RUNLEVEL=1 DEBIAN_FRONTEND=noninteractive apt-get install --yes --no-install-recommends -qq etcd-server
    exit 0
fi
echo "a cluster needs etcd. Install it with: sudo apt install etcd-server" >&2
exit 1
