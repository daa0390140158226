"""``Loader``, the base class of loaders: epochs, order of seeds, growth of capacities, threads."""

from __future__ import annotations

import functools
import itertools
import threading
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from jaxgnn._arrays.arrays import to_device
from jaxgnn._errors import bad_input
from jaxgnn.sampling import checks, options, random
from jaxgnn.sampling.capacity import SharedCapacity, rounded
from jaxgnn.sampling.features import FeatureStore
from jaxgnn.sampling.features.stores import read_rows
from jaxgnn.sampling.memory import Spare, aligned_empty
from jaxgnn.sampling.prefetch import Prefetched

# Number of batches that are measured for a capacity.
_MEASURED_BATCHES = 8
# Number of batches that are drawn at the same time; each has an equal part of the threads.
_CONCURRENT_BATCHES = 4


@dataclass(frozen=True, eq=False)
class Step:
    """Step of an epoch in one process, and the items that it visits.

    Attributes:
      epoch: number of the epoch.
      step: number of the step in the epoch.
      process: index of the process.
      items: places of the visited items among all, in their order, int64 [items]. They are at most
        ``batch_size``; the last step of an epoch may have fewer, or none.
    """

    epoch: int
    step: int
    process: int
    items: np.ndarray


class Loader[Batch](ABC):
    """Base class of loaders, whose batches are functions of epoch and step and have one shape.

    An epoch visits a number of items, in random order: seeds, pairs, clusters. A loader is a policy
    of three methods, ``draw``, ``sizes`` and ``fields``, which threads call at the same time:

    - ``draw(step)`` draws the sample of a step, of any size, from the items that it visits. It is a
      function of the step and of what the constructor was given, so its random numbers begin with
      ``np.random.default_rng((seed, step.epoch, step.step, step.process))``, for example.
    - ``sizes(sample)`` counts its nodes and edges.
    - ``fields(sample, capacity)`` pads it to a capacity that it fits into: the batch, a pytree of
      arrays of NumPy.

    They run in several threads at a time, and do not read ``self.capacity``, which may be what they
    are run for.

    The base class does the rest. It measures the capacity on eight batches and lets it grow, draws
    batches ahead in threads, shares steps among processes, and copies batches to the device.

    Args:
      num_items: number of items that an epoch visits.
      batch_size: number of items of a batch.
      seed: of the order of the items, from 0 to 2^64 - 1.
      shuffle: whether each epoch has another order of the items.
      drop_last: whether to leave out the last batch of an epoch if it has fewer items.
      num_threads: number of threads; None for one for each core.
      capacity: numbers of slots of a batch; None measures eight batches, spread over the epoch, and
        adds a tenth.
      processes: ``(index, count)`` of this process: each draws its own part of the items of each
        step. None for those of JAX.

    Raises:
      ValueError: if an argument has another form than described above; the message names it.

    Example:
      >>> from jaxgnn.sampling import Capacity, Loader
      >>> class RowLoader(Loader):
      ...     def draw(self, step):
      ...         return step.items
      ...
      ...     def sizes(self, sample):
      ...         return Capacity(nodes=(len(sample),), edges=())
      ...
      ...     def fields(self, sample, capacity):
      ...         return np.append(sample, np.full(capacity.nodes[0] - len(sample), -1))
      >>> loader = RowLoader(num_items=5, batch_size=2, shuffle=False, capacity=Capacity((3,), ()))
      >>> [batch.tolist() for batch in loader]
      [[0, 1, -1], [2, 3, -1], [4, -1, -1]]
    """

    _things = "seeds"  # Name of the items in messages.
    _divides_evenly = True  # Whether the size of a batch is at most an equal part of all items.
    _measure: Callable[[Iterable[Any], Any], Any] = staticmethod(rounded)

    def __init__(
        self,
        num_items: int,
        batch_size: int,
        *,
        seed: int = 0,
        shuffle: bool = True,
        drop_last: bool = False,
        num_threads: int | None = None,
        capacity: Any = None,
        processes: tuple[int, int] | None = None,
    ):
        where = self._where
        checks.counters(where, seed, 0, 0)
        checks.flags(where, shuffle=shuffle, drop_last=drop_last)
        options.require_positive(where, "num_items", num_items)
        options.require_positive(where, "batch_size", batch_size)
        if capacity is not None and not hasattr(capacity, "holds"):
            raise bad_input(where, "capacity", "a Capacity or None", type(capacity).__name__)
        threads = options.checked_threads(where, num_threads)
        self._process, self._num_processes = options.checked_processes(where, processes)
        self._seed = int(seed)
        self._num_items = num_items
        of_each = -(-num_items // self._num_processes)
        self._batch_size = min(batch_size, of_each) if self._divides_evenly else batch_size
        self._order = SeedOrder(
            num_items,
            self._batch_size,
            seed=seed,
            shuffle=shuffle,
            drop_last=drop_last,
            num_processes=self._num_processes,
        )
        self._order.require_a_step(where, self._things)
        self._workers = min(threads, _CONCURRENT_BATCHES)
        self._threads_of_batch = max(threads // self._workers, 1)
        self._slots: Any = capacity
        self._shared = SharedCapacity(
            where, self._process, self._num_processes, capacity is not None, self._shown
        )
        self._device = default_device()
        self._growing = threading.Lock()
        self._epochs = itertools.count()

    def __reduce__(self) -> Any:
        raise TypeError(
            f"{self._where}: a loader can not be copied or pickled; make one of the same arguments "
            "in each process, whose batches are the same"
        )

    def __repr__(self) -> str:
        """Shows the numbers of items and steps, and the capacity if it has been measured."""
        capacity = "" if self._slots is None else f", {self._slots}"
        return (
            f"{type(self).__name__}({self._num_items} {self._things}, {len(self)} steps of "
            f"{self._batch_size}{capacity})"
        )

    def __len__(self) -> int:
        """Number of steps of an epoch."""
        return self._order.num_steps

    def __iter__(self) -> Iterator[Batch]:
        """Iterates over the next epoch, from 0 on: each loop over the loader is another epoch."""
        return self.epoch(next(self._epochs))

    @property
    def batch_size(self) -> int:
        """Number of items of a batch, at most the part of all items that a process has."""
        return self._batch_size

    @property
    def capacity(self) -> Any:
        """Numbers of slots of a batch.

        They are measured unless given. If a batch does not fit, they grow, with a warning; of
        several processes, in this step alone, for all of them.
        """
        return self._capacity()

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

    def batch(self, epoch: int, step: int) -> Batch:
        """Makes one batch, on the default device.

        Raises:
          ValueError: if there is no such epoch or step, or a file that arrays are mapped from has
            another size now.

        Warns:
          UserWarning: if the batch does not fit into the capacity, which grows.
        """
        sample, capacity = self._fitting(epoch, step)
        return to_device(self._where, self.fields(sample, capacity), self._device)

    # -- methods of a subclass ----------------------------------------------------------------

    @abstractmethod
    def draw(self, step: Step) -> Any:
        """Draws the sample of a step, without padding."""

    @abstractmethod
    def sizes(self, sample: Any) -> Any:
        """Returns the sizes of a sample, as a ``Capacity``."""

    @abstractmethod
    def fields(self, sample: Any, capacity: Any) -> Batch:
        """Pads a sample to a capacity that it fits into; returns the batch, on the host."""

    def bound(self) -> Any:
        """Returns the sizes that no batch exceeds, up to which a capacity grows; None for none."""
        return None

    def draw_within(self, step: Step, capacity: Any) -> tuple[Any, Any]:
        """Draws a sample; returns it with None, or with its sizes if it exceeds the capacity.

        A loader whose sampler writes to slots, such as one on the device, replaces this method.
        """
        sample = self.draw(step)
        sizes = self.sizes(sample)
        return sample, None if capacity.holds(sizes) else sizes

    # -- capacity -----------------------------------------------------------------------------

    def _fitting(self, epoch: int, step: int) -> tuple[Any, Any]:
        """Draws a sample; returns it with its capacity, that of the step in all processes.

        The capacity of the loader grows until the sample fits.
        """
        self._check_place(epoch, step)
        at = self._step(epoch, step, self._process)
        while True:
            capacity = self._capacity()
            sample, excess = self.draw_within(at, capacity)
            if self._num_processes > 1:
                wide = self._shared.of_step(
                    capacity,
                    self._bound_of(capacity),
                    excess,
                    lambda process: self._sizes_of(epoch, step, process),
                    (epoch, step),
                )
                if wide != capacity:
                    sample, _ = self.draw_within(at, wide)
                return sample, wide
            if excess is None:
                return sample, capacity
            self._grow(excess, epoch, step)

    def _grow(self, sizes: Any, epoch: int, step: int) -> None:
        """Enlarges the capacity to hold a batch, unless another thread has done so."""
        with self._growing:
            before = self._slots
            if before.holds(sizes):
                return
            grown = self._slots = before.grown(sizes, self._bound_of(before))
        warnings.warn(
            f"{self._where}: the batch of epoch {epoch} and step {step} has {self._shown(sizes)}, "
            f"more than {self._shown_capacity(before)}; from now on it is "
            f"{self._shown(grown)}, for which a jitted step compiles again",
            stacklevel=2,
        )

    def _capacity(self) -> Any:
        """Returns the capacity, which is measured when it is first needed."""
        with self._growing:
            if self._slots is None:
                self._slots = self._measured()
            return self._slots

    def _measured(self) -> Any:
        """Returns the capacity for some batches, which are the same in each process."""
        # Spread over the epoch, whose items may be in an order that matters, or over several.
        stride = max(len(self) // _MEASURED_BATCHES, 1)
        count = self._num_processes
        places = ((*divmod(i * stride, len(self)), i % count) for i in range(_MEASURED_BATCHES))
        sizes = list(
            Prefetched(
                lambda place: self._sizes_of(*place),
                places,
                threads=self._workers,
                depth=_MEASURED_BATCHES,
            )
        )
        return self._measure(sizes, self._bound_of(sizes[0]))

    def _bound_of(self, sizes: Any) -> Any:
        """Returns the sizes that no batch exceeds, as large numbers where there is no bound."""
        bound = self.bound()
        return sizes.unbounded() if bound is None else bound

    def _sizes_of(self, epoch: int, step: int, process: int) -> Any:
        """Returns the sizes of the batch of a process."""
        return self.sizes(self.draw(self._step(epoch, step, process)))

    def _shown(self, sizes: Any) -> str:
        """Returns the text of sizes in messages."""
        return str(sizes)

    def _shown_capacity(self, capacity: Any) -> str:
        """Returns the text of a capacity that a batch exceeds."""
        return self._shown(capacity)

    # -- epochs -------------------------------------------------------------------------------

    def _step(self, epoch: int, step: int, process: int) -> Step:
        return Step(epoch, step, process, self._order.of_step(epoch, step, process))

    def _ahead(self, places: Iterable[tuple[int, int]]) -> Prefetched[Batch]:
        """Iterates over the batches of pairs of an epoch and a step, which threads draw ahead."""
        self._capacity()  # This thread measures it, since it can be interrupted.
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

    def __init__(self, loader: Loader[Batch], start: int):
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
