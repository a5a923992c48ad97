"""scripts/benches/bench_trainer_peer.py on CPUs: losses against a plain fp64 loop, on one rank and on two; errors."""

import importlib.util
import json
import os
import subprocess
import sys
import types

import pytest
import torch

import bench_inputs
import bench_trainer_peer
from peers_trainer import delta_kernels, lora, models, steps

transformers = pytest.importorskip("transformers", reason="transformers (scripts/requirements.txt) is not installed")

STEPS, BATCH = 3, 4
# Two ranks have different shares of an odd vocabulary.
SIZES = ["--vocab=1001", "--sequence=16", f"--steps={STEPS}"]
PAIRS = {
    "llama": ("tiny", "tiny"),
    "gemma3": ("gemma3-tiny",) * 2,
    "experts": ("ministral3-tiny", "qwen3-tiny-moe"),
    "delta": ("qwen3.5-tiny",) * 2,
}
ON_CPU = ["--device=cpu", "--head=plain", "--no-compile", "--dtype=float32"]


def shapes(pair):
    return [f"--{model}={shape}" for model, shape in zip(("student", "teacher"), PAIRS[pair])]


def run(pair, out, ranks):
    """Trains on one rank without torchrun or on several with it; returns (report of --json, printed lines)."""
    torchrun = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"] if ranks > 1 else []
    options = [*SIZES, *shapes(pair), *ON_CPU, f"--batch={BATCH // ranks}", f"--json={out}"]
    command = [sys.executable, *torchrun, bench_trainer_peer.__file__, *options]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(out.read_text()), done.stdout.splitlines()


@pytest.fixture(scope="module", params=PAIRS)
def pair(request):
    return request.param


@pytest.fixture(scope="module")
def one_rank(tmp_path_factory, pair):
    return run(pair, tmp_path_factory.mktemp("one") / "new" / "peer.json", 1)


