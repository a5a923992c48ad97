"""Runs, captures and caches of the kinds that store a few tokens of a teacher's distribution, for several tests."""

import hashlib
import json
import os
import random
import signal
import struct
import subprocess
import time
from pathlib import Path

import numpy as np
import torch
import xxhash

import tiny

MICRO = 3  # of captures
HEAD = FOOT = 64  # bytes of a part's file (docs/teacher_cache.md)
COLUMNS = tiny.VOCAB  # of the teacher's 224, those that the student has too
FORWARD_KL = {"divergence": "forward_kl", "hard_weight": 0.5, "soft_weight": 1.0}
KINDS = {
    "topk": {"kind": "topk", "topk": 8},
    "topk32": {"kind": "topk", "topk": 8, "dtype": "float32"},
    "whole": {"kind": "topk", "topk": COLUMNS, "dtype": "float32"},
    "sampled": {"kind": "sampled", "samples": 12, "seed": 3},
    "weighted": {"kind": "sampled", "samples": 12, "exponent": 0.7, "seed": 3},
}


def content(cache):
    return {str(path.relative_to(cache)): path.read_bytes() for path in sorted(cache.rglob("*")) if path.is_file()}


def capture(config, cache, *flags, code=tiny.SUCCESS, **settings):
    """Of the configuration of any run."""
    sets = [part for key, value in settings.items() for part in ("--set", f"{key.replace('_', '.', 1)}={value}")]
    path = tiny.write_config(Path(config["run"]["dir"]).parent / "capture", config)
    sets += ["--set", "teacher.source=model", f"teacher.cache={cache}"]
    return tiny.distill("capture", "--config", path, *sets, *flags, code=code)


def part_times(cache):
    """{name: time of writing} of the complete parts."""
    return {path.name: path.stat().st_mtime_ns for path in Path(cache).glob("part-*.dtc")}


def killed_captures(path, cache, rounds, seed, *settings):
    """Starts the capture of the configuration `path` again and again, and kills it once a few more parts are there.

    Returns (what part_times was after each round, the number of rounds that were killed before their end)."""
    random_of, times, kills = random.Random(seed), [], 0
    command = [tiny.binary(), "capture", "--config", path, "--set", f"teacher.cache={cache}", *settings]
    for _ in range(rounds):
        process = subprocess.Popen(
            command,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=tiny.environment(),
            start_new_session=True,
        )
        limit, wanted = time.monotonic() + 20, len(part_times(cache)) + random_of.randrange(1, 7)
        while process.poll() is None and time.monotonic() < limit and len(part_times(cache)) < wanted:
            time.sleep(random_of.random() * 0.01)
        if process.poll() is None:
            kills += 1
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        times.append(part_times(cache))
        time.sleep(0.2)  # for the ranks that it had started
    return times, kills


def change_manifest(cache, change):
    """Changes the manifest of a cache, and gives its parts the new identity and the numbers 0, 1, 2, ..."""
    path = cache / "manifest.json"
    manifest = json.loads(path.read_text())
    change(manifest)
    path.write_text(json.dumps(manifest, indent=2) + "\n")
    identity = {key: value for key, value in manifest.items() if key not in ("teacher", "teacher_keys")}
    identity["data"] = [{key: d[key] for key in ("header_hash", "documents", "tokens")} for d in manifest["data"]]
    cache_id = hashlib.sha256(json.dumps(identity, separators=(",", ":")).encode()).digest()
    for number, part in enumerate(sorted(cache.glob("part-*.dtc"))):
        data = bytearray(part.read_bytes())
        data[24:64] = struct.pack("<Q", number) + cache_id
        data[-8:] = struct.pack("<Q", xxhash.xxh3_64_intdigest(bytes(data[:64]) + bytes(data[-64:-8])))
        part.unlink()
        part.with_name(f"part-{number:08d}.dtc").write_bytes(data)


def as_float8(cache):
    """Makes a cache of hidden states in float32 one of `cache.dtype: float8`, which earlier versions wrote."""
    for path in sorted(cache.glob("part-*.dtc")):
        data = path.read_bytes()
        rows, count = struct.unpack_from("<QQ", data, len(data) - FOOT)
        width, at, out, table = struct.unpack_from("<Q", data, 16)[0], HEAD, bytearray(), bytearray()
        for i in range(count):
            entry = struct.unpack_from("<IIQIIQ", data, HEAD + rows * width + 32 * i)
            size = entry[4] * width
            numbers = np.frombuffer(data, np.float32, size // 4, at).reshape(entry[4], width // 4)
            states = torch.from_numpy(numbers.copy())
            scales = states.abs().amax(1, keepdim=True) / 448  # the largest number of e4m3
            values = (states / scales).to(torch.float8_e4m3fn).view(torch.uint8).numpy()
            stored = np.concatenate([values, scales.numpy().view(np.uint8)], axis=1).tobytes()
            table += struct.pack("<IIQIIQ", *entry[:5], xxhash.xxh3_64_intdigest(stored))
            at, out = at + size, out + stored
        size = HEAD + len(out) + len(table) + FOOT
        foot = struct.pack("<QQQQ", rows, count, size, xxhash.xxh3_64_intdigest(bytes(table))) + data[32 - FOOT :]
        path.write_bytes(data[:16] + struct.pack("<Q", width // 4 + 4) + data[24:HEAD] + out + table + foot)
    change_manifest(cache, lambda manifest: manifest.update(encoding="float8"))


def in_no_order(cache, keep=lambda number: True):
    """Makes a cache of data.train one as an import or a run of an earlier version wrote: `keep` of its parts."""
    for number, part in enumerate(sorted(cache.glob("part-*.dtc"))):
        if not keep(number):
            part.unlink()
    change_manifest(cache, lambda manifest: manifest.update(micro_batch_size=0, part_samples=0, parts=0))
