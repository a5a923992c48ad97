"""Import of hidden states: safetensors with `token_ids` [T] and `hidden_states` [T, layers, H] or [T, H]."""

from dataclasses import dataclass

import numpy as np
import torch

from shared.command_line import fail
from teacher_cache import folder as cache_folder
from teacher_cache.importer import Importer
from teacher_cache.norm import is_after_norm, rms_norm
from teacher_cache.part_file import Stretch
from teacher_cache.reading import is_number, open_tensors

SAMPLE = 512  # tokens that are measured
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
INTEGERS = ("I8", "I16", "I32", "I64", "U8", "U16", "U32", "U64")  # as safetensors names them
FLOATS = ("BF16", "F16", "F32", "F64")


@dataclass(frozen=True)
class Shape:
    tokens: int
    layers: int
    dtype: str  # of the hidden states


def shape_of(file, path, hidden_size):
    """The shapes and dtypes in the head of an open dump; no tensor is read. Exits where it is no dump of this model."""
    names = set(file.keys())
    if not {"token_ids", "hidden_states"} <= names:
        fail(f"{path}: expected the tensors token_ids and hidden_states, found {', '.join(sorted(names))}")
    ids, hidden = file.get_slice("token_ids"), file.get_slice("hidden_states")
    for name, tensor, known in (("token_ids", ids, INTEGERS), ("hidden_states", hidden, FLOATS)):
        if tensor.get_dtype() not in known:
            fail(f"{path}: {name}: expected one of {', '.join(known)}, found {tensor.get_dtype()}")
    tokens, shape = ids.get_shape(), hidden.get_shape()
    if len(shape) not in (2, 3) or shape[-1] != hidden_size:
        fail(f"{path}: hidden_states: expected [tokens, layers, {hidden_size}], found {shape}")
    if tokens != shape[:1]:
        fail(
            f"{path}: expected a hidden state for each token, found {shape[0]} for {tokens} tokens; turn prefix "
            "caching off in the program that wrote it"
        )
    return Shape(shape[0], shape[1] if len(shape) == 3 else 1, hidden.get_dtype())


class HiddenStates(Importer):
    def __init__(self, arguments, documents, files):
        super().__init__(arguments, documents)
        self.lm_head, self.norm = cache_folder.read_head(arguments.teacher)
        self.eps = self.config.get("rms_norm_eps", 1e-6)
        if not is_number(self.eps):
            fail(f"{arguments.teacher}/config.json: rms_norm_eps: expected a number, found {self.eps!r}")
        shapes = self.look_through(files)
        self.layer = arguments.layer % shapes[0].layers
        self.longest = max([2, *(shape.tokens for shape in shapes)])
        self.after_norm = self.decide(files)  # of all dumps
        stored = "bfloat16" if {shape.dtype for shape in shapes} == {"BF16"} else "float32"
        self.encoding = self.compute_dtype = self.precision = arguments.dtype or stored
        self.row_bytes = self.lm_head.shape[1] * DTYPES[self.encoding].itemsize

    def look_through(self, files):
        """The shapes of all dumps, which must agree."""
        shapes = []
        for path in files:
            with open_tensors(path) as file:
                shapes.append(shape_of(file, path, self.lm_head.shape[1]))
            layers, expected = shapes[-1].layers, shapes[0].layers
            if layers != expected:
                fail(f"{path}: hidden_states: expected {expected} layers, as {files[0]} has, found {layers}")
            if not -layers <= self.arguments.layer < layers:
                fail(f"{path}: --layer: expected one of {layers} layers, found {self.arguments.layer}")
        return shapes

    def read(self, path):
        """(token ids [T], hidden states [T, layers, H])"""
        with open_tensors(path) as file:
            tokens, hidden = file.get_tensor("token_ids").long(), file.get_tensor("hidden_states")
        last = len(self.lm_head) - 1
        for token in ((tokens < 0) | (tokens > last)).nonzero().flatten().tolist()[:1]:
            found = tokens[token].item()
            fail(f"{path}: token_ids: token {token}: expected one of the vocabulary, 0 to {last}, found {found}")
        return tokens.numpy(), hidden[:, None] if hidden.ndim == 2 else hidden

    def decide(self, files):
        """Measures the first dumps that have SAMPLE tokens; all dumps are treated alike."""
        states, labels = [], []
        for path in files:
            tokens, hidden = self.read(path)
            if len(tokens) > 1:
                states.append(hidden[:-1])
                labels.append(torch.from_numpy(tokens[1:].copy()).long())
            if sum(map(len, labels)) >= SAMPLE:
                break
        if not labels:
            fail(f"{files[0]}: expected sequences of at least two tokens")
        layers = torch.cat(states)[:SAMPLE].unbind(1)
        targets = torch.cat(labels)[:SAMPLE]
        after_norm = is_after_norm(layers, self.layer, targets, self.lm_head, self.norm, self.eps, str(files[0]))
        print(f"the hidden states are {'after' if after_norm else 'before'} the final norm")
        return after_norm

    def stretches_of(self, path):
        """The stretches of all documents that the dump is of."""
        tokens, hidden = self.read(path)
        hidden = hidden[:, self.layer]
        for document, covered in self.new_documents(tokens):
            chosen = np.flatnonzero(document.targets(covered))
            rows = hidden[chosen] if self.after_norm else rms_norm(hidden[chosen], self.norm, self.eps)
            rows = rows.to(DTYPES[self.encoding]).contiguous()
            for row in np.flatnonzero(~rows.isfinite().all(1).numpy())[:1]:
                found = rows[row][~rows[row].isfinite()][0].item()
                fail(f"{path}: hidden_states: token {chosen[row]}: expected finite numbers, found {found}")
            rows = rows.view(torch.uint8).numpy().tobytes()
            yield Stretch(document.shard, document.document, 0, covered, rows)

    def manifest_rows(self):
        return {
            "version": cache_folder.VERSION,
            "encoding": self.encoding,
            "hidden_size": self.lm_head.shape[1],
            "vocab_size": self.lm_head.shape[0],
        }

    def write_head(self, out):
        dtype = DTYPES[self.encoding]
        tensors = {"lm_head.weight": self.lm_head, "model.norm.weight": self.norm}
        tensors = {name: tensor.to(dtype).contiguous() for name, tensor in tensors.items()}
        cache_folder.write_head(out, self.arguments.teacher, tensors, self.arguments.tokenizer)
