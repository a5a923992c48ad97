"""The chat templates of a model's folder, read as transformers 5 reads them, and which one a conversation gets.

A folder may have several by name. The first of these that is there counts:
  chat_template.jinja (the name `default`) and additional_chat_templates/NAME.jinja
  the chat_template of tokenizer_config.json: a text (`default`), or a list of names and templates
  chat_template.json, which transformers' processors read: a text
"""

from dataclasses import dataclass, field

from .errors import InputError
from .json_values import found_text

DEFAULT, TOOL_USE = "default", "tool_use"


@dataclass(frozen=True)
class ChatTemplates:
    texts: dict = field(default_factory=dict)  # by name
    always: str | None = None  # the name of the only one that is used

    @classmethod
    def chosen(cls, texts, choice):
        """`texts`: read_templates(); `choice`: one of their names, or a file, or None."""
        if choice is None or choice in texts:
            return cls(texts, choice)
        try:
            with open(choice, encoding="utf-8") as file:
                return cls({DEFAULT: file.read()})
        except FileNotFoundError as error:
            names = ", ".join(sorted(texts)) or "none"
            raise InputError(
                f"--chat-template {choice}: no such file, and no template of the tokenizer has this name (found "
                f"{names})"
            ) from error
        except UnicodeDecodeError as error:
            raise InputError(f"--chat-template {choice}: not UTF-8") from error

    def name_for(self, tools, where):
        """The name of the template of a conversation with these tools, as in transformers; None: there is none."""
        if not self.texts:
            return None
        if self.always is not None:
            return self.always
        if tools and TOOL_USE in self.texts:
            return TOOL_USE
        if DEFAULT in self.texts:
            return DEFAULT
        raise InputError(
            f"{where}: no chat template for this conversation: expected one named {DEFAULT} in the tokenizer's folder, "
            f"found {', '.join(sorted(self.texts))}. Name one with --chat-template"
        )


def read_templates(folder, tokenizer_config, read_json):
    """{name: text of the template}. `tokenizer_config`: the object in tokenizer_config.json; `read_json(path)` reads
    another one. InputError: a template has another form."""
    texts = {}
    if (folder / "chat_template.jinja").is_file():
        texts[DEFAULT] = _text(folder / "chat_template.jinja")
    for path in sorted((folder / "additional_chat_templates").glob("*.jinja")):
        texts[path.name.removesuffix(".jinja")] = _text(path)
    if texts:
        return texts
    found, place = tokenizer_config.get("chat_template"), folder / "tokenizer_config.json"
    if found is None and (folder / "chat_template.json").is_file():
        place = folder / "chat_template.json"
        found = read_json(place).get("chat_template")
    if found is None:
        return {}
    if isinstance(found, list) and all(isinstance(one, dict) for one in found):
        found = {one.get("name"): one.get("template") for one in found}
    texts = found if isinstance(found, dict) else {DEFAULT: found}
    if not texts or not all(isinstance(one, str) for pair in texts.items() for one in pair):
        raise InputError(
            f"{place}: chat_template: expected a text, or a list of objects with a name and a template, found "
            f"{found_text(tokenizer_config.get('chat_template'))}"
        )
    return texts


def _text(path):
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not UTF-8: byte {error.start} is 0x{error.object[error.start]:02x}") from error
