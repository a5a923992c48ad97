"""BLiMP: how often a model finds the acceptable sentence of a minimal pair more probable than the other one."""

import json
import statistics
from collections import defaultdict

import torch
from tokenizers import Tokenizer, pre_tokenizers

BATCH_TOKENS = 16384


def encoded(path, sentences, context):
    """Ids of each sentence after its context.

    context: "line": a newline, without a blank before the sentence, as in the training text; "mark": the tokenizer's
    </s> and a blank, as the challenge's evaluation does. These models have never seen that mark.
    """
    tokenizer = Tokenizer.from_file(str(path))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=context == "mark")
    (first,) = tokenizer.encode("\n").ids[-1:] if context == "line" else (tokenizer.token_to_id("</s>"),)
    return [[first, *one.ids] for one in tokenizer.encode_batch(sentences)]


@torch.no_grad()
def log_likelihoods(model, sequences, device):
    """The sum of the log-probabilities of each sequence's tokens but its first, in float32."""
    order = sorted(range(len(sequences)), key=lambda index: len(sequences[index]))
    sums, begin = [0.0] * len(sequences), 0
    while begin < len(order):
        longest = len(sequences[order[min(begin + BATCH_TOKENS // 64, len(order)) - 1]])
        chosen = order[begin : begin + max(1, BATCH_TOKENS // longest)]
        begin += len(chosen)
        longest = max(len(sequences[index]) for index in chosen)
        ids = torch.zeros(len(chosen), longest, dtype=torch.long)
        real = torch.zeros(len(chosen), longest - 1, dtype=torch.bool)
        for row, index in enumerate(chosen):
            ids[row, : len(sequences[index])] = torch.tensor(sequences[index])
            real[row, : len(sequences[index]) - 1] = True
        ids, real = ids.to(device), real.to(device)
        # Padding is at the end, which a causal model does not see from the tokens before it.
        logits = model(input_ids=ids, use_cache=False).logits[:, :-1].float()
        chosen_logits = logits.gather(2, ids[:, 1:, None])[..., 0]
        values = (chosen_logits - logits.logsumexp(2)) * real
        for index, value in zip(chosen, values.sum(1).tolist(), strict=True):
            sums[index] = value
    return sums


def accuracies(pairs, right):
    """Shares of pairs that are `right`, in percent: the mean over paradigms, that over phenomena, and each paradigm."""
    by = {key: defaultdict(list) for key in ("uid", "field")}
    for pair, is_right in zip(pairs, right, strict=True):
        for key, groups in by.items():
            groups[pair[key]].append(is_right)
    means = {key: {name: 100 * statistics.mean(one) for name, one in groups.items()} for key, groups in by.items()}
    return {
        "paradigms": statistics.mean(means["uid"].values()),
        "phenomena": statistics.mean(means["field"].values()),
        "pairs": len(pairs),
        "of": means["field"],
    }


def measure(folder, pairs, device):
    """{context: {"kept": accuracies of the pairs that the challenge kept, "all": of all}} of a model folder."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).to(device).eval()
    sentences = [pair[which] for which in ("good", "bad") for pair in pairs]
    found = {}
    for context in ("line", "mark"):
        sums = log_likelihoods(model, encoded(folder / "tokenizer.json", sentences, context), device)
        right = [good > bad for good, bad in zip(sums[: len(pairs)], sums[len(pairs) :], strict=True)]
        kept = [index for index, pair in enumerate(pairs) if pair["kept"]]
        found[context] = {
            "kept": accuracies([pairs[index] for index in kept], [right[index] for index in kept]),
            "all": accuracies(pairs, right),
        }
    return json.loads(json.dumps(found))
