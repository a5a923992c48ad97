"""First halves of Python functions, from the held-out code: what models continue in scripts/studies/quality.sh.

  scripts/studies/quality.py prompts --text work/quality/text/test-code-whole.jsonl --out work/quality/prompts.json

A prompt is a function's source up to the middle of its body, where a statement of the body ends. It has no line feed
at its end: tokenizers join a line feed with the indentation that follows it, so that to a model a line feed alone says
that the next line is not indented, and the function over. Which functions are taken, and their order, depends only on
the text.
"""

import ast
import codeop
import hashlib
import json
import textwrap
import warnings
from pathlib import Path

from shared.command_line import fail

from .corpus import read_jsonl

MAX_CHARS = 1200
MIN_LINES_LEFT = 3  # of the function, after the prompt


def add_arguments(parser):
    parser.add_argument("--text", type=Path, required=True, help="JSONL of held-out Python files")
    parser.add_argument("--out", type=Path, required=True, help="JSON file to write")
    parser.add_argument("--count", type=int, default=256, help="most prompts (default 256)")


def functions(text):
    """The prompts in one file; none in a file (or an excerpt of one) that Python cannot parse."""
    lines = text.splitlines()
    for start, line in enumerate(lines):
        if not line.lstrip().startswith("def "):
            continue
        prompt = _prompt(lines, start, len(line) - len(line.lstrip()))
        if prompt is not None:
            yield prompt


def _prompt(lines, start, indent):
    """The source from `def` to the middle of the body, if all of it parses and enough is left to write."""
    end = start + 1
    while end < len(lines) and (not lines[end].strip() or len(lines[end]) - len(lines[end].lstrip()) > indent):
        end += 1
    source = textwrap.dedent("\n".join(lines[start:end])) + "\n"
    tree = parsed(source)
    if tree is None or not beginning_of_python(source) or not isinstance(tree.body[0], ast.FunctionDef):
        return None
    function = tree.body[0]
    body = function.body[1:] if ast.get_docstring(function) is not None else function.body
    given = body[: len(body) // 2]
    if not given or function.end_lineno - given[-1].end_lineno < MIN_LINES_LEFT:
        return None
    prompt = "\n".join(source.splitlines()[: given[-1].end_lineno])
    return prompt if len(prompt) <= MAX_CHARS else None


def parsed(source):
    """Its syntax tree; None if Python cannot parse it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of invalid escapes in strings
        try:
            return ast.parse(source)
        except (SyntaxError, ValueError):  # ValueError: null bytes
            return None


def beginning_of_python(source):
    """Whether Python can compile it, or could if something followed."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            codeop.compile_command(source, symbol="exec")
        except (SyntaxError, ValueError, OverflowError):
            return False
    return True


def body_of(completion):
    """(the part of a completion that belongs to the function, whether the function ends there)

    It ends before the first line that is not indented.
    The first line goes on where the prompt ended. The last line of a completion that was cut at its limit is dropped,
    since it may be half a line.
    """
    lines = completion.split("\n")
    for number, line in enumerate(lines[1:], 1):
        if line.strip() and not line[:1].isspace():
            return "\n".join(lines[:number]), True
    return "\n".join(lines[:-1]), False


def statements(source):
    """How many Python has in the longest beginning of whole lines that it can parse."""
    lines = source.splitlines()
    for end in range(len(lines), 0, -1):
        tree = parsed("\n".join(lines[:end]) + "\n")
        if tree is not None:
            return sum(isinstance(node, ast.stmt) for node in ast.walk(tree))
    return 0


def parses(prompt, completion):
    """Whether the completion adds a statement to the function at least, and has no syntax error as far as it goes.

    One that was cut at its limit may end within a bracket or a block.
    """
    body, ended = body_of(completion)
    source = prompt + body + "\n"
    if not beginning_of_python(source) or (ended and parsed(source) is None):
        return False
    return statements(source) > statements(prompt)


def main(args):
    found = {prompt for document in read_jsonl(args.text) for prompt in functions(document["text"])}
    if not found:
        fail(f"{args.text}: no function whose body has two halves in it")
    ordered = sorted(found, key=lambda prompt: hashlib.sha256(prompt.encode()).digest())[: args.count]
    args.out.write_text(json.dumps(ordered, indent=1) + "\n")
    print(f"{args.out}: {len(ordered)} of {len(found)} functions")
