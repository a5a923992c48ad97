"""`distill inspect` shows documents as text, token by token the one that the tokenizers library decodes."""

import html.parser
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import tiny_job
import tokenizer_kinds
from program import distill_program
from token_shards.errors import InputError
from token_shards.shard_file import Shard, ShardSpec
from token_shards.tokenizer_files import TokenizerFiles, canonical_hash
from token_shards.transformers_tokenizer import takes_whole_file

sys.path.append(str(Path(__file__).resolve().parents[1] / "data"))
from random_tokenizers import Draw

MARKS = {"⇥": "\t", "␍": "\r"}


class Page(html.parser.HTMLParser):
    """The documents of a page: for each a list of (ids, classes, text) of its elements; refuses unbalanced elements."""

    def __init__(self, text):
        super().__init__()
        self.documents, self.open, self.current, self.mark = [], [], None, False
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag, attributes):
        if tag in ("meta", "br", "input"):
            return
        self.open.append(tag)
        if tag == "pre":
            self.documents.append([])
        elif tag == "i" and "pre" in self.open:
            attributes = dict(attributes)
            ids = [int(found) for found in re.findall(r"^token \d+: id (\d+)", attributes["title"], re.MULTILINE)]
            self.documents[-1].append([ids, (attributes.get("class") or "").split(), ""])

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if "pre" not in self.open or "i" not in self.open:
            return
        if self.open[-1] == "b":
            if data == "↵":
                data = ""  # the line end itself follows
            elif data.startswith("‹"):
                data = ""  # no such id
            else:
                data = MARKS.get(data) or chr(int(re.fullmatch(r"\\u\{([0-9a-f]+)\}", data)[1], 16))
        self.documents[-1][-1][2] += data


def write_data(folder, tokenizer, documents, vocab_size=None):
    """tokenizer.json and data.dtok of (ids, in_loss) in the folder."""
    folder.mkdir(exist_ok=True)
    (folder / "tokenizer.json").write_text(tokenizer if isinstance(tokenizer, str) else tokenizer.to_str())
    files = TokenizerFiles.load(folder)
    shard = Shard(ShardSpec(vocab_size=vocab_size or files.vocab_size, tokenizer_hash=files.hash))
    for ids, in_loss in documents:
        shard.add(np.asarray(ids, dtype=np.int64), None if in_loss is None else np.asarray(in_loss, dtype=bool))
    shard.write(folder / "data.dtok")


def page_of(distill, folder, *options):
    done = distill(folder, "inspect", "data.dtok", "--tokenizer", ".", "--html", "page.html", "--tokens", "0", *options)
    assert done.returncode == 0, done.stderr
    return Page((folder / "page.html").read_text())


def test_the_teachers_own_text_is_shown_after_the_students(distill, tmp_path):
    tokenizer = tokenizer_kinds.byte_level()

    def encode(text):
        return np.asarray(tokenizer.encode(text).ids, dtype=np.uint32)

    prompt, own, answer = encode("2+2?"), encode("2+2? It is 4."), encode(" Four")

    def mask(before):
        return np.asarray([False] * len(before) + [True] * len(answer))

    (tmp_path / "tokenizer.json").write_text(tokenizer.to_str())
    digest, vocab = canonical_hash(json.loads(tokenizer.to_str()))
    shard = Shard(ShardSpec(vocab_size=vocab, tokenizer_hash=digest))
    shard.add(np.concatenate([prompt, answer]), mask(prompt), (np.concatenate([own, answer]), mask(own)))
    shard.add(np.concatenate([prompt, answer]), mask(prompt))
    shard.write(tmp_path / "data.dtok")
    done = distill(tmp_path, "inspect", "data.dtok", "--tokenizer", ".", "--documents", "2")
    assert done.returncode == 0, done.stderr
    shown = done.stdout.split("\n\n", 1)[1]
    assert f"student: {len(prompt) + len(answer)} tokens, {len(answer)} in the loss; teacher: " in shown
    assert "-- student --\n2+2?[[ Four]]\n-- teacher --\n2+2? It is 4.[[ Four]]\n" in shown
    assert shown.count("-- teacher --") == 1  # the second document has no text of the teacher's own
    page = page_of(distill, tmp_path)
    texts = ["".join(element[2] for element in document) for document in page.documents]
    assert texts[:2] == ["2+2? Four", "2+2? It is 4. Four"]


