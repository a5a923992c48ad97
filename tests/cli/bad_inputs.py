"""The table of bad inputs. Each row changes a job that works, or the arguments, and says what the error must name."""

import hashlib
import json
import shutil
import struct
from dataclasses import dataclass, field

import tiny_job


@dataclass
class Row:
    name: str
    says: list  # each must stand in standard error
    change: object = None  # called with the job's folder
    args: list = field(default_factory=lambda: ["--config", "config.yaml", "--dry-run"])
    code: int = 2


def dry_run(*overrides):
    return ["--config", "config.yaml", "--dry-run", *[part for text in overrides for part in ("--set", text)]]


def config_text(text):
    return lambda job: (job / "config.yaml").write_text(text)


def replaced(old, new):
    def change(job):
        text = (job / "config.yaml").read_text()
        assert old in text, old
        (job / "config.yaml").write_text(text.replace(old, new))

    return change


def removed(path):
    def change(job):
        target = job / path
        shutil.rmtree(target) if target.is_dir() else target.unlink()

    return change


# The layout by hand keeps a row of these tables on few lines.
# fmt: off
COMMAND_LINE = [
    Row("nothing", ["--config is required"], args=[]),
    Row("unknown flag", ["--confg", "did you mean --config?"], args=["--confg", "config.yaml"]),
    Row("unknown command", ["trian", "did you mean `distill train`?"], args=["trian", "--config", "config.yaml"]),
    Row("misspelt command", ["evl", "did you mean `distill eval`?"], args=["evl"]),
    Row("command of other tools", ["validate", "did you mean `distill eval`?"], args=["validate", "x"]),
    Row("command like no other", ["zzz", "the commands are train, capture, eval, inspect"], args=["zzz"]),
    Row("misspelt option", ["--reusme", "did you mean --resume?"], args=["--config", "config.yaml", "--reusme"]),
    Row("misspelt option of a command", ["--rank: `distill plan` has no such option", "did you mean --ranks?",
        "distill plan --help"], args=["plan", "--config", "config.yaml", "--rank", "4"]),
    Row("misspelt option with a value", ["did you mean --ranks?"],
        args=["plan", "--config", "config.yaml", "--rank=4"]),
    Row("one dash", ["-config", "did you mean --config?"], args=["-config", "config.yaml"]),
    Row("misspelt required option", ["--chekpoint", "did you mean --checkpoint?"],
        args=["export", "--chekpoint", "run", "--out", "x"]),
    Row("option of another command", ["--ranks", "it is an option of `distill plan`"],
        args=["--config", "config.yaml", "--ranks", "4"]),
    Row("a configuration without its option", ["did you mean --config config.yaml?"], args=["config.yaml"]),
    Row("an override without its option", ["did you mean --set train.steps=3?"],
        args=["train", "train.steps=3", "--config", "config.yaml"]),
    Row("config without a value", ["--config"], args=["--config"]),
    Row("set without a value", ["--set"], args=["--config", "config.yaml", "--set"]),
    Row("set with a value that is none", ["--set", "expected section.key=VALUE", "\"config2.yaml\""],
        args=["--config", "config.yaml", "--set", "loss.beta=0.1", "config2.yaml"]),
    Row("set with a key alone", ["--set", "write --set loss.beta=VALUE"],
        args=["--config", "config.yaml", "--set", "train.steps=3", "loss.beta"]),
    Row("set with two values of which one is wrong", ["loss.beta", "a number from 0 to 1"],
        args=["--config", "config.yaml", "--set", "train.steps=3", "loss.beta=7"]),
    Row("resume and overwrite", ["--resume", "--overwrite"],
        args=["--config", "config.yaml", "--resume", "--overwrite"]),
    Row("eval without a config", ["eval: --config, or --student and --data, is required"], args=["eval"]),
    Row("eval of a student without data", ["--student and --data, is required"], args=["eval", "--student", "student"]),
    Row("eval of a student that is not there", ["--student: student.path", "nothing at gone"],
        args=["eval", "--student", "gone", "--data", "eval.dtok"]),
    Row("eval of a text", ["--data: data.eval", "scripts/tokenize.py --tokenizer student --output corpus corpus.txt"],
        lambda job: (job / "corpus.txt").write_text("once"),
        args=["eval", "--student", "student", "--data", "corpus.txt"]),
    Row("student on the hub", ["hf download meta-llama/Llama-3.2-1B --local-dir models/Llama-3.2-1B"],
        args=dry_run("student.path=meta-llama/Llama-3.2-1B")),
    Row("steps and epochs", ["exactly one of", "steps: 2 and epochs: 1"], args=dry_run("train.epochs=1")),
    Row("warm-up longer than the epochs", ["scheduler.warmup_steps", "fewer than the run's 4 steps", "found 4"],
        args=dry_run("train.steps=null", "train.epochs=1", "scheduler.warmup_steps=4")),
    Row("negative epochs", ["train.epochs", "a number from 0"], args=dry_run("train.steps=null", "train.epochs=-1")),
    Row("eval with a flag of train", ["--resume"], args=["eval", "--config", "config.yaml", "--resume"]),
    Row("options before the command", ["after the command"], args=["--config", "config.yaml", "eval"]),
    Row("inspect without a path", ["PATH"], args=["inspect"]),
    Row("inspect nothing", ["gone: no such file"], args=["inspect", "gone"]),
    Row("inspect a folder of nothing", ["empty", "found none of these"], lambda job: (job / "empty").mkdir(),
        args=["inspect", "empty"]),
    Row("inspect a text", ["config.yaml", "not a token shard"], args=["inspect", "config.yaml"]),
    Row("config is missing", ["gone.yaml", "no such file"], args=["--config", "gone.yaml"]),
    Row("config is a folder", ["student", "found a folder"], args=["--config", "student"]),
    Row("config is a model", ["model.safetensors", "a binary file"],
        args=["--config", "student/model.safetensors"]),
]

