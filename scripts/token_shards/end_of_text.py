"""The ids at which a generated text ends, and whether what is trained on ends with one of them."""

from dataclasses import dataclass

from .config_tokens import read_object
from .errors import InputError
from .json_values import short_text


@dataclass(frozen=True)
class EndIds:
    """`eos_token_id` of generation_config.json, which generate() of transformers and vLLM obey, or else of config.json
    (of a multimodal folder's `text_config`)."""

    ids: tuple = ()
    place: str = ""  # file and key

    @classmethod
    def read(cls, folder):
        """InputError: it is not an id or a list of ids."""
        for name, inner in (("generation_config.json", None), ("config.json", None), ("config.json", "text_config")):
            described = read_object(folder / name)
            described = described.get(inner) if inner else described
            found = described.get("eos_token_id") if isinstance(described, dict) else None
            if found is None:
                continue
            place = f"{folder / name}: `{inner + '.' if inner else ''}eos_token_id`"
            ids = found if isinstance(found, list) else [found]
            if not all(type(one) is int and one >= 0 for one in ids):
                raise InputError(f"{place}: expected an id or a list of ids, found {short_text(found)}")
            return cls(tuple(ids), place)
        return cls()

    def note(self, what, token_id, tokenizer, remedy):
        """A list with a line that says that `what` ends with a token at which no generation ends; else an empty one."""
        if not self.ids or token_id in self.ids:
            return []
        found = ", ".join(_named(one, tokenizer) for one in self.ids)
        return [
            f"{self.place}: expected {_named(token_id, tokenizer)}, with which {what}, found {found}: a model that is "
            f"trained on them does not stop at their end. {remedy}"
        ]

    def unknown_note(self, tokenizer):
        """A list with a line about ids that are no token; else an empty one."""
        unknown = [str(one) for one in self.ids if tokenizer.id_to_token(one) is None]
        return [f"{self.place}: {', '.join(unknown)}: no token of the tokenizer has this id"] if unknown else []


def _named(token_id, tokenizer):
    token = tokenizer.id_to_token(token_id)
    return f"{token_id} ({'no token' if token is None else token})"
