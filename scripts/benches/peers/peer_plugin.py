"""A pytest plugin that runs a peer's tests of its losses through distill-losses; peer_tests.py loads it."""

import math

import pytest
import torch

import cce_adapter
import differences
import liger_adapter


def pytest_addoption(parser):
    parser.addoption("--peer", choices=["liger", "cce"])
    parser.addoption("--on-cpu", action="store_true", help="run tests that want a GPU on the CPU")
    parser.addoption("--max-logits", type=float, default=math.inf, help="leave out tests with more logits than this")


def pytest_configure(config):
    if config.getoption("--peer") == "liger":
        liger_adapter.install()
    else:
        cce_adapter.install(config.getoption("--on-cpu"))


def logits_of(item):
    """Tokens times vocabulary, of a test with the peers' parameter names."""
    parameters = getattr(item, "callspec", None)
    if parameters is None:
        return 0
    values = parameters.params
    if "shape" in values:
        return values["shape"][0] * values["shape"][1]
    return values.get("B", 1) * values.get("T", 1) * values.get("V", 1)


def repeats(item):
    """cut-cross-entropy runs each test for several implementations of its own, which are one here."""
    parameters = getattr(item, "callspec", None)
    return parameters is not None and parameters.params.get("impl", "cce") != "cce"


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config, items):
    peer = config.getoption("--peer")
    table = differences.LIGER if peer == "liger" else differences.CCE
    if peer == "liger":
        for module in {item.module for item in items}:
            liger_adapter.adapt_module(module)
    limit = config.getoption("--max-logits")
    left_out = [item for item in items if logits_of(item) > limit or repeats(item)]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if item not in set(left_out)]
    for item in items:
        difference = differences.explained(table, item.nodeid)
        if difference is not None and not difference.exact_reference:
            item.add_marker(pytest.mark.xfail(reason=difference.reason, run=difference.run, strict=True))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item):
    """Exchanges the reference of a test whose own is not exact enough."""
    difference = differences.explained(differences.LIGER, item.nodeid)
    if difference is None or not difference.exact_reference:
        return (yield)
    with liger_adapter.exact_reference(item.module):
        return (yield)


def pytest_report_header(config):
    where = torch.cuda.get_device_name() if not config.getoption("--on-cpu") and torch.cuda.is_available() else "CPU"
    return f"{config.getoption('--peer')}'s tests, through distill-losses, on {where}"
