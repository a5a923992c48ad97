"""The options: what the docs say of them, and the signatures that tools and users read.

`python losses/python/tests/test_options.py` prints the table of docs/python_package.md.
"""

import inspect
import pickle
import re
from pathlib import Path

import pytest
import torch

from distill_losses import JSD, CrossEntropy, LinearCrossEntropy, LinearJSD, functional
from distill_losses._options import described
from reference import Problem

GUIDE = Path(__file__).parents[3] / "docs" / "python_package.md"
FUNCTIONS = {
    LinearJSD: functional.linear_jsd,
    LinearCrossEntropy: functional.linear_cross_entropy,
    JSD: functional.jsd,
    CrossEntropy: functional.cross_entropy,
}
WRONG = {str: "?", float: float("nan"), float | None: float("nan"), int: -1}


def expected_values(module, parameter):
    """What the error for a wrong value says that an option may be."""
    if parameter.annotation is bool:
        return "True or False"
    wrong = 0.5 if parameter.name == "ignore_index" else WRONG[parameter.annotation]
    with pytest.raises(ValueError) as caught:
        module(**{parameter.name: wrong})
    found = re.search(r"expected (.*), found", str(caught.value))[1]
    if parameter.annotation is str:
        meaning = described(FUNCTIONS[module].options)[parameter.name].meaning
        assert set(re.findall(r"\w+", found)) - {"or"} <= set(re.findall(r"\w+", meaning))
        return "one of the names"
    return found.replace("0 (off)", "None (off)") if parameter.default is None else found


def table():
    lines = ["| option | of | default | values | meaning |", "| --- | --- | --- | --- | --- |"]
    meanings = {}
    for module, function in FUNCTIONS.items():
        for name, option in described(function.options).items():
            meanings.setdefault(name, []).append((module, option.meaning))
    for name, places in meanings.items():
        module, meaning = places[0]
        parameter = inspect.signature(module).parameters[name]
        of = "all" if len(places) == len(FUNCTIONS) else ", ".join(f"`{module.__name__}`" for module, _ in places)
        values, meaning = (text.replace("|", "\\|") for text in (expected_values(module, parameter), meaning))
        lines.append(f"| `{name}` | {of} | {parameter.default} | {values} | {meaning} |")
    return "\n".join(lines)


def test_the_table_of_the_guide_is_that_of_the_options():
    found = re.search(r"<!-- table of options -->\n(.*?)\n<!-- end of table -->", GUIDE.read_text(), re.DOTALL)
    assert found and found[1] == table()


POSITIONAL = {
    LinearJSD: {},  # Liger has two losses, whose orders differ
    LinearCrossEntropy: dict(
        ce_weight=None, ignore_index=-1, lse_square_scale=0.0, label_smoothing=0.1, reduction="sum", softcap=30.0
    ),
    JSD: dict(beta=0.3, ignore_index=-1),
    CrossEntropy: dict(
        weight=None, ignore_index=-1, lse_square_scale=0.0, label_smoothing=0.1, reduction="sum", softcap=30.0
    ),
}
CALLS = {
    LinearJSD: "student_input student_weight teacher_input teacher_weight true_labels student_bias teacher_bias",
    LinearCrossEntropy: "lin_weight input target bias",
    JSD: "student_logits teacher_logits shift_labels",
    CrossEntropy: "input target",
}


@pytest.mark.parametrize("module", POSITIONAL)
def test_an_option_has_a_position_only_where_ligers_has_the_same(module):
    """A number that is meant for another option of Liger's would change the loss without an error."""
    options = POSITIONAL[module]
    assert repr(module(*options.values())) == repr(module(**options))
    with pytest.raises(TypeError, match="positional"):
        module(*options.values(), 1)


@pytest.mark.parametrize("module", FUNCTIONS)
def test_a_constructor_shows_the_options_of_its_function(module):
    shown, function = inspect.signature(module).parameters, inspect.signature(FUNCTIONS[module]).parameters
    positional = [name for name, p in shown.items() if p.kind is p.POSITIONAL_OR_KEYWORD]
    assert positional == [*POSITIONAL[module]]
    weight = [name for name in ("ce_weight", "weight") if name in positional]
    assert set(shown) == {*weight, *described(FUNCTIONS[module].options)} <= set(function)
    for name, parameter in shown.items():
        assert parameter.default is not parameter.empty and parameter.default == function[name].default
        assert parameter.annotation == function[name].annotation
        assert name in weight or f"\n    {name}: " in module.__doc__ and f"\n    {name}: " in FUNCTIONS[module].__doc__


@pytest.mark.parametrize("module", FUNCTIONS)
def test_a_call_shows_the_inputs_of_the_function(module):
    shown = inspect.signature(module().forward).parameters
    positional = [name for name, p in shown.items() if p.kind is p.POSITIONAL_OR_KEYWORD]
    assert positional == CALLS[module].split()
    assert [*shown][len(positional) :] == ["token_weights", "num_items_in_batch"]


@pytest.mark.parametrize("module", FUNCTIONS)
def test_a_name_that_is_no_option_is_a_type_error(module):
    with pytest.raises(TypeError, match=f"{module.__name__}.*unexpected keyword argument 'betta'"):
        module(betta=0.5)
    p = Problem()
    logits, labels = p.logits(), p.y.flatten()
    inputs = {LinearJSD: (p.x, p.w, p.tx, p.tw), LinearCrossEntropy: (p.w, p.x, p.y), JSD: (logits, logits)}
    with pytest.raises(TypeError, match="unexpected keyword argument 'betta'"):
        FUNCTIONS[module](*inputs.get(module, (logits, labels)), betta=0.5)
    with pytest.raises(TypeError, match="reduction"):  # an option of the constructor, not of a call
        module()(*inputs.get(module, (logits, labels)), reduction="sum")


def test_a_module_can_be_pickled():
    p, classes = Problem(), torch.rand(57, dtype=torch.float64)
    module = LinearCrossEntropy(classes, reduction="sum", softcap=7.0)
    copy = pickle.loads(pickle.dumps(module))
    assert repr(copy) == repr(module) == "LinearCrossEntropy(reduction='sum', softcap=7.0)"
    assert torch.equal(copy(p.w, p.x, p.y), module(p.w, p.x, p.y))


if __name__ == "__main__":
    print(table())
