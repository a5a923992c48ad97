"""Which files of a Hugging Face folder hold the model's weights, as transformers and distill choose them."""

import json
from pathlib import Path

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"


def weight_files(folder):
    """The single file, or the files that the index names: with all tensors in them, listed or not.

    ValueError: the folder has neither, or its index is no index."""
    folder = Path(folder)
    if (folder / SINGLE).exists():
        return [folder / SINGLE]
    if not (folder / INDEX).exists():
        raise ValueError(f"{folder}: no {SINGLE} and no {INDEX}")
    return [folder / name for name in sorted(set(weight_map(folder).values()))]


def weight_map(folder):
    """{tensor: file} of the folder's index; empty where the weights are a single file."""
    path = Path(folder) / INDEX
    if (Path(folder) / SINGLE).exists() or not path.exists():
        return {}
    try:
        files = json.loads(path.read_text(encoding="utf-8")).get("weight_map")
    except (UnicodeDecodeError, json.JSONDecodeError, AttributeError) as error:
        raise ValueError(f"{path}: not valid JSON ({error})") from None
    if not isinstance(files, dict) or not all(isinstance(name, str) for name in files.values()):
        raise ValueError(f"{path}: no weight_map")
    return files
