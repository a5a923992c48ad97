"""Runs of the program under test to their end, without the time that each start takes (tests/fork_server.cpp)."""

import array
import atexit
import os
import shutil
import socket
import struct
import subprocess
import tempfile
import time
import warnings
from functools import cache
from pathlib import Path

READ_AT_THE_START = ("OMP_", "MALLOC_", "LD_", "GLIBC_")  # by libraries, before a program's own code runs


def fixed(environment):
    """What of an environment a running server cannot change any more."""
    return tuple(sorted(item for item in environment.items() if item[0].startswith(READ_AT_THE_START)))


@cache
def server_of(program, fixed_environment):
    """The socket of a server that starts `program`; None where there is none."""
    library = Path(program).parents[2] / "tests" / "libfork_server.so"
    if not library.is_file() or any(name == "LD_PRELOAD" for name, _ in fixed_environment):
        return None
    folder = tempfile.mkdtemp(prefix="distill-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    path = os.path.join(folder, "server")
    variables = {name: value for name, value in os.environ.items() if not name.startswith(READ_AT_THE_START)}
    variables |= dict(fixed_environment) | {"LD_PRELOAD": str(library), "DISTILL_FORK_SERVER": path}
    server = subprocess.Popen([program], env=variables, stdin=subprocess.DEVNULL)
    atexit.register(server.kill)
    deadline = time.monotonic() + 60
    while not os.path.exists(path):
        if server.poll() is not None or time.monotonic() > deadline:
            warnings.warn(
                f"{library} does not serve (exit code {server.returncode}): each run is a start", stacklevel=2
            )
            return None
        time.sleep(0.01)
    return path


def run_program(arguments, env, cwd=None, timeout=120, errors="strict"):
    """As subprocess.run(arguments, capture_output=True, text=True), of the program arguments[0]."""
    arguments = [str(argument) for argument in arguments]
    server = None if env.get("DISTILL_TEST_DEVICE", "cpu") == "cuda" else server_of(arguments[0], fixed(env))
    if server is None:
        return subprocess.run(
            arguments, env=env, cwd=cwd, capture_output=True, text=True, errors=errors, timeout=timeout
        )
    texts = [str(Path(cwd or ".").absolute()), str(len(arguments)), *arguments, *(f"{k}={v}" for k, v in env.items())]
    request = b"".join(os.fsencode(text) + b"\0" for text in texts)
    with (
        open(os.devnull, "rb") as none,
        tempfile.TemporaryFile() as out,
        tempfile.TemporaryFile() as error,
        socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection,
    ):
        connection.settimeout(timeout)
        connection.connect(server)
        streams = array.array("i", [none.fileno(), out.fileno(), error.fileno()])
        connection.sendmsg([b"\0"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, streams)])
        connection.sendall(struct.pack("q", len(request)) + request)
        try:
            status = connection.recv(4, socket.MSG_WAITALL)
        except TimeoutError:
            raise subprocess.TimeoutExpired(arguments, timeout) from None
        assert len(status) == 4, f"{arguments}: no status"
        code = os.waitstatus_to_exitcode(struct.unpack("i", status)[0])
        texts = []
        for file in (out, error):
            file.seek(0)
            texts.append(file.read().decode(errors=errors))
    return subprocess.CompletedProcess(arguments, code, *texts)
