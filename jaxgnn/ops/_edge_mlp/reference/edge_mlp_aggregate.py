"""Messages of an MLP over both ends of each edge, and their reduction, in plain JAX."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, Int

from jaxgnn._arrays.arrays import rows_at
from jaxgnn.graph import CSRGraph
from jaxgnn.graph.csr.masked_graph import row_presence
from jaxgnn.graph.plan.row_sums import sum_rows
from jaxgnn.ops._dense.reference.fused_linear import (
    behind_barrier,
    gradients,
    preactivation,
    product,
)
from jaxgnn.ops._dense.reference.fused_mlp import fused_mlp
from jaxgnn.ops._graph.reference.masked_reductions import masked_reductions
from jaxgnn.ops.core.activations import ACTIVATIONS, Name
from jaxgnn.ops.core.custom_gradient import custom_vjp
from jaxgnn.ops.core.dtypes import accumulation_dtype

Reduce = Literal["sum", "mean", "max"]
"""Reduction of the messages of a node."""


def edge_mlp_aggregate(
    graph: CSRGraph,
    receivers: Float[Array, "rows r"],
    senders: Float[Array, "cols s"],
    kernels: Sequence[Array],
    biases: Sequence[Array | None],
    edge_features: Float[Array, "edges e"] | None,
    weights: Float[Array, " edges"] | None,
    presence: Float[Array, " edges"] | None = None,
    *,
    reduce: Reduce,
    activation: Name | None,
) -> Float[Array, "rows out"]:
    """``y_i = reduce_j w_ij mlp([receivers_i ; senders_j ; e_ij])``, zero where there is no j.

    The mean is ``Σ_j w_ij m_ij / Σ_j w_ij``, zero where that sum is not positive. The graph's own
    weights and scales are ignored. ``presence`` is that of the edges of a ``MaskedGraph``.
    """
    rows, num_rows, dtype = graph.receivers(), graph.num_rows, receivers.dtype
    real = rows < num_rows
    # Padding slots are undefined: they read zeros.
    columns = jnp.where(real, graph.indices, graph.num_cols)
    inputs = [_rows_of(receivers, rows), _rows_of(senders, columns)]
    if edge_features is not None:
        inputs.append(jnp.where(real[:, None], edge_features, 0))
    x = jnp.concatenate(inputs, axis=-1)
    messages = fused_mlp(x, kernels, biases, activation=activation, precision=None)
    messages = messages.astype(accumulation_dtype(x.dtype))
    if presence is not None:
        return _of_masked(graph, presence, messages, weights, reduce).astype(dtype)
    if weights is None:
        weights = jnp.ones(graph.num_edges, messages.dtype)
    weights = jnp.where(real, weights, 0).astype(messages.dtype)
    messages = messages * weights[:, None]
    if reduce == "max":
        largest = jax.ops.segment_max(messages, rows, num_rows, indices_are_sorted=True)
        return jnp.where(graph.degrees()[:, None] > 0, largest, 0).astype(dtype)
    sums = sum_rows(messages, graph.indptr)
    if reduce == "mean":
        totals = sum_rows(weights, graph.indptr)[:, None]
        positive = totals > 0
        sums = jnp.where(positive, sums / jnp.where(positive, totals, 1), 0)
    return sums.astype(dtype)


def _of_masked(
    graph: CSRGraph,
    presence: Float[Array, " edges"],
    messages: Float[Array, "edges out"],
    weights: Float[Array, " edges"] | None,
    reduce: Reduce,
) -> Float[Array, "rows out"]:
    """The reduction over edges that are present to a degree, as ``MaskedGraph`` says."""
    presence = presence.astype(messages.dtype)
    if weights is not None:
        weights = weights.astype(messages.dtype)
        messages = messages * weights[:, None]
    if weights is None or reduce != "mean":
        return masked_reductions(graph, presence, messages, (reduce,))
    sums = masked_reductions(graph, presence, messages, ("sum",))
    totals = sum_rows(jnp.where(presence > 0, weights * presence, 0), graph.indptr)[:, None]
    of_rows = row_presence(graph.indptr, presence, jnp.abs(weights))[:, None]
    return jnp.where(totals > 0, of_rows * sums / jnp.where(totals > 0, totals, 1), 0)


def _rows_of(x: Float[Array, "n d"], nodes: Array) -> Float[Array, "edges d"]:
    """The row of each edge's node, zeros where the node is out of range."""
    return rows_at(jnp.asarray(x), nodes)


