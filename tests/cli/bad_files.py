"""Bad inputs: of run folders, models, tokenizers and token shards."""

import hashlib
import json
import struct

import tiny_job
from bad_inputs import Row, dry_run, removed

# The layout by hand keeps a row of these tables on few lines.
# fmt: off
PATHS = [
    Row("student is missing", ["config.yaml:2", "student.path", "nothing at student"], removed("student")),
    Row("student is a file", ["student.path", "found the file"], args=dry_run("student.path=eval.dtok")),
    Row("teacher without config.json", ["teacher.path", "config.json", "none in teacher"],
        removed("teacher/config.json")),
    Row("teacher without weights", ["teacher.path", "model.safetensors"], removed("teacher/model.safetensors")),
    Row("student is a run folder", ["student.path", "it is a run folder, whose model is other/model"],
        lambda job: (job / "other").mkdir() or (job / "student").rename(job / "other/model"),
        args=dry_run("student.path=other")),
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
    Row("shard cut short", [SHARD, "file_bytes", "the file was cut short"], shard(lambda content: content[:-10])),
    Row("document offsets backwards", [SHARD, "document"], shard(lambda c: struct.pack_into("<Q", c, 264, 2**40))),
    Row("shard of another tokenizer", [SHARD, "tokenizer"],
        lambda job: tiny_job.write_shard(job / SHARD, tokenizer_json=tiny_job.tokenizer(63), vocab=63)),
    Row("shard with a larger vocabulary", [SHARD, "document ", "rows of the model's embeddings"],
        lambda job: tiny_job.write_shard(job / SHARD, vocab=100)),
    Row("shards of two tokenizers", ["train", "tokenizer"],
        lambda job: tiny_job.write_shard(job / "train/shard-00001.dtok", tokenizer_json=tiny_job.tokenizer(63),
        vocab=63)),
    Row("teacher stream with packing: concat", [SHARD, "texts of the teacher's own", "expected packing: pack"],
        lambda job: tiny_job.write_teacher_shard(job / SHARD), args=dry_run("data.packing=concat")),
    Row("teacher texts that no sequence holds", ["train: no document", "teacher_seq_len (16)"],
        lambda job: tiny_job.write_teacher_shard(job / SHARD, teacher_prompt=20)),
    Row("teacher sequences beyond the model", ["teacher/config.json against data.teacher_seq_len", "4096"],
        lambda job: tiny_job.write_teacher_shard(job / SHARD), args=dry_run("data.teacher_seq_len=4096")),
    Row("version 2 without a teacher stream", [SHARD, "flags", "found 0"], header_field(8, "<I", 2)),
    Row("inspect finds a completion that differs", [SHARD, "document 3: token 5 of the completion"], another_completion,
        args=["inspect", SHARD]),
    Row("inspect finds flipped bits", [SHARD], shard(lambda c: c.__setitem__(-1, c[-1] ^ 1)), args=["inspect", SHARD]),
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
        lambda job: [[tiny_job.write_json(job / name / "tokenizer.json",
        tiny_job.tokenizer(100)) for name in ("student", "teacher")],
        [tiny_job.write_shard(job / name, vocab=100, tokenizer_json=tiny_job.tokenizer(100)) for name in (SHARD,
        "eval.dtok")]]),
]
