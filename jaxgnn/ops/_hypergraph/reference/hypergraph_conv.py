"""Convolution over a hypergraph, in plain JAX: one incidence after the other, and all at once."""

from __future__ import annotations

import functools
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from jaxgnn.graph import Incidence
from jaxgnn.graph.plan.row_sums import sum_segments
from jaxgnn.ops._dense.reference.fused_linear import behind_barrier, product
from jaxgnn.ops.core.activations import ACTIVATIONS
from jaxgnn.ops.core.activations import Name as Activation
from jaxgnn.ops.core.dtypes import accumulation_dtype
from jaxgnn.ops.core.finite import (
    add_nonfinite_terms,
    any_not_finite,
    exact_matmul,
    finite_part,
)
from jaxgnn.ops.core.precision import Precision

Weighting = Literal["paper", "pyg"]
"""Hyperedges' weights in the formula of the paper, or only in degrees as in torch-geometric."""
AttentionMode = Literal["node", "edge"]
"""Softmax over the nodes of each hyperedge, or over the hyperedges of each node."""

# Nodes up to which the mixing of many tokens is unrolled, term by term.
_FEW_NODES = 16


def hypergraph_conv(
    x: Float[Array, "*batch nodes in"],
    incidence: Incidence,
    weight: Float[Array, " hyperedges"] | None,
    attributes: Float[Array, "*batch hyperedges in"] | None,
    kernel: Float[Array, "in width"] | None,
    bias: Float[Array, " out"] | None,
    attention: Float[Array, "heads pair"] | None,
    dropped: Float[Array, "*batch incidences heads"] | None,
    residual: Float[Array, "*batch nodes out"] | None,
    *,
    weighting: Weighting,
    normalization: Literal["mean", "sym"],
    attention_mode: AttentionMode,
    concat: bool,
    negative_slope: float,
    activation: Activation | None,
    precision: Precision | None,
) -> Float[Array, "*batch nodes out"]:
    """``L H R Hᵀ C x Θ + b``, with ``scales`` L, R and C, and H weighted by attention.

    Then the activation, and ``residual`` is added.

    Every array has nodes, hyperedges or incidences as its first axis, then batch, heads, features.
    """
    heads = 1 if attention is None else attention.shape[0]
    ends = _ends(incidence)
    z = jnp.moveaxis(project(x, kernel, heads, precision), -3, 0)
    alpha: Array | float = 1.0
    if attention is not None and attributes is not None:
        edges = jnp.moveaxis(project(attributes, kernel, heads, precision), -3, 0)
        alpha = _attention(*head_scores(z, edges, attention), ends, attention_mode, negative_slope)
        if dropped is not None:
            alpha = alpha * jnp.moveaxis(dropped, -2, 0)
        alpha = alpha[..., None]
    ones = jnp.ones(incidence.num_hyperedges, z.dtype) if weight is None else weight.astype(z.dtype)
    left, middle, right = scales(
        sum_segments(_rows_at(ones, ends.hyperedges), ends.nodes, incidence.num_nodes),
        sum_segments(ends.real.astype(z.dtype), ends.hyperedges, incidence.num_hyperedges),
        weight,
        weighting=weighting,
        normalization=normalization,
    )
    sources = _rows_at(_scaled(z, right), ends.nodes)
    hyperedges = sum_segments(alpha * sources, ends.hyperedges, incidence.num_hyperedges)
    messages = alpha * _rows_at(_scaled(hyperedges, middle), ends.hyperedges)
    sums = sum_segments(messages, ends.nodes, incidence.num_nodes)
    y = jnp.moveaxis(_scaled(sums, left), 0, -3)
    return finish(merge_heads(y, bias, concat), activation, residual).astype(x.dtype)


class Scales(NamedTuple):
    """The diagonals of ``left H middle Hᵀ right``; ``right`` is None for ones."""

    left: Float[Array, " nodes"]
    middle: Float[Array, " hyperedges"]
    right: Float[Array, " nodes"] | None


