"""The update beside the next step's teacher (optimizer.overlap_update) changes no bit of a run, and who reads the state
waits for it. On a GPU: DISTILL_TEST_DEVICE=cuda."""

import shutil

import pytest
import tiny

ALONE, BESIDE = {"overlap_update": False}, {"overlap_update": True}
SLOW = BESIDE | {"overlap_ctas": 1}  # on a GPU, so that the update lasts into the student's forward pass
DTYPES = ["float32"] + (["bfloat16"] if tiny.DEVICE == "cuda" else [])


@pytest.fixture(scope="module")
def students(models, tmp_path_factory):
    """By family. On a GPU so large that an update takes milliseconds."""
    if tiny.DEVICE == "cpu":
        return {family: pair[0] for family, pair in models.items()}
    folder = tmp_path_factory.mktemp("students")
    return {family: tiny.make_model(folder / family, family, seed=4, tied=tied, hidden=1024, layers=6)
            for family, tied in (("llama", False), ("qwen3", True))}


@pytest.fixture
def config(tmp_path, students, models, ragged_shard):
    def build(name, family="llama", optimizer=BESIDE, processes=1, **sections):
        sections["parallel"] = {"processes": processes} | sections.get("parallel", {})
        sections["train"] = {"global_batch_size": 4 * processes, "deterministic": tiny.DEVICE == "cuda"} | sections.get(
            "train", {})
        result = tiny.base_config(tmp_path / name, students[family], models[family][1], ragged_shard, **sections)
        result["optimizer"] |= {"lr": 1e-4} if tiny.DEVICE == "cuda" else {}
        result["optimizer"] |= optimizer
        return result
    return build


def bits(run, step):
    """All that a run leaves: losses and norms of its steps and evaluations, weights, the last checkpoint's tensors."""
    steps, evaluations = tiny.read_metrics(run)
    numbers = [(line["step"], line["loss"], line["grad_norm"], line["skipped"]) for line in steps]
    numbers += [(line["step"], line["eval"]["loss"]) for line in evaluations]
    files = [*(run / "model").glob("*.safetensors"), *(run / "checkpoints" / f"step-{step}").glob("rank-*")]
    assert len(files) >= 2
    return numbers, {path.name: path.read_bytes() for path in files}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("family, processes, sections", [
    ("llama", 1, {}),
    ("qwen3", 1, {"train": {"micro_batch_size": 1}}),  # tied; several micro-batches
    ("llama", 1, {"memory": {"optimizer": "host", "activation": "offload"}}),
    ("llama", 2, {}),
    ("qwen3", 2, {"parallel": {"prefetch": 2, "debug_checks": True}, "memory": {"activation": "recompute"}}),
    ("llama", 4, {"parallel": {"shard": 2, "replicate": 2}}),
])
def test_twenty_steps_have_the_same_bits_with_the_update_alone_and_beside_the_next_step(
        tmp_path, config, dtype, family, processes, sections):
    tiny.need_devices(processes)
    found = []
    for name, optimizer in (("alone", ALONE), ("beside", BESIDE), ("slow", SLOW)):
        own = {section: dict(values) for section, values in sections.items()}
        own["train"] = {"steps": 20, "dtype": dtype} | own.get("train", {})
        run = tiny.train(tmp_path / name, config(name, family, optimizer, processes, **own))
        found.append(bits(run, 20))
    assert len(found[0][0]) == 20
    assert found[1] == found[0]
    assert found[2] == found[0]


@pytest.mark.parametrize("processes, asynchronous", [(1, True), (1, False), (2, True)])
def test_checkpoints_and_evaluations_see_the_finished_update_and_resume_bit_for_bit(
        tmp_path, config, students, ragged_shard, processes, asynchronous):
    tiny.need_devices(processes)
    sections = {"data": {"eval": [{"path": ragged_shard}]}, "eval": {"every": 3, "batches": 2},
                "checkpoint": {"every": 5, "keep": 9, "async": asynchronous}, "train": {"steps": 10}}
    def train(name, optimizer, *flags):
        own = {section: dict(values) for section, values in sections.items()}
        return tiny.train(tmp_path / name, config(name, "llama", optimizer, processes, **own), *flags)

    alone, run = train("alone", ALONE), train("slow", SLOW)
    half = {path.name: path.read_bytes() for path in (alone / "checkpoints" / "step-5").glob("rank-*")}
    assert half and half == {path.name: path.read_bytes() for path in (run / "checkpoints" / "step-5").glob("rank-*")}
    expected = bits(alone, 10)
    assert bits(run, 10) == expected
    shutil.rmtree(run / "checkpoints" / "step-10")
    shutil.rmtree(run / "model")
    train("slow", SLOW, "--resume")
    assert bits(run, 10) == expected
    # And the other way round: the key is no part of what a checkpoint belongs to.
    shutil.rmtree(run / "checkpoints" / "step-10")
    train("slow", ALONE, "--resume")
    assert bits(run, 10) == expected
    assert "optimizer.overlap_update" in (run / "log.txt").read_text(), "a changed key is named"


def test_a_skipped_step_beside_the_next_one_changes_nothing(tmp_path, config):
    """A learning rate of 1e30 makes the weights, and then the gradients, not finite."""
    found = []
    for name, optimizer in (("alone", ALONE), ("slow", SLOW)):
        broken = config(name, "llama", optimizer | {"lr": 1e30}, train={"steps": 6, "max_skipped_steps": 100})
        found.append(bits(tiny.train(tmp_path / name, broken), 6))
    assert any(line[3] for line in found[0][0]), "no step was skipped"
    assert repr(found[1]) == repr(found[0])  # losses that are not a number equal themselves here


def test_the_number_of_multiprocessors_means_nothing_without_the_overlap(tmp_path, config):
    refused = tiny.distill("--config", tiny.write_config(tmp_path, config("run", optimizer=ALONE | {"overlap_ctas": 4})),
                           code=tiny.BAD_INPUT)
    assert "optimizer.overlap_ctas" in refused.stderr and "optimizer.overlap_update" in refused.stderr
