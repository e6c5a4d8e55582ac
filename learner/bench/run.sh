#!/bin/sh
# Measures our training step against PyTorch's and our decoding against transformers', by turns, in an environment of
# pinned packages or that of XRAGENT_PYTHON. `make bench-peer` runs it; PEER is a pattern for the measurements' names.
set -eu
cd "$(dirname "$0")"
if [ -z "${XRAGENT_PYTHON:-}" ]; then
	if ! command -v uv >/dev/null; then
		echo "bench-peer: uv is not installed; it makes the Python environment (https://docs.astral.sh/uv)" >&2
		exit 1
	fi
	XRAGENT_PYTHON=$PWD/.venv/bin/python
	[ -x "$XRAGENT_PYTHON" ] || uv venv --quiet --python '>=3.11' .venv
	uv pip install --quiet --python "$XRAGENT_PYTHON" --require-hashes -r ../requirements.txt
fi
cd ../..
export XRAGENT_PYTHON
XRAGENT_PEER=${PEER:-.} ${GO:-go} test -count=1 -timeout 2h -run '^TestPeerSpeed$' -v ./policy/embedded
