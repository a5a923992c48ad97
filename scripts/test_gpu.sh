#!/usr/bin/env bash
# Runs the GPU tests of a build; fails if no GPU is visible.
#   scripts/test_gpu.sh [PRESET]     PRESET: release (default) or debug
# The training tests use all GPUs. Tests that need more GPUs are skipped, and pytest's summary lists them.
set -euo pipefail
# shellcheck source=scripts/shared/usage.sh
. "$(dirname "$0")/shared/usage.sh"
check_arguments "" 0 1 "$@"
cd "$(dirname "$0")/.."
.venv/bin/ctest --test-dir "build/${1:-release}" -L gpu --output-on-failure --no-tests=error -j 1
DISTILL_TEST_DEVICE=cuda DISTILL_BUILD="$PWD/build/${1:-release}" \
  .venv/bin/python -m pytest tests/training tests/packages tests/parity/test_bf16.py -q -rs -p no:cacheprovider
