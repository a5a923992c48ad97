"""Random conversations in the spellings of many interfaces: our ids and masks against transformers' apply_chat_template
of the same conversations in the shape that templates are tested with (chat_forms.py), for every template of templates/.

  python tests/data/test_random_chats.py --count 100000     prints what was compared and every difference
"""

import argparse
import collections
import importlib.util
import json
import random
import re
import sys
import tempfile
from pathlib import Path

import numpy as np
from chat_forms import has_place
from chat_reference import TOKENIZER, by_transformers, reference
from chat_shapes import STOCK, special_tokens
from random_chats import Conversation

from token_shards.encode import Encoder
from token_shards.readers import Chunk
from token_shards.tokenizer_files import TokenizerFiles

ROOT = Path(__file__).resolve().parents[2]
_IM = r"<\|im_start\|>assistant\n(?:<think>\n\n</think>\n\n?)?(.*?<\|im_end\|>)"
_LLAMA = r"<\|start_header_id\|>assistant<\|end_header_id\|>\n\n(.*?<\|eot_id\|>)"
_MISTRAL = r"(?:\[/INST\]|\[/TOOL_RESULTS\](?!\[TOOL_RESULTS\]))(.*?</s>)"
# Where the assistant's turns stand in a rendering, read off the templates; an empty think block is the prompt's.
TURNS = {
    "qwen3_5": r"<\|im_start\|>assistant\n(?:<think>\n(?:\n</think>\n\n)?)?(.*?<\|im_end\|>)",
    "qwen": _IM,
    "smol": _IM,
    "llama": _LLAMA,
    "gemma4": r"(?:<\|turn>model\n|<tool_response\|>(?!<\|tool_response>))(.*?(?:<turn\|>|<\|tool_response>))",
    "gemma": r"<start_of_turn>model\n(.*?<end_of_turn>)",
    "mistral_v": r"\[/INST\](.*?</s>)",
    "mistral_nemo": _MISTRAL,
    "ministral": _MISTRAL,
    "olmo2": r"<\|assistant\|>\n(.*?<\|endoftext\|>)",
    "olmo3_think": r"<\|im_start\|>assistant\n(?:<think>)?(.*?(?:<\|im_end\|>|<\|endoftext\|>))",
    "olmo3": r"<\|im_start\|>assistant\n(.*?(?:<\|im_end\|>|<\|endoftext\|>))",
    "phi": r"<\|assistant\|>(.*?<\|end\|>)",
    "deepseek": r"<｜Assistant｜>(.*?<｜end▁of▁sentence｜>)",
}


def tokenize_script():
    spec = importlib.util.spec_from_file_location("tokenize_script", ROOT / "scripts" / "tokenize.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def encoders(folder):
    """An Encoder for each template, made as scripts/tokenize.py makes them."""
    script, out = tokenize_script(), {}
    for name, template in STOCK.items():
        model = folder / name
        model.mkdir()
        TOKENIZER.save(str(model / "tokenizer.json"))
        config = {"tokenizer_class": "PreTrainedTokenizerFast", **special_tokens(name)}
        (model / "tokenizer_config.json").write_text(json.dumps(config))
        (model / "chat_template.jinja").write_text(template, encoding="utf-8")
        args = script.arguments(["--tokenizer", str(model), "--output", str(folder / "out"), "-"])
        out[name] = Encoder(script.encode_options(args, TokenizerFiles.load(args.tokenizer))[0])
    return out


def expected_mask(name, chat, text):
    """The tokens with loss by the rule of TURNS, or None where it does not say them."""
    if "deepseek" in name and any("tool_calls" in message for message in chat.messages):
        return None  # these templates write later calls and single ones without their ends
    pattern = next(pattern for family, pattern in TURNS.items() if name.startswith(family))
    spans = [match.span(1) for match in re.finditer(pattern, text, re.DOTALL)]
    answers = [index for index, message in enumerate(chat.messages) if message["role"] == "assistant"]
    if len(spans) != len(answers):
        return None
    wanted = [span for index, span in zip(answers, spans) if index >= (chat.prompt or 0)]
    offsets = np.array(TOKENIZER.encode(text, add_special_tokens=False).offsets).reshape(-1, 2)
    mask = np.zeros(len(offsets), bool)
    for begin, end in wanted:
        mask |= (offsets[:, 0] < end) & (offsets[:, 1] > begin) & (offsets[:, 0] < offsets[:, 1])
    return mask


def compare(count, seed, folder):
    """(Counter of outcomes, [(name, seed of the conversation, what differs)])"""
    ours, theirs = encoders(folder), {name: reference(name) for name in STOCK}
    counts, found = collections.Counter(), []
    for number in range(count):
        name = list(STOCK)[number % len(STOCK)]
        chat = Conversation(random.Random(f"{seed} {number}"))
        outcome = compare_one(name, chat, ours[name], theirs[name])
        counts[outcome] += 1
        if outcome.startswith("DIFFERENT"):
            found.append((name, f"{seed} {number}", chat.style, outcome))
    return counts, found


def compare_one(name, chat, encoder, wrapped):
    out = encoder.encode(Chunk("items", "x", 1, [("x:1", json.loads(json.dumps(chat.record)))]))
    place = has_place(name, chat.messages, chat.tools)
    expected = by_transformers(wrapped, chat.messages, chat.tools, form=name)
    if expected is None:
        reason = "transformers refuses" if place else "no place"
        return f"{reason}, a bad document" if out.bad else f"DIFFERENT: {reason}, and ours is not bad"
    if out.bad:
        return f"DIFFERENT: bad, {out.bad[0][1]}"
    text = by_transformers(wrapped, chat.messages, chat.tools, form=name, as_text=True)
    mask = expected_mask(name, chat, text)
    if not out.documents:
        return "nothing with loss" if mask is None or not mask.any() else "DIFFERENT: left out"
    ids, in_loss, *_ = out.documents[0]
    if list(map(int, ids)) != expected[0]:
        return "DIFFERENT: ids"
    if mask is None:
        return "equal ids"
    return "equal ids and mask" if np.array_equal(mask, in_loss) else "DIFFERENT: mask"


def test_a_thousand_random_conversations_have_the_ids_and_masks_of_transformers(tmp_path):
    counts, found = compare(1000, 0, tmp_path)
    assert not found, found[:3]
    assert counts["equal ids and mask"] > 500 and counts["equal ids"] < 100, counts
    assert counts["no place, a bad document"] > 100 and counts["transformers refuses, a bad document"] > 20, counts


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        counts, found = compare(args.count, args.seed, Path(folder))
    for outcome, number in counts.most_common():
        print(f"{number:8} {outcome}")
    for one in found[:50]:
        print(*one)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
