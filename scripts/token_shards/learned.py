"""Which messages of a record are learned: by keys of the messages, by masks of the record, by keys of the record."""

from typing import NamedTuple

from .errors import BadDocument
from .json_values import load_json, short_text
from .unused_keys import PLAIN_KEYS

# Keys with which the data of other trainers says whether a turn is learned, and the value with which it is.
LEARNED_KEYS = {
    "weight": True,  # OpenAI, Mistral, OpenChat, Fireworks
    "train": True,  # axolotl
    "training": True,  # axolotl
    "loss": True,  # ms-swift, XTuner, AgentInstruct
    "loss_scale": True,  # ms-swift
    "loss_weight": True,
    "compute_loss": True,
    "loss_mask": True,
    "step_loss_mask": True,  # slime
    "output_with_loss": True,  # XTuner
    "trainable": True,
    "learn": True,
    "masked": False,  # torchtune
}
# Keys that say something about the loss which cannot be followed.
REFUSED_KEYS = {
    "mask": "does 1 mean that the loss is taken, or that it is hidden? Name it train (true: the loss is taken)",
    "train_detail": "the loss is taken on whole turns, not on parts of one",
    "training_detail": "the loss is taken on whole turns, not on parts of one",
}
# Lists of a record with one entry for each message.
MASKS = (
    "loss_mask",
    "loss_masks",
    "assistant_masks",
    "assistant_mask",
    "completion_mask",
    "train_mask",
    "turn_mask",
    "message_mask",
    "weights",
)
# Keys with which preference data says whether an answer is a wanted one.
WANTED_KEYS = ("label", "kto_tag")
RECORD_KEYS = (*dict.fromkeys((*LEARNED_KEYS, *REFUSED_KEYS, *MASKS, *WANTED_KEYS)),)
LEARNED = "train"  # the key of a message with its Learned, from mark_learned() to the ChatEncoder


class Learned(NamedTuple):
    """Whether the loss is to be taken on a message, and the key of the input that says so."""

    wanted: bool
    key: str


def learned_value(value, key, place):
    """True, False, or None where the value is null. BadDocument: it is neither."""
    if value is None:
        return None
    if isinstance(value, (bool, int, float)) and value in (0, 1):
        return bool(value) == LEARNED_KEYS.get(key, True)
    fraction = isinstance(value, (int, float)) and ": the loss of a turn is taken or not, it has no other weights"
    raise BadDocument(
        f"{key} is not 0 or 1",
        f"{place}: {key}: expected 0 or 1, or false or true, found {short_text(value)}{fraction or ''} ({_REMEDY})",
    )


_REMEDY = "if the key means something else: --ignore-key"


def mark_learned(messages, masks, place):
    """The messages without the keys of LEARNED_KEYS, each with its Learned where the record says something about it.
    `masks`: what record_learned() returned."""
    if not isinstance(messages, list):
        return messages  # which check_messages() refuses
    for name, values in masks:
        if len(values) != len(messages):
            raise BadDocument(
                "a mask of another length",
                f"{place}: {name}: expected a value for each of the {len(messages)} messages, found {len(values)}",
            )
    return [_marked(message, masks, index, f"{place}[{index}]") for index, message in enumerate(messages)]


def _marked(message, masks, index, place):
    if not isinstance(message, dict) or (not masks and message.keys() <= PLAIN_KEYS):
        return message
    for key in REFUSED_KEYS.keys() & message.keys():
        _refuse(key, message[key], place)
    said = [(key, message[key]) for key in LEARNED_KEYS if key in message]
    said += [(name, values[index]) for name, values in masks]
    if not said:
        return message
    found = [Learned(value, key) for key, one in said if (value := learned_value(one, key, place)) is not None]
    if len({one.wanted for one in found}) > 1:
        keys = " and ".join(f"{key}: {short_text(one)}" for key, one in said)
        raise BadDocument(
            "keys that contradict each other", f"{place}: expected keys that agree about the loss, found {keys}"
        )
    out = {key: value for key, value in message.items() if key not in LEARNED_KEYS}
    return out | {LEARNED: found[0]} if found else out


def _refuse(key, value, place):
    if value is None or value == []:
        return
    raise BadDocument(
        f"{key} cannot be followed", f"{place}: {key}: {REFUSED_KEYS[key]}; found {short_text(value)} ({_REMEDY})"
    )


def record_learned(record, taken, where):
    """(whether the record may be learned, [(name, list)] of the masks for its messages). `taken`: keys that the
    format of the record gives another meaning."""
    wanted, masks = True, []
    for key in RECORD_KEYS:
        value = None if key in taken else record.get(key)
        if value is None:
            continue
        if key in WANTED_KEYS:  # a class, where it is no true or false
            if value is False:
                raise BadDocument(
                    f"{key} says that the answer is not wanted",
                    f"{where}: {key}: false: preference data marks an answer as unwanted with it; leave the record "
                    f"out ({_REMEDY})",
                )
            continue
        if key in MASKS and isinstance(value, str):  # a column of CSV
            value = load_json(value, f"{where}: {key}")
        if key in MASKS and isinstance(value, list):
            masks.append((key, value))
        elif key in REFUSED_KEYS:
            _refuse(key, value, where)
        elif learned_value(value, key, where) is False:
            wanted = False
    return wanted, masks


def check_no_masks(masks, where, what):
    if masks:
        raise BadDocument(
            "a mask without messages", f"{where}: {masks[0][0]}: expected no mask beside {what}, which has no messages"
        )


def take_learned(messages):
    """The Learned of each message, or None, which is taken out: a chat template is not to see it."""
    return [message.pop(LEARNED, None) for message in messages]


def wanted_turns(messages, learned, loss_from, loss_on, where):
    """The numbers of the assistant's messages that have a loss. BadDocument: a key asks for a loss, or for none, on a
    message where that cannot be."""
    turns = []
    for index, (message, said) in enumerate(zip(messages, learned)):
        is_turn = message["role"] == "assistant" and index >= loss_from
        place = f"{where}: messages[{index}] ({message['role']}): {said.key if said else ''}"
        if said is not None and said.wanted and not is_turn and loss_on != "all":
            part = "what the assistant has written" if message["role"] != "assistant" else "the completion"
            raise BadDocument("a loss where none can be", f"{place} asks for a loss, which can be on {part} only")
        if said is not None and not said.wanted and loss_on == "all":
            raise BadDocument(
                "a message without loss under --loss-on all",
                f"{place} asks for no loss, and --loss-on all takes it on everything",
            )
        if is_turn and (said is None or said.wanted):
            turns.append(index)
    return turns
