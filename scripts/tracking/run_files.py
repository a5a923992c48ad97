"""The files of a run folder as track.py reads them: complete lines, from where the last reading ended."""

import fcntl
import json
import os
import struct


class DamagedFile(Exception):
    """A line that is no JSON object; the message names file and line."""


class LineReader:
    """The new records of a JSON-lines file at each call. A resumed run replaces its files without the records of steps
    that it repeats; such a file is read from its begin again."""

    def __init__(self, path):
        self.path = path
        self.inode = None
        self.offset = 0
        self.lines = 0

    def new_records(self):
        """Yields the records. A last line without its newline is being written, and comes later."""
        try:
            file = open(self.path, "rb")  # noqa: SIM115 (the with follows)
        except FileNotFoundError:
            return
        with file:
            status = os.fstat(file.fileno())
            if status.st_ino != self.inode or status.st_size < self.offset:
                self.inode, self.offset, self.lines = status.st_ino, 0, 0
            file.seek(self.offset)
            for line in file:
                if not line.endswith(b"\n"):
                    return
                self.offset += len(line)
                self.lines += 1
                yield self.parse(line)

    def parse(self, line):
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            record = None
        if not isinstance(record, dict):
            raise DamagedFile(f"{self.path}:{self.lines}: expected a JSON object, found a damaged line")
        return record


class RunFiles:
    def __init__(self, folder):
        self.folder = folder
        self.metrics = LineReader(folder / "metrics.jsonl")
        self.events = LineReader(folder / "events.jsonl")
        self.samples = LineReader(folder / "samples.jsonl")

    def problem(self):
        """What is wrong with the folder; None: nothing."""
        if not self.folder.is_dir():
            return f"{self.folder}: expected a run folder, found {'a file' if self.folder.exists() else 'nothing'}"
        if not (self.folder / "metrics.jsonl").exists():
            return f"{self.folder}: expected a run folder, found no metrics.jsonl in it"
        return None

    def config(self):
        """config.yaml as a dict of sections; empty where there is none."""
        import yaml

        try:
            read = yaml.safe_load((self.folder / "config.yaml").read_text(errors="replace"))
        except FileNotFoundError:
            return {}
        except yaml.YAMLError as error:
            line = getattr(getattr(error, "problem_mark", None), "line", 0) + 1
            raise DamagedFile(f"{self.folder / 'config.yaml'}:{line}: expected YAML, found a damaged line") from None
        return read if isinstance(read, dict) else {}

    def sessions(self):
        """The records of sessions.jsonl: a start, its end, a start, ..."""
        return list(LineReader(self.folder / "sessions.jsonl").new_records())

    def ended(self):
        """The record of the run's end; None: the last start has not ended, or is not known."""
        records = self.sessions()
        return records[-1] if records and "end" in records[-1] else None

    def live(self):
        """Whether a process holds the folder's lock (trainer/run_folder/folder_lock.h)."""
        try:
            with open(self.folder / ".lock", "rb") as file:
                query = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
                answer = fcntl.fcntl(file, fcntl.F_GETLK, query)
                return struct.unpack("hhqqi4x", answer)[0] != fcntl.F_UNLCK
        except OSError:
            return False
