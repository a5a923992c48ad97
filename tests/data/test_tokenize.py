"""scripts/tokenize.py from the outside, with a small byte-level BPE tokenizer trained here."""

import gzip
import json
import os
import subprocess
import sys
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest
import tokenizers
from tokenize_runs import (
    CHAT,
    CHATML,
    MARKED,
    REWRITES,
    ROOT,
    SCRIPT,
    contents,
    corpus,
    documents,
    make_tokenizer,
    masks,
    tokenise,
    write_jsonl,
)

from token_shards import shard_file
from token_shards.tokenizer_files import canonical_hash

GOLDEN = Path(__file__).parent / "golden"


@pytest.fixture
def model(tmp_path):
    make_tokenizer(tmp_path / "model")
    return tmp_path / "model"


@pytest.fixture
def tokenizer(model):
    return tokenizers.Tokenizer.from_file(str(model / "tokenizer.json"))


def test_text_files_become_documents_that_end_with_eos(tmp_path, model, tokenizer):
    texts = {"b.txt": "the fox\n\nsays", "a.txt": "hello é 🙂\n", "sub/c.md": "\ufeffother", "empty.txt": " \n"}
    for name, text in texts.items():
        (tmp_path / "in" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "in" / name).write_text(text)
    (tmp_path / "in" / "ignored.bin").write_bytes(b"\xff\xfe")
    said = tokenise(model, tmp_path / "out", tmp_path / "in")
    eos = tokenizer.token_to_id("<|im_end|>")
    assert documents(tmp_path / "out") == [
        tokenizer.encode(text).ids + [eos] for text in (texts["a.txt"], texts["b.txt"], "other")
    ]
    header, _, mask = shard_file.read(tmp_path / "out" / "shard-00000.dtok")
    assert mask is None and header["eos_id"] == eos and header["token_bytes"] == 2
    assert header["vocab_size"] == tokenizer.get_vocab_size()
    assert "3 documents" in said and "left out: 1 empty" in said


@pytest.mark.parametrize("workers", [1, 2])
def test_records_name_their_teachers(tmp_path, model, workers):
    """Of every format; with or without a text of the teacher's own."""
    chat = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "the fox"}]
    records = [
        {"text": "the fox", "teacher": "math"},
        {"teacher": "code", "messages": chat},
        {"prompt": "hello ", "completion": "other", "teacher_prompt": "says ", "teacher": "math"},
        {"text": "says hello"},
        {"text": "other", "teacher": None},
        {"input_ids": [3, 4, 5], "teacher": "math"},
    ]
    said = tokenise(model, tmp_path / "out", write_jsonl(tmp_path / "a.jsonl", records), workers=workers)
    shard = tmp_path / "out" / "shard-00000.dtok"
    assert shard_file.read_teacher_names(shard) == ["math", "code", "math", "", "", "math"]
    assert "teacher" not in said.replace("the teacher reads", "")
    (tmp_path / "a.csv").write_text("text,teacher\nhello,code\nthe fox,\n")
    tokenise(model, tmp_path / "csv", tmp_path / "a.csv", workers=workers)
    assert shard_file.read_teacher_names(tmp_path / "csv" / "shard-00000.dtok") == ["code", ""]
    bad = write_jsonl(tmp_path / "b.jsonl", [{"text": "hello", "teacher": "Qwen/Qwen3-8B"}])
    error = tokenise(model, tmp_path / "bad", bad, code=1)
    assert 'teacher: expected a name of 1 to 64 letters, digits or _.-, found "Qwen/Qwen3-8B"' in error
    assert "--ignore-key teacher" in error
    tokenise(model, tmp_path / "ignored", "--ignore-key", "teacher", bad)
    assert shard_file.read_teacher_names(tmp_path / "ignored" / "shard-00000.dtok") == [""]


