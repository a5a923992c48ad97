"""What a run from a cache refuses, and what it does not: data that it does not read, data sets that are not there."""

import shutil

import tiny
from cache_kinds import capture


def test_a_run_that_never_evaluates_may_name_other_evaluation_data(tmp_path, kind_run, ragged_shard):
    capture(kind_run("captured"), tmp_path / "cache")
    other = tiny.make_shard(tmp_path / "other.dtok", tiny.random_documents(8, [40, 50, 60]))
    data = {"eval": [{"path": other}]}
    off = {"every": 0}
    tiny.train(tmp_path, kind_run("run", None, tmp_path / "cache", data=data, eval=off))
    for index, section in enumerate(({"every": 2}, {"every": 0, "at_start": True})):
        run = kind_run(f"refused{index}", None, tmp_path / "cache", data=data, eval=section)
        folder = tmp_path / f"refused{index}"
        message = tiny.distill("--config", tiny.write_config(folder, run), code=tiny.BAD_INPUT).stderr
        assert f"data.eval: {other} is not in the cache {tmp_path / 'cache'}" in message
    # `distill eval` reads it, whatever eval.every is.
    run = kind_run("evaluated", None, tmp_path / "cache", data=data, eval=off)
    path = tiny.write_config(tmp_path / "evaluated", run)
    assert "is not in the cache" in tiny.distill("eval", "--config", path, code=tiny.BAD_INPUT).stderr


def test_a_data_set_that_was_not_captured_is_not_called_a_changed_one(tmp_path, kind_run):
    for name, seed in (("a", 1), ("b", 2)):
        (tmp_path / name).mkdir()
        tiny.make_shard(tmp_path / name / "train-00000.dtok", tiny.random_documents(seed, [40, 30, 20, 64, 50] * 4))
    data = {"train": [{"path": str(tmp_path / "a")}], "eval": []}
    off = {"every": 0}
    capture(kind_run("captured", data=data, eval=off), tmp_path / "cache")
    run = kind_run("run", None, tmp_path / "cache", data=data, eval=off)
    tiny.train(tmp_path, run)

    def refused():
        return tiny.distill("--config", tiny.write_config(tmp_path, run), "--overwrite", code=tiny.BAD_INPUT).stderr

    run["data"]["train"].append({"path": str(tmp_path / "b")})
    message = refused()
    b = tmp_path / "b" / "train-00000.dtok"
    assert (
        f"data.train: {b} is not in the cache {tmp_path / 'cache'}, which is of {tmp_path / 'a'}: no token" in message
    )
    assert "changed after the capture" not in message
    # The file that was captured, with other content.
    run["data"]["train"].pop()
    tiny.make_shard(tmp_path / "a" / "train-00000.dtok", tiny.random_documents(5, [40, 30]))
    assert "the data changed after the capture" in refused()
    # By content, whatever the file's name.
    tiny.make_shard(tmp_path / "renamed.dtok", tiny.random_documents(1, [40, 30, 20, 64, 50] * 4))
    run["data"]["train"] = [{"path": str(tmp_path / "renamed.dtok")}]
    tiny.train(tmp_path, run, "--overwrite")


def test_the_resolved_configuration_of_a_cached_run_serves_a_run_of_the_teacher(tmp_path, kind_run):
    captured = kind_run("captured")
    capture(captured, tmp_path / "cache")
    run = kind_run("run", None, tmp_path / "cache", train={"steps": 4})
    run["cache"] |= {"other_contexts": "allow"}
    folder = tiny.train(tmp_path, run)
    assert "other_contexts: allow" in (folder / "config.yaml").read_text()
    teacher = captured["teacher"]["path"]
    sets = ["--set", "teacher.source=model", f"teacher.path={teacher}"]
    tiny.distill("--config", folder / "config.yaml", "--resume", *sets, "train.steps=5")
    tiny.distill("--config", folder / "config.yaml", *sets, f"run.dir={tmp_path / 'again'}")


def test_evaluating_on_the_training_data_is_warned_of(tmp_path, kind_run, ragged_shard):
    copy = tmp_path / "copy.dtok"
    shutil.copyfile(ragged_shard, copy)
    other = tiny.make_shard(tmp_path / "other.dtok", tiny.random_documents(8, [40, 50, 60]))

    def warned(name, sets, **sections):
        run = kind_run(name, data={"eval": [{"path": str(path)} for path in sets]}, train={"steps": 4}, **sections)
        done = tiny.distill("--config", tiny.write_config(tmp_path / name, run), "--dry-run")
        return "data.eval: 1 of its" in done.stderr

    assert warned("same", [copy])
    assert warned("both", [other, copy])
    assert not warned("other", [other])
    assert not warned("never", [copy], eval={"every": 0})