def scales(
    degrees: Float[Array, " nodes"],
    sizes: Float[Array, " hyperedges"],
    weight: Float[Array, " hyperedges"] | None,
    *,
    weighting: Weighting,
    normalization: Literal["mean", "sym"],
) -> Scales:
    """``D⁻¹, W B⁻¹, 1`` for ``"mean"`` and ``D^-½, W B⁻¹, D^-½`` for ``"sym"``.

    The weighting ``"pyg"`` omits W. D are the ``degrees``, sums of the weights of each node's
    incidences, and B the ``sizes``. Numbers without an inverse or a root give zero.
    """
    middle = _inverse(sizes)
    if weight is not None and weighting == "paper":
        middle = weight.astype(middle.dtype) * middle
    if normalization == "mean":
        return Scales(_inverse(degrees), middle, None)
    positive = degrees > 0
    root = jnp.where(positive, lax.rsqrt(jnp.where(positive, degrees, 1)), 0)
    return Scales(root, middle, root)


def project(
    x: Float[Array, "*batch rows in"],
    kernel: Float[Array, "in width"] | None,
    heads: int,
    precision: Precision | None,
) -> Float[Array, "*batch rows heads out"]:
    """``x Θ`` by head, in the accumulation dtype; x itself without a kernel."""
    if kernel is None:
        z = x.astype(accumulation_dtype(x.dtype))
    else:
        z = product(x, kernel, ((x.ndim - 1,), (0,)), precision)
    return z.reshape(*z.shape[:-1], heads, z.shape[-1] // heads)


def project_backward(
    x: Float[Array, "*batch rows in"],
    kernel: Float[Array, "in width"],
    dz: Float[Array, "*batch rows width"],
    precision: Precision | None,
) -> tuple[Array, Array]:
    """Gradients to ``x`` and Θ of ``x Θ``."""
    rows = tuple(range(x.ndim - 1))
    dx = product(dz, kernel, ((dz.ndim - 1,), (1,)), precision)
    dkernel = product(x, dz, (rows, rows), precision)
    return dx.astype(x.dtype), dkernel.astype(kernel.dtype)


def merge_heads(
    y: Float[Array, "*batch nodes heads out"], bias: Float[Array, " out"] | None, concat: bool
) -> Float[Array, "*batch nodes out"]:
    """Concatenates the heads or takes their mean, and adds the bias."""
    width = y.shape[-2] * y.shape[-1]
    y = y.reshape(*y.shape[:-2], width) if concat else jnp.mean(y, axis=-2)
    return y if bias is None else y + bias.astype(y.dtype)


def finish(
    y: Float[Array, "*batch nodes out"],
    activation: Activation | None,
    residual: Float[Array, "*batch nodes out"] | None,
) -> Float[Array, "*batch nodes out"]:
    """``residual + activation(y)`` of a y in the accumulation dtype."""
    y = ACTIVATIONS[activation].activate(y)
    return y if residual is None else residual.astype(y.dtype) + y


def pull_back(
    y: Float[Array, "*batch nodes out"],
    activation: Activation | None,
    dy: Float[Array, "*batch nodes out"],
) -> Float[Array, "*batch nodes out"]:
    """The gradient to the argument ``y`` of ``finish``, in its dtype, from that to the result."""
    function = ACTIVATIONS[activation]
    known = function.activate(y) if function.of_output else y
    return function.pull_back(known, dy.astype(y.dtype))


def head_scores(
    z: Float[Array, "*batch heads out"],
    edges: Float[Array, "*batch heads out"],
    attention: Float[Array, "heads pair"],
) -> tuple[Float[Array, "*batch heads"], Float[Array, "*batch heads"]]:
    """The parts of ``a · [z_v; e]`` that come from the node and from the hyperedge."""
    of_node, of_hyperedge = jnp.split(attention.astype(z.dtype), 2, axis=-1)
    return jnp.sum(z * of_node, axis=-1), jnp.sum(edges * of_hyperedge, axis=-1)


def mix(
    x: Float[Array, "*batch nodes width"],
    mixing: Float[Array, "nodes nodes"],
    bias: Float[Array, " width"] | None,
    residual: Float[Array, "*batch nodes width"] | None,
    *,
    activation: Activation | None,
) -> Float[Array, "*batch nodes width"]:
    """``residual + activation(M x + b)`` with one small matrix M for all leading axes.

    An entry +0 of M is no term of a sum, so NaN and infinities do not pass through it. An entry -0
    is a term.
    """
    y = finish(_preactivation(x, mixing, bias), activation, residual)
    return y.astype(x.dtype)


def mix_backward(
    x: Float[Array, "*batch nodes width"],
    mixing: Float[Array, "nodes nodes"],
    bias: Float[Array, " width"] | None,
    dy: Float[Array, "*batch nodes width"],
    *,
    activation: Activation | None,
) -> tuple[Array, Array, Array | None]:
    """Gradients to ``x``, ``mixing`` and ``bias``, from the arguments of ``mix`` alone.

    With ``da = dy activation'(M x + b)``: ``dx = Mᵀ da``, ``dM = Σ da xᵀ``, ``db = Σ da``. The
    gradient to the residual is ``dy``. ``dM`` has entries where M has none.
    """
    da = dy
    if activation is not None:
        x, mixing, bias, dy = behind_barrier(x, mixing, bias, dy)
        da = pull_back(_preactivation(x, mixing, bias), activation, dy)
    # Without the barrier XLA on a GPU computes da again for each gradient, which takes twice as
    # long.
    dx = _mixed(*behind_barrier(mixing.T, da)).astype(x.dtype)
    dmixing = _products_of_rows(da, x)
    return dx, dmixing.astype(mixing.dtype), bias_gradient(bias, da)


def bias_gradient(
    bias: Float[Array, " width"] | None, da: Float[Array, "*batch width"]
) -> Float[Array, " width"] | None:
    """Sums of rows, in the accumulation dtype; None without a bias."""
    if bias is None:
        return None
    wide = da.astype(accumulation_dtype(da.dtype))
    return jnp.sum(wide, axis=tuple(range(da.ndim - 1))).astype(bias.dtype)


def is_term(mixing: Float[Array, "v u"]) -> Bool[Array, "v u"]:
    """A mask of the terms of a sum over ``u``: all entries except +0."""
    return (mixing != 0) | jnp.signbit(mixing)


def _preactivation(x, mixing, bias) -> Array:
    """``M x + b`` in the accumulation dtype."""
    y = _mixed(mixing, x)
    return y if bias is None else y + bias.astype(y.dtype)


def _mixed(
    mixing: Float[Array, "v u"], x: Float[Array, "*batch u f"]
) -> Float[Array, "*batch v f"]:
    """``M x`` in the accumulation dtype and full precision."""
    dtype = accumulation_dtype(x.dtype)
    mixing, x = mixing.astype(dtype), x.astype(dtype)
    if not _has_few_nodes(x):
        return _by_product(mixing, x)
    terms = is_term(mixing)

    # Elementwise, so that XLA fuses it with its neighbours in one pass. A matrix product of
    # this shape would have x transposed before and after.
    def term(u: int) -> Array:
        features = jnp.where(terms[:, u, None], x[..., u, None, :], 0)
        return mixing[:, u, None] * features

    return functools.reduce(jnp.add, (term(u) for u in range(x.shape[-2])))


def _by_product(mixing: Array, x: Array) -> Array:
    """One product over the nodes of all tokens, plus the terms that are not finite.

    The product alone would multiply NaN and infinities by zero where M has no term.
    """

    def rows(x):
        return x.mT.reshape(-1, x.shape[-2])

    def tokens(y):
        return y.reshape(x.mT.shape).mT

    # Nodes are columns, the layout that XLA chooses for many tokens, so that the branch copies
    # nothing.
    finite = finite_part(x)
    y = exact_matmul(mixing, finite).mT if x.ndim == 2 else exact_matmul(rows(finite), mixing.T)
    y = lax.cond(
        any_not_finite(x),
        lambda: rows(add_nonfinite_terms(tokens(y), mixing, x, is_term(mixing), None)),
        lambda: y,
    )
    return tokens(y)


def _has_few_nodes(x: Float[Array, "*batch u f"]) -> bool:
    """Whether there are few nodes, and leading axes of tokens."""
    return x.ndim > 2 and x.shape[-2] <= _FEW_NODES


def _products_of_rows(
    a: Float[Array, "*batch v f"], b: Float[Array, "*batch u f"]
) -> Float[Array, "v u"]:
    """``Σ a bᵀ`` over all leading axes, in the accumulation dtype and full precision."""
    if a.dtype != b.dtype:
        wide = accumulation_dtype(a.dtype, b.dtype)
        a, b = a.astype(wide), b.astype(wide)
    if not _has_few_nodes(a):
        rows = (*range(a.ndim - 2), a.ndim - 1)
        return product(a, b, (rows, rows), "highest")
    # One small matrix for each token and then their sum: a single product over tokens and features
    # would have both operands transposed, and sum all of it in one tile.
    each = jnp.einsum(
        "...vf,...uf->...vu",
        a,
        b,
        precision=lax.Precision.HIGHEST,
        preferred_element_type=accumulation_dtype(a.dtype),
    )
    return jnp.sum(each, axis=tuple(range(a.ndim - 2)))


class _Ends(NamedTuple):
    """Node and hyperedge of each incidence; ids of padding are out of range."""

    nodes: Int[Array, " incidences"]
    hyperedges: Int[Array, " incidences"]
    real: Bool[Array, " incidences"]


def _ends(incidence: Incidence) -> _Ends:
    real = incidence.mask()
    nodes = jnp.where(real, incidence.node_ids, incidence.num_nodes)
    hyperedges = jnp.where(real, incidence.hyperedge_ids, incidence.num_hyperedges)
    return _Ends(nodes, hyperedges, real)


def _attention(of_nodes, of_hyperedges, ends: _Ends, mode: AttentionMode, negative_slope: float):
    """Softmax over the nodes of each hyperedge, or over the hyperedges of each node."""
    of_nodes, of_hyperedges = _same_batch(of_nodes, of_hyperedges)
    logits = _rows_at(of_nodes, ends.nodes) + _rows_at(of_hyperedges, ends.hyperedges)
    logits = jax.nn.leaky_relu(logits, negative_slope)
    over, groups = (ends.hyperedges, of_hyperedges) if mode == "node" else (ends.nodes, of_nodes)
    peaks = jax.ops.segment_max(lax.stop_gradient(logits), over, len(groups))
    peaks = jnp.where(peaks == -jnp.inf, 0, peaks)  # where there is no incidence
    real = ends.real.reshape(-1, *(1,) * (logits.ndim - 1))
    exponentials = jnp.where(real, jnp.exp(logits - _rows_at(peaks, over)), 0)
    sums = sum_segments(exponentials, over, len(groups))
    return exponentials / jnp.where(real, _rows_at(sums, over), 1)


def _same_batch(one: Float[Array, "*any"], other: Float[Array, "*any"]):
    """Gives both arrays, after their first axis, the batch axes of the array that has more."""
    more = max(one.ndim, other.ndim)
    pad = (a.reshape(a.shape[0], *(1,) * (more - a.ndim), *a.shape[1:]) for a in (one, other))
    return tuple(pad)


def _rows_at(values: Float[Array, "n *rest"], ids: Int[Array, " m"]) -> Float[Array, "m *rest"]:
    """The entry of each id, zero where it is out of range."""
    return jnp.asarray(values).at[ids].get(mode="fill", fill_value=0)


def _scaled(values: Float[Array, "n *rest"], scale: Float[Array, " n"] | None):
    if scale is None:
        return values
    return values * scale.reshape(-1, *(1,) * (values.ndim - 1))


def _inverse(numbers: Float[Array, " n"]) -> Float[Array, " n"]:
    """1 / n, zero of zero, with finite gradients in both cases."""
    known = numbers != 0
    return jnp.where(known, 1 / jnp.where(known, numbers, 1), 0)
