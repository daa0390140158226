"""The two ways through a hypergraph: two sparse sums, and one small matrix for all tokens."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from jaxgnn.graph import CSRGraph, Incidence, Normalization
from jaxgnn.ops import _dispatch as dispatch
from jaxgnn.ops._attention import edge_scores, row_softmax, weighted_sums
from jaxgnn.ops._eager import run_compiled
from jaxgnn.ops.reference._activations import Name as Activation
from jaxgnn.ops.reference._dtypes import accumulation_dtype
from jaxgnn.ops.reference.fused_linear import Precision, behind_barrier
from jaxgnn.ops.reference.hypergraph_conv import (
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
from jaxgnn.ops.spmm import spmm


@dataclass(frozen=True)
class MixingLimits:
    """How large a hypergraph may be that is applied as one matrix, nodes by nodes.

    Up to the first number its products cost less than two sparse sums (on two CPU cores 2 to 100
    times less where nodes are in many hyperedges, up to 4 times more where all are in a single
    one). The second bounds the incidence matrix that it is made of.
    """

    nodes: int = 128
    entries: int = 2**20

    def admit(self, incidence: Incidence) -> bool:
        """Whether ``path="auto"`` takes the matrix; says the same for one token as for many."""
        entries = incidence.num_nodes * incidence.num_hyperedges
        return incidence.num_nodes <= self.nodes and entries <= self.entries


MIXING_LIMITS = MixingLimits()


class Convention(NamedTuple):
    """What ``ops.hypergraph_conv`` was asked for beside arrays."""

    weighting: Weighting
    normalization: Normalization
    attention_mode: AttentionMode
    concat: bool
    negative_slope: float
    activation: Activation | None
    precision: Precision | None

    @property
    def scaling(self) -> dict[str, str]:
        """Those that ``scales`` takes."""
        return {"weighting": self.weighting, "normalization": self.normalization}


class Arrays(NamedTuple):
    """What ``ops.hypergraph_conv`` was given, by its names; ``dropped`` has factors by slot."""

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
    return _finished(y, arrays, convention)


def _propagate(x, incidence, weight, convention, implementation):
    by_hyperedge, by_node = incidence.by_hyperedge(), incidence.by_node()
    left, middle, right = _sparse_scales(x, incidence, weight, convention, implementation)
    if weight is None:  # constants of the structure, which the kernels apply
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
    z, of_nodes, of_hyperedges = _attended(arrays, convention)
    scores = jnp.swapaxes(of_nodes, -1, -2), jnp.swapaxes(of_hyperedges, -1, -2)
    to_hyperedges, to_nodes = _sparse_attention(arrays, scores, convention, implementation)
    left, middle, right = _sparse_scales(x, incidence, arrays.weight, convention, implementation)
    values = _scaled(jnp.swapaxes(z, -2, -3).astype(x.dtype), right)
    hyperedges = weighted_sums(incidence.by_hyperedge(), to_hyperedges, values, implementation)
    hyperedges = _scaled(hyperedges, middle)
    sums = weighted_sums(incidence.by_node(), to_nodes, hyperedges, implementation)
    y = jnp.swapaxes(_scaled(sums, left), -2, -3).astype(accumulation_dtype(x.dtype))
    return _finished(merge_heads(y, arrays.bias, convention.concat), arrays, convention)


def _sparse_attention(arrays: Arrays, scores, convention, implementation):
    """Attention in the order of the edges of ``by_hyperedge`` and of ``by_node``.

    ``scores`` are those of nodes and of hyperedges ``[*batch, heads, rows]``.
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
        slots = plan.slots if by_hyperedge else plan.slots[_order(plan.by_hyperedge)]
        alpha = alpha * _picked(jnp.swapaxes(arrays.dropped, -1, -2), slots)
    other = _picked(alpha, _order(first))
    return (alpha, other) if by_hyperedge else (other, alpha)


def _order(graph: CSRGraph):
    """Which edge of the graph each edge of its transpose is."""
    return graph.made_plan().permutation


def _picked(values: Float[Array, "*batch edges"], permutation) -> Float[Array, "*batch edges"]:
    """The values in another order; each is read once, so that the gradient needs no sums."""
    return values.at[..., permutation].get(unique_indices=True, mode="promise_in_bounds")


# -- one matrix for all tokens -------------------------------------------------------------------