@pytest.mark.parametrize("kind", tokenizer_kinds.KINDS)
def test_text_is_what_the_tokenizers_library_decodes(distill, tmp_path, kind):
    tokenizer = tokenizer_kinds.KINDS[kind]()
    encoded = [tokenizer.encode(text, add_special_tokens=False).ids for text in tokenizer_kinds.TEXTS]
    specials = [tokenizer.token_to_id(token) for token in tokenizer_kinds.SPECIAL]
    encoded.append([specials[1], *encoded[0], specials[4], *encoded[2], specials[2]])
    random = np.random.default_rng(1)
    size = tokenizer.get_vocab_size()
    drawn = [list(map(int, random.integers(0, size, random.integers(1, 40)))) for _ in range(200)]
    bytes_ = [tokenizer.token_to_id(f"<0x{byte:02X}>") for byte in range(256)]
    if bytes_[0] is not None:  # runs of byte tokens: whole characters, parts of them, anything
        for _ in range(100):
            parts = [list("é€😀a".encode()), list(random.integers(0, 256, 4)), [0xE2, 0x82], [0xF0, 0x9F, 0x98]]
            run = [part for index in random.integers(0, 4, 3) for part in parts[index]]
            drawn.append([bytes_[byte] for byte in run] + list(map(int, random.integers(0, size, 2))))
    encoded = [ids for ids in encoded if ids]
    write_data(tmp_path, tokenizer, [(ids, None) for ids in encoded + drawn])

    documents = page_of(distill, tmp_path, "--documents", f"0-{len(encoded + drawn) - 1}").documents
    assert len(documents) == len(encoded + drawn)
    for index, (ids, elements) in enumerate(zip(encoded + drawn, documents)):
        assert [number for part, _, _ in elements for number in part] == ids
        decoded = tokenizer.decode(ids, skip_special_tokens=False)
        assert "".join(text for _, _, text in elements) == decoded, ids
        # There, the last token is decoded differently; or a character that stands for no byte changes all of the text.
        depends_on_all = kind == "word_ends" or (
            kind == "fused_bytes" and any("日本" in text for _, _, text in elements)
        )
        if index < len(encoded) and not depends_on_all:
            shown, done = "", 0
            for part, _, text in elements:
                shown, done = shown + text, done + len(part)
                decoded = tokenizer.decode(ids[:done], skip_special_tokens=False)
                begun = len(decoded) == len(shown) + 1 and decoded[-1] == "�"  # the next character, by the last token
                assert shown == (decoded[:-1] if begun else decoded)
        for part, classes, _ in elements:
            assert ("s" in classes) == (part[-1] in specials)


@pytest.mark.parametrize("seed", range(12))
def test_random_tokenizers_are_read_and_decoded_as_the_library_does(distill, tmp_path, seed):
    """With the tokens of the folder's other files, and the hash that scripts/tokenize.py writes."""
    folder, draw = tmp_path / "tokenizer", Draw(f"inspect {seed}")
    while True:
        draw.folder(folder)
        try:
            files = TokenizerFiles.load(folder)
            tokenizer = files.tokenizer() if takes_whole_file(folder) else None
        except InputError:
            tokenizer = None
        if tokenizer is not None:
            break
        shutil.rmtree(folder)
    encoded = [tokenizer.encode(draw.text(), add_special_tokens=False).ids for _ in range(20)]
    encoded += [[draw.random.randrange(files.vocab_size) for _ in range(12)] for _ in range(20)]
    encoded = [ids for ids in encoded if ids]
    shard = Shard(ShardSpec(vocab_size=files.vocab_size, tokenizer_hash=files.hash))
    for ids in encoded:
        shard.add(np.asarray(ids, dtype=np.int64), None)
    shard.write(folder / "data.dtok")
    documents = page_of(distill, folder, "--documents", f"0-{len(encoded) - 1}").documents
    special = {index for index, token in tokenizer.get_added_tokens_decoder().items() if token.special}
    for ids, elements in zip(encoded, documents, strict=True):
        assert "".join(text for _, _, text in elements) == tokenizer.decode(ids, skip_special_tokens=False)
        for part, classes, _ in elements:
            assert ("s" in classes) == (part[-1] in special)


def test_golden_shard_is_shown(distill):
    """A shard and a tokenizer that scripts/tokenize.py and transformers wrote."""
    golden = tiny_job.ROOT / "tests/data/golden"
    done = distill(golden, "inspect", "shard-00000.dtok", "--tokenizer", ".")
    assert done.returncode == 0, done.stderr
    assert "[[" in done.stdout and "document 0 of shard-00000.dtok: " in done.stdout


