"""The two methods of hypergraph convolution: two sparse sums, and one small matrix."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float

from jaxgnn.graph import CSRGraph, Incidence
from jaxgnn.ops._dense.reference.fused_linear import behind_barrier
from jaxgnn.ops._graph.attention import edge_scores, row_softmax, weighted_sums
from jaxgnn.ops._graph.spmm import spmm
from jaxgnn.ops._hypergraph.reference.hypergraph_conv import (
    AttentionMode,
    Scales,
    Weighting,
    finish,
    head_scores,
    merge_heads,
    project,
    pull_back,
    scales,
)
from jaxgnn.ops.core import dispatch
from jaxgnn.ops.core.activations import Name as Activation
from jaxgnn.ops.core.custom_gradient import custom_vjp, set_gradient
from jaxgnn.ops.core.dtypes import accumulation_dtype
from jaxgnn.ops.core.eager import run_compiled
from jaxgnn.ops.core.finite import any_not_finite, exact_matmul, masked_product
from jaxgnn.ops.core.precision import Precision


@dataclass(frozen=True)
class MixingLimits:
    """Largest hypergraph that is applied as one matrix, nodes by nodes.

    Up to the first number of nodes its products cost less than two sparse sums (on two CPU cores 2
    to 100 times less where nodes are in many hyperedges, up to 4 times more where all are in a
    single one). The second bounds the incidence matrix from which that matrix is computed.
    """

    nodes: int = 128
    entries: int = 2**20

    def admit(self, incidence: Incidence) -> bool:
        """Whether ``path="auto"`` chooses the matrix, for any number of tokens."""
        entries = incidence.num_nodes * incidence.num_hyperedges
        return incidence.num_nodes <= self.nodes and entries <= self.entries


MIXING_LIMITS = MixingLimits()


class Convention(NamedTuple):
    """The options of ``ops.hypergraph_conv`` that are not arrays."""

    weighting: Weighting
    normalization: Literal["mean", "sym"]
    attention_mode: AttentionMode
    concat: bool
    negative_slope: float
    activation: Activation | None
    precision: Precision | None

    @property
    def scaling(self) -> dict[str, Any]:
        """The options of ``scales``."""
        return {"weighting": self.weighting, "normalization": self.normalization}


class Arrays(NamedTuple):
    """The array arguments of ``ops.hypergraph_conv``; ``dropped`` has dropout factors by slot."""

    x: Float[Array, "*batch nodes in"]
    incidence: Incidence
    weight: Float[Array, " hyperedges"] | None
    attributes: Float[Array, "*batch hyperedges in"] | None
    kernel: Float[Array, "in width"] | None
    bias: Float[Array, " out"] | None
    attention: Float[Array, "heads pair"] | None
    dropped: Float[Array, "*batch incidences heads"] | None
    residual: Float[Array, "*batch nodes out"] | None


# -- two sparse sums -----------------------------------------------------------------------------


def sparse_sums(
    arrays: Arrays, convention: Convention, implementation: dispatch.Name | None
) -> Float[Array, "*batch nodes out"]:
    """The convolution by two ``spmm``, over the narrower of ``x`` and ``x Θ``."""
    x, kernel = arrays.x, arrays.kernel
    precision = convention.precision
    widens = kernel is not None and kernel.shape[1] >= kernel.shape[0]
    if not widens:
        x = project(x, kernel, 1, precision)[..., 0, :].astype(x.dtype)
    y = _propagate(x, arrays.incidence, arrays.weight, convention, implementation)
    if widens:
        y = project(y, kernel, 1, precision)[..., 0, :]
    y = y.astype(accumulation_dtype(y.dtype))
    y = y if arrays.bias is None else y + arrays.bias.astype(y.dtype)
    return _finish(y, arrays, convention)


def _propagate(x, incidence, weight, convention, implementation):
    by_hyperedge, by_node = incidence.by_hyperedge(), incidence.by_node()
    left, middle, right = _sparse_scales(x, incidence, weight, convention, implementation)
    if weight is None:  # constants of the structure, the kernels apply them
        by_hyperedge = dataclasses.replace(by_hyperedge, row_scale=middle, col_scale=right)
        by_node = dataclasses.replace(by_node, row_scale=left)
        hyperedges = spmm(by_hyperedge, x, implementation=implementation)
        return spmm(by_node, hyperedges, implementation=implementation)
    hyperedges = spmm(by_hyperedge, _scaled(x, right), implementation=implementation)
    sums = spmm(by_node, _scaled(hyperedges, middle), implementation=implementation)
    return _scaled(sums, left)


def _sparse_scales(x, incidence, weight, convention, implementation) -> Scales:
    dtype = accumulation_dtype(x.dtype)
    by_node = incidence.by_node()
    degrees = by_node.degrees().astype(dtype)
    if weight is not None:
        weight = weight.astype(dtype)
        degrees = spmm(by_node, weight[:, None], implementation=implementation)[:, 0]
    sizes = incidence.by_hyperedge().degrees().astype(dtype)
    return scales(degrees, sizes, weight, **convention.scaling)


def _scaled(rows: Float[Array, "*batch n dim"], scale: Float[Array, " n"] | None):
    """Rows times their scales, of the dtype of the rows."""
    if scale is None:
        return rows
    wide = accumulation_dtype(rows.dtype, scale.dtype)
    return (rows.astype(wide) * scale.astype(wide)[:, None]).astype(rows.dtype)


def attended_sparse_sums(
    arrays: Arrays, convention: Convention, implementation: dispatch.Name | None
) -> Float[Array, "*batch nodes out"]:
    """The convolution with attention by two weighted ``spmm`` a head."""
    x, incidence = arrays.x, arrays.incidence
    z, of_nodes, of_hyperedges = _projection_and_scores(arrays, convention)
    scores = jnp.swapaxes(of_nodes, -1, -2), jnp.swapaxes(of_hyperedges, -1, -2)
    to_hyperedges, to_nodes = _sparse_attention(arrays, scores, convention, implementation)
    left, middle, right = _sparse_scales(x, incidence, arrays.weight, convention, implementation)
    values = _scaled(jnp.swapaxes(z, -2, -3).astype(x.dtype), right)
    hyperedges = weighted_sums(incidence.by_hyperedge(), to_hyperedges, values, implementation)
    hyperedges = _scaled(hyperedges, middle)
    sums = weighted_sums(incidence.by_node(), to_nodes, hyperedges, implementation)
    y = jnp.swapaxes(_scaled(sums, left), -2, -3).astype(accumulation_dtype(x.dtype))
    return _finish(merge_heads(y, arrays.bias, convention.concat), arrays, convention)


def _sparse_attention(arrays: Arrays, scores, convention, implementation):
    """Attention in the order of the edges of ``by_hyperedge`` and of ``by_node``.

    ``scores`` is a pair for nodes and for hyperedges, each ``[*batch, heads, rows]``.
    """
    plan, (of_nodes, of_hyperedges) = arrays.incidence.made_plan(), scores
    by_hyperedge = convention.attention_mode == "node"
    first, ends = plan.by_hyperedge, (of_hyperedges, of_nodes)
    if not by_hyperedge:
        first, ends = plan.by_node, (of_nodes, of_hyperedges)
    logits = edge_scores(first, *ends, implementation)
    logits = jax.nn.leaky_relu(logits, convention.negative_slope)
    alpha = row_softmax(first, logits, implementation)
    if arrays.dropped is not None:
        slots = plan.slots if by_hyperedge else plan.slots[_transpose_order(plan.by_hyperedge)]
        alpha = alpha * _permuted(jnp.swapaxes(arrays.dropped, -1, -2), slots)
    other = _permuted(alpha, _transpose_order(first))
    return (alpha, other) if by_hyperedge else (other, alpha)


def _transpose_order(graph: CSRGraph):
    """The index in the graph of each edge of its transpose."""
    return graph.made_plan("permutation").permutation


def _permuted(values: Float[Array, "*batch edges"], permutation) -> Float[Array, "*batch edges"]:
    """Permutes the values; each is read once, so that the gradient needs no sums."""
    return values.at[..., permutation].get(unique_indices=True, mode="promise_in_bounds")


# -- one matrix for all tokens -------------------------------------------------------------------


# Nodes squared times hyperedges, up to which the matrix is computed term by term.
_FEW_TERMS = 1 << 14


def mixing_matrix(
    incidence: Incidence, weight: Float[Array, " hyperedges"] | None, convention: Convention, dtype
) -> Float[Array, "nodes nodes"]:
    """``L H R Hᵀ C`` as a matrix; +0 only for nodes that share no hyperedge.

    An entry that is zero because of weights is -0, which counts as a term; +0 does not.
    """
    return run_compiled(_mixing_matrix, (convention, jnp.dtype(dtype)), (incidence, weight))


def _mixing_matrix(static: tuple[Convention, Any], arguments: tuple[Incidence, Array | None]):
    (convention, dtype), (incidence, weight) = static, arguments
    dense = incidence.todense(dtype)
    if weight is None:
        return _dense_matrix(convention, dense, None)
    if dense.shape[0] * dense.size <= _FEW_TERMS:
        return _matrix_of_terms(convention, dense, weight)
    return _weighted_matrix(convention, dense, weight)


def _matrix_of_terms(convention: Convention, dense, weight) -> Float[Array, "nodes nodes"]:
    """The matrix of a weighted hypergraph, term by term, which for few nodes is one small pass.

    NaN and infinities then reach only the sums, and gradients of sums, that contain them.
    """
    there = dense > 0
    degrees = jnp.sum(jnp.where(there, dense * weight.astype(dense.dtype), 0), axis=1)
    sizes = jnp.sum(dense, axis=0)
    left, middle, right = scales(degrees, sizes, weight, **convention.scaling)
    both = there[:, None] & there[None]
    terms = jnp.where(both, dense[:, None] * middle * dense[None], 0)
    matrix = jnp.sum(terms, axis=-1) * left[:, None]
    matrix = matrix if right is None else matrix * right
    return jnp.where(jnp.any(both, axis=-1), _negative_if_zero(matrix), 0)


@jax.custom_jvp
def _negative_if_zero(matrix: Array) -> Array:
    """Replaces zeros by -0."""
    return jnp.where(matrix == 0, -0.0, matrix)


_negative_if_zero.defjvp(lambda primals, tangents: (_negative_if_zero(*primals), *tangents))


def _plain_product(a, b, present_a, present_b):
    """The product of two matrices whose absent entries are zeros."""
    del present_a, present_b
    return exact_matmul(a, b)


def _dense_matrix(convention: Convention, dense, weight) -> Float[Array, "nodes nodes"]:
    left, middle, right = _dense_scales(dense, weight, convention)
    matrix = _product("ve,e,ue->vu", dense, middle, dense) * left[:, None]
    return matrix if right is None else matrix * right


@partial(custom_vjp, nondiff_argnums=(0,))
def _weighted_matrix(convention: Convention, dense, weight):
    return _weighted_matrix_forward(convention, dense, weight)[0]


def _weighted_matrix_forward(convention: Convention, dense, weight):
    known = jnp.isfinite(weight)
    make = partial(_dense_matrix, convention, dense)
    matrix, pull_back = jax.vjp(make, jnp.where(known, weight, 0))
    shared = _shared(dense, jnp.where(known, weight, 0), matrix)
    # A weight that is not finite is part of the degrees of its nodes.
    hurt = _depends_on_degrees(convention, jnp.any((dense > 0) & ~known, axis=1))
    matrix = jnp.where(hurt, jnp.nan, jnp.where(matrix == 0, -0.0, matrix))
    return jnp.where(shared, matrix, 0), (dense, shared, hurt, pull_back)


def _weighted_matrix_backward(convention: Convention, residuals, dmatrix):
    """The gradient; as for sums over incidences, NaN reaches only weights at its nodes."""
    dense, shared, hurt, pull_back = residuals
    strange = shared & (hurt | ~jnp.isfinite(dmatrix))
    (dweight,) = pull_back(jnp.where(shared & ~strange, dmatrix, 0))
    nodes = jnp.any(strange, axis=1)
    if convention.normalization == "sym":
        nodes |= jnp.any(strange, axis=0)
    lost = jnp.any((dense > 0) & nodes[:, None], axis=0)
    return jnp.zeros_like(dense), jnp.where(lost, jnp.nan, dweight).astype(dweight.dtype)


_weighted_matrix.defvjp(_weighted_matrix_forward, _weighted_matrix_backward)


def _shared(dense, weight, matrix) -> Bool[Array, "nodes nodes"]:
    """A mask of nodes that share a hyperedge; with positive weights, the nonzero entries."""
    if dispatch.current_platform() == "cuda":  # where a branch is slower
        return _product("ve,ue->vu", dense, dense) > 0
    return lax.cond(
        jnp.all(weight > 0),
        lambda: matrix != 0,
        lambda: _product("ve,ue->vu", dense, dense) > 0,
    )


def _depends_on_degrees(
    convention: Convention, nodes: Bool[Array, " nodes"]
) -> Bool[Array, "nodes nodes|1"]:
    """The entries of the matrix that depend on the degrees of these nodes."""
    rows = nodes[:, None]
    return rows if convention.normalization == "mean" else rows | nodes


def _dense_scales(dense, weight, convention, multiply=_plain_product) -> Scales:
    ones = jnp.ones(dense.shape[1], dense.dtype)
    weights = ones if weight is None else weight.astype(dense.dtype)
    degrees = multiply(dense, weights[:, None], dense > 0, None)[:, 0]
    return scales(degrees, jnp.sum(dense, axis=0), weight, **convention.scaling)


def attended_mixing(arrays: Arrays, convention: Convention) -> Float[Array, "*batch nodes out"]:
    """The convolution with attention by one small matrix for each token and head."""
    y = _attended_mixing(convention, arrays.incidence, _differentiated_arrays(arrays))
    return _finish(merge_heads(y, arrays.bias, convention.concat), arrays, convention)


def _differentiated_arrays(arrays: Arrays) -> Arrays:
    """The arrays that the sums depend on, without ids, which are not differentiated."""
    # pyrefly: ignore[bad-argument-type]
    return arrays._replace(incidence=None, bias=None, residual=None)


@partial(custom_vjp, nondiff_argnums=(0,))
def _attended_mixing(convention: Convention, incidence: Incidence, arrays: Arrays):
    return _attended_mixing_forward(convention, incidence, arrays)[0]


def _attended_mixing_forward(convention: Convention, incidence: Incidence, arrays: Arrays):
    y, pull_back = jax.vjp(partial(_attended_sums, _plain_product, convention, incidence), arrays)
    exactly = partial(_attended_sums, masked_product, convention, incidence)
    y = lax.cond(any_not_finite(y), exactly, lambda _: y, arrays)
    return y, (incidence, arrays, pull_back)


def _attended_mixing_backward(convention: Convention, residuals, dy):
    incidence, arrays, pull_back = residuals
    (gradients,) = pull_back(dy)

    def exactly(arrays):
        sums = partial(_attended_sums, masked_product, convention, incidence)
        return jax.vjp(sums, arrays)[1](dy)[0]

    strange = any_not_finite(*jax.tree.leaves(gradients))
    return None, lax.cond(strange, exactly, lambda _: gradients, arrays)


_attended_mixing.defvjp(_attended_mixing_forward, _attended_mixing_backward)


def _attended_sums(
    multiply, convention: Convention, incidence: Incidence, arrays: Arrays
) -> Float[Array, "*batch nodes heads out"]:
    """The sums by head; ``multiply`` takes two matrices and the masks of their entries."""
    arrays = arrays._replace(incidence=incidence)
    z, of_nodes, of_hyperedges = _projection_and_scores(arrays, convention)
    dense = incidence.todense(z.dtype)
    there = dense > 0
    logits = of_nodes[..., :, None, :] + of_hyperedges[..., None, :, :]
    logits = jax.nn.leaky_relu(logits, convention.negative_slope)
    axis = -3 if convention.attention_mode == "node" else -2
    alpha = _dense_softmax(logits, dense[..., None], axis)
    alpha = jnp.where(there[..., None], alpha * _multiplicities(arrays, dense), 0)
    alpha = jnp.moveaxis(alpha, -1, -3)  # heads before nodes and hyperedges
    left, middle, right = _dense_scales(dense, arrays.weight, convention, multiply)
    matrix = multiply(alpha, (alpha * middle).mT, there, there.T) * left[:, None]
    matrix = matrix if right is None else matrix * right
    shared = _product("ve,ue->vu", dense, dense) > 0
    y = multiply(matrix, jnp.moveaxis(z, -2, -3), shared, None)
    return jnp.moveaxis(y, -3, -2)


def _dense_softmax(logits, counts, axis: int):
    """Softmax over an axis in which each entry occurs ``counts`` times; zero for a count of 0."""
    there = counts > 0
    # Shifting all entries does not change the result, so it need not be differentiated.
    peaks = jnp.max(lax.stop_gradient(logits), axis, keepdims=True, initial=-jnp.inf, where=there)
    peaks = jnp.where(peaks == -jnp.inf, 0, peaks)
    exponentials = jnp.where(there, jnp.exp(jnp.where(there, logits - peaks, 0)), 0)
    sums = jnp.sum(counts * exponentials, axis, keepdims=True)
    return exponentials / jnp.where(sums == 0, 1, sums)


def _multiplicities(arrays: Arrays, dense):
    """The count of each node in each hyperedge, or the sum of its dropout factors there."""
    if arrays.dropped is None:
        return dense[..., None]
    incidence, dropped = arrays.incidence, arrays.dropped.astype(dense.dtype)
    nodes = jnp.where(incidence.mask(), incidence.node_ids, incidence.num_nodes)
    shape = (*dropped.shape[:-2], *dense.shape, dropped.shape[-1])
    zeros = jnp.zeros(shape, dense.dtype)
    return zeros.at[..., nodes, incidence.hyperedge_ids, :].add(dropped, mode="drop")


def _product(subscripts: str, *operands: Array) -> Array:
    """A small sum of products in the full precision of its operands."""
    return run_compiled(_einsum, subscripts, operands)


def _einsum(subscripts: str, operands: tuple[Array, ...]) -> Array:
    return jnp.einsum(subscripts, *operands, precision=lax.Precision.HIGHEST)


# -- both ----------------------------------------------------------------------------------------


def _finish(y: Array, arrays: Arrays, convention: Convention) -> Float[Array, "*batch nodes out"]:
    """The activation and the residual, rounded; the backward pass keeps ``y`` alone."""
    if convention.activation is not None:
        y = _activated(convention.activation, y)
    return finish(y, None, arrays.residual).astype(arrays.x.dtype)


@partial(custom_vjp, nondiff_argnums=(0,))
def _activated(activation: Activation, y):
    return finish(y, activation, None)


def _gradient_of_activated(activation: Activation, y, dy):
    y, dy = behind_barrier(y, dy)
    return (pull_back(y, activation, dy),)


set_gradient(_activated, _gradient_of_activated, 1)


def _projection_and_scores(arrays: Arrays, convention: Convention):
    """``x Θ`` by head, and scores ``[*batch, rows, heads]`` of nodes and of hyperedges."""
    attention, attributes = arrays.attention, arrays.attributes
    assert attention is not None and attributes is not None  # the op has checked it
    heads, precision = attention.shape[0], convention.precision
    z = project(arrays.x, arrays.kernel, heads, precision)
    edges = project(attributes, arrays.kernel, heads, precision)
    return z, *head_scores(z, edges, attention)
