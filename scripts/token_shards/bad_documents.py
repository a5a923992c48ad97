"""Counts what is left out of the output, and says when it is too much."""

import argparse
from dataclasses import dataclass, field

from .errors import InputError
from .unused_keys import count_unused, unused_lines

_SHOWN = 10  # special tokens
EARLY_RECORDS = 1000  # from here on, a corpus that is mostly bad ends before all of it was read


@dataclass(frozen=True)
class Limit:
    """At most `count` documents, or `share` of all documents, whichever is more."""

    count: int
    share: float = 0.0

    @classmethod
    def parse(cls, text):
        """N or P%."""
        try:
            if text.endswith("%"):
                share = float(text[:-1]) / 100
                if not 0 <= share <= 1:
                    raise ValueError
                return cls(0, share)
            if int(text) < 0:
                raise ValueError
            return cls(int(text))
        except ValueError as error:
            raise argparse.ArgumentTypeError(
                f"expected a number of documents or a share like 1%, found {text}"
            ) from error

    def __str__(self):
        parts = [f"{100 * self.share:g}%"] if self.share else []
        parts += [f"{self.count} documents"] if self.count or not parts else []
        return " or ".join(parts)

    def allows(self, bad, records):
        return bad <= max(self.count, self.share * records)


DEFAULT = Limit(10, 0.01)


@dataclass
class Tally:
    """What has been read and what was left out, over all chunks."""

    records: int = 0
    empty: int = 0
    no_assistant: int = 0
    not_wanted: int = 0
    templates: dict = field(default_factory=dict)  # name of a chat template: records that it has rendered
    formats: dict = field(default_factory=dict)
    bad: dict = field(default_factory=dict)  # reason: [count, message of the first]
    unused: dict = field(default_factory=dict)  # path of a key: [records, where the first is]
    special: dict = field(default_factory=dict)  # a special token within texts: the same

    def add(self, chunk):
        self.records += chunk.records
        self.empty += chunk.empty
        self.no_assistant += chunk.no_assistant
        self.not_wanted += chunk.not_wanted
        for total, counts in ((self.formats, chunk.formats), (self.templates, chunk.templates)):
            for name, count in counts.items():
                total[name] = total.get(name, 0) + count
        for reason, message in chunk.bad:
            self.bad.setdefault(reason, [0, message])[0] += 1
        for total, found in ((self.unused, chunk.unused), (self.special, chunk.special)):
            for path, (count, where) in found.items():
                count_unused(total, [path], where, count)

    @property
    def bad_count(self):
        return sum(count for count, _ in self.bad.values())

    def check(self, limit, *, final):
        """InputError: more bad documents than the limit. A share is one of all documents, so that it is compared at
        the end, or once most of very many documents are bad."""
        bad = self.bad_count
        if limit.share and not final:
            hopeless = self.records >= EARLY_RECORDS and bad > max(limit.share, 0.5) * self.records
            if not hopeless or bad <= limit.count:
                return
        if not limit.allows(bad, self.records):
            raise InputError(
                f"{bad:,} bad document{'s' * (bad != 1)} of {self.records:,}, and --max-bad allows {limit}:\n"
                + "\n".join(self.bad_lines())
            )

    def bad_lines(self):
        for reason, (count, message) in sorted(self.bad.items(), key=lambda one: -one[1][0]):
            yield f"  {count:,} {reason}; the first: {message}"

    def lines(self, limit):
        """What was left out and what was not used, for the end of the output."""
        if self.empty:
            yield f"left out: {self.empty:,} empty documents"
        if self.no_assistant:
            yield f"left out: {self.no_assistant:,} conversations without an assistant's token"
        if self.not_wanted:
            yield f"left out: {self.not_wanted:,} documents whose keys say that nothing of them is learned"
        if self.bad:
            yield f"left out: {self.bad_count:,} bad documents (--max-bad allows {limit})"
            yield from self.bad_lines()
        if self.special:
            most = sorted(self.special.items(), key=lambda one: (-one[1][0], one[0]))
            named = ", ".join(f"{token} ({count:,}; the first: {where})" for token, (count, where) in most[:_SHOWN])
            more = f" and {len(most) - _SHOWN} more" if len(most) > _SHOWN else ""
            yield f"special tokens that are written in the texts of records, and are encoded as such: {named}{more}"
        yield from unused_lines(self.unused)
