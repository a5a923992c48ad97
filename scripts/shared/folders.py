"""Writes folders that appear complete or not at all."""

import contextlib
import os
import shutil
import tempfile
from pathlib import Path


@contextlib.contextmanager
def replaced_folder(out):
    """Yields an empty folder that replaces `out` at the end of the block. If the block raises, `out` is unchanged."""
    out.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(dir=out.parent, prefix=f".{out.name}-"))
    try:
        partial.chmod(0o755)
        yield partial
        if out.exists():
            shutil.rmtree(out)
        os.rename(partial, out)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
