"""A conversion that is ended at any instant and started again gives the files of one that was not, byte for byte."""

import contextlib
import gzip
import json
import os
import random
import signal
import subprocess
import sys
import time

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from conversion import convert, documents
from tokenize_runs import CHAT, SCRIPT, contents, corpus, make_tokenizer, write_jsonl

from token_shards import convert as conversion
from token_shards import journal, readers, shard_folder


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("continue") / "model"
    make_tokenizer(folder)
    return folder


@pytest.fixture
def inputs(tmp_path, monkeypatch):
    """A folder with a file of each kind, of several chunks each."""
    monkeypatch.setattr(readers, "CHUNK_BYTES", 4000)
    folder = tmp_path / "in"
    folder.mkdir()
    corpus(folder / "a.jsonl", 300)
    (folder / "b.jsonl.gz").write_bytes(gzip.compress(corpus(tmp_path / "b.jsonl", 301).read_bytes() + b"{\n"))
    records = [json.loads(line) for line in corpus(tmp_path / "c.jsonl", 302).read_text().splitlines()]
    (folder / "c.json").write_text(json.dumps(records))
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(records), folder / "d.parquet", row_group_size=70)
    for index in range(30):
        (folder / f"e{index:02}.txt").write_text("the fox says " * index)
    teacher = {"teacher_messages": [{"role": "user", "content": "say hello"}]}
    write_jsonl(folder / "f.jsonl", [{"messages": CHAT[:2], **(teacher if i % 2 else {})} for i in range(100)])
    return folder


SPLITS = {
    "all": [],
    "fraction": ["--eval-fraction", "0.1"],
    "tokens": ["--eval-tokens", "2000"],
}


def command(inputs, out, split):
    held_out = ["--eval-output", out / "eval"] if SPLITS[split] else []
    return [inputs, *held_out, *SPLITS[split], "--shard-tokens", "4000"]


def all_contents(out):
    return {str(path.relative_to(out)): path.read_bytes() for path in sorted(out.rglob("*")) if path.is_file()}


class Killed(BaseException):
    """The process ends here: nothing is cleaned up, no handler runs."""


def dead_close(folder, *, keep=False, close=shard_folder.ShardFolder.close):
    """Gives only the lock back, as the kernel does when a process is killed."""
    if sys.exc_info()[0] is Killed:
        folder.lock.close()
    else:
        close(folder, keep=keep)


def killed_run(model, out, arguments, monkeypatch, at):
    """Runs until the call number `at` of what writes; True if it was killed there. What is open stays as it is, with
    half of the last frame, as after SIGKILL."""
    calls = 0
    with monkeypatch.context() as patch:

        def counted(module, name, tear=False):
            original = getattr(module, name)

            def call(*args, **kwargs):
                nonlocal calls
                calls += 1
                if calls == at:
                    if tear:
                        file = args[0]
                        original(*args, **kwargs)
                        file.flush()
                        file.truncate(file.tell() - random.Random(at).randint(1, 500))
                    raise Killed
                return original(*args, **kwargs)

            patch.setattr(module, name, call)

        counted(journal, "write_frame", tear=True)
        counted(conversion.Conversion, "_take")
        counted(shard_folder.Shard, "write")
        counted(shard_folder.os, "replace")
        counted(shard_folder.shutil, "rmtree")
        counted(journal.Journal, "snapshot")
        patch.setattr(shard_folder.ShardFolder, "close", dead_close)
        try:
            convert(model, out / "train", *arguments)
            return False
        except Killed:
            return True


@pytest.mark.parametrize("split", SPLITS)
def test_killed_at_every_tenth_write_and_continued_the_files_are_the_same(tmp_path, model, inputs, split, monkeypatch):
    convert(model, tmp_path / "whole" / "train", *command(inputs, tmp_path / "whole", split))
    expected = all_contents(tmp_path / "whole")
    assert len(expected) >= 8
    out = tmp_path / "killed"
    arguments = command(inputs, out, split)
    # Killed again and again, later each time, until it comes to its end.
    kills = 0
    for turn in range(200):
        if not killed_run(model, out, arguments, monkeypatch, at=turn % 13 + 7):
            break
        kills += 1
        assert not list((out / "train").glob("*.dtok")) or (out / "train" / ".tokenize").exists()
    assert kills >= 10
    found = all_contents(out)
    assert found.keys() == expected.keys()
    assert found == expected


