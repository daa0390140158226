"""Shared parts of the benchmarks of hyper-connections: bytes, inputs and cases."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from experiments.benchmarks._cases import Candidate, Case
from experiments.benchmarks._workloads import Streams, input_sets

# The backward passes need results of the forward passes, so they are timed together.
_DIRECTIONS = ("forward", "forward+backward")


@dataclass(frozen=True)
class _Passes:
    """Tensors that a forward and a backward pass read and write, each once."""

    forward: str
    backward: str

    def __add__(self, other: _Passes) -> _Passes:
        """Combines the passes of two ops that run one after the other."""
        return _Passes(f"{self.forward} {other.forward}", f"{self.backward} {other.backward}")


_PRE = _Passes("x h_in", "x dh_in dx")
_POST = _Passes("x f y", "x f dy dx df")
# x has a gradient from both ops. ``pre`` writes their sum, and reads that of ``post`` for it.
_SUM_OF_GRADIENTS = _Passes("", "dx")
_PASSES = {
    "mhc_pre": _PRE,
    "mhc_post": _POST,
    "mhc_layer": _PRE + _POST + _SUM_OF_GRADIENTS,
    # y and dx are already available. The backward could even recompute y from x and f.
    "mhc_post_pre": _Passes("x f y h_in", "x f y dy dh_in dx df"),
    "sinkhorn": _Passes("logits h", "logits dh dlogits"),
}
_OF_STREAMS = ("x", "y", "dx", "dy")
_OF_ONE_STREAM = ("f", "h_in", "df", "dh_in")
_MATRICES = ("logits", "h", "dlogits", "dh")


def bytes_moved(
    op: str, direction: str, *, tokens: int, n: int, dim: int, itemsize: int = 2
) -> int:
    """Bytes of the streams' tensors, once for each pass that reads or writes them.

    Parameters are not counted, nor the coefficients, some ``n² + 2n`` float32 a token, except for
    ``sinkhorn``, which has nothing else. The sum in rows of ``dim`` a token:

    ============  =======  ========
    op            forward  backward
    ============  =======  ========
    mhc_pre       n + 1    2n + 1
    mhc_post      2n + 1   3n + 2
    mhc_layer     3n + 2   6n + 3
    mhc_post_pre  2n + 2   4n + 3
    ============  =======  ========

    Args:
      op: name of the benchmark.
      direction: ``"forward"``, ``"backward"`` or ``"forward+backward"``.
      tokens: number of tokens.
      n: number of streams.
      dim: width of a stream.
      itemsize: bytes of a feature.

    Raises:
      KeyError: if there is no such op or direction.
    """
    passes, row = _PASSES[op], dim * itemsize
    tensors = {
        "forward": passes.forward.split(),
        "backward": passes.backward.split(),
        "forward+backward": passes.forward.split() + passes.backward.split(),
    }
    sizes = {
        **dict.fromkeys(_OF_STREAMS, n * row),
        **dict.fromkeys(_OF_ONE_STREAM, row),
        **dict.fromkeys(_MATRICES, n * n * 4),
    }
    return tokens * sum(sizes[tensor] for tensor in tensors[direction])


@dataclass(frozen=True)
class Arrays:
    """Arguments and results of an op, as names that ``make`` knows.

    Attributes:
      arguments: names of the arguments, in their order.
      results: one name, or a tuple of names.
    """

    arguments: tuple[str, ...]
    results: str | tuple[str, ...]

    def make(self, workload: Streams, dtype: str) -> list[tuple]:
        """Random sets of ``(None, arguments, cotangents of the results)``.

        Args:
          workload: tokens, streams and width.
          dtype: dtype of the streams.
        """
        shapes = _shapes(workload, dtype)
        names, structure = jax.tree.flatten((self.arguments, self.results))
        ends = np.cumsum([math.prod(shapes[name][0]) for name in names])

        def make(key):
            # One generator compiles several times faster than a separate one for each array.
            parts = jnp.split(jax.random.normal(key, (int(ends[-1]),)), ends[:-1])
            named = zip(parts, names, strict=True)
            arrays = [_shaped(part, name, *shapes[name]) for part, name in named]
            return jax.tree.unflatten(structure, arrays)

        return [(None, *arrays) for arrays in input_sets(make)]


def _shaped(drawn: jax.Array, name: str, shape: tuple[int, ...], dtype: str) -> jax.Array:
    # A logit sums as many products as phi has columns, and should be of size one.
    scale = shape[-1] ** -0.5 if name == "phi" else 1.0
    return (scale * drawn).reshape(shape).astype(dtype)


def _shapes(workload: Streams, dtype: str) -> Mapping[str, tuple[tuple[int, ...], str]]:
    tokens, n, dim = workload.nodes, workload.n, workload.dim
    rows = n * n + 2 * n
    streams, one_stream = ((tokens, n, dim), dtype), ((tokens, dim), dtype)
    return {
        "x": streams,
        "y": streams,
        "f": one_stream,
        "h_in": one_stream,
        "h_post": ((tokens, n), "float32"),
        "h_res": ((tokens, n, n), "float32"),
        "phi": ((rows, n * dim), "float32"),
        "alpha": ((3,), "float32"),
        "bias": ((rows,), "float32"),
    }


def cases(
    op: str,
    workload: Streams,
    arrays: Arrays,
    candidates: Callable[[str, list[tuple]], Mapping[str, Candidate]],
    *,
    dtypes: tuple[str, ...] | None = None,
) -> Iterator[Case]:
    """Yields a case for every dtype and direction.

    Args:
      op: name of the benchmark.
      workload: tokens, streams and width.
      arrays: arguments and results of the op.
      candidates: function of direction and inputs that returns the implementations by name.
      dtypes: dtypes of the streams; None for the dtypes of the workload.
    """
    for dtype in dtypes or workload.dtypes:
        inputs = arrays.make(workload, dtype)
        for direction in _DIRECTIONS:
            nbytes = bytes_moved(
                op,
                direction,
                tokens=workload.nodes,
                n=workload.n,
                dim=workload.dim,
                itemsize=jnp.dtype(dtype).itemsize,
            )
            made = candidates(direction, inputs)
            yield Case(op, workload, direction, dtype, nbytes, made, kernels=True)
