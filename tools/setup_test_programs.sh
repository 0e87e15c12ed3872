#!/usr/bin/env bash
# Programs that some tests use and that PyPI does not have: a browser for the console, PostgreSQL for its sink, etcd for clusters,
# ip and nft for networks that are cut.
# They are Debian packages. Where they are missing and may be installed, they are; elsewhere those tests are skipped, and this says so.
set -euo pipefail

missing=()
command -v chromium >/dev/null || missing+=(chromium)
ls /usr/lib/postgresql/*/bin/postgres >/dev/null 2>&1 || missing+=(postgresql)
command -v etcd >/dev/null || missing+=(etcd-server)
# nft and ip lie where not every user's PATH leads.
PATH=$PATH:/usr/sbin:/sbin
command -v ip >/dev/null || missing+=(iproute2)
command -v nft >/dev/null || missing+=(nftables)
[ ${#missing[@]} -gt 0 ] || exit 0

if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    echo "installing ${missing[*]} for the tests ..."
    log=$(mktemp)
    trap 'rm -f "$log"' EXIT
    if { apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install --yes --no-install-recommends "${missing[@]}"; } >"$log" 2>&1; then
        exit 0
    fi
    tail -n 5 "$log" >&2
fi
echo "tests that need ${missing[*]} are skipped. To run them: sudo apt install ${missing[*]}" >&2
