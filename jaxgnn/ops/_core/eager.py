"""What runs outside of ``jax.jit`` as one program, compiled once.

JAX knows the traces of ``lax.scan``, ``lax.cond``, ``jax.checkpoint`` and their like again by the
function that they were given, and an eager loop's program by that trace. A function that is made
anew for each call, as closures are, is therefore traced and compiled for each call, and what was
compiled before stays in memory. Here such code is a function of arrays and of static values that
have a hash: outside of ``jit``, equal static values and shapes find the program of the call before,
and no cache holds an array. Inside of ``jit``, where the program around it is what is compiled, the
function runs as it stands, and nothing of this shows.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import lru_cache, partial
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.extend.core import Primitive

from jaxgnn.graph import CSRGraph, Incidence, is_concrete


class _BeingRecorded(Exception):
    """What the question below raises where operations are recorded and not run."""


def _refuse_to_be_recorded():
    raise _BeingRecorded


# A question to the trace that operations belong to. The traces of an eager gradient and of an eager
# vmap pass it on, as it has no operands; one that records operations asks what it would return.
_RUNS_NOW = Primitive("jaxgnn_runs_now")
_RUNS_NOW.def_impl(lambda: True)
_RUNS_NOW.def_abstract_eval(_refuse_to_be_recorded)


def runs_now() -> bool:
    """Whether operations run when they are called, be it in an eager gradient or ``vmap``.

    False inside of ``jit``, ``scan`` and the like, where they are recorded; and inside an eager
    ``shard_map``, which makes a program of each.
    """
    try:
        return _RUNS_NOW.bind()
    except _BeingRecorded:
        return False


def run_compiled[S: Hashable, T](function: Callable[[S, Any], T], static: S, arguments: Any) -> T:
    """``function(static, arguments)``, which outside of ``jit`` is one program, compiled once.

    That is, for equal ``static`` values and for arguments of the same structure, shapes and dtypes.
    A graph among them is an argument of the program, of which is known what its
    ``uniform_degrees`` are. Where static values have no hash, by which to know them again, the
    function runs as it stands.

    Args:
      function: made once, when its module is imported.
      static: what is known when it is compiled.
      arguments: a tree. Arrays and graphs in it are arguments of the program; anything else, static
        too. Concrete graphs get their plans, which checks their indices.
    """
    if not runs_now():
        return function(static, arguments)
    others, arrays = _split(arguments)
    try:
        known = _first_equal((static, others))
    except TypeError:  # it has no hash
        return function(static, arguments)
    return _program(function, *known, arrays)


class _Others(NamedTuple):
    """What is static of a tree of arguments.

    Attributes:
      structure: of the tree.
      values: for each leaf what is no array, behind what tells it from others that are equal to it,
        as 1 is to 1.0 and to True; None for arrays.
      degrees: for each leaf ``uniform_degrees``, None for what is no graph.
    """

    structure: Any
    values: tuple[tuple[type, str | None, Any] | None, ...]
    degrees: tuple[tuple[int | None, int | None] | None, ...]


@lru_cache(maxsize=256)
def _first_equal(key: tuple[Any, _Others]) -> tuple[Any, _Others]:
    """The first of equal keys: inside of a gradient JAX keeps those of each call for some time."""
    return key


@partial(jax.jit, static_argnums=(0, 1, 2))
def _program(function: Callable[..., Any], static: Any, others: _Others, arrays: list[Any]) -> Any:
    return function(static, _join(others, arrays))


def _split(arguments: Any) -> tuple[_Others, list[Any]]:
    leaves, structure = jax.tree.flatten(arguments, is_leaf=_is_graph)
    values = tuple(None if _is_array(leaf) else _told_apart(leaf) for leaf in leaves)
    degrees = tuple(g.uniform_degrees() if isinstance(g, CSRGraph) else None for g in leaves)
    arrays = [_prepared(leaf) for leaf in leaves if _is_array(leaf)]
    return _Others(structure, values, degrees), arrays


def _join(others: _Others, arrays: list[Any]) -> Any:
    rest = iter(arrays)
    leaves = [next(rest) if value is None else value[-1] for value in others.values]
    leaves = [
        leaf if degrees is None else leaf.with_known_degrees(degrees)
        for leaf, degrees in zip(leaves, others.degrees, strict=True)
    ]
    return jax.tree.unflatten(others.structure, leaves)


def _told_apart(leaf: Any) -> tuple[type, str | None, Any]:
    # Zero has a sign, which its text shows.
    return type(leaf), repr(leaf) if isinstance(leaf, float) else None, leaf


def _is_graph(leaf: Any) -> bool:
    return isinstance(leaf, CSRGraph | Incidence)


def _is_array(leaf: Any) -> bool:
    return isinstance(leaf, CSRGraph | Incidence | jax.Array | np.ndarray)


def _prepared(leaf: Any) -> Any:
    if not _is_graph(leaf):
        return leaf
    is_csr = isinstance(leaf, CSRGraph)
    ids = (leaf.indptr, leaf.indices) if is_csr else (leaf.node_ids, leaf.hyperedge_ids)
    return leaf.prepared() if is_concrete(*ids) else leaf
