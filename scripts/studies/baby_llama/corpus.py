"""A corpus like that of BabyLM 2023, strict-small, from clones of public git repositories.

The corpus has ten files, 10 million words in all. Four of them, and their development files, are here as they were
published; six are made of texts of the same kinds, with as many words as the corpus' README.md gives their kind. Which
these are, and how near they come, is in docs/published.md.
"""

import html
import json
import random
import re
import subprocess
from dataclasses import dataclass

from shared.command_line import fail

PUBLISHED = ("aochildes", "cbt", "children_stories", "switchboard")
OTHERS = {  # words to train on: the shares of ten million that the corpus' README.md names
    "bnc_spoken": 1_000_000,
    "gutenberg": 1_000_000,
    "open_subtitles": 3_000_000,
    "qed": 1_000_000,
    "simple_wikipedia": 1_500_000,
    "wikipedia": 1_000_000,
}
DOMAINS = sorted((*PUBLISHED, *OTHERS))
REPOSITORIES = {  # the commits that docs/published.md was made with
    "MShelUR/Perplexed-BabyLlama": "ded7f1281c4a4fd6ccfb6f881b84a73ce2fed3d8",
    "Farnaz-BNF/BabyLM_GED": "cb2735817e0eb227af844842305ca1126c93098e",
    "egemengulpinar/Llama-BabyLM": "bb5e2d07fc91a3e70bad4005816f35ba91d8eb78",
    "NathanDuran/MRDA-Corpus": "58006b32d4e36ca518e365899924cd56035466a2",
    "rcdm-uga/Gutenberg_Text": "a0b16d35a9851168ce9ac649851c17b7ab08d48e",
    "florian-rieder/Movie-Scripts": "1aad17ade9e673d3ce183ad28439411d2c7456db",
    "saranyan/TED-Talks": "4d7e8c2155e12cb34ab8da993dee0700a6775ff9",
    "JohanMadsen/02807_Project": "acb54d6bfce26289b151b0b1a91ed74acbaf6774",
    "alexwarstadt/blimp": "3e56b06fcabca9b30822fc66435fca6b1aa40bb1",
}


class Clone:
    """The files of one commit, read from a clone, bare or not, in `folder`/OWNER+NAME."""

    def __init__(self, folder, name):
        self.name, self.commit = name, REPOSITORIES[name]
        self.path = folder / name.replace("/", "+")
        if not self.path.is_dir():
            fail(f"{self.path}: expected a clone of https://github.com/{name}, found nothing")

    def _git(self, *command, **pipes):
        done = subprocess.run(["git", "-C", self.path, *command], capture_output=True, **pipes)
        if done.returncode != 0:
            fail(f"{self.path}: git {command[0]} of commit {self.commit} failed: {done.stderr.decode().strip()}")
        return done.stdout

    def names(self, below=""):
        listed = self._git("ls-tree", "-r", "-z", "--name-only", self.commit, *([below] if below else []))
        return sorted(name.decode() for name in listed.split(b"\0") if name)

    def bytes(self, name):
        return self._git("cat-file", "blob", f"{self.commit}:{name}")

    def text(self, name):
        return self.bytes(name).decode("utf-8", "replace").replace("\r\n", "\n")

    def sizes(self, names):
        """{name: bytes} of those that the clone has."""
        asked = "".join(f"{self.commit}:{name}\n" for name in names).encode()
        lines = self._git("cat-file", "--batch-check=%(objectname) %(objectsize)", input=asked).decode().splitlines()
        return {name: int(line.split()[1]) for name, line in zip(names, lines, strict=True) if line[-1].isdigit()}


