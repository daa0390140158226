"""Sums of tensor products of neighbours and spherical harmonics, in plain JAX.

The functions below belong to one number, in which all arrays are linear:

    T = Σ_e Σ_paths Σ_u weights[e, path, u] Σ_abc C[a, b, c]
        x[sender(e), u, a] · harmonics[e, b] · dy[receiver(e), u, c]

Each function is the gradient of the number to one of its arrays: to ``dy`` the sums at the rows, to
``x`` those at the columns, and so on. So the gradients of each are the others, of any order.

The weights may be a ``RadialLayer``, of a basis of each edge and a kernel, in which the number is
linear as well: ``weights = basis · kernel``.

Harmonics and weights of padding slots may contain anything, and their gradients are zero.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxgnn._arrays.arrays import rows_at
from jaxgnn.equivariant import TensorProduct
from jaxgnn.equivariant.couplings import Coupling, couplings
from jaxgnn.equivariant.radial_layer import PRECISIONS, Products, RadialLayer
from jaxgnn.graph import CSRGraph
from jaxgnn.graph.plan.row_sums import sum_rows
from jaxgnn.ops.core.dtypes import accumulation_dtype

Weights = Float[Array, "edges weights"] | RadialLayer
"""Weights of the edges, or the layer that makes them."""


def tensor_product_sum(
    graph: CSRGraph,
    x: Float[Array, "cols in"],
    harmonics: Float[Array, "edges sh"],
    weights: Weights,
    *,
    product: TensorProduct,
) -> Float[Array, "rows out"]:
    """``y_i = Σ_j product(x_j, harmonics_ij, weights_ij)``."""
    wide, harmonics, weights = _wide(x, *_real(graph, harmonics, as_array(graph, weights)))
    senders = wide[graph.indices]
    messages = _products(senders, harmonics, weights, couplings(product), product.irreps_out.dim)
    return sum_rows(messages, graph.indptr).astype(x.dtype)


def sum_at_columns(
    graph: CSRGraph,
    dy: Float[Array, "rows out"],
    harmonics: Float[Array, "edges sh"],
    weights: Weights,
    *,
    product: TensorProduct,
) -> Float[Array, "cols in"]:
    """``dx_j``: the same sums along the transposed graph, by exchanged couplings."""
    wide, harmonics, weights = _wide(dy, *_real(graph, harmonics, as_array(graph, weights)))
    receivers, exchanged = _at_receivers(graph, wide), couplings(product, exchanged=True)
    messages = _products(receivers, harmonics, weights, exchanged, product.irreps_in.dim)
    return jax.ops.segment_sum(messages, graph.indices, graph.num_cols).astype(dy.dtype)


def weight_products(
    graph: CSRGraph,
    x: Float[Array, "cols in"],
    dy: Float[Array, "rows out"],
    harmonics: Float[Array, "edges sh"],
    *,
    product: TensorProduct,
    dtype: str,
) -> Float[Array, "edges weights"]:
    """``dweights_ij[u] = Σ_abc C[a, b, c] x_j[u, a] harmonics_ij[b] dy_i[u, c]``."""
    x, dy, harmonics = _wide(x, dy, *_real(graph, harmonics))
    senders, receivers = x[graph.indices], _at_receivers(graph, dy)
    parts = []
    for coupling in couplings(product):
        moved = _moved(senders, harmonics, coupling)
        slopes = _channels(receivers, coupling.of_out, coupling)
        parts.append(jnp.sum(moved * slopes, axis=2))
    return _real(graph, jnp.concatenate(parts, axis=1))[0].astype(dtype)


def harmonic_products(
    graph: CSRGraph,
    x: Float[Array, "cols in"],
    dy: Float[Array, "rows out"],
    weights: Weights,
    *,
    product: TensorProduct,
    dtype: str,
) -> Float[Array, "edges sh"]:
    """``dharmonics_ij[b] = Σ_uac C[a, b, c] weights_ij[u] x_j[u, a] dy_i[u, c]``."""
    x, dy, weights = _wide(x, dy, *_real(graph, as_array(graph, weights)))
    senders, receivers = x[graph.indices], _at_receivers(graph, dy)
    sums = jnp.zeros((graph.num_edges, product.irreps_sh.dim), senders.dtype)
    for coupling in couplings(product):
        part = _channels(senders, coupling.of_in, coupling)
        slopes = _channels(receivers, coupling.of_out, coupling)
        slopes = weights[:, coupling.of_weights, None] * slopes
        pairs = jnp.einsum("eua,euc->eac", part, slopes, precision="highest")
        table = jnp.asarray(coupling.table, pairs.dtype)
        own = jnp.einsum("eac,abc->eb", pairs, table, precision="highest")
        sums = sums.at[:, coupling.of_sh].add(own)
    return _real(graph, sums)[0].astype(dtype)


def basis_products(
    graph: CSRGraph,
    x: Float[Array, "cols in"],
    dy: Float[Array, "rows out"],
    harmonics: Float[Array, "edges sh"],
    kernel: Float[Array, "features weights"],
    *,
    product: TensorProduct,
    dtype: str,
    of_weights: Callable[..., Array] = weight_products,
    precision: Products = "highest",
) -> Float[Array, "edges features"]:
    """``dbasis_ij = kernel · dweights_ij``, with ``of_weights`` for the latter."""
    (kernel,) = _wide(kernel)
    products = of_weights(graph, x, dy, harmonics, product=product, dtype=kernel.dtype.name)
    return _matmul(products, kernel.T, precision).astype(dtype)


def kernel_products(
    graph: CSRGraph,
    x: Float[Array, "cols in"],
    dy: Float[Array, "rows out"],
    harmonics: Float[Array, "edges sh"],
    basis: Float[Array, "edges features"],
    *,
    product: TensorProduct,
    dtype: str,
    of_weights: Callable[..., Array] = weight_products,
    precision: Products = "highest",
) -> Float[Array, "features weights"]:
    """``dkernel = Σ_ij basis_ij dweights_ij``, with ``of_weights`` for the latter."""
    (basis,) = _wide(*_real(graph, basis))
    products = of_weights(graph, x, dy, harmonics, product=product, dtype=basis.dtype.name)
    return _matmul(basis.T, products, precision).astype(dtype)


def sum_tangent(
    graph: CSRGraph,
    *arrays: Float[Array, "rows width"],
    product: TensorProduct,
    of_rows: Callable[..., Array] = tensor_product_sum,
) -> Float[Array, "rows out"]:
    """The derivative of the sums at the rows in the direction of tangents.

    ``arrays`` are ``x``, harmonics and weights, each followed by its tangent.
    """
    return sum_tangent_by(partial(of_rows, graph, product=product), *arrays)


def columns_tangent(
    graph: CSRGraph,
    *arrays: Float[Array, "rows width"],
    product: TensorProduct,
    of_columns: Callable[..., Array] = sum_at_columns,
) -> Float[Array, "cols in"]:
    """The derivative of the sums at the columns in the direction of tangents.

    ``arrays`` are ``dy``, and harmonics and weights, each followed by its tangent.
    """
    return columns_tangent_by(partial(of_columns, graph, product=product), *arrays)


def weights_tangent(
    graph: CSRGraph,
    *arrays: Float[Array, "rows width"],
    product: TensorProduct,
    dtype: str,
    of_weights: Callable[..., Array] = weight_products,
) -> Float[Array, "edges weights"]:
    """The derivative of ``dweights_ij`` in the direction of tangents.

    ``arrays`` are ``x`` and its tangent, ``dy``, and harmonics and their tangents.
    """
    run = partial(of_weights, graph, product=product, dtype=dtype)
    return weights_tangent_by(run, *arrays)


def sum_tangent_by(run, x, dx, harmonics, dharmonics, weights, dweights):
    """The derivative of ``run(x, harmonics, weights)``, which is linear in each of the three."""
    changed = run(dx, harmonics, weights) + run(x, dharmonics, weights)
    return changed + run(x, harmonics, dweights)


def columns_tangent_by(run, dy, harmonics, dharmonics, weights, dweights):
    """The derivative of ``run(dy, harmonics, weights)`` by harmonics and weights."""
    return run(dy, dharmonics, weights) + run(dy, harmonics, dweights)


def weights_tangent_by(run, x, dx, dy, harmonics, dharmonics):
    """The derivative of ``run(x, dy, harmonics)`` by ``x`` and harmonics."""
    return run(dx, dy, harmonics) + run(x, dy, dharmonics)


def as_array(graph: CSRGraph, weights: Weights) -> Float[Array, "edges weights"]:
    """The weights of a layer in the accumulation dtype, zero in padding; an array as it is."""
    if not isinstance(weights, RadialLayer):
        return weights
    basis, kernel = _wide(*_real(graph, weights.basis), weights.kernel)
    return _matmul(basis, kernel, weights.precision)


def _matmul(a: Array, b: Array, precision: Products) -> Array:
    return jnp.matmul(a, b, precision=PRECISIONS[precision])


def real(graph: CSRGraph, of_edges: Float[Array, "edges width"]) -> Float[Array, "edges width"]:
    """The array with zeros in padding slots, whose gradients are then zero."""
    return jnp.where((graph.receivers() < graph.num_rows)[:, None], of_edges, 0)


def _real(graph: CSRGraph, *of_edges: Array) -> list[Array]:
    return [real(graph, array) for array in of_edges]


def _wide(*arrays: Array) -> list[Array]:
    """The arrays in the dtype of their sums."""
    dtype = accumulation_dtype(*(array.dtype for array in arrays))
    return [array.astype(dtype) for array in arrays]


def _at_receivers(graph: CSRGraph, dy: Float[Array, "rows out"]) -> Float[Array, "edges out"]:
    """The row of each edge's receiver; zeros in padding slots."""
    return rows_at(dy, graph.receivers(), are_sorted=True)


