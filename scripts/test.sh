#!/usr/bin/env bash
# Sets up, builds, and runs every check and test that needs no GPU; scripts/test_gpu.sh runs the others.
#   scripts/test.sh [PRESET]    PRESET: release (default) or asan, which leaves out the checks of headers and clang-tidy
# These two look at the files that changed since $DISTILL_BASE (default: the merge base with origin/main or main).
# The tests run side by side, DISTILL_TEST_JOBS at a time (default: one for each core, at most 8), except the Python
# tests that ask how long something takes. If up to 5 Python tests fail, these run once more, one at a time; the summary
# names those that pass then, and they do not fail the stage. The summary also has the seconds of each stage and the
# slowest tests.
set -uo pipefail
# shellcheck source=scripts/shared/usage.sh
. "$(dirname "$0")/shared/usage.sh"
check_arguments "" 0 1 "$@"
cd "$(dirname "$0")/.." || exit 1
preset=${1:-release}
python=.venv/bin/python
cores=$(nproc)
jobs=${DISTILL_TEST_JOBS:-$((cores < 8 ? cores : 8))}
not_run_code=77 # the exit code of a stage that lacks a tool
failed=()
not_run=()
passed_again=()
stage_times=()
stage() {
  local name=$1 start=$SECONDS code
  shift
  echo "== $name"
  "$@"
  code=$?
  stage_times+=("$(printf '%8d s  %s' $((SECONDS - start)) "$name")")
  case $code in
    0) echo "== $name: passed ($((SECONDS - start)) s)" ;;
    "$not_run_code")
      echo "== $name: NOT RUN"
      not_run+=("$name")
      ;;
    *)
      echo "== $name: FAILED ($((SECONDS - start)) s)"
      failed+=("$name")
      return 1
      ;;
  esac
}

check_cpp_format() {
  git ls-files -z '*.h' '*.cpp' '*.cu' '*.cuh' | xargs -0 .venv/bin/clang-format --dry-run --Werror
}
check_python() {
  .venv/bin/ruff check --quiet && .venv/bin/ruff format --quiet --check
}
run_ctest() {
  # A waiting thread of OpenMP leaves its core to the programs that run at the same time.
  OMP_WAIT_POLICY=passive .venv/bin/ctest --test-dir "build/$preset" -LE gpu --output-on-failure --no-tests=error \
    -j "$jobs" --output-junit "$junit/ctest.xml"
}
# run_pytest NAME ARGUMENT...: NAME is that of the file for the tests' times.
run_pytest() {
  local name=$1
  shift
  "$python" -m pytest -q -o cache_dir="$pytest_cache" --junitxml="$junit/$name.xml" "$@"
}
# Runs the tests that failed once more, one at a time, if they are at most 5. The arguments: pytest's exit code, and what
# had selected the tests.
run_failed_again() {
  local code=$1 names
  shift
  mapfile -t names < <("$python" -c 'import json, sys; print(*json.load(open(sys.argv[1])), sep="\n")' \
    "$pytest_cache/v/cache/lastfailed")
  [ "$code" = 1 ] && [ ${#names[@]} -le 5 ] || return 1
  echo "== again, one at a time: ${names[*]}"
  run_pytest again --last-failed --last-failed-no-failures none "$@" || return
  passed_again+=("${names[@]}")
}
# Most tests wait for processes of one thread; worksteal keeps the tests of a file, and what they share, together.
run_pytest_in_parallel() {
  local tests=(-m "not alone" "$@")
  run_pytest parallel -n "$jobs" --dist worksteal --cache-clear "${tests[@]}" || run_failed_again $? "${tests[@]}"
}
run_pytest_alone() {
  local files
  mapfile -t files < <(git grep -l 'pytest\.mark\.alone' -- 'tests/*.py')
  local tests=(-m alone "${files[@]}")
  run_pytest alone --cache-clear "${tests[@]}" || run_failed_again $? "${tests[@]}"
}
# The tests that load our library into Python. The sanitizers' runtime must be loaded first, and leaks of the Python
# interpreter are not ours.
run_sanitized_library() {
  local runtimes
  runtimes="$(g++ -print-file-name=libasan.so) $(g++ -print-file-name=libubsan.so) $(g++ -print-file-name=libstdc++.so.6)"
  LD_PRELOAD="$runtimes" ASAN_OPTIONS="$ASAN_OPTIONS:detect_leaks=0" run_pytest library "$library_tests"
}

library_tests=tests/losses
export DISTILL_BUILD="$PWD/build/$preset"
pytest_cache="$DISTILL_BUILD/pytest_cache"
junit="$DISTILL_BUILD/test_times"
rm -rf "$junit"
export DISTILL_LOSSES_LIBRARY="$DISTILL_BUILD/losses/libdistill_losses.so"
if [ "$preset" = asan ]; then
  # A finding or a leak exits with 99, which no test expects of distill itself.
  export ASAN_OPTIONS="exitcode=99:detect_leaks=1:detect_stack_use_after_return=1"
  export UBSAN_OPTIONS="exitcode=99:print_stacktrace=1"
fi

stage "set-up" scripts/setup.sh || exit 1
stage "C++ format" check_cpp_format
stage "Python lint and format" check_python
stage "include edges" "$python" scripts/checks/check_includes.py
stage "commit subjects" "$python" scripts/checks/check_commits.py
stage "documents" "$python" scripts/checks/check_docs.py
stage "build ($preset)" scripts/build.sh "$preset" || exit 1
if [ "$preset" != asan ]; then
  stage "headers compile alone" "$python" scripts/checks/check_headers.py
  stage "clang-tidy" "$python" scripts/checks/check_clang_tidy.py
fi
stage "C++ tests" run_ctest
if [ "$preset" = asan ]; then
  stage "Python tests of the library" run_sanitized_library
  stage "Python tests" run_pytest_in_parallel tests --ignore="$library_tests"
else
  stage "Python tests" run_pytest_in_parallel tests
fi
stage "Python tests of durations" run_pytest_alone
echo "== how long it took"
printf '%s\n' "${stage_times[@]}"
"$python" scripts/checks/slowest_tests.py "$junit"
gpu_tests=$(.venv/bin/ctest --test-dir "build/$preset" -L gpu -N 2>/dev/null | sed -n 's/^Total Tests: //p')
echo "GPU tests: ${gpu_tests:-0} programs built, not run here (scripts/test_gpu.sh runs them on a machine with a GPU)"
if [ ${#not_run[@]} -gt 0 ]; then
  echo "NOT RUN: ${not_run[*]}"
fi
if [ ${#passed_again[@]} -gt 0 ]; then
  echo "FAILED ONCE, PASSED WHEN RUN AGAIN ALONE: ${passed_again[*]}"
fi
if [ ${#failed[@]} -gt 0 ]; then
  echo "FAILED: ${failed[*]}"
  exit 1
fi
echo "all stages that ran passed"