@dataclass(frozen=True)
class EdgeOptions:
    """The static options of ``edge_reduce``.

    Attributes:
      activation: name of the activation before each of ``EdgeOperands.kernels``.
      activate_last: whether the activation is also applied after the last of them.
      largest: whether the result is the largest value of a row's edges instead of their sum.
      row_degree: number of edges of every row, if all rows are known to have the same number and no
        edge is padding; else None.
      column_degree: number of edges of every column, if all columns are known to have the same
        number and no edge is padding; else None.
    """

    activation: Name | None
    activate_last: bool
    largest: bool
    row_degree: int | None
    column_degree: int | None


class EdgeOperands(NamedTuple):
    """The differentiable arguments of ``edge_reduce``, or the gradients to them.

    Attributes:
      receivers: the first layer's product with the receivers' features, plus its bias,
        [batch, rows, width].
      senders: the first layer's product with the senders' features, [batch, cols, width].
      features: features of the edges, [batch or 1, edges, e], or None.
      weights: weights of the edges in the accumulation dtype, [batch or 1, edges], or None for
        ones.
      feature_kernel: rows of the first layer's kernel for ``features``, or None without features.
      kernels: weights of the layers after the first.
      biases: the bias of each of ``kernels``, or None for zeros.
    """

    receivers: Float[Array, "batch rows first"]
    senders: Float[Array, "batch cols first"]
    features: Float[Array, "batch|1 edges e"] | None
    weights: Float[Array, "batch|1 edges"] | None
    feature_kernel: Float[Array, "e first"] | None
    kernels: tuple[Float[Array, "in out"], ...]
    biases: tuple[Float[Array, " out"] | None, ...]


def edge_reduce(
    structure: CSRGraph, operands: EdgeOperands, *, options: EdgeOptions
) -> Float[Array, "batch rows out"]:
    """``y_i = Σ_j w_ij layers(receivers_i + senders_j + e_ij feature_kernel)``, or the largest.

    ``layers`` are ``activation(·) @ kernel + bias`` for each kernel, and one more activation if
    ``options.activate_last``. The result is rounded once to the dtype of ``operands.receivers``; it
    is zero for a row without edges.
    """
    ends = _Ends.of(structure, options)
    values = _Layers.run(operands, ends, options).values
    if operands.weights is not None:
        values = values * ends.real_only(operands.weights)[..., None]
    return (ends.largest(values) if options.largest else ends.sum_rows(values)).astype(
        operands.receivers.dtype
    )


def edge_reduce_backward(
    structure: CSRGraph,
    operands: EdgeOperands,
    dy: Float[Array, "batch rows out"],
    *,
    options: EdgeOptions,
) -> EdgeOperands:
    """Gradients to ``operands``; recomputes all values of edges.

    With v the value of an edge before it is weighted, z the input of an activation and a its
    result::

        dv = w dy_i,  dw = ⟨dy_i, v⟩              of the largest: shared evenly by edges that tie
        dkernel = Σ aᵀ dz,  dbias = Σ dz,  da = dz kernelᵀ,  dz = da activation'(z)
        dreceivers_i = Σ_j dz_ij,  dsenders_j = Σ_i dz_ij,  de = dz feature_kernelᵀ
    """
    operands, dy = behind_barrier(operands, dy)
    ends = _Ends.of(structure, options)
    layers = _Layers.run(operands, ends, options)
    weights = None if operands.weights is None else ends.real_only(operands.weights)[..., None]
    du = ends.at_rows(dy).astype(layers.values.dtype)
    if options.largest:
        du = ends.shares(layers.values if weights is None else layers.values * weights) * du
    dweights, dv = None, du
    if weights is not None:
        dweights = _summed_like(weights, jnp.sum(du * layers.values, axis=-1))
        dv = du * weights
    dz, dkernels, dbiases = layers.pull_back(dv)
    dfeatures, dfeature_kernel = None, None
    if operands.features is not None:
        features = ends.real_only(operands.features)
        dfeatures, dfeature_kernel, _ = gradients(
            features, operands.feature_kernel, None, _summed_like(features, dz), None
        )
        dfeatures = dfeatures.astype(features.dtype)
    dtype = operands.receivers.dtype
    return EdgeOperands(
        ends.sum_rows(dz).astype(dtype),
        ends.sum_columns(dz).astype(dtype),
        dfeatures,
        dweights,
        dfeature_kernel,
        dkernels,
        dbiases,
    )