def test_a_student_with_adapters_begins_as_its_teacher_and_trains_them_alone(tmp_path):
    pytest.importorskip("peft", reason="peft (scripts/requirements.txt) is not installed")
    options = bench_trainer_peer.parse_arguments(
        [*SIZES, "--student=tiny", "--teacher=tiny", "--lora=3", "--head=plain", "--no-compile", "--dtype=float32"]
    )
    student = lora.adapted_student(options, torch.device("cpu"))
    teacher = lora.OwnBase(student)
    tokens = steps.random_tokens(options, 0, rank=0, world=1)
    names = {name for name, parameter in student.named_parameters() if parameter.requires_grad}
    assert names and all("lora_" in name for name in names)
    optimizer = torch.optim.AdamW([p for p in student.parameters() if p.requires_grad], lr=1e-3)
    assert abs(steps.train_step(student, teacher, optimizer, tokens).item()) < 1e-7  # B is zero
    before = teacher(tokens)[0]
    with torch.no_grad():
        for name, parameter in student.named_parameters():
            if "lora_B" in name:
                parameter.normal_(0, 0.3)
    assert torch.equal(teacher(tokens)[0], before)
    first = steps.train_step(student, teacher, optimizer, tokens).item()
    assert first > 1e-5
    for _ in range(5):
        last = steps.train_step(student, teacher, optimizer, tokens).item()
    assert last < first
    done = subprocess.run(
        [sys.executable, bench_trainer_peer.__file__, *SIZES, *ON_CPU, "--student=tiny", "--teacher=tiny", "--lora=3"],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0 and "with LoRA of rank 3" in done.stdout, done.stderr


def losses(report):
    return [step["loss"] for step in report["steps"]]


def exact_jsd(student_logits, teacher_logits):
    """Mean over rows of KL(p || m) / 2 + KL(q || m) / 2 with m = (p + q) / 2."""
    q, p = student_logits.softmax(-1), teacher_logits.softmax(-1)
    m = (p + q) / 2
    return sum((one * (one / m).log()).sum(-1) / 2 for one in (p, q)).mean()


def fp64_model(shape, vocab, seed):
    """A transformers model with the script's weights for this seed, which are drawn in fp32."""
    keys = bench_inputs.config(shape, vocab)
    model_class = getattr(transformers, keys["architectures"][0])
    config = model_class.config_class(**keys)
    config._experts_implementation = "eager"
    model = model_class(config)
    models.set_random_weights(model, seed)
    return model.double()


def test_losses_are_those_of_a_plain_fp64_loop(one_rank, pair):
    options = bench_trainer_peer.parse_arguments([*SIZES, f"--batch={BATCH}"])
    seeds = models.STUDENT_SEED, models.TEACHER_SEED
    student, teacher = (fp64_model(shape, options.vocab, seed) for shape, seed in zip(PAIRS[pair], seeds))
    optimizer = torch.optim.AdamW(student.parameters(), lr=1e-5)
    expected = []
    for step in range(STEPS):
        tokens = steps.random_tokens(options, step, rank=0, world=1)
        with torch.no_grad():
            teacher_logits = teacher(tokens).logits
        loss = exact_jsd(student(tokens).logits, teacher_logits)
        expected.append(loss.item())
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(student.parameters(), 1.0)
        optimizer.step()
    assert min(expected) > 0.01
    assert losses(one_rank[0]) == pytest.approx(expected, rel=1e-4)


def test_two_ranks_have_the_losses_of_one(one_rank, pair, tmp_path):
    two_ranks, lines = run(pair, tmp_path / "peer.json", 2)
    assert two_ranks["ranks"] == 2
    assert losses(two_ranks) == pytest.approx(losses(one_rank[0]), rel=1e-5)
    assert len([line for line in lines if line.startswith("step ")]) == STEPS  # of the first rank alone


def test_every_rank_and_step_has_its_own_sequences():
    options = bench_trainer_peer.parse_arguments([*SIZES, "--batch=2"])
    drawn = [steps.random_tokens(options, step, rank, world=2) for step in range(3) for rank in range(2)]
    assert len(torch.cat(drawn).unique(dim=0)) == 3 * 2 * 2


def test_output_is_a_line_for_each_step_and_the_summary(one_rank, pair):
    report, lines = one_rank
    assert [line.split(":")[0] for line in lines[1:]] == [f"step {i + 1}" for i in range(STEPS)] + [
        "median of the last 2 steps"
    ]
    step = report["steps"][1]
    assert step["tokens_per_second_per_gpu"] == pytest.approx(BATCH * 16 / step["seconds"])
    assert report["summary"] == pytest.approx(steps.summary_of(report["steps"], BATCH * 16))
    assert report["arguments"]["student"] == PAIRS[pair][0] and set(report["versions"]) >= {"torch", "transformers"}


def test_summary_is_the_median_and_the_peak_of_the_last_half():
    measured = zip([90, 80, 9, 2, 3], [9, 8, 1, 2, 1])
    found = steps.summary_of([{"seconds": s, "allocated_gib": g, "reserved_gib": 2 * g} for s, g in measured], 12)
    assert found == {"seconds": 3, "tokens_per_second_per_gpu": 4, "allocated_gib": 2, "reserved_gib": 4}


@pytest.mark.parametrize("head", ["plain", "liger-chunked"])
def test_head_has_the_exact_loss_and_gradients(head):
    if head == "liger-chunked":
        pytest.importorskip("liger_kernel", reason="liger-kernel (scripts/requirements.txt) is not installed")
    options = bench_trainer_peer.parse_arguments(["--device=cpu", f"--head={head}", "--no-compile", "--chunk=16"])
    torch.manual_seed(0)
    hidden, weight, teacher_hidden, teacher_weight = (
        torch.randn(size) for size in [(40, 8), (99, 8), (40, 12), (99, 12)]
    )
    mine = models.LossHead(8, 99, models.loss_of(options))
    mine.weight.data.copy_(weight)
    exact = weight.double().requires_grad_()
    inputs = hidden.clone().requires_grad_(), hidden.double().requires_grad_()
    loss = mine(inputs[0], teacher_hidden, teacher_weight, torch.zeros(40, dtype=torch.int64))
    expected = exact_jsd(inputs[1] @ exact.t(), (teacher_hidden.double() @ teacher_weight.double().t()))
    loss.backward()
    expected.backward()
    for found, wanted in [(loss, expected), (inputs[0].grad, inputs[1].grad), (mine.weight.grad, exact.grad)]:
        assert (found.double() - wanted).norm() < 1e-5 * wanted.norm()


@pytest.mark.parametrize(
    "options, message",
    [
        ("--student=2b", "argument --student: invalid choice: '2b' (choose from 'tiny', '1b', '3b', '8b', '70b'"),
        (
            "--head=liger",
            "argument --head: invalid choice: 'liger' (choose from 'liger-chunked', 'liger-fused', 'plain')",
        ),
        ("--steps=0", "argument --steps: expected an integer of at least 1, found '0'"),
        ("--sequence=4k", "argument --sequence: expected an integer of at least 1, found '4k'"),
        ("--student-float8=e4m3", "argument --student-float8: invalid choice: 'e4m3'"),
        (
            "--device=cpu --head=liger-fused",
            "--head: expected plain or liger-chunked with --device cpu, found liger-fused",
        ),
        ("--device=cpu --teacher-float8=rowwise", "--teacher-float8: expected none with --device cpu, found rowwise"),
        ("--shard-teacher", "--shard-teacher: expected --teacher-float8 beside it"),
        ("--json=/", "--json: expected a file, found the folder /"),
    ],
)
def test_bad_options_are_refused(options, message, capsys):
    with pytest.raises(SystemExit) as end:
        bench_trainer_peer.parse_arguments(options.split())
    assert end.value.code == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    "options, module, message",
    [
        (
            "",
            "transformers",
            "transformers for the models, found none; install it with: .* -m pip install transformers",
        ),
        ("", "liger_kernel", "liger_kernel for --head liger-chunked, found none; .* -m pip install liger-kernel"),
        ("--head=plain", "liger_kernel", None),
        ("--teacher-float8=rowwise", "torchao", "torchao for float8, found none; .* -m pip install torchao"),
        ("", "torchao", None),
    ],
)
def test_a_missing_package_is_named_where_it_is_needed(options, module, message, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == module else "found")
    parsed = bench_trainer_peer.parse_arguments(options.split())
    if message is None:
        return bench_trainer_peer.require_packages(parsed)
    with pytest.raises(SystemExit, match=f"expected the package {message}"):
        bench_trainer_peer.require_packages(parsed)


