#!/bin/sh
# Regenerates what Python peers compute, in an environment of pinned packages, and compares ours with it. Exit status
# 0 only when every comparison holds. `make parity` runs it.
set -eu
cd "$(dirname "$0")"
if ! command -v uv >/dev/null; then
	echo "parity: uv is not installed; it makes the Python environment (https://docs.astral.sh/uv)" >&2
	exit 1
fi
python=$PWD/.venv/bin/python
[ -x "$python" ] || uv venv --quiet --python '>=3.11,<3.13' .venv # verl's bounds
uv pip install --quiet --python "$python" --require-hashes -r requirements.txt
uv pip install --quiet --python "$python" --require-hashes --no-deps -r peers.txt
failed=0
"$python" fixtures.py || failed=1
cd ../..
${GO:-go} test -count=1 ./trainer/loss ./trainer/advantage || failed=1
${GO:-go} test -count=1 -run 'Loss|Slopes|Golden' ./policy/embedded || failed=1
export XRAGENT_PYTHON="$python"
XRAGENT_QWEN_TOKENIZER=$(learner/parity/tokenizer.sh) # an assignment by itself: its failure ends the script
export XRAGENT_QWEN_TOKENIZER
${GO:-go} test -count=1 -timeout 30m -run 'Transformers|Qwen' ./chat || failed=1
${GO:-go} test -count=1 -timeout 30m -run 'TransformersEquals' ./policy/embedded || failed=1
${GO:-go} test -count=1 -timeout 30m -run 'TransformersSaves' ./cmd/xragent || failed=1
${GO:-go} test -count=1 -timeout 30m -run 'PythonEqualsEmbedded|PythonEncodes' ./policy/remote || failed=1
exit $failed
