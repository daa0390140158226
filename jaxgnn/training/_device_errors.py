"""Waiting for arrays on several devices, of which one may fail while the others wait for it."""

import atexit
import contextlib
import os
import queue
import sys
import threading
from collections.abc import Iterator
from typing import Any

import jax


def wait_for_devices(values: Any, where: str) -> None:
    """Waits for the results of a program that ran on several devices of this process.

    A device that fails, such as one without memory, never comes to the exchange for which the
    others wait. Who waits for one of these devices would so wait for ever, or until a time-out that
    does not know of the error. Here each device is waited for by a thread of its own.

    Args:
      values: a pytree of arrays that one program has made; one of them is waited for.
      where: what the program does, in words.

    Raises:
      RuntimeError: naming the device and its error, as soon as one fails. The others may still
        wait then, and JAX would wait for them when the interpreter ends: so it ends without that,
        with exit status 1.
    """
    shards = _shards(values)
    if len(shards) < 2:
        return
    done: queue.SimpleQueue[tuple[jax.Device, Exception | None]] = queue.SimpleQueue()

    def wait(shard: Any) -> None:
        try:
            shard.data.block_until_ready()
        except Exception as error:
            done.put((shard.device, error))
        else:
            done.put((shard.device, None))

    for shard in shards:
        threading.Thread(target=wait, args=(shard,), daemon=True).start()
    for _ in shards:
        device, error = done.get()
        if error is not None:
            atexit.register(_leave)
            raise RuntimeError(f"fit: device {device} failed at {where}: {error}") from error


@contextlib.contextmanager
def launching(arrays: Any) -> Iterator[None]:
    """Launches a program on the devices of a pytree of arrays.

    If that fails on one device of this process, the others may wait for it, as they may behind
    ``wait_for_devices``: the error is raised, and the interpreter ends without waiting for them.
    """
    try:
        yield
    except jax.errors.JaxRuntimeError:
        if len(_shards(arrays)) > 1:
            atexit.register(_leave)
        raise


def _shards(values: Any) -> list[Any]:
    """The parts that this process has of the first array of a pytree."""
    arrays = [leaf for leaf in jax.tree.leaves(values) if isinstance(leaf, jax.Array)]
    return list(arrays[0].addressable_shards) if arrays else []


def _leave() -> None:
    """Ends the process, without what waits for devices."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(1)
