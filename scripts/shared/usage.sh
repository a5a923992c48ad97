# The command lines of the shell scripts. A script sources it before it changes the folder or writes
# anything, and then calls check_arguments.
script_file=$(readlink -f "$0")

# The comment at the head of the script, which is its --help.
usage() {
  awk 'NR > 1 && !/^#/ {exit} NR > 1 {sub(/^# ?/, ""); print}' "$script_file"
}

# Ends the script: bad command line, nothing was started.
refuse() {
  echo "$(basename "$script_file"): $1; --help shows the usage" >&2
  exit 2
}

# check_arguments "OPTION ..." MIN MAX ARGUMENT... prints the usage where -h or --help is among the arguments, and
# refuses options that are not listed and a number of other arguments that is not from MIN to MAX (-: no maximum). The
# value of an option counts as another argument.
check_arguments() {
  local options=" $1 " min=$2 max=$3 count=0 argument
  shift 3
  for argument in "$@"; do
    case "$argument" in -h | --help) usage; exit 0 ;; esac
  done
  for argument in "$@"; do
    if [[ $argument != -* ]]; then
      count=$((count + 1))
    elif [[ $options != *" ${argument%%=*} "* ]]; then
      [ "$options" != "  " ] || refuse "unknown option '$argument' (it has none but --help)"
      refuse "unknown option '$argument' (expected: ${options:1:-1}, --help)"
    fi
  done
  [ $count -ge "$min" ] || refuse "expected at least $min arguments, found $count"
  [ "$max" = - ] || [ $count -le "$max" ] || refuse "expected at most $max arguments, found $count"
}

# The file in a folder that a script has made, and may therefore remove to make it anew.
made_mark=.made-by-distill

# Refuses a folder with files that no script has made.
check_own_folder() {
  [ ! -e "$1" ] || [ -e "$1/$made_mark" ] || [ -z "$(ls -A "$1")" ] ||
    refuse "$1 holds other files, which would be removed: expected a new or empty folder, or one that it has made"
}

# The options that a Python script of this repository declares, for a script that hands its own on to it.
options_of() {
  grep -ohE '"--[a-z-]+"' "$@" | tr -d '"' | sort -u | paste -sd ' '
}
