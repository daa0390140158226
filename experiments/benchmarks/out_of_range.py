"""Measures the cost of clamping the ids of a traced graph that was not validated.

``python -m experiments.benchmarks.out_of_range`` times ``spmm`` and its gradient over one random
graph of 30 edges a row, whose arrays are arguments of the program. The graph is declared in range
once, and once not. Both compute the plan of the kernels in the program.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from jaxgnn import CSRGraph, ops
from jaxgnn.testing import random_array
from jaxgnn.testing.timing import Candidate, device_description, measure_in_turns

NODES, DEGREE = 100_000, 30


def _total(graph: CSRGraph, x: jax.Array) -> jax.Array:
    return jnp.sum(jnp.sin(ops.spmm(graph, x)))


PASSES = {"forward": ops.spmm, "gradient": jax.grad(_total, argnums=1)}


def _of_arrays(run: Callable[..., jax.Array], *, in_range: bool) -> Callable[..., jax.Array]:
    return lambda indptr, indices, x: run(CSRGraph(indptr, indices, in_range=in_range), x)


def main() -> None:
    """Prints a line for each pass and width: milliseconds of both, and their ratio."""
    print(device_description())
    ends = np.random.default_rng(0).integers(0, NODES, (2, NODES * DEGREE))
    graph = CSRGraph.from_edges(ends[0], ends[1], NODES)
    for name, run in PASSES.items():
        for dim in (64, 256):
            x = random_array((NODES, dim), "float32", seed=1)
            inputs = [(graph.indptr, graph.indices, x)]
            candidates = {
                kind: Candidate(_of_arrays(run, in_range=kind == "known"), inputs)
                for kind in ("known", "clamped")
            }
            made = measure_in_turns(candidates, repeats=15, budget_ms=20_000.0)
            known, clamped = (made[key] for key in ("known", "clamped"))
            if known is None or clamped is None:
                raise MemoryError(f"{name} of {dim} columns")
            ratio = clamped.median_ms / known.median_ms
            print(
                f"{name} of {dim} columns: {known.median_ms:.3f} ms, clamped "
                f"{clamped.median_ms:.3f} ms, ratio {ratio:.3f}"
            )


if __name__ == "__main__":
    main()
