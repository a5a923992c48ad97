#!/usr/bin/env bash
# Compares the memory plan with what this machine's GPUs measure, run by run, and tries what docs/memory.md claims.
#   scripts/check_plan_gpu.sh FOLDER [STAGE...]
# Stages: plan   predicted against measured peak and tokens per second, for every run of the list that fits the GPUs
#         auto   memory.activation: auto against the uniform policies, under four budgets (4 GPUs, 8B <- 8B)
#         long   one long sequence: the longest that the plan says fits, and 32768 and 65536 tokens (4 GPUs)
#         bits   losses under every policy equal keep's bit for bit, in deterministic mode (1 GPU)
#         flat   2000 steps with offload: memory of the first and the last step (1 GPU)
#         speeds measures this machine: machine-N.json, for memory.machine
#         NAME   one run of the list
# Default: plan. FOLDER receives table.txt, details.jsonl, log.txt and the machines' files. DISTILL and PYTHON name other
# programs than the build's.
set -uo pipefail
cd "$(dirname "$0")/.."
[ $# -ge 1 ] || { sed -n '2,12s/^# \{0,1\}//p' "$0" >&2; exit 2; }
folder=$1
shift
stages=("$@")
[ ${#stages[@]} -gt 0 ] || stages=(plan)
mkdir -p "$folder"
distill=${DISTILL:-build/release/apps/distill/distill}
python=${PYTHON:-.venv/bin/python}
gpus=$("$python" -c 'import torch; print(torch.cuda.device_count())')
work=work/check-plan
failed=0

# name, GPUs, student, teacher, vocabulary, sequence length, sequences of a micro-batch, micro-batches, other settings
runs=$(cat <<LIST
1g-1b-8b-keep 1 1b 8b 128256 4096 2 1
1g-1b-8b-recompute-v32k 1 1b 8b 32000 4096 2 1 memory.activation=recompute
1g-1b-8b-keep-v262k 1 1b 8b 262144 4096 2 1
1g-3b-8b-offload 1 3b 8b 128256 4096 2 1 memory.activation=offload
1g-1b-8b-input-16k-acc2 1 1b 8b 128256 4096 4 2 memory.activation=offload_input
1g-3b-8b-auto 1 3b 8b 128256 4096 2 1 memory.activation=auto memory.budget_gib=76.5
1g-1b-8b-host-optimizer 1 1b 8b 128256 4096 2 1 memory.optimizer=host
1g-1b-8b-packed 1 1b 8b 128256 4096 2 1 data.packing=pack
2g-8b-8b-keep 2 8b 8b 128256 4096 2 1
2g-8b-8b-input 2 8b 8b 128256 4096 2 1 memory.activation=offload_input
2g-8b-8b-recompute-acc2 2 8b 8b 128256 4096 2 2 memory.activation=recompute
2g-3b-8b-auto-v262k 2 3b 8b 262144 4096 2 1 memory.activation=auto memory.budget_gib=48
2g-3b-8b-full-acc2 2 3b 8b 32000 4096 2 2 parallel.accumulate=keep_full
2g-1b-8b-replicas 2 1b 8b 128256 4096 2 1 parallel.replicate=2
4g-8b-8b-keep 4 8b 8b 128256 4096 2 1
4g-8b-8b-recompute 4 8b 8b 128256 4096 2 1 memory.activation=recompute
4g-8b-8b-input 4 8b 8b 128256 4096 2 1 memory.activation=offload_input
4g-8b-8b-auto50 4 8b 8b 128256 4096 2 1 memory.activation=auto memory.budget_gib=50
4g-8b-8b-auto45 4 8b 8b 128256 4096 2 1 memory.activation=auto memory.budget_gib=45
4g-1b-70b-keep 4 1b 70b 128256 4096 2 1
4g-3b-8b-hsdp-acc2 4 3b 8b 128256 4096 2 2 parallel.replicate=2
4g-8b-8b-keep-16k-v32k 4 8b 8b 32000 4096 4 1
LIST
)

# Writes the inputs and the configuration of a run; prints the configuration's path.
configure() { # GPUs, student, teacher, vocabulary, sequence length, sequences, micro-batches
  local inputs=$work/v$4-s$5 rows=$(($1 * $6 * $7 * 2 > 32 ? $1 * $6 * $7 * 2 : 32))
  [ "$5" -le 16384 ] || rows=$(($1 * 2))
  local shapes=$2,$3 teacher="teacher: {path: $inputs/$3, init: random}" loss="{divergence: jsd, beta: 0.5}"
  [ "$3" != none ] || { shapes=$2 teacher="" loss="{divergence: none, hard_weight: 1}"; }
  "$python" scripts/bench_inputs.py --out "$inputs" --shapes "$shapes" --vocab "$4" --seq-len "$5" --rows "$rows" || return 1
  cat >"$inputs/$2-$3.yaml" <<YAML
student: {path: $inputs/$2, init: random}
$teacher
data: {train: $inputs/tokens.dtok, seq_len: $5, packing: concat, shuffle: false}
loss: $loss
train: {steps: 5, micro_batch_size: $6, global_batch_size: $(($1 * $6 * $7))}
parallel: {processes: $1}
scheduler: {type: constant}
checkpoint: {at_end: false}
run: {dir: $work/run}
YAML
  echo "$inputs/$2-$3.yaml"
}

# One line of the table and of details.jsonl from a profile's report.
summarise() { # name, report.json
  "$python" - "$1" "$2" "$folder/details.jsonl" <<'PYTHON'
import json, sys
name, path, details = sys.argv[1:]
report = json.load(open(path))
plan, measured = report["plan"], report["measured"]
gib = 2**30
phases = {}
for phase, found in measured["phases"].items():
    predicted = plan["phases"][phase]
    phases[phase] = {"peak": [round(predicted["peak"] / gib, 3), round(found["peak"] / gib, 3)]} | {
        key: [round(predicted["highest"][key] / gib, 3), round(value / gib, 3)]
        for key, value in found["highest"].items() if value or predicted["highest"][key]}
with open(details, "a") as file:
    file.write(json.dumps({
        "name": name, "activation": plan["activation"], "phases": phases, "seconds": plan["seconds"],
        "measured_seconds": measured["phase_seconds"], "plan_bytes": plan["bytes"],
        "reserved_peak": measured["reserved_peak"], "outside_allocator": measured["outside_allocator"]}) + "\n")
outside = plan["bytes"]["communicators"] + plan["bytes"]["context"]
print(f"{name:26s} peak {plan['bytes']['peak'] / gib:7.2f} / {measured['peak'] / gib:7.2f} GiB {100 * report['peak_error']:+6.2f} %"
      f"  reserved {(plan['bytes']['peak'] + plan['bytes']['allocator_slack']) / gib:7.2f} / {measured['reserved_peak'] / gib:7.2f}"
      f"  outside {outside / gib:5.2f} / {measured['outside_allocator'] / gib:5.2f}"
      f"  tok/s {plan['tokens_per_second']:8.0f} / {measured['tokens_per_second']:8.0f} {100 * report['speed_error']:+6.1f} %"
      f"  {plan['activation']}")
PYTHON
}

profile() { # name, configuration, settings...
  local name=$1 config=$2 arguments=()
  shift 2
  for setting in "$@"; do arguments+=(--set "$setting"); done
  rm -rf "$work/profile"
  if timeout 120 "$distill" profile-memory --config "$config" --steps 5 --out "$work/profile" "${arguments[@]}" \
      >"$work/run.log" 2>&1 </dev/null; then
    summarise "$name" "$work/profile/report.json" | tee -a "$folder/table.txt"
  else
    failed=1
    echo "$name FAILED: $(tail -n 1 "$work/run.log")" | tee -a "$folder/table.txt"
    { echo "== $name"; tail -n 40 "$work/run.log"; } >>"$folder/log.txt"
  fi
}

# Runs of the list whose GPUs are here; with a name, that one alone.
run_list() { # name or nothing
  local name need student teacher vocabulary length sequences micro settings config
  while read -r name need student teacher vocabulary length sequences micro settings; do
    [ -n "$1" ] && [ "$1" != "$name" ] && continue
    if [ -z "$1" ] && [ "$need" -ne "$gpus" ]; then continue; fi
    [ "$need" -le "$gpus" ] || continue
    config=$(configure "$need" "$student" "$teacher" "$vocabulary" "$length" "$sequences" "$micro") || { failed=1; continue; }
    # shellcheck disable=SC2086
    profile "$name" "$config" $settings
  done <<<"$runs"
}

stage_auto() {
  local config budget policy
  config=$(configure 4 8b 8b 128256 4096 2 1) || return 1
  for policy in keep recompute offload offload_input; do
    profile "uniform-$policy" "$config" memory.activation=$policy
  done
  for budget in 45 55 70 100; do
    profile "auto-$budget" "$config" memory.activation=auto memory.budget_gib=$budget
  done
}

stage_long() {
  # 4 GPUs: the 8B student alone, on labels; one GPU: 1B from 8B.
  local length config student=8b teacher=none ranks=$gpus
  [ "$gpus" -ge 4 ] || { student=1b; teacher=8b; ranks=1; }
  if [ "$gpus" -ge 4 ]; then
    for length in 32768 65536; do
      config=$(configure 4 8b 8b 128256 "$length" 1 1) || return 1
      profile "one-sequence-$length" "$config" memory.activation=auto memory.budget_gib=130
    done
  fi
  config=$(configure "$ranks" "$student" "$teacher" 128256 4096 1 1) || return 1
  length=$("$distill" plan --config "$config" --ranks "$ranks" --longest --json --set memory.activation=auto --set memory.limit_gib=137 |
    "$python" -c 'import json, sys; print(json.load(sys.stdin)["longest_seq_len"])') || return 1
  echo "the longest sequence that the plan says fits: $length" | tee -a "$folder/table.txt"
  config=$(configure "$ranks" "$student" "$teacher" 128256 "$length" 1 1) || return 1
  profile "longest-$length" "$config" memory.activation=auto memory.limit_gib=137
}

stage_bits() {
  local config policy expected="" found
  config=$(configure 1 1b 1b 32000 1024 2 2) || return 1
  for policy in keep recompute offload offload_input recompute*4,offload*4,offload_input*4,keep*4; do
    "$distill" --config "$config" --overwrite --set train.steps=6 --set train.deterministic=true --set memory.activation="$policy" \
      --set optimizer.lr=1e-4 >"$work/run.log" 2>&1 </dev/null || { tail -n 3 "$work/run.log"; failed=1; continue; }
    found=$("$python" -c '
import json, sys
print([(s["loss"], s["grad_norm"]) for s in map(json.loads, open(sys.argv[1]))])' "$work/run/metrics.jsonl")
    expected=${expected:-$found}
    if [ "$found" = "$expected" ]; then echo "bits: $policy equals keep"; else echo "bits: $policy DIFFERS: $found, keep $expected"; failed=1; fi
  done | tee -a "$folder/table.txt"
}

stage_flat() {
  local config
  config=$(configure 1 tiny tiny 32000 1024 2 1) || return 1
  "$distill" --config "$config" --overwrite --set train.steps=2000 --set memory.activation=offload >"$work/run.log" 2>&1 </dev/null || { failed=1; tail -n 3 "$work/run.log"; return 1; }
  "$python" - "$work/run/metrics.jsonl" <<'PYTHON' | tee -a "$folder/table.txt"
import json, sys
steps = [json.loads(line) for line in open(sys.argv[1])]
peaks = [step["peak_memory_bytes"] for step in steps]
print(f"flat: {len(steps)} steps, peak after step 2: {peaks[1]} bytes, after the last: {peaks[-1]} bytes, grown by {peaks[-1] - peaks[1]}")
PYTHON
}

for stage in "${stages[@]}"; do
  case $stage in
    plan) run_list "" ;;
    auto | long | bits | flat) "stage_$stage" || failed=1 ;;
    speeds) "$distill" plan --calibrate "$folder/machine-$gpus.json" --ranks "$gpus" | tee -a "$folder/table.txt" || failed=1 ;;
    *) run_list "$stage" ;;
  esac
done
exit $failed
