"""The study of a teacher with another tokenizer, with tiny models: every row, and that it continues."""

import json
import lzma
import os
import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]


def binary():
    build = os.environ.get("DISTILL_BUILD", "build/release")
    return os.environ.get("DISTILL_BIN", str(REPOSITORY / build / "apps/distill/distill"))


def test_the_tiny_study_has_a_table_of_all_rows_and_continues(tmp_path):
    text = tmp_path / "text"
    text.mkdir()
    for name, sources in (("train", ["data.md", "ranks.md", "memory.md"]), ("eval", ["lora.md"])):
        with lzma.open(text / f"{name}.jsonl.xz", "wt") as file:
            for source in sources:
                file.write(json.dumps({"text": (REPOSITORY / "docs" / source).read_text()}) + "\n")
    command = [sys.executable, REPOSITORY / "scripts/studies/other_tokenizer.py", "run", "--profile", "test"]
    command += ["--program", binary(), "--text", text, "--work", tmp_path / "work", "--jobs", "2", "--workers", "1"]
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    results = json.loads((tmp_path / "work/results.json").read_text())
    assert set(results["rows"]) == {"labels", "starts", "boundaries", "spans", "spans_1", "same"}
    for row, records in results["rows"].items():
        assert len(records) == 1 and 1 < records[0]["nats_per_byte"] < 5.6, row
        assert ("boundary_share" in records[0]) == (row not in ("labels", "same"))
    assert results["bytes"] == len((REPOSITORY / "docs/lora.md").read_bytes())
    assert "the same, and spans" in (tmp_path / "work/table.md").read_text()
    again = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    assert again.returncode == 0 and "nats a byte," not in again.stdout, again.stdout
