"""Capacity of a step in all processes that run one program, without messages between them."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from jaxgnn._errors import bad_input


@dataclass(frozen=True, eq=False)
class SharedCapacity:
    """Decides the capacity of a step, which is the same in each process.

    A batch is a function of its epoch, step and process. So a process can count the parts of the
    others, and the capacity of a step is a function of it alone: the loader's, or if one of the
    parts does not fit, a larger one for this step. Threads and restarts do not change it.

    A capacity that the user has given is that of all steps; no process counts the parts of others.

    Attributes:
      where: name of the loader, for messages.
      process: index of this process.
      num_processes: number of processes.
      is_given: whether the user has given the capacity.
      shown: makes the text of sizes, for messages.
    """

    where: str
    process: int
    num_processes: int
    is_given: bool
    shown: Callable[[Any], str] = str
    _warned: set[Any] = field(default_factory=set)

    def of_step(
        self,
        capacity: Any,
        bound: Any,
        excess: Any,
        sizes_of: Callable[[int], Any],
        place: tuple[int, int],
    ) -> Any:
        """Returns the capacity of a step.

        Args:
          capacity: the capacity of the loader.
          bound: sizes that no batch exceeds.
          excess: sizes of the part of this process, or None if they fit.
          sizes_of: returns the sizes of the part of a process.
          place: epoch and step.

        Raises:
          ValueError: if the part of this process does not fit into a capacity that was given.

        Warns:
          UserWarning: if a part does not fit, once for each larger capacity.
        """
        batch = "the batch of epoch {} and step {}".format(*place)
        if self.is_given:
            if excess is not None:
                expected = (
                    f"enough for {batch}, {self.shown(excess)}, as it can not grow in one of "
                )
                expected += f"{self.num_processes} processes"
                raise bad_input(self.where, "capacity", expected, self.shown(capacity))
            return capacity
        others = (p for p in range(self.num_processes) if p != self.process)
        parts = [*map(sizes_of, others), *([] if excess is None else [excess])]
        too_large = [sizes for sizes in parts if not capacity.holds(sizes)]
        if not too_large:
            return capacity
        widened = capacity.widened(too_large, bound)
        if repr(widened) not in self._warned:
            self._warned.add(repr(widened))
            warnings.warn(
                f"{self.where}: {batch} has {self.shown(too_large[0])} in one of "
                f"{self.num_processes} processes, more than {self.shown(capacity)}; in such steps "
                f"it is {self.shown(widened)} in all of them, for which a jitted step compiles "
                "again",
                stacklevel=4,
            )
        return widened
