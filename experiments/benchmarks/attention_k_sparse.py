"""Times attention over k-sparse values: reading only the kept entries, or expanding the rows.

Run ``python -m experiments.benchmarks.attention_k_sparse``. Each line has the milliseconds of the
sums with all gradients, and the bytes that both ways gather for an edge and a head. 4 heads of 64
columns; on a CPU 20,000 nodes and 1,000,000 edges, on a GPU graphs like Flickr and Reddit. A time
is missing where memory ran out.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp

from experiments.benchmarks._attention import ARRAYS
from experiments.benchmarks._command import command
from experiments.benchmarks._report import Column, Output, Row, append_rows, header, line
from experiments.benchmarks._workloads import WORKLOADS, Workload, like
from jaxgnn import CSRGraph, ops
from jaxgnn.testing.timing import Candidate, Timing, device_description, measure_in_turns

HEADS, WIDTH, KEPT = 4, 64, (2, 4, 8, 16, 32)
OPS = ("gat_attention", "dot_attention")
_COLUMNS = (
    Column("graph", "workload", 12),
    Column("op", "op", 14),
    Column("k", "k", 3, "d"),
    Column("sparse ms", "sparse_ms", 10, ".2f"),
    Column("expanded ms", "expanded_ms", 11, ".2f"),
    Column("bytes", "sparse_bytes", 6, "d"),
    Column("expanded", "expanded_bytes", 8, "d"),
)


def bytes_of_edge(op: str, k: int, width: int, itemsize: int) -> tuple[int, int]:
    """Bytes that both ways read and write for an edge and a head, forward and backward.

    Expanded rows have the gathers of ``ARRAYS``. The k-sparse way does not gather values and
    gradients of the sums, and computes the scores a second time for the weights. It gathers k
    entries and their one-byte columns three times. It writes the weights and their gradients once,
    and reads each of them twice.

    Args:
      op: name of the op.
      k: kept entries of a head.
      width: columns of a head.
      itemsize: bytes of an entry.
    """
    row = width * itemsize
    expanded = sum(ARRAYS[op].gathers) * row
    rows_of_scores = 4 if op == "dot_attention" else 0
    return rows_of_scores * row + 3 * k * (itemsize + 1) + 6 * 4, expanded


def measure(op: str, graph: CSRGraph, k: int) -> dict[str, Timing | None]:
    """Times ``sparse`` and ``expanded`` with all gradients, in turns."""
    (rows, cols), arrays = graph.shape, ARRAYS[op]
    shapes = [(rows, HEADS)] * arrays.narrow[0] + [(cols, HEADS)] * arrays.narrow[1]
    shapes += [(rows, HEADS, WIDTH)] * (1 + arrays.wide[0])
    shapes += [(cols, HEADS, WIDTH)] * arrays.wide[1]
    keys = jax.random.split(jax.random.key(0), len(shapes))
    # The values are the last array; the sums' gradient has the shape of the first wide array.
    made = [jax.random.normal(key, shape) for key, shape in zip(keys, shapes, strict=True)]
    *given, values = made
    dy = given.pop(arrays.narrow[0] + arrays.narrow[1])
    kept = ops.maxk(values, k)
    name = "pallas" if jax.default_backend() == "gpu" else "ffi"

    def run(expand: bool) -> Any:
        def sums(given, kept):
            rows = ops.todense(kept) if expand else kept
            return getattr(ops, op)(graph, *given, rows, implementation=name)

        def both(given, kept, dy):
            y, pull_back = jax.vjp(sums, given, kept)
            of_given, of_kept = pull_back(dy)
            # Columns have no gradient; returning it would make JAX build an array on the host.
            return y, of_given, of_kept.values

        return Candidate(both, [(given, kept, dy)])

    return measure_in_turns({"sparse": run(False), "expanded": run(True)})


def workloads() -> Iterator[Workload]:
    """The graphs of this machine's platform."""
    if jax.default_backend() == "gpu":
        yield from (like("flickr"), like("reddit"))
    else:
        yield from WORKLOADS["cpu", "full"]


def row_of(workload: Workload, graph: CSRGraph, op: str, k: int) -> Row:
    """The row of an op on a graph for a number of kept entries."""
    times = measure(op, graph, k)
    ways = {f"{way}_ms": timing and timing.median_ms for way, timing in times.items()}
    sparse, expanded = bytes_of_edge(op, k, WIDTH, jnp.dtype(jnp.float32).itemsize)
    counted = {"sparse_bytes": sparse, "expanded_bytes": expanded}
    shape = {"op": op, "workload": workload.name, "heads": HEADS, "dim": WIDTH, "k": k}
    return {**shape, "dtype": "float32", **ways, **counted}


def main(output: Output) -> list[Row]:
    """Prints and stores a row for each graph, op and number of kept entries."""
    device = device_description()
    print(device)
    print(header(_COLUMNS), flush=True)
    rows: list[Row] = []
    for workload in workloads():
        graph = workload.graph()
        for op in OPS:
            for k in KEPT:
                row = {**row_of(workload, graph, op, k), **device}
                print(line(row, _COLUMNS), flush=True)
                append_rows(output.rows / "attention_k_sparse.jsonl", [row])
                rows.append(row)
    return rows


if __name__ == "__main__":
    command(main, Output, __doc__)
