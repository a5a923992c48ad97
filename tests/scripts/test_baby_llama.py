"""The study of a published setting: its cleaning, BLiMP's scores, and all commands with tiny models."""

import json
import os
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from baby_llama import corpus, data, pairs, report
from baby_llama.cleaning import CLEAN

REPOSITORY = Path(__file__).resolve().parents[2]

CLEANED = {  # by hand, from the published code's rules
    "aochildes": ("look  at that !\nyou see\tit ?\n", "look at that!\nyou see it?\n"),
    "bnc_spoken": ("Yes .\nNo\n\nWell , then\n", "Yes.\nNoWell, then\n"),
    "cbt": ("the king 's  son , he said\n", "the king's son, he said\n"),
    "children_stories": ("a  b .\n\nc\n", "a  b .\n\nc\n"),
    "gutenberg": ("a  b\n\nc\n", "a  b\n\nc\n"),
    "open_subtitles": ("Hi.\nSubtitles by X\nBye.\n", "Hi.\nBye.\n"),
    "qed": ("lT IS lATE. GO (NOW)!\n  It is Late. \n", "It is iate. Go (now)!\nIt is Late."),
    "simple_wikipedia": ("a b\n\nc\n", "a bc\n"),
    "switchboard": ("Uh , yes\n", "Uh , yes\n"),
    "wikipedia": ("= = = Air = = =\n  is a gas \n\nb\n", "Air  is a gasb"),
}


def test_each_file_is_cleaned_as_published():
    assert set(CLEANED) == set(corpus.DOMAINS) == set(CLEAN)
    for domain, (text, expected) in CLEANED.items():
        assert CLEAN[domain](text) == expected, domain