def works_here(work, process, *, with_tokens):
    """Whether this process has the folder and a journal there; `with_tokens`: that has a shard's snapshot."""
    with contextlib.suppress(OSError):
        logs = list(work.glob("log-*"))
        later = any(log.name > "log-000001" for log in logs)
        return bool(logs) and (later or not with_tokens) and (work / "lock").read_text() == str(process)
    return False


def wait_until(condition, seconds=60):
    until = time.monotonic() + seconds
    while not condition() and time.monotonic() < until:
        time.sleep(0.01)


def wait_for_work(process, work, *, with_tokens):
    wait_until(lambda: process.poll() is not None or works_here(work, process.pid, with_tokens=with_tokens))


@pytest.mark.parametrize("name", ["SIGKILL", "SIGTERM", "SIGINT"])
def test_a_process_that_gets_a_signal_at_a_random_instant_continues(tmp_path, model, name):
    """The whole program with its workers; the instants are those of the clock."""
    source = corpus(tmp_path / "a.jsonl", 30000)
    convert(model, tmp_path / "whole", source, "--shard-tokens", 100_000)
    arguments = ["--tokenizer", model, "--output", tmp_path / "out", "--workers", "2", "--shard-tokens", "100000"]
    run = [sys.executable, str(SCRIPT), *map(str, arguments), str(source)]
    source_of_instants = random.Random(name)
    interrupted = continued = 0
    for attempt in range(5):
        process = subprocess.Popen(run, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        work = tmp_path / "out" / ".tokenize"
        # From the first attempt there is something to continue; the others end at any instant.
        wait_for_work(process, work, with_tokens=attempt == 0)
        time.sleep(source_of_instants.uniform(0, 0.3 * attempt))
        process.send_signal(getattr(signal, name))
        said = process.communicate(timeout=60)[0]
        continued += "continues an interrupted conversion" in said
        assert "Traceback" not in said
        if process.returncode == 0 or (interrupted and not work.exists()):
            break  # it had finished; the signal may have come while the interpreter was leaving
        interrupted += 1
        assert process.returncode == {"SIGKILL": -9, "SIGTERM": 143, "SIGINT": 130}[name], said
        assert not list((tmp_path / "out").glob("*.dtok")) or work.exists()
    else:
        result = subprocess.run(run, capture_output=True, text=True)
        assert result.returncode == 0, result.stderr
        continued += "continues an interrupted conversion" in result.stdout
    assert interrupted >= 1 and continued >= 1
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")


def test_a_signal_after_the_last_shard_leaves_no_work(tmp_path, model, inputs, monkeypatch):
    def ended(*_):
        raise SystemExit(143)

    source, out = inputs / "a.jsonl", tmp_path / "out"
    convert(model, tmp_path / "whole", source, "--shard-tokens", 3000)
    monkeypatch.setattr(conversion.Tally, "lines", ended)  # of the summary, which is printed last
    convert(model, out, source, "--shard-tokens", 3000, code=143)
    assert contents(out) == contents(tmp_path / "whole")


def interrupted(model, out, source, monkeypatch, *arguments):
    assert killed_run(model, out, [source, "--shard-tokens", "3000", *arguments], monkeypatch, at=20)


def test_another_job_is_named_with_both_values_and_needs_overwrite(tmp_path, model, inputs, monkeypatch):
    source, out = inputs / "a.jsonl", tmp_path / "out"
    options = [source, "--shard-tokens", 3000]
    interrupted(model, out, source, monkeypatch)
    before = sorted(path.name for path in (out / "train" / ".tokenize").iterdir())
    error = convert(model, out / "train", source, "--shard-tokens", 4000, "--seed", "3", code=1)
    assert "holds an unfinished conversion of something else; --overwrite starts anew" in error
    assert "--shard-tokens: 3000 before, 4000 now" in error and "--seed: 0 before, 3 now" in error
    error = convert(model, out / "train", inputs / "b.jsonl.gz", "--shard-tokens", 3000, code=1)
    assert f"input {source}: " in error and "before, (not there) now" in error
    other = tmp_path / "other"
    make_tokenizer(other, bos=True)
    error = convert(other, out / "train", *options, code=1)
    assert "tokenizer: SHA-256 " in error and " before, SHA-256 " in error
    with source.open("a") as file:
        file.write('{"text": "one more"}\n')
    error = convert(model, out / "train", *options, code=1)
    assert f"input {source}: " in error and error.count(" bytes, changed ") == 2
    assert sorted(path.name for path in (out / "train" / ".tokenize").iterdir()) == before
    convert(model, out / "train", *options, "--overwrite")
    convert(model, tmp_path / "fresh", *options)
    assert contents(out / "train") == contents(tmp_path / "fresh")


def test_workers_and_the_limit_of_bad_documents_may_change(tmp_path, model, inputs, monkeypatch):
    source, out = inputs / "a.jsonl", tmp_path / "out"
    interrupted(model, out, source, monkeypatch)
    said = convert(model, out / "train", source, "--shard-tokens", 3000, "--max-bad", "3", "--workers", "2")
    convert(model, tmp_path / "whole", source, "--shard-tokens", 3000)
    assert contents(out / "train") == contents(tmp_path / "whole") and "300 documents" in said


def test_a_damaged_journal_costs_its_last_frames_only(tmp_path, model, inputs, monkeypatch):
    source, out = inputs / "a.jsonl", tmp_path / "out"
    convert(model, tmp_path / "whole", source, "--shard-tokens", 3000)
    for cut in (1, 100, 3000, 10**9):
        interrupted(model, out, source, monkeypatch)
        log = max((out / "train" / ".tokenize").glob("log-*"))
        data = bytearray(log.read_bytes())
        data[max(0, len(data) - cut)] ^= 1
        log.write_bytes(data)
        convert(model, out / "train", source, "--shard-tokens", 3000)
        assert contents(out / "train") == contents(tmp_path / "whole")
        for path in (out / "train").iterdir():
            path.unlink()


def test_frames_after_a_torn_one_are_kept(tmp_path):
    """A conversion that is killed twice loses one frame each time, not all that follow the first torn one."""

    def opened():
        out = journal.Journal(tmp_path, {"job": 1})
        return out, out.load(overwrite=False)

    book, found = opened()
    assert found is None
    book.snapshot({"first": 0}, {})
    for number in range(3):
        book.append({"number": number}, {"tokens": np.arange(100)})
    book.close()
    log = tmp_path / "log-000001"
    log.write_bytes(log.read_bytes()[:-30])
    book, (meta, _) = opened()
    assert meta == {"first": 0} and [frame["number"] for frame, _ in book.frames()] == [0, 1]
    book.append({"number": 7}, {"tokens": np.arange(5)})
    book.close()
    book, _ = opened()
    frames = list(book.frames())
    assert [frame["number"] for frame, _ in frames] == [0, 1, 7]
    assert frames[2][1]["tokens"].tolist() == [0, 1, 2, 3, 4]


def test_a_full_disk_keeps_the_work_and_a_bad_file_does_not(tmp_path, model, inputs, monkeypatch):
    source, out = inputs / "a.jsonl", tmp_path / "out"

    def full(self, path):
        raise OSError(28, "No space left on device", str(path))

    with monkeypatch.context() as patch:
        patch.setattr(shard_folder.Shard, "write", full)
        error = convert(model, out, source, "--shard-tokens", 3000, code=1)
    assert "No space left on device" in error and "the same command continues" in error
    said = convert(model, out, source, "--shard-tokens", 3000)
    assert len(documents(out)) == 300 and "300 documents" in said
    (inputs / "b.jsonl.gz").write_bytes((inputs / "b.jsonl.gz").read_bytes()[:-100])
    error = convert(model, tmp_path / "no", source, inputs / "b.jsonl.gz", code=1)
    assert "ends in the middle" in error and not (tmp_path / "no").exists()


def test_two_conversions_never_write_into_one_folder(tmp_path, model, inputs, monkeypatch):
    source, out = inputs / "a.jsonl", tmp_path / "out"
    interrupted(model, out, source, monkeypatch)
    folder = shard_folder.ShardFolder(out / "train", None, 1, True)
    error = convert(model, out / "train", source, "--shard-tokens", 3000, code=1)
    assert f"process {os.getpid()} is writing token shards here now" in error
    folder.close(keep=True)
    convert(model, out / "train", source, "--shard-tokens", 3000)
    assert len(documents(out / "train")) == 300


def test_standard_input_leaves_nothing_and_says_that_it_cannot_be_continued(tmp_path, model):
    command = [sys.executable, SCRIPT, "--tokenizer", model, "--output", tmp_path / "out", "--workers", "1", "-"]
    process = subprocess.Popen(
        list(map(str, command)), stdin=subprocess.PIPE, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL
    )
    line = json.dumps({"text": "the fox " * 100}).encode() + b"\n"
    process.stdin.write(line * 2000)
    process.stdin.flush()
    wait_until((tmp_path / "out" / ".tokenize" / "lock").exists)
    process.send_signal(signal.SIGINT)
    error = process.communicate(timeout=60)[1].decode()
    assert process.returncode == 130 and "interrupted (standard input cannot be continued)" in error
    assert not (tmp_path / "out").exists()
