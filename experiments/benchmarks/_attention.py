"""What the benchmarks of the ops of attention share."""

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
    """Many rings of 25 nodes, linked both ways, as one graph; see ``Workload``."""

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

# Below, the time of the kernels by themselves is shown too: it is less than that of launching them.
_FEW_EDGES = 10_000

# Beside the workloads of all ops: one head, and graphs so small that launches take the time.
OF_ATTENTION: dict[tuple[Platform, Scale], tuple[Workload, ...]] = {
    ("gpu", "full"): (
        like("flickr", dim=128, heads=1, dtypes=("float16",), label="flickr 1x128"),
        Molecules("molecules", 128 * 25, 2 * 128 * 25, 64, **_FLOAT32),
        Sudoku("sudoku", 81, 1620, 64, **_FLOAT32),
    ),
}


@dataclass(frozen=True)
class Arrays:
    """What an op takes and how often it gathers a row of all heads for each edge.

    Attributes:
      wide: numbers of receivers' and of senders' arrays [nodes, heads, dim].
      narrow: the same of arrays [nodes, heads].
      vectors: number of arrays [heads, dim].
      gathers: rows of all heads that are gathered for each edge, forward and backward. Backward
        there are two passes, along the rows and along the columns.
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
    """Structure once a pass, a row for each gather of ``Arrays``, every array of nodes once.

    Gathered rows that a cache holds make more than the bandwidth of the memory possible. What the
    backward pass gathers beside rows, two float32 a head, counts too.
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
    """Every dtype and direction of an op; the backward pass needs the forward's result."""
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
    """Times an op of attention on the workloads of all ops and on those of attention."""
    return run_op(cases, Session.start(options, WORKLOADS, OF_ATTENTION))


def build(op: str, name: ops.Name) -> Differentiable:
    """The op as ``f(graph, arrays)``."""
    function = getattr(ops, op)
    return lambda graph, arrays: (function(graph, *arrays, implementation=name), None)


def _inputs(op: str, workload: Workload, dtype: str) -> list[tuple[CSRGraph, Any, jax.Array]]:
    """Sets of the graph, the arrays in the order in which the op takes them, and ``dy``."""
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
