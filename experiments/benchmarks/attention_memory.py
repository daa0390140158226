"""Prints the memory that attention ops need with their gradients, as reported by XLA.

Run ``python -m experiments.benchmarks.attention_memory`` on a GPU. No array is allocated: programs
are compiled for the shapes of a prepared graph of Reddit's size, 4 heads of 64 columns.
``temporary`` is a program's peak memory besides its arguments, among them the graph, and its
results.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from experiments.benchmarks._attention import ARRAYS
from jaxgnn import CSRGraph, ops
from jaxgnn.datasets import SCALES
from jaxgnn.graph import GraphPlan, RowSchedule
from jaxgnn.graph.plan.schedule import units
from jaxgnn.testing.timing import device_description

HEADS, WIDTH, SCALE = 4, 64, "reddit"


@dataclass(frozen=True)
class Memory:
    """Bytes of a compiled program, and the seconds for tracing and compiling it."""

    temporary: int
    arguments: int
    results: int
    seconds: float


def prepared_shapes(nodes: int, edges: int, offsets: Any = jnp.int32) -> CSRGraph:
    """Shapes of a validated and prepared square graph, with offsets of the given dtype."""

    def ids(size: int, dtype: Any = jnp.int32) -> Any:
        return jax.ShapeDtypeStruct((size,), dtype)

    pieces, indptr = units(nodes, edges), ids(nodes + 1, offsets)
    schedule = RowSchedule(ids(pieces), ids(pieces + 1, offsets), ids(pieces), ids(2))
    plan = GraphPlan(schedule, indptr, ids(edges), ids(edges, offsets), schedule)
    return CSRGraph(indptr, ids(edges), num_cols=nodes, plan=plan, in_range=True)


def measure(op: str, graph: CSRGraph, dtype: str) -> Memory:
    """Compiles an op with its gradient with respect to all arrays of nodes."""
    shape, arrays = (graph.num_rows, HEADS, WIDTH), ARRAYS[op]
    shapes = [shape[:2]] * sum(arrays.narrow) + [shape] * sum(arrays.wide)
    shapes += [shape[1:]] * arrays.vectors
    given = [jax.ShapeDtypeStruct(s, dtype) for s in (shape, *shapes)]

    def both(graph, dy, *arrays):
        y, pull_back = jax.vjp(lambda *arrays: getattr(ops, op)(graph, *arrays), *arrays)
        return y, pull_back(dy)

    began = time.perf_counter()
    made = jax.jit(both).lower(graph, *given).compile()
    seconds = time.perf_counter() - began
    found: Any = made.memory_analysis()
    sizes = found.temp_size_in_bytes, found.argument_size_in_bytes, found.output_size_in_bytes
    return Memory(*sizes, seconds)


def main() -> None:
    """Prints a line for each op and dtype."""
    print(device_description())
    graph = prepared_shapes(SCALES[SCALE].nodes, SCALES[SCALE].edges)
    for dtype in ("float32", "bfloat16"):
        for op in ARRAYS:
            made = measure(op, graph, dtype)
            parts = ", ".join(
                f"{name} {getattr(made, name) / 2**30:.2f} GiB"
                for name in ("temporary", "arguments", "results")
            )
            print(f"{op} {dtype}: {parts}; compiled in {made.seconds:.2f} s", flush=True)


if __name__ == "__main__":
    main()
