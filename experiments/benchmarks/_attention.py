"""Shared parts of the benchmarks of attention ops."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from experiments.benchmarks._cases import Case, Differentiable, implementations
from experiments.benchmarks._report import Row
from experiments.benchmarks._session import Options, Session, run_op
from experiments.benchmarks._torch_attention import torch_attention
from experiments.benchmarks._workloads import (
    WORKLOADS,
    Platform,
    Scale,
    Workload,
    build_graph,
    input_sets,
    like,
)
from jaxgnn import ops
from jaxgnn.graph import CSRGraph
from jaxgnn.models import sudoku_graph


@dataclass(frozen=True)
class Molecules(Workload):
    """Many rings of 25 nodes, linked in both directions, as one graph; see ``Workload``."""

    def graph(self) -> CSRGraph:
        """The graph with its transpose and schedules."""
        nodes = np.arange(self.nodes)
        following = nodes - nodes % 25 + (nodes + 1) % 25
        ends = np.concatenate([nodes, following]), np.concatenate([following, nodes])
        return build_graph(*ends, self.nodes)


@dataclass(frozen=True)
class Sudoku(Workload):
    """The graph of the cells of a Sudoku; see ``Workload``."""

    def graph(self) -> CSRGraph:
        """The graph with its transpose and schedules."""
        return sudoku_graph().prepared()


_FLOAT32 = {"dtypes": ("float32",)}

# Below this, the kernels' own time is shown too, because launching them takes longer.
_FEW_EDGES = 10_000

# Besides the workloads of all ops: one head, and graphs so small that launches dominate.
OF_ATTENTION: dict[tuple[Platform, Scale], tuple[Workload, ...]] = {
    ("gpu", "full"): (
        like("flickr", dim=128, heads=1, dtypes=("float16",), label="flickr 1x128"),
        Molecules("molecules", 128 * 25, 2 * 128 * 25, 64, **_FLOAT32),
        Sudoku("sudoku", 81, 1620, 64, **_FLOAT32),
    ),
}


@dataclass(frozen=True)
class Arrays:
    """Arrays that an op takes, and the number of gathers for each edge.

    Attributes:
      wide: numbers of receivers' and of senders' arrays [nodes, heads, dim].
      narrow: numbers of receivers' and of senders' arrays [nodes, heads].
      vectors: number of arrays [heads, dim].
      gathers: rows of all heads that are gathered for each edge, forward and backward. The backward
        has two passes, along the rows and along the columns.
    """

    wide: tuple[int, int]
    narrow: tuple[int, int]
    vectors: int
    gathers: tuple[int, int]


ARRAYS = {
    "dot_attention": Arrays((1, 2), (0, 0), 0, (2, 4)),
    "gat_attention": Arrays((0, 1), (1, 1), 0, (1, 2)),
    "gatv2_attention": Arrays((1, 1), (0, 0), 1, (1, 3)),
}


def bytes_moved(op: str, graph: CSRGraph, heads: int, dim: int, itemsize: int, way: str) -> int:
    """Bytes of a direction: structure once a pass, a row for each gather, node arrays once.

    Gathered rows that a cache serves can exceed the bandwidth of the memory. The backward pass also
    gathers two float32 a head, which count too.
    """
    arrays, (rows, cols) = ARRAYS[op], graph.shape
    structure = graph.indptr.nbytes + graph.indices.nbytes
    gathered = graph.num_edges * heads * dim * itemsize
    nodes = rows * arrays.wide[0] + cols * arrays.wide[1]
    narrow = (rows * arrays.narrow[0] + cols * arrays.narrow[1]) * heads * itemsize
    inputs = nodes * heads * dim * itemsize + narrow
    result = rows * heads * dim * itemsize
    forward = structure + arrays.gathers[0] * gathered + result
    numbers = graph.num_edges * heads * 2 * 4
    backward = 2 * structure + arrays.gathers[1] * gathered + numbers + inputs
    return forward if way == "forward" else forward + backward


def cases(op: str, workload: Workload) -> Iterator[Case]:
    """Yields every dtype and direction of an op; the backward is timed with the forward."""
    graph, dim = workload.graph(), workload.dim // workload.heads
    for dtype in workload.dtypes:
        inputs = _inputs(op, workload, dtype)
        for direction in ("forward", "forward+backward"):
            size = jnp.dtype(dtype).itemsize
            yield Case(
                op=op,
                workload=workload,
                direction=direction,
                dtype=dtype,
                nbytes=bytes_moved(op, graph, workload.heads, dim, size, direction),
                candidates={
                    **implementations(lambda name: build(op, name), direction, inputs),
                    **torch_attention(op, graph, inputs, direction),
                },
                edges=graph.num_edges,
                kernels=graph.num_edges < _FEW_EDGES,
            )


def run(cases: Callable[[Workload], Iterable[Case]], options: Options) -> list[Row]:
    """Times an attention op on the workloads of all ops and on those of attention."""
    return run_op(cases, Session.start(options, WORKLOADS, OF_ATTENTION))


def build(op: str, name: ops.Name) -> Differentiable:
    """The op as ``f(graph, arrays)``."""
    function = getattr(ops, op)
    return lambda graph, arrays: (function(graph, *arrays, implementation=name), None)


def _inputs(op: str, workload: Workload, dtype: str) -> list[tuple[CSRGraph, Any, jax.Array]]:
    """Sets of the graph, the arrays in the order of the op's arguments, and ``dy``."""
    graph, heads, dim = workload.graph(), workload.heads, workload.dim // workload.heads
    rows, cols = graph.shape
    arrays = ARRAYS[op]
    shapes = [(rows, heads)] * arrays.narrow[0] + [(cols, heads)] * arrays.narrow[1]
    shapes += [(rows, heads, dim)] * arrays.wide[0] + [(cols, heads, dim)] * arrays.wide[1]
    shapes += [(heads, dim)] * arrays.vectors

    def make(key):
        keys = jax.random.split(key, len(shapes) + 1)
        made = [jax.random.normal(k, s, dtype) for k, s in zip(keys[1:], shapes, strict=True)]
        return tuple(made), jax.random.normal(keys[0], (rows, heads, dim), dtype)

    return [(graph, made, dy) for made, dy in input_sets(make)]
