"""Work in a process of its own, whose messages are read as they come, and which can be stopped.

Nothing here imports JAX, so that a process which only watches another one holds no device.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator
from multiprocessing import get_context
from typing import Any, NamedTuple
from unittest import mock

# JAX would else reserve most of the device.
_ON_DEMAND = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}


class Device(NamedTuple):
    """The device that measures, and the cases that are to come on it: graphs and networks."""

    description: dict[str, Any]
    cases: list[tuple[str, str]]


class Begun(NamedTuple):
    """What the process does from now on."""

    stage: str


class Measured(NamedTuple):
    """A case is done."""

    row: dict[str, Any]


class Stopped(Exception):
    """The process was stopped since it was too late, or ended by itself before it was done."""


class Watched:
    """A process that runs a generator; what this yields is read here as it comes.

    A compiler that never comes back can not be interrupted from within its process: the process is
    killed. One that the system ends, for want of memory, is told from one that is done.

    Args:
      work: a generator function of a module, which the process imports.
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
        """What the process sends, and None whenever nothing has come for a while.

        Args:
          deadline: the moment until which the next message may come, of ``time.monotonic``.
          patience: seconds after which None is given.

        Raises:
          Stopped: after the deadline, and if the process ended before its work did.
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
