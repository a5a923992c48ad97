"""The shapes of problems that the benchmark of the head knows by name, and how the command line spells others."""

from typing import NamedTuple

from loss_head.heads import DIVERGENCES

KINDS = ("jsd", "forward_kl", "ce")
SHAPES_HELP = (
    "kind:Hs:Ht[:V[:softcap]], comma-separated, of the kinds jsd, forward_kl and ce; models: the shapes of the "
    "vocabularies that users have. V replaces --vocab; the softcap is on both sides"
)
# Hidden sizes of a small and a large model of a family, and its vocabulary.
MODELS = [
    "2048:4096:32000",  # Llama 2
    "4096:4096:128256",  # Llama 3
    "2048:4096:151936",  # Qwen 3
    "3072:3072:200064",  # Phi-4-mini
    "2880:2880:201088",  # gpt-oss
    "2304:3584:256000",  # Gemma 2 without its softcap
    "2304:3584:256000:30",  # Gemma 2
    "2560:3840:262144",  # Gemma 3
    "2560:3840:262208",  # Gemma 3 with the columns for images
]


class Case(NamedTuple):
    """One problem: its kind, hidden sizes (the teacher's is 0 without one), vocabulary, softcap (0: none), tokens."""

    kind: str
    hidden: int
    teacher_hidden: int
    vocab: int | None = None
    softcap: int = 0
    tokens: int | None = None
    models: str = ""  # the pair whose shape it is

    def smaller(self):
        """The case with sizes for a rehearsal on a CPU."""
        return self._replace(
            hidden=self.hidden // 16 // 8 * 8,
            teacher_hidden=self.teacher_hidden // 16 // 8 * 8,
            vocab=self.vocab // 64 // 8 * 8,
            tokens=self.tokens // 64,
        )

    def __str__(self):
        cap = f", softcap {self.softcap}" if self.softcap else ""
        sizes = f"H {self.hidden}" + (f", G {self.teacher_hidden}" if self.teacher_hidden else "")
        return f"{self.kind}, N {self.tokens}, V {self.vocab}, {sizes}{cap}"


class Pair(NamedTuple):
    """A student and a teacher as the loss head sees them."""

    models: str
    tokens: int
    vocab: int
    hidden: int
    teacher_hidden: int
    softcap: int = 0

    def case(self, kind):
        teacher = self.teacher_hidden if kind in DIVERGENCES else 0
        return Case(kind, self.hidden, teacher, self.vocab, self.softcap, self.tokens, self.models)


# What --what table compares with the peers.
TABLE = [
    Pair("Llama 3.1 8B <- 8B", 16384, 128256, 4096, 4096),
    Pair("Qwen3 4B <- 32B", 8192, 151936, 2560, 5120),
    Pair("Gemma 3 1B <- 4B", 8192, 262144, 1152, 2560),
    Pair("Qwen3 0.6B <- 4B", 8192, 151936, 1024, 2560),
    Pair("Gemma 2 2B <- 9B", 8192, 256000, 2304, 3584, 30),
    Pair("SmolLM2 135M <- 360M", 8192, 49152, 576, 960),
]
# Students with small hidden sizes, of which --what parts says what the head's time is made of.
SMALL = [
    Pair("Qwen3 0.6B <- 4B", 8192, 151936, 1024, 2560),
    Pair("Qwen3 1.7B <- 8B", 8192, 151936, 2048, 4096),
    Pair("Qwen3 4B <- 32B", 8192, 151936, 2560, 5120),
    Pair("Gemma 3 1B <- 4B", 8192, 262144, 1152, 2560),
    Pair("Gemma 3 4B <- 12B", 8192, 262144, 2560, 3840),
    Pair("Gemma 2 2B <- 9B", 8192, 256000, 2304, 3584, 30),
    Pair("SmolLM2 1.7B <- 1.7B", 8192, 49152, 2048, 2048),
]


def table_cases():
    """The cases of --what table: every pair's JSD first, since a limit of time cuts the list from its end."""
    return [pair.case(kind) for kind in ("jsd", "ce", "forward_kl") for pair in TABLE]


def parts_cases():
    """The cases of --what parts."""
    return [pair.case("jsd") for pair in SMALL]


def case_of(text):
    """The Case of kind:Hs:Ht[:V[:softcap]]; its number of tokens, and V where it is left out, are None."""
    kind, *sizes = text.split(":")
    if kind not in KINDS or not 2 <= len(sizes) <= 4 or not all(size.isdigit() for size in sizes):
        raise ValueError(f"expected kind:Hs:Ht[:V[:softcap]] with one of the kinds {', '.join(KINDS)}, found {text}")
    case = Case(kind, *map(int, sizes))
    if (kind == "ce") != (case.teacher_hidden == 0):
        raise ValueError(f"Ht is 0 for ce, which has no teacher, and only there; found {text}")
    return case


def cases_of(text):
    """The cases of the option --shapes."""
    if text == "models":
        jsd = [f"jsd:{sizes}" for sizes in MODELS]
        return [case_of(shape) for shape in jsd + [of_labels(shape) for shape in jsd]]
    return [case_of(shape) for shape in text.split(",")]


def of_labels(shape):
    """The shape of cross-entropy on the larger of the two models."""
    _, _, teacher_hidden, *rest = shape.split(":")
    return ":".join(["ce", teacher_hidden, "0", *rest])
