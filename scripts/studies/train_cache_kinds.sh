#!/usr/bin/env bash
# Trains a student on each kind of a teacher's cache, three seeds each, and prints one table: bytes a token, the KL that
# the rows lose, the error of the student's gradient, and the held-out KL to the teacher itself after equal steps.
#   scripts/studies/train_cache_kinds.sh [OUT_DIR]     default: work/cache_kinds
# From the folders of the quickstart (scripts/quickstart.sh, stages teacher to student; QUICKSTART=DIR). Every cache is
# captured once, of all of the training data. A command that was killed continues when it is given again: finished
# comparisons, captures and runs are not repeated. After a failure the other runs go on, and the table has what there is.
# SEEDS="1 2 3" STEPS=140 BATCH=16 JOBS=4 (programs at a time on the one device) KINDS="online hidden-bfloat16 ..."
# DISTILL=PROGRAM LIBRARY=libdistill_losses.so PYTHON=python3 DEVICE=cuda (of the comparison) replace the defaults.
set -euo pipefail
# shellcheck source=scripts/shared/usage.sh
. "$(dirname "$0")/../shared/usage.sh"
check_arguments "" 0 1 "$@"
cd "$(dirname "$0")/../.."
export out=${1:-work/cache_kinds} quickstart=${QUICKSTART:-work/quickstart}
export distill=${DISTILL:-build/release/apps/distill/distill}
library=${LIBRARY:-build/release/losses/libdistill_losses.so}
[ -e "$library" ] || library=$(dirname "$distill")/lib/libdistill_losses.so # of a bundle (scripts/bundle.sh)
python=${PYTHON:-.venv/bin/python}
seeds=${SEEDS:-1 2 3} steps=${STEPS:-140} batch=${BATCH:-16} jobs=${JOBS:-4}
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
parallel: {processes: 1}
run: {dir: $out/run, progress: none}
YAML
}

# failed LOG: says what a program that failed has written last.
failed() {
  echo "train_cache_kinds.sh: $1 ends:" >&2
  tail -n 5 "$1" >&2
  return 1
}

# Complete parts of an earlier call stay as they are.
capture() {
  local kind=$1 log=$out/capture-$1.log set
  [ ! -e "$out/captured-$kind" ] || return 0
  read -ra set <<<"$(settings "$kind")"
  "$distill" capture --config "$out/config.yaml" --set "teacher.cache=$out/cache-$kind" "${set[@]}" \
    >"$log" 2>&1 || { failed "$log"; return 1; }
  touch "$out/captured-$kind"
  echo "captured: $kind, $(grep -o '[0-9]* sequences in .*' "$log" | tail -n 1)"
}

run() {
  local kind=$1 seed=$2 dir=$out/$1-$2 source=() set=()
  [ ! -s "$dir.json" ] || return 0
  if [ "$kind" != online ]; then
    [ -e "$out/captured-$kind" ] || return 1
    read -ra set <<<"$(settings "$kind")"
    source=("teacher.source=cache" "teacher.cache=$out/cache-$kind")
  fi
  "$distill" --config "$out/config.yaml" --overwrite --set "data.seed=$seed" "run.dir=$dir" "${source[@]}" "${set[@]}" \
    >"$dir.log" 2>&1 || { failed "$dir.log"; return 1; }
  "$distill" eval --config "$out/config.yaml" --set "student.path=$dir/model" --json \
    >"$dir.json.partial" 2>>"$dir.log" || { failed "$dir.log"; return 1; }
  mv "$dir.json.partial" "$dir.json"
  rm -rf "$dir/checkpoints" "$dir/model"
  echo "trained: $kind, seed $seed"
}

config >"$out/config.yaml.partial"
if [ -e "$out/config.yaml" ] && ! cmp -s "$out/config.yaml" "$out/config.yaml.partial"; then
  echo "train_cache_kinds.sh: $out holds runs of other settings ($out/config.yaml); name another folder" >&2
  exit 1
fi
mv "$out/config.yaml.partial" "$out/config.yaml"
export -f settings failed capture run
status=0
if [ ! -s "$out/compared.json" ]; then
  if [ -e "$library" ]; then
    "$python" scripts/studies/compare_cache_kinds.py --teacher "$quickstart/teacher" --student "$quickstart/student" \
      --data "$quickstart/data/eval" --draws 0 --library "$library" --device "${DEVICE:-cpu}" \
      --out "$out/compared.json" >"$out/compared.log" 2>&1 || { failed "$out/compared.log" || status=1; }
  else
    echo "train_cache_kinds.sh: no $library: the table has no KL of the rows, and no gradient error" >&2
  fi
fi
for kind in $kinds; do
  [ "$kind" = online ] || echo "$kind"
done | xargs -P "$jobs" -L 1 bash -uo pipefail -c 'capture "$0"' || status=1
for seed in $seeds; do
  for kind in $kinds; do echo "$kind $seed"; done
done | xargs -P "$jobs" -L 1 bash -uo pipefail -c 'run "$0" "$1"' || status=1

"$python" - "$out" "$seeds" $kinds <<'PYTHON' | tee "$out/table.md"
import json, pathlib, statistics, struct, sys

out, seeds, kinds = pathlib.Path(sys.argv[1]), sys.argv[2].split(), sys.argv[3:]
compared = out / "compared.json"
rows = {row[0]: row for row in json.loads(compared.read_text())["kinds"]} if compared.exists() else {}


def row_of(kind):
    """Of scripts/studies/compare_cache_kinds.py, for what a capture of this kind stores by default."""
    name, _, what = kind.partition("-")
    suffix = {"topk": ", float16", "sampled": ", exponent 1"}.get(name, "")
    return rows.get(f"hidden, {what}" if name == "hidden" else f"{name} {what}{suffix}", [None] * 5)


def bytes_of(kind):
    """Of a row, from the head of a part's file (docs/teacher_cache.md)."""
    parts = sorted((out / f"cache-{kind}").glob("part-*.dtc"))
    return struct.unpack_from("<Q", parts[0].read_bytes()[:64], 16)[0] if parts else shown(row_of(kind)[1], "d")


def shown(value, form):
    return "" if value is None else format(value, form)


print("| kind | bytes a token | KL that is lost | gradient error | held-out KL(teacher, student), nats: mean | "
      "standard deviation | cross-entropy | seeds |")
print("| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |")
for kind in kinds:
    files = [out / f"{kind}-{seed}.json" for seed in seeds]
    found = [json.loads(file.read_text()) for file in files if file.exists()]
    kl = [each["forward_kl"] for each in found]
    _, _, lost, error, _ = row_of(kind)
    mean = f"{statistics.mean(kl):.4f}" if kl else ""
    spread = f"{statistics.stdev(kl):.4f}" if len(kl) > 1 else ""
    hard = f"{statistics.mean(each['hard'] for each in found):.4f}" if found else ""
    print(f"| {kind} | {bytes_of(kind)} | {shown(lost, '.2g')} | {shown(error, '.2g')} | {mean} | {spread} | {hard} | "
          f"{len(kl)} |")
PYTHON
exit "$status"
