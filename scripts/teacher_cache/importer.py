"""What every import into a teacher's cache does: documents found by their tokens, parts, manifest, head."""

import sys

from shared.command_line import fail
from shared.text_model import text_fields
from teacher_cache import folder as cache_folder
from teacher_cache.part_file import write_part
from teacher_cache.reading import read_object
from token_shards.tokenizer_files import TokenizerFiles

PART_BYTES = 1 << 30


def check_tokenizer(teacher, named, documents):
    """Compares the teacher's tokenizer with that of the token shards. It is `named`, a folder or a tokenizer.json, or
    else the one in the teacher's folder; without any there is a warning."""
    if named is None and not (teacher / "tokenizer.json").exists():
        print(
            f"import_teacher: warning: {teacher}: no tokenizer.json: the teacher's tokenizer is not compared with that "
            "of the token shards; name one with --tokenizer",
            file=sys.stderr,
        )
        return
    found = TokenizerFiles.load(named or teacher)
    if found.hash != documents.tokenizer_hash:
        fail(
            f"{found.file}: tokenizer_hash: expected {documents.tokenizer_hash.hex()} (the token shards), found "
            f"{found.hash.hex()}"
        )


class Importer:
    """Subclasses have `row_bytes`, stretches_of(path), manifest_rows(), write_head(folder), and `precision`."""

    def __init__(self, arguments, documents):
        self.arguments, self.documents = arguments, documents
        config = read_object(arguments.teacher / "config.json")
        try:
            self.config = text_fields(arguments.teacher, config)
        except ValueError as error:
            fail(error)
        self.seen = {}  # shard and document -> how many of its first tokens have their rows
        self.longest = 2  # tokens of a sequence

    def new_documents(self, tokens, predicted=None):
        """(document, how many of its tokens get their rows) of those that begin with these tokens, unless they have as
        many rows already: a dump may be the beginning of several documents, and another dump one of them in full.

        predicted: after how many of the tokens the dump has a prediction (default: all).
        """
        predicted = len(tokens) if predicted is None else predicted
        found = []
        for document in self.documents.beginning_with(tokens):
            # A token that has no target needs no prediction.
            covered = predicted if document.targets(len(tokens))[predicted:].any() else len(tokens)
            place = document.shard, document.document
            if covered > self.seen.get(place, 0):
                self.seen[place] = covered
                found.append((document, covered))
        return found

    def summary(self):
        """What the cache has: a text of one line."""
        text = f"{len(self.seen)} of {self.documents.count} documents"
        covered = ((self.seen.get((d.shard, d.document), 0), d) for d in self.documents)
        short = [(count, d) for count, d in covered if 0 < count < len(d.tokens)]
        if not short:
            return text
        count, first = min(short, key=lambda each: (each[1].shard, each[1].document))
        where = f"document {first.document} of {self.documents.files[first.shard]['path']}"
        return (
            f"{text}, {len(short)} of them only in part: {where} has rows for its first {count} of {len(first.tokens)} "
            "tokens; a run that reads on is refused"
        )

    def groups(self, files):
        """Stretches in groups of about PART_BYTES. A dump that is of no document is an error."""
        group, size, strange = [], 0, []
        for path in files:
            found = False
            for stretch in self.stretches_of(path):
                found = True
                group.append(stretch)
                size += len(stretch.rows)
                if size >= PART_BYTES:
                    yield group
                    group, size = [], 0
            if not found:
                strange.append(str(path))
        if group:
            yield group
        if len(strange) == len(files):
            fail(f"no dump has the tokens of a document of --data; the first one is {strange[0]}")
        for path in strange:
            print(
                f"import_teacher: warning: {path}: its tokens begin no document of --data, or only those that have "
                "these rows from another dump",
                file=sys.stderr,
            )

    def report(self):
        """Says what the rows had, once all are written."""

    def manifest(self):
        # Parts carry a hash of the manifest, which is written before their number and the longest dump are known.
        documents = self.documents
        return {
            "format": "distill-teacher-cache",
            **self.manifest_rows(),
            "teacher_shape": f"imported, {self.config.get('model_type', 'unknown')}",
            "teacher_hash": cache_folder.teacher_hash(self.arguments.teacher),
            "precision": f"imported, {self.precision}",
            "compute_dtype": self.compute_dtype,
            "tokenizer_hash": documents.tokenizer_hash.hex(),
            "seq_len": self.longest,
            "teacher_seq_len": 0,
            "micro_batch_size": 0,
            "part_samples": 0,
            "parts": 0,
            "data": documents.files,
            "teacher": str(self.arguments.teacher),
        }

    def write_cache(self, files, out):
        self.write_head(out)
        manifest = self.manifest() | {"head": cache_folder.head_hash(out)}
        for part, group in enumerate(self.groups(files)):
            write_part(out / f"part-{part:08d}.dtc", cache_folder.cache_id(manifest), part, self.row_bytes, group)
        cache_folder.write_manifest(out, manifest)
        self.report()
        missing = self.documents.count - len(self.seen)
        if missing and not self.arguments.allow_missing:
            fail(
                f"expected a dump for each of {self.documents.count} documents, found none for {missing} of them; "
                "--allow-missing writes the cache nevertheless, for a run that does not read them"
            )
