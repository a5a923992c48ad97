#!/usr/bin/env bash
# Makes a relocatable folder that runs on another machine with the same version of libtorch.
#   scripts/bundle.sh OUT_DIR [PRESET] [PROGRAM...]     PROGRAM: default distill
# It holds the programs, their shared libraries except those of libtorch, CUDA and the compiler, and for each program a
# launcher that finds libtorch on the other machine (in DISTILL_TORCH_DIR, or through the python3 on its PATH).
set -euo pipefail
# shellcheck source=scripts/shared/usage.sh
. "$(dirname "$0")/shared/usage.sh"
check_arguments "" 1 - "$@"
out=$(realpath -m "$1")
check_own_folder "$out"
cd "$(dirname "$0")/.."
preset=${2:-release}
shift
[ $# -gt 0 ] && shift
build=build/$preset
[ $# -gt 0 ] || set -- distill

partial=$out.distill-unfinished
rm -rf "$partial"
mkdir -p "$partial/bin" "$partial/lib"
touch "$partial/$made_mark"
for name in "$@"; do
  program=$(find "$build" -type f -name "$name" \( -perm -u+x -o -name '*.so' \) | head -n 1)
  [ -n "$program" ] || { echo "bundle.sh: no program '$name' under $build; run scripts/build.sh $preset first" >&2; exit 1; }
  case "$name" in
    *.so) copy="$partial/lib/$name" ;;
    *) copy="$partial/bin/$name" ;;
  esac
  cp "$program" "$copy"
  strip --strip-debug "$copy"
  ldd "$program" | awk '$3 ~ /^\// {print $3}' | while read -r library; do
    case "$library" in
      */torch/lib/* | */nvidia/* | */cuda*/* | */libc.so* | */libm.so* | */libdl.so* | */libpthread.so* | */librt.so* | */libutil.so* | */ld-linux* | */libstdc++.so* | */libgcc_s.so* | */libgomp*) ;;
      *) cp -n "$library" "$partial/lib/" ;;
    esac
  done
  [[ "$name" == *.so ]] && continue
  cat >"$partial/$name" <<'LAUNCHER'
#!/usr/bin/env bash
# Runs the program with this machine's libtorch.
here=$(cd "$(dirname "$(readlink -f "$0")")" && pwd)
torch=${DISTILL_TORCH_DIR:-$(python3 -c 'import importlib.util, os; print(os.path.dirname(importlib.util.find_spec("torch").origin))')}
if [ ! -e "$torch/lib/libtorch_cpu.so" ]; then
  echo "$(basename "$0"): no libtorch in '$torch'; name the torch package's folder in DISTILL_TORCH_DIR" >&2
  exit 1
fi
nvidia=$(printf '%s:' "$(dirname "$torch")"/nvidia/*/lib)
export LD_LIBRARY_PATH="$here/lib:$torch/lib:$nvidia${LD_LIBRARY_PATH:-}"
exec "$here/bin/$(basename "$0")" "$@"
LAUNCHER
  chmod +x "$partial/$name"
done
rm -rf "$out"
mv "$partial" "$out"
du -sh "$out"