CONFIG_FILES = [
    Row("empty file", ["config.yaml", "an empty file"], config_text("")),
    Row("list", ["config.yaml:1", "found a list"], config_text("- a\n- b\n")),
    Row("bad YAML", ["config.yaml:3", "does not parse"], config_text("loss:\n  beta: 0.5\n bad: 1\n")),
    Row("tab", ["config.yaml:2", "found a tab"], config_text("loss:\n\tbeta: 0.5\n")),
    Row("two documents", ["config.yaml:2", "a second YAML document"],
        config_text("run: {dir: a}\n---\nrun: {dir: b}\n")),
    Row("unknown section", ["config.yaml:9", "lss", "did you mean loss?"], replaced("loss:", "lss:")),
    Row("unknown key", ["config.yaml:11", "loss.betta", "did you mean loss.beta?"], replaced("beta:", "betta:")),
    Row("key of another section", ["loss.lr", "did you mean optimizer.lr?"], replaced("  beta: 0.5", "  lr: 0.5")),
    Row("duplicate key", ["config.yaml:12", "loss.beta", "first is on line 11"],
        replaced("  beta: 0.5\n", "  beta: 0.5\n  beta: 0.6\n")),
    Row("duplicate section", ["config.yaml:3", "student", "first is on line 1"],
        replaced("teacher:", "student:")),
    Row("section is a list", ["config.yaml:9", "loss", "a mapping of keys, found a list"],
        replaced("loss:\n  divergence: jsd\n  beta: 0.5\n", "loss: [1]\n")),
    Row("text for a number", ["config.yaml:11", "loss.beta", "a number from 0 to 1", "\"half\""],
        replaced("beta: 0.5", "beta: half")),
    Row("fraction for an integer", ["config.yaml:13", "train.steps", "a fraction"],
        replaced("steps: 2\n", "steps: 2.5\n")),
    Row("quoted number", ["loss.beta", "without them"], replaced("beta: 0.5", "beta: '0.5'")),
    Row("null", ["train.steps", "found nothing"], replaced("steps: 2\n", "steps:\n")),
    Row("out of range", ["loss.beta", "a number from 0 to 1, found 1.5"], replaced("beta: 0.5", "beta: 1.5")),
    Row("not a number", ["optimizer.lr", "not a finite number"], replaced("lr: 1.0e-3", "lr: .nan")),
    Row("infinite", ["optimizer.lr", "not a finite number"], replaced("lr: 1.0e-3", "lr: .inf")),
    Row("overflow", ["train.steps", "beyond 64 bits"], replaced("steps: 2\n", "steps: 1e30\n")),
    Row("unknown choice", ["loss.divergence", "one of none, jsd", "did you mean forward_kl?"],
        replaced("divergence: jsd", "divergence: forward-kl")),
    Row("many at once", ["3 problems", "loss.beta", "train.steps", "optimizer.lr"],
        lambda job: [replaced(*change)(job) for change in
                     (("beta: 0.5", "beta: 2"), ("steps: 2\n", "steps: -2\n"), ("lr: 1.0e-3", "lr: fast"))]),
    Row("no steps", ["train.steps", "exactly one of train.steps, train.tokens and train.epochs"],
        replaced("  steps: 2\n", "")),
    Row("no student", ["student.path"], replaced("student:\n  path: student\n", "")),
]