class _Ends(NamedTuple):
    """Moves features from nodes to edges and back."""

    structure: CSRGraph
    rows: Int[Array, " edges"] | None
    columns: Int[Array, " edges"]
    real: Bool[Array, " edges"] | None
    options: EdgeOptions

    @classmethod
    def of(cls, structure: CSRGraph, options: EdgeOptions) -> _Ends:
        """Omits the rows if all have one degree: then the edges of a row are an axis."""
        if options.row_degree is not None:
            return cls(structure, None, structure.indices, None, options)
        rows = structure.receivers()
        real = rows < structure.num_rows
        # Padding slots may hold any index; here they read zeros.
        columns = jnp.where(real, structure.indices, structure.num_cols)
        return cls(structure, rows, columns, real, options)

    def at_rows(self, x: Float[Array, "batch rows d"]) -> Float[Array, "batch edges d"]:
        """The row of ``x`` at each edge's receiver; zero in padding slots."""
        if self.options.row_degree is not None:
            return jnp.repeat(x, self.options.row_degree, axis=1)
        return x.at[:, self.rows].get(mode="fill", fill_value=0, indices_are_sorted=True)

    def at_columns(self, x: Float[Array, "batch cols d"]) -> Float[Array, "batch edges d"]:
        """The row of ``x`` at each edge's sender; zero in padding slots."""
        if self.rows is not None:
            return x.at[:, self.columns].get(mode="fill", fill_value=0)
        return x.at[:, self.columns].get(mode="clip")

    def real_only(self, x: Float[Array, "batch edges *d"]) -> Float[Array, "batch edges *d"]:
        """Sets padding slots, which may hold any value, to zero."""
        if self.real is None:
            return x
        return jnp.where(self.real.reshape(-1, *(1,) * (x.ndim - 2)), x, 0)

    def sum_rows(self, values: Float[Array, "batch edges d"]) -> Float[Array, "batch rows d"]:
        """Adds up the edges of each row."""
        if self.rows is None:
            return jnp.sum(self._by_row(values), axis=2)
        zeros = jnp.zeros((values.shape[0], self.structure.num_rows, values.shape[2]), values.dtype)
        return zeros.at[:, self.rows].add(values, mode="drop", indices_are_sorted=True)

    def sum_columns(self, values: Float[Array, "batch edges d"]) -> Float[Array, "batch cols d"]:
        """Adds up the edges of each column."""
        batch, _, dim = values.shape
        if self.rows is None and self.options.column_degree is not None:
            by_sender = self.structure.made_plan("permutation").permutation
            by_column = _stored_on_cpu(values)[:, by_sender]
            shape = batch, self.structure.num_cols, self.options.column_degree, dim
            return jnp.sum(by_column.reshape(shape), axis=2)
        zeros = jnp.zeros((batch, self.structure.num_cols, dim), values.dtype)
        return zeros.at[:, self.columns].add(values, mode="drop")

    def largest(self, values: Float[Array, "batch edges d"]) -> Float[Array, "batch rows d"]:
        """The largest entry of each row's edges; zero for a row without edges."""
        if self.rows is None:
            return jnp.max(self._by_row(values), axis=2)
        shape = values.shape[0], self.structure.num_rows, values.shape[2]
        lowest = jnp.full(shape, -jnp.inf, values.dtype)
        largest = lowest.at[:, self.rows].max(values, mode="drop", indices_are_sorted=True)
        return jnp.where(self.structure.degrees()[:, None] > 0, largest, 0)

    def shares(self, values: Float[Array, "batch edges d"]) -> Float[Array, "batch edges d"]:
        """1 / n for each of the n edges of a row whose value is the largest, else zero."""
        tied = (values == self.at_rows(self.largest(values))).astype(values.dtype)
        return tied / jnp.maximum(self.at_rows(self.sum_rows(tied)), 1)

    def _by_row(self, values: Float[Array, "batch edges d"]) -> Float[Array, "batch rows k d"]:
        batch, _, dim = values.shape
        shape = batch, self.structure.num_rows, self.options.row_degree, dim
        return _stored_on_cpu(values).reshape(shape)


