"""Functions that run outside of ``jax.jit`` as one program, compiled once.

JAX finds the traces of ``lax.scan``, ``lax.cond``, ``jax.checkpoint`` and the like by the function
object that they were given, and an eager loop's program by that trace. A function that is created
for each call, such as a closure, is therefore traced and compiled for each call, and earlier
programs stay in memory. Here such code is a function of arrays and of hashable static values.
Outside of ``jit``, equal static values and shapes find the program of an earlier call, and no cache
keeps an array. Inside of ``jit``, where the surrounding program is compiled, the function is simply
called.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import lru_cache, partial
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxgnn._arrays.eager import runs_now as runs_now
from jaxgnn.graph import CSRGraph, Incidence, is_concrete


def run_compiled[S: Hashable, T](function: Callable[[S, Any], T], static: S, arguments: Any) -> T:
    """``function(static, arguments)``, which outside of ``jit`` is one program, compiled once.

    Calls with equal ``static`` values and with arguments of the same structure, shapes and dtypes
    share a program. A graph among the arguments is an argument of the program, whose
    ``uniform_degrees`` are static. If static values are not hashable, the function is simply
    called.

    Args:
      function: a function that is created once, when its module is imported.
      static: values that are fixed when the program is compiled.
      arguments: a pytree. Arrays and graphs in it are arguments of the program; anything else is
        static too. Concrete graphs get their plans, which checks their indices.
    """
    if not runs_now():
        return function(static, arguments)
    static_parts, arrays = _split_arrays(arguments)
    try:
        known = _first_equal((static, static_parts))
    except TypeError:  # it is not hashable
        return function(static, arguments)
    return _program(function, *known, arrays)


class _StaticParts(NamedTuple):
    """The static part of a pytree of arguments.

    Attributes:
      structure: structure of the pytree.
      values: for each leaf that is no array its type, its text if it is a float, and its value: 1,
        1.0 and True are equal and must be distinguished. None for arrays.
      degrees: the ``uniform_degrees`` of each leaf that is a graph, None for other leaves.
    """

    structure: Any
    values: tuple[tuple[type, str | None, Any] | None, ...]
    degrees: tuple[tuple[int | None, int | None] | None, ...]


@lru_cache(maxsize=256)
def _first_equal(key: tuple[Any, _StaticParts]) -> tuple[Any, _StaticParts]:
    """Returns the first of equal keys, so that JAX does not hold another key for each call."""
    return key


@partial(jax.jit, static_argnums=(0, 1, 2))
def _program(
    function: Callable[..., Any], static: Any, static_parts: _StaticParts, arrays: list[Any]
) -> Any:
    return function(static, _join_arrays(static_parts, arrays))


def _split_arrays(arguments: Any) -> tuple[_StaticParts, list[Any]]:
    leaves, structure = jax.tree.flatten(arguments, is_leaf=_is_graph)
    values = tuple(None if _is_array(leaf) else _distinct_key(leaf) for leaf in leaves)
    degrees = tuple(g.uniform_degrees() if isinstance(g, CSRGraph) else None for g in leaves)
    arrays = [_prepared(leaf) for leaf in leaves if _is_array(leaf)]
    return _StaticParts(structure, values, degrees), arrays


def _join_arrays(static_parts: _StaticParts, arrays: list[Any]) -> Any:
    rest = iter(arrays)
    leaves = [next(rest) if value is None else value[-1] for value in static_parts.values]
    leaves = [
        leaf if degrees is None else leaf.with_known_degrees(degrees)
        for leaf, degrees in zip(leaves, static_parts.degrees, strict=True)
    ]
    return jax.tree.unflatten(static_parts.structure, leaves)


def _distinct_key(leaf: Any) -> tuple[type, str | None, Any]:
    # 0.0 equals -0.0, but their texts differ.
    return type(leaf), repr(leaf) if isinstance(leaf, float) else None, leaf


def _is_graph(leaf: Any) -> bool:
    return isinstance(leaf, CSRGraph | Incidence)


def _is_array(leaf: Any) -> bool:
    return isinstance(leaf, CSRGraph | Incidence | jax.Array | np.ndarray)


def _prepared(leaf: Any) -> Any:
    if not _is_graph(leaf):
        return leaf
    if isinstance(leaf, CSRGraph):
        return leaf.prepared_for(None)  # for any op that the program calls
    return leaf.prepared() if is_concrete(leaf.node_ids, leaf.hyperedge_ids) else leaf