def test_blank_lines_split_a_text_and_options_choose_the_special_tokens(tmp_path, model, tokenizer):
    (tmp_path / "a.txt").write_text("the\nfox\n\n \n\nsays\r\n\r\nhello\n")
    tokenise(model, tmp_path / "out", "--split-blank-lines", "--no-eos", "--bos", "always", tmp_path / "a.txt")
    bos = tokenizer.token_to_id("<|bos|>")
    expected = [[bos] + tokenizer.encode(text).ids for text in ("the\nfox", "says", "hello")]
    assert documents(tmp_path / "out") == expected
    tokenise(model, tmp_path / "out2", "--eos-token", "<|end|>", tmp_path / "a.txt")
    assert documents(tmp_path / "out2")[0][-1] == tokenizer.token_to_id("<|end|>")


def test_bos_is_added_where_the_tokenizer_adds_it(tmp_path):
    tokenizer = make_tokenizer(tmp_path / "model", bos=True)
    (tmp_path / "a.txt").write_text("hello")
    tokenise(tmp_path / "model", tmp_path / "out", tmp_path / "a.txt")
    plain = tokenizer.encode("hello", add_special_tokens=False).ids
    assert documents(tmp_path / "out") == [
        [tokenizer.token_to_id("<|bos|>")] + plain + [tokenizer.token_to_id("<|im_end|>")]
    ]


def assistant_text(tokenizer, tokens, mask):
    return tokenizer.decode([t for t, m in zip(tokens, mask) if m], skip_special_tokens=False)


@pytest.mark.parametrize("template", [CHATML, MARKED], ids=["prefixes", "marked"])
def test_conversations_take_the_loss_on_the_assistants_tokens(tmp_path, template):
    tokenizer = make_tokenizer(tmp_path / "model", template=template)
    records = [{"messages": CHAT}, {"messages": CHAT[:1]}, {"text": "the fox"}]
    source = write_jsonl(tmp_path / "chat.jsonl", records)
    said = tokenise(tmp_path / "model", tmp_path / "out", source)
    chat, text = documents(tmp_path / "out")
    in_chat, in_text = masks(tmp_path / "out")
    assert assistant_text(tokenizer, chat, in_chat) == "hello 🙂 you<|im_end|>no<|im_end|>"
    whole = "".join(f"<|im_start|>{m['role']}\n{m['content']}<|im_end|>\n" for m in CHAT)
    assert chat == tokenizer.encode(whole).ids
    assert all(in_text) and len(in_text) == len(text)
    assert "1 conversations without an assistant's token" in said
    tokenise(tmp_path / "model", tmp_path / "all", source, "--loss-on", "all")
    assert len(documents(tmp_path / "all")) == 3


def test_a_template_that_rewrites_history_and_one_that_changes_the_texts(tmp_path):
    tokenizer = make_tokenizer(tmp_path / "model", template=REWRITES)
    source = write_jsonl(tmp_path / "chat.jsonl", [{"messages": CHAT[:2]}, {"messages": CHAT}])
    tokenise(tmp_path / "model", tmp_path / "out", source)
    texts = [assistant_text(tokenizer, *sample) for sample in zip(documents(tmp_path / "out"), masks(tmp_path / "out"))]
    assert texts == ["hello 🙂 you<|im_end|>", "hello 🙂 you<|im_end|>no<|im_end|>"]
    make_tokenizer(tmp_path / "model", template=CHATML.replace("m.content", "m.content | upper"))
    tokenise(tmp_path / "model", tmp_path / "out2", source)
    assert "HELLO 🙂 YOU<|im_end|>" in assistant_text(
        tokenizer, documents(tmp_path / "out2")[0], masks(tmp_path / "out2")[0]
    )
    make_tokenizer(tmp_path / "model", template=CHATML.replace("m.content", "m.content | length"))
    error = tokenise(tmp_path / "model", tmp_path / "out3", source, code=1)
    assert "chat.jsonl:1: the chat template does more with the texts" in error and "{% generation %}" in error
    assert not (tmp_path / "out3").exists()
    (tmp_path / "marked.jinja").write_text(MARKED)
    tokenise(tmp_path / "model", tmp_path / "out3", source, "--chat-template", tmp_path / "marked.jinja")
    assert len(documents(tmp_path / "out3")) == 2


