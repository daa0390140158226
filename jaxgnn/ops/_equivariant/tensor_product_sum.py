"""Equivariant convolution: sums of tensor products of neighbours and spherical harmonics."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple

from jaxtyping import Array, Float

from jaxgnn._errors import bad_input
from jaxgnn.equivariant import Irreps, TensorProduct
from jaxgnn.equivariant.radial_layer import Products, RadialLayer
from jaxgnn.graph import CSRGraph, edge_presence
from jaxgnn.ops._equivariant import derivatives
from jaxgnn.ops._equivariant.kernels import BASIS_PRODUCTS as BASIS_PRODUCTS
from jaxgnn.ops._equivariant.kernels import COLUMNS_TANGENT as COLUMNS_TANGENT
from jaxgnn.ops._equivariant.kernels import HARMONIC_PRODUCTS as HARMONIC_PRODUCTS  # jaxgnn info
from jaxgnn.ops._equivariant.kernels import KERNEL_PRODUCTS as KERNEL_PRODUCTS
from jaxgnn.ops._equivariant.kernels import SUM as SUM
from jaxgnn.ops._equivariant.kernels import SUM_AT_COLUMNS as SUM_AT_COLUMNS
from jaxgnn.ops._equivariant.kernels import SUM_TANGENT as SUM_TANGENT
from jaxgnn.ops._equivariant.kernels import WEIGHT_PRODUCTS as WEIGHT_PRODUCTS
from jaxgnn.ops._equivariant.kernels import WEIGHTS_TANGENT as WEIGHTS_TANGENT
from jaxgnn.ops._equivariant.layer_products import weights_of_layer
from jaxgnn.ops._equivariant.reference import tensor_product_sum as reference
from jaxgnn.ops._graph.calls import graph_and_senders
from jaxgnn.ops.core import dispatch
from jaxgnn.ops.core.checks import check_choice, check_float, check_rows, from_numpy
from jaxgnn.ops.core.precision import PRECISIONS, Precision, precision_on_gpu

_OP = "tensor_product_sum"
_MOST_WEIGHT_BYTES = 2**31  # that are stored, without a request
_INSTEAD_OF_WEIGHTS = "multiply the harmonics by them"


def tensor_product_sum(
    graph: CSRGraph,
    x: Float[Array, "*batch cols in"],
    harmonics: Float[Array, "*#batch edges sh"],
    weights: Float[Array, "*#batch edges weights"] | None = None,
    *,
    irreps_in: Irreps | str,
    irreps_sh: Irreps | str,
    irreps_out: Irreps | str,
    instructions: Iterable[Sequence[int]] | None = None,
    basis: Float[Array, "*#batch edges features"] | None = None,
    kernel: Float[Array, "features weights"] | None = None,
    precision: Precision | None = "highest",
    recompute_weights: bool | None = None,
    implementation: dispatch.Name | None = None,
) -> Float[Array, "*batch rows out"]:
    """Sums tensor products of neighbours with the spherical harmonics of their edges.

    ``y_i = Σ_j Σ_paths w_ij[path] C_path (x_j ⊗ Y_ij)``: the convolution of Tensor Field Networks
    (https://arxiv.org/abs/1802.08219), NequIP (https://arxiv.org/abs/2101.03164) and MACE. A path
    couples an entry of ``irreps_in`` and one of ``irreps_sh`` to one of ``irreps_out``, channel by
    channel (e3nn's ``uvu``), and has a weight for each channel and edge. Order, signs and component
    normalisation are those of e3nn: see ``jaxgnn.equivariant.TensorProduct``.

    The weights are either given, or made by the last linear layer of a radial network:
    ``w_ij = basis_ij · kernel``. Multiply the basis by a smooth cutoff for weights that have one.
    Kernels of a GPU can make them on tensor cores where they are used, so that no array of all
    weights is in memory: see ``recompute_weights``.

    Sums are accumulated in float32 (float64 for float64 input) and rounded once. Rows without edges
    are zero. Padding slots are ignored. Leading axes of ``x`` share the graph.

    Equivariant: if the vectors of all edges and ``x`` are rotated or reflected, so is the result.
    Differentiable in all arrays, any number of times, and in forward mode.

    Args:
      graph: rows are receivers, columns are senders. Its weights and scales are refused.
      x: features of the senders, of ``irreps_in``.
      harmonics: spherical harmonics of each edge slot, as ``equivariant.spherical_harmonics``
        computes, in the graph's edge order, with the leading axes of ``x`` or without any.
      weights: weights of each edge slot, path after path in the order of ``instructions``, with a
        number for each channel; with the leading axes of ``x`` or without any.
      irreps_in: irreps of ``x``, such as ``"128x0e+64x1o"``.
      irreps_sh: irreps of the harmonics, of one channel each.
      irreps_out: irreps of the result.
      instructions: the paths: triples of indices of entries of these three. None for all that the
        irreps allow, between entries of equal multiplicity, ordered by the triples.
        ``equivariant.separate_paths`` makes those of NequIP, with ``irreps_out``.
      basis: features of each edge slot, instead of ``weights``.
      kernel: the map from these features to weights.
      precision: how float32 numbers of basis and kernel are multiplied: ``"highest"``,
        ``"bf16x3"``, ``"tf32"``, or None for the setting of JAX; at least so precisely.
      recompute_weights: whether kernels of a GPU make the weights of basis and kernel wherever
        they are used, in all derivatives too, which needs about a third of the memory and takes up
        to twice as long. None if all weights would take more than 2 GiB. Ignored on a CPU, for
        float64, and where the kernel does not fit shared memory: above 200 features on an H100.
      implementation: ``"xla"``, ``"ffi"``, or None for the one measured to be fastest. On a GPU
        ``"ffi"`` generates CUDA kernels for these irreps, which NVIDIA's NVRTC compiles on first
        use, for float32 and bfloat16.

    Returns:
      Features of the receivers, of ``irreps_out`` and of the dtype of ``x``.

    Raises:
      ValueError: if irreps are not written so or do not match the arrays; on an instruction that
        the irreps do not allow, or an entry of ``irreps_out`` without any; if the graph has weights
        or scales, or not exactly one of ``weights`` and the pair ``basis`` and ``kernel`` is given.
      NotImplementedError: if the named implementation can not run these arguments here.

    Example:
      >>> import jax.numpy as jnp
      >>> from jaxgnn import ops
      >>> from jaxgnn.equivariant import spherical_harmonics
      >>> from jaxgnn.graph import CSRGraph
      >>> graph = CSRGraph.from_edges(senders=[0, 1], receivers=[1, 0], num_nodes=2)
      >>> vectors = jnp.array([[0.0, 0.0, -2.0], [0.0, 0.0, 2.0]])
      >>> harmonics = spherical_harmonics("0e+1o", vectors)
      >>> x, weights = jnp.array([[1.0], [3.0]]), jnp.ones((2, 2))
      >>> irreps = {"irreps_in": "1x0e", "irreps_sh": "0e+1o", "irreps_out": "1x0e+1x1o"}
      >>> print(ops.tensor_product_sum(graph, x, harmonics, weights, **irreps).round(2))
      [[ 3.    0.    0.   -5.2 ]
       [ 1.    0.    0.    1.73]]
    """
    product = TensorProduct.of(irreps_in, irreps_sh, irreps_out, instructions, where=_OP)
    presence = edge_presence(graph)
    harmonics, weights, basis, kernel = from_numpy(harmonics, weights, basis, kernel)
    graph, x = graph_and_senders(_OP, graph, x, instead_of_weights=_INSTEAD_OF_WEIGHTS)
    check_rows(_OP, "x", x, graph.num_cols, "column")
    _check_width("x", x, product.irreps_in.dim, f"irreps_in {product.irreps_in}")
    of_edges = {"harmonics": harmonics} | _radial(weights, basis, kernel)
    batch = x.shape[:-2]
    for name, array in of_edges.items():
        _check_edges(name, array, graph.num_edges, batch)
    _check_width("harmonics", harmonics, product.irreps_sh.dim, f"irreps_sh {product.irreps_sh}")
    _check_radial(product, weights, basis, kernel)
    in_axes = {name: 0 if array.ndim > 2 else None for name, array in of_edges.items()}
    shared = {"kernel": kernel, "presence": presence}
    arrays = of_edges | {name: array for name, array in shared.items() if array is not None}
    in_axes |= dict.fromkeys(arrays.keys() - of_edges.keys())
    check_choice(_OP, "precision", precision, *PRECISIONS)
    check_choice(_OP, "recompute_weights", recompute_weights, True, False, None)
    if recompute_weights is not None and weights is not None:
        raise bad_input(_OP, "recompute_weights", "None where weights are given", recompute_weights)
    layer = _Layer(_products(precision), recompute_weights)
    run = partial(_run, dispatch.resolve(_OP, implementation), product, layer)
    return dispatch.over_leading_axes(run, len(batch), graph, x, arrays, in_axes=(0, in_axes))


def _radial(weights: Any, basis: Any, kernel: Any) -> dict[str, Any]:
    """The array of edges that weights are, or are made of, by its name.

    Raises:
      ValueError: unless weights are given, or both arrays that make them are.
    """
    for name, array in (("basis", basis), ("kernel", kernel)):
        if weights is None and array is None:
            raise bad_input(_OP, name, "given, as weights are not", None)
        if weights is not None and array is not None:
            raise bad_input(_OP, name, "None where weights are given", type(array).__name__)
    return {"basis": basis} if weights is None else {"weights": weights}


def _check_edges(name: str, array: Any, edges: Any, batch: tuple[Any, ...]) -> None:
    """Raises ValueError unless a floating array has a row for each edge slot."""
    check_float(_OP, name, array, 2)
    if array.shape[-2] != edges or array.shape[:-2] not in ((), batch):
        expected = f"of shape [{edges}, features], one row for each edge slot"
        with_batch = ", with or without the leading axes of x" if batch else ""
        raise bad_input(_OP, name, expected + with_batch, f"shape {array.shape}")


def _check_radial(product: TensorProduct, weights: Any, basis: Any, kernel: Any) -> None:
    """Raises ValueError unless the weights, or the kernel of them, are those of the paths."""
    paths = f"the channels of the {len(product.paths)} paths"
    if weights is not None:
        _check_width("weights", weights, product.num_weights, paths)
        return
    check_float(_OP, "kernel", kernel, 2)
    expected = basis.shape[-1], product.num_weights
    if kernel.shape != expected:
        what = f"of shape {list(expected)}, for the features of basis and {paths}"
        raise bad_input(_OP, "kernel", what, f"shape {kernel.shape}")


def _check_width(name: str, array: Any, width: int, what: str) -> None:
    """Raises ValueError unless the last axis of an array has the size that irreps give it."""
    if array.shape[-1] != width:
        expected = f"of shape [..., {width}], for {what}"
        raise bad_input(_OP, name, expected, f"shape {array.shape}")


class _Layer(NamedTuple):
    """The options of the layer that makes weights of a basis and a kernel."""

    precision: Products
    recompute: bool | None


def _products(precision: Precision | None) -> Products:
    """The precision of products in the kernels, at least the one that is asked for."""
    return "tf32" if precision_on_gpu(precision) == "tf32" else "highest"


def _run(
    request: dispatch.Request,
    product: TensorProduct,
    layer: _Layer,
    graph: CSRGraph,
    x: Array,
    arrays: dict[str, Array],
) -> Array:
    """The sum without leading axes."""
    harmonics, presence = arrays["harmonics"], arrays.get("presence")
    if presence is not None:
        # Padding may contain NaN, which no product may meet, as the presence has a gradient.
        harmonics = reference.real(graph, harmonics) * presence.astype(harmonics.dtype)[:, None]
    if "weights" in arrays:
        weights = arrays["weights"]
    else:
        weights = RadialLayer(arrays["basis"], arrays["kernel"], layer.precision)
    if request.name == "xla":
        return SUM(request, graph, x, harmonics, weights, product=product)
    if isinstance(weights, RadialLayer):
        arguments = request, product, graph, x, harmonics, weights
        if not _recomputes(layer.recompute, *arguments):
            weights = weights_of_layer(graph, weights)
    return derivatives.sum_at_rows(request, product, graph, x, harmonics, weights)


def _recomputes(
    recompute: bool | None,
    request: dispatch.Request,
    product: TensorProduct,
    graph: CSRGraph,
    x: Array,
    harmonics: Array,
    layer: RadialLayer,
) -> bool:
    """Whether the kernels that run here make weights where they are used."""
    if recompute is None:
        size = 4 * graph.num_edges * product.num_weights
        recompute = isinstance(size, int) and size > _MOST_WEIGHT_BYTES  # it may be symbolic
    is_possible = request.name in (None, "ffi") and dispatch.current_platform() == "cuda"
    if not recompute or not is_possible:
        return False
    with request.settings():
        return SUM.why_not("ffi", "cuda", graph, x, harmonics, layer, product=product) is None
