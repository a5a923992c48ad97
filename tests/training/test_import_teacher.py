"""scripts/import_teacher.py: hidden states that transformers computed, in the form of vLLM's dumps, as a teacher."""

import contextlib
import io
import json
import shutil
import sys

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import save_file

import tiny
from token_shard import read_shard, write_shard

sys.path.append(str(tiny.REPOSITORY / "scripts"))

import import_teacher as script
from token_shards.tokenizer_files import canonical_hash

SEQ_LEN = 128  # longer than any document


@pytest.fixture(scope="module")
def shard(tmp_path_factory):
    documents = tiny.random_documents(5, [5, 61, 17, 128, 2, 33, 90, 47])
    return tiny.make_shard(tmp_path_factory.mktemp("data") / "import.dtok", documents)


@torch.no_grad()
def make_dumps(folder, teacher, shard, after_norm, edit=lambda tokens, states: (tokens, states)):
    """A file for each document with all layers' states, as [T, layers, H]; the last one before or after the norm."""
    folder.mkdir()
    model = transformers.AutoModelForCausalLM.from_pretrained(teacher, dtype=torch.float32).eval()
    before = []
    model.model.norm.register_forward_pre_hook(lambda module, inputs: before.append(inputs[0]))
    for index, document in enumerate(read_shard(shard)):
        tokens = torch.from_numpy(document.tokens.copy())
        out = model(tokens[None], output_hidden_states=True)
        last = out.hidden_states[-1][0] if after_norm else before[-1][0]
        states = torch.stack([out.hidden_states[1][0], last], 1)
        tokens, states = edit(tokens, states)
        save_file({"token_ids": tokens, "hidden_states": states.contiguous()}, folder / f"request-{index}.safetensors")
    return folder


def import_teacher(teacher, shard, dumps, output, *arguments, code=0, errors=False):
    """The script's standard error, if it fails or `errors` asks for that, or else its standard output. It runs within
    this process, which has loaded torch already."""
    command = ["import_teacher.py", "--teacher", teacher, "--data", shard, "--dumps", dumps, "--output", output]
    output, problems, found = io.StringIO(), io.StringIO(), 0
    redirected = contextlib.redirect_stdout(output), contextlib.redirect_stderr(problems)
    with pytest.MonkeyPatch.context() as patch, redirected[0], redirected[1]:
        patch.setattr(sys, "argv", [*map(str, command), *map(str, arguments)])
        try:
            script.main()
        except SystemExit as end:
            found = end.code if isinstance(end.code, int) else 1
            problems.write("" if isinstance(end.code, int) else f"{end.code}\n")
    assert found == code, output.getvalue() + problems.getvalue()
    return (problems if code or errors else output).getvalue()


def config_of(folder, pair, shard, **teacher):
    data = {"packing": "pack", "shuffle": True, "seq_len": SEQ_LEN}
    train = {"steps": 4, "micro_batch_size": 1, "global_batch_size": 2}
    config = tiny.base_config(folder, *pair, shard, data=data, train=train, scheduler={"warmup_steps": 1})
    config["teacher"] = teacher or config["teacher"]
    return config


@pytest.mark.parametrize("after_norm", [False, True])
@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_an_imported_teacher_is_the_one_that_runs(tmp_path, models, shard, family, after_norm):
    pair = models[family]
    dumps = make_dumps(tmp_path / "dumps", pair[1], shard, after_norm)
    said = import_teacher(pair[1], shard, dumps, tmp_path / "cache")
    assert f"the hidden states are {'after' if after_norm else 'before'} the final norm" in said
    assert "8 of 8 documents" in said
    tiny.distill("verify", tmp_path / "cache")
    online = tiny.train(tmp_path, config_of(tmp_path / "online", pair, shard))
    source = {"source": "cache", "cache": str(tmp_path / "cache"), "path": pair[1]}  # its hash is compared, too
    cached = tiny.train(tmp_path, config_of(tmp_path / "cached", pair, shard, **source))
    (steps, _), (expected, _) = tiny.read_metrics(cached), tiny.read_metrics(online)
    for found, wanted in zip(steps, expected, strict=True):
        assert found["valid_tokens"] == wanted["valid_tokens"]
        assert found["teacher_ce"] == pytest.approx(wanted["teacher_ce"], rel=1e-5)
        assert found["loss"] == pytest.approx(wanted["loss"], rel=1e-4)


