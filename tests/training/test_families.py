"""Runs of models with windows, ropes and norms of every family: ranks, recomputation, resumption, caches, the saved
folder."""

import pytest
import torch
import transformers

import cache_kinds
import tiny

FAMILIES = [family for family in tiny.FAMILIES if family not in ("llama", "qwen3", "exaone4")]


@pytest.fixture
def run_of(tmp_path, models, ragged_shard):
    """Trains a few steps and returns the run folder."""

    def run(family, name, steps=4, flags=(), cache=None, kind=None, loss=None, ranks=1, **sections):
        data = {"packing": "pack", "shuffle": True, "seed": 5, "eval": [{"path": ragged_shard}]}
        train = {"steps": steps, "micro_batch_size": 1, "global_batch_size": 6}
        config = tiny.base_config(
            tmp_path / name,
            *models[family],
            ragged_shard,
            data=data,
            train=train | {"deterministic": tiny.DEVICE == "cuda"},
            scheduler={"type": "constant", "warmup_steps": 1},
            parallel={"processes": ranks, "debug_checks": True},
            **sections,
        )
        config["loss"] = loss or config["loss"]
        if cache is not None:
            config["teacher"] = {"source": "cache", "cache": str(cache)}
            config["cache"] = dict(cache_kinds.KINDS[kind]) if kind else {}
        return tiny.train(tmp_path / name, config, *flags)

    return run


def losses(run):
    return [step["loss"] for step in tiny.read_metrics(run)[0]]


@pytest.mark.parametrize("family", FAMILIES)
def test_ranks_recomputation_resumption_and_export_change_nothing(tmp_path, run_of, models, family):
    tiny.need_devices(tiny.RANKS)
    one = run_of(family, "one")
    many = run_of(family, "many", ranks=tiny.RANKS, memory={"activation": "recompute"})
    assert losses(many) == pytest.approx(losses(one), rel=1e-5)
    initial = tiny.load_weights(models[family][0])
    trained = [tiny.load_weights(run / "model") for run in (one, many)]
    updates = [{name: weights[name] - initial[name] for name in initial} for weights in trained]
    assert tiny.relative_difference(updates[1], updates[0]) < 1e-3

    run_of(family, "parts", steps=2)
    parts = run_of(family, "parts", flags=("--resume",))
    assert losses(parts) == losses(one)
    resumed = tiny.load_weights(parts / "model")
    for name, weight in trained[0].items():
        assert torch.equal(resumed[name], weight), name

    _, report = transformers.AutoModelForCausalLM.from_pretrained(one / "model", output_loading_info=True)
    assert not any(report.values()), report
    tiny.distill("export", "--checkpoint", many, "--out", tmp_path / "exported")
    for file in (many / "model").iterdir():
        assert (tmp_path / "exported" / file.name).read_bytes() == file.read_bytes(), file.name


@pytest.mark.parametrize("family", FAMILIES)
def test_a_cached_teacher_trains_as_the_running_one(tmp_path, run_of, models, ragged_shard, family):
    loss = dict(cache_kinds.FORWARD_KL)
    online = run_of(family, "online", loss=loss)
    for kind, bound in ((None, 1e-6), ("whole", 1e-5)):  # hidden states, and the whole vocabulary
        config = tiny.base_config(tmp_path / f"capture-{kind}", *models[family], ragged_shard)
        config["data"] |= {"packing": "pack", "eval": [{"path": ragged_shard}]}
        config["loss"] = loss
        config["cache"] = dict(cache_kinds.KINDS[kind]) if kind else {}
        cache = tmp_path / f"cache-{kind}"
        cache_kinds.capture(config, cache)
        cached = run_of(family, f"cached-{kind}", cache=cache, kind=kind, loss=loss)
        assert losses(cached) == pytest.approx(losses(online), rel=bound), kind
