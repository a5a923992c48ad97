"""What a job listens on, and that connections from strangers do not end it."""

import os
import random
import re
import socket
import struct
import time
from pathlib import Path

import pytest

import jobs
import tiny

LISTENS = "0A"  # the state in /proc/net/tcp
MAX_CONNECTIONS = 600
VALIDATE = b"\0" + struct.pack("<I", 0x3C85F7CE)  # what a client of the store begins with
PAYLOADS = [
    b"",
    b"\0",
    b"GET / HTTP/1.0\r\n\r\n",
    random.Random(1).randbytes(4000),
    VALIDATE,
    VALIDATE + b"\xff" * 60,  # no request of the protocol
    VALIDATE + b"\x01" + struct.pack("<Q", 1 << 62),  # a key of 4 exabytes
    VALIDATE + b"\x01" + struct.pack("<Q", 5) + b"ab",  # a key that is cut off
    VALIDATE + b"\x0a" + struct.pack("<Q", 1 << 40),  # a trillion keys
    struct.pack("<Q", 0),  # what a pair of Gloo begins with: its number
    struct.pack("<Q", 1),
]


def listening(pid):
    """The (address, port) pairs that a process listens on; the address in hexadecimal, as the kernel shows it."""
    sockets = set()
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        try:
            found = re.fullmatch(r"socket:\[(\d+)\]", os.readlink(descriptor))
        except OSError:
            continue
        sockets |= {found[1]} if found else set()
    pairs = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[9] in sockets and fields[3] == LISTENS:
                address, port = fields[1].split(":")
                pairs.add((address, int(port, 16)))
    return pairs


def is_loopback(address):
    return address in ("0100007F", "00000000000000000000000001000000", "0000000000000000FFFF00000100007F")


def start(folder, parts, steps, variables=None, processes=2):
    config = tiny.base_config(
        folder,
        *parts,
        train={"steps": steps, "micro_batch_size": 1, "global_batch_size": 4},
        parallel={"processes": processes},
        scheduler={"type": "constant", "warmup_steps": 0},
    )
    with open(folder / "output.txt", "a") as output:
        env = tiny.environment() | (variables or {})
        return tiny.start(tiny.write_config(folder, config), stdout=output, stderr=output, env=env)


def listening_or_gone(pid):
    try:
        return listening(pid)
    except (FileNotFoundError, ProcessLookupError):
        return set()


class Stranger:
    """Connects to ports of this host and sends what nobody expects; some connections stay open."""

    def __init__(self):
        self.held, self.connections, self.at_port = [], 0, {}

    def visit(self, port, at_most):
        count = self.at_port.get(port, 0)
        if count >= at_most or self.connections >= MAX_CONNECTIONS:
            return
        self.at_port[port] = count + 1
        self.connections += 1
        try:
            connection = socket.create_connection(("127.0.0.1", port), timeout=1)
            self.held.append(connection)
            connection.sendall(PAYLOADS[count % len(PAYLOADS)])
        except OSError:
            return  # it has closed the connection or its port
        if count % 3 == 1:  # a reset
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        if count % 3 != 0:
            connection.close()

    def leave(self):
        for connection in self.held:
            connection.close()


def test_ranks_that_distill_starts_listen_on_loopback_alone(tmp_path, parts):
    process = start(tmp_path, parts, steps=1000000)
    try:
        jobs.until(lambda: jobs.steps_done(tmp_path / "run") >= 2, process)
        found = {pid: listening(pid) for pid in (process.pid, *jobs.ranks_of(process))}
        assert found.pop(process.pid) == set()
        assert len(found) == 2 and all(found.values())
        for address, port in set().union(*found.values()):
            assert is_loopback(address), f"{address}:{port}"
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("address", ["127.0.0.1", "localhost", "::1"])
def test_rank_0_of_any_launcher_listens_on_the_address_it_is_given(tmp_path, parts, address):
    """A numeric MASTER_ADDR, or localhost. For a name, rank 0 listens on all addresses (docs/ranks.md)."""
    port = tiny.free_port()
    variables = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": address, "MASTER_PORT": port}
    ranks = [
        start(tmp_path, parts, 1000000, variables | {"RANK": str(rank), "LOCAL_RANK": str(rank)}, processes=0)
        for rank in range(2)
    ]
    try:
        jobs.until(lambda: jobs.steps_done(tmp_path / "run") >= 2, ranks[0])
        found = set().union(*(listening(rank.pid) for rank in ranks))
        assert int(port) in {number for _, number in found}
        for host, number in found:
            assert is_loopback(host), f"{host}:{number}"
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()


def test_strangers_and_garbage_do_not_end_a_run(tmp_path, parts):
    steps = 60
    undisturbed = tmp_path / "undisturbed"
    undisturbed.mkdir()
    assert start(undisturbed, parts, steps).wait(timeout=120) == 0
    process, stranger = start(tmp_path, parts, steps), Stranger()
    try:
        deadline = time.monotonic() + 120
        while process.poll() is None and time.monotonic() < deadline:  # from the first listening socket on
            for pid in jobs.ranks_of(process):
                for _, port in listening_or_gone(pid):
                    stranger.visit(port, at_most=3 * len(PAYLOADS))
        assert process.wait(timeout=60) == 0, (tmp_path / "output.txt").read_text()
    finally:
        process.kill()
        stranger.leave()
    assert stranger.connections > 2 * len(PAYLOADS) and len(stranger.at_port) > 2
    for found, expected in zip(tiny.read_metrics(tmp_path / "run")[0], tiny.read_metrics(undisturbed / "run")[0]):
        assert (found["step"], found["loss"]) == (expected["step"], expected["loss"])
    assert (tmp_path / "run" / "model" / "model.safetensors").read_bytes() == (
        undisturbed / "run" / "model" / "model.safetensors"
    ).read_bytes()
