# The stages of scripts/quickstart.sh and scripts/studies/quality.sh. Before it is sourced, `work` is set to the folder
# whose stamps/ remembers what is done, and `force` to 1 if every stage shall be repeated, else 0.

announce() {
  number=$((${number:-0} + 1))
  printf '\n== %d. %s: %s\n' "$number" "$1" "$2"
}

failed() {
  local code=$?
  echo "== $(basename "$0"): FAILED in stage ${number:-0} (exit code $code)" >&2
}
trap failed ERR

# A hash of the contents of files; for large files, of their size and modification time.
fingerprint() {
  local file
  for file in "$@"; do
    if [ -d "$file" ]; then
      find "$file" -type f -printf '%p %s %T@\n' | sort
    elif [ "$(stat -c %s "$file")" -gt 1000000 ]; then
      stat -c '%n %s %Y' "$file"
    else
      sha256sum "$file"
    fi
  done | sha256sum | cut -d' ' -f1
}

# stage NAME WHAT OUTPUT "INPUT..." COMMAND... runs the command, unless it has already made OUTPUT from the same inputs.
stage() {
  local name=$1 what=$2 output=$3 inputs=$4 start=$SECONDS
  shift 4
  announce "$name" "$what"
  local stamp=$work/stamps/$name key
  # shellcheck disable=SC2086
  key="$* $(fingerprint $inputs)"
  if [ "$force" -eq 0 ] && [ -e "$output" ] && [ "$key" = "$(cat "$stamp" 2>/dev/null)" ]; then
    echo "   $output is up to date"
    return
  fi
  rm -f "$stamp"
  "$@"
  mkdir -p "$work/stamps"
  echo "$key" >"$stamp"
  echo "   took $((SECONDS - start)) s"
}

timed() {
  local start=$SECONDS
  "$@"
  echo "   took $((SECONDS - start)) s"
}
