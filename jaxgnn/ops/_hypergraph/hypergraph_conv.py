"""Convolution and attention over a hypergraph."""

from __future__ import annotations

from functools import partial
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxgnn._errors import bad_input
from jaxgnn.graph import Incidence, check_incidence_shapes, is_concrete
from jaxgnn.ops._dense.kernels import product_tolerance
from jaxgnn.ops._dense.reference.fused_linear import behind_barrier
from jaxgnn.ops._hypergraph import pallas
from jaxgnn.ops._hypergraph.paths import (
    MIXING_LIMITS,
    Arrays,
    Convention,
    attended_mixing,
    attended_sparse_sums,
    mixing_matrix,
    sparse_sums,
)
from jaxgnn.ops._hypergraph.reference import hypergraph_conv as reference
from jaxgnn.ops._hypergraph.reference.hypergraph_conv import AttentionMode as AttentionMode
from jaxgnn.ops._hypergraph.reference.hypergraph_conv import Weighting as Weighting
from jaxgnn.ops.core import dispatch, verify
from jaxgnn.ops.core.activations import ACTIVATIONS
from jaxgnn.ops.core.activations import Name as Activation
from jaxgnn.ops.core.checks import check_choice, check_float, from_numpy
from jaxgnn.ops.core.custom_gradient import custom_vjp
from jaxgnn.ops.core.dtypes import accumulation_dtype
from jaxgnn.ops.core.precision import PRECISIONS, Precision

_OP = "hypergraph_conv"

HypergraphPath = Literal["auto", "sums", "mixing"]
"""``"sums"`` runs two ``spmm``, ``"mixing"`` one small matrix; ``"auto"`` depends on the nodes."""

HYPERGRAPH_CONV = dispatch.Kernel(
    "hypergraph_conv", {"xla": dispatch.xla(reference.hypergraph_conv)}
)
MIX = pallas.table("hypergraph_conv.mix", reference.mix, pallas.mix)
MIX_BACKWARD = pallas.table(
    "hypergraph_conv.mix_backward", reference.mix_backward, pallas.mix_backward
)
ATTENDED_MIXING = dispatch.Kernel(
    "hypergraph_conv.mix_attended", {"xla": dispatch.xla(attended_mixing, scatters=False)}
)


