"""Workloads of the benchmarks: tables of graphs, tokens with streams, rows, and messages."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from jaxgnn.datasets import SCALES, synthetic
from jaxgnn.graph import CSRGraph
from jaxgnn.models import sudoku_graph

Scale = Literal["tiny", "small", "full"]
Platform = Literal["cpu", "gpu"]


class Sized(Protocol):
    """Attributes of every workload: its name in the tables, its nodes or tokens, and its width."""

    @property
    def name(self) -> str: ...

    @property
    def nodes(self) -> int: ...

    @property
    def dim(self) -> int: ...


@dataclass(frozen=True)
class Workload:
    """A graph and the features on it.

    Attributes:
      name: name of the workload in the tables.
      nodes: number of nodes.
      edges: number of edges to draw; the power-law graphs have it within 1 %.
      dim: width of the features.
      ks: numbers of entries that MaxK keeps of each row.
      dtypes: dtypes of the features.
      heads: number of attention heads of segment_softmax.
      directions: directions of the linear ops, whose backward can be timed separately.
      scale: the key of ``SCALES`` whose degrees it has; None for a uniformly random graph.
      communities: whether a graph of a scale has planted communities.
    """

    name: str
    nodes: int
    edges: int
    dim: int = 256
    ks: tuple[int, ...] = (16, 32, 64)
    dtypes: tuple[str, ...] = ("float32", "bfloat16")
    heads: int = 4
    directions: tuple[str, ...] = ("forward", "backward", "forward+backward")
    scale: str | None = None
    communities: bool = True

    def graph(self) -> CSRGraph:
        """The unweighted graph with its transpose and schedules, built once a process."""
        return _graph(self.scale, self.nodes, self.edges, self.communities)


def like(scale: str, label: str | None = None, **options) -> Workload:
    """A graph of the size of a data set, by its name in ``SCALES``; tables call it ``label``."""
    sizes = SCALES[scale]
    return Workload(label or scale, sizes.nodes, sizes.edges, scale=scale, **options)


# Where directions are timed separately, timing both together only costs compilations.
_APART = ("forward", "backward")
_SMALL_ON_GPU = {"ks": (32,), "dtypes": ("float32",)}

WORKLOADS: dict[tuple[Platform, Scale], tuple[Workload, ...]] = {
    ("cpu", "tiny"): (Workload("uniform-tiny", 64, 300, 16, (4,), ("float32",)),),
    ("cpu", "small"): (Workload("uniform-200k", 20_000, 200_000, 256, (32,), ("float32",)),),
    ("cpu", "full"): (Workload("uniform-1M", 20_000, 1_000_000, 256, (1, 8, 16, 32, 64, 96, 128)),),
    ("gpu", "tiny"): (Workload("uniform-tiny", 64, 300, 16, (4,), ("float32",)),),
    ("gpu", "small"): (like("flickr", **_SMALL_ON_GPU), like("reddit", **_SMALL_ON_GPU)),
    ("gpu", "full"): (
        like("reddit"),
        *(like(name, directions=_APART) for name in ("products", "proteins", "flickr")),
        # The graph on which other libraries were measured once.
        like("reddit", "reddit-plain", directions=_APART, communities=False),
    ),
}

# On a CPU the break-even is also measured where the dense features fit no cache.
BREAK_EVEN_TOO: dict[tuple[Platform, Scale], tuple[Workload, ...]] = {
    ("cpu", "full"): (Workload("uniform-4M", 200_000, 4_000_000),),
}


@dataclass(frozen=True)
class Streams:
    """Tokens with n streams of features, for hyper-connections.

    Attributes:
      name: name of the workload in the tables.
      nodes: number of tokens; in a graph every node is one.
      dim: width of a stream.
      dtypes: dtypes of the streams.
      n: number of streams.
      matrices: whether ``sinkhorn`` is timed on as many matrices; it does not depend on the width.
    """

    name: str
    nodes: int
    dim: int
    dtypes: tuple[str, ...] = ("bfloat16",)
    n: int = 4
    matrices: bool = False


def _streams(tokens: int, dim: int, **options) -> Streams:
    return Streams(f"{tokens}x{dim}", tokens, dim, **options)


_BOTH = ("bfloat16", "float32")

STREAMS: dict[tuple[Platform, Scale], tuple[Streams, ...]] = {
    ("cpu", "tiny"): (_streams(24, 16, dtypes=("float32",), matrices=True),),
    ("cpu", "small"): (_streams(4096, 128, dtypes=("float32",), matrices=True),),
    ("cpu", "full"): (_streams(16384, 128, dtypes=_BOTH, matrices=True), _streams(4096, 1280)),
    ("gpu", "tiny"): (_streams(64, 64, dtypes=("float32",), matrices=True),),
    ("gpu", "small"): (_streams(16384, 1280, matrices=True),),
    # Language models, then widths of GNNs, with more nodes than the last cache can hold.
    ("gpu", "full"): (
        _streams(16384, 512),
        _streams(16384, 1280, matrices=True),
        _streams(8192, 2560),
        _streams(8192, 7168),
        _streams(131072, 64),
        _streams(131072, 128, dtypes=_BOTH, matrices=True),
        _streams(131072, 256),
    ),
}


@dataclass(frozen=True)
class Rows:
    """Rows of features for linear layers of the same width.

    Attributes:
      name: name of the workload in the tables.
      nodes: number of rows; in a graph every node is one.
      dim: width of the rows.
      dtypes: dtypes of features and parameters.
      activations: activations of the ops that are timed with several.
    """

    name: str
    nodes: int
    dim: int
    dtypes: tuple[str, ...] = _BOTH
    activations: tuple[str, ...] = ("relu",)


def _rows(count: int, dim: int, **options) -> Rows:
    return Rows(f"{count}x{dim}", count, dim, **options)


_RELU_AND_GELU = {"activations": ("relu", "gelu")}

ROWS: dict[tuple[Platform, Scale], tuple[Rows, ...]] = {
    ("cpu", "tiny"): (_rows(40, 8, dtypes=("float32",), **_RELU_AND_GELU),),
    ("cpu", "small"): (_rows(20_000, 64, dtypes=("float32",)),),
    ("cpu", "full"): (
        _rows(100_000, 64, **_RELU_AND_GELU),
        _rows(20_000, 256, dtypes=("float32",)),
        _rows(2048, 1024, dtypes=("float32",)),
    ),
    ("gpu", "tiny"): (_rows(256, 64, dtypes=("bfloat16",), **_RELU_AND_GELU),),
    ("gpu", "small"): (_rows(1_000_000, 128, dtypes=("bfloat16",)),),
    # Widths of GNNs, with at least Reddit's number of nodes; then a compute-bound layer.
    ("gpu", "full"): (
        _rows(1_000_000, 64, **_RELU_AND_GELU),
        _rows(1_000_000, 128, **_RELU_AND_GELU),
        _rows(232_965, 256, **_RELU_AND_GELU),
        _rows(8192, 4096),
    ),
}


@dataclass(frozen=True)
class Messages:
    """Graphs on which layers of edges pass messages.

    Attributes:
      name: name of the workload in the tables.
      nodes: number of nodes of all graphs together.
      edges: number of edges of a random graph; None for the graph of Sudoku, which all boards
        share.
      dim: width of the nodes and of all layers.
      layers: number of layers of the message MLP.
      boards: number of graphs, of ``nodes / boards`` nodes each.
      steps: number of message-passing steps of a network that is trained; None if only the op is
        timed.
      dtypes: dtypes of features and parameters.
    """

    name: str
    nodes: int
    edges: int
    dim: int
    layers: int
    boards: int = 1
    steps: int = 0
    dtypes: tuple[str, ...] = ("bfloat16",)

    @property
    def box(self) -> int:
        """Number of cells on a side of a box of a Sudoku."""
        return round((self.nodes / self.boards) ** 0.25)

    def graph(self) -> CSRGraph:
        """The graph of a board."""
        if self.edges == 0:
            return sudoku_graph(self.box)
        return _graph(None, self.nodes, self.edges)


def _boards(count: int, box: int, dim: int, steps: int, **options) -> Messages:
    name = f"{count}x{box**4}x{dim}"
    return Messages(name, count * box**4, 0, dim, 4, boards=count, steps=steps, **options)


def _drawn(nodes: int, edges: int, dim: int, layers: int, **options) -> Messages:
    return Messages(f"{nodes}x{dim}, {layers} layers", nodes, edges, dim, layers, **options)


_FLOAT32 = {"dtypes": ("float32",)}

MESSAGES: dict[tuple[Platform, Scale], tuple[Messages, ...]] = {
    ("cpu", "tiny"): (_boards(2, 2, 8, 2, **_FLOAT32), _drawn(60, 200, 8, 2, **_FLOAT32)),
    ("cpu", "small"): (_boards(4, 3, 32, 2, **_FLOAT32), _drawn(2000, 20_000, 32, 3, **_FLOAT32)),
    ("cpu", "full"): (
        _boards(32, 3, 96, 8, **_FLOAT32),
        _drawn(20_000, 320_000, 128, 2, **_FLOAT32),
    ),
    ("gpu", "tiny"): (_boards(2, 2, 32, 2), _drawn(60, 200, 64, 3)),
    ("gpu", "small"): (_boards(256, 3, 96, 32),),
    # The network of recurrent relational networks, then graphs of any degrees.
    ("gpu", "full"): (
        _boards(256, 3, 96, 32),
        _drawn(200_000, 3_200_000, 128, 2),
        _drawn(200_000, 3_200_000, 128, 3),
    ),
}


def _block(nodes: int, edges: int, dim: int, layers: int, dtype: str) -> Messages:
    name = f"{edges // 1000}kx{dim}, {layers} layers"
    return Messages(name, nodes, edges, dim, layers, dtypes=(dtype,))


INTERACTIONS: dict[tuple[Platform, Scale], tuple[Messages, ...]] = {
    ("cpu", "tiny"): (_block(60, 300, 8, 2, "float32"),),
    ("cpu", "small"): (_block(2000, 16_000, 64, 2, "float32"),),
    ("cpu", "full"): (_block(5000, 40_000, 128, 2, "float32"),),
    ("gpu", "tiny"): (_block(60, 300, 64, 2, "float32"),),
    ("gpu", "small"): (_block(20_000, 473_180, 128, 2, "float32"),),
    # The processor of a weather model on a mesh, in both dtypes, and a simulator of particles.
    ("gpu", "full"): (
        _block(40_962, 327_660, 512, 2, "bfloat16"),
        _block(40_962, 327_660, 256, 2, "float32"),
        _block(20_000, 473_180, 128, 2, "float32"),
        _block(20_000, 473_180, 128, 3, "float32"),
    ),
}


@dataclass(frozen=True)
class Filtered:
    """A graph of particles or atoms, whose edges filter the features of the senders.

    Attributes:
      name: name of the workload in the tables.
      nodes: number of nodes.
      edges: number of edges, drawn uniformly.
      dim: width of the features.
      features: number of features of the basis that filters are made of.
      dtypes: dtypes of features and filters.
    """

    name: str
    nodes: int
    edges: int
    dim: int
    features: int = 20
    dtypes: tuple[str, ...] = ("float32", "bfloat16")

    def graph(self) -> CSRGraph:
        """The graph with its transpose and schedules, built once a process."""
        return _graph(None, self.nodes, self.edges, False)


FILTERED: dict[tuple[Platform, Scale], tuple[Filtered, ...]] = {
    ("cpu", "tiny"): (Filtered("filtered-tiny", 64, 300, 16, 4, **_FLOAT32),),
    ("cpu", "small"): (Filtered("filtered-100k", 10_000, 100_000, 128, **_FLOAT32),),
    ("cpu", "full"): (Filtered("filtered-500k", 10_000, 500_000, 128, **_FLOAT32),),
    ("gpu", "tiny"): (Filtered("filtered-tiny", 64, 300, 16, 4, **_FLOAT32),),
    ("gpu", "small"): (Filtered("filtered-500k", 10_000, 500_000, 128, **_FLOAT32),),
    # Large molecules, or a box of particles; then many small molecules.
    ("gpu", "full"): (
        Filtered("filtered-500k", 10_000, 500_000, 128),
        Filtered("filtered-1600k", 100_000, 1_600_000, 128),
    ),
}

# The workload for pictures and break-even, on each platform that was measured.
HEADLINE: dict[Platform, str] = {"cpu": "uniform-1M", "gpu": "reddit"}

# The host sorts so few edges faster than XLA compiles a sort of that size.
_EDGES_FOR_THE_HOST = 2**20

# Calls rotate over inputs of this total size, several times the last cache.
_ROTATION_BYTES = 2**28
_MOST_INPUTS = 8


@cache
def _graph(scale: str | None, nodes: int, edges: int, communities: bool = True) -> CSRGraph:
    if scale is not None:
        # Features of width one, because only the edges are used.
        sizes = dataclasses.replace(SCALES[scale], features=1, tasks=None)
        on_device = jax.default_backend() != "cpu"
        options: dict[str, Any] = {} if communities else {"homophily": 0.0}
        data = synthetic(sizes, on_device=on_device, **options)
        return build_graph(data.senders, data.receivers, nodes)
    return uniform_graph(nodes, edges)


def forget_graphs() -> None:
    """Frees the graphs built so far."""
    _graph.cache_clear()


def uniform_graph(nodes: int, edges: int, seed: int = 0) -> CSRGraph:
    """``edges`` edges whose ends are drawn independently; repeats are kept."""
    if jax.default_backend() == "cpu":
        ends = np.random.default_rng(seed).integers(nodes, size=(2, edges), dtype=np.int32)
    else:
        ends = jax.random.randint(jax.random.key(seed), (2, edges), 0, nodes, jnp.int32)
    return build_graph(ends[0], ends[1], nodes)


def build_graph(senders, receivers, nodes: int) -> CSRGraph:
    """Sorts on the device without a copy to the host, except on CPUs and for few edges."""
    if jax.default_backend() == "cpu" or len(senders) <= _EDGES_FOR_THE_HOST:
        return CSRGraph.from_edges(senders, receivers, nodes).prepared()
    return _build_on_device(senders, receivers, nodes)


def _build_on_device(senders, receivers, nodes: int) -> CSRGraph:
    build = jax.jit(lambda s, r: CSRGraph.from_edges(s, r, nodes).prepared())
    return build(senders, receivers)


def input_sets(make: Callable[[jax.Array], tuple]) -> list[tuple]:
    """Random inputs of a total size that no cache holds.

    Args:
      make: function of a key that returns one set of arguments.
    """
    compiled: Callable[[jax.Array], tuple] = jax.jit(make)
    sets = [compiled(jax.random.key(0))]
    nbytes = sum(leaf.nbytes for leaf in jax.tree.leaves(sets[0]))
    count = min(_MOST_INPUTS, -(-_ROTATION_BYTES // nbytes))
    return sets + [compiled(jax.random.key(seed)) for seed in range(1, count)]
