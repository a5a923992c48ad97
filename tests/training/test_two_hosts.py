"""Two hosts, simulated by two network namespaces joined by a virtual cable. Needs root; skipped without it."""

import os
import subprocess
import time

import pytest

import jobs
import tiny

HOSTS = {"a": "10.77.0.1", "b": "10.77.0.2"}


def ip(*arguments):
    subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True)


@pytest.fixture
def hosts():
    """Names of two namespaces by host. Each host's own name stands for loopback, as on many machines."""
    if tiny.DEVICE != "cpu":
        pytest.skip("two hosts are tried with ranks on the CPU")
    names = {host: f"distill-{os.getpid()}-{host}" for host in HOSTS}
    try:
        for name in names.values():
            ip("netns", "add", name)
        ip("link", "add", "cable", "netns", names["a"], "type", "veth", "peer", "name", "cable", "netns", names["b"])
        for host, address in HOSTS.items():
            ip("-n", names[host], "addr", "add", f"{address}/24", "dev", "cable")
            ip("-n", names[host], "link", "set", "cable", "up")
            ip("-n", names[host], "link", "set", "lo", "up")
        yield names
    except (subprocess.CalledProcessError, FileNotFoundError) as error:
        pytest.skip(f"network namespaces cannot be made here (root and iproute2 are needed): {error}")
    finally:
        for name in names.values():
            subprocess.run(["ip", "netns", "del", name], capture_output=True)


def start_rank(hosts, host, rank, config_path, world_size, master=HOSTS["a"], **variables):
    command = f"hostname host-{host} && exec {tiny.binary()} --config {config_path}"
    environment = (
        tiny.environment()
        | {
            "RANK": str(rank),
            "WORLD_SIZE": str(world_size),
            "LOCAL_RANK": str(rank % 2),
            "LOCAL_WORLD_SIZE": "2",
            "MASTER_ADDR": master,
            "MASTER_PORT": "29500",
        }
        | variables
    )
    return subprocess.Popen(
        ["ip", "netns", "exec", hosts[host], "unshare", "--uts", "sh", "-c", command],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )


def config_of(folder, pair, shard, parallel, **sections):
    train = {"steps": 4, "micro_batch_size": 1, "global_batch_size": 8} | sections.pop("train", {})
    return tiny.base_config(
        folder, *pair, shard, scheduler={"warmup_steps": 1}, train=train, parallel=parallel, **sections
    )


def test_a_replica_on_each_of_two_hosts_trains_as_one_process_does(tmp_path, models, ragged_shard, hosts):
    one = tiny.train(tmp_path / "one", config_of(tmp_path / "one", models["llama"], ragged_shard, {}))
    config = config_of(tmp_path / "two", models["llama"], ragged_shard, {"shard": 2, "replicate": 2, "timeout_s": 60})
    path = tiny.write_config(tmp_path / "two", config)
    ranks = [start_rank(hosts, "ab"[rank // 2], rank, path, 4) for rank in range(4)]
    outputs = [rank.communicate(timeout=120)[1] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0] * 4, "\n".join(outputs)
    run = tmp_path / "two" / "run"
    for found, expected in zip(tiny.read_metrics(run)[0], tiny.read_metrics(one)[0], strict=True):
        assert found["loss"] == pytest.approx(expected["loss"], rel=2e-5)
        assert found["grad_norm"] == pytest.approx(expected["grad_norm"], rel=2e-5)
    assert tiny.relative_difference(tiny.load_weights(run / "model"), tiny.load_weights(one / "model")) < 2e-6


def test_copies_between_hosts_are_refused_and_auto_does_without(tmp_path, models, ragged_shard, hosts):
    for gather in ("copy", "auto"):
        folder = tmp_path / gather
        config = config_of(folder, models["llama"], ragged_shard, {"gather": gather, "timeout_s": 60})
        path = tiny.write_config(folder, config)
        ranks = [start_rank(hosts, "ab"[rank // 2], rank, path, 4) for rank in range(4)]
        outputs = [rank.communicate(timeout=120)[1] for rank in ranks]
        reason = "ranks 0 and 2 share a copy of the models and are on different hosts"
        if gather == "copy":
            assert all(rank.returncode in (tiny.RUNTIME_FAILURE, tiny.BAD_INPUT) for rank in ranks), outputs
            assert "parallel.gather: copy" in outputs[0] and reason in outputs[0], outputs[0]
        else:
            assert [rank.returncode for rank in ranks] == [0] * 4, "\n".join(outputs)
            assert (
                f"by Gloo's all-gathers: the ranks cannot read each other's memory: {reason}"
                in (folder / "run" / "log.txt").read_text()
            )


def test_a_host_that_is_cut_off_is_named_by_the_other(tmp_path, models, ragged_shard, hosts):
    config = config_of(tmp_path, models["llama"], ragged_shard, {"timeout_s": 5}, train={"steps": 100000})
    path = tiny.write_config(tmp_path, config)
    ranks = [start_rank(hosts, "ab"[rank // 2], rank, path, 4) for rank in range(4)]
    jobs.until(lambda: jobs.steps_done(tmp_path / "run") >= 2, ranks[0])
    ip("-n", hosts["a"], "link", "set", "cable", "down")
    began = time.monotonic()
    outputs = [rank.communicate(timeout=60)[1] for rank in ranks]
    assert time.monotonic() - began < 5 + 15
    assert all(rank.returncode == tiny.RUNTIME_FAILURE for rank in ranks), "\n".join(outputs)
    for rank in (0, 1):
        assert "cut off: rank 2 on host-b" in outputs[rank] and "rank 3 on host-b" in outputs[rank], outputs[rank]
    for rank in (2, 3):
        assert "rank 0, which serves the store" in outputs[rank], outputs[rank]


def test_a_host_that_cannot_reach_rank_0_says_so_in_time(tmp_path, models, ragged_shard, hosts):
    config = config_of(tmp_path, models["llama"], ragged_shard, {"timeout_s": 4})
    path = tiny.write_config(tmp_path, config)
    ip("-n", hosts["b"], "route", "add", "blackhole", f"{HOSTS['a']}/32")
    began = time.monotonic()
    ranks = [start_rank(hosts, "ab"[rank], rank, path, 2, LOCAL_WORLD_SIZE="1", LOCAL_RANK="0") for rank in range(2)]
    outputs = [rank.communicate(timeout=60)[1] for rank in ranks]
    assert time.monotonic() - began < 4 + 15
    assert all(rank.returncode == tiny.RUNTIME_FAILURE for rank in ranks), "\n".join(outputs)
    assert "had not arrived: 1" in outputs[0]
    assert f"cannot reach rank 0 at {HOSTS['a']}:29500" in outputs[1]
