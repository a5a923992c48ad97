#!/usr/bin/env bash
# Sets up, builds and runs every test that needs no GPU. The GPU tests are a separate set: scripts/test_gpu.sh.
#   scripts/test.sh [PRESET]    PRESET: release (default) or asan
set -uo pipefail
cd "$(dirname "$0")/.."
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
  DISTILL_BUILD="$PWD/build/$preset" .venv/bin/python -m pytest tests -q -p no:cacheprovider --durations=5
}

stage "set-up" scripts/setup.sh || exit 1
stage "format" check_format
stage "include edges" .venv/bin/python scripts/check_includes.py
stage "build ($preset)" scripts/build.sh "$preset" || exit 1
stage "C++ tests" run_ctest
stage "Python tests" run_pytest
gpu_tests=$(.venv/bin/ctest --test-dir "build/$preset" -L gpu -N 2>/dev/null | sed -n 's/^Total Tests: //p')
echo "GPU tests: ${gpu_tests:-0} programs built, not run here (scripts/test_gpu.sh runs them on a machine with a GPU)"
if [ ${#failed[@]} -gt 0 ]; then
  echo "FAILED: ${failed[*]}"
  exit 1
fi
echo "all stages passed"
