"""Progress on stderr: a bar on a terminal, occasional lines elsewhere, and phases before it."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Self

from tqdm import tqdm

from .files import Row

_SECONDS_BETWEEN_LINES = 30.0
# A shorter phase needs no second line.
_WORTH_TELLING_SECONDS = 1.0


@contextmanager
def phase(what: str, *, progress: bool = True) -> Iterator[None]:
    """Prints on stderr that work begins and, if it took more than a second, its duration.

    Use it before and after training, so that nobody waits without an explanation::

        with phase("reading Reddit", progress=config.progress):
            dataset = load(config)

    Lines are printed above a progress bar that is shown at the same time.

    Args:
      what: Name of the work, such as ``"reading Reddit"``.
      progress: False prints nothing.
    """
    say(f"{what} …", progress=progress)
    started = time.monotonic()
    yield
    seconds = time.monotonic() - started
    if seconds > _WORTH_TELLING_SECONDS:
        say(f"{what}: {seconds:.1f} s", progress=progress)


def say(text: str, *, progress: bool = True) -> None:
    """Prints a line to stderr at once, above any progress bar; nothing if not ``progress``."""
    if progress:
        tqdm.write(text, file=sys.stderr)
        sys.stderr.flush()


class Progress:
    """Shows steps, loss, metrics and the time of a step; a context manager.

    Args:
      done: Steps done before this start.
      total: Steps of the whole run.
      examples_per_step: To show examples per second instead of milliseconds a step, or None.
      examples: Name of the examples.
      enabled: False shows nothing.
    """

    def __init__(
        self,
        done: int,
        total: int,
        examples_per_step: int | None = None,
        examples: str = "examples",
        *,
        enabled: bool,
    ):
        on_terminal = enabled and sys.stderr.isatty()
        self._total = total
        self._examples_per_step = examples_per_step
        self._examples = examples
        self._bar = tqdm(initial=done, total=total, disable=not on_terminal, dynamic_ncols=True)
        self._lines = enabled and not on_terminal
        self._last_line = 0.0

    def begin(self, what: str) -> None:
        """Shows work that begins now and may take long."""
        if not self._bar.disable:
            self._bar.set_postfix_str(what)
        say(f"{what} …", progress=self._lines)

    def update(self, step: int, row: Row, ms_per_step: float | None) -> None:
        """Reports that ``step`` is done, with its row of metrics."""
        parts = [f"{name} {value:.4g}" for name, value in row.items() if name != "step"]
        if ms_per_step is not None and self._examples_per_step is not None:
            pace = 1e3 * self._examples_per_step / ms_per_step
            parts.append(f"{pace:,.0f} {self._examples}/s")
        elif ms_per_step is not None:
            parts.append(f"{ms_per_step:.3g} ms/step")
        text = ", ".join(parts)
        if not self._bar.disable:
            self._bar.set_postfix_str(text, refresh=False)
            self._bar.update(step - self._bar.n)
        now = time.monotonic()
        quiet = now - self._last_line < _SECONDS_BETWEEN_LINES and step < self._total
        if self._lines and not quiet:
            print(f"step {step}/{self._total}: {text}", file=sys.stderr, flush=True)
            self._last_line = now

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._bar.close()