def test_a_corpus_is_made_of_clones(tmp_path, monkeypatch):
    kinds, turn = [(letter.encode() * 100 + b"\n") * 3000 for letter in "wbo"], 256 * 1024
    slices = b"".join(kind[begin:end] for begin, end in ((0, turn), (turn, 300000)) for kind in kinds)
    article = '<doc id="1" url="u" title="{0}">\n{0}\n\n' + "one two three four five six\n" * 6 + "</doc>\n"
    replies = [{"Reply": f"Reply {at}, which is\n long.", "Start": at} for at in range(200)]
    characters = [{"Character": "A", "Replies": replies[1::2]}, {"Character": "B", "Replies": replies[0::2]}]
    book = "head\n*** START OF THIS BOOK ***\n" + "the king of the land and of the sea went to the hill\n" * 400
    files = {
        "MShelUR/Perplexed-BabyLlama": {
            f"data/babylm_{folder}/{domain}.{part}": f"{domain} {part}\n"
            for domain in corpus.PUBLISHED
            for folder, part in (("10M", "train"), ("dev", "dev"))
        },
        "egemengulpinar/Llama-BabyLM": {"work/data/train_A_2MB.txt": slices},
        "NathanDuran/MRDA-Corpus": {
            f"mrda_data/{part}_set.txt": "a|so um|S\n" * 900 for part in ("train", "val", "test")
        },
        "rcdm-uga/Gutenberg_Text": {
            **{f"A/{at}.txt": book + "*** END OF THIS BOOK ***\nlicence\n" for at in range(3)},
            "A/german.txt": "der könig von dem lande und von dem meer\n" * 400,
        },
        "florian-rieder/Movie-Scripts": {
            f"parsed_scripts/{at}.json": json.dumps({"Characters": characters}) for at in range(3)
        },
        "saranyan/TED-Talks": {f"cleaned_ted/{at}.md": "Isn&#39;t it\ngood\n" * 60 for at in range(4)},
        "JohanMadsen/02807_Project": {
            f"Data/Dataset1/{folder}/wiki_00": "".join(article.format(f"T{at}") for at in range(30))
            for folder in ("AA", "AB", "AC")
        },
    }
    commits = {}
    for name, content in files.items():
        folder = tmp_path / "clones" / name.replace("/", "+")
        folder.mkdir(parents=True)
        git = ["git", "-C", folder, "-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
        subprocess.run([*git, "init", "--quiet"], check=True)
        for path, text in content.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_bytes(text if isinstance(text, bytes) else text.encode())
        subprocess.run([*git, "add", "."], check=True)
        subprocess.run([*git, "commit", "--quiet", "-m", "x"], check=True)
        commits[name] = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True).stdout.strip()
    monkeypatch.setattr(corpus, "REPOSITORIES", commits)
    monkeypatch.setattr(corpus, "OTHERS", dict.fromkeys(corpus.OTHERS, 4000))
    counts = corpus.make(tmp_path / "clones", tmp_path / "corpus")
    assert set(counts) == {f"{domain}.{part}" for domain in corpus.DOMAINS for part in ("train", "dev")}

    def text(name):
        return (tmp_path / "corpus" / name.rpartition(".")[2] / name).read_text()

    assert text("cbt.train") == "cbt train\n" and text("switchboard.dev") == "switchboard dev\n"
    for name, letter in (("simple_wikipedia", "w"), ("bnc_spoken", "b"), ("open_subtitles", "o")):
        first = text(f"{name}.train").split("\n")
        assert first[0] == letter * 100 and first.count(letter * 100) == 300000 // 101
    assert "so um\nso um" in text("bnc_spoken.dev")
    assert "Reply 0, which is long.\nReply 1, which is long." in text("open_subtitles.dev")
    assert text("gutenberg.train").count("king") == 400 and "licence" not in text("gutenberg.train")
    assert "könig" not in text("gutenberg.train") + text("gutenberg.dev")
    assert text("qed.train").startswith("Isn't it\ngood\n")
    assert text("simple_wikipedia.dev").startswith("T") and text("simple_wikipedia.dev").count("one two") % 4 == 0
    assert text("wikipedia.dev").startswith("= = = T") and text("wikipedia.dev").count("one two") % 6 == 0
    assert counts["wikipedia.dev"] >= 400


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """The ten files of a corpus, made of this repository's documents, and the token shards of it."""
    root = tmp_path_factory.mktemp("baby_llama")
    documents = sorted((REPOSITORY / "docs").glob("*.md"))
    for part, begin in (("train", 0), ("dev", 1)):
        (root / "corpus" / part).mkdir(parents=True)
        for index, domain in enumerate(corpus.DOMAINS):
            text = documents[(2 * index + begin) % len(documents)].read_text()[: 3000 if part == "train" else 800]
            (root / "corpus" / part / f"{domain}.{part}").write_text(text)
    data.make_tokens(root / "corpus", root / "inputs", None, 300)
    made = [
        {"uid": "a", "field": "x", "good": "The run ends.", "bad": "The run end.", "kept": True},
        {"uid": "a", "field": "x", "good": "It has keys.", "bad": "It have keys.", "kept": True},
        {
            "uid": "b",
            "field": "x",
            "good": "A rank waits for the others.",
            "bad": "A rank wait for others.",
            "kept": True,
        },
        {"uid": "c", "field": "y", "good": "No step is left.", "bad": "No step are left.", "kept": False},
    ]
    data.write_pairs(root / "inputs/pairs.jsonl.xz", made)
    return root