def hypergraph_conv(
    x: Float[Array, "*batch nodes in"],
    incidence: Incidence,
    weight: Float[Array, " hyperedges"] | None = None,
    attributes: Float[Array, "*batch hyperedges in"] | None = None,
    *,
    kernel: Float[Array, "in width"] | None = None,
    bias: Float[Array, " out"] | None = None,
    attention: Float[Array, "heads pair"] | None = None,
    weighting: Weighting = "paper",
    normalization: Literal["mean", "sym"] = "mean",
    attention_mode: AttentionMode = "node",
    concat: bool = True,
    negative_slope: float = 0.2,
    dropout: float = 0.0,
    key: jax.Array | None = None,
    activation: Activation | None = None,
    residual: Float[Array, "*batch nodes out"] | None = None,
    precision: Precision | None = None,
    path: HypergraphPath = "auto",
    implementation: dispatch.Name | None = None,
) -> Float[Array, "*batch nodes out"]:
    """Nodes to hyperedges and back: ``D⁻¹ H W B⁻¹ Hᵀ x Θ + b`` (https://arxiv.org/abs/1901.08150).

    Then ``residual + activation(...)`` of it, where these are given.

    H is the incidence matrix, W the diagonal of the hyperedges' weights, ``B_e = Σ_v H_ve`` the
    hyperedges' sizes, ``D_v = Σ_e W_e H_ve`` the nodes' degrees. With one weight for all hyperedges
    W cancels. A repeated incidence counts as often as it occurs. A hyperedge without nodes
    contributes nothing, a node of degree zero gets b.

    With ``attention`` a, every incidence has its own coefficient in both H; D and B do not change.
    It is the softmax of ``leaky_relu(a · [x_v Θ; attributes_e Θ])`` over the
    nodes of a hyperedge or over the hyperedges of a node, by heads.

    Differentiable in every floating array. Leading axes of ``x``, and ``jax.vmap`` over it, share
    the hypergraph. There are two methods. ``"sums"`` runs two ``spmm``. ``"mixing"`` computes the
    matrix ``D⁻¹ H W B⁻¹ Hᵀ`` once and multiplies the narrower of ``x`` and ``x Θ`` by it. It keeps
    only these two for the backward pass. With attention there is a matrix for each token and head.

    On a GPU prefer leading axes to ``jax.vmap`` over many tokens: under ``vmap`` the gradient to Θ
    is stored once for each token before it is summed.

    Args:
      x: features of the nodes, any leading axes.
      incidence: the hypergraph: pairs of a node and a hyperedge that contains it.
      weight: W, one number for each hyperedge; None for ones. Its dtype may differ from ``x``.
        Negative weights are allowed, but may give degrees close to zero.
      attributes: features of the hyperedges, for attention; with the leading axes of ``x`` or
        without.
      kernel: Θ, of the dtype of ``x``, the columns of one head after another. None for the
        identity.
      bias: b, one number for each feature of the result; None for zeros.
      attention: a for each head, the part for nodes before the part for hyperedges, so that it is
        twice as wide as a head. None for no attention.
      weighting: ``"paper"``, or ``"pyg"`` for W in D only, as in torch-geometric.
      normalization: ``"mean"``, or ``"sym"`` for ``D^-½ H W B⁻¹ Hᵀ D^-½``, the formula of HGNN
        (https://arxiv.org/abs/1809.09401). ``"sym"`` gives nodes of negative degree zero.
      attention_mode: softmax over the nodes of each hyperedge, ``"node"``, or over the hyperedges
        of each node, ``"edge"``.
      concat: whether heads are concatenated; False for their mean.
      negative_slope: slope of leaky_relu for negative numbers.
      dropout: probability of dropping an incidence from attention, after the softmax; the others
        are scaled up. Nothing is dropped without a ``key``.
      key: random key, for training.
      activation: function applied to the sums: ``"relu"``, ``"gelu"`` (by tanh), ``"gelu_exact"``
        (by erf), ``"silu"``, ``"mish"``, ``"squared_relu"``, ``"tanh"``, ``"sigmoid"`` or
        None.
      residual: added after the activation, of the shape and dtype of the result. None adds nothing.
      precision: precision of float32 products with Θ: None for JAX's setting, by default TF32 on
        recent NVIDIA GPUs and float32 on CPU; ``"highest"`` for float32; ``"tf32"`` or ``"bf16x3"``
        (three products of bfloat16 parts), which on CPU are float32 as well.
      path: ``"sums"``, ``"mixing"``, or ``"auto"`` for the second where the hypergraph has at most
        128 nodes.
      implementation: ``"xla"`` for the reference, which uses neither path; ``"ffi"`` or
        ``"pallas"`` for these kernels of ``spmm``; with ``path="mixing"`` ``"pallas"`` supports up
        to 8 nodes of a width that is a multiple of 32; None for the one expected to be fastest.

    Returns:
      Features of the nodes, of the dtype of ``x``.

    Raises:
      ValueError: if shapes or dtypes do not match, an option is not as above, attention has no
        attributes, or concrete ids are out of range or weights not finite.
      NotImplementedError: if the named implementation can not run these arguments here.

    Example:
      >>> import jax.numpy as jnp
      >>> from jaxgnn import Incidence, ops
      >>> hypergraph = Incidence.from_hyperedges([{0, 1}, {1, 2}], num_nodes=3)
      >>> x, weight = jnp.array([[4.0], [8.0], [0.0]]), jnp.array([1.0, 3.0])
      >>> ops.hypergraph_conv(x, hypergraph, weight).tolist()
      [[6.0], [4.5], [4.0]]
      >>> ops.hypergraph_conv(x, hypergraph, weight, weighting="pyg").tolist()
      [[6.0], [2.5], [1.3333333730697632]]
    """
    incidence = check_incidence(_OP, incidence)
    x, weight, attributes, kernel, bias, attention, residual = from_numpy(
        x, weight, attributes, kernel, bias, attention, residual
    )
    arrays = Arrays(x, incidence, weight, attributes, kernel, bias, attention, None, residual)
    _check_arrays(arrays)
    convention = Convention(
        weighting, normalization, attention_mode, concat, negative_slope, activation, precision
    )
    _check_convention(convention, path)
    _check_dropout(dropout, attention)
    width = _width(arrays, concat)
    if bias is not None:
        _check_shape("bias", bias, (width,), "one for each feature of the result")
    if residual is not None:
        shape = *x.shape[:-1], width
        _check_shape("residual", residual, shape, "that of the result", x.dtype)
    request = dispatch.resolve(_OP, implementation)
    if incidence.num_hyperedges == 0:
        arrays = _with_an_empty_hyperedge(arrays)
    if dropout and key is not None:
        arrays = arrays._replace(dropped=_dropout_factors(arrays, dropout, key))
    arrays = Arrays(*dispatch.match_varying(*arrays))
    if request.name == "xla":
        return HYPERGRAPH_CONV(request, *arrays, **convention._asdict())
    if path == "auto":
        # Implementations given by name are kernels of the sums.
        small = MIXING_LIMITS.admit(incidence) and request.name is None
        path = "mixing" if small else "sums"
    return _PATHS[path](request, arrays, convention)


