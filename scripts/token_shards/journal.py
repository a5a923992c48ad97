"""What a conversion keeps on disk so that it can continue after it was ended at any instant.

Files in the work folder of the first output:
  job.json   everything that the output depends on: files with sizes and times, options, tokenizer, program
  log-N      a frame with a snapshot, then a frame for each chunk that was encoded since

A snapshot is taken when a shard was written: it has the documents that are in no shard yet, and the counts. A frame has
a checksum, so that one that was being written at the end is known and left out; its chunk is encoded again.
"""

import json
import os
from pathlib import Path

from .encoded import read_frame, write_frame
from .errors import Unfinished


class Journal:
    def __init__(self, folder, job):
        self.folder, self.job = Path(folder), job
        self.file = None

    def load(self, *, overwrite):
        """(meta, arrays) of the last snapshot, or None where there is nothing to continue. Unfinished: there is
        something, of another job. `overwrite` removes it."""
        logs = sorted(self.folder.glob("log-*[0-9]"))
        snapshot = self._open(logs[-1]) if logs else None
        different = [] if snapshot is None else self._differences()
        if different and not (overwrite or self._failed.exists()):
            lines = "\n".join(f"  {line}" for line in different[:8])
            raise Unfinished(
                f"{self.folder.parent}: holds an unfinished conversion of something else; --overwrite starts anew. "
                f"Different are:\n{lines}" + (f"\n  and {len(different) - 8} more" if len(different) > 8 else "")
            )
        self._failed.unlink(missing_ok=True)
        if snapshot is None or different:
            self._clear()
            return None
        return snapshot

    @property
    def _failed(self):
        return self.folder / "failed"

    def mark_failed(self):
        """Another job may begin here without being told to overwrite."""
        self._failed.touch()

    def _open(self, path):
        self.file = open(path, "r+b")  # noqa: SIM115 (closed by close())
        self.number = int(path.name.removeprefix("log-"))
        return read_frame(self.file)

    def _differences(self):
        try:
            before = json.loads((self.folder / "job.json").read_text())
        except (OSError, ValueError):
            return ["job.json: cannot be read"]
        names = dict.fromkeys([*before, *self.job])
        missing = "(not there)"
        pairs = [(name, before.get(name, missing), self.job.get(name, missing)) for name in names]
        return [f"{name}: {_shown(old)} before, {_shown(new)} now" for name, old, new in pairs if old != new]

    def _clear(self):
        self.close()
        for path in self.folder.iterdir():
            if path.name not in ("lock", "created"):
                path.unlink()
        self.number = 0
        temporary = self.folder / "job.tmp"
        temporary.write_text(json.dumps(self.job, indent=1))
        _sync_file(temporary)
        temporary.rename(self.folder / "job.json")

    def frames(self):
        """(meta, arrays) of each whole frame after the snapshot; a torn one is cut off."""
        end = self.file.tell()
        while (frame := read_frame(self.file)) is not None:
            end = self.file.tell()
            yield frame
        self.file.truncate(end)
        self.file.seek(end)

    def snapshot(self, meta, arrays):
        """Begins a new log with this snapshot; the old one is not needed any more."""
        temporary = self.folder / "log.tmp"
        file = open(temporary, "w+b")  # noqa: SIM115 (closed by close())
        write_frame(file, meta, arrays)
        file.flush()
        os.fsync(file.fileno())
        self.number += 1
        temporary.rename(self.folder / f"log-{self.number:06d}")
        self.close()
        self.file = file
        for path in self.folder.glob("log-*[0-9]"):
            if path.name != f"log-{self.number:06d}":
                path.unlink()

    def append(self, meta, arrays):
        write_frame(self.file, meta, arrays)
        self.file.flush()

    def close(self):
        if self.file is not None:
            self.file.close()
            self.file = None


def _shown(value):
    return value if isinstance(value, str) else json.dumps(value)


def _sync_file(path):
    with open(path, "rb") as file:
        os.fsync(file.fileno())
