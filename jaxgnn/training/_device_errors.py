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
    """Waits for the results of a program that ran on several devices.

    A device that fails, such as one without memory, never comes to the exchange for which the
    others wait. Who waits for one of these devices would so wait for ever, or until a time-out that
    does not know of the error. Here each device of this process is waited for by a thread of its
    own; of a program on one device alone nothing is waited for.

    Args:
      values: a pytree of arrays that one program has made; one of them is waited for.
      where: what the program does, in words.

    Raises:
      RuntimeError: naming the device and its error, as soon as one fails. The others may still
        wait then, and JAX would wait for them when the interpreter ends: so it ends without that,
        with exit status 1.
    """
    shards = _shards(values)
    if not shards or not _others_may_wait(shards):
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
def launching(arrays: Any, what: str) -> Iterator[None]:
    """Launches a program on the devices of a pytree of arrays.

    Args:
      arrays: arguments of the program.
      what: the program, in words.

    Raises:
      RuntimeError: if that fails on a device for which others may wait, with the memory that is
        free on each device of this process. The interpreter then ends without waiting for them, as
        behind ``wait_for_devices``.
    """
    try:
        yield
    except jax.errors.JaxRuntimeError as error:
        shards = _shards(arrays)
        if not _others_may_wait(shards):
            raise
        atexit.register(_leave)
        devices = [shard.device for shard in shards]
        names, free = ", ".join(map(str, devices)), _free_memory(devices)
        where = f"one of the devices {names} failed at the launch of {what}{free}"
        raise RuntimeError(f"fit: {where}: {error}") from error


def _others_may_wait(shards: list[Any]) -> bool:
    """Whether what a device of these shards has to do is waited for by other devices."""
    return len(shards) > 1 or jax.process_count() > 1


def _free_memory(devices: list[jax.Device]) -> str:
    """The memory that is left on each device, to be put in brackets; nothing if none counts it."""
    counted = {device: _stats(device) for device in devices}
    free = [
        f"{device} {(stats['bytes_limit'] - stats['bytes_in_use']) / 2**30:.2f} GiB"
        for device, stats in counted.items()
        if {"bytes_limit", "bytes_in_use"} <= stats.keys()
    ]
    return f" (free memory: {', '.join(free)})" if free else ""


def _stats(device: jax.Device) -> dict[str, int]:
    """What a device counts of its memory; CPUs count nothing."""
    return device.memory_stats() or {}


def _shards(values: Any) -> list[Any]:
    """The parts that this process has of the first array of a pytree."""
    arrays = [leaf for leaf in jax.tree.leaves(values) if isinstance(leaf, jax.Array)]
    return list(arrays[0].addressable_shards) if arrays else []


def _leave() -> None:
    """Ends the process, without what waits for devices."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(1)