@pytest.fixture(scope="module")
def chat(tmp_path_factory):
    """A folder with a byte-level tokenizer and three documents: a chat, a text of many scripts, markup."""
    folder = tmp_path_factory.mktemp("chat")
    tokenizer = tokenizer_kinds.byte_level()
    documents = []
    prompt = tokenizer.encode("<|im_start|>user\nTwo \n\tlines?<|im_end|>\n<|im_start|>assistant\n").ids
    answer = tokenizer.encode("No  \n<b>bold</b>\x1b[31m<|im_end|>").ids
    documents.append((prompt + answer, [False] * len(prompt) + [True] * len(answer)))
    documents += [(tokenizer.encode(tokenizer_kinds.TEXTS[index]).ids, None) for index in (3, 4)]
    write_data(folder, tokenizer, documents, vocab_size=tokenizer.get_vocab_size())
    return folder


def test_the_part_in_the_loss_is_marked(distill, chat):
    done = distill(chat, "inspect", "data.dtok", "--tokenizer", ".", "--document", "0")
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\n\n", 1)[1] == (
        f"document 0 of data.dtok: {len_of(chat)} tokens, {len_of(chat, loss=True)} in the loss\n"
        "«<|im_start|>»user↵\nTwo·↵\n⇥lines?«<|im_end|>»↵\n«<|im_start|>»assistant↵\n"
        "[[No··↵\n<b>bold</b>\\u{1b}[31m«<|im_end|>»]]\n"
    )


def len_of(folder, loss=False):
    from token_shards.shard_file import read

    _, documents, masks = read(folder / "data.dtok")
    return int(masks[0].sum()) if loss else len(documents[0])


@pytest.mark.parametrize(
    "variables, colour",
    [({"CLICOLOR_FORCE": "1"}, True), ({"CLICOLOR_FORCE": "1", "NO_COLOR": "1"}, False), ({}, False)],
)
def test_colours_follow_the_environment(chat, variables, colour):
    environment = {k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "CLICOLOR_FORCE")} | variables
    command = [distill_program(), "inspect", "data.dtok", "--tokenizer", ".", "--document", "0"]
    shown = subprocess.run(command, cwd=chat, env=environment, capture_output=True, text=True, check=True).stdout
    assert ("\x1b[32;4mNo··↵\x1b[0m\n\x1b[32;4m<b>bold" in shown) == colour
    assert ("\x1b[7m<|im_start|>\x1b[0muser" in shown) == colour
    assert ("[[No" in shown) == (not colour)
    assert "\x1b[31m" not in shown, "a sequence of the data must not reach the terminal"


def test_the_page_holds_no_markup_of_the_data(distill, chat):
    page = page_of(distill, chat, "--documents", "3")
    text = (chat / "page.html").read_text()
    assert "<script" not in text and "<b>bold" not in text and not re.search(r"https?://", text)
    first = page.documents[0]
    in_loss = "".join(part for _, classes, part in first if "l" in classes)
    assert in_loss == "No  \n<b>bold</b>\x1b[31m<|im_end|>"
    assert [part for _, classes, part in first if "s" in classes] == [
        "<|im_start|>", "<|im_end|>", "<|im_start|>", "<|im_end|>",
    ]  # fmt: skip
    assert "".join(part for _, _, part in page.documents[2]) == tokenizer_kinds.TEXTS[4]


def test_documents_are_chosen_and_cut(distill, chat, tmp_path):
    def shown(*options):
        done = distill(chat, "inspect", "data.dtok", "--tokenizer", ".", *options)
        assert done.returncode == 0, done.stderr
        return re.findall(r"^document (\d+) of", done.stdout, re.MULTILINE), done.stdout

    assert shown()[0] == ["0", "1", "2"] and "intact" in shown()[1]
    assert shown("--documents", "2")[0] == ["0", "1"]
    assert shown("--documents", "1-2")[0] == ["1", "2"]
    assert shown("--document", "2")[0] == ["2"]
    assert f"... {len_of(chat) - 4} more tokens" in shown("--document", "0", "--tokens", "4")[1]
    # The documents of a folder are numbered over all of its files.
    (tmp_path / "data").mkdir()
    for name in ("a.dtok", "b.dtok"):
        (tmp_path / "data" / name).write_bytes((chat / "data.dtok").read_bytes())
    done = distill(tmp_path, "inspect", "data", "--tokenizer", str(chat), "--documents", "2-3")
    assert re.findall(r"^document (.*):", done.stdout, re.MULTILINE) == ["2 of a.dtok", "3 of b.dtok"]


