# The GPU architectures that a build on this machine is for.

# Prints CMake's list of the visible GPUs' architectures, such as 90a-real, or nothing where no GPU is visible.
gpu_architectures() {
  nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | grep -E '^[0-9]+\.[0-9]+$' | sort -u |
    sed -E 's/\.//; s/^90$/90a/; s/$/-real/' | paste -sd ';' || true
}