class _Layers(NamedTuple):
    """The layers of every edge, with the values that their derivatives need."""

    values: Float[Array, "batch edges out"]
    inputs: list[Array]  # the input of each kernel
    known: list[Array]  # y or z of the activation before each kernel, for its derivative
    last: Array | None  # y or z of an activation after the last kernel
    operands: EdgeOperands
    activation: Name | None

    @classmethod
    def run(cls, operands: EdgeOperands, ends: _Ends, options: EdgeOptions) -> _Layers:
        """Runs the layers in the accumulation dtype; factors are rounded to the operands' dtype."""
        dtype = operands.receivers.dtype
        accumulator = accumulation_dtype(dtype)
        activation = ACTIVATIONS[options.activation]
        z = ends.at_rows(operands.receivers).astype(accumulator)
        z = z + ends.at_columns(operands.senders).astype(accumulator)
        if operands.features is not None:
            z = z + preactivation(
                ends.real_only(operands.features), operands.feature_kernel, None, None
            )
        inputs, known = [], []
        for kernel, bias in zip(operands.kernels, operands.biases, strict=True):
            inputs.append(activation.value(z).astype(dtype))
            known.append(inputs[-1] if activation.of_output else z)
            z = preactivation(inputs[-1], kernel, bias, None)
        values = activation.value(z) if options.activate_last else z
        last = None
        if options.activate_last:
            last = values if activation.of_output else z
        return cls(values, inputs, known, last, operands, options.activation)

    def pull_back(
        self, dvalues: Float[Array, "batch edges out"]
    ) -> tuple[Array, tuple[Array, ...], tuple[Array | None, ...]]:
        """Gradients to the first layer's result, to the kernels and to the biases."""
        activation = ACTIVATIONS[self.activation]
        dz = dvalues if self.last is None else activation.pull_back(self.last, dvalues)
        dkernels, dbiases = [], []
        kernels = self.operands.kernels, self.operands.biases
        layers = zip(self.inputs, self.known, *kernels, strict=True)
        for a, seen, kernel, bias in reversed(list(layers)):
            da, dkernel, dbias = gradients(a, kernel, bias, dz, None)
            dz = activation.pull_back(seen, da)
            dkernels.insert(0, dkernel)
            dbiases.insert(0, dbias)
        return dz, tuple(dkernels), tuple(dbiases)


def _stored_on_cpu(values: Array) -> Array:
    """Returns the same values, which on a CPU are computed before a reduction reads them.

    XLA would compute the values of edges inside of the reduction over the edges of a row. On a CPU
    that loop has no vector instructions, and is three times as slow as storing the values first.
    """
    return lax.platform_dependent(values, cpu=lax.optimization_barrier, default=lambda v: v)


def _summed_like(operand: Array, gradient: Array) -> Array:
    """``gradient``, summed over the batch if ``operand`` is shared."""
    shared = operand.shape[0] != gradient.shape[0]
    return jnp.sum(gradient, axis=0, keepdims=True) if shared else gradient


def edge_weights(
    graph: CSRGraph, weights: Float[Array, "*batch edges"] | None, dtype: DTypeLike
) -> Float[Array, "*batch edges"] | None:
    """``r_i w_ij c_j`` in the accumulation dtype; None for ones.

    The weights of the graph are used if ``weights`` is None. Its scales are constants.
    """
    accumulator = accumulation_dtype(dtype)
    weights = graph.weights if weights is None else weights
    factors = [] if weights is None else [weights.astype(accumulator)]
    ends = (graph.row_scale, graph.receivers), (graph.col_scale, lambda: graph.indices)
    for scale, nodes in ends:
        if scale is not None:
            constants = lax.stop_gradient(scale).astype(accumulator)
            factors.append(rows_at(constants, nodes()))
    product = None
    for factor in factors:
        product = factor if product is None else product * factor
    return product


