"""The tables of the kernels of attention over neighbours, and what the kernels compute.

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

``delta`` is computed from ``y`` and ``dy`` in ``attend``, which has the one custom_vjp.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

from jaxgnn._ffi import attention as ffi
from jaxgnn.ops._attention import in_pieces, pallas
from jaxgnn.ops._attention.reference import softmax_sum
from jaxgnn.ops.core import dispatch

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


def computation(op: str, scores: softmax_sum.Scores) -> Computation:
    """The tables of an op's kernels; where none of them can run, pieces in plain JAX are used.

    Args:
      op: name of the op.
      scores: its scores in plain JAX.
    """
    limits = partial(pallas.limits, op)

    def kernel(name: str) -> dispatch.Kernel:
        return dispatch.Kernel(
            op if name == "forward" else f"{op}.{name}",
            {
                "xla": dispatch.xla(partial(getattr(in_pieces, name), scores)),
                "pallas": dispatch.pallas(
                    partial(getattr(pallas, name), op), dtypes=KERNEL_DTYPES, limits=limits
                ),
                "ffi": dispatch.ffi(dtypes=KERNEL_DTYPES, cpu=partial(getattr(ffi, name), op)),
            },
            formula=partial(getattr(softmax_sum, name), scores),
        )

    return Computation(*map(kernel, Computation._fields))
