#!/usr/bin/env bash
# Runs the GPU tests of a build: scripts/test_gpu.sh [PRESET]. Fails where no GPU is visible.
set -euo pipefail
cd "$(dirname "$0")/.."
.venv/bin/ctest --test-dir "build/${1:-release}" -L gpu --output-on-failure --no-tests=error -j 1
