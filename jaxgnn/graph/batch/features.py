"""Joins the features, weights and scales of the graphs of a batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from jaxgnn._arrays.arrays import own
from jaxgnn._errors import bad_input
from jaxgnn.graph.batch.samples import Part, host_array
from jaxgnn.graph.csr.normalization import Normalization


def same_normalization(where: str, parts: Sequence[Part]) -> Normalization | None:
    """Returns the normalisation that all graphs share.

    Raises:
      ValueError: names the first graph that has another than the first one.
    """
    first = parts[0]
    for part in parts:
        if part.normalization != first.normalization:
            expected = f"{first.normalization!r}, which it is in graphs[{first.place}]"
            name = f"graphs[{part.place}].normalization"
            raise bad_input(where, name, expected, repr(part.normalization))
    return first.normalization


def joined(
    where: str, parts: Sequence[Part], field: str, slots: int, order: np.ndarray | None = None
) -> Any:
    """Concatenates one field of all graphs, padded with zeros to ``slots`` entries.

    Args:
      where: the public function, for error messages.
      parts: the graphs.
      field: a field of ``Part`` that holds a pytree: of arrays with an entry per node or per edge,
        or for ``"globals"`` of arrays that are stacked.
      slots: length of the first axis of the results.
      order: for each entry of the result its position in the concatenation; None for no change.

    Returns:
      The pytree of read-only numpy arrays [slots, ...], or None where no graph has the field.

    Raises:
      ValueError: names the first array that has another structure, shape or dtype than expected.
    """
    trees = [getattr(part, field) for part in parts]
    if all(tree is None for tree in trees):
        return None
    if all(hasattr(tree, "dtype") for tree in trees):  # arrays need no flattening, which is slow
        return _joined_array(where, parts, (field, ""), trees, slots, order)
    flat = [jax.tree.flatten(tree) for tree in trees]
    structure = flat[0][1]
    for part, (_, other) in zip(parts, flat, strict=True):
        if other != structure:
            expected = f"of the structure {structure}, which it has in graphs[{parts[0].place}]"
            raise bad_input(where, f"graphs[{part.place}].{field}", expected, str(other))
    columns = zip(*(leaves for leaves, _ in flat), strict=True)
    paths = [
        jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(trees[0])
    ]
    arrays = [
        _joined_array(where, parts, (field, path), column, slots, order)
        for path, column in zip(paths, columns, strict=True)
    ]
    return jax.tree.unflatten(structure, arrays)


def _joined_array(where, parts, name, column, slots, order):
    """Joins the arrays of one leaf, all of one dtype and of one shape after the first axis."""
    field, path = name
    is_global = field == "globals"
    arrays = [host_array(where, f"{field}{path} of the graphs", values) for values in column]
    tail, dtype = arrays[0].shape[not is_global :], arrays[0].dtype
    for part, array in zip(parts, arrays, strict=True):
        wanted = tail if is_global else (getattr(part, _LENGTHS[field]), *tail)
        if array.shape != wanted:
            argument = f"graphs[{part.place}].{field}{path}"
            raise bad_input(where, argument, f"of shape {wanted}", array.shape)
        if array.dtype != dtype:
            argument = f"graphs[{part.place}].{field}{path}"
            expected = f"{dtype}, which it is in graphs[{parts[0].place}]"
            raise bad_input(where, argument, expected, array.dtype)
    values = np.stack(arrays) if is_global else np.concatenate(arrays)
    values = values if order is None else values[order]
    if len(values) == slots:
        return own(values)
    padded = np.zeros((slots, *values.shape[1:]), values.dtype)
    padded[: len(values)] = values
    return own(padded)


_LENGTHS = {
    "weights": "num_edges",
    "edges": "num_edges",
    "row_scale": "num_nodes",
    "col_scale": "num_nodes",
    "nodes": "num_nodes",
}
