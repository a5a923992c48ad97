"""Runs scripts/tokenize.py within this process: starting Python for each case would take most of a test's time."""

import contextlib
import importlib.util
import io
import signal
import sys

from tokenize_runs import SCRIPT, documents, masks

from token_shards import shard_file

__all__ = ["convert", "documents", "masks", "teachers"]


def _load():
    path = list(sys.path)  # the script moves its own folder to the end
    sys.path.insert(0, str(SCRIPT.parent))
    try:
        spec = importlib.util.spec_from_file_location("tokenize_script", SCRIPT)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module
    finally:
        sys.path[:] = path


script = _load()


def convert(model, output, *args, code=0, stdin=None, monkeypatch=None):
    """What the script prints, errors included. `stdin`: a binary file for standard input."""
    out = io.TextIOWrapper(io.BytesIO(), "utf-8")
    before = signal.getsignal(signal.SIGTERM)
    arguments = ["--tokenizer", model, "--output", output, "--workers", "1", "--quiet", *args]
    if stdin is not None:
        monkeypatch.setattr(sys, "stdin", stdin)
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
            result = script.main([str(argument) for argument in arguments])
    finally:
        signal.signal(signal.SIGTERM, before)
    out.flush()
    said = out.buffer.getvalue().decode()
    assert result == code, said
    return said


def teachers(folder):
    return [one for path in sorted(folder.glob("*.dtok")) for one in shard_file.read_teacher(path)]
