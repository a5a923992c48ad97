"""The tokenizer of a model folder, with the ids that transformers' AutoTokenizer gives.

transformers does not use every tokenizer.json as it is. For the classes that tokenizer_config.json or config.json name
(LlamaTokenizer, Qwen2Tokenizer, GemmaTokenizer, ...) it takes vocabulary and merges from the file, and normalizer,
pre-tokenizer and decoder from its own code. It does so here as well: transformers itself loads the folder, unless the
class is the one that takes the whole file. Importing transformers takes seconds, which are saved then.
"""

import json
import tempfile
from pathlib import Path

from tokenizers import Tokenizer

from .config_tokens import ConfigTokens, read_config_tokens, read_object
from .errors import InputError

WHOLE_FILE_CLASSES = ("PreTrainedTokenizerFast", "TokenizersBackend")
# Kinds of models with which AutoTokenizer believes a tokenizer_config.json that names one of these classes.
TRUSTING_MODEL_TYPES = (None, "llama", "mistral", "qwen3", "exaone4", "gpt2", "gemma", "gemma2", "gemma3_text")
# With these keys transformers reads other files, or changes the tokenizer in a way of its own.
OWN_WAYS = ("auto_map", "fast_tokenizer_files", "fix_mistral_regex", "init_inputs", "model_specific_special_tokens")
SHOWN = 5  # tokens that an error lists


def takes_whole_file(folder):
    """Whether AutoTokenizer reads the folder's tokenizer.json as the tokenizers library does, and then adds the tokens
    of config_tokens.py."""
    config = read_object(folder / "tokenizer_config.json")
    model = read_object(folder / "config.json")
    named = config.get("tokenizer_class") or model.get("tokenizer_class")
    return (
        (named in WHOLE_FILE_CLASSES or (named is None and not model))
        and model.get("model_type") in TRUSTING_MODEL_TYPES
        and not any(key in config for key in OWN_WAYS)
        and not (folder / "tekken.json").exists()
    )


def load_whole_file(file, text, described):
    """(Tokenizer, ConfigTokens): tokenizer.json as the tokenizers library reads it, with the tokens of the files beside
    it. `text`: the file's content, `described`: the same as JSON. InputError: it cannot be loaded."""
    try:
        tokenizer = Tokenizer.from_str(text)
    except Exception as error:  # the library raises plain Exception
        raise InputError(f"{file}: cannot be loaded: {error}") from error
    present = [token.content for token in tokenizer.get_added_tokens_decoder().values()]
    tokens = read_config_tokens(file.parent, described, present)
    tokenizer.add_tokens(tokens.to_add)
    texts = [one["content"] for one in described.get("added_tokens") or []]
    check_added_tokens(file, tokenizer, dict.fromkeys(texts + [token.content for token in tokens.to_add]))
    return tokenizer, tokens


def check_added_tokens(file, tokenizer, texts):
    """InputError: two of the added tokens have one id, or are one text to the tokenizer, which finds either then."""
    ids = {}  # id, or normalized text: the added token
    for text in filter(None, texts):
        other = ids.setdefault(tokenizer.token_to_id(text), text)
        if other != text:
            raise InputError(
                f"{file}: added tokens {json.dumps(other)} and {json.dumps(text)}: expected an id for each, found "
                f"{tokenizer.token_to_id(text)} for both (the ids of the vocabulary have gaps)"
            )
    if tokenizer.normalizer is None:
        return
    for token in tokenizer.get_added_tokens_decoder().values():
        if token.normalized:
            text = tokenizer.normalizer.normalize_str(token.content)
            other = ids.setdefault(text, token.content)
            if not text:  # found between any two characters, without end
                raise InputError(
                    f"{file}: added token {json.dumps(token.content)}: expected a text of which normalization "
                    'leaves something, found none; "normalized": false keeps it as it is'
                )
            if other != token.content:
                raise InputError(
                    f"{file}: added tokens {json.dumps(other)} and {json.dumps(token.content)}: expected texts that "
                    f'differ after normalization, found {json.dumps(text)} for both; "normalized": false for one of '
                    "them tells them apart"
                )


