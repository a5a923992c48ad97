"""scripts/token_shards/shard_file.py: the files that it writes, and the check of the teacher's texts."""

import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.append(str(Path(__file__).resolve().parents[2] / "scripts"))

from token_shards import shard_file
from token_shards.errors import BadDocument
from token_shards.shard_file import Shard, ShardSpec
from token_shards.shard_folder import ShardFolder

GOLDEN = Path(__file__).parent / "golden" / "teacher_stream" / "shard-00000.dtok"
SPEC = ShardSpec(vocab_size=100, tokenizer_hash=bytes(range(32)), bos_id=1, eos_id=2)


def ids(*values):
    return np.array(values, dtype=np.uint32)


def marks(text):
    return np.array([c == "x" for c in text])


# What tests/data/teacher_stream_test.cpp reads in GOLDEN: (tokens, in_loss, teacher).
DOCUMENTS = [
    (ids(1, 5, 6, 7, 2), marks("..xxx"), (ids(1, 50, 51, 52, 6, 7, 2), marks("....xxx"))),
    (ids(10, 11, 12), None, None),
    (ids(20, 21, 22, 23), marks("x..x"), (ids(60, 20, 61, 23, 62), marks(".x.x."))),
]


def write(path, documents):
    shard = Shard(SPEC)
    for document in documents:
        shard.add(*document)
    shard.write(path)
    return path


def test_the_golden_file_is_what_is_written_today(tmp_path):
    """data_test reads the same file in C++. To renew it: write(GOLDEN, DOCUMENTS)."""
    assert write(tmp_path / "a.dtok", DOCUMENTS).read_bytes() == GOLDEN.read_bytes()


def test_reading_gives_back_both_streams(tmp_path):
    path = write(tmp_path / "a.dtok", DOCUMENTS)
    header, documents, masks = shard_file.read(path)
    assert header["version"] == 2 and header["flags"] == 3 and header["teacher_token_count"] == 12
    teachers = shard_file.read_teacher(path)
    for (tokens, in_loss, teacher), read, mask, read_teacher in zip(DOCUMENTS, documents, masks, teachers):
        assert (tokens == read).all()
        assert (mask == (np.ones(len(tokens), bool) if in_loss is None else in_loss)).all()
        assert (teacher is None) == (read_teacher is None)
        for part, read_part in zip(teacher or (), read_teacher or ()):
            assert (part == read_part).all()


@pytest.mark.parametrize("masked", [False, True])
def test_files_without_a_teachers_text_keep_version_1_and_a_reserved_field_of_zeros(tmp_path, masked):
    path = write(tmp_path / "a.dtok", [(ids(1, 2, 3), marks(".xx") if masked else None), (ids(4, 5), None)])
    header, documents, masks = shard_file.read(path)
    assert header["version"] == 1 and header["flags"] == int(masked) and (masks is not None) == masked
    assert path.read_bytes()[136:224] == bytes(88)
    assert shard_file.read_teacher(path) == [None, None]


def test_an_empty_teachers_text_is_none(tmp_path):
    path = write(tmp_path / "a.dtok", [(ids(1, 2, 3), marks(".xx"), (ids(), marks("")))])
    assert shard_file.read(path)[0]["version"] == 1


@pytest.mark.parametrize(
    "teacher, message",
    [
        ((ids(9, 9, 6, 8, 2), marks("..xxx")), r"token 1 .* id 7 .*\(token 3\) and id 8 .*\(token 3\)"),
        ((ids(9, 6, 7), marks(".xx")), "3 tokens in the student's text and 2 in the teacher's"),
        ((ids(9, 6, 7, 2, 2), marks(".xxxx")), "3 tokens in the student's text and 4 in the teacher's"),
        ((ids(9, 6, 7, 2), marks("....")), "3 tokens in the student's text and 0 in the teacher's"),
    ],
)
def test_a_completion_that_differs_is_refused(tmp_path, teacher, message):
    folder = ShardFolder(tmp_path / "out", SPEC, 1000, overwrite=False)
    with pytest.raises(BadDocument, match=message):
        folder.add(ids(1, 5, 6, 7, 2), marks("..xxx"), teacher)
    assert folder.documents == folder.tokens == folder.teacher_tokens == 0


@pytest.mark.parametrize("in_loss, found", [(None, "none"), (marks(".x"), "2")])
def test_marks_of_another_length_are_refused(in_loss, found):
    with pytest.raises(ValueError, match=f"3 tokens: expected as many marks, found {found}"):
        Shard(SPEC).add(ids(1, 5), marks(".x"), (ids(1, 2, 5), in_loss))


def test_ids_of_the_teacher_must_be_in_the_vocabulary(tmp_path):
    with pytest.raises(ValueError, match="id 100 is not below the vocabulary's size 100"):
        write(tmp_path / "a.dtok", [(ids(1, 5), marks(".x"), (ids(100, 5), marks(".x")))])


def test_a_folder_counts_the_teachers_tokens_in_the_size_of_a_shard(tmp_path):
    folder = ShardFolder(tmp_path / "out", SPEC, 15, overwrite=False)
    for document in DOCUMENTS:  # 12, 3 and 9 tokens
        folder.add(*document)
    folder.flush()
    paths = folder.finish()
    assert [shard_file.read(path)[0]["document_count"] for path in paths] == [2, 1]
    assert (folder.tokens, folder.tokens_in_loss, folder.teacher_tokens) == (12, 8, 12)


def test_documents_name_their_teachers(tmp_path):
    """One byte for each document, after whatever else the file has."""
    for texts, flags in (
        ((None, None), 4),
        ((marks(".xx"), None), 5),
        ((marks(".xx"), (ids(9, 2, 3), marks(".xx"))), 7),
    ):
        documents = [(ids(1, 2, 3), *texts, "math"), (ids(4, 5), None, None, ""), (ids(6), None, None, "b.C-2")]
        path = write(tmp_path / "a.dtok", documents)
        header, tokens, _ = shard_file.read(path)
        assert (
            header["version"] == 3 and header["flags"] == flags and header["teacher_name_bytes"] == len("math\nb.C-2")
        )
        assert [list(one) for one in tokens] == [[1, 2, 3], [4, 5], [6]]
        assert shard_file.read_teacher_names(path) == ["math", "", "b.C-2"]
        assert (shard_file.read_teacher(path)[0] is not None) == (flags == 7)
    with pytest.raises(ValueError, match="names of teachers, of letters, digits and _.-, found 'a b'"):
        write(tmp_path / "b.dtok", [(ids(1), None, None, "a b")])
    assert shard_file.read_teacher_names(write(tmp_path / "c.dtok", [(ids(1), None)])) == [""]
