"""The study of experts in miniature: a dense model becomes a mixture of experts, which teaches students with fewer."""

import json

import numpy as np
import pytest
import tiny_study
import torch
import transformers

from model_files import change_model
from quality import upcycle
from token_shards import shard_file

OWN = {"experts": 8, "per_token": 2, "text_tokens": 2048, "balance": 0.01}
OWN |= {"teacher_row": "mix_50", "teacher_lr": 3e-3, "teacher_steps": 60}
OWN |= {"lrs": [1e-3, 6e-3], "search_steps": 10, "steps": 40}
OWN |= {"cases": {"half": ["labels", "forward_kl"], "quarter": ["forward_kl"], "random": ["forward_kl"]}}
KINDS = ("code", "reference", "prose")


@pytest.fixture(scope="module")
def work(tmp_path_factory):
    return tiny_study.make(tmp_path_factory.mktemp("experts") / "work")


@pytest.fixture(scope="module")
def finished(work):
    """({name: result}, {table: text})"""
    results, study = work.parent / "results", tiny_study.study(work.parent / "study.yaml", experts=OWN, seeds=[1])
    arguments = ("--profile", "cpu", "--study", study, "--results", results)
    more = ("--work", work, "--program", tiny_study.PROGRAM, "--jobs", 2)
    tiny_study.script("studies/quality.py", "experts", *arguments, *more)
    again = tiny_study.script("studies/quality.py", "experts", *arguments, *more)
    assert again == "", "what is there is not made again"
    tables = tiny_study.script("studies/quality.py", "report", *arguments)
    found = {path.stem: json.loads(path.read_text()) for path in results.glob("*.json")}
    return found, {name: tables.split(f"\n{name}\n\n")[1].split("\n\n")[0] for name in ("mixture", "experts")}


def kl(result):
    return [result["tests"][kind]["forward_kl"] for kind in KINDS]


def of(found, student, row):
    return [
        one for one in found.values() if one["purpose"] == "experts" and (one["student"], one["row"]) == (student, row)
    ]


def test_every_group_of_experts_computes_the_mlp(tmp_path):
    """A token visits the experts of one group, which have all neurons of the MLP between them."""
    torch.manual_seed(0)
    tiny_study.save_model(tmp_path / "random", layers=2)
    dense = transformers.LlamaForCausalLM.from_pretrained(tmp_path / "random", dtype=torch.bfloat16)
    dense.save_pretrained(tmp_path / "dense")  # bf16 holds its weights, so that the mixture has the same ones
    tokens = torch.randint(0, 60, (4, 32))
    upcycle.upcycle(tmp_path / "dense", tmp_path / "mixture", tokens, experts=16, per_token=4, seed=0)
    mixture = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "mixture", dtype=torch.float32)
    inputs, chosen = torch.randn(1, 50, 64), []
    for old, new in zip(dense.float().model.layers, mixture.model.layers, strict=True):
        new.mlp.gate.register_forward_hook(lambda module, inputs, output: chosen.append(output[2]))
        with torch.no_grad():
            torch.testing.assert_close(new.mlp(inputs), old.mlp(inputs), atol=1e-5, rtol=1e-4)
    groups = torch.cat(chosen) // 4
    assert (groups == groups[:, :1]).all() and len(groups.unique()) == 4, "tokens visit different groups"
    parts = mixture.model.layers[0].mlp.experts.gate_up_proj
    assert len({float(part.detach().sum()) for part in parts}) == 16, "groups cut the neurons differently"


def test_only_a_llama_with_parts_of_equal_size_becomes_a_mixture(tmp_path):
    tiny_study.save_model(tmp_path / "dense", layers=1)
    tokens = torch.zeros(1, 8, dtype=torch.long)
    with pytest.raises(ValueError, match="multiple of 3, found 128"):
        upcycle.upcycle(tmp_path / "dense", tmp_path / "mixture", tokens, experts=12, per_token=3, seed=0)
    change_model(tmp_path / "dense", model_type="mistral")
    with pytest.raises(ValueError, match="expected llama, found mistral"):
        upcycle.upcycle(tmp_path / "dense", tmp_path / "mixture", tokens, experts=8, per_token=2, seed=0)