def _by_sums(request, arrays: Arrays, convention: Convention):
    through = sparse_sums if arrays.attention is None else attended_sparse_sums
    return through(arrays, convention, request.name)


def _by_mixing(request, arrays: Arrays, convention: Convention):
    run = partial(_mixed, request, convention)
    if request.verify.mode != "off":  # spmm checks itself, the mixing does not
        name, options = (
            "hypergraph_conv[mixing]",
            convention._replace(precision="highest")._asdict(),
        )
        exact = lambda a: reference.hypergraph_conv(*a, **options)  # noqa: E731
        known = lambda a: product_tolerance(a.x, convention.precision)  # noqa: E731
        run = verify.contained(name, verify.checked(name, run, exact, known), exact)
    return run(arrays)


def _mixed(request, convention: Convention, arrays: Arrays):
    x, incidence, weight = arrays.x, arrays.incidence, arrays.weight
    if arrays.attention is not None:
        return ATTENDED_MIXING(request, arrays, convention=convention)
    matrix = mixing_matrix(incidence, weight, convention, accumulation_dtype(x.dtype))
    shared = matrix, arrays.kernel, arrays.bias
    return _mix(request, convention, x, *shared, arrays.residual)


_PATHS = {"sums": _by_sums, "mixing": _by_mixing}


@partial(custom_vjp, nondiff_argnums=(0, 1))
def _mix(request, convention: Convention, x, matrix, kernel, bias, residual):
    return _mix_forward(request, convention, x, matrix, kernel, bias, residual)[0]


def _mix_forward(request, convention: Convention, x, matrix, kernel, bias, residual):
    activation, kept = convention.activation, (matrix, kernel, bias)
    if kernel is None:
        y = MIX(request, x, matrix, bias, residual, activation=activation)
        return y, (x, None, *kept)
    if _mixes_first(x, kernel):
        y = _behind_mixing(request, convention, x, *kept)[1]
        return reference.finish(y, activation, residual).astype(x.dtype), (x, None, *kept)
    # Mixes the narrower of x and x Θ. If both are as wide, mixes x Θ: then one pass computes that,
    # the bias, the activation and the residual.
    z = reference.project(x, kernel, 1, convention.precision)[..., 0, :].astype(x.dtype)
    return MIX(request, z, matrix, bias, residual, activation=activation), (x, z, *kept)


def _mixes_first(x, kernel) -> bool:
    """Whether rows are mixed before the product: they are narrower then, or there is one token."""
    return kernel.shape[1] > kernel.shape[0] or x.ndim == 2


def _behind_mixing(request, convention: Convention, x, matrix, kernel, bias):
    """``M x``, rounded as an operand of the product, and ``M x Θ + b``."""
    mixed = MIX(request, x, matrix, None, None, activation=None)
    y = reference.project(mixed, kernel, 1, convention.precision)[..., 0, :]
    return mixed, y if bias is None else y + bias.astype(y.dtype)


def _mix_backward(request, convention: Convention, residuals, dy):
    x, z, matrix, kernel, bias = residuals
    options = {"activation": convention.activation}
    if kernel is None:
        dx, dmatrix, dbias = MIX_BACKWARD(request, x, matrix, bias, dy, **options)
        return dx, dmatrix, None, dbias, dy
    if z is None:
        return *_mixed_first_backward(request, convention, x, matrix, kernel, bias, dy), dy
    dz, dmatrix, dbias = MIX_BACKWARD(request, z, matrix, bias, dy, **options)
    dx, dkernel = reference.project_backward(x, kernel, dz, convention.precision)
    return dx, dmatrix, dkernel, dbias, dy


