"""Errors of orbax and TensorStore, which read and write checkpoints: one line each, once."""

import errno
import logging
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_LONGEST_REASON = 160
_OS_ERROR = re.compile(r"os_error_code='(\d+)'")


def reason_of(error: Exception) -> str:
    """The first line of an error's message, shortened."""
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    text = next(iter(text.strip().splitlines()), "") or type(error).__name__
    return text if len(text) <= _LONGEST_REASON else f"{text[:_LONGEST_REASON]}…"


def not_written(what: str, error: Exception) -> OSError:
    """The error about a checkpoint that is not complete, with the number that the system gave."""
    code = _OS_ERROR.search(str(error))
    number = int(code[1]) if code else getattr(error, "errno", None) or errno.EIO
    reason = os.strerror(number) if code else reason_of(error)
    failed = OSError(f"{what} can not be written: {reason}")
    failed.errno = number
    return failed


@contextmanager
def without_late_reports() -> Iterator[None]:
    """Keeps an error of the block from being reported again by threads that outlive it.

    Orbax logs the errors of its threads with their tracebacks, and then raises them. It also closes
    its event loop at the first error, so that each array that TensorStore completes later prints a
    traceback about a closed loop, or about a coroutine that was left. After an error all are
    dropped, until the process ends.
    """
    logger = logging.getLogger("absl")
    logger.addFilter(_is_no_copy)
    try:
        yield
    except Exception:
        if not isinstance(sys.unraisablehook, _WithoutOrbax):
            sys.unraisablehook = _WithoutOrbax(sys.unraisablehook)
        raise
    else:
        logger.removeFilter(_is_no_copy)


def _is_no_copy(record: logging.LogRecord) -> bool:
    """Whether a message of orbax is no copy of an error that it raises."""
    return "_SignalingThread.run() raised" not in record.getMessage()


class _WithoutOrbax:
    """A hook for exceptions that can not be raised; it drops those of loops that orbax closed."""

    def __init__(self, hook: Any):
        self._hook = hook

    def __call__(self, unraisable: Any) -> None:
        code = getattr(unraisable.object, "cr_code", None)
        is_of_orbax = "orbax" in getattr(code, "co_filename", "")
        if not is_of_orbax and "Event loop is closed" not in str(unraisable.exc_value):
            self._hook(unraisable)
