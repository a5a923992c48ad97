#!/usr/bin/env bash
# Measures the trainer on this machine's GPUs and prints a line per run: tok/s per GPU, memory, time of each phase.
#   bench_table.sh [FOLDER] [RUN...]     RUN: names in the list below; default: all runs for this number of GPUs
# FOLDER (default work/bench-table) receives table.txt and all output. DISTILL and PYTHON as in bench_trainer.sh.
# Rows of several GPUs gather with NCCL, as the figures of docs/performance.md were measured. Rows that end in -copy or
# -slots gather by copies, which the default, `parallel.gather: auto`, does where the GPUs have peer access.
set -uo pipefail
# shellcheck source=scripts/shared/usage.sh
. "$(dirname "$0")/../shared/usage.sh"
check_arguments "" 0 - "$@"
cd "$(dirname "$0")/../.."
folder=${1:-work/bench-table}
shift $(($# < 1 ? $# : 1))
mkdir -p "$folder"
python=${PYTHON:-.venv/bin/python}
gpus=$("$python" -c 'import torch; print(torch.cuda.device_count())')
steps=8

# name, GPUs, student, teacher, arguments of distill
runs=$(cat <<LIST
1b-8b-1gpu 1 1b 8b --set train.global_batch_size=2 --set parallel.processes=1
3b-8b-1gpu 1 3b 8b --set train.global_batch_size=2 --set parallel.processes=1
8b-8b-2gpu 2 8b 8b --set train.global_batch_size=4 --set parallel.processes=2 --set parallel.gather=nccl
8b-8b-2gpu-16k 2 8b 8b --set train.micro_batch_size=4 --set train.global_batch_size=8 --set parallel.processes=2 --set parallel.gather=nccl
8b-8b-2gpu-recompute 2 8b 8b --set train.global_batch_size=4 --set parallel.processes=2 --set memory.activation=recompute --set parallel.gather=nccl
8b-8b-2gpu-ctas8 2 8b 8b --set train.global_batch_size=4 --set parallel.processes=2 --set parallel.nccl_max_ctas=8 --set parallel.gather=nccl
8b-8b-2gpu-ctas16 2 8b 8b --set train.global_batch_size=4 --set parallel.processes=2 --set parallel.nccl_max_ctas=16 --set parallel.gather=nccl
8b-8b-2gpu-prefetch2 2 8b 8b --set train.global_batch_size=4 --set parallel.processes=2 --set parallel.prefetch=2 --set parallel.gather=nccl
8b-8b-2gpu-copy 2 8b 8b --set train.global_batch_size=4 --set parallel.processes=2 --set parallel.gather=copy
8b-8b-2gpu-slots 2 8b 8b --set train.global_batch_size=4 --set parallel.processes=2 --set parallel.slots=auto --set parallel.gather=copy
8b-8b-4gpu-copy 4 8b 8b --set train.global_batch_size=8 --set parallel.processes=4 --set parallel.gather=copy
8b-8b-4gpu-slots 4 8b 8b --set train.global_batch_size=8 --set parallel.processes=4 --set parallel.slots=auto --set parallel.gather=copy
1b-8b-2gpu 2 1b 8b --set train.global_batch_size=4 --set parallel.processes=2 --set parallel.gather=nccl
3b-8b-2gpu 2 3b 8b --set train.global_batch_size=4 --set parallel.processes=2 --set parallel.gather=nccl
3b-8b-2gpu-reduce-each 2 3b 8b --set train.global_batch_size=16 --set parallel.processes=2 --set parallel.gather=nccl
3b-8b-2gpu-keep-full 2 3b 8b --set train.global_batch_size=16 --set parallel.processes=2 --set parallel.accumulate=keep_full --set parallel.gather=nccl
8b-8b-4gpu 4 8b 8b --set train.global_batch_size=8 --set parallel.processes=4 --set parallel.gather=nccl
8b-8b-2gpu-whole-teacher 2 8b 8b --set train.global_batch_size=4 --set parallel.processes=2 --set parallel.shard_teacher=false --set parallel.gather=nccl
1b-8b-2gpu-whole-teacher 2 1b 8b --set train.global_batch_size=4 --set parallel.processes=2 --set parallel.shard_teacher=false --set parallel.gather=nccl
8b-8b-4gpu-whole-teacher 4 8b 8b --set train.global_batch_size=8 --set parallel.processes=4 --set parallel.shard_teacher=false --set parallel.gather=nccl
1b-8b-4gpu-whole-teacher 4 1b 8b --set train.global_batch_size=8 --set parallel.processes=4 --set parallel.shard_teacher=false --set parallel.gather=nccl
8b-8b-4gpu-16k 4 8b 8b --set train.micro_batch_size=4 --set train.global_batch_size=16 --set parallel.processes=4 --set parallel.gather=nccl
8b-8b-4gpu-recompute 4 8b 8b --set train.global_batch_size=8 --set parallel.processes=4 --set memory.activation=recompute --set parallel.gather=nccl
8b-8b-4gpu-ctas8 4 8b 8b --set train.global_batch_size=8 --set parallel.processes=4 --set parallel.nccl_max_ctas=8 --set parallel.gather=nccl
8b-8b-4gpu-ctas16 4 8b 8b --set train.global_batch_size=8 --set parallel.processes=4 --set parallel.nccl_max_ctas=16 --set parallel.gather=nccl
1b-8b-4gpu 4 1b 8b --set train.global_batch_size=8 --set parallel.processes=4 --set parallel.gather=nccl
3b-8b-4gpu 4 3b 8b --set train.global_batch_size=8 --set parallel.processes=4 --set parallel.gather=nccl
LIST
)

summary() { # name, GPUs
  "$python" - "$1" "$2" <<'PYTHON'
import json, statistics, sys
name, gpus = sys.argv[1], int(sys.argv[2])
steps = [json.loads(line) for line in open("work/bench-4096/run/metrics.jsonl")]
last = steps[-3:]
median = lambda key: statistics.median(step[key] for step in last)
phases = {key: statistics.median(step["phase_seconds"][key] for step in last) for key in last[0]["phase_seconds"]}
gib = [round(step["peak_memory_bytes"] / 2**30, 1) for step in steps]
print(f"{name:24s} {median('tokens_per_second') / gpus:7.0f} tok/s/GPU  mfu {100 * median('mfu_causal'):.1f} %  "
      f"{gib[-1]} GiB (first step {gib[0]}, reserved {last[-1]['peak_reserved_bytes'] / 2**30:.1f})  loss {last[-1]['loss']:.5f}  "
      + "  ".join(f"{key} {1000 * value:.0f}" for key, value in phases.items()) + " ms")
PYTHON
}

while read -r name need student teacher arguments; do
  [ "$need" -le "$gpus" ] || continue
  [ $# -eq 0 ] || [[ " $* " == *" $name "* ]] || continue
  # shellcheck disable=SC2086
  if scripts/benches/bench_trainer.sh "$student" "$teacher" $steps $arguments >"$folder/$name.txt" 2>&1 </dev/null; then
    summary "$name" "$need" | tee -a "$folder/table.txt"
  else
    echo "$name FAILED: $(tail -n 1 "$folder/$name.txt")" | tee -a "$folder/table.txt"
  fi
done <<<"$runs"
