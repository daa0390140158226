"""Arrays that are computed from closed-over arrays alone, kept for other traces of a function."""

from __future__ import annotations

import hashlib
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from jaxgnn.fusion.program.program import Equation, key_of_param


@dataclass(frozen=True)
class Content:
    """Content of an array, as a digest over arrays that do not change."""

    key: bytes  # Digest of the equations and of the identities of ``leaves``.
    leaves: tuple[jax.Array, ...]  # Arrays that the equations read.


def content_of_constant(value: Any) -> Content | None:
    """Returns the content of a closed-over array; None if it may change."""
    if not isinstance(value, jax.Array) or isinstance(value, jax.core.Tracer):
        return None
    return Content(_digest("array", id(value)), (value,))


def content_of_literal(value: Any) -> Content:
    """Returns the content of a number in a program."""
    array = np.asarray(value)
    return Content(_digest("literal", str(array.dtype), array.shape, array.tobytes()), ())


def content_of_result(
    equation: Equation, position: int, reads: Sequence[Content | None]
) -> Content | None:
    """Returns the content of a result from the contents of the operands, or None."""
    params = [(name, key_of_param(value)) for name, value in sorted(equation.params.items())]
    contents = [content for content in reads if content is not None]
    by_identity = any(isinstance(key, tuple) and key[:1] == ("id",) for _, key in params)
    if len(contents) < len(reads) or by_identity:
        return None
    types = [str(v.aval) for v in equation.outvars]
    keys = [content.key for content in contents]
    leaves = {id(leaf): leaf for content in contents for leaf in content.leaves}
    key = _digest(equation.primitive.name, params, types, position, keys)
    return Content(key, tuple(leaves.values()))


def _digest(*parts: Any) -> bytes:
    return hashlib.blake2b(repr(parts).encode(), digest_size=16).digest()


class Store:
    """Cache of arrays by their contents, of at most ``most_bytes`` in all."""

    def __init__(self, most_bytes: int = 1 << 31):
        self._most_bytes = most_bytes
        self._kept: OrderedDict[Any, tuple[list[weakref.ref[Any]], np.ndarray]] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, question: str, contents: Sequence[Content], answer: Callable[[], Any]) -> Any:
        """Returns the cached array for a question about contents, or computes the answer."""
        key = question, *(content.key for content in contents)
        with self._lock:
            entry = self._kept.get(key)
            # Another array may have the identity of one that was freed.
            if entry is not None and all(leaf() is not None for leaf in entry[0]):
                if key in self._kept:
                    self._kept.move_to_end(key)
                return entry[1]
        result = answer()
        if isinstance(result, np.ndarray):
            of_answers = self._kept

            def forget(_: Any) -> None:
                # No lock: this may run while the thread holds it.
                of_answers.pop(key, None)

            leaves = [weakref.ref(leaf, forget) for one in contents for leaf in one.leaves]
            with self._lock:
                self._kept[key] = leaves, result
                self._drop_the_oldest()
        return result

    def _drop_the_oldest(self) -> None:
        kept = list(self._kept.items())
        size = sum(array.nbytes for _, (_, array) in kept)
        for key, (_, array) in kept:
            if size <= self._most_bytes:
                break
            self._kept.pop(key, None)
            size -= array.nbytes


STORE = Store()
"""The store of all functions of a process."""
