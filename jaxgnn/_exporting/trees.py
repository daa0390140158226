"""The structure of arguments and results as JSON: arrays and their containers.

A structure is ``"*"`` for an array, None for None, and otherwise an object with one entry: the kind
of container, and its content. Of a graph only its edges, weights and scales are kept; a program
that needs a plan computes it again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, get_args

import jax
import numpy as np

from jaxgnn._arrays.arrays import is_dtype_of_jax
from jaxgnn._errors import bad_input
from jaxgnn.graph import CBSR, CSRGraph, GraphBatch, Incidence, Normalization

ARRAY = "*"
_SEQUENCES: dict[str, type] = {"tuple": tuple, "list": list}


def _is_array(structure: Any) -> bool:
    return structure == ARRAY


def _may_be_array(structure: Any) -> bool:
    return structure is None or structure == ARRAY


def _is_size(value: Any) -> bool:
    return type(value) is int and value >= 0


_Checks = Mapping[str, Callable[[Any], bool]]


class _Kind(NamedTuple):
    """A pytree of this library.

    Its parts, and its static options, have checks of what a file has for them.
    """

    cls: type
    parts: _Checks
    options: _Checks


_KINDS = {
    "CSRGraph": _Kind(
        CSRGraph,
        dict.fromkeys(("indptr", "indices"), _is_array)
        | dict.fromkeys(("weights", "row_scale", "col_scale"), _may_be_array),
        {
            "num_cols": lambda value: value is None or _is_size(value),
            "normalization": lambda value: value in (None, *get_args(Normalization)),
        },
    ),
    "CBSR": _Kind(
        CBSR,
        dict.fromkeys(("values", "indices"), _is_array),
        {"dim": lambda value: _is_size(value) and value > 0},
    ),
    "Incidence": _Kind(
        Incidence,
        dict.fromkeys(("node_ids", "hyperedge_ids"), _is_array),
        dict.fromkeys(("num_nodes", "num_hyperedges"), _is_size),
    ),
    "GraphBatch": _Kind(
        GraphBatch,
        {"graph": lambda structure: type(structure) is dict and "CSRGraph" in structure}
        | dict.fromkeys(("graph_ids", "num_nodes_of_each", "num_edges_of_each"), _is_array)
        | dict.fromkeys(("node_mask", "graph_mask"), _is_array)
        | dict.fromkeys(("nodes", "edges", "globals"), lambda structure: True),
        {},
    ),
}
_HOLDS = f"arrays in tuples, lists, dicts and {', '.join(_KINDS)}"


def structure_of(where: str, path: str, tree: Any) -> Any:
    """The structure of a tree as JSON values; errors name the function ``where`` and the path.

    Raises:
      ValueError: A value is neither an array, nor a number, nor a supported container.
    """
    if tree is None:
        return None
    for name, cls in _SEQUENCES.items():
        if type(tree) is cls:
            return {name: [structure_of(where, f"{path}[{i}]", t) for i, t in enumerate(tree)]}
    if type(tree) is dict:
        for key in tree:
            if not isinstance(key, str | int) or isinstance(key, bool):
                expected = "a dict whose keys are strings or integers"
                raise bad_input(where, path, expected, repr(key))
        entries = _sorted(tree)
        return {"dict": [[k, structure_of(where, f"{path}[{k!r}]", v)] for k, v in entries]}
    for name, kind in _KINDS.items():
        if isinstance(tree, kind.cls):
            parts = {a: structure_of(where, f"{path}.{a}", getattr(tree, a)) for a in kind.parts}
            options = {option: getattr(tree, option) for option in kind.options}
            if isinstance(tree, CSRGraph) and tree.num_cols == tree.num_rows:
                options["num_cols"] = None  # a square graph of any size
            return {name: parts, "options": options}
    if hasattr(tree, "shape") and hasattr(tree, "dtype"):
        require_numbers(where, path, tree.dtype)
        return ARRAY
    if isinstance(tree, bool | int | float):
        return ARRAY
    raise bad_input(where, path, _HOLDS, type(tree).__name__)


def require_numbers(where: str, path: str, dtype: Any) -> None:
    """Raises ValueError unless a program can have arrays of this dtype as arguments or results."""
    if jax.dtypes.issubdtype(dtype, jax.dtypes.prng_key):
        expected = "of numbers; pass jax.random.key_data(key), and call jax.random.wrap_key_data in"
        raise bad_input(where, path, f"{expected} the function", f"keys of jax.random, {dtype}")
    if not is_dtype_of_jax(np.dtype(dtype)):
        raise bad_input(where, path, "of numbers, or bool", f"dtype {dtype}")


def leaves_of(where: str, path: str, structure: Any, tree: Any) -> Iterator[tuple[str, Any]]:
    """The path and the value of each array of a tree that has this structure.

    Raises:
      ValueError: names the first path at which the tree has another structure.
    """
    if structure == ARRAY or structure is None:
        if structure_of(where, path, tree) != structure:
            expected = "None" if structure is None else "an array"
            raise bad_input(where, path, expected, type(tree).__name__)
        if structure is not None:
            yield path, tree
        return
    name = next(iter(structure))
    if name in _KINDS:
        parts = _parts_of_kind(where, path, structure, tree)
    elif name == "dict":
        inside = structure[name]
        keys = [key for key, _ in inside]
        if type(tree) is not dict or [key for key, _ in _sorted(tree)] != keys:
            got = f"{sorted(map(str, tree))}" if type(tree) is dict else type(tree).__name__
            raise bad_input(where, path, f"a dict with the keys {keys}", got)
        parts = [(f"{path}[{key!r}]", part, tree[key]) for key, part in inside]
    else:
        inside = structure[name]
        if type(tree) is not _SEQUENCES[name] or len(tree) != len(inside):
            got = f"{type(tree).__name__}{f' of {len(tree)}' if hasattr(tree, '__len__') else ''}"
            raise bad_input(where, path, f"a {name} of {len(inside)}", got)
        parts = [(f"{path}[{i}]", part, tree[i]) for i, part in enumerate(inside)]
    for part in parts:
        yield from leaves_of(where, *part)


def rebuilt(structure: Any, leaves: Iterator[Any]) -> Any:
    """The tree of this structure with these arrays, in the order of ``leaves_of``."""
    if structure is None:
        return None
    if structure == ARRAY:
        return next(leaves)
    name = next(iter(structure))
    inside = structure[name]
    if name in _KINDS:
        parts = {array: rebuilt(part, leaves) for array, part in inside.items()}
        return _KINDS[name].cls(**parts, **structure["options"])
    if name == "dict":
        return {key: rebuilt(part, leaves) for key, part in inside}
    return _SEQUENCES[name](rebuilt(part, leaves) for part in inside)


def count_leaves(structure: Any) -> int:
    """The number of arrays of a structure that comes from a file.

    Raises:
      ValueError: if it is none that ``structure_of`` makes.
    """
    if structure is None or structure == ARRAY:
        return int(structure is not None)
    kind = next(iter(structure), None) if type(structure) is dict else None
    if kind in _KINDS:
        return _count_leaves_of_kind(structure, kind)
    inside = structure[kind] if kind == "dict" or kind in _SEQUENCES else None
    if type(inside) is not list or len(structure) != 1:
        raise ValueError(f"expected a structure of {_HOLDS}, got {structure!r:.80}")
    if kind != "dict":
        return sum(map(count_leaves, inside))
    keys = [entry[0] for entry in inside if type(entry) is list and len(entry) == 2]
    if len(keys) != len(inside) or not all(type(key) in (str, int) for key in keys):
        raise ValueError(f"expected a dict of keys and structures, got {inside!r:.80}")
    if [key for key, _ in _sorted(dict.fromkeys(keys))] != keys:
        raise ValueError(f"expected each key once and in order, got {keys!r:.80}")
    return sum(count_leaves(part) for _, part in inside)


def _count_leaves_of_kind(structure: dict[str, Any], name: str) -> int:
    kind, parts, options = _KINDS[name], structure[name], structure.get("options")
    fits = structure.keys() == {name, "options"} and isinstance(parts, dict)
    fits = fits and isinstance(options, dict) and list(options) == list(kind.options)
    if not fits or list(parts) != list(kind.parts):
        raise ValueError(f"expected a {name} with all its parts, got {structure!r:.80}")
    for checks, values in ((kind.options, structure["options"]), (kind.parts, parts)):
        for entry, value in values.items():
            if not checks[entry](value):
                raise ValueError(f"expected a {name} with its {entry}, got {value!r:.80}")
    return sum(map(count_leaves, parts.values()))


def _parts_of_kind(where: str, path: str, structure: Any, tree: Any) -> list[tuple[str, Any, Any]]:
    """Path, structure and value of each part of a pytree of this library, after its checks."""
    name = next(iter(structure))
    kind = _KINDS[name]
    if not isinstance(tree, kind.cls):
        raise bad_input(where, path, f"a {name}", type(tree).__name__)
    for option, expected in structure["options"].items():
        if option == "num_cols" and expected is None:  # a square graph of any size
            expected = tree.num_rows
        if getattr(tree, option) != expected:
            raise bad_input(where, f"{path}.{option}", repr(expected), repr(getattr(tree, option)))
    return [(f"{path}.{a}", part, getattr(tree, a)) for a, part in structure[name].items()]


def _sorted(tree: dict[Any, Any]) -> list[tuple[Any, Any]]:
    """The entries of a dict in an order that does not depend on insertion."""
    return sorted(tree.items(), key=lambda entry: (type(entry[0]).__name__, str(entry[0])))