def mixing_matrix(
    incidence: Incidence, weight: Float[Array, " hyperedges"] | None, convention: Convention, dtype
) -> Float[Array, "nodes nodes"]:
    """``L H R Hᵀ C`` as a matrix."""
    dense = incidence.todense(dtype)
    left, middle, right = _dense_scales(dense, weight, convention)
    matrix = _product("ve,e,ue->vu", dense, middle, dense) * left[:, None]
    return matrix if right is None else matrix * right


def _dense_scales(dense, weight, convention) -> Scales:
    ones = jnp.ones(dense.shape[1], dense.dtype)
    degrees = _product("ve,e->v", dense, ones if weight is None else weight.astype(dense.dtype))
    return scales(degrees, jnp.sum(dense, axis=0), weight, **convention.scaling)


def attended_mixing(arrays: Arrays, convention: Convention) -> Float[Array, "*batch nodes out"]:
    """The convolution with attention by one small matrix for each token and head."""
    z, of_nodes, of_hyperedges = _attended(arrays, convention)
    dense = arrays.incidence.todense(z.dtype)
    logits = of_nodes[..., :, None, :] + of_hyperedges[..., None, :, :]
    logits = jax.nn.leaky_relu(logits, convention.negative_slope)
    axis = -3 if convention.attention_mode == "node" else -2
    alpha = _dense_softmax(logits, dense[..., None], axis)
    alpha = alpha * _multiplicities(arrays, dense)
    left, middle, right = _dense_scales(dense, arrays.weight, convention)
    matrix = _product("...veh,e,...ueh->...hvu", alpha, middle, alpha) * left[:, None]
    matrix = matrix if right is None else matrix * right
    y = _product("...hvu,...uhf->...vhf", matrix, z)
    return _finished(merge_heads(y, arrays.bias, convention.concat), arrays, convention)


def _dense_softmax(logits, counts, axis: int):
    """Softmax over an axis in which entries occur as often as counts say; zero where never."""
    there = counts > 0
    # Shifting all entries alike leaves the result as it is, so it need not be differentiated.
    peaks = jnp.max(lax.stop_gradient(logits), axis, keepdims=True, initial=-jnp.inf, where=there)
    peaks = jnp.where(peaks == -jnp.inf, 0, peaks)
    exponentials = jnp.where(there, jnp.exp(jnp.where(there, logits - peaks, 0)), 0)
    sums = jnp.sum(counts * exponentials, axis, keepdims=True)
    return exponentials / jnp.where(sums == 0, 1, sums)


def _multiplicities(arrays: Arrays, dense):
    """How often each node is in each hyperedge, or the sum of the factors of dropout."""
    if arrays.dropped is None:
        return dense[..., None]
    incidence, dropped = arrays.incidence, arrays.dropped.astype(dense.dtype)
    nodes = jnp.where(incidence.mask(), incidence.node_ids, incidence.num_nodes)
    shape = (*dropped.shape[:-2], *dense.shape, dropped.shape[-1])
    zeros = jnp.zeros(shape, dense.dtype)
    return zeros.at[..., nodes, incidence.hyperedge_ids, :].add(dropped, mode="drop")


def _product(subscripts: str, *operands: Array) -> Array:
    """A small sum of products, which never has fewer bits than its operands."""
    return run_compiled(_einsum, subscripts, operands)


def _einsum(subscripts: str, operands: tuple[Array, ...]) -> Array:
    return jnp.einsum(subscripts, *operands, precision=lax.Precision.HIGHEST)


# -- both ----------------------------------------------------------------------------------------


def _finished(y: Array, arrays: Arrays, convention: Convention) -> Float[Array, "*batch nodes out"]:
    """The activation and the residual, rounded; the backward pass keeps ``y`` alone."""
    if convention.activation is not None:
        y = _activated(convention.activation, y)
    return finish(y, None, arrays.residual).astype(arrays.x.dtype)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _activated(activation: Activation, y):
    return finish(y, activation, None)


def _activated_forward(activation: Activation, y):
    return _activated(activation, y), y


def _activated_backward(activation: Activation, y, dy):
    y, dy = behind_barrier(y, dy)
    return (pull_back(y, activation, dy),)


_activated.defvjp(_activated_forward, _activated_backward)


def _attended(arrays: Arrays, convention: Convention):
    """``x Θ`` by head, and the scores of nodes and of hyperedges ``[*batch, rows, heads]``."""
    attention, attributes = arrays.attention, arrays.attributes
    assert attention is not None and attributes is not None  # the op has seen to it
    heads, precision = attention.shape[0], convention.precision
    z = project(arrays.x, arrays.kernel, heads, precision)
    edges = project(attributes, arrays.kernel, heads, precision)
    return z, *head_scores(z, edges, attention)