def weights_of_sum(
    graph: CSRGraph,
    weights: Float[Array, "batch edges"] | None,
    dtype: DTypeLike,
    *,
    mean: bool,
    degree: int | None,
) -> tuple[Float[Array, "batch edges"] | None, Float[Array, "batch rows"]]:
    """Weights that turn the reduction into a sum, and the sum of the weights of each row.

    A mean is a sum with ``w_ij / Σ_j w_ij``, or with zeros where that sum is not positive. All rows
    have ``degree`` edges, unless it is None.
    """
    accumulator = accumulation_dtype(dtype)
    if weights is None:
        totals = graph.degrees().astype(accumulator)[None]
    else:
        totals = _sum_rows(graph, weights, degree, exact=mean)
    if not mean:
        return weights, totals
    positive = totals > 0
    scales = jnp.where(positive, 1 / jnp.where(positive, totals, 1), 0)
    shares = _at_rows(graph, scales, degree)
    return shares if weights is None else weights * shares, positive.astype(accumulator)


def _sum_rows(
    graph: CSRGraph, weights: Array, degree: int | None, *, exact: bool
) -> Float[Array, "batch rows"]:
    """Sums the weights of each row; ``exact`` keeps the precision of long sums."""
    batch = weights.shape[0]
    if degree is not None:
        return jnp.sum(weights.reshape(batch, graph.num_rows, degree), axis=2)
    if exact:
        return sum_rows(weights.T, graph.indptr).T
    rows, num_rows = graph.receivers(), graph.num_rows
    real = jnp.where(rows < num_rows, weights, 0)
    totals = jnp.zeros((batch, num_rows), weights.dtype)
    return totals.at[:, rows].add(real, mode="drop", indices_are_sorted=True)


def _at_rows(graph: CSRGraph, scales: Array, degree: int | None) -> Float[Array, "batch edges"]:
    if degree is not None:
        return jnp.repeat(scales, degree, axis=1)
    rows = graph.receivers()
    return scales.at[:, rows].get(mode="fill", fill_value=0, indices_are_sorted=True)


@custom_vjp
def last_layer(
    sums: Float[Array, "batch rows in"],
    kernel: Float[Array, "in out"],
    bias: Float[Array, " out"] | None,
    totals: Float[Array, "batch|1 rows"],
    real: Bool[Array, " rows"] | None,
) -> Float[Array, "batch rows out"]:
    """``sums @ kernel + totals bias``, rounded once: the last layer, applied after a sum.

    Its gradients round the factors of their products to the dtype of the operands. ``totals`` are
    sums of the weights of rows. ``real`` is False for rows without edges, None if all have some.
    """
    y = product(sums, kernel, ((2,), (0,)), None)
    if bias is not None:
        y = y + totals[..., None] * bias.astype(y.dtype)
    return y.astype(sums.dtype)


def _last_layer_forward(*inputs):
    return last_layer(*inputs), inputs


def _last_layer_backward(inputs, dy):
    sums, kernel, bias, totals, real = inputs
    dz = dy.astype(totals.dtype)
    if real is not None:
        # A row without edges does not affect the layer: its zeros times NaN would be NaN.
        dz = jnp.where(real[:, None], dz, 0)
    dsums, dkernel, _ = gradients(sums, kernel, None, dz, None)
    dbias, dtotals = None, jnp.zeros_like(totals)
    if bias is not None:
        dbias = jnp.sum(totals[..., None] * dz, axis=(0, 1)).astype(bias.dtype)
        dtotals = jnp.sum(dz * bias.astype(dz.dtype), axis=-1)
        if totals.shape[0] != dtotals.shape[0]:
            dtotals = jnp.sum(dtotals, axis=0, keepdims=True)
    return dsums.astype(sums.dtype), dkernel, dbias, dtotals, None


last_layer.defvjp(_last_layer_forward, _last_layer_backward)
