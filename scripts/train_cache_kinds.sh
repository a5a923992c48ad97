#!/usr/bin/env bash
# Trains a student on each kind of a teacher's cache, three seeds each, and prints the held-out KL of all of them.
#   scripts/train_cache_kinds.sh [OUT_DIR]     default: work/cache_kinds
# From the folders of the quickstart (scripts/quickstart.sh, stages teacher to student; QUICKSTART=DIR). Every cache is
# captured once, of exactly the steps' data; then every run trains for equal steps, and each model is evaluated against
# the teacher itself. What is finished is not repeated. SEEDS="1 2 3" STEPS=140 BATCH=16 JOBS=4 (runs at a time on the
# one device) KINDS="online hidden-bfloat16 ..." DISTILL=PROGRAM PYTHON=python3 replace the defaults.
set -euo pipefail
cd "$(dirname "$0")/.."
case "${1:-}" in -h | --help) sed -n '2,7s/^# \{0,1\}//p' "$0"; exit 0 ;; esac
out=${1:-work/cache_kinds}
quickstart=${QUICKSTART:-work/quickstart}
distill=${DISTILL:-build/release/apps/distill/distill}
python=${PYTHON:-.venv/bin/python}
export seeds=${SEEDS:-1 2 3} steps=${STEPS:-140} batch=${BATCH:-16} jobs=${JOBS:-4}
kinds=${KINDS:-online hidden-bfloat16 hidden-int8 hidden-float8 topk-16 topk-64 topk-256 sampled-12 sampled-25 sampled-50}
mkdir -p "$out"

# What a kind's name says, as settings of `cache`.
settings() {
  case $1 in
    hidden-*) echo "cache.kind=hidden cache.dtype=${1#hidden-}" ;;
    topk-*) echo "cache.kind=topk cache.topk=${1#topk-}" ;;
    sampled-*) echo "cache.kind=sampled cache.samples=${1#sampled-}" ;;
  esac
}

config() {
  cat <<YAML
student: {path: $quickstart/student}
teacher: {path: $quickstart/teacher}
data: {train: $quickstart/data/train, eval: $quickstart/data/eval, seq_len: 256, packing: pack, seed: 1}
loss: {divergence: forward_kl, soft_weight: 0.9, hard_weight: 0.1}
train: {steps: $steps, micro_batch_size: $batch, global_batch_size: $batch, seed: 1}
optimizer: {lr: 1.0e-3, weight_decay: 0.0}
scheduler: {type: cosine, warmup_steps: 10, min_lr_ratio: 0.1}
eval: {every: 0}
run: {dir: $out/run, progress: none}
YAML
}

capture() {
  local kind=$1 set
  [ "$kind" != online ] || return 0
  read -ra set <<<"$(settings "$kind")"
  "$distill" capture --config "$out/config.yaml" --set "teacher.cache=$out/cache-$kind" "${set[@]}" \
    >"$out/capture-$kind.log" 2>&1 || { tail -5 "$out/capture-$kind.log" >&2; return 1; }
}

run() {
  local kind=$1 seed=$2 dir=$out/$1-$2 source=() set=()
  [ ! -s "$dir.json" ] || return 0
  if [ "$kind" != online ]; then
    read -ra set <<<"$(settings "$kind")"
    source=("teacher.source=cache" "teacher.cache=$out/cache-$kind")
  fi
  "$distill" --config "$out/config.yaml" --overwrite --set "data.seed=$seed" "run.dir=$dir" "${source[@]}" "${set[@]}" \
    >"$dir.log" 2>&1 || { tail -5 "$dir.log" >&2; return 1; }
  "$distill" eval --config "$out/config.yaml" --set "student.path=$dir/model" --json >"$dir.json.partial" 2>>"$dir.log"
  mv "$dir.json.partial" "$dir.json"
  rm -rf "$dir/checkpoints" "$dir/model"
}

config >"$out/config.yaml"
for kind in $kinds; do
  echo "capture: $kind"
  capture "$kind"
done
export out quickstart distill
export -f settings run
for seed in $seeds; do
  for kind in $kinds; do echo "$kind $seed"; done
done | xargs -P "$jobs" -L 1 bash -euo pipefail -c 'run "$0" "$1" && echo "done: $0, seed $1"'

"$python" - "$out" "$seeds" $kinds <<'PYTHON'
import json, pathlib, statistics, sys

out, seeds, kinds = pathlib.Path(sys.argv[1]), sys.argv[2].split(), sys.argv[3:]
print(f"| kind | held-out KL(teacher, student), nats: mean of {len(seeds)} seeds | standard deviation | cross-entropy |")
print("| --- | ---: | ---: | ---: |")
for kind in kinds:
    found = [json.loads((out / f"{kind}-{seed}.json").read_text()) for seed in seeds]
    kl = [each["forward_kl"] for each in found]
    spread = f"{statistics.stdev(kl):.4f}" if len(kl) > 1 else ""
    print(f"| {kind} | {statistics.mean(kl):.4f} | {spread} | {statistics.mean(each['hard'] for each in found):.4f} |")
PYTHON