def test_the_mixture_is_near_the_dense_model_before_and_after_it_is_trained(finished):
    found, _ = finished
    before, after = (found[f"experts-model-{model}"] for model in ("upcycled", "teacher"))
    assert all(0 < one < 0.01 for one in kl(before)), "the tiny model's queries and keys hardly differ in size"
    assert all(0.005 < one < 0.05 for one in kl(after)), "it has been trained, and is not far from the dense model"
    routers = found["experts-teacher"]["routers"]
    assert 1 <= routers["load"] <= routers["highest_load"] <= 4 and routers["unused_experts"] == 0


def test_students_have_a_part_of_the_experts_and_are_trained(finished, work):
    found, _ = finished
    kept = {}
    for student, count in (("half", 4), ("quarter", 2), ("random", 4)):
        folder = work / "experts" / student
        kept[student] = json.loads((folder / "kept.json").read_text())["experts"]
        assert all(len(set(layer)) == count for layer in kept[student])
        model = transformers.AutoModelForCausalLM.from_pretrained(folder)
        assert len(model.model.layers[0].mlp.gate.weight) == count
        before = kl(found[f"experts-model-{student}"])
        assert all(one > 0.002 for one in before)
        (result,) = of(found, student, "forward_kl")
        assert result["seed"] == 1 and sum(kl(result)) < sum(before)
    assert kept["half"] != kept["random"]
    (one,), (other,) = of(found, "half", "forward_kl"), of(found, "half", "labels")
    assert sum(kl(one)) < sum(kl(other))
    assert not list((work / "runs").glob("experts-half-*/model")), "the models of students are removed"


def test_students_keep_the_experts_that_are_used_most(finished, work):
    """Sums of the routers' weights, on beginnings of other documents than the study's."""
    model = transformers.AutoModelForCausalLM.from_pretrained(work / "runs" / "experts-teacher" / "model")
    (shard,) = (work / "data" / "train").glob("*.dtok")
    rows = [document[: tiny_study.LENGTH] for document in shard_file.read(shard)[1][:200]]
    use = torch.zeros(len(model.model.layers), OWN["experts"])

    def count(own):
        def hook(module, inputs, output):
            own.index_add_(0, output[2].flatten(), output[1].flatten().float())

        return hook

    for own, layer in zip(use, model.model.layers, strict=True):
        layer.mlp.gate.register_forward_hook(count(own))
    with torch.no_grad():
        model(torch.tensor(np.stack(rows).astype(np.int64)))
    for student, share in (("half", 0.5), ("quarter", 0.25)):
        kept = json.loads((work / "experts" / student / "kept.json").read_text())["experts"]
        for own, chosen in zip(use, kept, strict=True):
            assert own[chosen].sum() > 1.05 * share * own.sum()


def test_the_rate_is_the_better_one_of_the_search(finished):
    found, _ = finished
    for student, row in (("half", "labels"), ("half", "forward_kl"), ("quarter", "forward_kl")):
        searched = {
            one["lr"]: one["evaluations"][-1]["hard"]
            for one in found.values()
            if one["purpose"] == "experts_search" and (one["student"], one["row"]) == (student, row)
        }
        assert len(searched) == 2
        assert {one["lr"] for one in of(found, student, row)} == {min(searched, key=searched.get)}
    assert {one["lr"] for one in of(found, "random", "forward_kl")} == {
        one["lr"] for one in of(found, "half", "forward_kl")
    }


def test_the_tables_have_every_row(finished):
    found, tables = finished
    lines = tables["experts"].splitlines()
    assert len(lines) == 2 + 3 + 2 + 2
    assert lines[2].startswith("| half of the experts, those used most | before training | - | - |")
    (labels,) = of(found, "half", "labels")
    cells = ["", "labels only", f"{labels['lr']:g}", "1", *[f"{value:.3f}" for value in kl(labels)]]
    assert lines[3].startswith(f"| {' | '.join(cells)} | ")
    assert lines[3].endswith(f" | {labels['routers']['load']:.2f} |")
    lines = tables["mixture"].splitlines()
    cells = ["trained: the teacher", *[f"{value:.3f}" for value in kl(found["experts-model-teacher"])]]
    assert len(lines) == 2 + 2 and lines[3].startswith(f"| {' | '.join(cells)} | ")


def test_without_a_trained_student_there_is_no_table_of_them(finished, tmp_path, script):
    found, _ = finished
    for name in ("experts-model-half", "experts-model-teacher"):
        (tmp_path / f"{name}.json").write_text(json.dumps(found[name]))
    output = script("studies/quality.py", "report", "--results", tmp_path, "--profile", "gpu")
    assert "\nexperts\n\nNot measured yet.\n" in output and "| trained: the teacher |" in output
