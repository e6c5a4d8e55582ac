#!/bin/sh
# Packs what the table of a study is judged from: of each cell its manifest, its
# answers and its curves, without weights, films or trajectories.
#   scripts/study-outcomes.sh runs/main main.tar.gz [ARM...]     (all arms, if none is named)
# Unpacked elsewhere (tar xzf FILE -C DIR), `xragent study STUDY --dir DIR --judge`
# makes the table again. The same outcomes give the same bytes.
set -eu
study=${1:?"want the folder of a study"}
archive=$(realpath "${2:?"want the file to write"}")
study=$(realpath "$study")
shift 2
arms=" $* "
name=$(basename "$study")
cd "$study/.."
list=$(mktemp)
trap 'rm -f "$list" "$archive.part"' EXIT
for cell in "$name"/*/cell.json; do
	dir=$(dirname "$cell")
	arm=${dir#"$name"/} arm=${arm%-*}
	case "$arm $arms" in
	"shared "*) continue ;;
	*"   " | *" $arm "*) ;;
	*) continue ;;
	esac
	find "$cell" "$dir/eval" -name '*.json'
	if [ -f "$dir/grpo/steps.jsonl" ]; then echo "$dir/grpo/steps.jsonl"; fi
done | LC_ALL=C sort > "$list"
tar cf - --mtime=@0 --owner=0 --group=0 --numeric-owner --mode=0644 -T "$list" | gzip -9n > "$archive.part"
mv "$archive.part" "$archive"
