"""Requests of an on-policy round, and the lines that answer them (docs/onpolicy.md)."""

import json
from dataclasses import dataclass, field
from pathlib import Path

from shared.command_line import fail


@dataclass
class Row:
    """A request, and what has been written for it."""

    id: int
    prompt_ids: list
    seed: int
    max_new_tokens: int
    temperature: float
    top_p: float
    stop: list
    stop_token_ids: list
    weight_version: str
    ids: list = field(default_factory=list)
    logprobs: list | None = field(default_factory=list)
    finish_reason: str = ""
    written_by: str | None = None  # the version of the weights that the engine says it has

    def line(self):
        return json.dumps(
            {
                "id": self.id,
                "prompt_ids": self.prompt_ids,
                "completion_ids": self.ids,
                "finish_reason": self.finish_reason,
                "logprobs": self.logprobs,
                "weight_version": self.written_by,
                "teacher": None,
            }
        )


def read_requests(path):
    rows = []
    for number, line in enumerate(Path(path).read_text().splitlines(), 1):
        try:
            rows.append(Row(**json.loads(line)))
        except (ValueError, TypeError) as error:
            fail(f"{path}:{number}: not a request: {error}")
    return rows
