"""Epochs of loaders: batches that are functions of their epoch and step, made ahead by threads."""

from __future__ import annotations

import itertools
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from typing import Any

from jaxgnn._errors import bad_input
from jaxgnn.sampling import _checks
from jaxgnn.sampling._prefetch import Prefetched


class Epochs[Batch](ABC):
    """Base class of loaders. A subclass counts the steps of an epoch, and makes a batch."""

    _workers: int  # batches that are made at the same time

    def __init__(self):
        self._growing = threading.Lock()
        self._epochs = itertools.count()

    def __reduce__(self) -> Any:
        raise TypeError(
            f"{self._where}: a loader can not be copied or pickled; make one of the same arguments "
            "in each process, whose batches are the same"
        )

    @abstractmethod
    def __len__(self) -> int:
        """Number of steps of an epoch."""

    def __iter__(self) -> Iterator[Batch]:
        """Iterates over the next epoch, from 0 on: each loop over the loader is another epoch."""
        return self.epoch(next(self._epochs))

    def epoch(self, epoch: int, start: int = 0) -> Prefetched[Batch]:
        """Iterates over the batches of an epoch, from a step on."""
        return self._ahead((epoch, step) for step in range(start, len(self)))

    def steps(self, start: int = 1) -> StepBatches[Batch]:
        """Returns a function from a step of a training, counted from 1, to its batch.

        ``training.fit`` takes the loader itself, and calls this with the step to start from. Step
        ``len(loader)`` is the last of the first epoch. Batches of the following steps are made
        ahead.
        """
        return StepBatches(self, start)

    @abstractmethod
    def batch(self, epoch: int, step: int) -> Batch:
        """Makes one batch, on the default device.

        Raises:
          ValueError: if there is no such epoch or step.

        Warns:
          UserWarning: if the batch does not fit into the capacity, which grows.
        """

    def _ahead(self, places: Iterable[tuple[int, int]]) -> Prefetched[Batch]:
        """Iterates over the batches of pairs of an epoch and a step, which threads make ahead."""
        workers = self._workers
        return Prefetched(
            lambda place: self.batch(*place), places, threads=workers, depth=workers + 2
        )

    @property
    def _where(self) -> str:
        return f"sampling.{type(self).__name__}"

    def _check_place(self, epoch: int, step: int) -> None:
        _checks.counters(self._where, 0, epoch, 0)
        if not 0 <= step < len(self):
            raise bad_input(self._where, "step", f"in [0, {len(self)})", step)


class StepBatches[Batch]:
    """Batches of the steps of a training, counted from 1, of which the next are made ahead."""

    def __init__(self, loader: Epochs[Batch], start: int):
        self._loader = loader
        self._next: int | None = None
        self._begin(start)

    def __call__(self, step: int) -> Batch:
        """Returns the batch of a step; another than the next one is made without preparation."""
        if step != self._next:
            self._begin(step)
        self._next = None  # after an interrupt it is unknown, and the next call begins again
        batch = next(self._batches)
        self._next = step + 1
        return batch

    def close(self) -> None:
        """Ends the threads that make batches."""
        self._batches.close()

    def _begin(self, step: int) -> None:
        if step < 1:
            raise bad_input(self._loader._where, "step", "at least 1", step)
        self._next = None
        steps = len(self._loader)
        self._batches = self._loader._ahead(divmod(s - 1, steps) for s in itertools.count(step))
        self._next = step
