"""How far a command is, said on stderr from its start."""

from __future__ import annotations

import sys
import time

from tqdm import tqdm

_SECONDS_BETWEEN_LINES = 5.0


class Counts:
    """Says how many are done of so many: a bar on a terminal, a line every few seconds elsewhere.

    Called with the number that is done so far; the first line is said at once.

    Args:
      what: what is being done, such as ``"minimal puzzles"``.
      total: how many there are.
      progress: False says nothing.
    """

    def __init__(self, what: str, total: int, *, progress: bool = True):
        on_terminal = progress and sys.stderr.isatty()
        self._bar = tqdm(total=total, desc=what, disable=not on_terminal, dynamic_ncols=True)
        self._what, self._total = what, total
        self._lines = progress and not on_terminal
        self._last_line = -_SECONDS_BETWEEN_LINES
        self(0)

    def __call__(self, done: int) -> None:
        """Takes note of the number that is done, and says it if it is time to."""
        if not self._bar.disable:
            self._bar.update(done - self._bar.n)
            if done == self._total:
                self._bar.close()
        now = time.monotonic()
        if self._lines and (now - self._last_line >= _SECONDS_BETWEEN_LINES or done == self._total):
            print(f"{self._what}: {done:,} of {self._total:,}", file=sys.stderr, flush=True)
            self._last_line = now
