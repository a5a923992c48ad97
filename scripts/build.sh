#!/usr/bin/env bash
# Configures and builds.
#   scripts/build.sh [PRESET] [TARGET...]     PRESET: release (default), debug, asan, cpu; TARGET: default all
# DISTILL_BUILD_JOBS=N limits the number of parallel compilations; DISTILL_CMAKE_ARGS adds arguments for CMake.
set -euo pipefail
# shellcheck source=scripts/shared/usage.sh
. "$(dirname "$0")/shared/usage.sh"
check_arguments "" 0 - "$@"
cd "$(dirname "$0")/.."
preset=${1:-release}
shift || true
if [ ! -x .venv/bin/cmake ]; then
  echo "build.sh: .venv is missing; run scripts/setup.sh first" >&2
  exit 1
fi
export PATH="$PWD/.venv/bin:$PATH"
# shellcheck disable=SC2086
cmake --preset "$preset" ${DISTILL_CMAKE_ARGS:-} >"/tmp/distill-configure.$$" 2>&1 || {
  cat "/tmp/distill-configure.$$"
  rm -f "/tmp/distill-configure.$$"
  exit 1
}
rm -f "/tmp/distill-configure.$$"
jobs=${DISTILL_BUILD_JOBS:-$(nproc)}
[ $# -eq 0 ] && set -- all
cmake --build "build/$preset" -j "$jobs" --target "$@"
