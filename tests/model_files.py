"""Folders of models that tests change."""

import json
import shutil
from pathlib import Path

from safetensors.torch import load_file, save_file


def change_keys(file, **keys):
    """Gives keys of a JSON file other values."""
    file = Path(file)
    file.write_text(json.dumps(json.loads(file.read_text()) | keys))


def change_tensors(file, change):
    """`change` is called with the dictionary of tensors."""
    tensors = load_file(file)
    change(tensors)
    save_file(tensors, file, metadata={"format": "pt"})


def change_model(folder, change=None, **keys):
    """Its tensors, and keys of its config.json. Returns the folder as a text."""
    if change is not None:
        change_tensors(Path(folder) / "model.safetensors", change)
    change_keys(Path(folder) / "config.json", **keys)
    return str(folder)


def changed_copy(source, folder, change=None, **keys):
    return change_model(shutil.copytree(source, folder), change, **keys)


def setting(name, index, value):
    """A change of one element, or of a row, of a tensor."""

    def change(tensors):
        tensors[name][index] = value

    return change
