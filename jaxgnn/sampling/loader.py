"""Base classes of loaders: epochs, order of seeds, growth of capacities, features on a device."""

from __future__ import annotations

import functools
import itertools
import threading
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import jax
import numpy as np

from jaxgnn._arrays.arrays import to_device
from jaxgnn._errors import bad_input
from jaxgnn.sampling import checks, random
from jaxgnn.sampling.capacity import SharedCapacity, measured
from jaxgnn.sampling.features import FeatureStore
from jaxgnn.sampling.features.stores import read_rows
from jaxgnn.sampling.memory import Spare, aligned_empty
from jaxgnn.sampling.prefetch import Prefetched


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
        checks.counters(self._where, 0, epoch, 0)
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


# Batches whose sizes are measured for a capacity.
_MEASURED_BATCHES = 8


class BatchLoader[Batch](Epochs[Batch]):
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
    _shared: SharedCapacity  # capacity of the steps of several processes
    _source: Any  # draws samples, and knows their sizes
    _bound: Any  # the sizes that no batch exceeds
    _measure: Callable[[Iterable[Any], Any], Any] = staticmethod(measured)

    def __repr__(self) -> str:
        """Shows the numbers of seeds and steps, and the capacity."""
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

    def _seeds_of(self, epoch: int, step: int, process: int) -> np.ndarray:
        return self._seeds[self._order.of_step(epoch, step, process)]

    def _draw(self, seeds: np.ndarray, epoch: int, step: int, **options: Any) -> Any:
        """A sample, with options of the source; its capacity is that of the step in all processes.

        The capacity of the loader grows until the sample fits.
        """
        while True:
            capacity = self.capacity
            made = self._source.draw(seeds, epoch, step, capacity, **options)
            excess = made if isinstance(made, type(capacity)) else None
            if self._shared.num_processes > 1:
                return self._draw_in_step(made, excess, seeds, (epoch, step), **options)
            if excess is None:
                return made
            self._grow(excess, epoch, step)

    def _draw_in_step(
        self,
        sample: Any,
        excess: Any,
        seeds: np.ndarray,
        place: tuple[int, int],
        **options: Any,
    ) -> Any:
        """A sample of the capacity of its step: ``sample`` if that is the loader's."""
        capacity = self.capacity
        wide = self._shared.of_step(
            capacity, self._bound, excess, lambda process: self._sizes_of(*place, process), place
        )
        return sample if wide == capacity else self._source.draw(seeds, *place, wide, **options)

    def _sizes_of(self, epoch: int, step: int, process: int, count: int | None = None) -> Any:
        """Sizes of the batch of a process, or of its first ``count`` seeds."""
        return self._source.sizes(self._seeds_of(epoch, step, process)[:count], epoch, step)

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
        """The capacity for some batches, which are the same in each process."""
        # Spread over the epoch, whose seeds may be in an order that matters, or over several.
        stride = max(len(self) // _MEASURED_BATCHES, 1)
        count = self._shared.num_processes
        places = ((*divmod(i * stride, len(self)), i % count) for i in range(_MEASURED_BATCHES))
        sizes = Prefetched(
            lambda place: self._sizes_of(*place),
            places,
            threads=self._workers,
            depth=_MEASURED_BATCHES,
        )
        return self._measure(sizes, self._bound)


class SeedOrder:
    """Places of the seeds of each step, among a number of seeds; a function of epoch and step.

    The seeds of an epoch are shuffled, and cut into steps, and these into an equal part for each
    process. Only the last step may have fewer seeds, or none for some processes.

    Args:
      num_seeds: number of seeds of an epoch.
      batch_size: seeds of a step of each process.
      seed: of the random numbers.
      shuffle: whether each epoch has another order.
      drop_last: whether to leave out a last step that has fewer seeds.
      num_processes: number of processes.
    """

    def __init__(
        self,
        num_seeds: int,
        batch_size: int,
        *,
        seed: int,
        shuffle: bool,
        drop_last: bool,
        num_processes: int,
    ):
        self._num_seeds, self._batch_size = num_seeds, batch_size
        self._num_processes = num_processes
        of_all = batch_size * num_processes
        self.num_steps = num_seeds // of_all if drop_last else -(-num_seeds // of_all)
        # The steps of one epoch ask for one order; threads may already work on the next epoch.
        make = functools.partial(shuffled, num_seeds, seed) if shuffle else lambda epoch: None
        self._order = functools.lru_cache(maxsize=2)(make)

    def require_a_step(self, where: str, things: str) -> None:
        """Raises ValueError if ``drop_last`` leaves no step."""
        if not self.num_steps:
            expected = f"at most the number of {things}, {self._num_seeds}, with drop_last"
            raise bad_input(where, "batch_size", expected, self._batch_size)

    def of_step(self, epoch: int, step: int, process: int) -> np.ndarray:
        """Places of the seeds of a step, for one process; at most ``batch_size`` of them."""
        begin = (step * self._num_processes + process) * self._batch_size
        places = np.arange(begin, min(begin + self._batch_size, self._num_seeds))
        order = self._order(epoch)
        return places if order is None else order[places]


def shuffled(count: int, seed: int, epoch: int) -> np.ndarray:
    """A random order of ``count`` things, the same on every machine."""
    key = random.hop_key(random.batch_key(seed, epoch, 0), 0, random.SHUFFLE)
    return np.argsort(random.draw(key, np.arange(count), 0), kind="stable")


def default_device() -> Any:
    """The device of ``with jax.default_device(...)``, which other threads do not see, or None."""
    device = jax.config.jax_default_device
    return jax.devices(device)[0] if isinstance(device, str) else device


class StagedRows:
    """Reads rows of a store and copies them to a device.

    Fresh memory for the rows of each batch would cost more than the copy, as the system clears it
    page by page. On a GPU a buffer is used again as soon as its copy is complete. On a CPU JAX
    reads rows where they are, so each batch has its own memory.

    Args:
      where: the loader, for errors.
      store: the store.
      device: the device, or None for the default one.
    """

    def __init__(self, where: str, store: FeatureStore, device: Any):
        self._where, self._store, self._device = where, store, device
        self._free: Spare[np.ndarray] = Spare()
        self._reuses = (jax.default_backend() if device is None else device.platform) != "cpu"

    def gather(self, ids: np.ndarray) -> jax.Array:
        """Returns rows on the device, zeros for -1.

        Raises:
          ValueError: if the store returns other rows than asked for, or integers that JAX would
            cut.
        """
        if not self._reuses:
            return self._place(read_rows(self._where, self._store, ids))
        buffer = self._buffer(len(ids))
        rows = read_rows(self._where, self._store, ids, buffer)
        placed = self._place(rows)
        if rows is buffer:
            placed.block_until_ready()
            self._free.give_back(buffer)
        else:  # the rows of this store are on a device
            self._reuses = False
        return placed

    def _place(self, rows: Any) -> jax.Array:
        return to_device(self._where, rows, self._device, name="features")

    def _buffer(self, count: int) -> np.ndarray:
        """A free buffer of this length, or a new one."""
        while (buffer := self._free.borrow()) is not None:
            if buffer.shape[0] == count:
                return buffer
        return aligned_empty((count, *self._store.shape[1:]), self._store.dtype)
