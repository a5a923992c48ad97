import socket
import sys

import pytest
import torch


@pytest.fixture
def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


@pytest.fixture(autouse=True)
def forget_compiled_graphs():
    """torch.compile counts the graphs of a function over all tests of a process, and fails when they are too many."""
    yield
    if "torch._dynamo" in sys.modules:
        torch.compiler.reset()
