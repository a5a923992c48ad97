"""The small studies of quality.sh in miniature: several domain teachers, and a model that teaches itself."""

import json
import random

import pytest
import tiny_study

from quality import privileged

SEVERAL = {"domains": ["code", "prose"], "student": "half", "lr": 3e-3, "steps": 40, "teacher_lr": 3e-3}
SEVERAL |= {"teacher_steps": 40}
PRIVILEGED = {"rank": 4, "alpha": 8, "dropout": 0.05, "lrs": [1e-2], "steps": 30, "teacher_seq_len": 128}


def python_file(rng):
    """A comment and functions, each with a docstring and a body of words."""
    words = [" ".join(f"w{rng.randrange(62)}" for _ in range(4)) for _ in range(8)]
    bodies = [f"def w{n} ( ) :\n    ''' {words[n]} '''\n    w1 = '{words[n + 4]} {words[n]}'\n    " for n in range(4)]
    return "# w1 w2\n" + "".join(body + f"return '{words[0]} {words[1]} {words[2]} {words[3]}'\n\n" for body in bodies)


@pytest.fixture(scope="module")
def work(tmp_path_factory):
    """The tiny study, whose text has two domains that differ, and Python files."""
    folder = tiny_study.make(tmp_path_factory.mktemp("several") / "work")
    rng = random.Random(7)
    with open(folder / "text" / "train.jsonl", "w") as file:
        for number in range(300):
            kind = ("code", "prose")[number % 2]
            text = tiny_study.sentence(rng, 11 if kind == "code" else 31)
            file.write(json.dumps({"text": text, "source": f"{kind}/{number}"}) + "\n")
        for number in range(40):
            file.write(json.dumps({"text": python_file(rng), "source": f"code/python-{number}"}) + "\n")
    tokens = ("--tokenizer", folder / "teacher", "--eos-token", "<eos>", "--workers", 1, "--quiet", "--overwrite")
    for kind, language in (("code", 11), ("prose", 31)):
        text = folder / "text" / f"test-{kind}.jsonl"
        with open(text, "w") as file:
            for _ in range(12):
                file.write(json.dumps({"text": tiny_study.sentence(rng, language)}) + "\n")
        tiny_study.script("tokenize.py", *tokens, "--output", folder / "data" / f"test-{kind}", text)
    return folder


def run(work, command, results, **profile):
    """The results of a small study, {name: result}, and its table."""
    study = tiny_study.study(work.parent / f"{command}.yaml", **profile)
    tiny_study.script("studies/quality.py", f"{command}-data", "--work", work, "--eos-token", "<eos>")
    arguments = ("--profile", "cpu", "--study", study, "--results", results)
    more = ("--work", work, "--program", tiny_study.PROGRAM, "--jobs", 2)
    tiny_study.script("studies/quality.py", command, *arguments, *more)
    again = tiny_study.script("studies/quality.py", command, *arguments, *more)
    assert again == "", "what is there is not made again"
    tables = tiny_study.script("studies/quality.py", "report", *arguments)
    found = {path.stem: json.loads(path.read_text()) for path in results.glob("*.json")}
    return found, tables.split(f"\n{command}\n\n")[1].split("\n\n")[0]


def test_two_domain_teachers_against_one(work):
    found, table = run(work, "several", work.parent / "several-results", several=SEVERAL)
    for kind in ("code", "prose"):
        teachers = {name: found[f"several-tests-{name}"]["tests"][kind]["hard"] for name in ("general", kind, "both")}
        assert teachers[kind] < teachers["general"], "it has learnt its domain"
        other = found[f"several-tests-{'prose' if kind == 'code' else 'code'}"]["tests"][kind]["hard"]
        assert teachers[kind] < other, "and not the other one"
        for seed in (1, 2):
            one, two = (found[f"several-{row}-s{seed}"]["tests"][kind] for row in ("general", "domains"))
            assert two["own_kl"] < one["own_kl"] and one["kl"] < two["kl"]
    lines = table.splitlines()
    assert len(lines) == 2 + 4 + 4 and lines[2].startswith("| student | labels only | 2 |")
    assert not list((work / "runs").glob("several-*-s*/model")), "the models of students are removed"


def test_a_model_that_teaches_itself_comes_nearer_to_its_teacher(work):
    found, table = run(work, "privileged", work.parent / "privileged-results", privileged=PRIVILEGED)
    assert len(found) == 3 * 2
    for result in found.values():
        before, after = result["evaluations"]
        assert (before["step"], after["step"]) == (0, 30)
        assert after["forward_kl"] != before["forward_kl"] and after["valid_tokens"] == before["valid_tokens"]
        if result["row"] == "example":  # the same for all functions: it can be learnt by heart
            assert after["forward_kl"] < 0.3 * before["forward_kl"]
    assert len(table.splitlines()) == 2 + 3 and "| the answer | 0.01 | 2 |" in table


def test_the_teachers_prompt_ends_with_the_students():
    source = '"""doc"""\nimport os\n\n\ndef one(a):\n    """Says what it does."""\n    b = os.path.join(a, a)\n'
    source += "    return b + "
    source += "'x' * 100 + 'and so on, and so on, and so on, and so on'\n\n\ndef two():\n    return 1\n"
    ((context, head, body),) = privileged.functions(source)
    assert context == '"""doc"""\nimport os\n\n\n' and head.endswith('"""Says what it does."""\n')
    assert body.startswith("    b = ") and body.endswith("so on'\n")
    for kind in privileged.KINDS:
        assert privileged.teacher_prompt(kind, context, head, body).endswith(head)
    assert body in privileged.teacher_prompt("answer", context, head, body)
