r"""What Timiryasov and Tastet do with each file of the corpus before a tokenizer sees it (their mrclean.py).

Their marks for the beginning and end of a text are empty in the published code, so that a blank line between two texts
vanishes and the last line of one goes on with the first of the next; that is kept. `tests/scripts/test_baby_llama.py`
has an example of each.
"""

import re

BLANKS = "[ \t\u00a0]"


def _plain_spaces(text):
    """One space where several blanks were, and none before punctuation, as transcripts of speech have it."""
    return re.sub(rf"{BLANKS}([.,;!?])", r"\1", re.sub(f"{BLANKS}+", " ", text))


def _without_blank_lines(text):
    return text.replace("\n\n", "")


def _bnc_spoken(text):
    return _without_blank_lines(_plain_spaces(text))


def _cbt(text):
    return re.sub(rf"(\w){BLANKS}(['’]\w)", r"\1\2", _plain_spaces(text))


def _open_subtitles(text):
    """Without the lines that name who made the subtitles."""
    return "".join(line for line in text.splitlines(keepends=True) if "subtitle" not in line.lower())


def _qed_line(line):
    """Lines in capitals, of recognised print in which an I may be an l, are put in lower case, sentence by sentence."""
    letters = re.sub(r"\(.*?\)|[.!?]", "", line)
    if letters and sum(letter.isupper() for letter in letters) >= 0.5 * len(letters):
        line = "".join(part.capitalize() for part in re.split(r"([.!?]\s*)", line.replace("l", "I")))
    return line.strip()


def _qed(text):
    return "\n".join(map(_qed_line, text.splitlines()))


def _wikipedia(text):
    headings = re.sub(r"= = = (.+?) = = =\n", r"\1", text)
    return _without_blank_lines("\n".join(line.strip() for line in headings.splitlines()))


CLEAN = {
    "aochildes": _plain_spaces,
    "bnc_spoken": _bnc_spoken,
    "cbt": _cbt,
    "children_stories": str,
    "gutenberg": str,
    "open_subtitles": _open_subtitles,
    "qed": _qed,
    "simple_wikipedia": _without_blank_lines,
    "switchboard": str,
    "wikipedia": _wikipedia,
}
