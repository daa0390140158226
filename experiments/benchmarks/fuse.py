"""Times networks of plain JAX and jraph as they are, and rewritten by ``jaxgnn.fuse``.

``python -m experiments.benchmarks.fuse`` prints a line for each graph and network: milliseconds of
the function and all its gradients, unfused and fused, the ratio, and the ops that took over, and
appends them to ``fuse.jsonl``. Each line is printed as soon as it is measured; ``oom`` is what did
not fit into memory. Edge lists are constants of both programs. On the small graphs nothing may be
slower.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import jraph
import numpy as np

from experiments.benchmarks._command import command
from experiments.benchmarks._report import Output, Row, append_rows
from experiments.benchmarks._workloads import Workload, like
from jaxgnn.fusion import explain, fuse
from jaxgnn.testing.timing import Candidate, device_description, measure_in_turns

GRAPHS: dict[str, Workload] = {
    "tiny": Workload("tiny", 30, 64, dim=16),
    "molecules": Workload("molecules", 3_000, 6_400, dim=64),
    "uniform": Workload("uniform", 20_000, 1_000_000, dim=256),
    "flickr": like("flickr", dim=256),
    "reddit": like("reddit", dim=256),
}


@dataclass(frozen=True)
class FuseOptions(Output):
    """What is timed.

    Attributes:
      graphs: names among tiny, molecules, uniform, flickr and reddit; the first three if empty, and
        flickr in the place of uniform on a GPU.
      models: names of networks; all if empty.
      budget: milliseconds of timing for each line.
    """

    graphs: tuple[str, ...] = ()
    models: tuple[str, ...] = ()
    budget: float = 4_000.0


@dataclass(frozen=True)
class Edges:
    """An edge list: senders and receivers, int32 [edges], and the number of nodes."""

    senders: jax.Array
    receivers: jax.Array
    nodes: int

    def sum(self, messages: Any) -> Any:
        """The sum of the messages that arrive at each node."""
        return jax.ops.segment_sum(messages, self.receivers, self.nodes)

    def tuple(self, x: Any) -> jraph.GraphsTuple:
        """The graph as jraph has it."""
        counts = jnp.array([self.nodes]), jnp.array([self.senders.size])
        return jraph.GraphsTuple(x, None, self.receivers, self.senders, None, *counts)


def _linear(key: jax.Array, *shape: int) -> jax.Array:
    return jax.random.normal(key, shape) / shape[0] ** 0.5


def convolution(edges: Edges, x: Any, kernel: Any) -> Any:
    """Jraph's ``GraphConvolution`` with self edges, around one matrix."""
    layer = jraph.GraphConvolution(lambda x: x @ kernel, add_self_edges=True)
    return layer(edges.tuple(x)).nodes


def attention(edges: Edges, x: Any, kernel: Any, vector: Any) -> Any:
    """``GAT`` of jraph with one head."""

    def logits(sent: Any, received: Any, _: Any) -> Any:
        return jax.nn.leaky_relu(jnp.concatenate([sent, received], axis=-1) @ vector)

    return jraph.GAT(lambda x: x @ kernel, logits)(edges.tuple(x)).nodes


def mean(edges: Edges, x: Any, kernel: Any) -> Any:
    """The mean of the neighbours, times a matrix."""
    return jraph.segment_mean(x[edges.senders], edges.receivers, edges.nodes) @ kernel


def maximum(edges: Edges, x: Any, kernel: Any) -> Any:
    """The maximum of the neighbours, times a matrix."""
    y = jax.ops.segment_max(x[edges.senders], edges.receivers, edges.nodes)
    return jnp.where(jnp.isfinite(y), y, 0) @ kernel


def interaction(edges: Edges, x: Any, first: Any, bias: Any, last: Any, update: Any) -> Any:
    """``InteractionNetwork`` of jraph, with a network of two layers on edges."""

    def of_edges(_: Any, sent: Any, received: Any) -> Any:
        columns = jnp.concatenate([received, sent], axis=-1)
        return jax.nn.relu(columns @ first + bias) @ last

    def of_nodes(nodes: Any, received: Any) -> Any:
        return jnp.concatenate([nodes, received], axis=-1) @ update

    layer = jraph.InteractionNetwork(of_edges, of_nodes)
    return layer(edges.tuple(x)._replace(edges=jnp.zeros((edges.senders.size, 1)))).nodes