@dataclass(frozen=True)
class Slice2024:
    """Beginnings of three files of BabyLM 2024's strict-small corpus, which the clone has in turns of 256 KiB."""

    clone: Clone

    def text(self, kind):
        data = self.clone.bytes("work/data/train_A_2MB.txt")
        kinds, turn = ("simple_wiki", "bnc_spoken", "open_subtitles"), 256 * 1024
        left = {name: len(data) // 3 + (index < len(data) % 3) for index, name in enumerate(kinds)}
        parts, begin = {name: b"" for name in kinds}, 0
        while any(left.values()):
            for name in kinds:
                size = min(turn, left[name])
                parts[name] += data[begin : begin + size]
                begin, left[name] = begin + size, left[name] - size
        text = parts[kind].decode("utf-8", "ignore")
        return text[: text.rindex("\n") + 1]


def words(text):
    return len(text.split())


def shuffled(items, seed=2023):
    items = list(items)
    random.Random(seed).shuffle(items)
    return items


def meetings(clone):
    """The words of meetings, a line for each act of speech; a document has 500 of them."""
    for part in ("train", "val", "test"):
        lines = [line.split("|")[1] for line in clone.text(f"mrda_data/{part}_set.txt").splitlines() if "|" in line]
        for begin in range(0, len(lines), 500):
            yield "\n".join(lines[begin : begin + 500]) + "\n"


def books(clone):
    """A piece of at most 1000 lines from each English book below 4 MiB, without the header and the licence."""
    marks = re.compile(r"^\*\*\* ?(?:START|END) OF TH.*$", re.MULTILINE)
    names = [name for name in clone.names() if name.endswith(".txt")]
    sizes = clone.sizes(names)
    for name in shuffled(names):
        if sizes.get(name, 4 << 20) >= 4 << 20:
            continue
        parts = marks.split(clone.text(name))
        text = parts[1] if len(parts) > 1 else parts[0]
        lines = text.strip().splitlines()
        common = sum(word in ("the", "of", "and", "to") for word in text.lower().split())
        if words(text) < 2000 or common < 0.1 * words(text):
            continue
        begin = random.Random(name).randrange(max(1, len(lines) - 1000))
        piece = "\n".join(line.strip() for line in lines[begin : begin + 1000])
        yield re.sub(r"\n{3,}", "\n\n", piece) + "\n"


def dialogues(clone):
    """What is said in a film, a line for each reply, in the order of the script."""
    for name in shuffled(name for name in clone.names("parsed_scripts") if name.endswith(".json")):
        characters = json.loads(clone.text(name))["Characters"]
        replies = [reply for one in characters if isinstance(one, dict) for reply in one["Replies"]]
        said = [" ".join(reply["Reply"].split()) for reply in sorted(replies, key=lambda reply: reply["Start"])]
        said = [line for line in said if line and not line.isupper()]
        if len(said) > 100:
            yield "\n".join(said) + "\n"


def talks(clone):
    for name in shuffled(name for name in clone.names() if name.startswith("cleaned_") and name.endswith(".md")):
        text = html.unescape(clone.text(name)).strip()
        if words(text) > 100 and not name.endswith("README.md"):
            yield text + "\n"


def articles(clone, *folders):
    """(title, paragraphs) of encyclopedia articles."""
    pattern = re.compile(r'<doc id="[^"]*" url="[^"]*" title="([^"]*)">\n(.*?)\n</doc>', re.DOTALL)
    names = [name for folder in folders for name in clone.names(folder) if "/wiki_" in name]
    for name in shuffled(names):
        for title, text in shuffled(pattern.findall(clone.text(name))):
            paragraphs = [" ".join(line.split()) for line in text.splitlines()[1:] if len(line.split()) > 5]
            if paragraphs:
                yield html.unescape(title), paragraphs


def whole(found):
    return (f"= = = {title} = = =\n" + "\n".join(paragraphs) + "\n\n" for title, paragraphs in found)


def beginnings(found):
    """The first four paragraphs of each article."""
    return (f"{title}\n" + "\n".join(paragraphs[:4]) + "\n\n" for title, paragraphs in found)


def make(clones, output):
    """Writes output/train/DOMAIN.train and output/dev/DOMAIN.dev, and returns {file: words}."""
    repository = {name: Clone(clones, name) for name in REPOSITORIES}
    published, other = repository["MShelUR/Perplexed-BabyLlama"], repository["egemengulpinar/Llama-BabyLM"]
    wikipedia = repository["JohanMadsen/02807_Project"]
    slices = Slice2024(other)
    sources = {  # (what the domain begins with, documents)
        "bnc_spoken": (slices.text("bnc_spoken"), meetings(repository["NathanDuran/MRDA-Corpus"])),
        "gutenberg": ("", books(repository["rcdm-uga/Gutenberg_Text"])),
        "open_subtitles": (slices.text("open_subtitles"), dialogues(repository["florian-rieder/Movie-Scripts"])),
        "qed": ("", talks(repository["saranyan/TED-Talks"])),
        "simple_wikipedia": (
            slices.text("simple_wiki"),
            beginnings(articles(wikipedia, "Data/Dataset1/AA", "Data/Dataset1/AB")),
        ),
        "wikipedia": ("", whole(articles(wikipedia, "Data/Dataset1/AC"))),
    }
    counts = {}

    def write(part, domain, text):
        path = output / part / f"{domain}.{part}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        counts[path.name] = words(text)

    for domain in PUBLISHED:
        write("train", domain, published.text(f"data/babylm_10M/{domain}.train"))
        write("dev", domain, published.text(f"data/babylm_dev/{domain}.dev"))
    for domain, wanted in OTHERS.items():
        first, documents = sources[domain]
        texts = {"dev": [], "train": [first]}
        missing = {"dev": wanted // 10, "train": wanted - words(first)}
        for document in documents:
            part = "dev" if missing["dev"] > 0 else "train"
            if missing[part] <= 0:
                break
            texts[part].append(document)
            missing[part] -= words(document)
        for part, pieces in texts.items():
            write(part, domain, "".join(pieces))
    return counts
