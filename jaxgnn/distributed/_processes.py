"""Programs of several processes: connects them, and checks that they have the same input."""

from __future__ import annotations

import contextlib
import hashlib
import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec

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
      ValueError: if a number is no integer, ``process_id`` is not in ``0..num_processes - 1``, or
        the address has no port.
    """
    where = "distributed.initialize"
    numbers = {"num_processes": num_processes, "process_id": process_id, "timeout_s": timeout_s}
    for name, number in numbers.items():
        is_integer = isinstance(number, int | np.integer) and not isinstance(number, bool)
        if number is not None and not is_integer:
            raise bad_input(where, name, "an integer", repr(number))
    if coordinator is not None and not coordinator.rpartition(":")[2].isdigit():
        raise bad_input(where, "coordinator", "an address host:port", repr(coordinator))
    if num_processes is not None and not 0 <= (process_id or 0) < num_processes:
        raise bad_input(where, "process_id", f"in 0..{num_processes - 1}", process_id)
    waited = (
        f"{where}: process {process_id} has waited {timeout_s} s at {coordinator} for all of "
        f"{num_processes} processes"
    )
    # JAX ends the whole process at its own timeout, which has to come after the message.
    with _call_after(timeout_s, _print, waited):
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
    digest = np.frombuffer(_digest([value]), np.uint8)
    with _ending_late("distributed.check_same", what, jax.process_count()):
        hashes = multihost_utils.process_allgather(digest)
    others = [at for at, row in enumerate(hashes) if (row != hashes[0]).any()]
    if others:
        expected = "the same on all processes, as on process 0"
        raise bad_input("distributed.check_same", what, expected, f"others on processes {others}")


def check_same_on(mesh: Mesh, where: str, values: Mapping[str, Iterable[Any]]) -> None:
    """Checks that all processes of a mesh have the same values; all of them call it.

    Args:
      mesh: the mesh; processes without a device of it do not take part.
      where: the function that compares.
      values: for each argument of it what is compared, as for ``check_same``.

    Raises:
      ValueError: on all processes of the mesh, naming an argument and the processes where it is
        not that of the first.
    """
    devices = mesh.devices.ravel()
    processes = {device.process_index for device in devices}
    if len(processes) == 1:
        return
    joined = b"".join(map(_digest, values.values()))
    digests = np.frombuffer(joined, np.uint8).reshape(1, len(values), -1)
    flat = Mesh(devices, ("devices",))
    each, everywhere = (NamedSharding(flat, PartitionSpec(*axis)) for axis in (["devices"], []))
    shape = (len(devices), *digests.shape[1:])
    with _ending_late(where, " and ".join(values), len(processes)):
        spread = jax.make_array_from_callback(shape, each, lambda _: digests)
        copied = jax.jit(lambda array: array, out_shardings=everywhere)(spread)
        hashes = np.asarray(copied.addressable_data(0))
    differs = (hashes != hashes[0]).any(axis=2)
    for name, of_devices in zip(values, differs.T, strict=True):
        others = sorted({device.process_index for device in devices[of_devices]})
        if others:
            expected = f"the same on all processes, as on process {devices[0].process_index}"
            raise bad_input(where, name, expected, f"others on processes {others}")


def _digest(values: Iterable[Any]) -> bytes:
    """Returns the hash of arrays, and of the texts of other values."""
    digest = hashlib.sha256()
    for value in values:
        if hasattr(value, "dtype"):
            array = np.ascontiguousarray(value)
            digest.update(f"{array.dtype}{array.shape}".encode())
            digest.update(array.reshape(-1).view(np.uint8))
        else:
            digest.update(repr(value).encode())
    return digest.digest()


def _ending_late(
    where: str, what: str, num_processes: int
) -> contextlib.AbstractContextManager[None]:
    """Ends this process if the others do not come to compare something."""
    waited = (
        f"{where}: process {jax.process_index()} has waited {_READING_S} s for the other "
        f"{num_processes - 1} processes to compare {what}"
    )
    return _call_after(_READING_S, _end, waited)


@contextlib.contextmanager
def _call_after(seconds: float, function: Callable[[str], None], message: str) -> Iterator[None]:
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
