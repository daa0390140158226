"""Convolutions of equivariant networks become ``ops.tensor_product_sum``.

Such as, in e3nn-jax, ``scatter_sum(tensor_product(x[senders], harmonics) * weights, receivers)``,
where the messages may also contain ``x[senders]`` itself, and where they are regrouped.

The code is not compared with a form. The summed array is expanded into the products of entries of
gathered rows and of arrays of edges that it adds (``multilinear``), and their numbers are compared
with Clebsch-Gordan tables (``couplings``). So paths may come in any order, with any factor, and in
any layout of the channels.

Sound where

* the ids of both ends are known, or sorted when the function runs, as for ``neighbour_sum``;
* each entry of the summed array is a sum of products of one entry of the sender's row, one weight
  of the edge and at most one harmonic of it, with known numbers, and of numbers of the edge that
  all products have, which multiply the harmonics;
* each weight belongs to one channel of one path, whose numbers are a table times one factor, up to
  the rounding of the dtype;
* nothing else reads the messages: a gradient that is taken within the function does.

A number that is not finite may reach fewer components of its channel than in the code, since the
tables are mostly zeros; ``explain`` names that.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxgnn import ops
from jaxgnn.fusion.program.matching import Refusal, need, required
from jaxgnn.fusion.program.program import Atom, Equation, Values, nbytes
from jaxgnn.fusion.program.variables import View
from jaxgnn.fusion.recognise.couplings import NO_COLUMN, Coupling, coupling_of
from jaxgnn.fusion.recognise.edge_lists import Graph, graph_of, reads_own_row, rows_of
from jaxgnn.fusion.recognise.gathers import is_filled_with, segment_reduction
from jaxgnn.fusion.recognise.multilinear import Expansion, Leaf, expanded
from jaxgnn.fusion.recognise.products import IN_RANGE, Factor, matrix_product_of
from jaxgnn.fusion.rules.rule import Rewrite, Rule
from jaxgnn.graph import CSRGraph
from jaxgnn.ops.core.dispatch import current_platform
from jaxgnn.ops.shared import tensor_product_sum as kernels

_DTYPES = ("float32", "float64")
_ROUNDINGS = 32  # Units in the last place by which numbers may differ from a table.


def _propose(view: View, equation: Equation) -> Rewrite:
    reduction, output = required(segment_reduction(equation)), equation.outvars[0]
    need(reduction.axis == 0 and output.aval.dtype.name in _DTYPES)
    need(all(isinstance(n, int) for n in reduction.updates.aval.shape))  # All sizes are known.
    expansion, terms = expanded(view, reduction.updates)
    tolerance = _ROUNDINGS * float(jnp.finfo(output.aval.dtype).eps)
    coupling = coupling_of(terms, expansion.width, expansion.leaves, tolerance)
    if not expansion.is_private(equation):
        raise Refusal(f"{_FOUND}, but other code, such as a gradient in it, reads its messages")
    gather, rows = expansion.gathers[0], rows_of(view, reduction)
    if reads_own_row(view, gather, rows):
        raise Refusal(f"{_FOUND}, but rows of the receiver itself are multiplied")
    graph = graph_of(view, reduction, gather, rows)
    radial = _radial_of(view, expansion, coupling)
    starts_at_zero = is_filled_with(view, reduction.base, 0)
    harmonics, shared = (
        _EdgeColumns.from_expansion(expansion, columns)
        for columns in (coupling.harmonics, coupling.shared)
    )

    def function(*arrays):
        values = Values(inputs, arrays)
        parts = [values[table].reshape(gather.size, -1) for table in tables]
        y = ops.tensor_product_sum(
            graph.graph,
            _taken(jnp.concatenate(parts, axis=1), coupling.x),
            graph.to_slots(shared.multiplied(harmonics.read(values), values)),
            **radial.operands(values, graph),
            **coupling.product.arguments,
        )
        y = _taken(y, np.argsort(coupling.out)).reshape(output.aval.shape)
        return [y if starts_at_zero else values[reduction.base] + y]

    tables = [one.table for one in expansion.gathers]
    of_edges = [*harmonics.inputs, *shared.inputs, *radial.inputs]
    inputs = [*tables, *of_edges, *([] if starts_at_zero else [reduction.base])]
    messages = nbytes(reduction.updates)
    read = nbytes(*tables, *of_edges, output)
    edges = reduction.updates.aval.shape[0]
    paths = len(coupling.product.paths)
    note = f"{paths} paths of {edges} edges to {terms.size} features -> tensor_product_sum"
    return Rewrite(
        equation, inputs, function, note, 3 * messages + read, read,
        assumes=("finite numbers", *[IN_RANGE] * bool(shared.leaves)),
        preparations=graph.preparations,
        is_what_runs=_choice(graph, coupling, edges, output) == "xla",
    )  # fmt: skip


_FOUND = "it is a sum of tensor products"


def _choice(graph: Graph, coupling: Coupling, edges: int, output: Any) -> str:
    """Returns the implementation that the op would choose."""

    def array(*shape: int, dtype: Any = output.aval.dtype) -> Any:
        return jax.ShapeDtypeStruct(shape, dtype)

    product, index = coupling.product, jnp.int32
    like = CSRGraph(
        array(graph.num_rows + 1, dtype=index),
        array(edges, dtype=index),
        num_cols=graph.num_columns,
    )
    x = array(graph.num_columns, product.irreps_in.dim)
    of_edges = array(edges, product.irreps_sh.dim), array(edges, product.num_weights)
    return kernels.SUM.choose(current_platform(), like, x, *of_edges, product=product)


def _taken(array: Any, columns: np.ndarray) -> Any:
    """Takes columns of an array; returns it unchanged for all columns in order."""
    if np.array_equal(columns, np.arange(array.shape[-1])):
        return array
    is_unique = np.unique(columns).size == columns.size
    return jnp.take(array, columns, axis=-1, unique_indices=is_unique, mode="clip")


@dataclass(frozen=True)
class _EdgeColumns:
    """Columns of arrays of edges, read as one array."""

    leaves: list[Leaf]
    columns: np.ndarray  # Columns, or ``NO_COLUMN``.

    @classmethod
    def from_expansion(cls, expansion: Expansion, columns: np.ndarray) -> _EdgeColumns:
        """Selects the arrays of edges of an expansion that have the columns."""
        return cls([leaf for leaf in expansion.leaves if leaf.has_any(columns)], columns)

    @property
    def inputs(self) -> list[Atom]:
        """Arrays that have the columns."""
        return [leaf.atom for leaf in self.leaves]

    def read(self, values: Values) -> Any:
        """Reads the array [edges, columns], with ones for ``NO_COLUMN``."""
        arrays = [leaf.edge_columns(values[leaf.atom]) for leaf in self.leaves]
        columns = [leaf.start + np.arange(leaf.size) for leaf in self.leaves]
        if (self.columns == NO_COLUMN).any():
            arrays.append(jnp.ones_like(arrays[0], shape=(arrays[0].shape[0], 1)))
            columns.append(np.array([NO_COLUMN]))
        order = np.argsort(np.concatenate(columns))
        positions = order[np.searchsorted(np.concatenate(columns)[order], self.columns)]
        joined = arrays[0] if len(arrays) == 1 else jnp.concatenate(arrays, axis=1)
        return _taken(joined, positions)

    def multiplied(self, array: Any, values: Values) -> Any:
        """Multiplies an array of edges by all columns."""
        return array * self.read(values).prod(axis=1, keepdims=True) if self.leaves else array


@dataclass(frozen=True)
class _Radial:
    """Weights of a sum of tensor products: an array, or a basis and a kernel."""

    columns: _EdgeColumns
    scales: np.ndarray
    layer: tuple[Factor, Factor] | None  # Basis and kernel, if the op computes the weights.

    @property
    def inputs(self) -> list[Atom]:
        """Arrays that the weights are computed from."""
        return self.columns.inputs if self.layer is None else [factor.atom for factor in self.layer]

    def operands(self, values: Values, graph: Graph) -> dict[str, Any]:
        """Returns the arguments of the op for the weights."""
        if self.layer is None:
            weights = self._scaled(self.columns.read(values))
            return {"weights": graph.to_slots(weights)}
        basis, kernel = self.layer
        matrix = values[kernel.atom]
        matrix = matrix.T if kernel.labels[0] == 1 else matrix
        matrix = _taken(matrix, self.columns.columns - self.columns.leaves[0].start)
        return {"basis": graph.to_slots(values[basis.atom]), "kernel": self._scaled(matrix)}

    def _scaled(self, weights: Any) -> Any:
        if (self.scales == 1).all():
            return weights
        return weights * jnp.asarray(self.scales, weights.dtype)


def _radial_of(view: View, expansion: Expansion, coupling: Coupling) -> _Radial:
    weights = _EdgeColumns.from_expansion(expansion, coupling.weights)
    factors = None
    if len(weights.leaves) == 1 and expansion.is_used_up(weights.leaves[0]):
        leaf = weights.leaves[0]
        has_columns = leaf.axis == 0 and leaf.atom.aval.ndim == 2
        factors = matrix_product_of(view, leaf.atom) if has_columns else None
    return _Radial(weights, coupling.scales, factors)


RULE = Rule("tensor_product_sum", frozenset(("scatter-add",)), _propose)
