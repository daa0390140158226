"""Checks of the arguments of ``ops.hypergraph_conv`` at trace time."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np

from jaxgnn._errors import bad_input
from jaxgnn.graph import Incidence, check_incidence_shapes, is_concrete
from jaxgnn.ops._core.activations import ACTIVATIONS
from jaxgnn.ops._core.checks import check_choice, check_float
from jaxgnn.ops._dense.reference.fused_linear import PRECISIONS
from jaxgnn.ops._hypergraph.paths import Arrays, Convention

_OP = "hypergraph_conv"


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


def check_arrays(arrays: Arrays) -> None:
    """Raises ValueError unless the arrays fit the hypergraph and each other."""
    incidence = arrays.incidence
    check_rows_of(_OP, "x", arrays.x, incidence.num_nodes, "node")
    if arrays.weight is not None:
        check_weight(_OP, arrays.weight, incidence.num_hyperedges)
    heads = _check_attention(arrays)
    width = arrays.x.shape[-1]
    if arrays.kernel is not None:
        width = _check_kernel(arrays, heads)
    elif width % heads:
        raise bad_input(_OP, "x", f"of a multiple of {heads} features, one for each head", width)
    if arrays.attention is not None and arrays.attention.shape[1] * heads != 2 * width:
        expected = f"of shape ({heads}, {2 * width // heads}), twice the {width // heads} of a head"
        raise bad_input(_OP, "attention", expected, f"shape {arrays.attention.shape}")


def check_finish(activation: Any, residual: Any, shape: tuple[int, ...], dtype: Any) -> None:
    """Raises ValueError unless the activation is known and the residual has the result's shape."""
    check_choice(_OP, "activation", activation, *ACTIVATIONS)
    if residual is None:
        return
    check_float(_OP, "residual", residual, 2)
    if residual.shape != shape or residual.dtype != dtype:
        expected = f"{dtype} of shape {shape}, that of the result"
        got = f"{residual.dtype} of shape {residual.shape}"
        raise bad_input(_OP, "residual", expected, got)


def check_bias(bias: Any, width: int) -> None:
    """Raises ValueError unless there is one entry for each feature of the result."""
    if bias is None:
        return
    check_float(_OP, "bias", bias, 1)
    if bias.shape != (width,):
        expected = f"of shape ({width},), one for each feature of the result"
        raise bad_input(_OP, "bias", expected, f"shape {bias.shape}")


def check_rows_of(op: str, argument: str, array: Any, rows: int, what: str) -> None:
    """Raises ValueError unless ``array`` [..., rows, features] has a row for each ``what``."""
    check_float(op, argument, array, 2)
    if array.shape[-2] != rows:
        expected = f"of shape [..., {rows}, features], one row for each {what}"
        raise bad_input(op, argument, expected, f"shape {array.shape}")


def check_weight(op: str, weight: Any, num_hyperedges: int) -> None:
    """Raises ValueError unless each hyperedge has one number, finite if it is concrete."""
    check_float(op, "weight", weight, 1, may_be_empty=True)
    if weight.shape != (num_hyperedges,):
        expected = f"of shape ({num_hyperedges},), one for each hyperedge"
        raise bad_input(op, "weight", expected, f"shape {weight.shape}")
    if is_concrete(weight):
        strange = np.flatnonzero(~np.isfinite(np.asarray(weight).astype(np.float64)))
        if strange.size:
            at = int(strange[0])
            expected = f"finite, as each of {num_hyperedges} weights"
            raise bad_input(op, f"weight[{at}]", expected, float(weight[at]))


def check_convention(convention: Convention, path: Any) -> None:
    """Raises ValueError unless every option is one of its choices."""
    check_choice(_OP, "weighting", convention.weighting, "paper", "pyg")
    check_choice(_OP, "normalization", convention.normalization, "mean", "sym")
    check_choice(_OP, "attention_mode", convention.attention_mode, "node", "edge")
    check_choice(_OP, "concat", convention.concat, True, False)
    check_choice(_OP, "path", path, "auto", "sums", "mixing")
    check_choice(_OP, "precision", convention.precision, *PRECISIONS)
    slope = convention.negative_slope
    if isinstance(slope, bool) or not isinstance(slope, int | float):
        raise bad_input(_OP, "negative_slope", "a number", repr(slope))


def check_dropout(dropout: Any, attention: Any) -> None:
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
    check_rows_of(_OP, "attributes", attributes, hyperedges, "hyperedge")
    fits = attributes.shape[-1] == x.shape[-1] and attributes.dtype == x.dtype
    if not fits or attributes.shape[:-2] not in ((), x.shape[:-2]):
        shape = f"[{hyperedges}, {x.shape[-1]}]"
        expected = f"{x.dtype}{shape}, or with the leading axes of x, {x.shape[:-2]}"
        got = f"{attributes.dtype}{list(attributes.shape)}"
        raise bad_input(_OP, "attributes", expected, got)
    return attention.shape[0]
