"""Base class of loaders whose batches are samples of seeds, made ahead by threads."""

from __future__ import annotations

import itertools
import threading
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

from jaxgnn._errors import bad_input
from jaxgnn.sampling import _checks
from jaxgnn.sampling._capacity import measured
from jaxgnn.sampling._prefetch import Prefetched
from jaxgnn.sampling._seed_order import SeedOrder

# Batches whose sizes are measured for a capacity.
_MEASURED_BATCHES = 8


class BatchLoader[Batch](ABC):
    """Loader of batches that are functions of their epoch and step.

    A subclass sets the attributes and makes a batch.

    Attributes:
      capacity: numbers of slots of a batch.
    """

    capacity: Any
    _things = "seeds"
    _seeds: np.ndarray
    _count: int  # of things that an epoch visits
    _order: SeedOrder
    _batch_size: int  # seeds of a batch
    _process: int  # index of this process
    _workers: int  # batches that are made at the same time
    _source: Any  # draws samples, and knows their sizes
    _bound: Any  # the sizes that no batch exceeds
    _measure: Callable[[Iterable[Any], Any], Any] = staticmethod(measured)

    def __init__(self):
        self._growing = threading.Lock()
        self._epochs = itertools.count()

    def __repr__(self) -> str:
        """Shows sizes."""
        return (
            f"{type(self).__name__}({self._count} {self._things}, {len(self)} steps of "
            f"{self._batch_size}, {self.capacity})"
        )

    def __len__(self) -> int:
        """Number of steps of an epoch."""
        return self._order.num_steps

    @property
    def batch_size(self) -> int:
        """Number of seeds of a batch, at most that of all seeds."""
        return self._batch_size

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

    def _seeds_of(self, epoch: int, step: int, process: int) -> np.ndarray:
        return self._seeds[self._order.of_step(epoch, step, process)]

    def _draw(self, seeds: np.ndarray, epoch: int, step: int) -> Any:
        """A sample; the capacity grows until it fits."""
        while True:
            capacity = self.capacity
            made = self._source.draw(seeds, epoch, step, capacity)
            if not isinstance(made, type(capacity)):
                return made
            self._grow(made, epoch, step)

    def _grow(self, sizes: Any, epoch: int, step: int) -> None:
        """Makes the capacity large enough, unless another thread has done so."""
        with self._growing:
            before = self.capacity
            if before.holds(sizes):
                return
            self.capacity = before.grown(sizes, self._bound)
        warnings.warn(
            f"{self._where}: the batch of epoch {epoch} and step {step} has {sizes}, more than "
            f"{before}; from now on it is {self.capacity}, for which a jitted step compiles again",
            stacklevel=2,
        )

    def _measured(self) -> Any:
        """The capacity for some batches, those of the first process, so that all have the same."""
        if not len(self):
            expected = f"at most the number of {self._things}, {self._count}, with drop_last"
            raise bad_input(self._where, "batch_size", expected, self._batch_size)
        # Spread over the epoch, whose seeds may be in an order that matters, or over several.
        stride = max(len(self) // _MEASURED_BATCHES, 1)
        places = (divmod(i * stride, len(self)) for i in range(_MEASURED_BATCHES))
        sizes = Prefetched(
            lambda place: self._source.sizes(self._seeds_of(*place, 0), *place),
            places,
            threads=self._workers,
            depth=_MEASURED_BATCHES,
        )
        return self._measure(sizes, self._bound)


class StepBatches[Batch]:
    """Batches of the steps of a training, counted from 1, of which the next are made ahead."""

    def __init__(self, loader: BatchLoader[Batch], start: int):
        self._loader = loader
        self._begin(start)

    def __call__(self, step: int) -> Batch:
        """Returns the batch of a step; another than the next one is made without preparation."""
        if step != self._next:
            self._begin(step)
        self._next += 1
        return next(self._batches)

    def close(self) -> None:
        """Ends the threads that make batches."""
        self._batches.close()

    def _begin(self, step: int) -> None:
        if step < 1:
            raise bad_input(self._loader._where, "step", "at least 1", step)
        steps, self._next = len(self._loader), step
        self._batches = self._loader._ahead(divmod(s - 1, steps) for s in itertools.count(step))
