#!/usr/bin/env bash
# Sets up, builds and runs every test that needs no GPU. The GPU tests are a separate set: scripts/test_gpu.sh.
#   scripts/test.sh [PRESET]    PRESET: release (default) or asan
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1
preset=${1:-release}
failed=()
stage() {
  local name=$1 start=$SECONDS
  shift
  echo "== $name"
  if "$@"; then
    echo "== $name: passed ($((SECONDS - start)) s)"
  else
    echo "== $name: FAILED ($((SECONDS - start)) s)"
    failed+=("$name")
    return 1
  fi
}

check_format() {
  git ls-files -z '*.h' '*.cpp' '*.cu' '*.cuh' | xargs -0 .venv/bin/clang-format --dry-run --Werror
}
run_ctest() {
  .venv/bin/ctest --test-dir "build/$preset" -LE gpu --output-on-failure --no-tests=error -j 1
}
run_pytest() {
  .venv/bin/python -m pytest -q -p no:cacheprovider --durations=5 "$@"
}
# The tests that load our library into Python. Sanitised code wants its runtime loaded first, and the interpreter's own
# leaks are not ours.
run_sanitised_library() {
  local runtimes
  runtimes="$(g++ -print-file-name=libasan.so) $(g++ -print-file-name=libubsan.so) $(g++ -print-file-name=libstdc++.so.6)"
  LD_PRELOAD="$runtimes" ASAN_OPTIONS="$ASAN_OPTIONS:detect_leaks=0" run_pytest "$library_tests"
}

library_tests=tests/losses
export DISTILL_BUILD="$PWD/build/$preset"
export DISTILL_LOSSES_LIBRARY="$DISTILL_BUILD/losses/libdistill_losses.so"
if [ "$preset" = asan ]; then
  # A finding, a leak too, exits with 99: no test takes that for an exit code of distill's own.
  export ASAN_OPTIONS="exitcode=99:detect_leaks=1:detect_stack_use_after_return=1"
  export UBSAN_OPTIONS="exitcode=99:print_stacktrace=1"
fi

stage "set-up" scripts/setup.sh || exit 1
stage "format" check_format
stage "include edges" .venv/bin/python scripts/check_includes.py
stage "build ($preset)" scripts/build.sh "$preset" || exit 1
stage "C++ tests" run_ctest
if [ "$preset" = asan ]; then
  stage "Python tests" run_pytest tests --ignore="$library_tests"
  stage "Python tests of the library" run_sanitised_library
else
  stage "Python tests" run_pytest tests
fi
gpu_tests=$(.venv/bin/ctest --test-dir "build/$preset" -L gpu -N 2>/dev/null | sed -n 's/^Total Tests: //p')
echo "GPU tests: ${gpu_tests:-0} programs built, not run here (scripts/test_gpu.sh runs them on a machine with a GPU)"
if [ ${#failed[@]} -gt 0 ]; then
  echo "FAILED: ${failed[*]}"
  exit 1
fi
echo "all stages passed"
