"""Finds documents that are nearly the same as an earlier one: MinHash over their lines, and locality-sensitive hashing.

Two documents are near duplicates if the estimated Jaccard index of their sets of lines is at least THRESHOLD. Lines are
compared without their white space, and lines with fewer than MIN_LINE characters (a brace, `return x`) do not count.
"""

import hashlib
import re

import xxhash

THRESHOLD = 0.6
PERMUTATIONS = 64
MIN_LINE = 12
SPACE = re.compile(r"\s+")


class Seen:
    """The documents so far. `reason(text)` says whether a text is a duplicate of one of them, and else adds it."""

    def __init__(self, threshold=THRESHOLD):
        from datasketch import MinHash, MinHashLSH

        self._threshold = threshold
        self._exact = set()
        self._index = MinHashLSH(threshold=threshold, num_perm=PERMUTATIONS)
        # A copy of one MinHash has the same permutations, and making them anew is slow.
        self._empty = MinHash(num_perm=PERMUTATIONS, seed=1, hashfunc=xxhash.xxh32_intdigest, scheme="legacy")
        self._hashes = []

    def reason(self, text):
        digest = hashlib.sha256(SPACE.sub(" ", text).encode()).digest()
        if digest in self._exact:
            return "duplicate"
        self._exact.add(digest)
        lines = {SPACE.sub("", line) for line in text.split("\n")}
        lines = sorted(line.encode() for line in lines if len(line) >= MIN_LINE)
        if not lines:
            return None
        minhash = self._empty.copy()
        minhash.update_batch(lines)
        for number in self._index.query(minhash):
            if self._hashes[number].jaccard(minhash) >= self._threshold:
                return "near duplicate"
        self._index.insert(len(self._hashes), minhash)
        self._hashes.append(minhash)
        return None
