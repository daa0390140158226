"""Work in a separate process that can be stopped, and whose messages are read as they arrive.

Nothing here imports JAX, so that a process that only watches another one occupies no device.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator
from multiprocessing import get_context
from typing import Any, NamedTuple
from unittest import mock

# By default JAX would reserve most of the device.
_ON_DEMAND = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}


class Device(NamedTuple):
    """The device that measures, and its coming cases: graphs and networks."""

    description: dict[str, Any]
    cases: list[tuple[str, str]]


class Begun(NamedTuple):
    """Message that the process begins a task."""

    stage: str


class Measured(NamedTuple):
    """Message that a case is done."""

    row: dict[str, Any]


class Stopped(Exception):
    """The process was stopped at its deadline, or ended before its work was done."""


class Watched:
    """A process that runs a generator, whose values arrive here as messages.

    A compiler that never returns can not be interrupted from within its process, so the process is
    killed. A process that the system ends, for lack of memory, does not count as finished.

    Args:
      work: a generator function of a module that the process imports.
      *args: its arguments, which are pickled, as are the messages.
    """

    def __init__(self, work: Callable[..., Iterable[Any]], *args: Any):
        context = get_context("spawn")
        self._messages, ours = context.Pipe(duplex=False)
        self._process = context.Process(target=_send_all, args=(ours, work, args), daemon=True)
        with mock.patch.dict(os.environ, _ON_DEMAND):
            self._process.start()
        ours.close()

    def __enter__(self) -> Watched:
        return self

    def __exit__(self, *_: Any) -> None:
        self._process.kill()
        self._process.join()
        self._messages.close()

    def messages(self, deadline: Callable[[], float], patience: float) -> Iterator[Any]:
        """Yields the messages of the process, and None whenever none has arrived for a while.

        Args:
          deadline: returns the latest time for the next message, of ``time.monotonic``.
          patience: seconds after which None is yielded.

        Raises:
          Stopped: after the deadline, or if the process ended before its work did.
        """
        waited_since = time.monotonic()
        while True:
            now = time.monotonic()
            if now >= deadline():
                raise Stopped("stopped, as its time was over")
            if not self._messages.poll(min(patience, deadline() - now)):
                if time.monotonic() - waited_since >= patience:
                    yield None
                continue
            try:
                kind, content = self._messages.recv()
            except EOFError:
                self._process.join()
                code = self._process.exitcode
                raise Stopped(f"its process ended by itself, with the code {code}") from None
            if kind == "done":
                return
            waited_since = time.monotonic()
            yield content


def _send_all(connection: Any, work: Callable[..., Iterable[Any]], args: tuple[Any, ...]) -> None:
    for message in work(*args):
        connection.send(("message", message))
    connection.send(("done", None))
