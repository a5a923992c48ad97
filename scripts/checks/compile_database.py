"""The compile commands that CMake exports, by source file."""

import json
import os
import shlex
from pathlib import Path

CUDA_SUFFIXES = {".cu", ".cuh"}
SKIPPED_WITH_VALUE = {"-o", "-c", "-x", "-include", "-MF", "-MT", "-MQ"}
SKIPPED = {"-MD", "-MMD", "-Winvalid-pch"}


class CompileDatabase:
    """Reads `build`/compile_commands.json; `root` is the repository that the paths of its sources lie in."""

    def __init__(self, build, root):
        file = Path(build) / "compile_commands.json"
        if not file.is_file():
            raise SystemExit(f"{file}: no such file; run scripts/build.sh first")
        self.root = Path(root).resolve()
        self.commands = {}  # relative path of the source -> (words of the command, folder in which it runs)
        for entry in json.loads(file.read_text()):
            source = Path(entry["directory"], entry["file"]).resolve()
            if source.is_relative_to(self.root):
                words = entry.get("arguments") or shlex.split(entry["command"])
                self.commands[source.relative_to(self.root).as_posix()] = words, entry["directory"]

    def nearest_source(self, path):
        """The source in the same language that shares the longest beginning of its path with `path`, or None."""
        language = Path(path).suffix in CUDA_SUFFIXES
        sources = [source for source in self.commands if (Path(source).suffix in CUDA_SUFFIXES) == language]
        return max(sorted(sources), key=lambda source: len(os.path.commonprefix([source, path])), default=None)

    def flags_for(self, path):
        """The compiler with its flags for `path`, without source, output and precompiled header; and its folder."""
        source = self.nearest_source(path)
        if source is None:
            return None
        words, folder = self.commands[source]
        kept, skip = [], False
        for word in words:
            if skip:
                skip = False
            elif word in SKIPPED_WITH_VALUE:
                skip = True
            elif word not in SKIPPED and not word.endswith(source):
                kept.append(word)
        return kept, folder
