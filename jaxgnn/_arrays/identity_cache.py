"""A cache of values computed from arrays, which does not keep the arrays alive."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable
from typing import Any


class IdentityMemory[Made]:
    """Caches a value for each tuple of arrays, by their identity and not by their contents.

    Functions of pytrees flatten graphs and build them again, and the new object has the same
    arrays, so that cached values are found for it too. An entry is removed when one of its arrays
    is freed. Arrays must not change. A value must not reference them, or the entry would never be
    removed.
    """

    def __init__(self) -> None:
        self._entries: dict[Hashable, tuple[list[weakref.ref], Made]] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, arrays: tuple[Any, ...], options: Hashable, make: Callable[[], Made]) -> Made:
        """Returns the result of ``make()``, called once for these arrays and options."""
        key = tuple(map(id, arrays)), options
        entry = self._entries.get(key)
        if entry is None:
            result = make()
            references = [
                weakref.ref(array, lambda _: self._entries.pop(key, None))
                for array in arrays
                if array is not None
            ]
            entry = self._entries[key] = references, result
        return entry[1]
