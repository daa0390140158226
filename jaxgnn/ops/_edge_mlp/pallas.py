"""Calls of the Mosaic GPU kernels of layers of edges, and their limits."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxgnn.graph import CSRGraph
from jaxgnn.ops._dense.reference.fused_linear import behind_barrier, gradients, preactivation
from jaxgnn.ops._edge_mlp.reference.edge_mlp_aggregate import EdgeOperands, EdgeOptions
from jaxgnn.ops._edge_mlp.reference.interaction import (
    EdgeLists,
    InteractionOptions,
    UpdateOperands,
)
from jaxgnn.ops._graph.pallas import pieces
from jaxgnn.ops.core import dispatch
from jaxgnn.ops.core.pallas_call import compiled, vary_like

DTYPES = ("bfloat16", "float16")
# (multiple, maximum) of the widths of layers that fit a multiprocessor, and of all others.
_NARROW, _WIDE = (32, 128), (64, 256)
_MOST_TIMED = 128
# A group of 64 rows for half of the multiprocessors of an H200: an estimate, fewer were not timed.
_LEAST_ROWS = 4096


@partial(compiled, static_argnames=("options",))
def edge_reduce(
    structure: CSRGraph, operands: EdgeOperands, *, options: EdgeOptions
) -> Float[Array, "batch rows out"]:
    """Sums the results of the layers over the edges of each row."""
    from pallas_kernels.edge_mlp import edge_mlp_aggregate as kernels

    y = kernels.edge_reduce(
        pieces(structure),
        _kernel_layers(operands),
        *_activation_options(options),
        options.row_degree,
    )
    return vary_like(operands.receivers, y)


@partial(compiled, static_argnames=("options",))
def edge_reduce_backward(
    structure: CSRGraph,
    operands: EdgeOperands,
    dy: Float[Array, "batch rows out"],
    *,
    options: EdgeOptions,
) -> EdgeOperands:
    """Gradients of ``edge_reduce`` to all of its operands, in their layout."""
    from pallas_kernels.edge_mlp import edge_mlp_aggregate as kernels

    if operands.features is not None:  # features of every edge are projected again
        operands, dy = behind_barrier(operands, dy)
    made = kernels.edge_reduce_backward(
        pieces(structure),
        _kernel_layers(operands),
        dy,
        *_activation_options(options),
        options.row_degree,
    )
    made = jax.tree.map(partial(vary_like, dy), made)
    ends, of_features = (made.receivers, made.senders), (None, None)
    if operands.features is not None:
        features = operands.features, operands.feature_kernel
        of_features = _projection_gradients(structure, *features, made.features, options)
    return EdgeOperands(
        *ends,
        of_features[0],
        made.weights,
        of_features[1],
        tuple(made.kernels),
        tuple(made.biases),
    )


def _kernel_layers(operands: EdgeOperands):
    """The operands of the kernels, with ``feature_kernel`` applied to the features."""
    from pallas_kernels.edge_mlp.edge_tiles import EdgeLayers

    features = None
    if operands.features is not None:
        features = preactivation(operands.features, operands.feature_kernel, None, None)
        features = features.astype(operands.receivers.dtype)
    ends = operands.receivers, operands.senders
    return EdgeLayers(*ends, operands.weights, operands.kernels, operands.biases, features)


def _projection_gradients(
    structure: CSRGraph, features: Array, kernel, dz: Array, options: EdgeOptions
) -> tuple[Array, Array]:
    """Gradients to the features of edges and to ``feature_kernel``."""
    if options.row_degree is None:  # padding slots are undefined
        real = structure.receivers() < structure.num_rows
        features = jnp.where(real[:, None], features, 0)
    dz = dz.astype(jnp.float32)
    dfeatures, dkernel, _ = gradients(features, kernel, None, dz, None)
    return dfeatures.astype(features.dtype), dkernel


def _activation_options(options: EdgeOptions) -> tuple[str | None, bool]:
    return options.activation, options.activate_last


def limits(structure: CSRGraph, operands: EdgeOperands, *rest, options: EdgeOptions) -> str | None:
    """The reason why kernels do not support these layers here, or None."""
    del rest
    dtype = operands.receivers.dtype.name
    if dtype not in DTYPES:
        return f"needs {' or '.join(DTYPES)} values, got {dtype}"
    if options.largest:
        return "needs a sum or a mean, got the largest"
    widths = _widths(operands)
    multiple, most = _NARROW if max(widths) <= _NARROW[1] else _WIDE
    for width in widths:
        if width == 0 or width % multiple or width > most:
            known = "multiples of {} up to {}, or all of {} up to {}".format(*_NARROW, *_WIDE)
            return (
                f"needs widths between the first and the last layer that are {known}, got {width}"
            )
    if structure.num_edges >= 2**31:
        return f"needs fewer than 2^31 edges, got {structure.num_edges}"
    return dispatch.no_warpgroup_products() or _room(operands, options, backward=False)


def _widths(operands: EdgeOperands) -> list[int]:
    """Widths of the input of the layers and of the result of each layer."""
    return [operands.receivers.shape[-1], *(k.shape[1] for k in operands.kernels)]


def _room(operands: EdgeOperands, options: EdgeOptions, *, backward: bool) -> str | None:
    from pallas_kernels.edge_mlp import edge_mlp_aggregate as kernels

    fits = kernels.fits_backward if backward else kernels.fits_forward
    if fits(jax.eval_shape(_kernel_layers, operands), *_activation_options(options)):
        return None
    found = f"the widths {_widths(operands)}"
    found += "" if operands.features is None else " and features"
    return f"needs layers that fit a multiprocessor, got {found}"


def backward_limits(
    structure: CSRGraph, operands: EdgeOperands, dy: Array, *, options: EdgeOptions
) -> str | None:
    """The reason why the backward kernel does not support these layers here, or None."""
    reason = limits(structure, operands, options=options)
    if reason is not None:
        return reason
    if dispatch.is_deterministic():
        return "needs sums in no fixed order, got jaxgnn.deterministic()"
    return _room(operands, options, backward=True)


def not_worth(
    structure: CSRGraph, operands: EdgeOperands, *rest, options: EdgeOptions
) -> str | None:
    """The reason if such layers were not timed or most multiprocessors would be idle, or None.

    ``rest`` is the cotangent of the result in the backward pass, and empty in the forward pass.
    """
    from pallas_kernels.edge_mlp import edge_mlp_aggregate as kernels

    if options.row_degree is None:
        return "was timed on graphs whose rows are known to have as many edges each, got another"
    if operands.features is not None:
        return "was timed without features of edges, got some"
    widest = max(_widths(operands))
    if widest > _MOST_TIMED:
        return f"was timed up to {_MOST_TIMED} wide, got {widest}"
    layers = jax.eval_shape(_kernel_layers, operands)
    if widest <= _NARROW[1] and kernels.streams_kernels(
        layers, *_activation_options(options), backward=bool(rest)
    ):
        return f"was timed with layers that fit a multiprocessor, got {_widths(operands)}"
    rows = operands.receivers.shape[0] * structure.num_rows
    return None if rows >= _LEAST_ROWS else f"is taken from {_LEAST_ROWS} rows on, got {rows}"


_MOST_COLUMNS = 1024


@partial(compiled, static_argnames=("options",))
def update_edges(
    edges: EdgeLists, operands: UpdateOperands, *, options: InteractionOptions
) -> tuple[Float[Array, "edges out"], Float[Array, "rows out"]]:
    """New features of edges and the sums of rows, by one pass over the edges."""
    from pallas_kernels.edge_mlp import interaction as kernels

    made = kernels.update_edges(
        pieces(edges.graph), edges.order, kernels.Operands(*operands), _update_form(options)
    )
    return vary_like(operands.y, made[0]), vary_like(operands.y, made[1])


@partial(compiled, static_argnames=("options",))
def update_edges_backward(
    edges: EdgeLists, operands: UpdateOperands, dedges: Array, dsums: Array, *, options
) -> UpdateOperands:
    """Gradients of ``update_edges`` to its operands, by one pass over the edges."""
    from pallas_kernels.edge_mlp import interaction as kernels

    made = kernels.update_edges_backward(
        pieces(edges.graph),
        edges.order,
        kernels.Operands(*operands),
        dedges,
        dsums,
        _update_form(options),
    )
    return UpdateOperands(*jax.tree.map(partial(vary_like, operands.y), made))


def _update_form(options: InteractionOptions):
    from pallas_kernels.edge_mlp.interaction import Form

    return Form(options.norm, options.eps, options.summed == "edges", options.is_padded)


def update_limits(edges: EdgeLists, operands: UpdateOperands, *rest, options) -> str | None:
    """The reason why the kernels do not support these edges here, or None."""
    del rest, options
    width = operands.y.shape[-1]
    if width > _MOST_COLUMNS:
        return f"needs at most {_MOST_COLUMNS} features, got {width}"
    if edges.graph.num_edges >= 2**31:
        return f"needs fewer than 2^31 edges, got {edges.graph.num_edges}"
    return None