def _products(
    x: Float[Array, "edges in"],
    harmonics: Float[Array, "edges sh"],
    weights: Float[Array, "edges weights"],
    couplings: Sequence[Coupling],
    width: int,
) -> Float[Array, "edges width"]:
    """The product of each edge: for each entry of the result the sum of the paths to it."""
    entries: dict[tuple[int, int], Array] = {}
    for coupling in couplings:
        message = weights[:, coupling.of_weights, None] * _moved(x, harmonics, coupling)
        place = coupling.of_out.start, coupling.of_out.stop
        message = message.reshape(x.shape[0], place[1] - place[0])
        entries[place] = entries[place] + message if place in entries else message
    return _concatenated(entries, x, width)


def _concatenated(entries: dict[tuple[int, int], Array], like: Array, width: int) -> Array:
    """The entries by their places, with zeros where there is none."""
    parts, end = [], 0
    for place in [*sorted(entries), (width, width)]:
        if end < place[0]:
            parts.append(jnp.zeros((like.shape[0], place[0] - end), like.dtype))
        if place in entries:
            parts.append(entries[place])
        end = place[1]
    return jnp.concatenate(parts, axis=1)


def _moved(
    x: Float[Array, "edges in"], harmonics: Float[Array, "edges sh"], coupling: Coupling
) -> Float[Array, "edges channels out"]:
    """``Σ_ab C[a, b, c] x[u, a] harmonics[b]``; the harmonics meet the small table first."""
    table = jnp.asarray(coupling.table, x.dtype)
    harmonic = harmonics[:, coupling.of_sh]
    matrix = jnp.einsum("eb,abc->eac", harmonic, table, precision="highest")
    part = _channels(x, coupling.of_in, coupling)
    return jnp.einsum("eua,eac->euc", part, matrix, precision="highest")


def _channels(rows: Float[Array, "edges width"], part: slice, coupling: Coupling) -> Array:
    """A part of the rows, with an axis of channels and one of components."""
    size = (part.stop - part.start) // coupling.channels
    return rows[:, part].reshape(rows.shape[0], coupling.channels, size)