@pytest.mark.parametrize(
    "edit, arguments, message",
    [
        (lambda t, s: (t, s[1:]), [], "prefix caching"),
        (lambda t, s: (t, s[..., :32]), [], "hidden_states: expected [tokens, layers, 64]"),
        (lambda t, s: ((t + 1) % tiny.VOCAB, s), [], "no dump has the tokens of a document"),
        (lambda t, s: (t, s), ["--layer", "5"], "--layer: expected one of 2 layers, found 5"),
        (lambda t, s: (t, s if len(t) < 128 else s[:, :1]), [], "3.safetensors: hidden_states: expected 2 layers, as"),
        (lambda t, s: (t + 0.7, s), [], "0.safetensors: token_ids: expected one of I8, I16, I32, I64"),
        (lambda t, s: (t, s.int()), [], "0.safetensors: hidden_states: expected one of BF16, F16, F32, F64, found I32"),
        (
            lambda t, s: (t + (t == t[1]) * 300, s),
            [],
            "0.safetensors: token_ids: token 1: expected one of the vocabulary",
        ),
        (
            lambda t, s: (t, s.index_fill(0, torch.tensor(len(t) - 2), torch.nan)),
            [],
            "expected finite numbers, found nan",
        ),
    ],
)
def test_bad_dumps_are_refused(tmp_path, models, shard, edit, arguments, message):
    teacher = models["llama"][1]
    dumps = make_dumps(tmp_path / "dumps", teacher, shard, True, edit)
    assert message in import_teacher(teacher, shard, dumps, tmp_path / "cache", *arguments, code=1)
    assert not (tmp_path / "cache").exists()


def test_files_that_were_cut_or_are_of_something_else_are_named(tmp_path, models, shard):
    teacher = tmp_path / "teacher"
    shutil.copytree(models["llama"][1], teacher)
    dumps = make_dumps(tmp_path / "dumps", teacher, shard, True)

    def refused(path, content, message):
        kept = path.read_bytes()
        path.write_bytes(content(kept))
        found = import_teacher(teacher, tmp_path / "data", dumps, tmp_path / "cache", code=1)
        path.write_bytes(kept)
        assert f"{path}: {message}" in found, found
        assert not (tmp_path / "cache").exists()

    (tmp_path / "data").mkdir()
    shutil.copy(shard, tmp_path / "data")
    for path in (dumps / "request-5.safetensors", teacher / "model.safetensors"):
        refused(path, lambda data: data[:-10], "expected a whole safetensors file, found: ")
        refused(path, lambda data: b"", "expected a whole safetensors file, found: ")
    refused(teacher / "config.json", lambda data: data[:-4], "expected JSON, found: ")
    refused(teacher / "config.json", lambda data: b"[]", "expected an object, found list")
    refused(tmp_path / "data" / "import.dtok", lambda data: data[:100], "expected a token shard, found 100 bytes")


def test_states_that_predict_worse_than_others_of_the_file_are_refused(tmp_path, models, shard):
    from safetensors import safe_open

    teacher = models["llama"][1]
    with safe_open(f"{teacher}/model.safetensors", "pt") as file:
        lm_head, norm = file.get_tensor("lm_head.weight"), file.get_tensor("model.norm.weight")

    def with_a_better_first_layer(tokens, states):
        """Its states are those of the next token's own row of the lm_head, before the norm."""
        states[:-1, 0] = 100 * lm_head[tokens[1:]] / norm
        return tokens, states

    dumps = make_dumps(tmp_path / "dumps", teacher, shard, True, with_a_better_first_layer)
    message = import_teacher(teacher, shard, dumps, tmp_path / "cache", code=1)
    assert "predict the next tokens with" in message and "those of layer 0 of the file" in message


def test_states_of_which_some_are_normalised_are_refused(tmp_path, models, shard):
    def mixed(tokens, states):
        states[::2] *= 3
        return tokens, states

    dumps = make_dumps(tmp_path / "dumps", models["llama"][1], shard, True, mixed)
    message = import_teacher(models["llama"][1], shard, dumps, tmp_path / "cache", code=1)
    assert "cannot tell whether the hidden states are before or after the final norm" in message


def test_documents_without_a_dump_are_counted(tmp_path, models, shard):
    teacher = models["llama"][1]
    dumps = make_dumps(tmp_path / "dumps", teacher, shard, True)
    (dumps / "request-3.safetensors").unlink()
    message = import_teacher(teacher, shard, dumps, tmp_path / "cache", code=1)
    assert "each of 8 documents, found none for 1" in message and not (tmp_path / "cache").exists()
    import_teacher(teacher, shard, dumps, tmp_path / "cache", "--allow-missing")
    source = {"source": "cache", "cache": str(tmp_path / "cache")}
    path = tiny.write_config(tmp_path, config_of(tmp_path / "run", models["llama"], shard, **source))
    assert "document 3 is not in the cache" in tiny.distill("--config", path, code=tiny.BAD_INPUT).stderr
    manifest = json.loads((tmp_path / "cache" / "manifest.json").read_text())
    assert manifest["micro_batch_size"] == 0


