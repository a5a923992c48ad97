"""Stops one thread of another process with ptrace, while its other threads go on.

This simulates storage that never answers a read; the program under test needs no change.
"""

import ctypes
import errno
import os
import threading
from pathlib import Path

PTRACE_SEIZE, PTRACE_INTERRUPT, PTRACE_DETACH = 0x4206, 0x4207, 17
WALL = 0x40000000  # also wait for threads that are no children
libc = ctypes.CDLL(None, use_errno=True)
libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
libc.ptrace.restype = ctypes.c_long


class NotAllowed(Exception):
    """This system lets no process trace another one."""


def find_thread(pid, name):
    """The id of the process's thread of this name; None: it has none."""
    for task in Path(f"/proc/{pid}/task").glob("*"):
        try:
            if (task / "comm").read_text().strip() == name:
                return int(task.name)
        except OSError:
            pass
    return None


class HeldThread:
    """Held from the construction until release() or the process's end."""

    def __init__(self, thread):
        self.thread = thread
        self.error = None
        self.held, self.let_go = threading.Event(), threading.Event()
        self.tracer = threading.Thread(target=self.hold, daemon=True)  # ptrace is a thread's, not a process's
        self.tracer.start()
        self.held.wait()
        if self.error is not None:
            raise self.error

    def ptrace(self, request):
        if libc.ptrace(request, self.thread, None, None) != 0:
            error = ctypes.get_errno()
            if error == errno.ESRCH:
                raise ProcessLookupError(f"thread {self.thread} has ended")
            raise NotAllowed(f"ptrace: {os.strerror(error)}")

    def hold(self):
        try:
            self.ptrace(PTRACE_SEIZE)
            self.ptrace(PTRACE_INTERRUPT)
            os.waitpid(self.thread, WALL)
        except (NotAllowed, ProcessLookupError) as error:
            self.error = error
            return
        finally:
            self.held.set()
        while not self.let_go.wait(0.02):
            # The process may end meanwhile; it is not gone before its held thread has been waited for.
            pid, status = os.waitpid(self.thread, WALL | os.WNOHANG)
            if pid and (os.WIFEXITED(status) or os.WIFSIGNALED(status)):
                return
        libc.ptrace(PTRACE_DETACH, self.thread, None, None)

    def release(self):
        self.let_go.set()
        self.tracer.join()
