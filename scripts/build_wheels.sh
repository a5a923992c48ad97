#!/usr/bin/env bash
# Builds the wheels of distill-losses and distill-cpp (docs/python_package.md) with the Python of .venv.
#   scripts/build_wheels.sh [OUT_DIR [PRESET [WHEEL...]]]
# Defaults: OUT_DIR dist, PRESET release, and both wheels. WHEEL: distill-losses, distill-cpp.
# distill-cpp holds the program of build/PRESET (scripts/build.sh makes it). distill-losses is compiled for the same GPU
# architectures, out of the compiler cache where build/PRESET has been compiled before.
set -euo pipefail
# shellcheck source=scripts/shared/usage.sh
. "$(dirname "$0")/shared/usage.sh"
check_arguments "" 0 - "$@"
cd "$(dirname "$0")/.."
out=${1:-dist}
preset=${2:-release}
shift $(($# < 2 ? $# : 2))
[ $# -gt 0 ] || set -- distill-losses distill-cpp
for name in "$@"; do
  case "$name" in
    distill-losses | distill-cpp) ;;
    *) refuse "unknown wheel '$name' (expected: distill-losses, distill-cpp)" ;;
  esac
done
cache=build/$preset/CMakeCache.txt
python=$PWD/.venv/bin/python
[ -f "$cache" ] || { echo "build_wheels.sh: no build in build/$preset; run scripts/build.sh $preset first" >&2; exit 1; }
cached() { sed -n "s/^$1:[A-Z]*=//p" "$cache"; }

# pip prints what a build prints only where it fails.
wheel() {
  local folder=$1
  shift
  PATH="$PWD/.venv/bin:$PATH" "$python" -m pip wheel "./$folder" --quiet --no-build-isolation --no-deps \
    --wheel-dir "$out" "$@"
}

# The same folder depth, compiler and flags as build/PRESET: then the compiler cache has every object.
losses() {
  local jobs=${DISTILL_BUILD_JOBS:-$(nproc)} define=(-C "build-dir=$PWD/build/wheel-losses-$preset") name
  for name in DISTILL_CUDA DISTILL_CUDA_ARCHITECTURES DISTILL_WERROR CMAKE_BUILD_TYPE CMAKE_CXX_COMPILER; do
    define+=(-C "cmake.define.$name=$(cached "$name")")
  done
  define+=(-C "cmake.define.DISTILL_TORCH_DIR=$(echo "$PWD"/.venv/lib/python3*/site-packages/torch)")
  CMAKE_BUILD_PARALLEL_LEVEL=$jobs wheel losses/python "${define[@]}"
}

program() {
  local bundle=build/wheel-program-$preset cuda=
  scripts/bundle.sh "$bundle/bundle" "$preset" distill >/dev/null
  if readelf -d "$bundle/bundle/bin/distill" | grep -q 'NEEDED.*libtorch_cuda'; then
    cuda=$("$python" -c 'import runpy, sys; print(runpy.run_path(sys.argv[1])["cuda"])' .venv/lib/python3*/site-packages/torch/version.py)
  fi
  wheel apps/python -C "build-dir=$PWD/$bundle/cmake" -C "cmake.define.DISTILL_BUNDLE=$PWD/$bundle/bundle" \
    -C "cmake.define.DISTILL_CUDA_VERSION=$cuda"
}

mkdir -p "$out"
for name in "$@"; do
  case "$name" in
    distill-losses) losses ;;
    distill-cpp) program ;;
  esac
done
ls -l "$out"/*.whl
