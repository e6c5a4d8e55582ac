#!/bin/sh
# Serves an export by vLLM and holds it against our own decoding, through our own client, also with other weights sent
# to the running server; and, where XRAGENT_PYTHON has the requirements of the learner, an adapter against PEFT.
#
#     XRAGENT_VLLM=PYTHON learner/engine/run.sh EXPORT
#
# PYTHON is of an environment with vLLM; learner/README.md says how to make one for a machine without a GPU. EXPORT is
# a run's export. Exit status 0 only when everything agrees.
set -eu
if [ -z "${XRAGENT_VLLM:-}" ]; then
	echo "engine: XRAGENT_VLLM is not set: the export was not served by vLLM"
	exit 0
fi
export=$(cd "$1" && pwd)
cd "$(dirname "$0")/../.."
work=$(mktemp -d)
server=
trap '[ -z "$server" ] || kill "$server"; wait; rm -rf "$work"' EXIT
port=${XRAGENT_ENGINE_PORT:-8123}
# A CPU build starts small with the first two variables; the next two let weights and adapters in at run time.
VLLM_CPU_KVCACHE_SPACE=1 OMP_NUM_THREADS=${OMP_NUM_THREADS:-1} VLLM_SERVER_DEV_MODE=1 VLLM_ALLOW_RUNTIME_LORA_UPDATING=1 \
	HF_HUB_OFFLINE=1 VLLM_NO_USAGE_STATS=1 \
	"$XRAGENT_VLLM" -m vllm.entrypoints.openai.api_server --model "$export" --served-model-name policy --host 127.0.0.1 \
	--port "$port" --dtype float32 --enforce-eager --max-model-len 2048 --enable-scale-out --enable-lora --max-lora-rank 8 >"$work/log" 2>&1 &
server=$!
until "$XRAGENT_VLLM" -c "import urllib.request as u; u.urlopen('http://127.0.0.1:$port/health')" 2>/dev/null; do
	if ! kill -0 "$server" 2>/dev/null; then
		tail -50 "$work/log" >&2
		exit 1
	fi
	sleep 2
done
if [ -n "${XRAGENT_PYTHON:-}" ]; then
	"$XRAGENT_PYTHON" learner/engine/adapter.py "$export" "$work/adapter" "http://127.0.0.1:$port"
else
	echo "engine: XRAGENT_PYTHON is not set: no adapter was held against PEFT"
fi
XRAGENT_ENGINE=http://127.0.0.1:$port XRAGENT_EXPORT=$export XRAGENT_ENGINE_RELOAD=$work/weights \
	${GO:-go} test -count=1 -timeout 30m -run '^TestEngineServesExport$' -v ./cmd/xragent || {
	tail -20 "$work/log" >&2
	exit 1
}
