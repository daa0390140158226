"""New features of edges from both of their ends, and their sums at the nodes, in plain JAX."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

from jaxgnn._arrays.arrays import rows_at
from jaxgnn._arrays.identity_cache import IdentityMemory
from jaxgnn.graph import CSRGraph, is_concrete
from jaxgnn.ops.core.activations import ACTIVATIONS, Name
from jaxgnn.ops.core.dtypes import accumulation_dtype, stored

_ENDS: IdentityMemory[tuple[Array, Array]] = IdentityMemory()

Norm = Literal["layer", "rms"]
"""Normalisation over the features of an edge."""
Summed = Literal["update", "edges"]
"""Numbers of an edge that are summed at the nodes."""
Ends = Literal["receivers", "senders", "both"]
"""Nodes at which the edges are summed."""


@dataclass(frozen=True)
class InteractionOptions:
    """The static options of ``interaction``.

    Attributes:
      activation: name of the activation between the layers.
      activate_last: whether it is also applied after the last layer.
      norm: normalisation of the result of the layers, or None.
      eps: number that is added to the variance, or to the mean square.
      residual: whether the update is added to the features of the edge.
      summed: whether the update or the new features of the edges are summed.
      is_padded: whether some edge slots may be padding, as far as the host knows.
    """

    activation: Name | None
    activate_last: bool
    norm: Norm | None
    eps: float
    residual: bool
    summed: Summed
    is_padded: bool = True


class EdgeLists(NamedTuple):
    """Both ends of the edges, in the order of the arrays of edges.

    Attributes:
      graph: rows are receivers. Only its structure is read.
      order: position in the arrays of edges of each edge slot of the graph; None if they are in the
        order of the slots.
      receivers: the row of each edge; ``graph.num_rows`` in padding.
      senders: the column of each edge; ``graph.num_cols`` in padding.
    """

    graph: CSRGraph
    order: Int[Array, " edges"] | None
    receivers: Int[Array, " edges"]
    senders: Int[Array, " edges"]

    @classmethod
    def of(cls, graph: CSRGraph) -> EdgeLists:
        """The edges in the order of the slots of the graph."""
        ids = graph.indptr, graph.indices

        def ends() -> tuple[Array, Array]:
            receivers = graph.receivers()
            is_real = receivers < graph.num_rows
            return receivers, jnp.where(is_real, graph.indices, graph.num_cols)

        if not is_concrete(*ids):
            return cls(graph, None, *ends())
        with jax.ensure_compile_time_eval():
            return cls(graph, None, *_ENDS.get(ids, graph.num_cols, ends))

    def real_only(self, x: Float[Array, "edges d"]) -> Float[Array, "edges d"]:
        """Sets padding, which may hold any value, to zero."""
        return jnp.where((self.receivers < self.graph.num_rows)[:, None], x, 0)


class UpdateOperands(NamedTuple):
    """The differentiable arguments of ``update_edges``, or the gradients to them.

    Attributes:
      y: result of the layers for each edge, without the bias of the last one.
      bias: that bias, or None for zeros.
      e: features of the edges, or None without ``options.residual``.
      scale: factors of the normalised features, or None for ones.
      offset: what is added to them, or None for zeros.
    """

    y: Float[Array, "edges out"]
    bias: Float[Array, " out"] | None
    e: Float[Array, "edges out"] | None
    scale: Float[Array, " out"] | None
    offset: Float[Array, " out"] | None


def interaction(
    edges: EdgeLists,
    receivers: Float[Array, "rows r"],
    senders: Float[Array, "cols s"],
    e: Float[Array, "edges e"] | None,
    context: Float[Array, "rows g"] | None,
    kernels: Sequence[Array],
    biases: Sequence[Array | None],
    scale: Float[Array, " out"] | None,
    offset: Float[Array, " out"] | None,
    *,
    options: InteractionOptions,
) -> tuple[Float[Array, "edges out"], Float[Array, "edges out"]]:
    """Computes the update of each edge and its new features, both zero in padding.

    Formulas::

        update = norm(mlp([receivers_i ; senders_j ; e_ij ; context_i])) scale + offset
        edges  = e + update,  or the update alone without ``options.residual``

    Both are in the accumulation dtype.
    """
    dtype = receivers.dtype
    inputs = [taken(receivers, edges.receivers), taken(senders, edges.senders)]
    if e is not None:
        inputs.append(edges.real_only(e))
    if context is not None:
        inputs.append(taken(context, edges.receivers))
    x = jnp.concatenate(inputs, axis=-1)
    layer = ACTIVATIONS[options.activation]
    for index, (kernel, bias) in enumerate(zip(kernels, biases, strict=True)):
        z = jnp.matmul(x, kernel, preferred_element_type=accumulation_dtype(dtype))
        z = z if bias is None else z + bias.astype(z.dtype)
        is_last = index == len(kernels) - 1
        x = z if is_last and not options.activate_last else layer.activate(z)
        x = x if is_last else stored(x, dtype)
    e = e if options.residual else None
    return new_edges(edges, UpdateOperands(x, None, e, scale, offset), options)


def taken(x: Float[Array, "nodes d"], nodes: Int[Array, " edges"]) -> Float[Array, "edges d"]:
    """The row of each edge's node; zeros where the node is out of range."""
    return rows_at(jnp.asarray(x), nodes)


