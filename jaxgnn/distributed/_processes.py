"""Programs of several processes: connects them, and checks that they have the same input."""

from __future__ import annotations

import contextlib
import hashlib
import os
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils

from jaxgnn._errors import bad_input

# Longest time to wait for other processes at a comparison of data, which they may still be reading.
_READING_S = 1800
# Longest time without a heartbeat before a process counts as dead.
_SILENT_S = 30


def initialize(
    coordinator: str | None = None,
    num_processes: int | None = None,
    process_id: int | None = None,
    *,
    timeout_s: int = 60,
) -> None:
    """Connects this process with the others, before JAX is used; see ``jax.distributed``.

    Afterwards ``jax.devices()`` are those of all processes, and a mesh may use all of them. JAX
    detects omitted arguments on clusters that it supports. When a process ends before the others,
    or does not answer for 30 s, JAX ends the others with an error that names it.

    Args:
      coordinator: address ``host:port`` of process 0.
      num_processes: number of all processes.
      process_id: number of this process, from 0.
      timeout_s: seconds to wait for the others. After that, a message on standard error says what
        the process waited for, and JAX ends it with an error.

    Raises:
      ValueError: if ``process_id`` is not in ``0..num_processes - 1``, or the address has no port.
    """
    where = "distributed.initialize"
    if coordinator is not None and not coordinator.rpartition(":")[2].isdigit():
        raise bad_input(where, "coordinator", "an address host:port", repr(coordinator))
    if num_processes is not None and not 0 <= (process_id or 0) < num_processes:
        raise bad_input(where, "process_id", f"in 0..{num_processes - 1}", process_id)
    waited = (
        f"{where}: process {process_id} has waited {timeout_s} s at {coordinator} for all of "
        f"{num_processes} processes"
    )
    # JAX ends the whole process at its own timeout, which has to come after the message.
    with _after(timeout_s, _print, waited):
        jax.distributed.initialize(
            coordinator,
            num_processes,
            process_id,
            initialization_timeout=timeout_s + 2,
            heartbeat_timeout_seconds=_SILENT_S,
        )


def check_same(what: str, value: Any) -> None:
    """Checks that all processes have the same options or data, by a hash; all of them call it.

    Args:
      what: names the value in the message, such as ``"the options"``.
      value: an array, bytes, or something whose ``repr`` contains all that is compared.

    After half an hour of waiting a process prints a message and ends with exit status 1.

    Raises:
      ValueError: on all processes, naming those whose value is not that of process 0.
    """
    if jax.process_count() == 1:
        return
    array = np.ascontiguousarray(value) if hasattr(value, "dtype") else None
    data = repr(value).encode() if array is None else array.tobytes()
    shape = "" if array is None else f"{array.dtype}{array.shape}"
    digest = hashlib.sha256(shape.encode() + data).digest()
    waited = (
        f"distributed.check_same: process {jax.process_index()} has waited {_READING_S} s for the "
        f"other {jax.process_count() - 1} processes to compare {what}"
    )
    with _after(_READING_S, _end, waited):
        hashes = multihost_utils.process_allgather(np.frombuffer(digest, np.uint8))
    others = [at for at, row in enumerate(hashes) if (row != hashes[0]).any()]
    if others:
        expected = "the same on all processes, as on process 0"
        raise bad_input("distributed.check_same", what, expected, f"others on processes {others}")


@contextlib.contextmanager
def _after(seconds: float, function: Callable[[str], None], message: str) -> Iterator[None]:
    """Calls a function in another thread if the ``with`` block takes longer."""
    timer = threading.Timer(seconds, function, [message])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _print(message: str) -> None:
    print(message, file=sys.stderr, flush=True)


def _end(message: str) -> None:
    """Ends this process, because its main thread waits and can not raise an error."""
    _print(message)
    os._exit(1)
