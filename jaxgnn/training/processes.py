"""Agreement between processes that train together, and detection of one that is stuck."""

import contextlib
import json
import os
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, Self

import jax
import numpy as np
from jax.experimental import multihost_utils

# Longest time a process may spend submitting work before it counts as stuck. JAX detects a process
# that has stopped entirely, after the number of seconds given to ``distributed.initialize``.
_PATIENCE_S = 40.0
_INTERVAL_S = 1.0


def writes_files() -> bool:
    """Whether this process writes and reports for all; only process 0 does."""
    return jax.process_index() == 0


def wait_for_all(what: str) -> None:
    """Waits until all processes arrive; ``what`` names the place, the same for all."""
    if jax.process_count() > 1:
        multihost_utils.sync_global_devices(what)


def as_first(flag: bool) -> bool:
    """Returns the flag of process 0 on all processes, such as that its time is over."""
    if jax.process_count() == 1:
        return flag
    return bool(multihost_utils.broadcast_one_to_all(np.array(flag)))


def warn_if_separate(arrays: Any) -> None:
    """Warns if several processes train, but share none of the arrays of a step."""
    count = jax.process_count()
    leaves = [leaf for leaf in jax.tree.leaves(arrays) if isinstance(leaf, jax.Array)]
    if count == 1 or not all(leaf.is_fully_addressable for leaf in leaves):
        return
    warnings.warn(
        f"fit: each of {count} processes trains a model of its own, as they share no array; to "
        "train one, pass a mesh of the devices of all processes",
        stacklevel=4,
    )


class Place(NamedTuple):
    """Position of a process in the training; all processes pass the same places in order."""

    number: int  # of previous places
    name: str
    takes_long: bool  # such as a compilation


class Watch:
    """Publishes this process's place to the others, and ends it if another process is stuck.

    A process that waits for others at a collective operation can not continue, and can not raise
    an error either. So a thread checks whether another process is behind and has not moved. It
    prints which one and where, and exits with status 1; JAX then ends the others. With a single
    process it does nothing.

    Args:
      folder: a folder that all processes share, in which each writes its place; None if there is
        none, so that only ``longest_s`` is checked.
      longest_s: longest time at any place, in seconds.
      patience_s: seconds that a process may be behind at a place that does not take long.
    """

    def __init__(self, folder: Path | None, longest_s: float, patience_s: float = _PATIENCE_S):
        self.folder, self.longest_s, self.patience_s = folder, longest_s, patience_s
        self.place = Place(0, "the beginning", True)
        self._since = time.monotonic()
        self._seen: dict[int, tuple[Place | None, float]] = {}
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        if jax.process_count() > 1:
            if self.folder is not None:
                self.folder.mkdir(parents=True, exist_ok=True)
                self._write(self.place)
            with self.limited("all processes at the beginning of training"):
                wait_for_all("the beginning of training")
            self._thread = threading.Thread(target=self._look, daemon=True)
            self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._closed.set()
        if self._thread is not None:
            self._thread.join()

    def at(self, name: str, *, takes_long: bool = False) -> None:
        """Records that this process has reached a place."""
        self.place = Place(self.place.number + 1, name, takes_long)
        self._since = time.monotonic()

    @contextlib.contextmanager
    def limited(self, what: str) -> Iterator[None]:
        """Ends this process if the ``with`` block takes longer than ``longest_s``."""
        waited = f"process {jax.process_index()} has waited {self.longest_s:.0f} s for {what}"
        timer = threading.Timer(self.longest_s, _end, [waited])
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()

    def _look(self) -> None:
        written = self.place
        while not self._closed.wait(_INTERVAL_S):
            place, since = self.place, self._since
            if self.folder is not None and place != written:
                self._write(place)
                written = place
            fault = self.fault(place, time.monotonic() - since)
            if fault is not None and place == self.place:
                _end(fault)

    def fault(self, place: Place, seconds: float) -> str | None:
        """Describes the fault if this process has waited too long at its place; else None."""
        here = f"process {jax.process_index()} has waited {seconds:.0f} s at {place.name}"
        for process in range(jax.process_count() if self.folder is not None else 0):
            other, still = self._observed(process)
            if other is None or other.number >= place.number:
                continue
            if min(still, seconds) > (self.longest_s if other.takes_long else self.patience_s):
                return f"{here} for process {process}, which has not left {other.name}"
        if seconds > self.longest_s:
            return f"{here}, where all other processes are too, or beyond"
        return None

    def _observed(self, process: int) -> tuple[Place | None, float]:
        """The place of a process, and for how many seconds it has been seen there."""
        now, place = time.monotonic(), None
        # The file may be missing or unreadable.
        with contextlib.suppress(OSError, ValueError, TypeError):
            place = Place(*json.loads(self._file(process).read_text(encoding="utf-8")))
        before, since = self._seen.get(process, (None, now))
        if place is None or place != before:
            before, since = place or before, now
        self._seen[process] = before, since
        return before, now - since

    def _file(self, process: int) -> Path:
        assert self.folder is not None
        return self.folder / f"process_{process}.json"

    def _write(self, place: Place) -> None:
        path = self._file(jax.process_index())
        part = path.with_suffix(".part")
        part.write_text(json.dumps(place), encoding="utf-8")
        part.replace(path)


def _end(fault: str) -> None:
    """Ends this process, whose main thread waits where nothing can be raised."""
    print(f"error: fit: {fault}", file=sys.stderr, flush=True)
    os._exit(1)
