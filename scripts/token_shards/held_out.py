"""Sends each document to training or to the held-out set, by a hash of its number in the output."""

import hashlib
import heapq


class Split:
    def __init__(self, seed, eval_fraction, eval_tokens, train, held_out):
        self.seed, self.eval_fraction, self.eval_tokens = seed, eval_fraction, eval_tokens
        self.train, self.held_out = train, held_out
        self.count = 0
        # With eval_tokens: the documents with the smallest hashes, at least eval_tokens. A heap of (-hash, number,
        # document), the largest hash first.
        self.chosen = []
        self.chosen_tokens = 0

    def add(self, document):
        """`document`: the arguments of ShardFolder.add."""
        number, self.count = self.count, self.count + 1
        if self.held_out is None:
            self.train.add(*document)
            return
        key = self._key(number)
        if self.eval_fraction is not None:
            (self.held_out if key < self.eval_fraction * 2**64 else self.train).add(*document)
            return
        self._choose(number, document)
        while self.chosen_tokens - len(self.chosen[0][2][0]) >= self.eval_tokens:
            _, _, document = heapq.heappop(self.chosen)
            self.chosen_tokens -= len(document[0])
            self.train.add(*document)

    def _key(self, number):
        digest = hashlib.blake2b(f"{self.seed}:{number}".encode(), digest_size=8).digest()
        return int.from_bytes(digest, "little")

    def _choose(self, number, document):
        heapq.heappush(self.chosen, (-self._key(number), number, document))
        self.chosen_tokens += len(document[0])

    def finish(self):
        for _, _, document in sorted(self.chosen, key=lambda entry: entry[1]):
            self.held_out.add(*document)
        self.chosen = []

    def state(self):
        """(what JSON can hold, the chosen documents)"""
        return {"count": self.count, "chosen": [number for _, number, _ in self.chosen]}, [
            document for _, _, document in self.chosen
        ]

    def restore(self, state, documents):
        self.count = state["count"]
        for number, document in zip(state["chosen"], documents):
            self._choose(number, document)
