"""Errors for bad input of samplers on the host."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, get_args

import numpy as np

from jaxgnn._errors import bad_input, is_choice
from jaxgnn.sampling.memory import check_files

Method = Literal["neighbour", "labor"]
"""Random numbers for each row ("neighbour"), or for each sender ("labor")."""


_WEIGHTS = "finite and not negative, with a positive one in each row that has edges"


def graph(where: str, indptr: np.ndarray, indices: np.ndarray, weights: np.ndarray | None) -> None:
    """Checks dtypes, lengths and files of the arrays of a graph, in constant time."""
    check_files(where, indptr=indptr, indices=indices, weights=weights)
    for name, array in (("indptr", indptr), ("indices", indices)):
        if not _is_list_of(array, (np.int32, np.int64)):
            raise bad_input(where, name, "a contiguous list of int32 or int64", _kind(array))
    if len(indptr) == 0:
        raise bad_input(where, "indptr", "one longer than the number of nodes", "an empty array")
    if indptr[0] != 0 or indptr[-1] > len(indices):
        expected = f"offsets from 0 to at most {len(indices)}, the number of indices"
        raise bad_input(where, "indptr", expected, f"{indptr[0]} to {indptr[-1]}")
    if weights is None:
        return
    if not _is_list_of(weights, (np.float32, np.float64)):
        raise bad_input(where, "weights", "a contiguous list of float32 or float64", _kind(weights))
    if len(weights) != len(indices):
        expected = f"one value for each of {len(indices)} edges"
        raise bad_input(where, "weights", expected, f"{len(weights)} values")


def options(
    where: str,
    fanouts: Sequence[int],
    replace: bool,
    method: str,
    batch_dependency: int,
    *,
    may_be_zero: bool = False,
) -> None:
    """Checks what is drawn; along relations, fan-outs may be zero."""
    numbers(where, "fanouts", fanouts)
    flags(where, replace=replace)
    for fanout in fanouts:
        is_draw = is_integer(fanout) and -1 <= fanout < 2**20
        if not is_draw or (fanout == 0 and not may_be_zero):
            expected = f"positive and below {2**20}, or -1 for all neighbours"
            expected += ", or 0 for none" if may_be_zero else ""
            raise bad_input(where, "fanouts", expected, fanout)
    if not is_choice(method, get_args(Method)):
        expected = " or ".join(repr(name) for name in get_args(Method))
        raise bad_input(where, "method", expected, repr(method))
    if method == "labor" and replace:
        raise bad_input(where, "replace", "False for method='labor'", replace)
    if not is_integer(batch_dependency) or batch_dependency < 1:
        raise bad_input(where, "batch_dependency", "a positive integer", batch_dependency)
    if batch_dependency > 1 and method != "labor":
        expected = f"1 for method={method!r}; method='labor' has dependent batches"
        raise bad_input(where, "batch_dependency", expected, batch_dependency)


def flags(where: str, **values: Any) -> None:
    """Checks that arguments are True or False; an array has no truth value."""
    for name, value in values.items():
        if not isinstance(value, bool | np.bool_):
            raise bad_input(where, name, "True or False", repr(value))


def numbers(where: str, name: str, values: Any) -> None:
    """Checks that an argument is a list of numbers, whose range the caller checks."""
    is_list = isinstance(values, Sequence) and not isinstance(values, str | bytes)
    if not is_list and not (isinstance(values, np.ndarray) and values.ndim == 1):
        raise bad_input(where, name, "a list of numbers", repr(values))


def counters(where: str, seed: int, epoch: int, step: int) -> None:
    """Checks that the counters of random numbers fit their words."""
    for name, value, bits in (("seed", seed, 64), ("epoch", epoch, 32), ("step", step, 32)):
        if not is_integer(value) or not 0 <= value < 2**bits:
            raise bad_input(where, name, f"an integer from 0 to 2^{bits} - 1", value)


def seeds(where: str, values: np.ndarray, num_nodes: int) -> np.ndarray:
    """Checks seeds, and returns them as int64."""
    values = np.asarray(values)
    if values.ndim != 1 or (len(values) and values.dtype.kind not in "iu"):
        raise bad_input(where, "seeds", "a list of integers", _kind(values))
    wrong = np.flatnonzero((values < 0) | (values >= num_nodes))
    if len(wrong):
        expected = f"node ids from 0 to {num_nodes - 1}"
        raise bad_input(where, "seeds", expected, f"{values[wrong[0]]} at {wrong[0]}")
    return values.astype(np.int64)


def excluded(where: str, values: np.ndarray | None, num_edges: int) -> np.ndarray | None:
    """Checks positions of edges, and returns them as int64; None for none."""
    if values is None:
        return None
    values = np.asarray(values)
    if values.ndim != 1 or (len(values) and values.dtype.kind not in "iu"):
        raise bad_input(where, "excluded", "a list of integers, or None", _kind(values))
    wrong = np.flatnonzero((values < 0) | (values >= num_edges))
    if len(wrong):
        expected = f"positions of edges from 0 to {num_edges - 1}"
        raise bad_input(where, "excluded", expected, f"{values[wrong[0]]} at {wrong[0]}")
    positions = np.ascontiguousarray(values, np.int64)
    wrong = np.flatnonzero(positions[1:] <= positions[:-1])
    if len(wrong):
        one, other = positions[wrong[0] : wrong[0] + 2]
        got = f"{one}, then {other}, at {wrong[0]}"
        raise bad_input(where, "excluded", "distinct and ascending", got)
    return positions


def rows(
    where: str, nodes: np.ndarray, first: np.ndarray, degrees: np.ndarray, num_edges: int
) -> None:
    """Checks the offsets of the rows that are read."""
    wrong = np.flatnonzero((first < 0) | (degrees < 0) | (first + degrees > num_edges))
    if len(wrong):
        raise bad_offsets(where, nodes[wrong[0]], first[wrong[0]], degrees[wrong[0]])


def bad_offsets(where: str, node: int, first: int, degree: int) -> ValueError:
    """The error for the offsets of one row."""
    expected = "offsets that never decrease, up to the number of indices"
    return bad_input(where, "indptr", expected, f"{first} and {first + degree} for node {node}")


def senders(where: str, values: np.ndarray, positions: np.ndarray, num_nodes: int) -> None:
    """Checks senders that were drawn."""
    wrong = np.flatnonzero((values < 0) | (values >= num_nodes))
    if len(wrong):
        raise bad_sender(where, values[wrong[0]], positions[wrong[0]], num_nodes)


def bad_sender(where: str, value: int, position: int, num_nodes: int) -> ValueError:
    """The error for one entry of ``indices``."""
    expected = f"node ids from 0 to {num_nodes - 1}"
    return bad_input(where, "indices", expected, f"{value} at {position}")


def row_weights(where: str, values: np.ndarray, first: int, node: int) -> None:
    """Checks the weights of a row that has edges."""
    wrong = np.flatnonzero(~(values >= 0) | np.isinf(values))
    if len(wrong):
        raise bad_weight(where, values[wrong[0]], first + wrong[0])
    if not values.any():
        raise zero_weights(where, node)


def bad_weight(where: str, value: float, position: int) -> ValueError:
    """The error for one weight."""
    return bad_input(where, "weights", _WEIGHTS, f"{value} at {position}")


def zero_weights(where: str, node: int) -> ValueError:
    """The error for a row without a positive weight."""
    return bad_input(where, "weights", _WEIGHTS, f"zeros alone for node {node}")


def is_integer(value: object) -> bool:
    """Whether a value is an integer of Python or NumPy, and no bool."""
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def _is_list_of(array: object, dtypes: tuple[type, ...]) -> bool:
    if not isinstance(array, np.ndarray):
        return False
    return array.ndim == 1 and array.flags.c_contiguous and array.dtype in dtypes


def _kind(array: object) -> str:
    if not isinstance(array, np.ndarray):
        return type(array).__name__
    strides = "" if array.flags.c_contiguous else ", not contiguous"
    return f"{array.dtype} of shape {array.shape}{strides}"
