#!/usr/bin/env bash
# Checks of the built program from outside: runs are killed, interrupted and
# joined by other processes, and must end in the same bytes; a live run is
# scraped by Prometheus, which Debian packages, and every dashboard expression
# is asked; an evaluation's page is opened in Debian's Chromium. Nothing is
# installed system-wide: packages are unpacked under bin/.
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
if [ -z "${XRAGENT_CHROMIUM:-}" ] && ! XRAGENT_CHROMIUM=$(command -v chromium); then
  XRAGENT_CHROMIUM="$PWD/bin/chromium/run"
  if [ ! -x "$XRAGENT_CHROMIUM" ]; then
    debs=$(mktemp -d)
    trap 'rm -rf "${work:-}" "$debs"' EXIT
    chmod 755 "$debs"
    for _ in 1 2 3; do # the browser with what it needs and is not here
      names=$(apt-get -s install --no-install-recommends chromium | awk '/^Inst/ {print $2}')
      (cd "$debs" && apt-get download -q $names) && break
      apt-get update -q || sleep 10
    done
    mkdir -p bin/chromium
    for deb in "$debs"/*.deb; do dpkg -x "$deb" bin/chromium; done
    cat > "$XRAGENT_CHROMIUM" <<'RUN'
#!/usr/bin/env bash
root=$(cd "$(dirname "$0")" && pwd)
for dir in "$root"/usr/lib/*-linux-gnu* "$root"/lib/*-linux-gnu* "$root"/usr/lib/*-linux-gnu*/pulseaudio; do
  LD_LIBRARY_PATH="$dir:${LD_LIBRARY_PATH:-}"
done
export LD_LIBRARY_PATH
exec "$root/usr/lib/chromium/chromium" "$@"
RUN
    chmod +x "$XRAGENT_CHROMIUM"
  fi
fi
export XRAGENT_CHROMIUM
"$XRAGENT_CHROMIUM" --version
make build
XRAGENT_BIN="$PWD/bin/xragent" go test -count=1 -timeout 2h -tags integration -run Integration -v -p 1 ./cmd/xragent ./web ./policy/embedded