def delta_options(*more):
    return bench_trainer_peer.parse_arguments(["--student=1b", "--teacher=qwen3.5-tiny", *more])


def test_the_code_of_a_delta_rule_is_named_and_a_silent_reference_refused(monkeypatch):
    reference = "transformers.models.qwen3_5.modeling_qwen3_5"
    found = {"torch_chunk_gated_delta_rule": "fla.ops.gated_delta_rule.chunk", "causal_conv1d_fn": reference}
    monkeypatch.setattr(bench_trainer_peer, "delta_functions", lambda shape: found)
    message = "of qwen3.5-tiny: causal_conv1d_fn is transformers' reference in PyTorch, since causal-conv1d cannot be"
    with pytest.raises(SystemExit, match=message):
        bench_trainer_peer.require_kernels(delta_options())
    assert bench_trainer_peer.require_kernels(delta_options("--torch-delta-rule")) == found
    assert bench_trainer_peer.require_kernels(delta_options("--device=cpu")) == found
    found["causal_conv1d_fn"] = "causal_conv1d.causal_conv1d_interface"
    assert bench_trainer_peer.require_kernels(delta_options()) == found
    assert bench_trainer_peer.require_kernels(bench_trainer_peer.parse_arguments([])) == {}


def test_transformers_says_which_code_it_runs():
    for name, module in delta_kernels.delta_functions("qwen3.5-tiny").items():
        package = delta_kernels.KERNELS[name][0].partition(".")[0]
        installed = importlib.util.find_spec(package) is not None
        assert module.startswith(package if installed else "transformers."), (name, module)
    with pytest.raises(RuntimeError, match="expected a wrapper with the variable `implementation`"):
        delta_kernels.implementation(delta_kernels.has_delta_rule)


def test_compiled_blocks_call_the_kernels_of_a_delta_rule(monkeypatch):
    traced = []

    def kernel(x):
        traced.append(torch.compiler.is_compiling() or torch.compiler.is_exporting())
        return x + 1

    def wrapper(implementation):  # as transformers' own: a reference in place of the kernel while it exports
        return lambda x: x if torch.compiler.is_exporting() else implementation(x)

    module = types.ModuleType("models_with_kernels")
    model = type("Model", (), {"__module__": module.__name__})
    monkeypatch.setitem(sys.modules, module.__name__, module)
    for name in delta_kernels.KERNELS:
        setattr(module, name, wrapper(kernel))
    delta_kernels.leave_kernels_uncompiled(model())

    @torch.compile(backend="eager")
    def block(x):
        for name in delta_kernels.KERNELS:
            x = getattr(module, name)(2 * x)
        return x

    assert block(torch.ones(1)).item() == 7
    assert traced == [False, False]


def test_a_missing_gpu_is_an_error(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setenv("LOCAL_RANK", "1")
    with pytest.raises(SystemExit, match="--device cuda: expected GPU 1 for this rank, found 1 GPUs"):
        bench_trainer_peer.join_ranks("cuda")
