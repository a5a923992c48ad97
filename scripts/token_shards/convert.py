"""The conversion: chunks of the input to workers, their tokens in the order of the input to shards, and a journal."""

import contextlib
import dataclasses
import multiprocessing
import os
import signal
from collections import deque
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool

from . import encode
from .bad_documents import Tally
from .encoded import Encoded, pack_documents, unpack_documents
from .errors import InputError, Unfinished
from .held_out import Split
from .journal import Journal
from .progress import Progress
from .readers import Position


def encoded(reader, options, workers):
    """(chunk, Encoded) in the order of the input; at most a few are in flight."""
    if workers == 1:
        encoder = encode.Encoder(options)
        for chunk in reader:
            yield chunk, encoder.encode(chunk)
        return
    # fork: a fresh interpreter might start in this folder and import tokenize.py as `tokenize`.
    context = multiprocessing.get_context("fork")
    with ProcessPoolExecutor(workers, context, encode.start_worker, (options, os.getpid())) as pool:
        with _held_signals():
            pool.submit(int)  # starts all workers before any file is open
        pending = deque()
        try:
            for chunk in reader:
                pending.append((chunk, pool.submit(encode.encode_chunk, chunk)))
                if len(pending) > 4 * workers:
                    chunk, result = pending.popleft()
                    yield chunk, result.result()
            while pending:
                chunk, result = pending.popleft()
                yield chunk, result.result()
        except BrokenProcessPool as error:
            raise Unfinished("a worker process died (out of memory?): try fewer --workers") from error
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


