"""Progress of a command on stderr."""

from __future__ import annotations

import sys
import time

from tqdm import tqdm

_SECONDS_BETWEEN_LINES = 5.0


class Counts:
    """Shows a count of a total: a bar on a terminal, a line every few seconds elsewhere.

    Call it with the current count; the first line is printed at once.

    Args:
      what: name of the counted things, such as ``"minimal puzzles"``.
      total: total number.
      progress: if False, nothing is shown.
    """

    def __init__(self, what: str, total: int, *, progress: bool = True):
        on_terminal = progress and sys.stderr.isatty()
        self._bar = tqdm(total=total, desc=what, disable=not on_terminal, dynamic_ncols=True)
        self._what, self._total = what, total
        self._lines = progress and not on_terminal
        self._last_line = -_SECONDS_BETWEEN_LINES
        self(0)

    def __call__(self, done: int) -> None:
        """Stores the count, and prints it if enough time has passed."""
        if not self._bar.disable:
            self._bar.update(done - self._bar.n)
            if done == self._total:
                self._bar.close()
        now = time.monotonic()
        if self._lines and (now - self._last_line >= _SECONDS_BETWEEN_LINES or done == self._total):
            print(f"{self._what}: {done:,} of {self._total:,}", file=sys.stderr, flush=True)
            self._last_line = now
