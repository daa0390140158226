"""Typed calls of the kernels of sums of tensor products on a GPU.

They are generated for each product and compiled when they are first used. They read and write
float32. The weights of edges are an array, or a ``RadialLayer`` whose weights the kernels compute.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jaxgnn._codegen.descriptions import describe, described_source
from jaxgnn._codegen.frame import WARP, WARPS, Kind, Source
from jaxgnn._codegen.radial_weights import RadialWeights
from jaxgnn._codegen.tensor_product import source
from jaxgnn._ffi import _programs
from jaxgnn._ffi._call import Shape
from jaxgnn._ffi._launch import Launch, launch
from jaxgnn.equivariant import TensorProduct
from jaxgnn.equivariant.radial_layer import RadialLayer
from jaxgnn.graph import CSRGraph
from pallas_kernels.chip import Chip

_FAMILY = "tensor_product_sum"
_BLOCKS_OF_MULTIPROCESSOR = 2  # Holds for kernels that compute weights.

Weights = Float[Array, "edges weights"] | RadialLayer


def sum_at_rows(
    graph: CSRGraph,
    x: Float[Array, "cols in"],
    harmonics: Float[Array, "edges sh"],
    weights: Weights,
    *,
    product: TensorProduct,
) -> Float[Array, "rows out"]:
    """``y_i = Σ_j product(x_j, harmonics_ij, weights_ij)``."""
    shape = graph.num_rows, product.irreps_out.dim
    return _generated(product, "rows", shape, graph, None, x, harmonics, weights).astype(x.dtype)


def sum_at_columns(
    graph: CSRGraph,
    dy: Float[Array, "rows out"],
    harmonics: Float[Array, "edges sh"],
    weights: Weights,
    *,
    product: TensorProduct,
) -> Float[Array, "cols in"]:
    """``dx_j``, along the transposed graph by exchanged couplings."""
    slots = graph.made_plan("schedule", "transpose", "permutation").permutation
    slots, shape = slots.astype(jnp.int32), (graph.num_cols, product.irreps_in.dim)
    arrays = dy, harmonics, weights
    return _generated(product, "columns", shape, graph.transpose(), slots, *arrays).astype(dy.dtype)


def weight_products(
    graph: CSRGraph,
    x: Float[Array, "cols in"],
    dy: Float[Array, "rows out"],
    harmonics: Float[Array, "edges sh"],
    *,
    product: TensorProduct,
    dtype: str,
    paths: tuple[int, ...] | None = None,
) -> Float[Array, "edges weights"]:
    """``dweights_ij``, or of some paths, by their numbers, one after the other.

    Zero in padding slots.
    """
    numbers = range(len(product.paths)) if paths is None else paths
    shape = graph.num_edges, sum(product.channels(product.paths[i]) for i in numbers)
    products = _generated(product, "weights", shape, graph, None, x, dy, harmonics, paths=paths)
    return products.astype(dtype)


def harmonic_products(
    graph: CSRGraph,
    x: Float[Array, "cols in"],
    dy: Float[Array, "rows out"],
    weights: Weights,
    *,
    product: TensorProduct,
    dtype: str,
) -> Float[Array, "edges sh"]:
    """``dharmonics_ij``; zero in padding slots. A warp sums 32 channels, XLA the rest."""
    parts, width = _source_for(product, "harmonics", weights).columns, product.irreps_sh.dim
    shape = graph.num_edges, parts * width
    sums = _generated(product, "harmonics", shape, graph, None, x, dy, weights)
    return jnp.sum(sums.reshape(graph.num_edges, parts, width), axis=1).astype(dtype)


def sum_tangent(
    graph: CSRGraph,
    x: Float[Array, "cols in"],
    dx: Float[Array, "cols in"],
    harmonics: Float[Array, "edges sh"],
    dharmonics: Float[Array, "edges sh"],
    weights: Float[Array, "edges weights"],
    dweights: Float[Array, "edges weights"],
    *,
    product: TensorProduct,
) -> Float[Array, "rows out"]:
    """The derivative of the sums at the rows in the direction of the tangents."""
    shape, tangents = (graph.num_rows, product.irreps_out.dim), (dx, dharmonics, dweights)
    arrays = graph, None, x, harmonics, weights
    return _generated(product, "rows_tangent", shape, *arrays, tangents=tangents).astype(x.dtype)


def columns_tangent(
    graph: CSRGraph,
    dy: Float[Array, "rows out"],
    harmonics: Float[Array, "edges sh"],
    dharmonics: Float[Array, "edges sh"],
    weights: Float[Array, "edges weights"],
    dweights: Float[Array, "edges weights"],
    *,
    product: TensorProduct,
) -> Float[Array, "cols in"]:
    """The derivative of the sums at the columns in the direction of the tangents."""
    slots = graph.made_plan("schedule", "transpose", "permutation").permutation
    arrays = graph.transpose(), slots.astype(jnp.int32), dy, harmonics, weights
    shape, tangents = (graph.num_cols, product.irreps_in.dim), (None, dharmonics, dweights)
    sums = _generated(product, "columns_tangent", shape, *arrays, tangents=tangents)
    return sums.astype(dy.dtype)


def weights_tangent(
    graph: CSRGraph,
    x: Float[Array, "cols in"],
    dx: Float[Array, "cols in"],
    dy: Float[Array, "rows out"],
    harmonics: Float[Array, "edges sh"],
    dharmonics: Float[Array, "edges sh"],
    *,
    product: TensorProduct,
    dtype: str,
) -> Float[Array, "edges weights"]:
    """The derivative of ``dweights_ij`` in the direction of the tangents; zero in padding slots."""
    shape, tangents = (graph.num_edges, product.num_weights), (dx, None, dharmonics)
    arrays = graph, None, x, dy, harmonics
    return _generated(product, "weights_tangent", shape, *arrays, tangents=tangents).astype(dtype)


def limits(
    graph: CSRGraph, *arrays: Array | RadialLayer, product: TensorProduct, **options: str
) -> str | None:
    """The reason why the generated kernels can not compute these arguments; None if they can."""
    leaves = jax.tree.leaves(arrays)
    dtypes = {leaf.dtype.name for leaf in leaves} | {options.get("dtype", "float32")}
    if "float64" in dtypes:
        return "needs float32 or bfloat16 values on a GPU, got float64"
    if graph.indptr.dtype.itemsize > 4:
        return f"needs offsets of edges in int32 on a GPU, got {graph.indptr.dtype.name}"
    if not product.paths:
        return "needs a path on a GPU, got a product without any"
    layers = [array for array in arrays if isinstance(array, RadialLayer)]
    return _radial_limits(product, layers[0]) if layers else None


def _radial_limits(product: TensorProduct, layer: RadialLayer) -> str | None:
    """The reason why kernels can not compute the weights of this layer; None if they can."""
    chip = Chip.current()
    if chip.generation < 8:
        return f"needs TF32, compute capability 8.0 or higher, got {chip.capability or 'none'}"
    kinds: tuple[Kind, ...] = ("rows", "columns", "harmonics")
    needed = max(
        launch.shared_bytes
        for kind in kinds
        for launch in _source_for(product, kind, layer).launches
    )
    if needed <= chip.shared_bytes:
        return None
    features = layer.basis.shape[-1]
    return f"needs {needed} bytes of shared memory for {features} features, got {chip.shared_bytes}"


def _source_for(product: TensorProduct, kind: Kind, weights: Array | RadialLayer) -> Source:
    return source(product, kind, _radial(weights))


def _radial(weights: Array | RadialLayer) -> RadialWeights | None:
    if not isinstance(weights, RadialLayer):
        return None
    products = 1 if weights.precision == "tf32" else 3
    blocks = _BLOCKS_OF_MULTIPROCESSOR * Chip.current().multiprocessors
    return RadialWeights(weights.kernel.shape[0], products, blocks)


def _generated(
    product: TensorProduct,
    kind: Kind,
    shape: Shape,
    graph: CSRGraph,
    slots: Int[Array, " edges"] | None,
    *arrays: Array | RadialLayer,
    paths: tuple[int, ...] | None = None,
    tangents: tuple[Array | None, ...] = (None, None, None),
) -> Array:
    """Calls the kernels of this kind on float32 arrays, of which the last may be a layer."""
    radial = _radial(arrays[-1])
    description = describe(product, kind, radial, paths)
    generated = described_source(description)
    kernel = [] if radial else [None]  # A layer has its kernel as its second leaf.
    floats = [*jax.tree.leaves(arrays), *kernel, *tangents]
    floats = [None if array is None else array.astype(jnp.float32) for array in floats]
    results = (shape, jnp.float32), ((generated.tile_floats,), jnp.float32)
    operands = graph.indptr, graph.indices, slots, *floats
    launches, sizes = _launches(generated, graph.num_rows), (graph.num_rows, graph.num_edges)
    return launch(f"{_FAMILY}:{description}", results, operands, launches, sizes)[0]


def _launches(generated: Source, num_rows: int) -> list[Launch]:
    """The launches of all kernels: by a warp for each row, or by blocks that share all rows."""
    launches = []
    for number, (columns, shared_bytes, blocks) in enumerate(generated.launches):
        grid = blocks or max(1, -(-num_rows // WARPS))
        launches.append(
            Launch(
                f"kernel{number}",
                tasks=grid,
                tasks_per_block=1,
                most_blocks=grid,
                blocks_y=1 if blocks else columns,
                threads_x=WARP * WARPS,
                threads_y=1,
                shared_bytes=shared_bytes,
            )
        )
    return launches


_programs.register(_FAMILY, lambda description: described_source(description).text)
