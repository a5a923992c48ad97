#!/usr/bin/env bash
# Measures a checkpoint: the seconds for which training stops, the seconds of writing, the bytes, and resuming.
#   scripts/benches/bench_checkpoint.sh STUDENT TEACHER [distill arguments...]   all visible GPUs; see bench_trainer.sh
#   scripts/benches/bench_checkpoint.sh 8b 1b --set parallel.processes=4 --set train.global_batch_size=8
# Saves SAVES times (default 2), every 5 steps, while training continues; resumes from the last one; verifies every
# checksum; saves once with checkpoint.async: false to compare. The disk needs room for two checkpoints of 12 bytes per
# parameter (one if SAVES=1), the host memory for a copy of the state of all ranks.
set -euo pipefail
# shellcheck source=scripts/shared/usage.sh
. "$(dirname "$0")/../shared/usage.sh"
check_arguments "" 2 2 "${@:1:2}" # the others are those of distill
cd "$(dirname "$0")/../.."
student=$1 teacher=$2
shift 2
saves=${SAVES:-2}
last=$((5 * saves))
work=work/bench-${SEQ_LEN:-4096}
distill=${DISTILL:-build/release/apps/distill/distill}
show() {
  grep --line-buffered -E "^saved |checkpoint of step|^step |resumed from|error|expected" || true
}
common=(--set checkpoint.keep=1 --set checkpoint.every=5 "$@")
echo "== written by a thread"
scripts/benches/bench_trainer.sh "$student" "$teacher" $((last + 4)) "${common[@]}" 2>&1 | show
echo "== resumed"
start=$(date +%s.%N)
"$distill" --config "$work/bench.yaml" --resume "${common[@]}" --set train.steps=$((last + 3)) 2>&1 | show
echo "resuming and 3 steps, start of the processes included: $(awk "BEGIN {print $(date +%s.%N) - $start}") s"
echo "== every checksum"
time "$distill" verify "$work/run/checkpoints/step-$last"
echo "== written while training waits"
scripts/benches/bench_trainer.sh "$student" "$teacher" 9 "${common[@]}" --set checkpoint.async=false 2>&1 | show
