"""Import of hidden states: safetensors with `token_ids` [T] and `hidden_states` [T, layers, H] or [T, H]."""

import torch
from safetensors import safe_open

from shared.command_line import fail
from teacher_cache import folder as cache_folder
from teacher_cache.importer import Importer
from teacher_cache.norm import is_after_norm, rms_norm
from teacher_cache.part_file import Stretch

SAMPLE = 512  # tokens that are measured
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def read_dump(path, layer, hidden_size):
    """(token ids, hidden states [T, layers, H], the layer's index)"""
    with safe_open(path, "pt") as file:
        names = set(file.keys())
        if not {"token_ids", "hidden_states"} <= names:
            fail(f"{path}: expected the tensors token_ids and hidden_states, found {', '.join(sorted(names))}")
        tokens, hidden = file.get_tensor("token_ids"), file.get_tensor("hidden_states")
    hidden = hidden[:, None] if hidden.ndim == 2 else hidden
    if hidden.ndim != 3 or hidden.shape[2] != hidden_size:
        fail(f"{path}: hidden_states: expected [tokens, layers, {hidden_size}], found {list(hidden.shape)}")
    if not -hidden.shape[1] <= layer < hidden.shape[1]:
        fail(f"{path}: --layer: expected one of {hidden.shape[1]} layers, found {layer}")
    if tokens.ndim != 1 or len(tokens) != len(hidden):
        fail(
            f"{path}: expected a hidden state for each token, found {len(hidden)} for {tokens.numel()} tokens; turn "
            "prefix caching off in the program that wrote it"
        )
    return tokens.numpy(), hidden, layer % hidden.shape[1]


class HiddenStates(Importer):
    def __init__(self, arguments, documents, files):
        super().__init__(arguments, documents)
        self.lm_head, self.norm = cache_folder.read_head(arguments.teacher)
        self.eps = self.config.get("rms_norm_eps", 1e-6)
        self.after_norm = self.decide(files)  # of all dumps
        stored = {dtype: name for name, dtype in DTYPES.items()}.get(self.read(files[0])[1].dtype, "float32")
        self.encoding = self.compute_dtype = self.precision = arguments.dtype or stored
        self.row_bytes = self.lm_head.shape[1] * DTYPES[self.encoding].itemsize
        self.longest = max([2, *(len(self.read(path)[0]) for path in files)])

    def read(self, path):
        return read_dump(path, self.arguments.layer, self.lm_head.shape[1])

    def decide(self, files):
        """Measures the first dumps that have SAMPLE tokens; all dumps are treated alike."""
        states, labels, layer = [], [], 0
        for path in files:
            tokens, hidden, layer = self.read(path)
            if len(tokens) > 1:
                states.append(hidden[:-1])
                labels.append(torch.from_numpy(tokens[1:].copy()).long())
            if sum(map(len, labels)) >= SAMPLE:
                break
        if not labels:
            fail(f"{files[0]}: expected sequences of at least two tokens")
        layers = torch.cat(states)[:SAMPLE].unbind(1)
        targets = torch.cat(labels)[:SAMPLE]
        after_norm = is_after_norm(layers, layer, targets, self.lm_head, self.norm, self.eps, str(files[0]))
        print(f"the hidden states are {'after' if after_norm else 'before'} the final norm")
        return after_norm

    def stretches_of(self, path):
        """The stretches of all documents that the dump is of."""
        tokens, hidden, layer = self.read(path)
        hidden = hidden[:, layer]
        for document, covered in self.new_documents(tokens):
            rows = hidden[torch.from_numpy(document.targets(covered))]
            rows = rows if self.after_norm else rms_norm(rows, self.norm, self.eps)
            rows = rows.to(DTYPES[self.encoding]).contiguous().view(torch.uint8).numpy().tobytes()
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
        cache_folder.write_head(
            out, self.arguments.teacher, {name: tensor.to(dtype).contiguous() for name, tensor in tensors.items()}
        )
