"""The examples run, and what they compute is what they replace."""

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
pytest.importorskip("transformers")
# Some CPUs announce instructions for bf16 products that they do not have.
ENVIRONMENT = {**os.environ, "ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16"}


def run(name, *arguments, code=0):
    done = subprocess.run(
        [sys.executable, EXAMPLES / name, *map(str, arguments)], capture_output=True, text=True, env=ENVIRONMENT
    )
    assert done.returncode == code, f"{name}: expected exit code {code}, found {done.returncode}\n{done.stderr}"
    return done.stderr if code else done.stdout


def test_the_transformers_loop_trains_as_with_the_plain_loss():
    output = run("transformers_loop.py", "--loss", "both", "--steps", "4", "--lr", "1e-2")
    losses = {
        kind: [float(x) for x in re.findall(kind + r" step .* loss (\S+)", output)] for kind in ("plain", "fused")
    }
    assert len(losses["plain"]) == len(losses["fused"]) == 4
    assert losses["fused"] == pytest.approx(losses["plain"], abs=2e-5)
    assert len(set(losses["fused"])) == 4  # it trains


def test_the_transformers_loop_in_bf16_with_a_text(tmp_path):
    import transformers
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = ["<unk>", "the", "cat", "sat", "on", "a", "mat"]
    tokenizer = Tokenizer(models.WordLevel({word: index for index, word in enumerate(words)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained(tmp_path)
    config = transformers.LlamaConfig(
        vocab_size=512, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2
    )
    transformers.LlamaForCausalLM(config).save_pretrained(tmp_path)
    text = tmp_path / "text.txt"
    arguments = ("transformers_loop.py", "--student", tmp_path, "--text", text, "--length", "16")
    text.write_text("the cat sat on a mat " * 20)
    assert "fused step 2/2" in run(*arguments, "--steps", "2", "--dtype", "bfloat16")
    text.write_text("the cat")
    assert "expected at least 32 tokens" in run(*arguments, code=1)


def example(name):
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("lmbda", [0.0, 1.0])
def test_trls_gkd_trainer_has_the_losses_that_it_had(lmbda, tmp_path):
    """Against TRL's own loss over the logits: on the data (lmbda 0), and on what the student samples (1)."""
    pytest.importorskip("trl")
    gkd = example("trl_gkd")

    def losses(kind):
        teacher = gkd.tiny_model(64, 2)
        run = gkd.trainer(kind, gkd.tiny_model(32, 1), teacher, gkd.tiny_tokenizer(), 3, str(tmp_path), lmbda=lmbda)
        run.train()
        return [entry["loss"] for entry in run.state.log_history if "loss" in entry]

    plain, fused = losses(gkd.GKDTrainer), losses(gkd.FusedGKDTrainer)
    assert len(plain) == 3 and plain[0] > 0 and len(set(plain)) == 3
    assert fused == pytest.approx(plain, rel=1e-2)
