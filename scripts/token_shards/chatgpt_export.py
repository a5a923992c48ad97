"""A conversation of ChatGPT's export (conversations.json): a tree of messages and the last one that was shown."""

from .errors import BadDocument
from .json_values import found_text, load_json, short_text


def from_chatgpt(mapping, current, where):
    """The messages from the root of the tree to the node `current`, with role, content and the weight of answers.
    BadDocument: something on this path is no text of a user, an assistant or the system."""
    if isinstance(mapping, str):
        mapping = load_json(mapping, f"{where}: mapping")
    if not isinstance(mapping, dict):
        raise BadDocument(
            "mapping is not an object", f"{where}: mapping: expected an object, found {found_text(mapping)}"
        )
    path, seen = [], set()
    while current is not None:
        node = mapping.get(current) if isinstance(current, str) else None
        if not isinstance(node, dict) or current in seen:
            what = "a node that it does not have" if node is None else "a node for the second time"
            raise BadDocument(
                "the tree of messages is broken",
                f"{where}: mapping: expected a path to the root, found {what}: {current}",
            )
        seen.add(current)
        path.append((current, node.get("message")))
        current = node.get("parent")
    messages = [_message(message, f"{where}: mapping: {name}") for name, message in reversed(path) if message]
    # The export begins with a system message that is empty.
    return [one for one in messages if one["role"] != "system" or one["content"].strip()]


def _message(message, place):
    author, content = (message.get(key) if isinstance(message, dict) else None for key in ("author", "content"))
    if not isinstance(author, dict) or not isinstance(content, dict):
        raise BadDocument(
            "a message has no author or no content",
            f"{place}: expected a message with author and content, found {found_text(message)}",
        )
    kind, parts = content.get("content_type"), content.get("parts")
    if kind != "text" or not isinstance(parts, list) or not all(isinstance(part, str) for part in parts):
        raise BadDocument(
            "a message is not text",
            f"{place}: content_type: expected a text, found {short_text(kind)} (of {short_text(author.get('role'))})",
        )
    if message.get("recipient") not in (None, "all"):
        raise BadDocument(
            "a message to a tool", f"{place}: recipient: expected all, found {short_text(message['recipient'])}"
        )
    out = {"role": author.get("role"), "content": "".join(parts)}
    # Every message has a weight; that of a question says nothing of a loss.
    weighed = out["role"] == "assistant" and message.get("weight") is not None
    return out | {"weight": message["weight"]} if weighed else out
