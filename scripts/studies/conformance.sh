#!/usr/bin/env bash
# Compares the distillation losses of several libraries with fp64 and writes docs/conformance.md and its results.
#   scripts/studies/conformance.sh
# The libraries that are not in .venv are installed without their dependencies in work/conformance/site.
set -Eeuo pipefail
# shellcheck source=scripts/shared/usage.sh
. "$(dirname "$0")/../shared/usage.sh"
check_arguments "" 0 0 "$@"
cd "$(dirname "$0")/../.."

scripts/setup.sh
scripts/build.sh "${DISTILL_PRESET:-release}" distill_losses_operators
site=work/conformance/site
.venv/bin/python -m pip install --quiet --no-deps --upgrade --target "$site" \
  ms-swift==4.6.0 nemo-automodel==0.7.0 nvidia-modelopt==0.47.0
PYTHONPATH=$site .venv/bin/python scripts/studies/conformance.py measure \
  --library "build/${DISTILL_PRESET:-release}/losses/libdistill_losses.so" --out docs/conformance.json
.venv/bin/python scripts/studies/conformance.py page docs/conformance.json
echo "conformance.sh: docs/conformance.md is written"
