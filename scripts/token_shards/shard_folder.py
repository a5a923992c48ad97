"""A folder of token shards: the shards are made in a work folder inside, and appear together at the end."""

import fcntl
import os
import shutil
from pathlib import Path

from .errors import Unfinished
from .shard_file import EXTENSION, Shard

_locks = set()  # that this process holds
WORK = ".tokenize"  # the folder inside the output folder that holds what is not finished


class ShardFolder:
    """Writes documents as shards of at most `shard_tokens` tokens, those that the teacher reads included; finish()
    shows them all. Without `overwrite`, check_free() refuses a folder that holds shards."""

    def __init__(self, folder, spec, shard_tokens, overwrite):
        self.folder = Path(folder)
        self.spec = spec
        self.shard_tokens = shard_tokens
        self.overwrite = overwrite
        self.written = self.documents = self.tokens = self.tokens_in_loss = self.teacher_tokens = 0
        self.shard = Shard(spec)
        if not self.folder.is_dir() and (self.folder.exists() or self.folder.is_symlink()):
            found = "a file" if self.folder.exists() else f"a link to {os.readlink(folder)}, which is not there"
            raise FileExistsError(f"{folder}: expected a folder, found {found}")
        if not overwrite and not (self.folder / WORK).exists():
            self.check_free()
        self.work = self.folder / WORK
        existed = self.folder.exists()
        self.work.mkdir(parents=True, exist_ok=True)
        self._lock()
        if not existed:
            (self.work / "created").touch()

    def _lock(self):
        self.lock = open(self.work / "lock", "a+")  # noqa: SIM115 (held until the end)
        try:
            fcntl.flock(self.lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self.lock.seek(0)
            process = self.lock.read().strip()
            self.lock.close()
            raise Unfinished(f"{self.folder}: process {process} is writing token shards here now") from error
        _locks.add(self.lock)
        self.lock.truncate(0)
        self.lock.write(str(os.getpid()))
        self.lock.flush()

    def check_free(self):
        if not self.overwrite and any(self.folder.glob(f"*{EXTENSION}")):
            raise FileExistsError(f"{self.folder}: holds token shards already; --overwrite replaces them")

    def add(self, tokens, in_loss, teacher=None, teacher_name=""):
        """As Shard.add."""
        size = len(tokens) + (0 if teacher is None else len(teacher[0]))
        if self.shard.documents and self.shard.token_count + size > self.shard_tokens:
            self.flush()
        self.shard.add(tokens, in_loss, teacher, teacher_name)
        self.documents += 1
        self.tokens += len(tokens)
        self.teacher_tokens += size - len(tokens)
        self.tokens_in_loss += len(tokens) if in_loss is None else int(in_loss.sum())

    def _name(self, index):
        return f"shard-{index:05d}{EXTENSION}"

    def flush(self):
        """Everything is on disk, still in the work folder."""
        if self.shard.documents:
            self.shard.write(self.work / self._name(self.written))
            self.written += 1
            self.shard = Shard(self.spec)

    def state(self):
        """(what JSON can hold, the documents that are in no shard on the disk yet)"""
        names = ("written", "documents", "tokens", "tokens_in_loss", "teacher_tokens")
        student, teacher = self.shard.student, self.shard.teacher
        pending = [
            (tokens, in_loss, (its, its_in_loss) if len(its) else None, name)
            for tokens, in_loss, its, its_in_loss, name in zip(
                student.tokens, student.in_loss, teacher.tokens, teacher.in_loss, self.shard.teacher_names
            )
        ]
        return {name: getattr(self, name) for name in names}, pending

    def restore(self, state, pending):
        for document in pending:
            self.shard.add(*document)
        for name, value in state.items():
            setattr(self, name, value)

    def finish(self):
        """Moves the shards to their names and removes other shards. Can be called again after it was interrupted."""
        self.flush()
        _sync(self.work)
        names = [self.folder / self._name(index) for index in range(self.written)]
        for name in names:
            if (self.work / name.name).exists():
                os.replace(self.work / name.name, name)
        for path in self.folder.glob(f"*{EXTENSION}"):
            if path not in names:
                path.unlink()
        _sync(self.folder)
        return names

    def close(self, *, keep=False):
        """Removes the work folder, and a folder that was made here and is empty; `keep`: only gives the lock back."""
        if not keep:
            created = (self.work / "created").exists()
            shutil.rmtree(self.work, ignore_errors=True)
            if created and self.folder.exists() and not any(self.folder.iterdir()):
                self.folder.rmdir()
        _locks.discard(self.lock)
        self.lock.close()


def close_inherited_locks():
    """For a process that was forked: it must not hold the locks when the process that made it has died."""
    for lock in _locks:
        lock.close()


def _sync(folder):
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
