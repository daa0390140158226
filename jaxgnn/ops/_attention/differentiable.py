"""The kernels of attention as one function with derivatives of any order: the one custom_vjp."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxgnn.graph import CSRGraph
from jaxgnn.ops._attention import composed
from jaxgnn.ops._attention.kernels import Computation
from jaxgnn.ops._graph.spmm import sums_by_rows
from jaxgnn.ops.core import dispatch
from jaxgnn.ops.core.custom_gradient import custom_vjp, set_gradient
from pallas_kernels.arguments.attention import Cotangents, Form, Operands


class Call(NamedTuple):
    """The static part of a call.

    Attributes:
      kernels: the kernels of the op.
      scores: its scores, with derivatives of any order.
      request: the implementation to run.
      form: constants.
      return_weights: whether to also return the weights.
    """

    kernels: Computation
    scores: composed.Scores
    request: dispatch.Request
    form: Form
    return_weights: bool


def run_kernels(
    call: Call, graph: CSRGraph, operands: Operands
) -> tuple[Float[Array, "rows heads dim"], Float[Array, "rows heads"], Any]:
    """The sums, the logarithms of the sums of exponentials, and the weights or None.

    Args:
      call: the static description.
      graph: without weights and scales.
      operands: arrays without batch axes.
    """
    y, lse = call.kernels.forward(call.request, graph, operands, form=call.form)
    if not call.return_weights:
        return y, lse, None
    return y, lse, call.kernels.weights(call.request, graph, operands, lse, form=call.form)


@partial(custom_vjp, nondiff_argnums=(0,))
def differentiable_kernels(
    call: Call, graph: CSRGraph, operands: Operands
) -> tuple[Float[Array, "rows heads dim"], Float[Array, "rows heads"], Any]:
    """The result of ``run_kernels``, with gradients by the kernels of the backward pass."""
    y, lse, weights = run_kernels(call, graph, operands)
    # These do not depend on the values, which may be all that jax.vmap maps.
    lse = dispatch.mapped_with(lse, y[:1, :1, 0])
    return y, lse, None if weights is None else dispatch.mapped_with(weights, y[:1, :1, 0])


def _attention_forward(call, graph, operands):
    results = differentiable_kernels(call, graph, operands)
    return results, (graph, operands, *results)


def _attention_backward(call, residuals, gradients):
    graph, operands, y, lse, weights = residuals
    dy, dlse, dweights = gradients
    # The gradient of lse by a score is the probability; that of the sums enters by delta.
    delta = jnp.sum(y * dy, axis=-1) - dlse
    if dweights is not None:
        delta = delta + _sums_of_rows(call.request, graph, weights * dweights)
    # Nothing is lost: the result was rounded to this dtype.
    dy = dy.astype(operands.summed.dtype)
    made = _gradients(call, graph, operands, Cotangents(lse, delta, dy, dweights), dlse)
    return None, made


def _sums_of_rows(request, graph, of_edges):
    """Sums numbers of edges and heads over the edges of each row, in a fixed order if requested."""
    ones = jnp.ones((graph.num_cols, of_edges.shape[1], 1), of_edges.dtype)
    with dispatch.deterministic(request.deterministic):
        sums = sums_by_rows(request, graph.with_weights(of_edges), ones)
    return sums[:, :, 0]


differentiable_kernels.defvjp(_attention_forward, _attention_backward)


@partial(custom_vjp, nondiff_argnums=(0,))
def _gradients(call, graph, operands, cotangents, dlse):
    """The gradients of the operands; ``dlse``, included in ``delta``, is for second derivatives."""
    del dlse
    return call.kernels.backward(call.request, graph, operands, cotangents, form=call.form)


def _second_derivatives(call, graph, operands, cotangents, dlse, slopes):
    """Second derivatives, by ops that have their own kernels and derivatives.

    ``lse`` and ``delta`` are functions of the other arguments. The gradients of the composed ops
    are the same function with both computed from these, so its derivative is complete.
    """
    seed = operands.seed

    def gradients(operands, dy, dlse, dweights):
        def results(operands):
            whole = operands.replace(seed=seed)
            y, lse, weights = composed.attention_by_formula(
                call.scores, call.request, graph, whole, call.form
            )
            return y, lse, None if dweights is None else weights

        made, pull_back = jax.vjp(results, operands)
        return pull_back((dy.astype(made[0].dtype), dlse, dweights))[0]

    smooth = operands.replace(seed=None)
    _, pull_back = jax.vjp(gradients, smooth, cotangents.dy, dlse, cotangents.dweights)
    doperands, ddy, ddlse, ddweights = pull_back(slopes)
    return None, doperands, Cotangents(None, None, ddy, ddweights), ddlse


set_gradient(_gradients, _second_derivatives, 1)