OVERRIDES = [
    Row("no equals sign", ["--set", "section.key=VALUE", "loss.beta"], args=dry_run("loss.beta")),
    Row("misspelt key", ["--set: loss.betta", "did you mean loss.beta?"], args=dry_run("loss.betta=1")),
    Row("no section", ["--set: lr", "did you mean optimizer.lr?"], args=dry_run("lr=1e-4")),
    Row("whole section", ["--set: loss", "a whole section"], args=dry_run("loss={beta: 0.5}")),
    Row("bad value", ["--set: loss.beta", "found 3"], args=dry_run("loss.beta=3")),
    Row("empty value", ["--set: loss.beta", "found nothing"], args=dry_run("loss.beta=")),
    Row("value is bad YAML", ["--set: data.train", "does not parse"], args=dry_run("data.train=[a")),
    Row("steps and tokens", ["--set: train.steps", "exactly one", "tokens: 100"],
        args=dry_run("train.tokens=100", "train.steps=3")),
    Row("global batch not a multiple", ["--set: train.global_batch_size", "a multiple of train.micro_batch_size, 2"],
        args=dry_run("train.global_batch_size=5")),
    Row("divergence without a teacher", ["teacher.path", "a teacher for the divergence"],
        args=dry_run("teacher.path=null")),
    Row("no loss at all", ["loss.hard_weight", "not zero"], args=dry_run("loss.soft_weight=0")),
    Row("key without effect", ["loss.beta", "only when loss.divergence is jsd"],
        args=dry_run("loss.divergence=forward_kl")),
    Row("warm-up longer than the run", ["scheduler.warmup_steps", "fewer than the run's 2 steps"],
        args=dry_run("scheduler.warmup_steps=2")),
    Row("evaluation without data", ["data.eval", "held-out"], args=dry_run("eval.every=1", "data.eval=null")),
    Row("eval command without data", ["data.eval", "held-out"],
        args=["eval", "--config", "config.yaml", "--set", "data.eval=null"]),
    Row("sequences longer than the model", ["max_position_embeddings", "1024"], args=dry_run("data.seq_len=1024")),
    Row("more replicas than ranks", ["--set: parallel.replicate", "a divisor of parallel.processes, 2", "found 3"],
        args=dry_run("parallel.processes=2", "parallel.replicate=3")),
    Row("shards that are not the ranks", ["--set: parallel.shard", "parallel.processes, 2", "found 3"],
        args=dry_run("parallel.processes=2", "parallel.shard=3")),
    Row("global batch that the ranks cannot share", ["train.global_batch_size", "a multiple of 6, 3 ranks", "found 4"],
        args=dry_run("parallel.processes=3")),
    Row("mesh larger than the global batch", ["train.global_batch_size", "a multiple of 32, 16 ranks"],
        args=dry_run("parallel.shard=8", "parallel.replicate=2")),
    Row("shards beyond any machine", ["parallel.shard", "found 4611686018427387904"],
        args=dry_run("parallel.shard=4611686018427387904", "parallel.replicate=4")),
    Row("unknown reduce dtype", ["parallel.reduce_dtype", "one of float32, bfloat16"],
        args=dry_run("parallel.reduce_dtype=fp8")),
    Row("prefetch of nothing", ["parallel.prefetch", "from 1 to 16, found 0"], args=dry_run("parallel.prefetch=0")),
    Row("fewer slots than prefetched blocks", ["parallel.slots", "at least 3", "found 2"],
        args=dry_run("parallel.prefetch=2", "parallel.slots=2")),
    Row("tiles of no number", ["memory.tile_tokens", "auto, or an integer from 0"],
        args=dry_run("memory.tile_tokens=all")),
    Row("slots of no number", ["parallel.slots", "auto, or an integer from 0"], args=dry_run("parallel.slots=many")),
    Row("unknown way to gather", ["parallel.gather", "one of auto, copy, nccl"], args=dry_run("parallel.gather=ring")),
    Row("timeout of nothing", ["parallel.timeout_s", "found 0"], args=dry_run("parallel.timeout_s=0")),
    Row("memory cap too small for one token", ["memory_cap_mb"],
        lambda job: [[tiny_job.write_model(job / name, {**tiny_job.MODEL, "vocab_size": 400_000, "hidden_size": 4,
                                                    "intermediate_size": 4, "head_dim": 2}),
                      (job / name / "tokenizer.json").unlink()] # its tokens alone would fit
                     for name in ("student", "teacher")],
        args=dry_run("loss.memory_cap_mb=1")),
]

