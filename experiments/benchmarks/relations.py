"""Times ``nn.RGCNConv``, which reads all relations in one sum, against a sum for each relation.

``python -m experiments.benchmarks.relations`` prints the device, and then a line for each number
of relations and direction: milliseconds of both, and their ratio. Both compute the same. The
alternative adds ``mean_j x_j W_r``, relation by relation, with the same sparse op. The total number
of edges is the same for every number of relations.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from experiments.benchmarks._command import command
from experiments.benchmarks._report import Output, Row, append_rows
from jaxgnn import nn, ops
from jaxgnn._errors import bad_input
from jaxgnn.graph import CSRGraph, RelationalGraph
from jaxgnn.testing import random_array
from jaxgnn.testing.timing import Candidate, device_description, measure_in_turns


@dataclass(frozen=True)
class Options(Output):
    """Sizes of the graphs.

    Attributes:
      nodes: number of nodes.
      edges: number of edges of all relations together, which are drawn uniformly.
      relations: numbers of relations.
      dim: width of input and output.
      repeats: number of timings of each, in turns.
    """

    nodes: int = 20_000
    edges: int = 400_000
    relations: tuple[int, ...] = (2, 8, 32)
    dim: int = 64
    repeats: int = 7


def main(options: Options) -> None:
    """Prints the table, and appends its rows to ``relations.jsonl``."""
    for field in ("nodes", "edges", "dim", "repeats"):
        if getattr(options, field) < 1:
            raise bad_input("relations", f"--{field}", "at least one", getattr(options, field))
    if not options.relations or min(options.relations) < 1:
        raise bad_input("relations", "--relations", "at least one", options.relations)
    device = device_description()
    print(f"{options.nodes} nodes, {options.edges} edges, {options.dim} wide; {device}")
    rows: list[Row] = []
    for count in options.relations:
        for direction, candidates in _candidates(options, count).items():
            made = measure_in_turns(candidates, repeats=options.repeats, budget_ms=60_000.0)
            stacked, apart = made["stacked"], made["apart"]
            if stacked is None or apart is None:
                raise MemoryError(f"{count} relations, {direction}")
            times = {"ms": stacked.median_ms, "apart_ms": apart.median_ms}
            sizes = {"nodes": options.nodes, "edges": options.edges, "dim": options.dim}
            kind = {"op": "rgcn", "relations": count, "direction": direction}
            rows.append({**kind, **sizes, **times, **device})
            print(
                f"{count:4} relations {direction:16} {stacked.median_ms:9.2f} ms, one by one "
                f"{apart.median_ms:9.2f} ms, {apart.median_ms / stacked.median_ms:5.2f} times"
            )
    append_rows(options.rows / "relations.jsonl", rows)


def _candidates(options: Options, count: int) -> dict[str, dict[str, Candidate]]:
    """Both ways, by direction."""
    rng = np.random.default_rng(0)
    ends = rng.integers(0, options.nodes, (2, count, options.edges // count), np.int32)
    graphs = [CSRGraph.from_edges(ends[0, r], ends[1, r], options.nodes) for r in range(count)]
    means = [graph.normalized("mean") for graph in graphs]
    layer = nn.RGCNConv(options.dim, options.dim, num_relations=count, rngs=nnx.Rngs(0))
    structure, state = nnx.split(layer)

    def stacked(graph: RelationalGraph, state: Any, x: jax.Array) -> jax.Array:
        return nnx.merge(structure, state)(graph, x)

    def apart(graphs: list[CSRGraph], state: Any, x: jax.Array) -> jax.Array:
        layer: Any = nnx.merge(structure, state)
        y = layer.root_linear(x) + layer.bias[...]
        for graph, matrix in zip(graphs, layer.kernel[...], strict=True):
            y = y + ops.spmm(graph, x) @ matrix
        return y

    x = random_array((options.nodes, options.dim), "float32", seed=1)
    graph = RelationalGraph.from_graphs(graphs)
    np.testing.assert_allclose(
        jax.jit(stacked)(graph, state, x), jax.jit(apart)(means, state, x), rtol=1e-3, atol=1e-3
    )
    inputs = {"stacked": (stacked, (graph, state, x)), "apart": (apart, (means, state, x))}
    return {
        direction: {
            name: Candidate(wrap(run), [arguments]) for name, (run, arguments) in inputs.items()
        }
        for direction, wrap in {"forward": lambda run: run, "forward+backward": _both}.items()
    }


def _both(run: Callable[..., jax.Array]) -> Callable[..., Any]:
    """Returns values, and gradients of parameters and features."""

    def both(graph: Any, state: Any, x: jax.Array) -> Any:
        y, pull_back = jax.vjp(lambda state, x: run(graph, state, x), state, x)
        return y, pull_back(jnp.ones_like(y))

    return both


if __name__ == "__main__":
    command(main, Options, __doc__)
