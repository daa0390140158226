"""Times second derivatives of the attention ops, and prints their memory.

Run ``python -m experiments.benchmarks.attention_second_order``. Each line is a product of a Hessian
with vectors, for all arrays of an op, reverse over reverse: by the kernels, and by ``"xla"``, the
plain formula, which has arrays of size edges x heads x width. 4 heads of 64 columns, float32.
``temporary`` is a program's peak memory besides arguments and results, as reported by XLA. A
program that needs more than ``--most-gib`` is not run. The rows are appended to
``attention_second_order.jsonl``.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from experiments.benchmarks._attention import ARRAYS
from experiments.benchmarks._command import command
from experiments.benchmarks._report import Output, Row, append_rows
from experiments.benchmarks._workloads import Workload, like
from jaxgnn import CSRGraph, ops
from jaxgnn._errors import bad_input
from jaxgnn.datasets import SCALES
from jaxgnn.testing.timing import (
    Candidate,
    Timing,
    device_description,
    is_out_of_memory,
    measure_in_turns,
)

HEADS, WIDTH = 4, 64
WAYS: dict[str, ops.Name | None] = {"kernels": None, "xla": "xla"}


@dataclass(frozen=True)
class Options(Output):
    """Options of this command.

    Attributes:
      like: a data set whose size and degrees the graph has, such as ``reddit``; None for a
        uniformly random graph.
      nodes: nodes of the random graph.
      edges: edges of the random graph.
      most_gib: largest temporary memory, in GiB, of a program that is run.
    """

    like: str | None = None
    nodes: int = 20_000
    edges: int = 200_000
    most_gib: float = 6.0

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("nodes", "edges", "most_gib"):
            if not getattr(self, name) > 0:
                option, got = f"--{name.replace('_', '-')}", getattr(self, name)
                raise bad_input("attention_second_order", option, "greater than zero", got)
        if self.like is not None and self.like not in SCALES:
            expected = f"one of {', '.join(SCALES)}"
            raise bad_input("attention_second_order", "--like", expected, repr(self.like))

    @property
    def workload(self) -> Workload:
        """The selected graph."""
        if self.like is not None:
            return like(self.like)
        return Workload("random", self.nodes, self.edges)


@dataclass(frozen=True)
class Measured:
    """One way to compute a second derivative.

    Attributes:
      temporary: bytes besides arguments and results; None if compilation ran out of memory.
      timing: its time, or None if it was not run.
    """

    temporary: int | None
    timing: Timing | None


def hessian_product(op: str, name: ops.Name | None, graph: CSRGraph, given: Any, by: Any) -> Any:
    """Product of the Hessian of a sum of squares with vectors, for all arrays of an op."""

    def loss(given):
        return jnp.sum(getattr(ops, op)(graph, *given, implementation=name) ** 2)

    def product(given):
        return sum(jnp.sum(a * b) for a, b in zip(jax.grad(loss)(given), by, strict=True))

    return jax.grad(product)(given)


def measure(op: str, graph: CSRGraph, most_bytes: float) -> dict[str, Measured]:
    """Compiles both ways of an op, and times in turns those that fit the memory limit."""
    shapes = _shapes(op, graph)
    keys = jax.random.split(jax.random.key(0), 2 * len(shapes))
    arrays = [jax.random.normal(k, s) for k, s in zip(keys, 2 * shapes, strict=True)]
    inputs = graph, tuple(arrays[: len(shapes)]), tuple(arrays[len(shapes) :])
    runs = {way: functools.partial(hessian_product, op, name) for way, name in WAYS.items()}
    temporary = {way: _temporary(run, inputs) for way, run in runs.items()}
    candidates = {
        way: Candidate(run, [inputs])
        for way, run in runs.items()
        if (planned := temporary[way]) is not None and planned <= most_bytes
    }
    times = measure_in_turns(candidates)
    return {way: Measured(temporary[way], times.get(way)) for way in runs}


def _temporary(run: Any, inputs: Any) -> int | None:
    """The temporary bytes that XLA plans; None if compilation ran out of memory."""
    lowered = jax.jit(run).lower(*inputs)
    try:
        made: Any = lowered.compile().memory_analysis()
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        return None
    return made.temp_size_in_bytes


def main(options: Options) -> list[Row]:
    """Prints and stores a row for each op."""
    device = device_description()
    print(device)
    graph = options.workload.graph()
    print(f"{graph.num_rows:,} nodes, {graph.num_edges:,} edges, {HEADS} heads of {WIDTH} columns")
    rows = []
    for op in ARRAYS:
        made = measure(op, graph, options.most_gib * 2**30)
        shown = "; ".join(f"{way} {_text(one)}" for way, one in made.items())
        print(f"{op}: {shown}", flush=True)
        row: Row = {"op": op, "workload": options.workload.name, "edges": graph.num_edges}
        for way, one in made.items():
            row[f"{way}_ms"] = one.timing and one.timing.median_ms
            row[f"{way}_temporary_bytes"] = one.temporary
        rows.append({**row, **device})
    append_rows(options.rows / "attention_second_order.jsonl", rows)
    return rows


def _text(measured: Measured) -> str:
    if measured.temporary is None:
        return "out of memory while it compiled"
    timing, gib = measured.timing, measured.temporary / 2**30
    time = "not run" if timing is None else f"{timing.median_ms:,.1f} ms"
    return f"{time}, temporary {gib:.3f} GiB"


def _shapes(op: str, graph: CSRGraph) -> list[tuple[int, ...]]:
    """Shapes of the arrays in the order of the op's arguments."""
    arrays, ends = ARRAYS[op], graph.shape
    narrow = [
        (size, HEADS) for size, count in zip(ends, arrays.narrow, strict=True) for _ in range(count)
    ]
    wide = [
        (size, HEADS, WIDTH)
        for size, count in zip(ends, arrays.wide, strict=True)
        for _ in range(count)
    ]
    return [*narrow, *wide, *[(HEADS, WIDTH)] * arrays.vectors]


if __name__ == "__main__":
    command(main, Options, __doc__)
