#!/usr/bin/env bash
# Installs everything that building, testing and running distill needs; takes a second if nothing is missing.
#   scripts/setup.sh            system packages (as root), pinned wheels in .venv, a CUDA toolkit if there is none
#   scripts/setup.sh --no-cuda  the same without the CUDA toolkit (for preset cpu, or -DDISTILL_CUDA=OFF)
set -euo pipefail
# shellcheck source=scripts/shared/usage.sh
. "$(dirname "$0")/shared/usage.sh"
check_arguments "--no-cuda" 0 0 "$@"
cd "$(dirname "$0")/.."

with_cuda=1
[ $# -eq 0 ] || with_cuda=0

packages=(g++ make ccache git ca-certificates python3 python3-venv python3-dev unzip zstd
  libyaml-cpp-dev libabsl-dev libcli11-dev libspdlog-dev nlohmann-json3-dev libxxhash-dev libgtest-dev libgmock-dev
  chromium chromium-driver)

install_system_packages() {
  command -v dpkg-query >/dev/null || { echo "setup.sh: not a Debian-like system; install the equivalents of: ${packages[*]}"; return; }
  local missing=()
  local installed
  installed=$(dpkg-query -W -f='${db:Status-Abbrev}${Package}\n' "${packages[@]}" 2>/dev/null | sed -n 's/^ii *//p' || true)
  for package in "${packages[@]}"; do
    grep -qx -- "$package" <<<"$installed" || missing+=("$package")
  done
  [ ${#missing[@]} -eq 0 ] && return
  if [ "$(id -u)" -ne 0 ]; then
    echo "setup.sh: system packages are missing. Run as root, then run setup.sh again:" >&2
    echo "  apt-get update && apt-get install -y ${missing[*]}" >&2
    exit 1
  fi
  echo "setup.sh: installing ${missing[*]}"
  apt-get update -q >/dev/null
  DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends "${missing[@]}" >/dev/null
}

# Installs wheels into .venv and names each file that is downloaded, with its size, when its download begins.
pip_install() {
  .venv/bin/python -m pip install --disable-pip-version-check --progress-bar off "$@" |
    sed -unE 's/^ *Downloading ([^ ]+\/)?([^ /]+) (\(.*\))$/  downloading \2 \3/p'
}

install_wheels() {
  local stamp=.venv/.requirements
  cmp -s scripts/requirements.txt "$stamp" && [ -x .venv/bin/python ] && return
  echo "setup.sh: installing Python wheels into .venv (torch with its CUDA libraries: 4.6 GB, a few minutes)"
  [ -x .venv/bin/python ] || python3 -m venv .venv
  pip_install -r scripts/requirements.txt
  cp scripts/requirements.txt "$stamp"
}

# Succeeds if CMake will find a working toolkit of the system, of version 13 or newer.
system_toolkit_serves() {
  local nvcc=/usr/local/cuda/bin/nvcc
  [ -x "$nvcc" ] || nvcc=$(command -v nvcc) || return
  "$nvcc" --version 2>/dev/null | grep -qE 'release (1[3-9]|[2-9][0-9])\.'
}

# Installs the toolkit's wheels and links them in the layout that CMake and nvcc expect. CMake prefers them to the
# system's.
install_cuda_toolkit() {
  [ -d .venv/cuda-toolkit ] && return
  system_toolkit_serves && return
  echo "setup.sh: this system has no CUDA toolkit of version 13 or newer; installing 13.0 from wheels"
  pip_install "cuda-toolkit[nvcc,cccl,crt,nvvm]==13.0.2"
  local wheels toolkit=.venv/cuda-toolkit.partial
  wheels=$(.venv/bin/python -c "import sysconfig; print(sysconfig.get_path('purelib'))")/nvidia/cu13
  rm -rf "$toolkit"
  mkdir -p "$toolkit/lib64"
  for name in bin include nvvm; do ln -s "$wheels/$name" "$toolkit/$name"; done
  ln -s lib64 "$toolkit/lib"
  for library in "$wheels"/lib/*; do
    ln -s "$library" "$toolkit/lib64/$(basename "$library")"
    case "$library" in
      *.so.*) ln -sf "$library" "$toolkit/lib64/$(basename "${library%%.so.*}").so" ;;
    esac
  done
  mv "$toolkit" .venv/cuda-toolkit
}

install_system_packages
install_wheels
[ "$with_cuda" -eq 0 ] || install_cuda_toolkit
echo "setup.sh: ready"