ENGINE = "onpolicy.command=run {prompts} {output}"


def on_policy(*overrides):
    return dry_run("onpolicy.prompts=train", ENGINE, "data.train=null", "onpolicy.max_new_tokens=4", *overrides)


ON_POLICY = [
    Row("on-policy without a command", ["onpolicy.command", "the command that writes", "found none"],
        args=dry_run("onpolicy.prompts=train", "data.train=null", "onpolicy.max_new_tokens=4")),
    Row("on-policy without a teacher", ["teacher.source", "a teacher that runs"],
        replaced("teacher:\n  path: teacher\n", ""), args=on_policy()),
    Row("on-policy from a cache", ["teacher.source", "a teacher that runs", "a cache, which has other texts"],
        args=on_policy("teacher.source=cache", "teacher.cache=teacher")),
    Row("unknown placeholder", ["onpolicy.command", "{model}, {prompts}, {output}", "found {promts}"],
        args=on_policy("onpolicy.command=run {promts} {output}")),
    Row("command without output", ["onpolicy.command", "a command with {prompts} and {output}"],
        args=on_policy("onpolicy.command=run {prompts}")),
    Row("server with the requests", ["onpolicy.server", "no placeholder but {model}", "found {prompts}"],
        args=on_policy("onpolicy.server=serve {model} {prompts}")),
    Row("cross-entropy on own words", ["onpolicy_loss.hard_weight", "what it says already", "found 0.5"],
        args=on_policy("onpolicy_loss.hard_weight=0.5")),
    Row("no divergence on own words", ["onpolicy_loss.divergence", "a divergence from the teacher", "found none"],
        args=on_policy("onpolicy_loss.divergence=none")),
    Row("completions as long as a sequence", ["onpolicy.max_new_tokens", "fewer than data.seq_len, 16", "found 16"],
        args=on_policy("onpolicy.max_new_tokens=16")),
    Row("on-policy epochs", ["train.epochs", "train.steps or train.tokens"],
        args=on_policy("train.steps=0", "train.epochs=1")),
    Row("training data beside on-policy alone", ["onpolicy.fraction", "below 1 where there is data.train"],
        args=on_policy("data.train=train")),
    Row("half a micro-batch on-policy", ["onpolicy.fraction", "a multiple of micro_batch_size, 2", "0.25, 1 sequences"],
        args=on_policy("data.train=train", "onpolicy.fraction=0.25")),
    Row("a mixture without training data", ["data.train", "token shards to train on"],
        args=on_policy("onpolicy.fraction=0.5")),
    Row("samples that do not divide", ["onpolicy.samples", "a divisor of the round's 64 completions", "found 3"],
        args=on_policy("onpolicy.samples=3")),
    Row("too few completions", ["onpolicy.completions", "at least one for each", "64", "found 8"],
        args=on_policy("onpolicy.completions=8")),
    Row("on-policy keys without prompts", ["onpolicy.every", "only when onpolicy.prompts is given"],
        args=dry_run("onpolicy.every=4")),
    Row("no room for a prompt", ["onpolicy.prompts", "a prompt of at most 1 tokens", "found none"],
        lambda job: tiny_job.write_shard(job / "train" / "shard-00000.dtok", masked=True),
        args=on_policy("onpolicy.max_new_tokens=15")),
    Row("prompts of another tokenizer", ["onpolicy.prompts", "shards of the student's tokenizer"],
        lambda job: tiny_job.write_shard(job / "other.dtok", tokenizer_json=tiny_job.tokenizer(70)),
        args=on_policy("onpolicy.prompts=other.dtok")),
    Row("prompts are missing", ["onpolicy.prompts", "nothing at gone"], args=on_policy("onpolicy.prompts=gone")),
]

PATHS = [
    Row("student is missing", ["config.yaml:2", "student.path", "nothing at student"], removed("student")),
    Row("student is a file", ["student.path", "found the file"], args=dry_run("student.path=eval.dtok")),
    Row("teacher without config.json", ["teacher.path", "config.json", "none in teacher"],
        removed("teacher/config.json")),
    Row("teacher without weights", ["teacher.path", "model.safetensors"], removed("teacher/model.safetensors")),
    Row("home folder", ["student.path", "~ is not expanded"], args=dry_run("student.path=~/student")),
    Row("tokenizer is missing", ["student.tokenizer", "nothing at gone"], args=dry_run("student.tokenizer=gone")),
    Row("data is missing", ["data.train[1]", "nothing at gone.dtok"], args=dry_run("data.train=[train, gone.dtok]")),
    Row("data folder without shards", ["data.train", "no *.dtok in teacher"], args=dry_run("data.train=teacher")),
    Row("run folder is a file", ["run.dir", "found the file"], args=dry_run("run.dir=eval.dtok")),
]