def test_a_sentence_has_the_likelihood_that_the_model_alone_gives_it(folders):
    folder = folders / "model"
    shape = {"num_hidden_layers": 2, "hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 32}
    data.make_model(folder, folders / "inputs/tokenizer", shape, 32)
    torch.manual_seed(1)
    model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder), dtype=torch.float32).eval()
    for parameter in model.parameters():  # far from uniform
        parameter.data.mul_(8)
    sentences = ["A rank waits.", "It has the keys of a section, each with its default.", "No."]
    for context, first in (("line", "Ċ"), ("mark", "</s>")):
        ids = pairs.encoded(folder / "tokenizer.json", sentences, context)
        vocabulary = json.loads((folder / "tokenizer.json").read_text())["model"]["vocab"]
        assert all(one[0] == vocabulary[first] for one in ids)
        sums = pairs.log_likelihoods(model, pairs.Padded(ids), "cpu")
        for one, found in zip(ids, sums, strict=True):
            logits = model.double()(input_ids=torch.tensor([one])).logits[0]
            expected = sum(logits[at].log_softmax(0)[one[at + 1]].item() for at in range(len(one) - 1))
            model.float()
            assert found == pytest.approx(expected, rel=1e-4)


def test_accuracies_are_means_over_paradigms_and_over_phenomena(folders):
    read = data.read_pairs(folders / "inputs/pairs.jsonl.xz")
    found = pairs.accuracies(read, [True, False, False, True])
    assert found["paradigms"] == pytest.approx(50)  # 50, 0 and 100
    assert found["phenomena"] == pytest.approx((100 / 3 + 100) / 2)
    assert found["pairs"] == 4


def binary():
    build = os.environ.get("DISTILL_BUILD", "build/release")
    return os.environ.get("DISTILL_BIN", str(REPOSITORY / build / "apps/distill/distill"))


def test_the_tiny_study_has_all_models_in_its_table_and_continues(folders, tmp_path, script, monkeypatch):
    def study(*arguments):
        return script("studies/baby_llama.py", *arguments)

    places = ["--inputs", folders / "inputs", "--work", tmp_path]
    options = ["run", "--profile", "test", "--program", binary(), *places, "--jobs", "2"]
    study(*options, "--minutes", "0.0001")  # none is begun
    assert not (tmp_path / "results").exists()
    study(*options)
    records = report.collect(tmp_path)
    assert set(records) == {"teacher", "labels-s1", "text-s1", "code-s1"}
    for name, record in records.items():
        assert 2 < record["dev"]["dev-published"]["hard"] < 6.5, name
        assert ("forward_kl" in record["dev"]["dev-others"]) == (name[:4] in ("text", "code"))
    # Same student, same data: the losses differ by the weight of the KL, which is 32 times that of the other row.
    last = {name: record["last"] for name, record in records.items()}
    for row, weight in (("text-s1", 0.5), ("code-s1", 16)):
        assert last[row]["loss"] == pytest.approx(0.5 * last[row]["hard"] + weight * last[row]["soft"], rel=1e-4)
    assert "dev-" not in study(*options).split("all is trained")[0]
    study("blimp", "--profile", "test", *places)
    table = study("table", "--profile", "test", "--work", tmp_path)
    assert len([line for line in table.splitlines() if line.startswith("|")]) == 6 + 5 and "| - |" not in table, table
    found = report.epochs_of(tmp_path, "test")
    assert set(found) == {"labels-s1", "text-s1", "code-s1"}
    done, total, means = found["labels-s1"]
    steps = [json.loads(line) for line in (tmp_path / "runs/labels-s1/metrics.jsonl").read_text().splitlines()]
    assert done == total == len([step for step in steps if "loss" in step]) and len(means) == 1
    assert means[0] == pytest.approx(sum(step["hard"] for step in steps if "loss" in step) / total)
    assert (tmp_path / "table.md").read_text() == table
    two = replace(report.PROFILES["test"].student, epochs=2)
    # A run that ended within its second epoch of two has the first one's mean.
    monkeypatch.setitem(report.PROFILES, "test", replace(report.PROFILES["test"], student=two))
    lines = (tmp_path / "runs/labels-s1/metrics.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "runs/labels-s1/metrics.jsonl").write_text("".join(lines[: total // 2 + 1]))
    done, _, means = report.epochs_of(tmp_path, "test")["labels-s1"]
    half = total // 2
    assert done < total and means == pytest.approx([sum(json.loads(one)["hard"] for one in lines[:half]) / half])
