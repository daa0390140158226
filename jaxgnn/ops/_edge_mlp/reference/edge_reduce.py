"""The part of ``edge_mlp_aggregate`` that has to be done edge by edge, in plain JAX.

This part is between the first layer, whose products belong to the nodes at both ends of an edge,
and the last layer, which can be applied after a sum. Arrays have one leading batch axis, of size
one where an edge feature or a weight is shared. A kernel never gets a tiled graph.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from jaxgnn.graph import CSRGraph
from jaxgnn.ops._core.activations import ACTIVATIONS, Name
from jaxgnn.ops._core.dtypes import accumulation_dtype
from jaxgnn.ops._dense.reference.fused_linear import behind_barrier, gradients, preactivation


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

    Args:
      structure: a graph, whose weights and scales are ignored.
      operands: the arrays of the formula. ``layers`` are ``activation(·) @ kernel + bias`` for each
        kernel, and one more activation if ``options.activate_last``.
      options: the activation, the reduction and known degrees.

    Returns:
      The reduced values of each row, rounded once to the dtype of ``operands.receivers``; zero for
      a row without edges.
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
