"""Waits for arrays on several devices, of which one may fail while the others wait for it."""

import atexit
import contextlib
import os
import queue
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any, NamedTuple, Self

import jax

from .progress import say

LAUNCH_S = 60.0
"""Seconds after which a launch of a compiled program on several devices counts as failed. One call
launches it on all devices of a process, which takes milliseconds. A launch may wait for the work of
earlier steps, so the limit is at least ``STEPS_A_LAUNCH`` times their time."""
STEPS_A_LAUNCH = 10

THREAD = "jaxgnn launches"
_INTERVAL_S = 1.0


def wait_for_devices(values: Any, where: str) -> None:
    """Waits for the results of a program that ran on several devices.

    A device that fails, for example out of memory, never reaches the collective for which the
    others wait. Waiting for one of the others would then never end, or end by a time-out that does
    not know the error. Here a separate thread waits for each device of this process, for the first
    array of ``values``. For the program of a single device it does not wait.

    Raises:
      RuntimeError: One device fails; the message names it. The others may still wait, and JAX would
        wait for them at the interpreter's exit. So the interpreter exits without waiting, with
        status 1.
    """
    shards = _shards(values)
    if not shards or not _others_may_wait(shards):
        return
    done: queue.SimpleQueue[tuple[jax.Device, Exception | None]] = queue.SimpleQueue()

    def wait(shard: Any) -> None:
        failed = None
        try:
            shard.data.block_until_ready()
        except Exception as error:
            failed = error
        done.put((shard.device, failed))

    for shard in shards:
        threading.Thread(target=wait, args=(shard,), daemon=True).start()
    for _ in shards:
        device, error = done.get()
        if error is not None:
            atexit.register(_leave)
            raise RuntimeError(f"fit: device {device} failed at {where}: {error}") from error


@contextlib.contextmanager
def launching(arrays: Any, what: str) -> Iterator[None]:
    """Launches the program ``what`` on the devices of a pytree of arrays, its arguments.

    Raises:
      RuntimeError: The launch fails on a device for which others may wait; the message has the free
        memory of each device of this process. The interpreter then exits without waiting for
        them, as for ``wait_for_devices``.
    """
    try:
        yield
    except jax.errors.JaxRuntimeError as error:
        devices = _devices(arrays)
        if not _others_may_wait(devices):
            raise
        atexit.register(_leave)
        names, free = ", ".join(map(str, devices)), _free_memory(devices)
        where = f"one of the devices {names} failed at the launch of {what}{free}"
        raise RuntimeError(f"fit: {where}: {error}") from error


class _Launch(NamedTuple):
    """A launch in progress of the program ``what``, by a thread since a time."""

    what: str
    since: float
    thread: int
    frame: int  # ``id`` of the launching frame, which itself would keep its arrays alive


class LaunchWatch:
    """Reports launches on several devices that do not end, and ends the process.

    A thread of XLA launches a program on each device, and the call waits for all of them. If one
    fails, for example out of memory, the others may wait for it in XLA without a limit, and no
    error can be raised in the thread that called. So another thread watches the time. After half
    of ``LAUNCH_S`` it prints the program that is not launched, and its devices. After the limit
    described in ``LAUNCH_S`` it ends the process with status 1. The limit is ``longest_s`` if this
    process or another one may still trace or compile the program. On one device it does nothing.
    The first of ``arrays`` is on all devices of the launch.
    """

    def __init__(self, arrays: Any, longest_s: float):
        self.devices = _devices(arrays)
        self.longest_s = longest_s
        self._longest_steps_s = 0.0
        self._launch: _Launch | None = None
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        if len(self.devices) > 1:
            self._thread = threading.Thread(target=self._look, name=THREAD, daemon=True)
            self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._closed.set()
        if self._thread is not None:
            self._thread.join()

    @contextlib.contextmanager
    def launch(self, what: str) -> Iterator[None]:
        """Watches the launch of program ``what`` by the code in the ``with`` block itself."""
        # This generator is called by contextlib's ``__enter__``, which the block's function calls.
        frame = id(sys._getframe(2))
        self._launch = _Launch(what, time.monotonic(), threading.get_ident(), frame)
        try:
            yield
        finally:
            self._launch = None

    def steps_took(self, seconds: float) -> None:
        """Records how long the devices took for some steps."""
        self._longest_steps_s = max(self._longest_steps_s, seconds)

    def _look(self) -> None:
        told = None
        while not self._closed.wait(_INTERVAL_S):
            launch = self._launch
            if launch is None:
                continue
            seconds = time.monotonic() - launch.since
            # A call of a compiled program is C++ only, so that the caller's frame stays Python's
            # innermost one. JAX traces and compiles in its own frames.
            compiled = id(sys._current_frames().get(launch.thread)) == launch.frame
            if seconds > LAUNCH_S / 2 and launch is not told:
                told = launch
                say(f"fit: {self._fault(launch, seconds, compiled)}")
            if seconds > self._limit(compiled):
                fault = self._fault(launch, seconds, compiled)
                if self._launch is launch:
                    say(f"error: fit: {fault}")
                    _leave()

    def _limit(self, compiled: bool) -> float:
        """Longest time of a launch, in seconds."""
        # Another process may still compile; ``Watch`` finds a process that is stuck.
        if not compiled or jax.process_count() > 1:
            return self.longest_s
        return min(self.longest_s, max(LAUNCH_S, STEPS_A_LAUNCH * self._longest_steps_s))

    def _fault(self, launch: _Launch, seconds: float, compiled: bool) -> str:
        names, free = ", ".join(map(str, self.devices)), _free_memory(self.devices)
        why = "earlier steps take long" if compiled else "it is still compiled"
        return (
            f"{launch.what} has not been launched on the devices {names} after {seconds:.0f} s: "
            f"{why}, or one of them has failed and the others wait for it{free}"
        )


def _others_may_wait(places: list[Any]) -> bool:
    """Whether others may wait for work of one of these devices or shards."""
    return len(places) > 1 or jax.process_count() > 1


def _free_memory(devices: list[jax.Device]) -> str:
    """Text in brackets with the free memory of each device; empty if no device reports it."""
    free = [
        f"{device} {(stats['bytes_limit'] - stats['bytes_in_use']) / 2**30:.2f} GiB"
        for device, stats in zip(devices, map(_stats, devices), strict=True)
        if {"bytes_limit", "bytes_in_use"} <= stats.keys()
    ]
    return f" (free memory: {', '.join(free)})" if free else ""


def _stats(device: jax.Device) -> dict[str, int]:
    """Memory statistics of a device; empty on a CPU."""
    return device.memory_stats() or {}


def _shards(values: Any) -> list[Any]:
    """This process's parts of the first array of a pytree."""
    return [shard for array in _arrays(values)[:1] for shard in array.addressable_shards]


def _devices(values: Any) -> list[jax.Device]:
    """Devices of this process that hold the first array of a pytree.

    It does not ask for the array's parts: for one that ``jax.device_put`` has put on devices of
    several processes, JAX can not list them before a program has run.
    """
    devices = [d for array in _arrays(values)[:1] for d in array.sharding.addressable_devices]
    return sorted(devices, key=lambda device: device.id)


def _arrays(values: Any) -> list[jax.Array]:
    return [leaf for leaf in jax.tree.leaves(values) if isinstance(leaf, jax.Array)]


def _leave() -> None:
    """Exits the process without waiting for devices."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(1)