def old_run(job):
    (job / "run").mkdir()
    (job / "run" / "metrics.jsonl").write_text("{}\n")


def foreign_folder(job):
    old_run(job)
    (job / "run" / "thesis.tex").write_text("years of work")


TRAIN = ["--config", "config.yaml"]
RUN_FOLDERS = [
    Row("the run exists", ["run", "--resume", "--overwrite"], old_run, args=TRAIN),
    Row("resume nothing", ["--resume", "does not exist"], args=[*TRAIN, "--resume"]),
    Row("resume an empty folder", ["--resume", "empty"], lambda job: (job / "run").mkdir(), args=[*TRAIN, "--resume"]),
    Row("resume without a checkpoint", ["--resume", "checkpoint"], old_run, args=[*TRAIN, "--resume"]),
    Row("overwrite somebody's files", ["--overwrite", "thesis.tex"], foreign_folder, args=[*TRAIN, "--overwrite"]),
]


def model_config(path="student", drop=None, **values):
    """config.json with other values; weights as they were."""
    def change(job):
        file = job / path / "config.json"
        config = {**json.loads(file.read_text()), **values}
        config.pop(drop, None)
        tiny_job.write_json(file, config)
    return change


def text_file(path, text):
    return lambda job: (job / path).write_text(text)


MODEL_FOLDERS = [
    Row("config.json is no JSON", ["student/config.json"], text_file("student/config.json", "{")),
    Row("config.json is a list", ["student/config.json"], text_file("student/config.json", "[]")),
    Row("duplicate key in config.json", ["student/config.json", "hidden_size"],
        text_file("student/config.json", json.dumps(tiny_job.MODEL)[:-1] + ', "hidden_size": 8}')),
    Row("config.json of deep nesting", ["student/config.json"], text_file("student/config.json", "[" * 100_000)),
    Row("unsupported family", ["student/config.json", "model_type", "mamba"], model_config(model_type="mamba")),
    Row("no hidden_size", ["hidden_size"], model_config(drop="hidden_size")),
    Row("hidden_size is text", ["hidden_size"], model_config(hidden_size="16")),
    Row("hidden_size is negative", ["hidden_size"], model_config(hidden_size=-16)),
    Row("hidden_size is huge", ["hidden_size"], model_config(hidden_size=2**62)),
    Row("heads not a multiple of kv heads", ["num_key_value_heads"],
        model_config(num_attention_heads=3, num_key_value_heads=2)),
    Row("odd head_dim", ["head_dim"], model_config(head_dim=7)),
    Row("unsupported activation", ["hidden_act", "gelu"], model_config(hidden_act="gelu")),
    Row("unsupported rope", ["rope", "spiral"], model_config(rope_scaling={"rope_type": "spiral", "factor": 4.0})),
    Row("quantised model", ["quantization_config"], model_config(quantization_config={"quant_method": "gptq"})),
    Row("mlp bias", ["mlp_bias"], model_config(mlp_bias=True)),
    Row("negative epsilon", ["rms_norm_eps"], model_config(rms_norm_eps=-1.0)),
    Row("weights of another width", ["student", "model.layers.0.mlp.up_proj.weight", "[48, 16]", "[32, 16]"],
        model_config(intermediate_size=48)),
    Row("more layers than weights", ["model.layers.1"], model_config(num_hidden_layers=2)),
]


def weights(edit, path="student/model.safetensors"):
    """The file with its header or data changed: edit(header, data) -> (header, data)."""
    def change(job):
        content = (job / path).read_bytes()
        length = struct.unpack("<Q", content[:8])[0]
        header, data = json.loads(content[8:8 + length]), content[8 + length:]
        tiny_job.write_safetensors(job / path, *edit(header, data))
    return change


def tensor(**values):
    """One tensor's header entry with other values."""
    def edit(header, data):
        header["lm_head.weight"].update(values)
        return header, data
    return weights(edit)


