"""Programs whose first call is timed, because users wait for it; each in two sizes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from experiments.benchmarks import training_step
from experiments.benchmarks._compilation import Program
from experiments.benchmarks._workloads import build_graph
from jaxgnn import nn, ops
from jaxgnn.datasets import SCALES, synthetic
from jaxgnn.graph import CSRGraph


@dataclass(frozen=True)
class FirstStep:
    """A program whose first call is timed.

    Attributes:
      what: description for the table.
      make: returns the program and its arrays.
      make_another: the same for another number of rows or edges; None if the program is too large
        to be built twice.
    """

    what: str
    make: Callable[[], Program]
    make_another: Callable[[], Program] | None = None


def _gradient_of(model: nnx.Module, *args: Any) -> Program:
    """The gradient with respect to the parameters and the features, which are the last argument."""
    graphdef, state = nnx.split(model)

    def loss(state, features, *others):
        outputs = nnx.merge(graphdef, state)(*others, features)
        return jnp.sum(outputs.astype(jnp.float32) ** 2)

    *others, features = args
    return Program(jax.value_and_grad(loss, (0, 1)), (state, features, *others))


def _maxk_sage(scale: str, hidden: int, layers: int) -> Program:
    options = training_step.TrainingStepOptions(scale, layers=layers, hidden=hidden)  # pyrefly: ignore
    data = training_step.load(options)
    state, step = training_step.make_step(options, data, hidden // 8)
    return Program(step, (state, data))


def _hyper_connection(width: int, tokens: int) -> Program:
    rngs = nnx.Rngs(0)
    layer = nnx.Linear(width, width, dtype=jnp.bfloat16, rngs=rngs)
    connection = nn.HyperConnection(layer, width, rngs=rngs)
    return _gradient_of(connection, jnp.ones((tokens, 4, width), jnp.bfloat16))


def _fused_mlp(width: int, rows: int) -> Program:
    rngs = nnx.Rngs(0)
    mlp = nn.FusedMLP([width] * 4, activation="relu", dtype=jnp.bfloat16, rngs=rngs)
    return _gradient_of(mlp, jnp.ones((rows, width), jnp.bfloat16))


def _message_passing(width: int, nodes: int, edges: int) -> Program:
    rngs = nnx.Rngs(0)
    messages = nn.EdgeMLP(width, [width] * 2, rngs=rngs)
    passing = nn.MessagePassing(messages, nn.GRUUpdate(width, width, rngs=rngs), num_steps=8)
    senders, receivers = np.random.default_rng(0).integers(0, nodes, (2, edges))
    graph = CSRGraph.from_edges(senders, receivers, nodes)
    return _gradient_of(passing, graph, jnp.ones((nodes, width)))


def _attention(scale: str, width: int) -> Program:
    data = synthetic(scale, on_device=jax.default_backend() != "cpu")  # pyrefly: ignore
    graph = build_graph(data.senders, data.receivers, SCALES[scale].nodes)

    def loss(inputs, graph):
        queries, keys, values = inputs
        weights = ops.segment_softmax(graph, ops.sddmm(graph, queries, keys))
        return jnp.sum(ops.spmm(graph.with_weights(weights), values) ** 2)

    x = jnp.ones((graph.num_rows, width))
    return Program(jax.value_and_grad(loss), ((x, x, x), graph))


def _neighbours(op: str, scale: str, heads: int, width: int) -> Program:
    data = synthetic(scale, on_device=jax.default_backend() != "cpu")  # pyrefly: ignore
    graph = build_graph(data.senders, data.receivers, SCALES[scale].nodes)

    def loss(inputs, graph):
        return jnp.sum(getattr(ops, op)(graph, *inputs) ** 2)

    x = jnp.ones((graph.num_rows, heads, width))
    return Program(jax.value_and_grad(loss), ((x, x, x[0]), graph))


def _cases(
    *, scale: str, hidden: int, layers: int, stream: int, tokens: int, rows: int, width: int
) -> Mapping[str, FirstStep]:
    passing, edges = partial(_message_passing, min(width, 64), 4_000), 10_000
    connection, mlp = partial(_hyper_connection, stream), partial(_fused_mlp, width)
    return {
        "maxk_sage": FirstStep(
            f"training step of MaxK-SAGE, {layers} x {hidden}, graph {scale}",
            partial(_maxk_sage, scale, hidden, layers),
        ),
        "hyper_connection": FirstStep(
            f"gradient of HyperConnection(Linear {stream}), {tokens} tokens, bfloat16",
            partial(connection, tokens),
            partial(connection, tokens + 1),
        ),
        "fused_mlp": FirstStep(
            f"gradient of FusedMLP, 3 x {width}, {rows} rows, bfloat16",
            partial(mlp, rows),
            partial(mlp, rows + 1),
        ),
        "message_passing": FirstStep(
            f"gradient of MessagePassing, 8 steps, {min(width, 64)} wide, {edges} edges",
            partial(passing, edges),
            partial(passing, edges + 400),
        ),
        "attention": FirstStep(
            f"gradient of sddmm, segment_softmax and spmm, {min(width, 64)} wide, graph {scale}",
            partial(_attention, scale, min(width, 64)),
        ),
        "gatv2_attention": FirstStep(
            f"gradient of gatv2_attention, 4 heads of {min(width, 64)}, graph {scale}",
            partial(_neighbours, "gatv2_attention", scale, 4, min(width, 64)),
        ),
    }


CASES: Mapping[str, Mapping[str, FirstStep]] = {
    "full": _cases(
        scale="reddit",
        hidden=256,
        layers=4,
        stream=1280,
        tokens=16_384,
        rows=1_000_000,
        width=128,
    ),
    "small": _cases(
        scale="tiny", hidden=64, layers=4, stream=128, tokens=512, rows=4_096, width=64
    ),
    "tiny": _cases(scale="tiny", hidden=16, layers=1, stream=16, tokens=8, rows=64, width=16),
}
