#!/usr/bin/env bash
# Measures the parts of on-policy rounds, with random weights of named shapes: writing the weights, the engine, the shard,
# the steps. Prints round.json's seconds and the steps' times.
#   scripts/benches/bench_onpolicy.sh STUDENT TEACHER [distill arguments...]
#   scripts/benches/bench_onpolicy.sh 1b 8b --set train.micro_batch_size=2 train.global_batch_size=8
#   ENGINE='sleep 20; ...' replaces the command: a stand-in of which only the time matters
# Shapes are those of scripts/benches/bench_inputs.py. SEQ_LEN: 1024; TOKENS: of a completion, 256. DISTILL and PYTHON
# replace the build's and .venv's.
set -euo pipefail
# shellcheck source=scripts/shared/usage.sh
. "$(dirname "$0")/../shared/usage.sh"
check_arguments "" 2 2 "${@:1:2}" # the others are those of distill
cd "$(dirname "$0")/../.."
student=$1 teacher=$2
shift 2
distill=${DISTILL:-build/release/apps/distill/distill}
python=${PYTHON:-.venv/bin/python}
seq_len=${SEQ_LEN:-1024} tokens=${TOKENS:-256}
work=work/bench-onpolicy-$seq_len-$student
"$python" scripts/benches/bench_inputs.py --out "$work" --shapes "$student,$teacher" --seq-len "$seq_len" --rows 64
engine=${ENGINE:-$python scripts/rollout_transformers.py --model {model\} --prompts {prompts\} --output {output\}}
cat >"$work/bench.yaml" <<YAML
student: {path: $work/$student, init: random}
teacher: {path: $work/$teacher, init: random}
data: {seq_len: $seq_len}
onpolicy:
  prompts: $work/tokens.dtok
  every: 4
  max_new_tokens: $tokens
  weights_dir: /dev/shm
  command: >-
    $engine
train: {steps: 8, micro_batch_size: 2, global_batch_size: 8}
scheduler: {type: constant}
checkpoint: {at_end: false}
run: {dir: $work/run}
YAML
"$distill" --config "$work/bench.yaml" --overwrite "$@"
"$python" - "$work/run" <<'PYTHON'
import json
import sys
from pathlib import Path

run = Path(sys.argv[1])
for path in sorted(run.glob("onpolicy/round-*/round.json")):
    result = json.loads(path.read_text())["result"]
    print(path.parent.name, result["completions"], "completions,", result["completion_tokens"], "tokens;", end=" ")
    print(", ".join(f"{name} {seconds:.2f} s" for name, seconds in result["seconds"].items()))
lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
times = [(line["step"], line["time_ms"], line["seconds"]) for line in lines if "loss" in line]
for (step, at, seconds), (_, before, _) in zip(times[1:], times):
    print(f"step {step}: {seconds:.2f} s, {(at - before) / 1000:.2f} s after the step before")
PYTHON
