// The target distill_pch needs one source; every other target reuses its precompiled header.
