#!/usr/bin/env bash
# Configures and builds.
#   scripts/build.sh [PRESET] [TARGET...]     PRESET: release (default), debug, asan, cpu; TARGET: default all
# Where GPUs are visible, the CUDA kernels are built for their architectures alone, and otherwise for all that are
# supported; DISTILL_CMAKE_ARGS=-DDISTILL_CUDA_ARCHITECTURES=90a-real names others.
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
# shellcheck source=scripts/shared/gpu_architectures.sh
. scripts/shared/gpu_architectures.sh
read -ra arguments <<<"${DISTILL_CMAKE_ARGS:-}"
architectures=$(gpu_architectures)
if [ -n "$architectures" ] && [[ "${DISTILL_CMAKE_ARGS:-}" != *DISTILL_CUDA_ARCHITECTURES* ]]; then
  arguments+=("-DDISTILL_CUDA_ARCHITECTURES=$architectures")
  echo "build.sh: CUDA kernels for the GPUs of this machine ($architectures)"
fi
cmake --preset "$preset" "${arguments[@]}" >"/tmp/distill-configure.$$" 2>&1 || {
  cat "/tmp/distill-configure.$$"
  rm -f "/tmp/distill-configure.$$"
  exit 1
}
rm -f "/tmp/distill-configure.$$"
jobs=${DISTILL_BUILD_JOBS:-$(nproc)}
[ $# -eq 0 ] && set -- all
cmake --build "build/$preset" -j "$jobs" --target "$@"
