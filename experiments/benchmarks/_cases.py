"""Timed cases of an op: its functions by direction, and its implementations."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_args

import jax

from experiments.benchmarks._workloads import Sized
from jaxgnn import ops
from jaxgnn.testing.timing import Candidate

# f(context, x) -> (y, auxiliary results without a gradient)
Differentiable = Callable[[Any, Any], tuple[Any, Any]]


def forward(f: Differentiable) -> Callable:
    """``(context, x, dy) -> y``."""
    return lambda context, x, dy: f(context, x)


def backward(f: Differentiable) -> Callable:
    """``(context, x, dy) -> dx``; for a linear op XLA drops the forward, which is unused."""
    return lambda context, x, dy: _pull(f, context, x)[1](dy)[0]


def forward_and_backward(f: Differentiable) -> Callable:
    """``(context, x, dy) -> (y, dx)``."""

    def both(context, x, dy):
        result, pull, rest = _pull(f, context, x)
        return result, rest, pull(dy)[0]

    return both


def _pull(f, context, x):
    return jax.vjp(lambda x: f(context, x), x, has_aux=True)


DIRECTIONS: dict[str, Callable[[Differentiable], Callable]] = {
    "forward": forward,
    "backward": backward,
    "forward+backward": forward_and_backward,
}


@dataclass(frozen=True)
class Case:
    """A case of an op to time: workload, direction, dtype and candidates.

    Attributes:
      op: name of the op.
      workload: graph and width, tokens and width, or rows and width.
      direction: a key of ``DIRECTIONS``.
      dtype: dtype of the features.
      nbytes: bytes that must move according to the op's model.
      candidates: ways to compute it, by name.
      k: kept entries a row, for ops that have it.
      edges: actual number of edges of the graph.
      flops: multiplications and additions of the products, for ops that these may bound.
      kernels: whether the row also reports the kernels' own time.
    """

    op: str
    workload: Sized
    direction: str
    dtype: str
    nbytes: int
    candidates: Mapping[str, Candidate]
    k: int | None = None
    edges: int | None = None
    flops: int | None = None
    kernels: bool = False


def implementations(
    build: Callable[[ops.Name], Differentiable], direction: str, inputs: Sequence[tuple]
) -> dict[str, Candidate]:
    """The implementations of an op that support this direction and input here.

    Args:
      build: implementation -> the op as ``f(context, x)``.
      direction: a key of ``DIRECTIONS``.
      inputs: sets of ``(context, x, dy)``.
    """
    usable = {}
    for name in get_args(ops.Name):
        function = DIRECTIONS[direction](build(name))
        try:
            jax.eval_shape(function, *inputs[0])
        except NotImplementedError:
            continue
        usable[name] = Candidate(function, inputs)
    return usable