def test_without_a_tokenizer_ids_and_a_hint_are_shown(distill, chat):
    from token_shards.shard_file import read

    done = distill(chat, "inspect", "data.dtok", "--document", "0", "--tokens", "0")
    _, documents, masks = read(chat / "data.dtok")
    ids = " ".join(str(i) if kept else f"[{i}]" for i, kept in zip(documents[0], masks[0]))
    assert f"\n{ids}\nhint: --tokenizer" in done.stdout
    assert "hint: --tokenizer" in distill(chat, "inspect", "data.dtok").stdout


def test_ids_that_the_tokenizer_lacks_are_shown_as_ids(distill, tmp_path):
    tokenizer = tokenizer_kinds.byte_level()
    state = json.loads(tokenizer.to_str())
    gone = "x"
    hole = state["model"]["vocab"].pop(gone)
    state["model"]["merges"] = [pair for pair in state["model"]["merges"] if gone not in "".join(pair)]
    write_data(tmp_path, json.dumps(state), [([hole, *tokenizer.encode("ok").ids], None)])
    assert f"[[‹{hole}›ok]]" in distill(tmp_path, "inspect", "data.dtok", "--tokenizer", ".").stdout
    assert f"<b>‹{hole}›</b>" in (page_of(distill, tmp_path), (tmp_path / "page.html").read_text())[1]


@pytest.mark.parametrize(
    "options, says",
    [
        (["--document", "3"], ["data.dtok: --document", "0 to 2", "found 3"]),
        (["--documents", "1-3"], ["--documents", "0 to 2", "found 1-3"]),
        (["--documents", "0"], ["--documents", "at least 1", "found 0"]),
        (["--documents", "x"], ["--documents", "found x"]),
        (["--tokenizer", "gone"], ["--tokenizer", "gone", "No such file"]),
        (["--tokenizer", "empty"], ["empty/tokenizer.json", "no such file"]),
        (["--tokenizer", "foreign.json"], ["hash", "data.dtok", "foreign.json"]),
        (["--tokenizer", "odd.json"], ["odd.json", "`decoder.decoders[1]`", "WordPiece"]),
        (["--html", "page.html"], ["--html", "--tokenizer"]),
        (
            ["--tokenizer", "tokenizer.json", "--html", "gone/page.html"],
            ["--html", "gone/page.html", "there is no folder"],
        ),
        (["--tokenizer", "tokenizer.json", "--html", "empty"], ["--html", "found empty: it is a folder"]),
        (["--tokenizer", "tokenizer.json", "--html", "link"], ["--html", "found link: it is a link or a device"]),
    ],
)
def test_bad_options_are_refused(distill, chat, tmp_path, options, says):
    for name in ("data.dtok", "tokenizer.json"):
        (tmp_path / name).write_bytes((chat / name).read_bytes())
    (tmp_path / "empty").mkdir()
    (tmp_path / "link").symlink_to("tokenizer.json")
    (tmp_path / "foreign.json").write_text(json.dumps(tiny_job.tokenizer()))
    state = json.loads((chat / "tokenizer.json").read_text())
    state["decoder"] = {"type": "Sequence", "decoders": [{"type": "Fuse"}, {"type": "WordPiece", "prefix": "##"}]}
    (tmp_path / "odd.json").write_text(json.dumps(state))
    done = distill(tmp_path, "inspect", "data.dtok", *options)
    assert done.returncode == 2, done.stdout
    for text in says:
        assert text in done.stderr
    if "foreign.json" in options:
        hashes = [
            canonical_hash(json.loads((tmp_path / name).read_text()))[0].hex()
            for name in ("tokenizer.json", "foreign.json")
        ]
        assert all(text in done.stderr for text in hashes)
    assert (tmp_path / "link").is_symlink() and not list(tmp_path.glob("*.partial"))


def test_options_for_documents_need_token_shards(distill, job):
    done = distill(job, "inspect", "student", "--tokenizer", "student")
    assert done.returncode == 2
    assert "--tokenizer: expected a token shard" in done.stderr
