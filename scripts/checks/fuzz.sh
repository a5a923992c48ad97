#!/usr/bin/env bash
# Fuzzes the readers of untrusted files with libFuzzer and the address and undefined-behaviour sanitizers. Needs clang.
#   scripts/checks/fuzz.sh [OPTION...] [TARGET...]   builds, and fuzzes each target (default: all) for a minute
#   scripts/checks/fuzz.sh --long [--jobs N]         runs each target for 10 million inputs or an hour; continues
#   scripts/checks/fuzz.sh --bundle DIR              makes a folder for another Linux x86-64 machine with the same version
#                                             of libtorch and no compiler: DIR/run.sh SECONDS JOBS OUT
# The options are those of scripts/checks/fuzz_run.py: --seconds S, --jobs N, --runs N, --hours H. The results are
# build/fuzz/out/summary.txt and findings/. Add each finding to tests/fuzz/corpus/TARGET/found-*, which fuzz_test reads.
set -euo pipefail
# shellcheck source=scripts/shared/usage.sh
. "$(dirname "$0")/../shared/usage.sh"
check_arguments "--long --bundle $(options_of "$(dirname "$0")/fuzz_run.py")" 0 - "$@"
cd "$(dirname "$0")/../.."
command -v clang++ >/dev/null || { echo "fuzz.sh: no clang++; as root: apt-get install -y clang" >&2; exit 1; }
build=build/fuzz
program=$build/tests/fuzz/fuzz_readers
sanitize="-fsanitize=address,undefined,fuzzer-no-link -fno-sanitize-recover=undefined -fno-sanitize=vptr -fno-omit-frame-pointer"
export PATH="$PWD/.venv/bin:$PATH"
cmake -S . -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=RelWithDebInfo -DCMAKE_CXX_COMPILER=clang++ -DDISTILL_CUDA=OFF \
  -DDISTILL_FUZZ=ON -DDISTILL_WERROR=OFF -DCMAKE_CXX_FLAGS="$sanitize" -DCMAKE_CXX_FLAGS_RELWITHDEBINFO="-O2 -gline-tables-only" \
  >/dev/null
cmake --build "$build" -j "${DISTILL_BUILD_JOBS:-$(nproc)}" --target fuzz_readers

if [ "${1:-}" = --bundle ]; then
  out=${2:?fuzz.sh: --bundle wants a folder}
  check_own_folder "$out"
  rm -rf "$out"
  mkdir -p "$out/lib"
  touch "$out/$made_mark"
  cp -r scripts/checks/fuzz_run.py tests/fuzz/corpus "$out/"
  objcopy --compress-debug-sections=zlib "$program" "$out/fuzz_readers"
  ldd "$program" | awk '$3 ~ /^\// {print $3}' | grep -E '/lib(absl|yaml-cpp)' | xargs -I{} cp {} "$out/lib/"
  cat >"$out/run.sh" <<'RUN'
#!/usr/bin/env bash
# run.sh SECONDS JOBS OUT [OPTION or TARGET...]: fuzzes with this machine's libtorch; see fuzz_run.py --help.
set -euo pipefail
here=$(cd "$(dirname "$(readlink -f "$0")")" && pwd)
[ $# -ge 3 ] || { sed -n 2p "$0" >&2; exit 2; }
torch=${DISTILL_TORCH_DIR:-$(python3 -c 'import importlib.util, os; print(os.path.dirname(importlib.util.find_spec("torch").origin))')}
[ -e "$torch/lib/libtorch_cpu.so" ] || { echo "run.sh: no libtorch in '$torch'; name the torch package's folder in DISTILL_TORCH_DIR" >&2; exit 1; }
export LD_LIBRARY_PATH="$here/lib:$torch/lib:$(printf '%s:' "$(dirname "$torch")"/nvidia/*/lib)${LD_LIBRARY_PATH:-}"
seconds=$1 jobs=$2 out=$3
shift 3
exec python3 "$here/fuzz_run.py" --program "$here/fuzz_readers" --corpus "$here/corpus" --out "$out" --seconds "$seconds" \
  --jobs "$jobs" "$@"
RUN
  chmod +x "$out/run.sh" "$out/fuzz_run.py"
  du -sh "$out"
  exit 0
fi

out=$build/out
long=()
if [ "${1:-}" = --long ]; then
  shift
else
  rm -rf "$out/progress.json" "$out/findings"
  long=(--hours 0.0167)
fi
exec python3 scripts/checks/fuzz_run.py --program "$program" --corpus tests/fuzz/corpus --out "$out" "${long[@]}" "$@"
