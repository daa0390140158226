"""Base class of loaders whose batches are samples of seeds, made ahead by threads."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from jaxgnn.sampling._capacity import measured
from jaxgnn.sampling._epochs import Epochs
from jaxgnn.sampling._prefetch import Prefetched
from jaxgnn.sampling._seed_order import SeedOrder
from jaxgnn.sampling._shared_capacity import SharedCapacity

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
