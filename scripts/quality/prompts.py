"""Beginnings of Python functions, from the held-out code: what models continue in scripts/quality.sh.

  scripts/quality.py prompts --text work/quality/text/test-code-whole.jsonl --out work/quality/prompts.json

A prompt is a function's source from `def` to the end of its docstring. Which functions are taken, and their order,
depends only on the text.
"""

import ast
import hashlib
import json
import textwrap
from pathlib import Path

from shared.command_line import fail

from .corpus import read_jsonl

MAX_CHARS = 900
MIN_BODY_LINES = 3


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
    """The source from `def` to the docstring's end, if what follows is a body of some lines and all of it parses."""
    end = start + 1
    while end < len(lines) and (not lines[end].strip() or len(lines[end]) - len(lines[end].lstrip()) > indent):
        end += 1
    source = textwrap.dedent("\n".join(lines[start:end])) + "\n"
    try:
        function = ast.parse(source).body[0]
    except (SyntaxError, ValueError, IndexError):
        return None
    if not isinstance(function, ast.FunctionDef) or ast.get_docstring(function) is None:
        return None
    docstring_end = function.body[0].end_lineno
    if len(function.body) < 2 or function.end_lineno - docstring_end < MIN_BODY_LINES:
        return None
    prompt = "\n".join(source.splitlines()[:docstring_end]) + "\n"
    return prompt if len(prompt) <= MAX_CHARS else None


def body_of(completion):
    """The lines of a completion that belong to the function: up to the first one that is not indented.

    The last line of a completion that was cut at its limit is dropped, since it may be half a line.
    """
    lines = completion.split("\n")
    for number, line in enumerate(lines):
        if line.strip() and not line[:1].isspace():
            return lines[:number]
    return lines[:-1]


def parses(prompt, completion):
    """Whether the function has a body beside its docstring, and Python can parse it."""
    source = prompt + "\n".join(body_of(completion)) + "\n"
    try:
        function = ast.parse(source).body[0]
    except (SyntaxError, ValueError):  # ValueError: null bytes
        return False
    return len(function.body) > 1


def main(args):
    found = {prompt for document in read_jsonl(args.text) for prompt in functions(document["text"])}
    if not found:
        fail(f"{args.text}: no function with a docstring and a body in it")
    ordered = sorted(found, key=lambda prompt: hashlib.sha256(prompt.encode()).digest())[: args.count]
    args.out.write_text(json.dumps(ordered, indent=1) + "\n")
    print(f"{args.out}: {len(ordered)} of {len(found)} functions")