def load_with_transformers(file):
    """(Tokenizer, ConfigTokens without tokens to add, name of the class) as AutoTokenizer loads the folder of this
    tokenizer.json. InputError: it cannot be loaded, or not as a tokenizer of the tokenizers library."""
    import transformers
    from transformers import AutoTokenizer

    with tempfile.TemporaryDirectory() as linked:
        folder = file.parent
        if file.name != "tokenizer.json":  # the only name that transformers reads
            folder = Path(linked)
            for path in file.parent.iterdir():
                (folder / path.name).symlink_to(path.resolve())
            (folder / "tokenizer.json").unlink(missing_ok=True)
            (folder / "tokenizer.json").symlink_to(file.resolve())
        try:
            # Not with mistral-common, which does not read tokenizer.json, where it is installed.
            only = {"local_files_only": True, "trust_remote_code": False, "mistral_format": False}
            loaded = AutoTokenizer.from_pretrained(str(folder), **only)
        except Exception as error:  # whatever the code of a tokenizer's class raises
            raise InputError(
                f"{file.parent}: transformers {transformers.__version__} cannot load the tokenizer: "
                f"{type(error).__name__}: {error}"
            ) from error
    if not getattr(loaded, "is_fast", False):
        raise InputError(
            f"{file.parent}: transformers loads the tokenizer as {type(loaded).__name__}, which does not read "
            f"{file.name}: expected a class of the tokenizers library (`tokenizer_class` in tokenizer_config.json)"
        )
    named = {key: str(value) for key, value in loaded.special_tokens_map.items() if isinstance(value, str) and value}
    return loaded.backend_tokenizer, ConfigTokens([], named, bool(loaded.split_special_tokens)), type(loaded).__name__


def check_same_tokens(file, pairs, loaded, class_name):
    """InputError: transformers' tokenizer has other tokens than the files. `distill` reads the files alone.
    pairs: {(id, token)} of the files; loaded: the Tokenizer that transformers made of them."""
    theirs = token_pairs(json.loads(loaded.to_str()))
    if theirs == pairs:
        return
    only = [("transformers", theirs - pairs), ("the files", pairs - theirs)]
    lines = [
        f"  only {where}: id {index} {json.dumps(token, ensure_ascii=False)}"
        for where, tokens in only
        for index, token in sorted(tokens)[:SHOWN]
    ]
    raise InputError(
        f"{file.parent}: transformers loads it as {class_name}, with other tokens than its files have:\n"
        + "\n".join(lines)
        + "\nAutoTokenizer.from_pretrained(folder).save_pretrained(other_folder) writes files that agree"
    )


def own_parts(file, whole, loaded, class_name):
    """A note about the parts of tokenizer.json that transformers' class replaces, if there are any. `whole`: the
    Tokenizer that the tokenizers library reads in the file."""
    written, used = json.loads(whole.to_str()), json.loads(loaded.to_str())
    parts = [part for part in ("normalizer", "pre_tokenizer", "decoder") if written[part] != used[part]]
    if not parts:
        return []
    return [
        f"{file}: transformers loads it as {class_name}, whose {', '.join(parts)} differ{'s' * (len(parts) == 1)} from "
        "the file's; the ids are those of transformers"
    ]


def token_pairs(described):
    """{(id, token)} of a tokenizer.json: the vocabulary and the added tokens."""
    vocab = described["model"]["vocab"]
    if isinstance(vocab, list):
        pairs = {(index, token) for index, (token, _) in enumerate(vocab)}
    else:
        pairs = {(index, token) for token, index in vocab.items()}
    return pairs | {(added["id"], added["content"]) for added in described.get("added_tokens") or []}
