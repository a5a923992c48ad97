"""Everything that the output of a conversion depends on, by name: an interrupted one continues only the same job."""

import hashlib
import importlib.metadata
from pathlib import Path

from .inputs import describe_files

# Options that do not change the output, and those whose effect is described by something else below.
_OTHER = {
    "workers",
    "quiet",
    "overwrite",
    "max_bad",
    "output",
    "inputs",
    "include",
    "exclude",
    "tokenizer",
    "teacher_tokenizer",
}


def describe_job(args, files, options):
    """{name: value}; a value is what JSON can hold."""
    job = {f"--{name.replace('_', '-')}": value for name, value in vars(args).items() if name not in _OTHER}
    job["tokenizer"] = _digest(f"{options.tokenizer.to_str()} {options.tokenizer.encode_special_tokens}".encode())
    job["special tokens"] = [list(options.bos_ids), list(options.eos_ids), options.special_tokens]
    templates = options.chat_templates
    job["chat template"] = [templates.always, {name: _digest(text.encode()) for name, text in templates.texts.items()}]
    if options.teacher is not None:
        its = options.teacher
        job["teacher's tokenizer"] = _digest(f"{its.tokenizer.to_str()} {its.tokenizer.encode_special_tokens}".encode())
        job["teacher's special tokens"] = [list(its.bos_ids), list(its.eos_ids), its.special_tokens]
        texts = its.chat_templates.texts
        job["teacher's chat template"] = [
            its.chat_templates.always,
            {name: _digest(text.encode()) for name, text in texts.items()},
        ]
    job["program"] = _digest(b"".join(path.read_bytes() for path in sorted(Path(__file__).parent.glob("*.py"))))
    for library in ("tokenizers", "transformers"):
        job[library] = importlib.metadata.version(library)
    job["input files"] = len(files)
    described = {f"input {path}": text for path, text in describe_files(files).items()}
    return _plain(job | described)


def _digest(data):
    return "SHA-256 " + hashlib.sha256(data).hexdigest()[:16]


def _plain(value):
    """As JSON would return it, so that a job can be compared with one that was read."""
    if isinstance(value, dict):
        return {str(name): _plain(one) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(one) for one in value]
    return value
