"""How far a model is from the teacher on what it writes itself: completions of held-out documents.

The first half of a held-out document, at most PROMPT tokens, is continued by at most NEW_TOKENS tokens, sampled at
temperature 1 until the end-of-text token. On the tokens of the completions: KL(model, teacher), KL(teacher, model) and
the share whose most probable token is the teacher's, over the whole vocabulary in fp32, from logits of the models'
dtype; and the share of 4-grams that repeat one of the same completion.
"""

from token_shards import shard_file

from .sources import KINDS

DOCUMENTS = 64  # of each kind
PROMPT = 192
NEW_TOKENS = 128
BATCH = 64
POSITIONS = (0, 16, 32, 64)  # where the ranges of positions begin that KL is given for


def prompts(folder):
    """(the beginnings of a folder's first documents as lists of ids, the id that ends a text)"""
    found, end = [], None
    for path in sorted(folder.glob(f"*{shard_file.EXTENSION}")):
        header, documents, _ = shard_file.read(path)
        end = header["eos_id"]
        found += [[int(token) for token in tokens[: min(PROMPT, len(tokens) // 2)]] for tokens in documents]
    return [prompt for prompt in found if prompt][:DOCUMENTS], end


def repeated(ids):
    """(4-grams that came before in `ids`, all 4-grams)"""
    grams = [tuple(ids[start : start + 4]) for start in range(len(ids) - 3)]
    return len(grams) - len(set(grams)), len(grams)


def padded(rows, device):
    """(ids, mask) of rows of different lengths, padded on the left."""
    import torch

    longest = max(map(len, rows))
    ids = torch.zeros(len(rows), longest, dtype=torch.long)
    mask = torch.zeros_like(ids)
    for index, row in enumerate(rows):
        ids[index, longest - len(row) :] = torch.tensor(row)
        mask[index, longest - len(row) :] = 1
    return ids.to(device), mask.to(device)


def write(model, rows, end):
    """Completions of prompts, as lists of ids; the last one is `end` where the model ended the text."""
    import torch

    ids, mask = padded(rows, model.device)
    with torch.inference_mode():
        output = model.generate(
            input_ids=ids,
            attention_mask=mask,
            max_new_tokens=NEW_TOKENS,
            do_sample=True,
            temperature=1.0,
            top_k=0,
            top_p=1.0,
            eos_token_id=end,
            pad_token_id=end,
        )
    completions = output[:, ids.shape[1] :].tolist()
    return [row[: row.index(end) + 1] if end in row else row for row in completions]


def log_probabilities(model, rows):
    """fp32 log-probabilities of what follows each token of `rows`: [rows, longest row, vocabulary], padded left."""
    import torch

    ids, mask = padded(rows, model.device)
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    with torch.inference_mode():
        output = model(input_ids=ids, attention_mask=mask, position_ids=positions, use_cache=False)
    return output.logits.float().log_softmax(-1)


class Sums:
    """Of tokens: KLs in both directions and agreements, in all and by position."""

    def __init__(self):
        self.tokens, self.reverse_kl, self.forward_kl, self.agreement = 0, 0.0, 0.0, 0
        self.by_position = [[0, 0.0] for _ in POSITIONS]
        self.repeated, self.grams = 0, 0

    def add(self, model_TV, teacher_TV, ids):
        """A completion: the log-probabilities of both models in the place of each of its tokens."""
        reverse_T = (model_TV.exp() * (model_TV - teacher_TV)).sum(-1)
        self.tokens += len(ids)
        self.reverse_kl += float(reverse_T.sum())
        self.forward_kl += float((teacher_TV.exp() * (teacher_TV - model_TV)).sum())
        self.agreement += int((model_TV.argmax(-1) == teacher_TV.argmax(-1)).sum())
        for place, begin in enumerate(POSITIONS):
            end = POSITIONS[place + 1] if place + 1 < len(POSITIONS) else NEW_TOKENS
            part = reverse_T[begin:end]
            self.by_position[place][0] += len(part)
            self.by_position[place][1] += float(part.sum())
        again, grams = repeated(ids)
        self.repeated += again
        self.grams += grams

    def result(self):
        by_position = {
            str(begin): round(kl / count, 5) for begin, (count, kl) in zip(POSITIONS, self.by_position) if count
        }
        return {
            "tokens": self.tokens,
            "reverse_kl": round(self.reverse_kl / self.tokens, 5),
            "forward_kl": round(self.forward_kl / self.tokens, 5),
            "agreement": round(self.agreement / self.tokens, 5),
            "repeated_4grams": round(self.repeated / max(1, self.grams), 5),
            "reverse_kl_from_position": by_position,
        }


def measure(model, teacher, args):
    """The measures of the completions of all kinds of text together."""
    import torch

    torch.manual_seed(0)
    rows, sums = [], Sums()
    for kind in KINDS:
        some, end = prompts(args.data / f"test-{kind}")
        rows += some
    for start in range(0, len(rows), BATCH):
        part = rows[start : start + BATCH]
        completions = write(model, part, end)
        whole = [prompt + completion for prompt, completion in zip(part, completions)]
        for begin in range(0, len(whole), 8):  # the log-probabilities of few rows at a time are held
            group = [row[:-1] for row in whole[begin : begin + 8]]
            both = [log_probabilities(one, group) for one in (model, teacher)]
            for index, completion in enumerate(completions[begin : begin + 8]):
                sums.add(*(values[index, -len(completion) :] for values in both), completion)
    return sums.result()