def _mixed_first_backward(request, convention: Convention, x, matrix, kernel, bias, dy):
    """Gradients to the arrays; mixes ``x`` again instead of keeping the result."""
    activation, da = convention.activation, dy
    if activation is not None:
        x, matrix, kernel, bias, dy = behind_barrier(x, matrix, kernel, bias, dy)
    mixed, y = _behind_mixing(request, convention, x, matrix, kernel, bias)
    if activation is not None:
        da = reference.pull_back(y, activation, dy)
    dbias = reference.bias_gradient(bias, da)
    dmixed, dkernel = reference.project_backward(
        mixed, kernel, da.astype(x.dtype), convention.precision
    )
    dx, dmatrix, _ = MIX_BACKWARD(request, x, matrix, None, dmixed, activation=None)
    return dx, dmatrix, dkernel, dbias


_mix.defvjp(_mix_forward, _mix_backward)


def _width(arrays: Arrays, concat: bool) -> int:
    """Features of the result."""
    width = (arrays.x if arrays.kernel is None else arrays.kernel).shape[-1]
    return width if concat or arrays.attention is None else width // arrays.attention.shape[0]


def _dropout_factors(arrays: Arrays, dropout: float, key: jax.Array) -> Array:
    """Zero for dropped incidences, ``1 / (1 - dropout)`` for others, by token and head."""
    heads = 1 if arrays.attention is None else arrays.attention.shape[0]
    shape = (*arrays.x.shape[:-2], arrays.incidence.num_incidences, heads)
    # The probability has a dtype, so that a key drops the same incidences under every precision.
    kept = jax.random.bernoulli(key, jnp.float32(1 - dropout), shape)
    return kept.astype(accumulation_dtype(arrays.x.dtype)) / (1 - dropout)


def _with_an_empty_hyperedge(arrays: Arrays) -> Arrays:
    """Adds an empty hyperedge for kernels that need at least one."""
    weight, attributes = arrays.weight, arrays.attributes
    if attributes is not None:
        attributes = jnp.zeros((*attributes.shape[:-2], 1, attributes.shape[-1]), attributes.dtype)
    return arrays._replace(
        incidence=arrays.incidence.padded(num_hyperedges=1),
        weight=None if weight is None else jnp.ones(1, weight.dtype),
        attributes=attributes,
    )


def check_incidence(op: str, incidence: Any) -> Incidence:
    """The hypergraph, with its plan if it is concrete.

    Raises:
      ValueError: unless it is an Incidence of valid shapes with at least one node, and if it is
        concrete, with ids in range.
    """
    if not isinstance(incidence, Incidence):
        raise bad_input(op, "incidence", "a jaxgnn.Incidence", type(incidence).__name__)
    check_incidence_shapes(op, incidence)
    if incidence.num_nodes == 0:
        raise bad_input(op, "incidence", "of at least one node", f"shape {incidence.shape}")
    ids = incidence.node_ids, incidence.hyperedge_ids
    return incidence.prepared() if is_concrete(*ids) else incidence


def _check_arrays(arrays: Arrays) -> None:
    """Raises ValueError unless the arrays fit the hypergraph and each other."""
    incidence = arrays.incidence
    _check_rows_of("x", arrays.x, incidence.num_nodes, "node")
    if arrays.weight is not None:
        _check_weight(arrays.weight, incidence.num_hyperedges)
    heads = _check_attention(arrays)
    width = arrays.x.shape[-1]
    if arrays.kernel is not None:
        width = _check_kernel(arrays, heads)
    elif width % heads:
        raise bad_input(_OP, "x", f"of a multiple of {heads} features, one for each head", width)
    if arrays.attention is not None and arrays.attention.shape[1] * heads != 2 * width:
        expected = f"of shape ({heads}, {2 * width // heads}), twice the {width // heads} of a head"
        raise bad_input(_OP, "attention", expected, f"shape {arrays.attention.shape}")


def _check_shape(
    argument: str, array: Any, shape: tuple[int, ...], what: str, dtype: Any = None
) -> None:
    """Raises ValueError unless ``array`` is floating, and of this shape and dtype."""
    check_float(_OP, argument, array, min(2, len(shape)), may_be_empty=argument == "weight")
    if array.shape != shape or dtype not in (None, array.dtype):
        expected, got = f"of shape {shape}, {what}", f"shape {array.shape}"
        if dtype is not None:
            expected, got = f"{dtype} {expected}", f"{array.dtype} of {got}"
        raise bad_input(_OP, argument, expected, got)


