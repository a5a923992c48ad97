"""The GPUs that a script may give to the programs it starts."""

import os


def visible_gpus():
    """For each GPU that this process sees, the value of CUDA_VISIBLE_DEVICES that shows it alone to a child: what the
    variable names here, or a number from 0."""
    import torch

    names = [name for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
    count = torch.cuda.device_count()
    return names[:count] or [str(number) for number in range(count)]
