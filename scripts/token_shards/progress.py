"""The line that says how far the conversion is."""

import os
import shutil
import sys
import time

BAR = 20
BAR_COLUMNS = 78  # narrower terminals have no room for the bar


def duration(seconds):
    """1:02:03 or 2:03; - for None."""
    if seconds is None:
        return "-"
    hours, minutes = seconds // 3600, seconds // 60 % 60
    return f"{hours}:{minutes:02}:{seconds % 60:02}" if hours else f"{minutes}:{seconds % 60:02}"


class Progress:
    """`bytes_total`: None where the size of the input is not known. `bytes_done`, `tokens`: of earlier processes."""

    def __init__(self, quiet, bytes_total, bytes_done=0, tokens=0):
        self.quiet, self.bytes_total = quiet, bytes_total
        self.first_bytes, self.first_tokens = bytes_done, tokens
        self.start = self.last = time.monotonic()
        # A terminal that cannot rewrite a line gets lines, as in distill itself.
        self.terminal = sys.stderr.isatty() and os.environ.get("TERM", "dumb") != "dumb"

    def seconds(self):
        return max(time.monotonic() - self.start, 1e-3)

    def tokens_per_second(self, tokens):
        return (tokens - self.first_tokens) / self.seconds()

    def show(self, bytes_done, documents, tokens, *, final=False):
        now = time.monotonic()
        if self.quiet or (not final and now - self.last < (0.5 if self.terminal else 10)):
            return
        self.last = now
        columns = shutil.get_terminal_size().columns if self.terminal else 200
        line = self._line(bytes_done, documents, tokens, columns, final)
        if self.terminal:
            line = f"\r{line[: columns - 1]}\033[K"
        print(line, end="\n" if final or not self.terminal else "", file=sys.stderr, flush=True)

    def _line(self, bytes_done, documents, tokens, columns, final):
        speed = f"{self.tokens_per_second(tokens):,.0f} tokens/s"
        counts = f"{documents:,} documents  {tokens:,} tokens"
        if self.bytes_total is None:
            return f"{speed}  {duration(round(self.seconds()))}  {bytes_done / 1e6:,.1f} MB read  {counts}"
        share = 1 if final else min(1, bytes_done / max(self.bytes_total, 1))
        here = (bytes_done - self.first_bytes) / max(self.bytes_total, 1)
        left = round(self.seconds() * (1 - share) / here) if here > 0 else 0 if final else None
        full = round(share * BAR)
        bar = f"[{'#' * full}{'.' * (BAR - full)}]  " if columns >= BAR_COLUMNS else ""
        return f"{100 * share:5.1f} %  {bar}{speed}  eta {duration(left)}  {counts}"