def _check_rows_of(argument: str, array: Any, rows: int, what: str) -> None:
    """Raises ValueError unless ``array`` [..., rows, features] has a row for each ``what``."""
    check_float(_OP, argument, array, 2)
    if array.shape[-2] != rows:
        expected = f"of shape [..., {rows}, features], one row for each {what}"
        raise bad_input(_OP, argument, expected, f"shape {array.shape}")


def _check_weight(weight: Any, num_hyperedges: int) -> None:
    """Raises ValueError unless each hyperedge has one number, finite if it is concrete."""
    _check_shape("weight", weight, (num_hyperedges,), "one for each hyperedge")
    if is_concrete(weight):
        strange = np.flatnonzero(~np.isfinite(np.asarray(weight).astype(np.float64)))
        if strange.size:
            at = int(strange[0])
            expected = f"finite, as each of {num_hyperedges} weights"
            raise bad_input(_OP, f"weight[{at}]", expected, float(weight[at]))


def _check_convention(convention: Convention, path: Any) -> None:
    """Raises ValueError unless every option is one of its choices."""
    check_choice(_OP, "weighting", convention.weighting, "paper", "pyg")
    check_choice(_OP, "normalization", convention.normalization, "mean", "sym")
    check_choice(_OP, "attention_mode", convention.attention_mode, "node", "edge")
    check_choice(_OP, "concat", convention.concat, True, False)
    check_choice(_OP, "path", path, "auto", "sums", "mixing")
    check_choice(_OP, "precision", convention.precision, *PRECISIONS)
    check_choice(_OP, "activation", convention.activation, *ACTIVATIONS)
    slope = convention.negative_slope
    if isinstance(slope, bool) or not isinstance(slope, int | float):
        raise bad_input(_OP, "negative_slope", "a number", repr(slope))


def _check_dropout(dropout: Any, attention: Any) -> None:
    """Raises ValueError unless ``dropout`` is a probability below one, and 0 without attention."""
    if isinstance(dropout, bool) or not isinstance(dropout, int | float) or not 0 <= dropout < 1:
        raise bad_input(_OP, "dropout", "in [0, 1)", repr(dropout))
    if dropout and attention is None:
        raise bad_input(_OP, "dropout", "0 without attention, which it is of", dropout)


def _check_kernel(arrays: Arrays, heads: int) -> int:
    kernel, x = arrays.kernel, arrays.x
    check_float(_OP, "kernel", kernel, 2)
    assert kernel is not None
    if kernel.ndim != 2 or kernel.shape[0] != x.shape[-1] or kernel.dtype != x.dtype:
        expected = f"{x.dtype} of shape ({x.shape[-1]}, features), behind x of shape {x.shape}"
        raise bad_input(_OP, "kernel", expected, f"{kernel.dtype} of shape {kernel.shape}")
    if kernel.shape[1] % heads:
        expected = f"of a multiple of {heads} columns, one for each head"
        raise bad_input(_OP, "kernel", expected, f"shape {kernel.shape}")
    return kernel.shape[1]


def _check_attention(arrays: Arrays) -> int:
    """The number of heads; raises unless attention and attributes are both given or both None."""
    attention, attributes, x = arrays.attention, arrays.attributes, arrays.x
    hyperedges = arrays.incidence.num_hyperedges
    if attention is None:
        if attributes is not None:
            expected = f"None without attention, which alone reads those of {hyperedges} hyperedges"
            raise bad_input(_OP, "attributes", expected, f"shape {jnp.shape(attributes)}")
        return 1
    check_float(_OP, "attention", attention, 2)
    if attention.ndim != 2 or not attention.shape[0]:
        expected = "of shape (heads, features), at least one head"
        raise bad_input(_OP, "attention", expected, f"shape {attention.shape}")
    if attributes is None:
        expected = f"given with attention, of shape ({hyperedges}, {x.shape[-1]})"
        raise bad_input(_OP, "attributes", expected, None)
    _check_rows_of("attributes", attributes, hyperedges, "hyperedge")
    fits = attributes.shape[-1] == x.shape[-1] and attributes.dtype == x.dtype
    if not fits or attributes.shape[:-2] not in ((), x.shape[:-2]):
        shape = f"[{hyperedges}, {x.shape[-1]}]"
        expected = f"{x.dtype}{shape}, or with the leading axes of x, {x.shape[:-2]}"
        got = f"{attributes.dtype}{list(attributes.shape)}"
        raise bad_input(_OP, "attributes", expected, got)
    return attention.shape[0]
