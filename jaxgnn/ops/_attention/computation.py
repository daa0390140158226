"""The common part of all attention over neighbours: tables of kernels, the one custom_vjp.

An op is a case of ``Computation``: three kernels, of which an implementation has all or none. Their
arguments are the graph, the arrays of ``Operands`` without batch axes, and the static option
``form``, a ``Form``. Sums are in float32 (float64 for float64 input) for all dtypes of operands.

``forward(graph, operands) -> (y, lse)``
  The sums [N, H, Dv] and the logarithms of the sums of exponentials [N, H], both in the
  accumulation dtype. ``lse`` is -inf, and ``y`` zero, for rows that attend to nothing: those
  without edges, and those whose scores are all -inf. The scores are not kept: besides the operands,
  the backward pass gets only ``lse`` and ``y``.

``weights(graph, operands, lse) -> [E, H]``
  The factors of the values, dropout included, in the accumulation dtype; zero in padding slots.
  Only called if the caller requested weights.

``backward(graph, operands, cotangents) -> Operands``
  The gradients, each in the field and of the dtype of its operand. A kernel recomputes the scores,
  and from them ``p = exp(s - lse)`` and ``ds = p (m (<dy_i, v_j + u_ij> + dweights) -
  delta)``, where ``m`` is dropout's factor. It takes two passes. One is along the rows of the
  graph, for the arrays of receivers and edges. The other is along the rows of the transposed graph,
  so that a sender's gradient is a sum over its edges in order, without atomic additions. Edge ``e``
  of the transposed graph is slot ``permutation[e]`` of the graph; the slot is its index in the
  arrays of edges, and in the draws of dropout. Arrays that all edges share get a sum over all
  edges: a kernel writes partial sums of runs of rows, and adds them up in order, so that results
  are reproducible.

``delta`` is computed here from ``y`` and ``dy``.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxgnn.graph import CSRGraph
from jaxgnn.ops._attention import composed, in_pieces
from jaxgnn.ops._attention.pallas import Calls
from jaxgnn.ops._attention.reference import softmax_sum
from jaxgnn.ops._core import dispatch
from jaxgnn.ops._core.custom_gradient import custom_vjp
from jaxgnn.ops._graph.spmm import spmm
from pallas_kernels.attention.arguments import Cotangents, Form, Operands

KERNEL_DTYPES = ("float32", "bfloat16", "float16")
"""Names of the dtypes that the kernels support."""


class Computation(NamedTuple):
    """The kernels of an op; the contract of each is in the docstring of this module.

    Attributes:
      forward: sums and logarithms of the sums of exponentials.
      weights: weights of the values.
      backward: gradients.
    """

    forward: dispatch.Kernel
    weights: dispatch.Kernel
    backward: dispatch.Kernel

    def of_formula(self) -> Computation:
        """The same with the plain formula alone, which JAX differentiates, by the name "xla"."""
        return Computation(*(kernel.of_formula() for kernel in self))


def computation(op: str, scores: softmax_sum.Scores, compiled: Any) -> Computation:
    """The tables of an op's kernels; where none of them can run, pieces in plain JAX are used.

    Args:
      op: name of the op.
      scores: its scores in plain JAX.
      compiled: module of the typed calls of its compiled kernels.
    """
    calls = Calls(op)

    def kernel(name: str) -> dispatch.Kernel:
        return dispatch.Kernel(
            op if name == "forward" else f"{op}.{name}",
            {
                "xla": dispatch.xla(partial(getattr(in_pieces, name), scores)),
                "pallas": dispatch.pallas(
                    getattr(calls, name), dtypes=KERNEL_DTYPES, limits=calls.limits
                ),
                "ffi": dispatch.ffi(dtypes=KERNEL_DTYPES, cpu=getattr(compiled, name)),
            },
            formula=partial(getattr(softmax_sum, name), scores),
        )

    return Computation(*map(kernel, Computation._fields))


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
    """The sums, the logarithms of the sums of exponentials, and the weights or None."""
    y, lse = call.kernels.forward(call.request, graph, operands, form=call.form)
    if not call.return_weights:
        return y, lse, None
    return y, lse, call.kernels.weights(call.request, graph, operands, lse, form=call.form)


@partial(custom_vjp, nondiff_argnums=(0,))
def differentiable_kernels(
    call: Call, graph: CSRGraph, operands: Operands
) -> tuple[Float[Array, "rows heads dim"], Float[Array, "rows heads"], Any]:
    """The result of ``run_kernels``, with gradients by the kernels of the backward pass.

    Args:
      call: the static description.
      graph: without weights and scales.
      operands: arrays without batch axes.
    """
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
        sums = spmm(graph.with_weights(of_edges), ones, implementation=request.name)
    return sums[:, :, 0]


differentiable_kernels.defvjp(_attention_forward, _attention_backward)


@partial(custom_vjp, nondiff_argnums=(0,))
def _gradients(call, graph, operands, cotangents, dlse):
    """The gradients of the operands; ``dlse``, included in ``delta``, is for second derivatives."""
    del dlse
    return call.kernels.backward(call.request, graph, operands, cotangents, form=call.form)


def _gradients_forward(call, graph, operands, cotangents, dlse):
    made = _gradients(call, graph, operands, cotangents, dlse)
    return made, (graph, operands, cotangents, dlse)


def _gradients_backward(call, residuals, slopes):
    """Second derivatives, by ops that have their own kernels and derivatives.

    ``lse`` and ``delta`` are functions of the other arguments. The gradients of the composed ops
    are the same function with both computed from these, so its derivative is complete.
    """
    graph, operands, cotangents, dlse = residuals
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


_gradients.defvjp(_gradients_forward, _gradients_backward)
