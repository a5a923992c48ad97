"""The host queues a step and waits for nothing in it, and what a step needs of memory does not grow."""

import json

import pytest

import tiny

# What reads its operands on the CPU alone: on a GPU the kernel does.
ON_THE_DEVICE = ("aten::_assert_async", "aten::_fused_adamw_")
READS = ("aten::item", "cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize", "cudaMemcpy")


def reads_in_steps(trace):
    """How often the host read the device's memory or waited for it, one number for each step of a trace."""
    events = [event for event in json.loads(trace.read_text())["traceEvents"] if event.get("ph") == "X"]
    steps = [event for event in events if event["name"] == "distill::step" and event.get("cat") == "user_annotation"]
    counts = []
    for step in steps:
        inside = [
            event
            for event in events
            if event["tid"] == step["tid"] and step["ts"] <= event["ts"] < step["ts"] + step["dur"]
        ]
        device = [event for event in inside if event["name"] in ON_THE_DEVICE and tiny.DEVICE == "cpu"]
        counts.append(
            sum(
                event["name"] in READS
                and not any(outer["ts"] <= event["ts"] < outer["ts"] + outer["dur"] for outer in device)
                for event in inside
            )
        )
    return counts


@pytest.mark.parametrize("processes", [1, 2])
@pytest.mark.parametrize(
    "micro_batches, memory",
    [(1, {}), (3, {}), (1, {"activation": "offload", "optimizer": "host"}), (1, {"optimizer": "cpu,host"})],
)
def test_nothing_in_a_step_waits_for_the_device(tmp_path, models, ragged_shard, processes, micro_batches, memory):
    config = tiny.base_config(
        tmp_path,
        *models["llama"],
        ragged_shard,
        parallel={"processes": processes},
        memory=memory,
        train={"steps": 6, "micro_batch_size": 2, "global_batch_size": 2 * micro_batches * processes},
        profile={"trace_start": 3, "trace_steps": 2},
    )
    if processes > 1:
        config["parallel"]["debug_checks"] = True  # libtorch itself then refuses to wait
    run = tiny.train(tmp_path, config)
    # On the CPU the embedding's backward pass checks the range of a micro-batch's tokens: two numbers.
    expected = 2 * micro_batches if tiny.DEVICE == "cpu" else 0
    assert reads_in_steps(run / "trace-rank0.json") == [expected, expected]


@tiny.PAGES
@pytest.mark.parametrize("activation", ["keep", "recompute"])
def test_the_first_step_takes_as_much_memory_as_the_tenth(tmp_path, models, ragged_shard, activation):
    config = tiny.base_config(
        tmp_path, *models["qwen3"], ragged_shard, train={"steps": 12}, memory={"activation": activation}
    )
    peaks = [step["peak_memory_bytes"] for step in tiny.read_metrics(tiny.train(tmp_path, config))[0]]
    # The slack: on the CPU the peak counts all resident pages; on a GPU the allocator may give a larger block.
    assert peaks[9] <= peaks[0] * 1.02 + (1 << 20)


@tiny.PAGES
@pytest.mark.parametrize(
    "processes, memory",
    [(1, {}), (1, {"activation": "offload", "optimizer": "host"}), pytest.param(2, {}, marks=tiny.LONG)],
)
def test_two_thousand_steps_leak_nothing(tmp_path, models, ragged_shard, processes, memory):
    config = tiny.base_config(
        tmp_path,
        *models["llama"],
        ragged_shard,
        parallel={"processes": processes},
        memory=memory,
        train={"steps": 2000, "micro_batch_size": 1, "global_batch_size": processes},
        checkpoint={"at_end": False},
    )
    peaks = [step["peak_memory_bytes"] for step in tiny.read_metrics(tiny.train(tmp_path, config))[0]]
    assert peaks[1999] - peaks[199] <= 1 << 20  # a leak of 1 KiB a step would be 1.8 MiB
