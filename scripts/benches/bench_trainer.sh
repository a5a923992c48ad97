#!/usr/bin/env bash
# Measures training with random weights of named shapes on random tokens, and prints the lines of the steps.
#   scripts/benches/bench_trainer.sh STUDENT TEACHER [STEPS] [distill arguments...]     STEPS: 8
#   scripts/benches/bench_trainer.sh 1b 8b 8 --set train.micro_batch_size=2 --set train.global_batch_size=2
# Shapes: those of scripts/benches/bench_inputs.py, such as tiny, 1b, 70b, qwen3-30b-a3b, qwen3.5-9b; VOCAB replaces
# the vocabulary of the student's family. DISTILL and PYTHON replace the build's and .venv's.
# LORA=RANK trains adapters of the student on every matrix of its blocks; where TEACHER is STUDENT, its weights are theirs.
# PLAN=RANKS prints the plan for this number of GPUs, with 2 sequences on each, and runs nothing; it needs no GPU.
# CACHE=FOLDER captures the teacher to FOLDER first, says at what speed, and then trains from there; the arguments are
# for both. ROWS: documents of SEQ_LEN tokens (64), of which every token but the last has a row. DIVERGENCE: jsd, or
# forward_kl for a cache of samples.
set -euo pipefail
# shellcheck source=scripts/shared/usage.sh
. "$(dirname "$0")/../shared/usage.sh"
check_arguments "" 2 2 "${@:1:2}" # the others are those of distill
cd "$(dirname "$0")/../.."
student=$1 teacher=$2 steps=8
shift 2
if [[ ${1:-} =~ ^[0-9]+$ ]]; then
  steps=$1
  shift
fi
distill=${DISTILL:-build/release/apps/distill/distill}
python=${PYTHON:-.venv/bin/python}
seq_len=${SEQ_LEN:-4096}
work=work/bench-$seq_len-$student${VOCAB:+-$VOCAB}
"$python" scripts/benches/bench_inputs.py --out "$work" --shapes "$student,$teacher" --seq-len "$seq_len" --rows "${ROWS:-64}" \
  ${VOCAB:+--vocab "$VOCAB"}
packing=concat source=model
[ -z "${CACHE:-}" ] || packing=pack source=cache
cat >"$work/bench.yaml" <<YAML
student: {path: $work/$student, init: random${LORA:+, lora: {rank: $LORA\}}}
teacher: {path: $work/$teacher, init: random, source: $source, cache: "${CACHE:-}"}
data: {train: $work/tokens.dtok, seq_len: $seq_len, packing: $packing, shuffle: false}
loss: {divergence: ${DIVERGENCE:-jsd}}
train: {steps: $steps, micro_batch_size: 2, global_batch_size: 2}
scheduler: {type: constant}
checkpoint: {at_end: false}
run: {dir: $work/run}
YAML
if [ -n "${PLAN:-}" ]; then
  "$distill" plan --config "$work/bench.yaml" --ranks "$PLAN" --set train.device=cuda \
    "train.global_batch_size=$((2 * PLAN))" "$@"
  exit
fi
[ -z "${CACHE:-}" ] || "$distill" capture --config "$work/bench.yaml" "$@"
"$distill" --config "$work/bench.yaml" --overwrite "$@"