def new_edges(
    edges: EdgeLists, operands: UpdateOperands, options: InteractionOptions
) -> tuple[Float[Array, "edges out"], Float[Array, "edges out"]]:
    """The update of each edge and its new features, in the accumulation dtype; zero in padding."""
    y, bias, e, scale, offset = operands
    wide = accumulation_dtype(y.dtype)
    y = edges.real_only(y).astype(wide)
    y = y if bias is None else y + bias.astype(wide)
    update = edges.real_only(normalized(y, scale, offset, options))
    return update, update if e is None else update + edges.real_only(e).astype(wide)


def update_edges(
    edges: EdgeLists, operands: UpdateOperands, *, options: InteractionOptions
) -> tuple[Float[Array, "edges out"], Float[Array, "rows out"]]:
    """The new features of edges, and the sum over the edges of each row, both rounded once."""
    update, made = new_edges(edges, operands, options)
    dtype = operands.y.dtype
    summed = made if options.summed == "edges" else update
    sums = jax.ops.segment_sum(summed, edges.receivers, edges.graph.num_rows)
    return made.astype(dtype), sums.astype(dtype)


def update_edges_backward(
    edges: EdgeLists,
    operands: UpdateOperands,
    dedges: Float[Array, "edges out"],
    dsums: Float[Array, "rows out"],
    *,
    options: InteractionOptions,
) -> UpdateOperands:
    """Gradients to ``operands``, whose ``e`` is not read.

    With ŷ the normalised y, n the width, r the factor by which y (or y - m) is multiplied, and
    du the gradient to the update::

        du = dedges + dsums_i,  doffset = Σ du,  dscale = Σ du ŷ,  dŷ = du scale
        dy = r (dŷ - Σ dŷ / n - ŷ Σ dŷ ŷ / n)          the second term for the layer norm alone
        dbias = Σ dy,  de = du, or dedges where the update is summed
    """
    y, bias, e, scale, offset = operands
    dtype, wide = y.dtype, accumulation_dtype(y.dtype)
    dedges = edges.real_only(dedges).astype(wide)
    du = dedges + taken(dsums.astype(wide), edges.receivers)
    y = edges.real_only(y).astype(wide)
    y = y if bias is None else y + bias.astype(wide)
    if options.norm == "layer":
        y = y - jnp.mean(y, axis=-1, keepdims=True)
    r = 1.0
    if options.norm is not None:
        r = lax.rsqrt(jnp.mean(y * y, axis=-1, keepdims=True) + options.eps)
    y = y * r
    dy = du if scale is None else du * scale.astype(wide)
    if options.norm is not None:
        centred = dy
        if options.norm == "layer":
            centred = dy - jnp.mean(dy, axis=-1, keepdims=True)
        dy = r * (centred - y * jnp.mean(dy * y, axis=-1, keepdims=True))
    dy = edges.real_only(dy)

    def total(values: Array, like: Array | None) -> Array | None:
        return None if like is None else jnp.sum(values, axis=0).astype(like.dtype)

    of_edges = du if options.summed == "edges" else dedges
    return UpdateOperands(
        dy.astype(dtype),
        total(dy, bias),
        None if e is None else of_edges.astype(dtype),
        None if scale is None else total(edges.real_only(du * y), scale),
        total(du, offset),
    )


def normalized(
    y: Float[Array, "edges out"],
    scale: Float[Array, " out"] | None,
    offset: Float[Array, " out"] | None,
    options: InteractionOptions,
) -> Float[Array, "edges out"]:
    """Normalises the features of each edge, in the accumulation dtype.

    With the mean m and the variance v over the features of an edge::

        layer: (y - m) / sqrt(v + eps) scale + offset
        rms:   y / sqrt(mean(y²) + eps) scale + offset
    """
    y = y.astype(accumulation_dtype(y.dtype))
    if options.norm == "layer":
        y = y - jnp.mean(y, axis=-1, keepdims=True)
    if options.norm is not None:
        y = y * lax.rsqrt(jnp.mean(y * y, axis=-1, keepdims=True) + options.eps)
    if scale is not None:
        y = y * scale.astype(y.dtype)
    return y if offset is None else y + offset.astype(y.dtype)
