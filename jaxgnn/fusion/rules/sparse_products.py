"""Products of a sparse matrix and an array become ``ops.spmm``.

``A @ x`` with a ``BCOO`` or ``BCSR`` of ``jax.experimental.sparse`` names its edges. Sound where
the indices are known, the matrix has two sparse axes and no dense ones, and a batch, as ``vmap``
makes it, has one matrix for all members. Entries whose row or column is out of range are padding,
which JAX ignores, too. Repeated entries are edges like others.

A dense matrix of which all entries are known, such as an adjacency matrix, is sparse if few entries
are not zero. A product skips the others: zero times a number that is not finite would be NaN, so
rows of the array are assumed to be finite. It pays below a share of entries that was measured.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxgnn import ops
from jaxgnn._arrays.arrays import own
from jaxgnn.fusion.graphs.static_graphs import StaticGraph, static_graph
from jaxgnn.fusion.program.matching import Refusal, need, required
from jaxgnn.fusion.program.program import Atom, Equation, nbytes
from jaxgnn.fusion.program.variables import View
from jaxgnn.fusion.recognise.templates import session_precision
from jaxgnn.fusion.rules.rule import Rewrite, Rule

_NARROW = 8  # Number of features below which XLA was faster.


@dataclass(frozen=True)
class _Entries:
    """Entries of a sparse matrix."""

    data: Atom  # Values [entries], or [1, entries] in a batch.
    rows: np.ndarray  # Row of each entry, int32, -1 for padding.
    columns: np.ndarray  # Column of each entry, int32.
    shape: tuple[int, int]

    def transposed(self) -> _Entries:
        columns = np.where(self.rows < 0, 0, self.rows)
        rows = np.where(self.rows < 0, -1, self.columns)
        return _Entries(self.data, rows, columns, self.shape[::-1])

    def graph(self) -> StaticGraph:
        return static_graph(own(self.rows), own(self.columns), *self.shape)


def _propose(view: View, equation: Equation) -> Rewrite:
    output, right = equation.outvars[0], equation.invars[-1]
    (of_left, of_right), (batch, of_batch) = equation.params["dimension_numbers"]
    count = len(batch)
    need(tuple(batch) == tuple(of_batch) == tuple(range(count)) and count <= 1)
    need(len(of_left) == len(of_right) == 1 and of_right[0] >= count)
    data = equation.invars[0]
    need(data.aval.ndim == 1 + count and (count == 0 or data.aval.shape[0] == 1))
    dtypes = {a.aval.dtype for a in (data, right, output)}
    need(len(dtypes) == 1 and jnp.issubdtype(output.aval.dtype, jnp.floating))
    if equation.primitive.name == "bcoo_dot_general":
        entries = _coordinate_entries(view, equation, count)
    else:
        entries = _row_entries(view, equation)
    if of_left[0] == count:
        entries = entries.transposed()
    if entries.rows.size == 0:
        raise Refusal("there are no entries")
    axis = of_right[0]

    def function(data, x):
        graph = entries.graph()
        weighted = graph.graph.with_weights(graph.to_slots(data.reshape(-1)))
        return [_product(weighted, x, axis, count)]

    width = output.aval.size // max(entries.shape[0], 1)
    note = f"{entries.rows.size} entries of {entries.shape} @ {right.aval.str_short()} -> spmm"
    moved = entries.rows.size * width * output.aval.dtype.itemsize
    return Rewrite(
        equation, [data, right], function, note, 3 * moved + nbytes(output),
        nbytes(right, output, data) + moved, case=_case(width),
    )  # fmt: skip


def _case(width: int) -> str:
    return "neighbour_sum of narrow weighted rows" if width < _NARROW else "neighbour_sum"


def _product(graph: Any, x: Any, axis: int, count: int) -> Any:
    """Multiplies an array along one axis, behind ``count`` axes of a batch."""
    front = jnp.moveaxis(x, axis, count)
    behind = front.shape[count + 1 :]
    y = ops.spmm(graph, front.reshape(*front.shape[: count + 1], -1))
    return y.reshape(*y.shape[: count + 1], *behind)


def _coordinate_entries(view: View, equation: Equation, count: int) -> _Entries:
    data, indices = equation.invars[:2]
    order = (0, 1)
    while (moved := view.produced_by(indices, "bcoo_transpose")) is not None and count == 0:
        need(tuple(moved.params["permutation"]) in ((0, 1), (1, 0)))
        need(data is moved.outvars[0] and indices is moved.outvars[1])
        order = order if moved.params["permutation"][0] == 0 else order[::-1]
        data, indices = moved.invars
    shape = tuple(equation.params["lhs_spinfo"].shape[count:])
    need(indices.aval.ndim == 2 + count and indices.aval.shape[-1] == 2 == len(shape))
    pairs = view.value(indices)
    if pairs is None:
        raise Refusal("the indices of the sparse array are known only when it runs")
    ends = pairs.reshape(-1, 2).astype(np.int64)[:, list(order)]
    is_inside = ((ends >= 0) & (ends < shape)).all(-1)
    rows = np.where(is_inside, ends[:, 0], -1).astype(np.int32)
    columns = np.where(is_inside, ends[:, 1], 0).astype(np.int32)
    return _Entries(data, rows, columns, shape)


def _row_entries(view: View, equation: Equation) -> _Entries:
    data, indices, offsets = equation.invars[:3]
    shape = tuple(equation.params["lhs_spinfo"].shape)
    need(len(shape) == 2 and data.aval.ndim == 1)
    columns, starts = view.value(indices), view.value(offsets)
    if columns is None or starts is None:
        raise Refusal("the indices of the sparse array are known only when it runs")
    counts = np.diff(np.clip(starts.astype(np.int64), 0, columns.size))
    need((counts >= 0).all())
    rows = np.full(columns.size, -1, np.int32)
    rows[int(starts[0]) : int(starts[0]) + int(counts.sum())] = np.repeat(
        np.arange(shape[0], dtype=np.int32), counts
    )
    is_inside = (columns >= 0) & (columns < shape[1])
    rows = np.where(is_inside, rows, -1).astype(np.int32)
    return _Entries(data, rows, np.where(rows < 0, 0, columns).astype(np.int32), shape)


# Share of entries that are not zero, up to which a product of a known matrix is faster as a sum of
# rows on a CPU: measured on two cores with 512 to 4,096 rows and 64 and 256 columns. A GPU's
# products of matrices were not compared, so known matrices are not looked at there.
_SPARSE = 1 / 16
_LEAST = 512  # Least number of rows and columns of a matrix that is examined.
_FINITE = ("rows of finite numbers, which a zero in the matrix makes zero",)


def _propose_dense(view: View, equation: Equation) -> Rewrite:
    output = equation.outvars[0]
    contracted, batch = equation.params["dimension_numbers"]
    pairs = list(zip(equation.invars, contracted, strict=True))
    is_last = not (pairs[0][0].aval.ndim == 2 and view.is_known(pairs[0][0]))
    (matrix, of_matrix), (x, of_x) = pairs[::-1] if is_last else pairs
    need(not any(batch) and len(of_matrix) == 1 and matrix.aval.ndim == 2)
    need(min(matrix.aval.shape) >= _LEAST and view.is_known(matrix) and not view.is_known(x))
    need({a.aval.dtype for a in (matrix, x)} == {output.aval.dtype})
    need(jnp.issubdtype(output.aval.dtype, jnp.floating))
    need(equation.params["precision"] == session_precision())
    need(not equation.params["out_sharding"] and jax.default_backend() == "cpu")
    axis = of_matrix[0]
    # Denser matrices are weights, not graphs.
    need(_share_of_sample(required(view.value(matrix))) < 1 / 2)
    entries, values = _nonzeros(view, matrix, axis)
    share = entries.rows.size / max(matrix.aval.size, 1)
    if share > _SPARSE:
        raise Refusal(f"{share:.2g} of the known matrix is not zero, more than {_SPARSE:.2g}")
    if entries.rows.size == 0:
        raise Refusal("all entries of the known matrix are zero")

    def function(x):
        graph = entries.graph()
        weighted = graph.graph.with_weights(graph.weights(values).astype(x.dtype))
        y = _product(weighted, x, of_x[0], 0)
        return [jnp.moveaxis(y, 0, -1) if is_last else y]

    width = output.aval.size // max(entries.shape[0], 1)
    moved = entries.rows.size * width * output.aval.dtype.itemsize
    note = f"{share:.2g} of a known {matrix.aval.str_short()} is not zero -> spmm"
    return Rewrite(
        equation, [x], function, note, nbytes(matrix, x, output), nbytes(x, output) + moved,
        case="narrow " * (width < _NARROW) + "products of a known matrix",
        assumes=_FINITE,
    )  # fmt: skip


def _share_of_sample(value: np.ndarray) -> float:
    """Returns the share of entries that are not zero, in about 64 rows."""
    sample = value[:: max(1, len(value) // 64)]
    return np.count_nonzero(sample) / max(sample.size, 1)


def _nonzeros(view: View, matrix: Atom, axis: int) -> tuple[_Entries, np.ndarray]:
    """Returns the nonzero entries of a known matrix by the free axis, and their values."""

    def read() -> np.ndarray:
        return own(np.flatnonzero(required(view.value(matrix))))

    positions = view.derived(("nonzeros", matrix), read, of=[matrix])
    shape = matrix.aval.shape
    rows, columns = (ids.astype(np.int32) for ids in np.divmod(positions, shape[1]))
    entries = _Entries(matrix, rows, columns, shape)
    return (
        entries if axis == 1 else entries.transposed(),
        own(required(view.value(matrix)).reshape(-1)[positions]),
    )


SPARSE = Rule("sparse_product", frozenset(("bcoo_dot_general", "bcsr_dot_general")), _propose)
KNOWN = Rule("known_matrix", frozenset(("dot_general",)), _propose_dense)
