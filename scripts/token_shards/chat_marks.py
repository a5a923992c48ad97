"""The known chat templates, and the edits that add {% generation %} marks to them.

A template is known by the SHA-256 of its text. The edits replace pieces of the stock text, so that everything else of
the template stays as it is; the marked template renders the same text as the stock one. The marks are around what the
model writes: content, thinking, tool calls and the token that ends the turn, not the header and not the white space
after the end of the turn. There is one block for each assistant message.

Two variables are read by the marked templates alone:
  mask_generation_prompt   (true if undefined) an empty think block that the template inserts has no loss where the
                           generation prompt may have written it
  as_generated             (false if undefined) --turns each: the last turn is written as the model generates it after
                           the generation prompt, where the stock template writes it in another way
docs/tokenize.md has the table of the families.
"""

import hashlib
from dataclasses import dataclass

from . import chat_edits as edits


@dataclass(frozen=True)
class Family:
    name: str
    hashes: tuple  # of the normalised stock texts
    edits: tuple  # (text of the stock template, which occurs once; its replacement)
    each: str = ""  # what --turns each writes differently from the stock template


def template_hash(text):
    """SHA-256 of the text without carriage returns and without white space at its ends."""
    return hashlib.sha256(text.replace("\r\n", "\n").strip().encode()).hexdigest()


def recognise(text):
    """The family of a stock template, or None."""
    return _BY_HASH.get(template_hash(text))


def marked(text, family):
    """The stock template with its family's marks."""
    text = text.replace("\r\n", "\n")
    for old, new in family.edits:
        assert text.count(old) == 1, (family.name, text.count(old), old)
        text = text.replace(old, new)
    return text


_R1_EACH = "the last turn is its reasoning, </think> and its answer"

FAMILIES = (
    Family(
        "Qwen3",
        (
            "87a2728cb8dc9fe424d624542f6060ec05a1d285ebbec578bb078900e33396b5",
            "a55ee1b1660128b7098723e0abcd92caa0788061051c62d51cbe87d9cf1974d8",
        ),
        (edits.QWEN3_TURN, edits.QWEN_END),
        each="with enable_thinking=false, the reasoning of the last turn is left out",
    ),
    Family(
        "Qwen3 2507 (instruct)",
        ("64f85b198065d0fba2a81f37e10ed68161ce2c19a754c7100e67e0ca2ee9c326",),
        (edits.QWEN3_2507_TURN, edits.QWEN_END),
    ),
    Family(
        "Qwen2.5",
        ("55b2f4a26ac9ee719330a61a0c39d9e538b0e9322212f048326318cff4f8674a",),
        edits.QWEN2_5,
    ),
    Family(
        "Llama 3",
        ("ba03a121d097859c7b5b9cd03af99aafe95275210d2876f642ad9929a150f122",),
        edits.LLAMA3,
    ),
    Family(
        "Llama 3.1",
        ("93c0e9aa3629bbd77e68dbc0f5621f6e6b23aa8d74b932595cdb8d64684526d7",),
        edits.LLAMA3_1,
    ),
    Family(
        "Llama 3.2",
        ("d82792f95932f1c9cef5c4bd992f171225e3bf8c7b609b4557c9e1ec96be819f",),
        edits.LLAMA3_2,
    ),
    Family(
        "Gemma 2",
        ("ecd6ae513fe103f0eb62e8ab5bfa8d0fe45c1074fa398b089c93a7e70c15cfd6",),
        edits.GEMMA,
    ),
    Family(
        "Gemma 3",
        ("8d9e3a3c114fb2053ec500184677af4f7e5f8ec2582443cd535834e68b3ade29",),
        edits.GEMMA3,
    ),
    Family(
        "Mistral 7B v0.1",
        ("7e995b379ec01747807246483647cd99030abf331653f1119e16d7ac041a3495",),
        edits.MISTRAL_V1,
    ),
    Family(
        "Mistral 7B v0.2",
        ("26a59556925c987317ce5291811ba3b7f32ec4c647c400c6cc7e3a9993007ba7",),
        edits.MISTRAL_V2,
    ),
    Family(
        "Mistral Nemo",
        ("e7deee034838db2bfc7487788a3013d8a307ab69f72f3c54a85f06fd76007d4e",),
        edits.MISTRAL_NEMO,
    ),
    Family(
        "SmolLM2",
        ("872be49dbb638044ad01b60388f48d469ff2980e5f0dccdc22ec907db54d0788",),
        edits.SMOLLM2,
    ),
    Family(
        "SmolLM3",
        ("cbc1d50f777ec029b33f53b23d7a224cceb65bcc8c7fac54946dbb56514e4d1e",),
        edits.SMOLLM3,
    ),
    Family(
        "DeepSeek-R1 distilled",
        ("56a1447ad31926fdc21fb07e56e5642bd9c850c4f52d8c8af7bbe5f079a84f5f",),
        edits.R1,
        each=_R1_EACH,
    ),
    Family(
        "DeepSeek-R1 distilled (llama.cpp)",
        ("dd2675619a64a449cdcdd2b93e605a0a50764cee41e344f244752bc93643936c",),
        edits.R1_LLAMA_CPP,
        each=_R1_EACH,
    ),
    Family(
        "DeepSeek-R1 distilled (llama.cpp, enable_thinking)",
        ("bbe594884b44d740667ee65a70bc8d333a565eab3d63ea59f291ea73ada84ba6",),
        edits.R1_LLAMA_CPP_ENABLE_THINKING,
        each=_R1_EACH,
    ),
)

_BY_HASH = {digest: family for family in FAMILIES for digest in family.hashes}
