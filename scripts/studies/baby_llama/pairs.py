"""BLiMP: how often a model finds the acceptable sentence of a minimal pair more probable than the other one."""

import statistics
from collections import defaultdict

import torch
from tokenizers import Tokenizer, pre_tokenizers
from transformers import AutoModelForCausalLM  # not in measure(): threads that import it at the same time fail

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


class Padded:
    """Sequences of ids, the shortest first, with zeros after their ends."""

    def __init__(self, sequences):
        lengths = torch.tensor([len(one) for one in sequences])
        self.order = lengths.argsort()
        self.lengths = lengths[self.order]
        self.ids = torch.zeros(len(sequences), int(lengths.max()), dtype=torch.long)
        within = torch.arange(self.ids.shape[1]) < self.lengths[:, None]
        self.ids[within] = torch.tensor([id for index in self.order.tolist() for id in sequences[index]])


@torch.no_grad()
def log_likelihoods(model, padded, device):
    """The sum of the log-probabilities of each sequence's tokens but its first, in float32, in the sequences' order."""
    sums, begin = torch.zeros(len(padded.order)), 0
    while begin < len(sums):
        end = begin + max(1, BATCH_TOKENS // int(padded.lengths[begin]))
        lengths = padded.lengths[begin:end].to(device)
        ids = padded.ids[begin:end, : int(lengths[-1])].to(device)
        # A causal model does not see the zeros, which are at the end, from the tokens before them.
        logits = model(input_ids=ids, use_cache=False).logits[:, :-1].float()
        values = logits.gather(2, ids[:, 1:, None])[..., 0] - logits.logsumexp(2)
        real = torch.arange(1, ids.shape[1], device=device) < lengths[:, None]
        sums[padded.order[begin:end]] = (values * real).sum(1).cpu()
        begin = end
    return sums.tolist()


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


def prepared(path, pairs):
    """{context: the good sentences of all pairs, then the bad ones} in the ids of a tokenizer.json."""
    sentences = [pair[which] for which in ("good", "bad") for pair in pairs]
    return {context: Padded(encoded(path, sentences, context)) for context in ("line", "mark")}


def measure(folder, pairs, sentences, device):
    """{context: {"kept": accuracies of the pairs that the challenge kept, "all": of all}} of a model folder."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).to(device).eval()
    found = {}
    for context, padded in sentences.items():
        sums = log_likelihoods(model, padded, device)
        right = [good > bad for good, bad in zip(sums[: len(pairs)], sums[len(pairs) :], strict=True)]
        kept = [index for index, pair in enumerate(pairs) if pair["kept"]]
        found[context] = {
            "kept": accuracies([pairs[index] for index in kept], [right[index] for index in kept]),
            "all": accuracies(pairs, right),
        }
    return found
