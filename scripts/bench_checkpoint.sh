#!/usr/bin/env bash
# Measures what a checkpoint costs: seconds in which training stands still, seconds to write, bytes; then resuming.
#   scripts/bench_checkpoint.sh STUDENT TEACHER [distill arguments...]     on every visible GPU; shapes as in bench_trainer.sh
#   scripts/bench_checkpoint.sh 8b 1b --set parallel.processes=4 --set train.global_batch_size=8
# Saves twice within 14 steps, once while training goes on, then once with checkpoint.async: false for comparison. The disk needs
# room for two checkpoints (12 bytes per parameter each), the host memory for a copy of all ranks' state.
set -euo pipefail
cd "$(dirname "$0")/.."
[ $# -ge 2 ] || { sed -n '2,6s/^# \{0,1\}//p' "$0" >&2; exit 2; }
student=$1 teacher=$2
shift 2
work=work/bench-${SEQ_LEN:-4096}
show() {
  grep -E "^saved |checkpoint of step|^step |resumed from|error|expected" || true
}
common=(--set checkpoint.keep=1 --set checkpoint.every=5 "$@")
echo "== written by a thread"
scripts/bench_trainer.sh "$student" "$teacher" 14 "${common[@]}" 2>&1 | show
echo "== training waits"
scripts/bench_trainer.sh "$student" "$teacher" 9 "${common[@]}" --set checkpoint.async=false 2>&1 | show
echo "== resumed"
start=$(date +%s.%N)
"${DISTILL:-build/release/apps/distill/distill}" --config "$work/bench.yaml" --resume "${common[@]}" --set train.steps=8 2>&1 | show
echo "resuming and 3 steps, start of the processes included: $(awk "BEGIN {print $(date +%s.%N) - $start}") s"
echo "== every checksum"
time "${DISTILL:-build/release/apps/distill/distill}" verify "$work/run/checkpoints/step-5"
