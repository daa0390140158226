"""Times gradients of extremes of neighbours, beside their values and beside plain JAX.

Run ``python -m experiments.benchmarks.extreme_gradients``. Cases: the maximum of the neighbours,
the four reductions of PNA, and ``nn.PNAConv``, each with the value alone and with gradients. Plain
JAX is ``jax.ops.segment_max`` of the gathered rows for the maximum, and ``"xla"`` for the
reductions. Each row is printed as JSON and appended to ``extreme_gradients.jsonl``. ``error`` is
the largest difference of a gradient from float64, over the largest entry, for a few columns.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from experiments.benchmarks._command import command
from experiments.benchmarks._report import Output, Row, append_rows
from experiments.benchmarks._workloads import Workload, like
from jaxgnn import CSRGraph, nn, ops
from jaxgnn._errors import bad_input
from jaxgnn.datasets import SCALES
from jaxgnn.testing.timing import Candidate, device_description, measure_in_turns

MAX: tuple[ops.Aggregation, ...] = ("max",)
PNA: tuple[ops.Aggregation, ...] = ("mean", "max", "min", "std")
COLUMNS_CHECKED = 4


@dataclass(frozen=True)
class Options(Output):
    """The options of this command.

    Attributes:
      like: data sets whose size and degrees the graphs have, or ``random`` for a uniformly random
        one of 20,000 nodes and a million edges.
      width: columns.
      dtypes: dtypes of the features.
      plain: whether plain JAX is timed too.
    """

    like: tuple[str, ...] = ("flickr", "reddit")
    width: int = 256
    dtypes: tuple[str, ...] = ("float32", "bfloat16")
    plain: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in self.like:
            if name not in ("random", *SCALES):
                expected = f"among random, {', '.join(SCALES)}"
                raise bad_input("extreme_gradients", "--like", expected, repr(name))


def cases(graph: CSRGraph, width: int, dtype: str) -> dict[str, dict[str, Callable[..., Any]]]:
    """Functions of a graph and features by case and by way."""

    def reduced(reductions, name, graph, x):
        return ops.neighbour_reduce(graph, x, reductions, implementation=name)

    def segment_max(graph, x):
        rows = graph.receivers()
        return jax.ops.segment_max(x[graph.indices], rows, graph.num_rows, indices_are_sorted=True)

    layer = nn.PNAConv(width, width, average_degree=graph, dtype=jnp.dtype(dtype), rngs=nnx.Rngs(0))
    return {
        "neighbour_max": {"ours": functools.partial(reduced, MAX, None), "plain": segment_max},
        "neighbour_pna": {
            "ours": functools.partial(reduced, PNA, None),
            "plain": functools.partial(reduced, PNA, "xla"),
        },
        "PNAConv": {"ours": lambda graph, x: layer(graph, x)},
    }


def with_gradient(function: Callable[..., Any]) -> Callable[..., Any]:
    """The gradient of the sum of squares of a function's result, with the sum itself."""

    def loss(graph, x):
        return jnp.sum(function(graph, x).astype(jnp.float32) ** 2)

    return jax.value_and_grad(loss, argnums=1)


def error(graph: CSRGraph, reductions: tuple[ops.Aggregation, ...], dtype: str) -> float:
    """The largest difference of a gradient from float64, over the largest entry."""
    x = jax.random.normal(jax.random.key(1), (graph.num_cols, COLUMNS_CHECKED)).astype(dtype)
    shape = graph.num_rows, COLUMNS_CHECKED * len(reductions)
    slope = jax.random.normal(jax.random.key(2), shape).astype(dtype)

    def gradient(graph, x, slope, name):
        run = functools.partial(ops.neighbour_reduce, graph, reduce=reductions, implementation=name)
        return jax.vjp(run, x)[1](slope)[0]

    compiled = jax.jit(gradient, static_argnums=3)
    made = np.asarray(compiled(graph, x, slope, None), np.float64)
    with jax.enable_x64(True):
        wide = [jnp.asarray(np.asarray(a, np.float64)) for a in (x, slope)]
        exact = np.asarray(compiled(graph, *wide, "xla"))
    return float(np.abs(made - exact).max() / np.abs(exact).max())


def measure(options: Options, workload: Workload, dtype: str) -> list[Row]:
    """The rows of a graph and a dtype."""
    graph = workload.graph().prepared()
    x = jax.random.normal(jax.random.key(0), (graph.num_cols, options.width)).astype(dtype)
    rows = []
    for case, ways in cases(graph, options.width, dtype).items():
        candidates = {}
        for way, run in ways.items():
            if way == "ours" or options.plain:
                candidates[f"{way}_forward"] = Candidate(run, [(graph, x)])
                candidates[f"{way}_with_gradients"] = Candidate(with_gradient(run), [(graph, x)])
        times = measure_in_turns(candidates)
        row: Row = {"case": case, "workload": workload.name, "dtype": dtype}
        row |= {name: time and time.median_ms for name, time in times.items()}
        forward, both = times["ours_forward"], times["ours_with_gradients"]
        row["times_forward"] = both and forward and both.median_ms / forward.median_ms
        if case != "PNAConv":
            row["error"] = error(graph, MAX if case == "neighbour_max" else PNA, dtype)
        print(json.dumps(row), flush=True)
        rows.append(row)
    return rows


def main(options: Options) -> list[Row]:
    """Prints and keeps a row for each case."""
    device = device_description()
    print(json.dumps(device), flush=True)
    random = Workload("random", 20_000, 1_000_000)
    rows = [
        {**row, **device}
        for workload in (random if name == "random" else like(name) for name in options.like)
        for dtype in options.dtypes
        for row in measure(options, workload, dtype)
    ]
    append_rows(options.rows / "extreme_gradients.jsonl", rows)
    return rows


if __name__ == "__main__":
    command(main, Options, __doc__)