@pytest.mark.parametrize("names", [("a", "b"), ("b", "a")])
def test_a_document_that_begins_with_another_gets_all_of_its_rows(tmp_path, models, names):
    """Dumps are read in the order of their names: the shorter document's first, or the longer one's."""
    pair = models["llama"]
    everything = np.ones(61, bool)
    text = np.random.default_rng(11).integers(0, tiny.VOCAB, 61)
    shard = tiny.make_shard(tmp_path / "nested.dtok", [(text[:17], everything[:17]), (text, everything)])
    dumps = make_dumps(tmp_path / "dumps", pair[1], shard, True)
    for index, name in enumerate(names):
        (dumps / f"request-{index}.safetensors").rename(dumps / f"{name}.safetensors")
    assert "2 of 2 documents\n" in import_teacher(pair[1], shard, dumps, tmp_path / "cache")
    tiny.distill("verify", tmp_path / "cache")
    online = tiny.train(tmp_path, config_of(tmp_path / "online", pair, shard))
    source = {"source": "cache", "cache": str(tmp_path / "cache")}
    cached = tiny.train(tmp_path, config_of(tmp_path / "cached", pair, shard, **source))
    (steps, _), (expected, _) = tiny.read_metrics(cached), tiny.read_metrics(online)
    for found, wanted in zip(steps, expected, strict=True):
        assert found["valid_tokens"] == wanted["valid_tokens"]
        assert found["teacher_ce"] == pytest.approx(wanted["teacher_ce"], rel=1e-5)


def test_documents_of_which_only_the_beginning_is_there_are_counted(tmp_path, models, shard):
    teacher = models["llama"][1]
    dumps = make_dumps(tmp_path / "dumps", teacher, shard, True, lambda t, s: (t[:47], s[:47]))
    said = import_teacher(teacher, shard, dumps, tmp_path / "cache")
    assert "8 of 8 documents, 3 of them only in part: document 1 of " in said
    assert "has rows for its first 47 of 61 tokens" in said
    source = {"source": "cache", "cache": str(tmp_path / "cache")}
    path = tiny.write_config(tmp_path, config_of(tmp_path / "run", models["llama"], shard, **source))
    assert "expected 61 tokens from token 0 on" in tiny.distill("--config", path, code=tiny.BAD_INPUT).stderr


def write_tokenizer(path, prefix):
    """A tokenizer whose tokens begin with `prefix`; returns the file and its hash."""
    vocab = {f"{prefix}{i}": i for i in range(tiny.VOCAB)}
    path.parent.mkdir(exist_ok=True)
    path.write_text(
        json.dumps({"version": "1.0", "added_tokens": [], "model": {"type": "BPE", "vocab": vocab, "merges": []}})
    )
    return path, canonical_hash(json.loads(path.read_text()))[0]


def tokenized(path, digest):
    """A token shard that was made with the tokenizer of this hash."""
    write_shard(path, tiny.random_documents(5, [61, 17, 33]), tiny.VOCAB, digest)
    return path


def test_another_tokenizer_is_refused(tmp_path, models):
    teacher = tmp_path / "teacher"
    shutil.copytree(models["llama"][1], teacher)
    own, _ = write_tokenizer(teacher / "tokenizer.json", "t")
    _, digest = write_tokenizer(tmp_path / "its" / "tokenizer.json", "r")
    shard = tokenized(tmp_path / "its.dtok", digest)
    dumps = make_dumps(tmp_path / "dumps", models["llama"][1], shard, True)

    def refused(*arguments):
        return import_teacher(teacher, shard, dumps, tmp_path / "cache", *arguments, code=1)

    assert f"{own}: tokenizer_hash: expected {digest.hex()}" in refused()
    own.rename(tmp_path / "wrong.json")
    assert "wrong.json: tokenizer_hash: expected" in refused("--tokenizer", tmp_path / "wrong.json")
    assert f"{tmp_path / 'none'}: no such file" in refused("--tokenizer", tmp_path / "none")
    damaged = tmp_path / "damaged.json"
    for content, message in (("{}", "cannot be loaded"), ("[", "not valid JSON")):
        damaged.write_text(content)
        assert f"damaged.json: {message}" in refused("--tokenizer", damaged)


@pytest.mark.parametrize("name", ["its", "its/tokenizer.json", None])
def test_a_tokenizer_that_is_not_compared_is_said(tmp_path, models, name):
    _, digest = write_tokenizer(tmp_path / "its" / "tokenizer.json", "r")
    (tmp_path / "its" / "special_tokens_map.json").write_text("{}")
    shard = tokenized(tmp_path / "its.dtok", digest)
    teacher = models["llama"][1]
    dumps = make_dumps(tmp_path / "dumps", teacher, shard, True)
    arguments = ["--tokenizer", tmp_path / name] if name else []
    said = import_teacher(teacher, shard, dumps, tmp_path / "cache", *arguments, errors=True)
    warning = f"import_teacher: warning: {teacher}: no tokenizer.json: the teacher's tokenizer is not compared"
    assert said.startswith(warning) if name is None else not said, said
    copied = {path.name for path in (tmp_path / "cache" / "head").iterdir()} - {"config.json", "model.safetensors"}
    expected = {
        "its": {"tokenizer.json", "special_tokens_map.json"},
        "its/tokenizer.json": {"tokenizer.json"},
        None: {"generation_config.json"},  # of the teacher's folder
    }
    assert copied == expected[name] | {"checksums.xxh3"}