def largest(edges: Edges, x: Any, kernel: Any) -> Any:
    """MaxK by ``top_k`` and a scatter, and the sum of the neighbours."""
    x = x @ kernel
    values, columns = jax.lax.top_k(x, max(x.shape[1] // 8, 1))
    kept = jnp.zeros_like(x).at[jnp.arange(x.shape[0])[:, None], columns].set(values)
    return edges.sum(kept[edges.senders])


def hypergraph(edges: Edges, x: Any, kernel: Any) -> Any:
    """Convolution of hypergraphs by two sums: receivers are the hyperedges of the senders."""
    ones = jnp.ones(edges.senders.shape)
    sizes = edges.sum(ones)
    degrees = jax.ops.segment_sum(ones, edges.senders, edges.nodes)
    of_hyperedges = edges.sum((x @ kernel)[edges.senders]) / jnp.maximum(sizes, 1)[:, None]
    back = of_hyperedges[edges.receivers]
    return jax.ops.segment_sum(back, edges.senders, edges.nodes) / jnp.maximum(degrees, 1)[:, None]


# Each network, and the shapes of its parameters for features of width d.
MODELS: dict[str, tuple[Callable[..., Any], Callable[[int], list[tuple[int, ...]]]]] = {
    "jraph.GraphConvolution": (convolution, lambda d: [(d, d)]),
    "jraph.GAT": (attention, lambda d: [(d, d), (2 * d, 1)]),
    "jraph.InteractionNetwork": (interaction, lambda d: [(2 * d, d), (d,), (d, d), (2 * d, d)]),
    "mean": (mean, lambda d: [(d, d)]),
    "maximum": (maximum, lambda d: [(d, d)]),
    "maxk": (largest, lambda d: [(d, d)]),
    "hypergraph": (hypergraph, lambda d: [(d, d)]),
}


def _with_gradients(fn: Callable[..., Any], count: int) -> Callable[..., Any]:
    def total(*args: Any) -> Any:
        return jnp.sum(fn(*args) ** 2)

    return jax.value_and_grad(total, argnums=tuple(range(count)))


def rows_of(options: FuseOptions) -> Iterator[Row]:
    """Measures each network on each graph, and gives a row for each."""
    is_gpu = jax.default_backend() != "cpu"
    default = ("tiny", "molecules", "flickr" if is_gpu else "uniform")
    for name in options.graphs or default:
        workload = GRAPHS[name]
        graph = workload.graph()
        # The edges in an order of their own, as they come from a file.
        order = np.random.default_rng(0).permutation(graph.num_edges)
        ends = graph.indices, graph.receivers()
        senders, receivers = (jnp.asarray(np.asarray(ids)[order]) for ids in ends)
        edges = Edges(senders, receivers, workload.nodes)
        for model in options.models or MODELS:
            labels = {
                "workload": name,
                "edges": graph.num_edges,
                "dim": workload.dim,
                "model": model,
            }
            yield labels | _measured(edges, model, workload.dim, options)


def _measured(edges: Edges, model: str, dim: int, options: FuseOptions) -> Row:
    build, shapes = MODELS[model]
    keys = jax.random.split(jax.random.key(0), 5)
    x = jax.random.normal(keys[0], (edges.nodes, dim))
    arrays = (x, *(_linear(k, *s) for k, s in zip(keys[1:], shapes(dim), strict=False)))

    def plain(*arrays: Any) -> Any:
        return build(edges, *arrays)

    ops = explain(plain, *arrays).findings.applied
    candidates = {
        "plain": Candidate(_with_gradients(plain, len(arrays)), [arrays]),
        "fused": Candidate(_with_gradients(fuse(plain), len(arrays)), [arrays]),
    }
    made = measure_in_turns(candidates, repeats=9, budget_ms=options.budget)
    named = dict.fromkeys(one.note.rpartition("-> ")[2] for one in ops)
    times = {f"{name}_ms": None if t is None else t.median_ms for name, t in made.items()}
    return {**times, "ops": list(named)}


def _line(row: Row) -> str:
    before, after = row["plain_ms"], row["fused_ms"]
    shown = " -> ".join("oom" if ms is None else f"{ms:.3f}" for ms in (before, after))
    ratio = "" if before is None or after is None else f"{before / after:.2f}x"
    named = ", ".join(row["ops"]) or "left to XLA"
    return f"{row['workload']:9} {row['model']:24} {shown} ms {ratio:8} {named}"


def main(options: FuseOptions) -> None:
    """Prints and appends the rows."""
    device = device_description()
    print(device, flush=True)
    for row in rows_of(options):
        print(_line(row), flush=True)
        append_rows(options.rows / "fuse.jsonl", [row | device])


if __name__ == "__main__":
    command(main, FuseOptions, __doc__)