def test_parquet_has_texts_or_messages(tmp_path, model, tokenizer):
    texts = pyarrow.table({"id": [1, 2], "text": ["the fox", "hello"]})
    pyarrow.parquet.write_table(texts, tmp_path / "a.parquet")
    pyarrow.parquet.write_table(pyarrow.table({"messages": [CHAT, CHAT[:2]]}), tmp_path / "b.parquet")
    tokenise(model, tmp_path / "out", tmp_path / "a.parquet", tmp_path / "b.parquet")
    out, in_loss = documents(tmp_path / "out"), masks(tmp_path / "out")
    assert out[0] == tokenizer.encode("the fox").ids + [tokenizer.token_to_id("<|im_end|>")]
    assert assistant_text(tokenizer, out[3], in_loss[3]) == "hello 🙂 you<|im_end|>"
    assert len(out) == 4
    error = tokenise(model, tmp_path / "no", tmp_path / "a.parquet", "--text-key", "body", code=1)
    assert "a.parquet: expected a column body or messages, found id, text" in error
    (tmp_path / "bad.parquet").write_bytes(b"PAR1nonsense")
    assert "bad.parquet: not a readable parquet file" in tokenise(
        model, tmp_path / "no", tmp_path / "bad.parquet", code=1
    )


@pytest.mark.parametrize("split", [("--eval-fraction", "0.1"), ("--eval-tokens", "900")])
def test_the_output_does_not_depend_on_the_number_of_workers(tmp_path, model, split):
    source = corpus(tmp_path / "a.jsonl")
    for workers in (1, 3):
        out = tmp_path / str(workers)
        tokenise(
            model,
            out / "train",
            source,
            "--eval-output",
            out / "eval",
            "--shard-tokens",
            20000,
            *split,
            workers=workers,
        )
    assert contents(tmp_path / "1" / "train") == contents(tmp_path / "3" / "train")
    assert contents(tmp_path / "1" / "eval") == contents(tmp_path / "3" / "eval")
    train, held_out = documents(tmp_path / "1" / "train"), documents(tmp_path / "1" / "eval")
    tokenise(model, tmp_path / "whole", source)
    whole = documents(tmp_path / "whole")
    assert sorted(train + held_out) == sorted(whole)
    where = [whole.index(document) for document in held_out]
    assert where == sorted(where) and where[0] < 500 and where[-1] > 1500  # from everywhere
    tokens = sum(map(len, held_out))
    if split[0] == "--eval-tokens":
        assert 900 <= tokens < 900 + max(map(len, whole))
    else:
        assert 150 <= len(held_out) <= 250
    tokenise(model, tmp_path / "s" / "train", source, "--eval-output", tmp_path / "s" / "eval", "--seed", 1, *split)
    assert documents(tmp_path / "s" / "eval") != held_out


def test_shards_are_limited_and_a_long_document_has_its_own(tmp_path, model, tokenizer):
    source = write_jsonl(tmp_path / "a.jsonl", [{"text": "fox " * n} for n in (3, 3, 100, 3, 3, 3)])
    tokenise(model, tmp_path / "out", source, "--shard-tokens", 30)
    lengths = [
        [len(tokens) for tokens in shard_file.read(path)[1]] for path in sorted((tmp_path / "out").glob("*.dtok"))
    ]
    assert len(lengths) >= 3 and [len(shard) for shard in lengths if max(shard) > 30] == [1]
    assert all(sum(shard) <= 30 for shard in lengths if len(shard) > 1)
    assert sum(map(len, lengths)) == 6