def without_tensor(header, data):
    entry = header.pop("model.norm.weight")
    begin, end = entry["data_offsets"]
    for name, other in header.items():
        if name != "__metadata__" and other["data_offsets"][0] >= end:
            other["data_offsets"] = [at - (end - begin) for at in other["data_offsets"]]
    return header, data[:begin] + data[end:]


def extra_tensor(header, data):
    header["model.layers.0.mystery.weight"] = {"dtype": "F32", "shape": [2], "data_offsets": [len(data), len(data) + 8]}
    return header, data + bytes(8)


def overlapping(header, data):
    header["model.layers.0.twin.weight"] = header["lm_head.weight"]
    return header, data


def raw_weights(content):
    return lambda job: (job / "student/model.safetensors").write_bytes(content)


def cut_weights(size):
    def change(job):
        file = job / "student/model.safetensors"
        file.write_bytes(file.read_bytes()[:size])
    return change


def index_to(file_name):
    def change(job):
        (job / "student/model.safetensors").unlink()
        tiny_job.write_json(job / "student/model.safetensors.index.json",
                        {"metadata": {}, "weight_map": {"lm_head.weight": file_name}})
    return change


FILE = "student/model.safetensors"
SAFETENSORS = [
    Row("missing tensor", [FILE.split("/")[0], "model.norm.weight"], weights(without_tensor)),
    Row("unexpected tensor", ["model.layers.0.mystery.weight"], weights(extra_tensor)),
    Row("empty weights", [FILE], raw_weights(b"")),
    Row("seven bytes", [FILE], raw_weights(b"1234567")),
    Row("header length of 2^63", [FILE], raw_weights(struct.pack("<Q", 2**63) + b"{}")),
    Row("header longer than the file", [FILE], raw_weights(struct.pack("<Q", 1000) + b"{}")),
    Row("header is no JSON", [FILE], raw_weights(struct.pack("<Q", 4) + b"{{{{")),
    Row("header is a list", [FILE], raw_weights(struct.pack("<Q", 2) + b"[]")),
    Row("data cut short", [FILE, "data_offsets", "truncated"], cut_weights(-4)),
    Row("bytes after the data", [FILE], weights(lambda header, data: (header, data + b"tail"))),
    Row("overlapping tensors", [FILE, "tensor"], weights(overlapping)),
    Row("offsets backwards", [FILE, "lm_head.weight", "data_offsets"], tensor(data_offsets=[64, 0])),
    Row("offsets beyond the file", [FILE, "lm_head.weight", "data_offsets"], tensor(data_offsets=[0, 2**60])),
    Row("three offsets", [FILE, "lm_head.weight", "data_offsets"], tensor(data_offsets=[0, 1, 2])),
    Row("unknown dtype", [FILE, "lm_head.weight", "F3"], tensor(dtype="F3")),
    Row("dtype of integers", ["lm_head.weight", "I32"], tensor(dtype="I32")),
    Row("shape against offsets", [FILE, "lm_head.weight", "shape"], tensor(shape=[64, 17])),
    Row("negative shape", [FILE, "lm_head.weight", "shape"], tensor(shape=[-64, 16])),
    Row("shape that overflows", [FILE, "lm_head.weight", "shape"], tensor(shape=[2**40, 2**40])),
    Row("transposed", ["lm_head.weight", "shape"], tensor(shape=[16, 64])),
    Row("index names a missing file", ["gone.safetensors"], index_to("gone.safetensors")),
    Row("index leaves the folder", ["student/model.safetensors.index.json"], index_to("../teacher/model.safetensors")),
]


def shard(edit, path="train/shard-00000.dtok"):
    """The shard with its bytes changed: edit(bytearray)."""
    def change(job):
        content = bytearray((job / path).read_bytes())
        edited = edit(content)
        (job / path).write_bytes(bytes(content if edited is None else edited))
    return change


def header_field(offset, form, value, rehash=True):
    def edit(content):
        struct.pack_into(form, content, offset, value)
        if rehash:
            content[224:256] = hashlib.sha256(bytes(content[:224])).digest()
    return shard(edit)


def another_completion(job):
    """The last id of the teacher's texts is another one, and the hashes are good."""
    path = job / SHARD
    tiny_job.write_teacher_shard(path)
    content = bytearray(path.read_bytes())
    content[-6 - 128 + 43 * 2] ^= 1  # the section of 44 tokens takes 128 bytes; 6 bytes of mask follow
    content[104:136] = hashlib.sha256(bytes(content[256:])).digest()
    content[224:256] = hashlib.sha256(bytes(content[:224])).digest()
    path.write_bytes(content)


