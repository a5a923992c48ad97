"""The tokens that other files in the folder of a tokenizer.json name, added to it as transformers 5 adds them.

tokenizer_config.json describes tokens in `added_tokens_decoder`, names some of them (bos_token, eos_token, ...) and
lists further special ones (`extra_special_tokens`, in older files `additional_special_tokens`). Folders that older
versions wrote have special_tokens_map.json and added_tokens.json as well, which count where tokenizer_config.json has
no `added_tokens_decoder`. The token of a padding that is saved in tokenizer.json is the pad_token where no other is
named. A token that the tokenizer has keeps its id and gets the flags that are described here. Every other token gets
the next free id, whatever id the file gives. data/added_tokens.cpp is the same rule in C++.
"""

import json
from dataclasses import dataclass

from tokenizers import AddedToken

from .errors import InputError

NAMED = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


@dataclass
class ConfigTokens:
    to_add: list  # AddedToken, in the order in which transformers adds them
    named: dict  # bos_token: text, ...; the variables that a chat template gets
    split_special: bool  # whether the text of a special token in a document is split like any other text


def read_object(path):
    """The JSON object in a file; {} where there is no such file."""
    if not path.is_file():
        return {}
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise InputError(f"{path}: not valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise InputError(f"{path}: expected a JSON object, found {type(value).__name__}")
    return value


def read_config_tokens(folder, described, present):
    """ConfigTokens of a folder. `described`: its tokenizer.json; `present`: the texts of the added tokens that the
    tokenizers library has after it read that file. InputError names the file and the key that cannot be a token."""
    return _Reader(folder, described).tokens(present)


class _Reader:
    def __init__(self, folder, described):
        self.folder = folder
        self.file = folder / "tokenizer_config.json"
        self.config = read_object(self.file)
        self.decoder = {}  # id: AddedToken
        self.by_text = {}  # the same and those whose id another one took, by text
        self.objects = []  # the AddedTokens that tokenizer_config.json gives as objects for named and extra tokens
        self._read_described(described)
        self._read_named(described)

    def _token(self, value, key, file=None, **flags):
        """A text stays one; an object becomes an AddedToken."""
        if isinstance(value, (str, AddedToken)):
            return value
        try:
            members = {name: one for name, one in value.items() if name not in ("__type", "id")}
            if not isinstance(members["content"], str):
                raise TypeError
            return AddedToken(**(members | flags))
        except (AttributeError, TypeError, KeyError):
            raise InputError(
                f"{file or self.file}: `{key}`: expected a token, a text or an object with `content`, found "
                f"{json.dumps(value)[:80]}"
            ) from None

    def _members(self, value, key, kind, file=None):
        if not isinstance(value, kind):
            names = {dict: "an object", list: "a list"}
            raise InputError(f"{file or self.file}: `{key}`: expected {names[kind]}, found {json.dumps(value)[:80]}")
        return value.items() if kind is dict else value

    def _convert(self, file=None):
        """Texts and AddedTokens in the place of objects, for all keys that hold tokens."""
        config = self.config
        for key in NAMED:
            if config.get(key) is not None:
                config[key] = self._token(config[key], key, file)
        key = "extra_special_tokens"
        if "additional_special_tokens" in config:
            config.setdefault(key, config.pop("additional_special_tokens"))
        if isinstance(config.get(key), dict):  # it may give names to its tokens
            more = config.pop(key)
            self.model_specific |= {name: self._token(more[name], f"{key}.{name}", file) for name in more}
        elif config.get(key) is not None:
            config[key] = [self._token(one, key, file) for one in self._members(config[key], key, list, file)]

    def _read_described(self, described):
        config = self.config
        self.model_specific = {
            key: value
            for key, value in config.items()
            if key.endswith("_token") and key not in NAMED and isinstance(value, str)
        }
        for key in self.model_specific:
            del config[key]
        self._convert()
        held = [config.get(key) for key in NAMED] + list(config.get("extra_special_tokens") or [])
        self.objects = [token for token in held if isinstance(token, AddedToken)]
        if "added_tokens_decoder" not in config:
            self._read_legacy_files(described)
            return
        for index, value in self._members(config["added_tokens_decoder"], "added_tokens_decoder", dict):
            key = f"added_tokens_decoder.{index}"
            if not index.isdecimal() or isinstance(value, str):
                raise InputError(f"{self.file}: `{key}`: expected an id and an object with `content`")
            self._describe(int(index), self._token(value, key))

    def _read_legacy_files(self, described):
        config, extra = self.config, "extra_special_tokens"
        file = self.folder / "special_tokens_map.json"
        for key, value in read_object(file).items():
            if isinstance(value, dict) and key != extra:
                value = self._token(value, key, file, special=True)
            elif key == extra and isinstance(value, list):
                before = config.get(extra) or []
                more = [self._token(one, key, file, special=True) for one in value]
                value = before + [one for one in more if one not in before]
            config[key] = value
        self._convert(file)
        # transformers compares the texts of added_tokens.json with these before objects have become tokens.
        held = [config[key] for key in NAMED if config.get(key)] + list(config.get(extra) or [])
        special = {_text(one) for one in held if not any(one is other for other in self.objects)}
        file = self.folder / "added_tokens.json"
        for text, index in read_object(file).items():
            if type(index) is not int:
                raise InputError(f"{file}: `{text}`: expected an id, found {json.dumps(index)[:80]}")
            self._describe(index, AddedToken(text, normalized=text not in special, special=text in special))
        for one in described.get("added_tokens") or []:
            self._describe(one["id"], self._token(one, "added_tokens", self.folder / "tokenizer.json"))

    def _describe(self, index, token):
        self.decoder[index] = self.by_text[_text(token)] = token

    def _read_named(self, described):
        config = self.config
        padding = described.get("padding")
        if isinstance(padding, dict) and isinstance(padding.get("pad_token"), str):
            config.setdefault("pad_token", padding["pad_token"])
        found = {key: self.by_text.get(_text(config[key]), config[key]) for key in NAMED if config.get(key) is not None}
        for key, value in config.items():
            is_token = isinstance(value, dict) and value.get("__type") == "AddedToken"
            is_token = is_token or isinstance(value, (str, AddedToken))
            if key.endswith("_token") and key not in NAMED and is_token:
                found[key] = self._token(value, key)
        self.named = found | self.model_specific
        self.extra = config.get("extra_special_tokens") or []

    def tokens(self, present):
        # The order and the comparisons are those of TokenizersBackend.__init__.
        to_add = [token for _, token in sorted(self.decoder.items())]
        known = set(present) | {_text(token) for token in to_add}
        for token in [*self.named.values(), *self.extra]:
            if _text(token) not in known and token not in to_add:
                to_add.append(token)
        names = {_text(token) for token in self.named.values()}
        added = []
        for token in to_add:
            if isinstance(token, str):
                added.append(AddedToken(token, special=True))
                continue
            if _text(token) in names:
                token.special = True
            added.append(token)
        split = self.config.get("split_special_tokens", False)
        named = {key: _text(token) for key, token in self.named.items() if _text(token)}
        return ConfigTokens(added, named, bool(split))


def _text(token):
    return token if isinstance(token, str) else token.content