def test_globs_gzip_and_sources(tmp_path, model):
    for name in ("src/a.py", "src/deep/b.py", "src/deep/c.js", "src/.hidden/d.py", "src/__pycache__/e.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(f"print('{name}')")
    with gzip.open(tmp_path / "z.jsonl.gz", "wt") as file:
        file.write('{"text": "hello"}\n')
    tokenise(model, tmp_path / "o1", "--include", "*.py", tmp_path / "src")
    assert len(documents(tmp_path / "o1")) == 2
    tokenise(
        model,
        tmp_path / "o2",
        tmp_path / "src" / "**" / "*.js",
        tmp_path / "z.jsonl.gz",
        tmp_path / "src/a.py",
        tmp_path / "src/a.py",
        "--exclude",
        "*/a.py",
    )
    assert len(documents(tmp_path / "o2")) == 2


BAD_LINES = [
    ('{"text": "a"', "in.jsonl:2: not valid JSON"),
    ('["a"]', "in.jsonl:2: expected an object with text or messages, found a list"),
    ("[" * 100_000 + "]" * 100_000, "in.jsonl:2: JSON that is nested too deeply"),
    ('{"text": ' + "[" * 100_000 + "]" * 100_000 + "}", "in.jsonl:2: JSON that is nested too deeply"),
    ('{"text": {"body": "a"}}', "in.jsonl:2: text: expected text, found an object"),
    ('{"text": null}', "in.jsonl:2: text: expected text, found null"),
    ('{"body": "a", "id": 1}', "in.jsonl:2: expected an object with text or messages, found the keys body, id"),
    ('{"text": 3}', "in.jsonl:2: text: expected text, found a number"),
    ('{"text": "\\ud800"}', "in.jsonl:2: not Unicode text: a lone surrogate at character 0"),
    ('{"messages": []}', "in.jsonl:2: messages: expected a list of messages, found []"),
    ('{"messages": [{"content": "a"}]}', "in.jsonl:2: messages[0]: expected an object with a role"),
    (
        '{"messages": [{"content": "a", "from": "human"}]}',
        "in.jsonl:2: messages[0]: expected an object with a role, found the keys content, from",
    ),
    (
        '{"messages": [{"role": "user"}]}',
        "in.jsonl:2: messages[0] (user): content: expected text, found no such key (the keys role)",
    ),
    (
        '{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": null}]}',
        "in.jsonl:2: messages[1] (assistant): content: expected text, found null",
    ),
    (
        '{"messages": [{"role": "user", "content": {"a": 1}}]}',
        "expected text, or a list of parts of type text, found an",
    ),
    (
        '{"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}, '
        '{"type": "image_url", "image_url": {"url": "x"}}]}]}',
        'in.jsonl:2: messages[0] (user): content[1]: expected a part of type text, found type "image_url"',
    ),
    ('{"messages": [{"role": "user", "content": [{"type": "text"}]}]}', "content[0]: expected a part with a text"),
    ('{"messages": null}', "in.jsonl:2: messages: expected a list of messages, found null"),
]


def test_content_in_parts_is_the_text_of_the_parts(tmp_path, model):
    parts = [{"type": "text", "text": "hel"}, {"type": "text", "text": "lo"}]
    for name, content in (("parts", parts), ("whole", "hello")):
        messages = [{"role": "user", "content": content}, {"role": "assistant", "content": content}]
        source = write_jsonl(tmp_path / f"{name}.jsonl", [{"messages": messages}])
        tokenise(model, tmp_path / name, source)
    assert documents(tmp_path / "parts") == documents(tmp_path / "whole")
    assert masks(tmp_path / "parts") == masks(tmp_path / "whole")


@pytest.mark.parametrize("line, message", BAD_LINES, ids=[message[:60] for _, message in BAD_LINES])
def test_bad_lines_are_named_and_leave_nothing_behind(tmp_path, model, line, message):
    source = tmp_path / "in.jsonl"
    source.write_text('{"text": "fine"}\n' + line + "\n")
    error = tokenise(model, tmp_path / "out", source, "--max-bad", 0, code=1)
    assert message in error, error
    assert not (tmp_path / "out").exists()
    said = tokenise(model, tmp_path / "out", source, "--max-bad", 1)
    assert "left out: 1 bad documents" in said and message in said
    assert len(documents(tmp_path / "out")) == 1


def test_a_failure_in_a_worker_keeps_old_shards_and_removes_new_ones(tmp_path, model):
    source = corpus(tmp_path / "a.jsonl", 1000)
    tokenise(model, tmp_path / "out", source, "--shard-tokens", 2000)
    before = contents(tmp_path / "out")
    assert "holds token shards already; --overwrite" in tokenise(model, tmp_path / "out", source, code=1)
    with source.open("a") as file:
        file.write("{\n")
    error = tokenise(
        model, tmp_path / "out", source, "--shard-tokens", 2000, "--overwrite", "--max-bad", 0, workers=2, code=1
    )
    assert "a.jsonl:1001: not valid JSON" in error
    assert contents(tmp_path / "out") == before
    corpus(source, 10)
    tokenise(model, tmp_path / "out", source, "--overwrite")
    assert list(contents(tmp_path / "out")) == ["shard-00000.dtok"]


def test_bad_arguments_and_folders_are_errors(tmp_path, model):
    (tmp_path / "a.txt").write_bytes(b"ok \xff")
    (tmp_path / "b.txt").write_text("b")
    out = tmp_path / "out"
    assert "a.txt: not UTF-8: byte 3 is 0xff" in tokenise(model, out, tmp_path / "a.txt", code=1)
    assert "missing: no such file" in tokenise(model, out, tmp_path / "missing", code=1)
    write_jsonl(tmp_path / "c.json", [{"text": "c"}])
    assert "c.json: .json may be one document or" in tokenise(model, out, tmp_path / "c.json", code=1)
    (tmp_path / "none").mkdir()
    assert "expected files named *.txt" in tokenise(model, out, tmp_path / "none", code=1)
    assert "tokenizer.json: no such file" in tokenise(tmp_path / "none", out, tmp_path / "b.txt", code=1)
    assert "error: " + str(tmp_path / "b.txt: expected a folder, found a file") in tokenise(
        model, tmp_path / "b.txt", tmp_path / "b.txt", code=1
    )
    assert "no such token: <x>" in tokenise(model, out, tmp_path / "b.txt", "--eos-token", "<x>", code=1)
    assert "goes with" in tokenise(model, out, tmp_path / "b.txt", "--eval-output", out, code=2)
    assert "between 0 and 1" in tokenise(
        model, out, tmp_path / "b.txt", "--eval-output", "e", "--eval-fraction", "1", code=2
    )
    error = tokenise(model, out, tmp_path / "b.txt", "--eval-output", tmp_path / "e", "--eval-tokens", "9", code=1)
    assert "no document came to this output" in error and "--eval-tokens 9 holds out 1 of them" in error
    (tmp_path / "link").symlink_to("nowhere")
    assert "a link to nowhere, which is not there" in tokenise(model, tmp_path / "link", tmp_path / "b.txt", code=1)
    for damage in ("{", "[]", '{"model": {"vocab": {"a": "x"}}}'):
        (tmp_path / "none" / "tokenizer.json").write_text(damage)
        assert "none/tokenizer.json: " in tokenise(tmp_path / "none", out, tmp_path / "b.txt", code=1)
    (model / "tokenizer_config.json").write_text("{}")
    assert "no end-of-text token" in tokenise(model, out, tmp_path / "b.txt", code=1)
    source = write_jsonl(tmp_path / "chat.jsonl", [{"messages": CHAT}])
    assert "need a chat template" in tokenise(model, out, "--no-eos", source, code=1)
    assert not out.exists() and not (tmp_path / "e").exists()


# The name of the script is that of a module of the standard library, which argparse's neighbours import.
def test_the_script_does_not_stand_in_for_the_standard_librarys_tokenize(tmp_path, model):
    (tmp_path / "a.txt").write_text("hello")
    check = (
        "import runpy, sys; sys.argv = ['x', '--help']\ntry: runpy.run_path('tokenize.py', run_name='__main__')\n"
        "except SystemExit: pass\nimport tokenize; print(tokenize.__file__, tokenize.open)"
    )
    for cwd, command in (
        (ROOT / "scripts", ("tokenize.py",)),
        (ROOT, ("scripts/tokenize.py",)),
        (ROOT, ("-m", "scripts.tokenize")),
    ):
        out = tmp_path / f"{len(command)}{cwd.name}"
        tokenise(model, out, tmp_path / "a.txt", workers=2, cwd=cwd, command=command)
        assert len(documents(out)) == 1
    env = {**os.environ, "PYTHONSAFEPATH": "1"}
    said = subprocess.run([sys.executable, "-c", check], cwd=ROOT / "scripts", env=env, capture_output=True, text=True)
    assert str(ROOT) not in said.stdout.splitlines()[-1], said.stdout + said.stderr


def test_the_hash_is_the_one_that_the_c_plus_plus_test_expects():
    bpe = {
        "added_tokens": [{"id": 5, "content": "<|end|>"}],
        "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "c": 2, "ab": 3, "abc": 4}, "merges": ["a b", ["ab", "c"]]},
    }
    unigram = {
        "added_tokens": [{"id": 3, "content": "é\0"}],
        "model": {"type": "Unigram", "vocab": [["<unk>", 0], ["▁a", -1.25], ["b", -0.1]]},
    }
    expected = (ROOT / "tests" / "data" / "tokenizer_test.cpp").read_text()
    for tokenizer, size in ((bpe, 6), (unigram, 4)):
        digest, vocab_size = canonical_hash(tokenizer)
        assert digest.hex() in expected and vocab_size == size


def test_the_golden_shard_is_what_the_script_writes_today(tmp_path):
    """data_test reads the same file in C++. To renew it: scripts/tokenize.py --tokenizer tests/data/golden
    --output tests/data/golden --overwrite tests/data/golden/input.jsonl"""
    tokenise(GOLDEN, tmp_path / "out", GOLDEN / "input.jsonl")
    assert contents(tmp_path / "out") == {"shard-00000.dtok": (GOLDEN / "shard-00000.dtok").read_bytes()}


@pytest.mark.parametrize("columns", [40, 80])
def test_progress_on_a_terminal_fits_and_has_an_eta(tmp_path, columns):
    model = tmp_path / "model"
    make_tokenizer(model)
    text = tmp_path / "text.jsonl"
    text.write_text("".join(json.dumps({"text": "the quick brown fox " * 20}) + "\n" for _ in range(20000)))
    primary, secondary = os.openpty()
    process = subprocess.Popen(
        [sys.executable, SCRIPT, "--tokenizer", model, "--output", tmp_path / "out", "--workers", "1", text],
        stderr=secondary,
        stdout=subprocess.DEVNULL,
        env=os.environ | {"TERM": "xterm", "COLUMNS": str(columns)},
    )
    os.close(secondary)
    shown = b""
    try:
        while data := os.read(primary, 4096):
            shown += data
    except OSError:  # the terminal's other side has gone
        pass
    os.close(primary)
    assert process.wait() == 0, shown
    lines = shown.decode().replace("\r\n", "\r").split("\r")
    lines = [line.replace("\033[K", "").rstrip("\n") for line in lines]
    progress = [line for line in lines if "tokens/s" in line]
    assert progress and all(len(line) < columns for line in progress), lines
    assert any("eta " in line for line in progress), progress
    assert progress[-1].startswith("100.0 %")