SHARD = "train/shard-00000.dtok"
SHARDS = [
    Row("shard of another kind", [SHARD, "magic"], header_field(0, "8s", b"notashar")),
    Row("shard of a later version", [SHARD, "version"], header_field(8, "<I", 99)),
    Row("shard with a damaged header", [SHARD, "header_hash"], header_field(24, "<Q", 5, rehash=False)),
    Row("shard with tokens of 3 bytes", [SHARD, "token_bytes"], header_field(16, "<I", 3)),
    Row("shard with too many tokens", [SHARD, "token_count"], header_field(24, "<Q", 2**63)),
    Row("shard with other counts", [SHARD, "file_bytes"], header_field(24, "<Q", 9)),
    Row("empty shard", [SHARD], shard(lambda content: b"")),
    Row("shard of 100 bytes", [SHARD], shard(lambda content: content[:100])),
    Row("shard cut short", [SHARD, "file_bytes"], shard(lambda content: content[:-10])),
    Row("document offsets backwards", [SHARD, "document"], shard(lambda c: struct.pack_into("<Q", c, 264, 2**40))),
    Row("shard of another tokenizer", [SHARD, "tokenizer"],
        lambda job: tiny_job.write_shard(job / SHARD, tokenizer_json=tiny_job.tokenizer(63), vocab=63)),
    Row("shard with a larger vocabulary", [SHARD, "document ", "rows of the model's embeddings"],
        lambda job: tiny_job.write_shard(job / SHARD, vocab=100)),
    Row("shards of two tokenizers", ["train", "tokenizer"],
        lambda job: tiny_job.write_shard(job / "train/shard-00001.dtok",
            tokenizer_json=tiny_job.tokenizer(63), vocab=63)),
    Row("teacher stream with packing: concat", [SHARD, "texts of the teacher's own", "expected packing: pack"],
        lambda job: tiny_job.write_teacher_shard(job / SHARD), args=dry_run("data.packing=concat")),
    Row("teacher texts that no sequence holds", ["train: no document", "teacher_seq_len (16)"],
        lambda job: tiny_job.write_teacher_shard(job / SHARD, teacher_prompt=20)),
    Row("teacher sequences beyond the model", ["teacher/config.json against data.teacher_seq_len", "4096"],
        lambda job: tiny_job.write_teacher_shard(job / SHARD), args=dry_run("data.teacher_seq_len=4096")),
    Row("version 2 without a teacher stream", [SHARD, "flags", "found 0"], header_field(8, "<I", 2)),
    Row("inspect finds a completion that differs", [SHARD, "document 3: token 5 of the completion"],
        another_completion, args=["inspect", SHARD]),
    Row("inspect finds flipped bits", [SHARD], shard(lambda c: c.__setitem__(-1, c[-1] ^ 1)),
        args=["inspect", SHARD]),
]


def tokenizer_file(path, edit):
    def change(job):
        value = tiny_job.tokenizer()
        edit(value)
        tiny_job.write_json(job / path / "tokenizer.json", value)
    return change


def rename_token(value):
    vocab = value["model"]["vocab"]
    vocab["x9"] = vocab.pop("t9")


