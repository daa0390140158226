"""Typed calls of the kernels of attention, which have the same operands for every op.

The docstring of ``jaxgnn/ops/_attention/kernels.py`` describes what the kernels compute.
Features are passed as they are, of one dtype, but float16 as float32; other floating arrays are
passed in float32.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float

from jaxgnn._ffi._call import call, call_many, widened
from jaxgnn.graph import CSRGraph
from jaxgnn.graph.csr.operands import as_float32, structure
from pallas_kernels.arguments.attention import Cotangents, Form, Operands

TARGETS = {
    f"jaxgnn_{op}{part}": ("cpu",)
    for op in ("dot_attention", "gat_attention", "gatv2_attention")
    for part in ("", "_weights", "_rows", "_columns")
}


# Largest number of runs of rows whose gradients to the shared arrays are computed separately.
_MOST_PARTS = 256


def forward(
    op: str, graph: CSRGraph, operands: Operands, *, form: Form
) -> tuple[Float[Array, "rows heads dim"], Float[Array, "rows heads"]]:
    """The weighted sums of each row and the logarithms of its sums of exponentials, in float32."""
    operands = _widened(operands)
    shape = (graph.num_rows, operands.heads)
    results = [((*shape, operands.summed.shape[-1]), jnp.float32), (shape, jnp.float32)]
    y, lse = call_many(
        f"jaxgnn_{op}",
        results,
        *_along_rows(graph),
        *_arrays(operands),
        *_cotangents(None),
        **_constants(form),
    )
    return y, lse


def weights(
    op: str, graph: CSRGraph, operands: Operands, lse: Float[Array, "rows heads"], *, form: Form
) -> Float[Array, "edges heads"]:
    """The factor of the values of each edge slot, in float32."""
    operands = _widened(operands)
    return call(
        f"jaxgnn_{op}_weights",
        ((graph.num_edges, operands.heads), jnp.float32),
        *_along_rows(graph),
        *_arrays(operands),
        *_cotangents(Cotangents(lse, None, None)),
        **_constants(form),
    )


def backward(
    op: str, graph: CSRGraph, operands: Operands, cotangents: Cotangents, *, form: Form
) -> Operands:
    """The gradients, each of the dtype of its operand."""
    given, operands = operands, _widened(operands)
    if cotangents.dy is not None:
        cotangents = cotangents._replace(dy=widened(cotangents.dy))
    arrays = *_arrays(operands), *_cotangents(cotangents)
    of_rows = _of_rows(op, graph, operands, arrays, form)
    results = [_gradient("columns", operands.columns), _gradient("values", operands.values)]
    columns, values = call_many(
        f"jaxgnn_{op}_columns", results, *_along_columns(graph), *arrays, **_constants(form)
    )
    made = of_rows | {"columns": columns}
    if operands.values is not None:
        made["values"] = values
    return Operands(**{n: array.astype(getattr(given, n).dtype) for n, array in made.items()})


def _of_rows(
    op: str, graph: CSRGraph, operands: Operands, arrays: tuple[Array | None, ...], form: Form
) -> dict[str, Array]:
    """The kernels' gradients to arrays of receivers and edges and to shared arrays, by name."""
    parts = min(_MOST_PARTS, graph.made_plan().schedule.rows.shape[0])
    names = ("rows", "edge_logits", "edge_values", "edge_features", "edge_kernel", "attention")
    shapes = {name: getattr(operands, name) for name in names}
    results = [_gradient(name, array, parts) for name, array in shapes.items()]
    made = call_many(f"jaxgnn_{op}_rows", results, *_along_rows(graph), *arrays, **_constants(form))
    gradients = {}
    for (name, array), gradient in zip(shapes.items(), made, strict=True):
        if array is not None:
            gradients[name] = jnp.sum(gradient, axis=0) if name in _SHARED else gradient
    return gradients


_SHARED = ("edge_kernel", "attention")
_NODES = ("rows", "columns", "values")


def _gradient(name: str, array: Array | None, parts: int = 0) -> tuple[tuple[int, ...], Any]:
    """Shape and dtype of the result of a kernel for the gradient of an operand; empty for None."""
    if array is None:
        return (0,), jnp.float32
    shape = (parts, *array.shape) if name in _SHARED else array.shape
    is_feature = name in _NODES and array.ndim == 3
    return shape, array.dtype if is_feature else jnp.float32


def _along_rows(graph: CSRGraph) -> tuple[Array | None, ...]:
    """The edges in the order of their slots."""
    return (*structure(graph), None)


def _along_columns(graph: CSRGraph) -> tuple[Array | None, ...]:
    """The edges of the transposed graph, and the slot of each."""
    plan = graph.made_plan()
    schedule = plan.transposed_schedule
    slots = plan.permutation.astype(schedule.offsets.dtype)
    return schedule.rows, schedule.offsets, plan.transposed_indices, slots


def _arrays(operands: Operands) -> tuple[Array | None, ...]:
    return (
        operands.seed,
        _features(operands.rows, operands.columns.dtype),
        _features(operands.columns, operands.columns.dtype),
        operands.values,
        as_float32(operands.edge_logits),
        as_float32(operands.edge_values),
        as_float32(operands.edge_features),
        as_float32(operands.edge_kernel),
        as_float32(operands.attention),
    )


def _widened(operands: Operands) -> Operands:
    """The operands with float16 features in float32."""
    features = {name: getattr(operands, name) for name in _NODES}
    wide = {name: widened(array) for name, array in features.items() if array is not None}
    return dataclasses.replace(operands, **wide)


def _features(array: Array, dtype: Any) -> Array:
    """Features [N, H, D] in the dtype of the senders, or numbers of nodes [N, H] in float32."""
    return array.astype(dtype if array.ndim == 3 else jnp.float32)


def _cotangents(cotangents: Cotangents | None) -> tuple[Array | None, ...]:
    """The last operands of every handler, None where a pass does not read them."""
    if cotangents is None:
        return None, None, None, None
    return cotangents.lse, cotangents.delta, cotangents.dy, as_float32(cotangents.dweights)


def _constants(form: Form) -> dict[str, Any]:
    return {
        "scale": np.float32(form.scale),
        "slope": np.float32(form.slope),
        "dropped": np.uint32(form.dropped),
        "kept_scale": np.float32(form.kept_scale),
    }