@contextlib.contextmanager
def _held_signals():
    """Signals that end the conversion come after this: one that is raised while Python forks would be printed and
    lost. The workers let them through once they have their own handlers."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, encode.ENDING_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class Conversion:
    """`outputs`: the folder for training and, with an evaluation part, the one for the held-out documents."""

    def __init__(self, args, reader, options, outputs, job):
        self.args, self.reader, self.options, self.outputs = args, reader, options, outputs
        # Standard input cannot be read again.
        self.journal = None if reader.bytes_total is None else Journal(outputs[0].work, job)
        held_out = outputs[1] if len(outputs) > 1 else None
        self.split = Split(args.seed, args.eval_fraction, args.eval_tokens, outputs[0], held_out)
        self.tally = Tally()
        self.position, self.bytes_done, self.finishing = Position(), 0, False
        self.finished = False  # the outputs are complete
        self.continued = False  # has something from an earlier process
        self.kept = 0  # chunks that the journal has
        self.progress = None

    def run(self):
        """Returns the names of the shards, for each output."""
        snapshot = self.journal.load(overwrite=self.args.overwrite) if self.journal else None
        if snapshot is not None:
            self._restore(*snapshot)
        if not self.finishing:
            for output in self.outputs:
                output.check_free()
            if snapshot is not None:
                self._replay()
            elif self.journal:
                self.journal.snapshot(*self._state())
            self._tokenise()
            self._check()
            self.split.finish()
            for output in self.outputs:
                output.flush()
            self.finishing = True
            if self.journal:
                self.journal.snapshot(*self._state())
        names = [output.finish() for output in self.outputs]
        if self.journal:
            self.journal.close()
        self.finished = True
        return names

    def has_work(self):
        """Whether the same command would continue, rather than begin again."""
        return self.journal is not None and not self.finished and (self.continued or self.kept > 0 or self.finishing)

    def tokens(self):
        pending = self.split.chosen_tokens if self.split.chosen else 0
        return pending + sum(output.tokens for output in self.outputs)

    def _written(self):
        return sum(output.written for output in self.outputs)

    def _tokenise(self):
        self.reader.start = self.position
        self.progress = Progress(self.args.quiet, self.reader.bytes_total, self.bytes_done, self.tokens())
        for chunk, result in encoded(self.reader, self.options, self.args.workers):
            written = self._written()
            if self.journal:
                place = {"position": dataclasses.astuple(chunk.after), "bytes_done": chunk.bytes_done}
                self.kept += 1
                self.journal.append({"chunk": result.meta(), **place}, result.arrays())
            self._take(result, chunk.after, chunk.bytes_done)
            self.tally.check(self.args.max_bad, final=False)
            if self.journal and self._written() > written:
                self.journal.snapshot(*self._state())
            self.progress.show(self.bytes_done, self.split.count, self.tokens())
        self.progress.show(self.bytes_done, self.split.count, self.tokens(), final=True)

    def _take(self, result, position, bytes_done):
        for document in result.documents:
            self.split.add(document)
        self.tally.add(result)
        self.position, self.bytes_done = position, bytes_done

    def _check(self):
        try:
            self.tally.check(self.args.max_bad, final=True)
        except InputError as error:
            if not self.journal:
                raise
            self.journal.mark_failed()
            raise Unfinished(
                f"{error}\nThe tokens are kept: the same command with a larger --max-bad ends at once"
            ) from error
        for output in self.outputs:
            documents = output.documents + (len(self.split.chosen) if output is self.split.held_out else 0)
            if not documents:
                held_out = 0 if output is self.split.held_out else self.split.count
                fraction, tokens = self.args.eval_fraction, self.args.eval_tokens
                option = f"--eval-fraction {fraction}" if tokens is None else f"--eval-tokens {tokens}"
                raise InputError(
                    f"{output.folder}: no document came to this output: the input has {self.split.count} documents "
                    f"with tokens ({self.tally.empty} empty, {self.tally.no_assistant} without an assistant's token, "
                    f"{self.tally.not_wanted} not to be learned, {self.tally.bad_count} bad)"
                    + (
                        f", and {option} holds out {held_out} of them"
                        if self.split.held_out and self.split.count
                        else ""
                    )
                    + "".join(f"\n{line}" for line in self.tally.bad_lines())
                )

    def _state(self):
        """(meta, arrays) from which `_restore` continues."""
        meta = {
            "position": dataclasses.astuple(self.position),
            "bytes_done": self.bytes_done,
            "tally": dataclasses.asdict(self.tally),
            "finishing": self.finishing,
            "outputs": [],
        }
        meta["split"], chosen = self.split.state()
        parts = {"chosen": chosen}
        for index, output in enumerate(self.outputs):
            state, parts[f"output {index}"] = output.state()
            meta["outputs"].append(state)
        arrays = {}
        for part, documents in parts.items():
            arrays |= {f"{part}: {name}": array for name, array in pack_documents(documents).items()}
        return meta, arrays

    def _restore(self, meta, arrays):
        def documents(part):
            begin = f"{part}: "
            return unpack_documents(
                {name.removeprefix(begin): a for name, a in arrays.items() if name.startswith(begin)}
            )

        self.position, self.bytes_done = Position(*meta["position"]), meta["bytes_done"]
        self.tally, self.finishing = Tally(**meta["tally"]), meta["finishing"]
        self.split.restore(meta["split"], documents("chosen"))
        for index, (output, state) in enumerate(zip(self.outputs, meta["outputs"])):
            output.restore(state, documents(f"output {index}"))
        self.continued = self.bytes_done > 0

    def _replay(self):
        """Takes the chunks that were encoded after the snapshot."""
        written = self._written()
        for meta, arrays in self.journal.frames():
            chunk = Encoded.of(meta["chunk"], arrays)
            self._take(chunk, Position(*meta["position"]), meta["bytes_done"])
            self.kept += 1
        self.continued = self.bytes_done > 0
        if self.continued and not self.args.quiet:
            share = self.bytes_done / max(self.reader.bytes_total, 1)
            print(
                f"continues an interrupted conversion at {100 * share:.1f} % ({self.split.count:,} documents)",
                flush=True,
            )
        if self._written() > written:
            self.journal.snapshot(*self._state())
