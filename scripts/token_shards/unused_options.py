"""Options that were given and had nothing to act on."""

from .text_table import DELIMITERS
from .unused_keys import OTHER_PATHS


def unused_option_lines(args, kinds, tally):
    """The lines for the end of a conversion's output. `kinds`: those of the files that were read."""
    read = set(tally.formats)
    groups = (
        (
            "no conversation was read",
            not tally.templates,
            {
                f"--chat-template {args.chat_template}": args.chat_template is not None,
                f"--loss-on {args.loss_on}": args.loss_on != "assistant" and "prompt-completion" not in read,
                f"--turns {args.turns}": args.turns != "all",
                f"--thinking {args.thinking}": args.thinking != "template",
                "--no-mask-generation-prompt": not args.mask_generation_prompt,
            },
        ),
        (
            "no text was read, and the chat template decides about conversations",
            not read & {"text", "prompt-completion"},
            {
                f"--bos {args.bos}": args.bos != "auto",
                "--no-eos": args.no_eos,
                f"--eos-token {args.eos_token}": args.eos_token is not None,
            },
        ),
        ("no text file was read", "text" not in kinds, {"--split-blank-lines": args.split_blank_lines}),
        ("no table was read", not set(kinds) & set(DELIMITERS), {f"--delimiter {args.delimiter!r}": args.delimiter}),
        ("no record has this key", "text" not in read, {f"--text-key {args.text_key}": args.text_key != "text"}),
        (
            "no record has this key",
            "messages" not in read,
            {f"--messages-key {args.messages_key}": args.messages_key != "messages"},
        ),
    )
    for why, applies, options in groups:
        for option, given in options.items():
            if applies and given:
                yield f"not used: {option}: {why}"
    names = {path.rpartition("[].")[2] for path in tally.unused}
    for key in args.ignore_key:
        if key not in names and OTHER_PATHS not in names:
            yield f"not used: --ignore-key {key}: no record has this key"
