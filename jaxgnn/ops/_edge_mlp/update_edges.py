"""Normalisation, residual and sum of edges in one pass, with its gradients."""

from __future__ import annotations

from functools import partial

from jaxgnn.ops._edge_mlp import pallas
from jaxgnn.ops._edge_mlp.reference import interaction as reference
from jaxgnn.ops._edge_mlp.reference.interaction import EdgeLists, UpdateOperands
from jaxgnn.ops.core import dispatch
from jaxgnn.ops.core.custom_gradient import custom_vjp, differentiable_again

_DTYPES = ("float32", "bfloat16")

FORWARD = dispatch.Kernel(
    "interaction.update",
    {
        "xla": dispatch.xla(reference.update_edges),
        "pallas": dispatch.pallas(pallas.update_edges, dtypes=_DTYPES, limits=pallas.update_limits),
    },
    preference={"cpu": ("xla",), "cuda": ("pallas", "xla")},
)
BACKWARD = dispatch.Kernel(
    "interaction.update_backward",
    {
        "xla": dispatch.xla(reference.update_edges_backward, scatters=False),
        "pallas": dispatch.pallas(
            pallas.update_edges_backward, dtypes=_DTYPES, limits=pallas.update_limits
        ),
    },
    preference={"cpu": ("xla",), "cuda": ("pallas", "xla")},
)


@partial(custom_vjp, nondiff_argnums=(0, 1))
def update_edges(request, options, edges: EdgeLists, operands: UpdateOperands):
    """The new features of edges, [edges, out], and their sums at the receivers, [rows, out]."""
    return FORWARD(request, edges, operands, options=options)


def _forward(request, options, edges, operands):
    made = update_edges(request, options, edges, operands)
    # The gradient only needs to know that there are features of edges.
    e = None if operands.e is None else operands.e[:0]
    return made, (edges, operands._replace(e=e))


def _backward(request, options, residuals, slopes):
    edges, operands = residuals
    return None, _gradient((request, options), edges, operands, *slopes)


def _by_kernel(static, edges, operands, dedges, dsums):
    request, options = static
    return BACKWARD(request, edges, operands, dedges, dsums, options=options)


def _by_formula(static, edges, operands, dedges, dsums):
    return reference.update_edges_backward(edges, operands, dedges, dsums, options=static[1])


_gradient = differentiable_again(_by_kernel, _by_formula)
update_edges.defvjp(_forward, _backward)
