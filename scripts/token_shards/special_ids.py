"""Which tokens stand around a text."""

from .errors import InputError


def special_ids(args, files):
    """(ids before a document, ids after it, bos_id and eos_id for the header)"""
    from tokenizers import Tokenizer

    try:
        tokenizer = Tokenizer.from_file(str(files.file))
    except Exception as error:  # the library raises plain Exception
        raise InputError(f"{files.file}: cannot be loaded: {error}") from error

    def token_id(token, what):
        index = tokenizer.token_to_id(token)
        if index is None:
            raise InputError(f"{files.file}: {what}: no such token: {token}")
        return index

    bos_token = files.special_tokens.get("bos_token")
    bos = []
    if args.bos == "always":
        if bos_token is None:
            raise InputError(f"{files.file.parent}: --bos always: tokenizer_config.json names no bos_token")
        bos = [token_id(bos_token, "bos_token")]
    elif args.bos == "auto":
        plain = tokenizer.encode("a", add_special_tokens=False).ids
        special = tokenizer.encode("a", add_special_tokens=True).ids
        starts = [i for i in range(len(special) - len(plain) + 1) if special[i : i + len(plain)] == plain]
        bos = special[: starts[0]] if starts else []
    eos_token = args.eos_token or files.special_tokens.get("eos_token")
    eos_id = token_id(eos_token, "--eos-token" if args.eos_token else "eos_token") if eos_token else files.eos_id
    if eos_id is None and not args.no_eos:
        raise InputError(
            f"{files.file.parent}: no end-of-text token: expected eos_token in tokenizer_config.json or "
            "eos_token_id in config.json, found neither (--eos-token TOKEN or --no-eos)"
        )
    bos_id = tokenizer.token_to_id(bos_token) if bos_token else None
    return bos, [] if args.no_eos else [eos_id], -1 if bos_id is None else bos_id, -1 if eos_id is None else eos_id
