"""A memory of what was computed from arrays, which keeps none of these arrays alive."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable
from typing import Any


class IdentityMemory[Made]:
    """Remembers a value for each tuple of arrays, which it knows by identity and not by content.

    Graphs are taken apart and put together again by functions of pytrees, and the new object has
    the old arrays. What is remembered here is found for it too. An entry is forgotten as soon as
    one of its arrays is. Arrays must not change, and a value must not hold on to them: then the
    entry would live forever.
    """

    def __init__(self) -> None:
        self._entries: dict[Hashable, tuple[list[weakref.ref], Made]] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, arrays: tuple[Any, ...], options: Hashable, make: Callable[[], Made]) -> Made:
        """Returns what ``make()`` has returned for these very arrays and options.

        Args:
          arrays: arrays of JAX or numpy, or None.
          options: whatever else the value depends on.
          make: called once for each tuple of arrays and options.
        """
        key = tuple(map(id, arrays)), options
        entry = self._entries.get(key)
        if entry is None:
            made = make()
            references = [
                weakref.ref(array, lambda _: self._entries.pop(key, None))
                for array in arrays
                if array is not None
            ]
            entry = self._entries[key] = references, made
        return entry[1]
