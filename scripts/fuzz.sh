#!/usr/bin/env bash
# Fuzzes the readers of untrusted files with libFuzzer, under the address and undefined-behaviour sanitizers. Needs clang.
#   scripts/fuzz.sh                     builds, then runs every target for 60 s
#   scripts/fuzz.sh TARGET [SECONDS]    one target (tests/fuzz/corpus/ has a folder for each); default: an hour
# New inputs are kept in build/fuzz/corpus/TARGET, findings in build/fuzz/findings. What a finding was belongs into
# tests/fuzz/corpus/TARGET/found-*, which fuzz_test reads.
set -euo pipefail
cd "$(dirname "$0")/.."
command -v clang++ >/dev/null || { echo "fuzz.sh: no clang++; as root: apt-get install -y clang" >&2; exit 1; }
targets=(config_yaml safetensors_header token_shard checkpoint_index tokenizer_json model_config)
if [ $# -gt 0 ] && [[ ! " ${targets[*]} " == *" $1 "* ]]; then
  echo "fuzz.sh: unknown target '$1'; expected one of: ${targets[*]}" >&2
  exit 2
fi
build=build/fuzz
sanitize="-fsanitize=address,undefined,fuzzer-no-link -fno-sanitize-recover=undefined -fno-sanitize=vptr -fno-omit-frame-pointer"
export PATH="$PWD/.venv/bin:$PATH"
cmake -S . -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=RelWithDebInfo -DCMAKE_CXX_COMPILER=clang++ -DDISTILL_CUDA=OFF \
  -DDISTILL_FUZZ=ON -DDISTILL_WERROR=OFF -DCMAKE_CXX_FLAGS="$sanitize" -DCMAKE_CXX_FLAGS_RELWITHDEBINFO="-O1 -g1" >/dev/null
[ $# -gt 0 ] && targets=("$1")
cmake --build "$build" -j "${DISTILL_BUILD_JOBS:-$(nproc)}" --target "${targets[@]/#/fuzz_}"
seconds=${2:-$([ $# -gt 0 ] && echo 3600 || echo 60)}
failed=()
for target in "${targets[@]}"; do
  mkdir -p "$build/corpus/$target" "$build/findings"
  echo "== $target, $seconds s"
  program=$(find "$build" -type f -name "fuzz_$target" -perm -u+x)
  # A reader may take no more memory than 64 times what it reads, which is at most 64 KiB here, and the program itself.
  "$program" -max_total_time="$seconds" -max_len=65536 -rss_limit_mb=2048 -malloc_limit_mb=256 -timeout=10 \
    -print_final_stats=1 -artifact_prefix="$build/findings/$target-" \
    "$build/corpus/$target" "tests/fuzz/corpus/$target" 2>"$build/$target.log" || failed+=("$target")
  grep -E "stat::number_of_executed_units|SUMMARY|ERROR" "$build/$target.log" || true
done
if [ ${#failed[@]} -gt 0 ]; then
  echo "findings in: ${failed[*]}; see $build/findings and $build/*.log" >&2
  exit 1
fi
