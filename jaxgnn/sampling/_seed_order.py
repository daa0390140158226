"""Order in which the steps of an epoch visit the seeds."""

from __future__ import annotations

import functools

import numpy as np

from jaxgnn._errors import bad_input
from jaxgnn.sampling import _random


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
    key = _random.hop_key(_random.batch_key(seed, epoch, 0), 0, _random.SHUFFLE)
    return np.argsort(_random.draw(key, np.arange(count), 0), kind="stable")
