"""An MLP of both ends of each edge, summed at receivers, becomes ``ops.edge_mlp_aggregate``.

``segment_sum(mlp(concatenate([h[receivers], h[senders], e], -1)) * w, receivers)``: the first layer
is computed by nodes, and the last one after the sum, whose bias counts as often as there are edges.

Sound where

* the ids of both ends are known, and edges that are not ignored read existing rows;
* the first layer takes a concatenation along the last axis of rows that are read by the receiver,
  of rows that are read by one other list of ids, and of features of edges, in any order: the rows
  of its kernel are put in the order of the op;
* between layers there is one activation, the same everywhere, which the op supports. It is
  recognised by its whole formula, and by that of its derivative if given (``jax.custom_jvp``);
* weights ``w`` are one number for each edge, and nothing else is between the last layer and the
  sum but a ``where`` that makes known edges zero, which are dropped: a dropout, a norm or a maximum
  does not commute with it.

Both are equal for finite numbers, if the sums of the hidden features do not overflow before the
last layer, nor products of several weights of an edge, which are multiplied first.

It pays where nothing but such sums reads the messages, which is a condition too.

Rows of tables that no edge reads are set to zero first, so that NaN or infinities in them reach
neither results nor gradients.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp

from jaxgnn import ops
from jaxgnn.fusion.program.matching import Refusal, need, required
from jaxgnn.fusion.program.program import Atom, Equation, Values, nbytes
from jaxgnn.fusion.program.variables import View
from jaxgnn.fusion.recognise.edge_lists import (
    Columns,
    Graph,
    Rows,
    are_the_same,
    columns_read,
    graph_between,
    mask_rows,
    reads_own_row,
    rows_of,
)
from jaxgnn.fusion.recognise.gathers import (
    SegmentReduction,
    is_filled_with,
    row_gather,
    segment_reduction,
)
from jaxgnn.fusion.recognise.products import (
    IN_RANGE,
    Product,
    assumed_of_masks,
    product_of,
    rows_behind,
    values_of,
)
from jaxgnn.fusion.recognise.templates import DenseLayer, chain_of
from jaxgnn.fusion.rules.by_nodes import columns_of
from jaxgnn.fusion.rules.rule import Rewrite, Rule

_ASSUMES = "finite numbers, and sums over edges that do not overflow before the last layer"


@dataclass(frozen=True)
class EdgeInputs:
    """Arrays that fill the input of the first layer, with their columns."""

    of_rows: list[tuple[Atom, range]]  # Tables that are read by the receiver.
    of_columns: list[tuple[Atom, range]]  # Tables that are read by the sender.
    of_edges: list[tuple[Atom, range]]  # Arrays of features of edges.
    graph: Graph

    @property
    def parts(self) -> list[tuple[Atom, range]]:
        """All columns, in the order of the op."""
        return [*self.of_rows, *self.of_columns, *self.of_edges]

    def kernel(self, kernel: Any) -> Any:
        """Returns the kernel of the first layer, with its rows in the order of the op."""
        spans = [span for _, span in self.parts]
        if spans == sorted(spans, key=lambda span: span.start):
            return kernel
        return jnp.concatenate([kernel[span.start : span.stop] for span in spans])

    def arrays(self, values: Values, axis: int) -> tuple[Any, Any, Any]:
        """Returns features of receivers, senders and edge slots."""
        parts = self.of_rows, self.of_columns, self.of_edges
        arrays = [[values[atom] for atom, _ in part] for part in parts]
        rows, columns, edges = (jnp.concatenate(part, -1) if part else None for part in arrays)
        rows = mask_rows(self.graph.has_edges, rows, axis)
        columns = mask_rows(self.graph.is_read, columns, axis)
        return rows, columns, None if edges is None else self.graph.to_slots(edges, axis)


def _propose(view: View, equation: Equation) -> Rewrite:
    reduction = required(segment_reduction(equation))
    axis, updates = reduction.axis, reduction.updates
    need(reduction.kind == "sum" and 0 <= axis == updates.aval.ndim - 2)
    product = product_of(view, updates, axis, has_masks=True)
    need(not product.tables and len(product.others) == 1 and not product.others[0].is_inverse)
    messages = product.others[0].atom, updates
    need(messages[0].aval.shape == updates.aval.shape)
    layers, activation = chain_of(view, messages[0])
    need(layers)
    first = layers[0].x
    need(any(row_gather(view, part) for part in columns_of(view, first)))
    if any(s.axes - {axis} for s in product.scalars):
        raise Refusal("a weight differs between features")
    if not all(_is_only_summed(view, a) for a in messages):
        raise Refusal("the messages are needed for something else, too")
    rows = rows_behind(view, product, rows_of(view, reduction))
    ends = edge_inputs(view, reduction, rows, first)
    are_read_once = all(map(view.is_read_once, messages))
    case = "" if are_read_once else "edge_mlp at both ends"
    return _rewrite(view, reduction, product, layers, activation, ends, case)


def _is_only_summed(view: View, messages: Atom) -> bool:
    """Returns whether messages are read once, or by one sum at each end.

    The op does not return the messages, so they would be computed again for any other reader.
    """
    if view.is_read_once(messages):
        return True
    sums = [segment_reduction(e) for e in view.users(messages)]
    is_summed = all(s is not None and s.kind == "sum" and s.size > 1 for s in sums)
    return is_summed and len(sums) == 2 and not view.is_output(messages)


def edge_inputs(view: View, reduction: SegmentReduction, rows: Rows, first: Atom) -> EdgeInputs:
    """Returns the parts of the input of the first layer, for edges that enter ``rows``.

    Raises ``Refusal`` if there are no edges, or only one end of them is read.
    """
    if rows.size == 0:
        raise Refusal("there are no edges")
    of_rows, of_columns, of_edges = [], [], []
    senders: tuple[Columns, int] | None = None
    start = 0
    for atom in columns_of(view, first):
        span = range(start, start + atom.aval.shape[-1])
        start = span.stop
        gather = row_gather(view, atom)
        if gather is None or gather.axis != reduction.axis:
            of_edges.append((atom, span))
            continue
        columns = columns_read(view, gather, rows)
        if gather.size == reduction.size and reads_own_row(view, gather, rows):
            of_rows.append((gather.table, span))
        elif senders is None or (
            senders[1] == gather.size and are_the_same(senders[0], columns, rows)
        ):
            senders = columns, gather.size
            of_columns.append((gather.table, span))
        else:  # A third list of ids reads this part.
            of_edges.append((atom, span))
    if senders is None or not of_rows:
        raise Refusal("only one end of the edges is read")
    graph = graph_between(view, rows, senders[0], reduction.size, senders[1])
    return EdgeInputs(of_rows, of_columns, of_edges, graph)


def _rewrite(
    view: View,
    reduction: SegmentReduction,
    product: Product,
    layers: list[DenseLayer],
    activation: ops.Activation | None,
    ends: EdgeInputs,
    case: str,
) -> Rewrite:
    axis, output = reduction.axis, reduction.equation.outvars[0]
    tables = [atom for atom, _ in ends.parts]
    parameters = [atom for layer in layers for atom in layer.inputs]
    scalars, constants = product.scalars, product.constants
    if scalars:  # Constants are multiplied into the weights.
        scalars, constants = [*scalars, *constants], []
    starts_at_zero = is_filled_with(view, reduction.base, 0)
    inputs = [*tables, *parameters, *(f.atom for f in (*scalars, *constants))]
    inputs += [] if starts_at_zero else [reduction.base]

    def function(*arrays):
        values = Values(inputs, arrays)
        kernels, biases = zip(*(layer.parameters(values) for layer in layers), strict=True)
        kernels = [ends.kernel(kernels[0]), *kernels[1:]]
        rows, columns, edges = ends.arrays(values, axis)
        weights = values_of(scalars, values, axis + 2)
        scale = values_of(constants, values, 0)
        if weights is not None:
            weights = ends.graph.to_slots(weights.reshape(-1).astype(rows.dtype))
        y = ops.edge_mlp_aggregate(
            ends.graph.graph,
            (rows, columns),
            ops.EdgeMLPParams(kernels, list(biases)),
            edges,
            weights=weights,
            activation=activation,
        )
        if scale is not None:  # An infinite scale must not reach rows without edges.
            of_rows = jnp.broadcast_to(scale.astype(y.dtype), (*[1] * axis, y.shape[axis], 1))
            y = y * mask_rows(ends.graph.has_edges, of_rows, axis)
        y = y if product.sign > 0 else -y
        return [y if starts_at_zero else values[reduction.base] + y]

    before = nbytes(output, reduction.updates) + 2 * nbytes(*(layer.x for layer in layers))
    after = nbytes(output, *tables, *parameters) + 2 * nbytes(layers[-1].x)
    note = f"{len(layers)} layers on {product.edges} edges and their sum -> edge_mlp_aggregate"
    assumes = (_ASSUMES, *[IN_RANGE] * (len(scalars) > 1), *assumed_of_masks(product))
    return Rewrite(
        reduction.equation, inputs, function, note, before, after, case=case, assumes=assumes,
        preparations=ends.graph.preparations,
    )  # fmt: skip


RULE = Rule("edge_mlp", frozenset(("scatter-add",)), _propose)
