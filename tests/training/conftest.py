import sys
from pathlib import Path

import numpy as np
import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))

import aligned_rounds
import cache_kinds
import onpolicy_runs
import other_tokenizers
import tiny


@pytest.fixture(scope="session", autouse=True)
def program():
    torch.set_num_threads(1)
    path = Path(tiny.binary())
    if not path.is_file():
        pytest.fail(f"{path} is not built (scripts/build.sh), or set DISTILL_BIN or DISTILL_BUILD", pytrace=False)


@pytest.fixture(scope="session")
def models(tmp_path_factory):
    """Folders of a student and a teacher by family, made when they are first asked for. The teacher is larger, padded
    to a wider vocabulary."""
    folder = tmp_path_factory.mktemp("models")

    class Models(dict):
        def __missing__(self, family):
            tied = family in ("qwen3", "gemma3", "gemma4")
            student = tiny.make_model(folder / f"{family}-student", family, seed=1, tied=tied)
            teacher = tiny.make_model(
                folder / f"{family}-teacher", family, seed=2, tied=tied, vocab=tiny.TEACHER_VOCAB, hidden=64, layers=3
            )
            return self.setdefault(family, (student, teacher))

    return Models()


@pytest.fixture(scope="session")
def ragged_shard(tmp_path_factory):
    """About 60 rows of 32 tokens from documents of many lengths, a ragged loss mask on each."""
    lengths = [5, 61, 17, 128, 2, 33, 90, 47] * 5
    path = tmp_path_factory.mktemp("data") / "ragged.dtok"
    return tiny.make_shard(path, tiny.random_documents(3, lengths))


@pytest.fixture(scope="session")
def long_shard(tmp_path_factory):
    """Documents of 600 tokens, all of them with a loss."""
    random = np.random.default_rng(5)
    documents = [(random.integers(0, tiny.VOCAB, 600), np.ones(600, dtype=bool)) for _ in range(24)]
    return tiny.make_shard(tmp_path_factory.mktemp("long") / "long.dtok", documents)


@pytest.fixture
def kind_run(tmp_path, models, ragged_shard):
    """The configuration of a run that reads a cache of a kind, or of the online run without `kind`."""

    def build(name, kind=None, cache=None, ranks=1, micro=2, shard=ragged_shard, **sections):
        data = {"packing": "pack", "shuffle": True, "seed": 5, "eval": [{"path": shard}]} | sections.pop("data", {})
        train = {"steps": 6, "micro_batch_size": micro, "global_batch_size": 12}
        train |= {"deterministic": tiny.DEVICE == "cuda"} | sections.pop("train", {})
        loss = cache_kinds.FORWARD_KL | sections.pop("loss", {})
        sections.setdefault("eval", {"every": 3})
        built = tiny.base_config(
            tmp_path / name, *models["qwen3"], shard, data=data, train=train, parallel={"processes": ranks}, **sections
        )
        built["loss"] = loss
        built["cache"] = dict(cache_kinds.KINDS[kind]) if kind else {}
        built["cache"] |= {"part_tokens": 200}
        if cache is not None:
            built["teacher"] = {"source": "cache", "cache": str(cache)}
        return built

    return build


@pytest.fixture(scope="session")
def cache_of(tmp_path_factory, models, ragged_shard):
    """The cache of a kind at a temperature, which is captured when it is asked for first."""
    found = {}

    def cache(kind, temperature=1.0, micro=cache_kinds.MICRO):
        if (kind, temperature, micro) not in found:
            folder = tmp_path_factory.mktemp("caches")
            data = {"packing": "pack", "eval": [{"path": ragged_shard}]}
            base = tiny.base_config(folder, *models["qwen3"], ragged_shard, data=data)
            base["train"] |= {"micro_batch_size": micro, "deterministic": tiny.DEVICE == "cuda"}
            base["loss"] = cache_kinds.FORWARD_KL | {"temperature": temperature}
            base["cache"] = cache_kinds.KINDS[kind] | {"part_tokens": 200}
            cache_kinds.capture(base, folder / "cache")
            found[kind, temperature, micro] = folder / "cache"
        return found[kind, temperature, micro]

    return cache


@pytest.fixture(scope="session")
def onpolicy_prompts(tmp_path_factory):
    """Conversations whose prompts have 3 to 12 tokens, no two of them alike."""
    random = np.random.default_rng(11)
    documents = []
    for length in random.integers(3, 13, 40):
        tokens = random.integers(2, tiny.VOCAB, length + 4)
        documents.append((tokens, np.arange(len(tokens)) >= length))
    return tiny.make_shard(tmp_path_factory.mktemp("prompts") / "prompts.dtok", documents)


@pytest.fixture(scope="session")
def undisturbed_run(tmp_path_factory, models, onpolicy_prompts):
    """An on-policy run of three rounds, as which many others end."""
    folder = tmp_path_factory.mktemp("undisturbed")
    return tiny.train(folder, onpolicy_runs.config_in(folder, models, onpolicy_prompts)("undisturbed"))


@pytest.fixture(scope="session")
def pair(tmp_path_factory):
    """(student, teacher): folders of models whose tokenizers split texts in two ways."""
    return other_tokenizers.make_pair(tmp_path_factory.mktemp("pair"))


@pytest.fixture(scope="session")
def aligned_pair(tmp_path_factory):
    """Such folders for on-policy rounds, whose texts have an end."""
    return aligned_rounds.make_pair(tmp_path_factory.mktemp("pair"))


@pytest.fixture(scope="session")
def questions():
    return aligned_rounds.make_questions()


@pytest.fixture(scope="session")
def aligned_prompts(tmp_path_factory, aligned_pair, questions):
    """Prompts of questions in the tokens of both models of `aligned_pair`."""
    records = [{"prompt": question, "completion": "x"} for question in questions]
    folder = tmp_path_factory.mktemp("prompts") / "prompts"
    return other_tokenizers.tokenize(*aligned_pair, records, folder, "--prompts")[0]


@pytest.fixture(scope="session")
def texts(tmp_path_factory, pair):
    """Token data of texts for both tokenizers of `pair`, in parts of at most 32 tokens, most of them above 16."""
    paragraphs = (tiny.REPOSITORY / "docs/ranks.md").read_text().split("\n\n")
    records = [{"text": one} for one in paragraphs if 20 < len(one) < 600]
    folder = tmp_path_factory.mktemp("texts") / "texts"
    return other_tokenizers.tokenize(*pair, records, folder, "--part-tokens", "32")[0]


@pytest.fixture(scope="session")
def chats(tmp_path_factory, pair):
    questions = ["How many ranks are there?", "Héllo — wörld 🙂", "a  b\n\nc"]
    records = [
        {"messages": [{"role": "user", "content": q}, {"role": "assistant", "content": f"Say: {q} " * 2}] * turns}
        for turns in (1, 2)
        for q in questions
    ]
    folder = tmp_path_factory.mktemp("chats") / "chats"
    return other_tokenizers.tokenize(*pair, records, folder)[0]