PLANS = [
    Row("unknown activation policy", ["memory.activation", "recompute*24,keep*8", "found \"kep\""],
        args=dry_run("memory.activation=kep")),
    Row("unknown activation policy in the file",
        ["config.yaml:9: memory.activation: expected auto, keep", "found \"kep\""],
        replaced("loss:\n", "memory: {activation: kep}\nloss:\n")),
    Row("policy without a count", ["memory.activation"], args=dry_run('memory.activation="keep*,recompute"')),
    Row("policies for other blocks", ["memory.activation", "the student's 1 blocks, found 3"],
        args=dry_run('memory.activation="keep*2,recompute"')),
    Row("negative budget", ["memory.budget_gib", "found -1"], args=dry_run("memory.budget_gib=-1")),
    Row("budget that nothing fits", ["does not fit", "memory.budget_gib"], args=dry_run("memory.budget_gib=1e-6"),
        code=4),
    Row("limit that nothing fits", ["does not fit", "device memory", "memory.on_overflow=warn"],
        args=dry_run("memory.limit_gib=1e-6", "memory.activation=auto"), code=4),
    Row("plan of a run that nothing fits", [], args=["plan", "--config", "config.yaml", "--set",
        "memory.limit_gib=1e-6"], code=4),
    Row("unknown place of the optimizer", ["memory.optimizer", "host*24,device*8", "found \"disk\""],
        args=dry_run("memory.optimizer=disk")),
    Row("places of other blocks", ["memory.optimizer", "device, host, cpu for each of the student's 1 blocks, found 3"],
        args=dry_run('memory.optimizer="host*2,device"')),
    Row("machine is missing", ["memory.machine", "one of H200, H100-SXM", "found gone.json"],
        args=dry_run("memory.machine=gone.json")),
    Row("unknown allocator", ["memory.allocator", "one of expandable, segments"],
        args=dry_run("memory.allocator=arena")),
    Row("machine is something else", ["student/config.json", "distill plan --calibrate"],
        args=dry_run("memory.machine=student/config.json")),
    Row("machine of nothing", ["machine.json", "matmul_flops", "positive"],
        lambda job: tiny_job.write_json(job / "machine.json", {"name": "x", "memory_gib": 1, "host_gib": 1,
                                                                "matmul_flops": 0}),
        args=dry_run("memory.machine=machine.json")),
    Row("plan without a config", ["plan", "--config is required"], args=["plan"]),
    Row("plan for no ranks", ["--ranks"], args=["plan", "--config", "config.yaml", "--ranks", "0"]),
    Row("plan for ranks that do not divide", ["train.global_batch_size", "6 (3 ranks"],
        args=["plan", "--config", "config.yaml", "--ranks", "3"]),
    Row("plan of a missing model", ["student.path", "nothing at gone"],
        args=["plan", "--config", "config.yaml", "--set", "student.path=gone"]),
    Row("plan of sequences longer than the model", ["max_position_embeddings", "1024"],
        args=["plan", "--config", "config.yaml", "--set", "data.seq_len=1024"]),
    Row("longest sequence of a short model", ["--longest", "1024"],
        args=["plan", "--config", "config.yaml", "--longest"]),
    Row("profile without a config", ["profile-memory", "--config is required"], args=["profile-memory"]),
    Row("profile of no steps", ["--steps"], args=["profile-memory", "--config", "config.yaml", "--steps", "0"]),
    Row("sweep without values", ["--sweep", "section.key=VALUE,VALUE"],
        args=["profile-memory", "--config", "config.yaml", "--sweep", "loss.chunk_size"]),
    Row("profile into a file", ["--out", "eval.dtok"],
        args=["profile-memory", "--config", "config.yaml", "--out", "eval.dtok"]),
]

TOKENIZERS = [
    Row("tokens that differ", ["student/tokenizer.json", "teacher/tokenizer.json", "has 63 of the teacher's 64 tokens",
        "9 (\"t9\")"], tokenizer_file("student", rename_token)),
    Row("missing tokens in concatenated documents", ["teacher.missing_tokens", "data.packing: concat"],
        args=dry_run("teacher.missing_tokens=mask", "data.packing=concat")),
    Row("merges that differ", ["merge 0"],
        tokenizer_file("teacher", lambda value: value["model"]["merges"].append("t1 t2"))),
    Row("normalizers that differ", ["normalizer", "NFC"],
        tokenizer_file("teacher", lambda value: value.update(normalizer={"type": "NFC"}))),
    Row("tokenizer is no JSON", ["student/tokenizer.json"], text_file("student/tokenizer.json", "{")),
    Row("tokenizer without a model", ["student/tokenizer.json", "model"], text_file("student/tokenizer.json", "{}")),
    Row("token id is text", ["student/tokenizer.json", "vocab"],
        tokenizer_file("student", lambda value: value["model"]["vocab"].update(t3="three"))),
    Row("tokenizer larger than the model", [SHARD, "document 0, token ", "(\"t", "rows of the model's embeddings"],
        lambda job: [[tiny_job.write_json(job / name / "tokenizer.json", tiny_job.tokenizer(100))
                      for name in ("student", "teacher")],
                     [tiny_job.write_shard(job / name, vocab=100, tokenizer_json=tiny_job.tokenizer(100))
                      for name in (SHARD, "eval.dtok")]]),
]

# fmt: on
GROUPS = {
    "command line": COMMAND_LINE,
    "config file": CONFIG_FILES,
    "override": OVERRIDES,
    "on-policy": ON_POLICY,
    "path": PATHS,
    "run folder": RUN_FOLDERS,
    "model folder": MODEL_FOLDERS,
    "safetensors": SAFETENSORS,
    "token shard": SHARDS,
    "tokenizer": TOKENIZERS,
    "plan": PLANS,
}
ROWS = {f"{group}: {row.name}": row for group, rows in GROUPS.items() for row in rows}
