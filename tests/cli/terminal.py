"""Runs a command in a pseudo-terminal and shows what its screen would show."""

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
import time

ESCAPE = re.compile(r"\x1b\[([0-9;]*)([A-Za-z])")


class Screen:
    """The lines of a terminal that knows carriage returns, line feeds, erasing to the end of a line, and colours."""

    def __init__(self, columns):
        self.columns = columns
        self.lines = [""]
        self.row = self.column = 0
        self.colours = 0  # sequences that were seen
        self.wrapped = 0  # lines that were longer than the screen is wide

    def put(self, character):
        if self.column == self.columns:
            self.line_feed()
            self.column = 0
            self.wrapped += 1
        line = self.lines[self.row].ljust(self.column)
        self.lines[self.row] = line[: self.column] + character + line[self.column + 1 :]
        self.column += 1

    def line_feed(self):
        self.row += 1
        if self.row == len(self.lines):
            self.lines.append("")

    def feed(self, text):
        at = 0
        while at < len(text):
            escape = ESCAPE.match(text, at)
            if escape:
                self.escape(*escape.groups())
                at = escape.end()
                continue
            character = text[at]
            at += 1
            if character == "\r":
                self.column = 0
            elif character == "\n":
                self.line_feed()
            elif character == "\x1b":
                raise ValueError(f"an escape sequence that this screen does not know: {text[at - 1 : at + 10]!r}")
            else:
                self.put(character)

    def escape(self, argument, command):
        if command == "m":
            self.colours += 1
        elif command == "K" and argument in ("", "0"):
            self.lines[self.row] = self.lines[self.row][: self.column]
        else:
            raise ValueError(f"an escape sequence that this screen does not know: ESC [ {argument} {command}")

    def text(self):
        return "\n".join(line.rstrip() for line in self.lines).rstrip("\n") + "\n"


def set_columns(descriptor, columns, rows=24):
    fcntl.ioctl(descriptor, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))


def run_in_terminal(command, columns, environment=None, seconds=120, on_output=None, **options):
    """(exit code, all that was written to the terminal). `environment`: over this process's; None removes a variable.

    `on_output(all output so far, descriptor of the terminal)` is called for each piece of output.
    """
    variables = {**os.environ, "TERM": "xterm", **(environment or {})}
    variables = {name: value for name, value in variables.items() if value is not None}
    main, child = pty.openpty()
    set_columns(main, columns)
    options = {"stdin": child, "stdout": child, "stderr": child, **options}
    process = subprocess.Popen(command, env=variables, start_new_session=True, **options)
    os.close(child)
    output = b""
    end = time.monotonic() + seconds
    try:
        while time.monotonic() < end:
            if not select.select([main], [], [], 0.1)[0]:
                continue
            try:
                piece = os.read(main, 65536)
            except OSError:  # all of the terminal's users are gone
                break
            if not piece:
                break
            output += piece
            if on_output:
                on_output(output, main)
        code = process.wait(timeout=max(1, end - time.monotonic()))
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        os.close(main)
    return code, output.decode(errors="replace")


def screen_of(output, columns):
    screen = Screen(columns)
    screen.feed(output)
    return screen
