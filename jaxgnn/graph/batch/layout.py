"""Joins the graphs of a batch: node numbers, sorted edges, features and checked ids."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxgnn._arrays.arrays import offset_dtype, own, require_floats, require_kept_integers
from jaxgnn._errors import bad_input
from jaxgnn.graph.batch.samples import Part, host_array
from jaxgnn.graph.batch.shape import BatchShape
from jaxgnn.graph.csr.rows import Normalization
from jaxgnn.graph.csr.validation import check_offsets
from jaxgnn.graph.plan.sorting import row_ids_on_host, sort_edges


class Layout(NamedTuple):
    """Sizes of the graphs of a batch; counts are [graphs], padding graphs included."""

    shape: BatchShape
    num_real: int
    num_nodes: np.ndarray
    num_edges: np.ndarray

    @property
    def real_nodes(self) -> int:
        """Number of nodes that are no padding, which is the id of the first padding node."""
        return int(self.num_nodes[: self.num_real].sum())

    @property
    def real_edges(self) -> int:
        """Number of edges that are no padding."""
        return int(self.num_edges[: self.num_real].sum())

    def edge_owners(self) -> np.ndarray:
        """Returns the graph of each real edge in the order of the input, [real_edges]."""
        return np.repeat(np.arange(self.num_real), self.num_edges[: self.num_real])


def layout_of(parts: Sequence[Part], shape: BatchShape) -> Layout:
    """Places the graphs one after the other, and all padding in one graph after them."""
    num_nodes, num_edges = np.zeros((2, shape.graphs), np.int32)
    num_real = len(parts)
    num_nodes[:num_real] = [part.num_nodes for part in parts]
    num_edges[:num_real] = [part.num_edges for part in parts]
    if num_real < shape.graphs:
        num_nodes[num_real] = shape.nodes - num_nodes.sum()
        num_edges[num_real] = shape.edges - num_edges.sum()
    return Layout(shape, num_real, num_nodes, num_edges)


def sorted_edges(
    where: str, parts: Sequence[Part], layout: Layout
) -> tuple[Any, Any, np.ndarray | None]:
    """Numbers the nodes through the batch, checks ids and sorts edges by receiver.

    Returns:
      ``(indptr, indices, order)``; the order of the edges is None where the input was sorted.
    """
    owners = layout.edge_owners()
    senders = _numbered(where, parts, layout, owners, "senders")
    if all(part.indptr is not None for part in parts):
        indptr, order = _joined_offsets(where, parts, layout), None
    else:
        for part in parts:
            if part.indptr is not None:
                check_offsets(where, f"graphs[{part.place}].indptr", part.indptr, part.num_edges)
        receivers = _numbered(where, parts, layout, owners, "receivers")
        indptr, order = _offsets_of_receivers(receivers, layout.shape.nodes)
    indices = np.full(layout.shape.edges, layout.real_nodes, np.int32)
    indices[: layout.real_edges] = senders if order is None else senders[order]
    return own(indptr), own(indices), order


def _numbered(where, parts, layout, owners, name):
    """Senders or receivers of all edges as nodes of the batch, int32, after a check of the ids."""
    each = [getattr(part, name) for part in parts]
    if name == "receivers":
        each = [
            row_ids_on_host(part.indptr, part.num_edges) if ids is None else ids
            for part, ids in zip(parts, each, strict=True)
        ]
    ids = np.concatenate(each)
    outside = (ids < 0) | (ids >= layout.num_nodes[owners])
    if outside.any():
        at = int(np.flatnonzero(outside)[0])
        expected = f"in [0, {parts[owners[at]].num_nodes})"
        raise bad_input(where, _entry(parts, layout, name, at), expected, int(ids[at]))
    first_nodes = (np.cumsum(layout.num_nodes) - layout.num_nodes).astype(np.int32)
    return ids.astype(np.int32, copy=False) + first_nodes[owners]


def _joined_offsets(where, parts, layout):
    """Returns the row offsets of a batch of graphs that are all sorted already."""
    num_real, num_nodes = layout.num_real, layout.real_nodes
    dtype = offset_dtype(layout.shape.edges)
    first_edges = (np.cumsum(layout.num_edges) - layout.num_edges)[:num_real].astype(dtype)
    indptr = np.full(layout.shape.nodes + 1, layout.real_edges, dtype)
    local = np.concatenate([part.indptr[:-1] for part in parts])
    indptr[:num_nodes] = local + np.repeat(first_edges, layout.num_nodes[:num_real])
    if (indptr[1:] < indptr[:-1]).any():
        for part in parts:
            check_offsets(where, f"graphs[{part.place}].indptr", part.indptr, part.num_edges)
    return indptr


def _offsets_of_receivers(receivers, num_nodes):
    """Returns the row offsets, and the order that sorts the edges, None if they are sorted."""
    if (receivers[1:] < receivers[:-1]).any():
        return sort_edges(receivers, num_nodes)
    indptr = np.zeros(num_nodes + 1, offset_dtype(len(receivers)))
    np.cumsum(np.bincount(receivers, minlength=num_nodes), out=indptr[1:])
    return indptr, None


def check_weights(where, parts, layout, weights, order):
    """Raises unless the weights are finite numbers of a floating dtype."""
    require_floats(where, f"graphs[{parts[0].place}].weights", weights)
    finite = np.isfinite(weights)
    if not finite.all():
        slot = int(np.flatnonzero(~finite)[0])
        at = slot if order is None else int(order[slot])
        name = _entry(parts, layout, "weights", at)
        raise bad_input(where, name, "finite", float(weights[slot]))


def _entry(parts, layout, field, at):
    """Returns the name of the entry of edge ``at``, in the order of the input."""
    graph = int(layout.edge_owners()[at])
    within = at - int(layout.num_edges[:graph].sum())
    return f"graphs[{parts[graph].place}].{field}[{within}]"


def same_normalization(where: str, parts: Sequence[Part]) -> Normalization | None:
    """Returns the normalisation of all graphs; ValueError names the first that has another."""
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
      field: a field of ``Part``, a pytree; arrays of ``"globals"`` are stacked.
      slots: length of the first axis of the results.
      order: position in the concatenation of each entry of the result; None for no change.

    Returns:
      The pytree of read-only numpy arrays [slots, ...], or None where no graph has the field.
    """
    trees = [getattr(part, field) for part in parts]
    if all(tree is None for tree in trees):
        return None
    if all(hasattr(tree, "dtype") for tree in trees):  # Flattening is slow.
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
    if values.dtype.kind in "iu" and values.dtype.itemsize > 4:
        _check_integers(where, parts, name, arrays, values)
    values = values if order is None else values[order]
    if len(values) == slots:
        return own(values)
    padded = np.zeros((slots, *values.shape[1:]), values.dtype)
    padded[: len(values)] = values
    return own(padded)


def _check_integers(where, parts, name, arrays, values):
    """Raises ValueError, which names the graph, if ``jit`` would cut integers of the batch."""
    field, path = name
    try:
        require_kept_integers(where, f"{field}{path} of the graphs", values)
    except ValueError:
        for part, array in zip(parts, arrays, strict=True):
            require_kept_integers(where, f"graphs[{part.place}].{field}{path}", array)
        raise


_LENGTHS = {
    "weights": "num_edges",
    "edges": "num_edges",
    "row_scale": "num_nodes",
    "col_scale": "num_nodes",
    "nodes": "num_nodes",
}
