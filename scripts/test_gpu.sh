#!/usr/bin/env bash
# Runs the GPU tests of a build: scripts/test_gpu.sh [PRESET]. Fails where no GPU is visible. The training tests run on as
# many GPUs as there are; those that need more are skipped, and pytest's summary says so.
set -euo pipefail
cd "$(dirname "$0")/.."
.venv/bin/ctest --test-dir "build/${1:-release}" -L gpu --output-on-failure --no-tests=error -j 1
DISTILL_TEST_DEVICE=cuda DISTILL_BUILD="$PWD/build/${1:-release}" \
  .venv/bin/python -m pytest tests/training -q -rs -p no:cacheprovider
