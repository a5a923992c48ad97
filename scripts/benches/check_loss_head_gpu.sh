#!/bin/bash
# Tests and measures the loss head on this machine's GPU, from a finished build.
#   scripts/benches/check_loss_head_gpu.sh [BUILD_DIR] [OUT_DIR] [STAGES]
# STAGES: a list of tests,rows,logits,head,accuracy,sweep,memcheck,racecheck,ncu (default: all but sweep). If it
# contains peers, head and accuracy also measure Liger-Kernel and cut-cross-entropy, provided that Python can import
# them. OUT_DIR receives report.log, rows.json, logits.json, head.json and head.png (also from sweep), accuracy.json,
# accuracy.png. Python is $PYTHON, .venv's or python3, in this order. BUILD_DIR/gpu_libs may hold shared libraries
# missing here.
set -u
# shellcheck source=scripts/shared/usage.sh
. "$(dirname "$0")/../shared/usage.sh"
check_arguments "" 0 3 "$@"
build=${1:-build/release}
out=${2:-bench_results}
stages=${3:-tests,rows,logits,head,accuracy,memcheck,racecheck,ncu}
python=${PYTHON:-.venv/bin/python}
[ -x "$(command -v "$python")" ] || python=python3
mkdir -p "$out"
report=$out/report.log
: > "$report"
logs=$(mktemp -d)
trap 'rm -rf "$logs"' EXIT
torch_dir=$("$python" -c 'import os, torch; print(os.path.dirname(torch.__file__))') || exit 1
site=$(dirname "$torch_dir")
LD_LIBRARY_PATH=$build/gpu_libs:$torch_dir/lib:$(ls -d "$site"/nvidia/*/lib 2>/dev/null | tr '\n' ':')${LD_LIBRARY_PATH:-}
export LD_LIBRARY_PATH
test_program=$build/tests/losses/losses_gpu_test
racecheck_program=${build%/*}/racecheck/tests/losses/losses_gpu_test # of scripts/build.sh racecheck losses_gpu_test
library=$build/losses/libdistill_losses.so
# compute-sanitizer is slow, so it runs one small test of each geometry.
small='*RowKernels.MatchTheReference/jsd:*RowKernels.MatchTheReference/jsd_capped:*RowKernels.MatchTheReference/none_smooth_z:*RowKernels.MatchTheReference/skew_forward_hot_capped'
status=0

has() { [[ ",$stages," == *",$1,"* ]]; }
peers=()
has peers && peers=(--peers)

# stage NAME SECONDS LINES COMMAND... runs the command with a timeout; the last LINES of its output go to the report
# and to standard output.
stage() {
  local name=$1 limit=$2 lines=$3
  shift 3
  timeout "$limit" "$@" > "$logs/$name" 2>&1
  local code=$?
  [ $code -eq 0 ] || status=1
  {
    echo "== $name: $*"
    grep -v '^$' "$logs/$name" | cut -c1-200 | tail -n "$lines"
    echo "== $name: exit $code, $SECONDS s so far"
  } | tee -a "$report"
}

if has tests; then
  stage tests 150 0 "$test_program"
  grep -E "Failure|FAILED|PASSED" -A4 "$logs/tests" | cut -c1-180 | tail -60 | tee -a "$report"
fi
has rows && stage rows 100 150 "$python" scripts/benches/bench_loss_head.py --library "$library" --what rows --reps 12 --out "$out/rows"
has logits && stage logits 60 60 "$python" scripts/benches/bench_loss_head.py --library "$library" --what logits --reps 12 --out "$out/logits"
has head && stage head 400 80 "$python" scripts/benches/bench_loss_head.py --library "$library" --what head --reps 20 --errors \
  "${peers[@]}" --out "$out/head"
has sweep && stage sweep 590 500 "$python" scripts/benches/bench_loss_head.py --library "$library" --what head --reps 5 --sweep --out "$out/head"
has accuracy && stage accuracy 300 150 "$python" scripts/benches/accuracy_loss_head.py --library "$library" "${peers[@]}" --out "$out/accuracy"
has memcheck && stage memcheck 150 4 compute-sanitizer --tool memcheck "$test_program" --gtest_filter="$small:*LogitsBackward*"
has racecheck && stage racecheck 300 4 compute-sanitizer --tool racecheck --kernel-regex kns=rows_cluster "$racecheck_program" --gtest_filter='*RowKernels.MatchTheReference/jsd'
for tool in memcheck racecheck; do
  [ ! -f "$logs/$tool" ] || grep -E "^=========" "$logs/$tool" | cut -c1-160 | head -30 | tee -a "$report"
done
if has ncu; then
  stage ncu 90 0 ncu --clock-control none --kernel-name regex:rows_cluster --launch-count 3 --launch-skip 6 --set full --import-source no \
    "$python" scripts/benches/bench_loss_head.py --library "$library" --what rows --row-automatic --row-vocab 128256 --reps 1 --out "$logs/ncu_rows"
  grep -E "rows_cluster|Duration|DRAM Throughput|Memory Throughput|Registers Per|Achieved Occupancy|Issue Slots Busy|Issued Ipc|Stall|stall" \
    "$logs/ncu" | head -60 | tee -a "$report"
fi
exit $status
