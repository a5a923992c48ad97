#!/bin/bash
# Tests and benchmarks of the loss head on this machine's GPU, from a finished build.
#   scripts/check_loss_head_gpu.sh [BUILD_DIR] [OUT_DIR] [STAGES]
# STAGES: any of tests,memcheck,racecheck,rows,head,ncu (default: all). Python is $PYTHON, else .venv's, else python3;
# libraries that are not beside the build are looked for in BUILD_DIR/gpu_libs.
set -u
build=${1:-build/release}
out=${2:-bench_results}
stages=${3:-tests,memcheck,racecheck,rows,head,ncu}
python=${PYTHON:-.venv/bin/python}
[ -x "$(command -v "$python")" ] || python=python3
mkdir -p "$out"
torch_dir=$("$python" -c 'import os, torch; print(os.path.dirname(torch.__file__))') || exit 1
site=$(dirname "$torch_dir")
LD_LIBRARY_PATH=$build/gpu_libs:$torch_dir/lib:$(ls -d "$site"/nvidia/*/lib 2>/dev/null | tr '\n' ':')${LD_LIBRARY_PATH:-}
export LD_LIBRARY_PATH
test_program=$build/tests/losses/losses_gpu_test
library=$build/losses/libdistill_losses.so
# compute-sanitizer is slow: one small test of every geometry.
small='*RowKernels.MatchTheReference/jsd:*RowKernels.MatchTheReference/none_smooth_z:*RowKernels.MatchTheReference/skew_forward_hot_capped'
status=0

has() { [[ ",$stages," == *",$1,"* ]]; }

stage() {
  local name=$1 limit=$2
  shift 2
  echo "== $name"
  timeout "$limit" "$@" > "$out/$name.log" 2>&1
  local code=$?
  [ $code -eq 0 ] || status=1
  echo "$name: exit $code, $SECONDS s so far"
}

has tests && { stage tests 150 "$test_program"; grep -E "Failure|FAILED|PASSED" -A4 "$out/tests.log" | cut -c1-180 | tail -40; }
has rows && { stage rows 100 "$python" scripts/bench_loss_head.py --library "$library" --what rows --reps 12 --out "$out/rows"; grep -v "^$" "$out/rows.log" | cut -c1-110; }
has head && {
  stage head 150 "$python" scripts/bench_loss_head.py --library "$library" --what head --reps 20 --errors --out "$out/head"
  grep -v "^$" "$out/head.log" | cut -c1-130
}
has memcheck && { stage memcheck 100 compute-sanitizer --tool memcheck "$test_program" --gtest_filter="$small"; tail -4 "$out/memcheck.log"; }
has racecheck && { stage racecheck 100 compute-sanitizer --tool racecheck "$test_program" --gtest_filter='*RowKernels.MatchTheReference/jsd'; tail -4 "$out/racecheck.log"; }
has ncu && {
  stage ncu 90 ncu --clock-control none --kernel-name regex:rows_cluster --launch-count 3 --launch-skip 6 --set full --import-source no \
    "$python" scripts/bench_loss_head.py --library "$library" --what rows --row-vocab 128256 --reps 1 --out "$out/ncu_rows"
  grep -E "rows_cluster|Duration|DRAM Throughput|Memory Throughput|Registers Per|Achieved Occupancy|Issue Slots Busy|Issued Ipc|Stall|stall" "$out/ncu.log" | head -60
}
exit $status
