"""Which tokens stand around a text."""

from .errors import InputError


def special_ids(args, files, tokenizer):
    """(ids before a document, ids after it, bos_id and eos_id for the header)"""

    def token_id(token, what):
        index = tokenizer.token_to_id(token)
        if index is None:
            raise InputError(f"{files.file}: {what}: no such token: {token}")
        return index

    bos_token = files.special_tokens.get("bos_token")
    before, after = added_around(tokenizer, files.file)
    if args.bos == "always":
        if bos_token is None:
            raise InputError(f"{files.file.parent}: --bos always: tokenizer_config.json names no bos_token")
        before = [token_id(bos_token, "bos_token")]
    elif args.bos == "never":
        before = []
    eos_token = args.eos_token or files.special_tokens.get("eos_token")
    eos_id = next(iter(files.ends.ids), None)  # where tokenizer_config.json names none
    if eos_token:
        eos_id = token_id(eos_token, "--eos-token" if args.eos_token else "eos_token")
    if eos_id is None and not args.no_eos and not after:
        raise InputError(
            f"{files.file.parent}: no end-of-text token: expected eos_token in tokenizer_config.json or "
            "eos_token_id in generation_config.json or config.json, found neither (--eos-token TOKEN or --no-eos)"
        )
    if args.no_eos:
        after = []
    elif eos_id is not None and after[-1:] != [eos_id]:
        after = [*after, eos_id]
    files.notes += files.ends.unknown_note(tokenizer)
    if after:
        files.notes += files.ends.note("text documents end", after[-1], tokenizer, "--eos-token names another one")
    bos_id = tokenizer.token_to_id(bos_token) if bos_token else None
    return before, after, -1 if bos_id is None else bos_id, -1 if eos_id is None else eos_id


def added_around(tokenizer, file):
    """(ids before, ids after) that the tokenizer's post-processor adds to every text. InputError: it adds others."""
    for text in _texts(tokenizer):
        plain = tokenizer.encode(text, add_special_tokens=False).ids
        if not plain:
            continue  # a text without a token does not tell before from after
        special = tokenizer.encode(text, add_special_tokens=True)
        before = _count(special.sequence_ids)
        after = _count(special.sequence_ids[::-1])
        if special.ids[before : len(special.ids) - after] != plain:
            raise InputError(
                f"{file}: `post_processor`: expected one that adds tokens before and after a text, found one that "
                f"makes {special.ids} of {plain}"
            )
        return special.ids[:before], special.ids[len(special.ids) - after :]
    return [], []


def _texts(tokenizer):
    yield "a"
    yield from tokenizer.get_vocab()  # one of them is a text with a token


def _count(sequence_ids):
    """How many at the beginning belong to no text."""
    return next((i for i, sequence in enumerate(sequence_ids) if sequence is not None), len(sequence_ids))
