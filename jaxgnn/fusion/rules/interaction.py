"""Edges that are updated from both ends and summed at the nodes become ``ops.interaction``.

``update = norm(mlp(concatenate([h[receivers], h[senders], e], -1)))``, of which ``e + update`` and
a sum at the receivers are used, is the block of interaction networks, learnt simulators, GraphCast
and ``jraph.GraphNetwork``. The rule begins at the sum.

Sound where

* ids of both ends are known, no edge is dropped by the sum, and each reads an existing row;
* the first layer takes a concatenation as in the rule ``edge_mlp``, and all activations are one
  that the op has;
* the normalisation, if there is one, is over the last axis and of all features of an edge;
* the result of the layers and of the normalisation is read by nothing but the sums, the residual
  and, without a residual, any other code.

Products by nodes round differently. Rows of tables that no edge reads are set to zero first.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import jax.numpy as jnp
import numpy as np

from jaxgnn import ops
from jaxgnn._arrays.arrays import put_own
from jaxgnn.fusion.graphs.static_graphs import StaticGraph
from jaxgnn.fusion.program.matching import Refusal, need, or_none, required
from jaxgnn.fusion.program.program import Atom, Equation, Values, nbytes
from jaxgnn.fusion.program.variables import View
from jaxgnn.fusion.recognise.edge_lists import known_rows, mask_rows, rows_of
from jaxgnn.fusion.recognise.gathers import (
    SegmentReduction,
    is_filled_with,
    row_gather,
    segment_reduction,
)
from jaxgnn.fusion.recognise.norms import NormOf, norm_of
from jaxgnn.fusion.recognise.templates import DenseLayer, activation_of, chain_of
from jaxgnn.fusion.rules.by_nodes import columns_of
from jaxgnn.fusion.rules.edge_mlp import EdgeInputs, edge_inputs
from jaxgnn.fusion.rules.rule import Rewrite, Rule
from jaxgnn.ops.core.dispatch import resolve, vmap_leading
from jaxgnn.ops.shared import EdgeLists, InteractionOptions, updated_edges


@dataclass(frozen=True)
class _Update:
    """Update of each edge: layers, and the normalisation of their result."""

    atom: Atom
    norm: NormOf | None
    layers: list[DenseLayer]
    activation: ops.Activation | None
    activate_last: bool

    @property
    def parameters(self) -> list[Atom]:
        """Kernels, biases, scales and offset."""
        of_norm: list[Atom] = []
        if self.norm is not None:
            of_norm = [*self.norm.scales, *filter(None, [self.norm.offset])]
        return [*(atom for layer in self.layers for atom in layer.inputs), *of_norm]

    def scale_and_offset(self, values: Values, dtype: Any) -> tuple[Any, Any]:
        """Returns the scale and the offset of the normalisation, or None for each."""
        if self.norm is None:
            return None, None
        width, scale, offset = self.atom.aval.shape[-1], None, None
        for atom in self.norm.scales:
            row = values[atom].reshape(-1)
            scale = row if scale is None else scale * row
        if scale is not None:
            scale = jnp.broadcast_to(scale.reshape(-1), (width,)).astype(dtype)
        if self.norm.offset is not None:
            offset = values[self.norm.offset].reshape(-1)
            offset = jnp.broadcast_to(offset, (width,)).astype(dtype)
        return scale, offset


@dataclass(frozen=True)
class _Uses:
    """Readers of the update, or of the new features of the edges.

    Attributes:
      at_senders: the sum at the senders, or None.
      residual: the variable that is the sum of the features of the edges and the update, or None.
      keeps_update: whether other code reads the update.
      sums_edges: whether the new features are summed, not the update.
    """

    at_senders: SegmentReduction | None
    residual: Any
    keeps_update: bool
    sums_edges: bool


def _propose(view: View, equation: Equation) -> Rewrite:
    reduction = required(segment_reduction(equation))
    axis, summed = reduction.axis, reduction.updates
    need(reduction.kind == "sum" and 0 <= axis == summed.aval.ndim - 2)
    need(jnp.issubdtype(summed.aval.dtype, jnp.floating))
    update, sums_edges = _update_of(view, summed)
    rows = rows_of(view, reduction)
    inputs = edge_inputs(view, reduction, rows, update.layers[0].x)
    graph = inputs.graph
    if not isinstance(graph, StaticGraph):
        raise Refusal("the edges that the sum drops are known only when it runs")
    if graph.num_live < graph.order.size:
        raise Refusal("the sum drops some edges, whose new features are needed")
    uses = _uses(view, reduction, update, graph, sums_edges=sums_edges)
    return _rewrite(view, reduction, update, inputs, graph, uses)


def _update_of(view: View, summed: Atom) -> tuple[_Update, bool]:
    """Returns the summed update, and whether features of edges are added before the sum."""
    update = _layers_of(view, summed)
    if update is not None:
        return update, False
    added = required(view.produced_by(summed, "add"))
    for e, atom in (added.invars, added.invars[::-1]):
        update = _layers_of(view, atom)
        if update is not None and _features(view, update) is not None:
            need(_features(view, update) is e)
            return update, True
    return required(None), False


@or_none
def _layers_of(view: View, atom: Atom) -> _Update:
    norm = norm_of(view, atom)
    y = atom if norm is None else norm.y
    need(y.aval.shape == atom.aval.shape)
    last = activation_of(view, y)
    layers, activation = chain_of(view, y if last is None else last[0])
    need(layers and any(row_gather(view, part) for part in columns_of(view, layers[0].x)))
    if last is not None:
        need(activation in (None, last[1]))
        activation = last[1]
    return _Update(atom, norm, layers, activation, last is not None)


def _features(view: View, update: _Update) -> Atom | None:
    """Returns the one array of features of edges in the input of the first layer, or None."""
    parts = columns_of(view, update.layers[0].x)
    features = [part for part in parts if row_gather(view, part) is None]
    return features[0] if len(features) == 1 else None


def _uses(
    view: View,
    reduction: SegmentReduction,
    update: _Update,
    graph: StaticGraph,
    *,
    sums_edges: bool,
) -> _Uses:
    variable = reduction.updates
    others = [e for e in view.users(variable) if e is not reduction.equation]
    at_senders = next(filter(None, (_sum_at_senders(view, e, graph) for e in others)), None)
    if at_senders is not None:
        others = [e for e in others if e is not at_senders.equation]
    if sums_edges:
        if not view.is_read_once(update.atom):
            raise Refusal("the update is needed for something else, too")
        return _Uses(at_senders, variable, False, True)
    residual = None
    e = _features(view, update)
    if len(others) == 1 and not view.is_output(variable) and _adds(others[0], e, variable):
        residual, others = others[0].outvars[0], []
    keeps = bool(others) or view.is_output(variable)
    # Other code is a case of ``edge_mlp``.
    need(update.norm is not None or keeps or residual is not None)
    return _Uses(at_senders, residual, keeps, False)


def _adds(equation: Equation, e: Atom | None, update: Any) -> bool:
    """Returns whether an equation adds the features of the edges and the update."""
    if e is None or equation.primitive.name != "add":
        return False
    return any(
        pair[0] is e and pair[1] is update for pair in (equation.invars, equation.invars[::-1])
    )


def _sum_at_senders(view: View, equation: Equation, graph: StaticGraph) -> SegmentReduction | None:
    """Returns the sum of the same edges at their senders that an equation computes, or None."""
    reduction = segment_reduction(equation)
    if reduction is None or reduction.kind != "sum" or reduction.size != graph.graph.num_cols:
        return None
    try:
        rows = known_rows(view, reduction)
    except Refusal:
        return None
    columns = np.empty_like(rows)
    columns[graph.order] = graph.live_columns
    is_same = rows.shape == columns.shape and bool((rows == columns).all())
    return reduction if is_same and is_filled_with(view, reduction.base, 0) else None


def _arrays(inputs: EdgeInputs, values: Values, axis: int) -> tuple[Any, Any, Any]:
    """Returns features of receivers, of senders, and of edges in the order of the edge list."""
    parts = inputs.of_rows, inputs.of_columns, inputs.of_edges
    arrays = [[values[atom] for atom, _ in part] for part in parts]
    rows, columns, edges = (jnp.concatenate(part, -1) if part else None for part in arrays)
    rows = mask_rows(inputs.graph.has_edges, rows, axis)
    return rows, mask_rows(inputs.graph.is_read, columns, axis), edges


def _lists(graph: StaticGraph) -> EdgeLists:
    """Returns both ends of the edges in the order of the edge list."""
    receivers, senders = (np.empty(graph.order.size, np.int32) for _ in range(2))
    receivers[graph.order], senders[graph.order] = graph.live_rows, graph.live_columns
    order = None if graph.is_ordered else put_own(graph.order)
    return EdgeLists(graph.graph, order, put_own(receivers), put_own(senders))


def _rewrite(
    view: View,
    reduction: SegmentReduction,
    update: _Update,
    inputs: EdgeInputs,
    graph: StaticGraph,
    uses: _Uses,
) -> Rewrite:
    axis, sums = reduction.axis, reduction.equation.outvars[0]
    results = [sums]
    if uses.at_senders is not None:
        results.append(uses.at_senders.equation.outvars[0])
    edges = uses.residual if uses.residual is not None else update.atom
    if uses.residual is not None or uses.keeps_update:
        results.append(edges)
    starts_at_zero = is_filled_with(view, reduction.base, 0)
    tables = [atom for atom, _ in inputs.parts]
    read = [*tables, *update.parameters, *([] if starts_at_zero else [reduction.base])]
    norm = update.norm
    options = InteractionOptions(
        update.activation,
        update.activate_last,
        None if norm is None else norm.kind,
        1.0 if norm is None else norm.eps,
        uses.residual is not None,
        "edges" if uses.sums_edges else "update",
        is_padded=False,
    )
    ends = "receivers" if uses.at_senders is None else "both"
    types = [(v.aval.shape, v.aval.dtype) for v in results]

    def function(*arrays):
        values = Values(read, arrays)
        receivers, senders, e = _arrays(inputs, values, axis)
        kernels, biases = zip(*(layer.parameters(values) for layer in update.layers), strict=True)
        layers = ops.EdgeMLPParams([inputs.kernel(kernels[0]), *kernels[1:]], list(biases))
        parameters = layers, *update.scale_and_offset(values, receivers.dtype)
        run = partial(
            updated_edges, resolve("interaction", None), _lists(graph),
            context=None, parameters=parameters, options=options, ends=ends,
        )  # fmt: skip
        new_edges, total = vmap_leading(run, axis, (0, 0, None if e is None else 0))(
            receivers, senders, e
        )
        totals = list(total) if ends == "both" else [total]
        if not starts_at_zero:
            totals[0] = values[reduction.base] + totals[0]
        returned = [*totals, new_edges][: len(types)]
        return [
            y.reshape(shape).astype(dtype)
            for y, (shape, dtype) in zip(returned, types, strict=True)
        ]

    size = nbytes(update.atom)
    before = 2 * nbytes(*(layer.x for layer in update.layers)) + 6 * size + nbytes(sums)
    after = nbytes(*tables, *update.parameters) + 2 * nbytes(update.layers[-1].x) + 3 * size
    count = reduction.updates.aval.shape[axis]
    note = f"{len(update.layers)} layers on {count} edges, their norm and sum -> interaction"
    if norm is None:
        note = f"{len(update.layers)} layers on {count} edges and their sum -> interaction"
    return Rewrite(
        reduction.equation, read, function, note, before, after,
        results=tuple(results),
    )  # fmt: skip


RULE = Rule("interaction", frozenset(("scatter-add",)), _propose)
