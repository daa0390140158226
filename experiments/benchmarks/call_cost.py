"""Times the host's cost of calling a compiled training step, and of calling ops without ``jit``.

Run ``python -m experiments.benchmarks.call_cost``. The step is that of a small MaxK-GNN with
momentum, whose own work is negligible. It measures the processor time of the calling thread, so
that other processes do not matter. ``nnx.jit`` splits and updates the modules in Python at every
call, ``nnx.cached_partial`` caches their structure, and ``jax.jit`` over dicts of arrays leaves
nothing to Python. All three train the same network.

Ops are called on a graph of 1,000 nodes, ``eager`` and inside of ``jax.jit``. The difference is the
time of their checks and of the choice of a kernel, which ``jit`` spends once.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from experiments.benchmarks._command import command
from experiments.benchmarks._report import Column, Output, Row, append_rows, header, line
from jaxgnn import ops
from jaxgnn._errors import bad_input
from jaxgnn.graph import CSRGraph
from jaxgnn.models import MaxKGNN
from jaxgnn.testing.timing import device_description

_COLUMNS = (
    Column("way", "way", 27),
    Column("layers", "layers", 6, "d"),
    Column("ms of the host", "host_ms", 14, ".3f"),
)
_NODES = 4


@dataclass(frozen=True)
class CallCostOptions(Output):
    """Settings of a run.

    Attributes:
      layers: number of convolutions.
      calls: number of calls of each way; the median is reported.
    """

    layers: int = 4
    calls: int = 300

    def check(self) -> None:
        """Raises ValueError for the first invalid option, by the name that is typed."""
        for name, value in (("--layers", self.layers), ("--calls", self.calls)):
            if value < 1:
                raise bad_input("call_cost", name, "at least 1", value)


def main(options: CallCostOptions) -> list[Row]:
    """Times all ways, prints the times, and appends them to ``call_cost.jsonl``.

    Raises:
      ValueError: if an option is invalid.
    """
    options.check()
    print(header(_COLUMNS), flush=True)
    rows: list[Row] = []
    cases = [
        ({"way": way, "layers": options.layers}, step) for way, step in ways(options.layers).items()
    ]
    cases += [({"way": way, "layers": 0}, call) for way, call in calls_of_ops().items()]
    for case, call in cases:
        row = {"op": "call_cost", **case, "host_ms": _host_ms(call, options.calls)}
        row |= device_description()
        print(line(row, _COLUMNS), flush=True)
        rows.append(row)
    append_rows(options.rows / "call_cost.jsonl", rows)
    return rows


def ways(layers: int) -> dict[str, Callable[[], Any]]:
    """Functions that each take a step of their own network and return the loss."""
    model = _model(layers)
    state = model, nnx.Optimizer(model, _optimizer(), wrt=nnx.Param), nnx.Rngs(dropout=1)
    other = _model(layers)
    another = other, nnx.Optimizer(other, _optimizer(), wrt=nnx.Param), nnx.Rngs(dropout=1)
    return {
        "nnx.jit": lambda: _step_of_modules(*state),
        "nnx.cached_partial": nnx.cached_partial(_step_of_modules, *another),
        "jax.jit": _step_of_arrays(_model(layers)),
    }


def calls_of_ops(nodes: int = 1_000) -> dict[str, Callable[[], Any]]:
    """Calls of ops on one graph, each without ``jit`` and as a compiled function."""
    rng = np.random.default_rng(0)
    graph = CSRGraph.from_edge_index(rng.integers(0, nodes, (2, 8 * nodes)), nodes)
    x = jnp.asarray(rng.normal(size=(nodes, 32)).astype(np.float32))
    named = {
        "spmm": lambda x: ops.spmm(graph, x),
        "neighbour_reduce sum": lambda x: ops.neighbour_reduce(graph, x, "sum"),
        "neighbour_reduce max": lambda x: ops.neighbour_reduce(graph, x, "max"),
    }
    calls: dict[str, Callable[[], Any]] = {}
    for name, call in named.items():
        calls[f"{name}, eager"] = partial(call, x)
        calls[f"{name}, jit"] = partial(jax.jit(call), x)
    return calls


def _model(layers: int) -> MaxKGNN:
    return MaxKGNN(16, 32, 2, num_layers=layers, k=4, rngs=nnx.Rngs(0))


def _optimizer() -> optax.GradientTransformation:
    return optax.sgd(0.01, momentum=0.9)


def _loss(model: MaxKGNN, rngs: nnx.Rngs) -> jax.Array:
    nodes = np.arange(_NODES)
    graph = CSRGraph.from_edges(nodes, (nodes + 1) % _NODES, _NODES)
    logits = model(graph, jnp.eye(_NODES, 16), rngs=rngs)
    labels = jnp.arange(_NODES) % 2
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()


@nnx.jit
def _step_of_modules(model: MaxKGNN, optimizer: nnx.Optimizer, rngs: nnx.Rngs) -> jax.Array:
    loss, gradients = nnx.value_and_grad(_loss)(model, rngs)
    optimizer.update(model, gradients)
    return loss


def _step_of_arrays(model: MaxKGNN) -> Callable[[], jax.Array]:
    graphdef, params = nnx.split(model)
    params, optimizer = nnx.to_pure_dict(params), _optimizer()
    state = params, optimizer.init(params), jax.random.key(1)

    @jax.jit
    def step(params, optimizer_state, key):
        key, dropout = jax.random.split(key)

        def loss(params):
            return _loss(nnx.merge(graphdef, params), nnx.Rngs(dropout=dropout))

        value, gradients = jax.value_and_grad(loss)(params)
        updates, optimizer_state = optimizer.update(gradients, optimizer_state)
        return (optax.apply_updates(params, updates), optimizer_state, key), value

    def call() -> jax.Array:
        nonlocal state
        state, value = step(*state)
        return value

    return call


def _host_ms(step: Callable[[], Any], calls: int) -> float:
    """The median of the calling thread's processor time, after the calls that compile."""
    jax.block_until_ready([step(), step()])
    times = []
    for _ in range(calls):
        started = time.thread_time()
        jax.block_until_ready(step())
        times.append(time.thread_time() - started)
    return 1e3 * statistics.median(times)


if __name__ == "__main__":
    command(main, CallCostOptions, __doc__)
