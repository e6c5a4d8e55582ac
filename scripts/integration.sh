#!/usr/bin/env bash
# Checks of the built program from outside: runs are killed, interrupted and
# joined by other processes, and must end in the same bytes; a live run is
# scraped by Prometheus, which Debian packages, and every dashboard expression
# is asked. Nothing is installed system-wide: the package is unpacked under bin/.
set -euo pipefail
cd "$(dirname "$0")/.."
if ! command -v prometheus >/dev/null && [ ! -x bin/prometheus/usr/bin/prometheus ]; then
  mkdir -p bin/prometheus
  work=$(mktemp -d)
  trap 'rm -rf "$work"' EXIT
  chmod 755 "$work"
  for _ in 1 2 3; do # a mirror may be away for a moment
    (cd "$work" && apt-get download -q prometheus 2>/dev/null) && break
    apt-get update -q || sleep 10
  done
  dpkg -x "$work"/prometheus_*.deb bin/prometheus
fi
PATH="$PATH:$PWD/bin/prometheus/usr/bin"
prometheus --version 2>&1 | head -1
make build
XRAGENT_BIN="$PWD/bin/xragent" go test -count=1 -timeout 2h -tags integration -run Integration -v -p 1 ./cmd/xragent ./web
