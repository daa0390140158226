"""MLP messages over both ends of edges, with and without our op, and their minimal cost."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import optax
from flax import nnx

from experiments.benchmarks._baselines import to_torch, torch_call, torch_here, wait_for_torch
from experiments.benchmarks._cases import DIRECTIONS, Candidate, Differentiable, implementations
from experiments.benchmarks._layers import traced_with, with_plain_layers
from experiments.benchmarks._torch_relational import torch_training_steps
from experiments.benchmarks._workloads import Messages, input_sets
from jaxgnn import ops
from jaxgnn.graph import CSRGraph
from jaxgnn.models import RecurrentRelationalNetwork, sudoku_cross_entropy
from jaxgnn.ops.shared import edge_mlp_aggregate

# h and y; then h, dy and dh.
_PASSES = {"forward": 2, "forward+backward": 5}
_PRODUCTS = {"forward": 1, "forward+backward": 3}


def bytes_moved(workload: Messages, graph: CSRGraph, direction: str, itemsize: int) -> int:
    """Bytes of nodes, once for each pass that reads or writes them, and the structure, once a way.

    Features of senders, which are read once for each edge, count once, because a cache may serve
    further reads.
    """
    structure = graph.indptr.nbytes + graph.indices.nbytes
    passes = _PASSES[direction] * workload.nodes * workload.dim * itemsize
    return passes + (1 if direction == "forward" else 2) * structure


def flops(workload: Messages, graph: CSRGraph, direction: str) -> int:
    """Counts the fewest sufficient products: first and last layer act on nodes, not edges.

    Recomputation does not count.
    """
    square = 2 * workload.dim**2
    by_nodes = (2 if workload.layers == 1 else 3) * workload.nodes
    by_edges = max(workload.layers - 2, 0) * workload.boards * graph.num_edges
    return _PRODUCTS[direction] * square * (by_nodes + by_edges)


def step_flops(workload: Messages, graph: CSRGraph) -> int:
    """Counts the products of a training step: messages, the MLP before the LSTM, and the LSTM."""
    messages = flops(workload, graph, "forward+backward")
    update = (workload.layers + 1) * workload.dim**2 + 2 * workload.dim * 4 * workload.dim
    return workload.steps * (messages + 3 * 2 * workload.nodes * update)


def step_bytes(workload: Messages, itemsize: int) -> int:
    """Bytes of a training step: h and the float32 cell, read and written forward and backward."""
    return workload.steps * 5 * workload.nodes * workload.dim * (itemsize + 4)


@contextlib.contextmanager
def without_kernels():
    """Context manager in which traced layers of edges are left to XLA, split as in the op."""
    by_xla = {"cpu": ("xla",), "cuda": ("xla",)}
    left = {
        name: replace(getattr(edge_mlp_aggregate, name), preference=by_xla)
        for name in ("FORWARD", "BACKWARD")
    }
    with mock.patch.multiple(edge_mlp_aggregate, **left):
        yield


@contextlib.contextmanager
def with_plain_messages():
    """Context manager in which traced messages are plain JAX code."""

    def aggregate(graph, h, params, edge_features=None, *, reduce, activation, **options):
        assert (edge_features, reduce, activation) == (None, "sum", "relu")
        assert options.pop("weights") is None
        return plain_messages(graph, h, *params)

    with mock.patch.object(ops, "edge_mlp_aggregate", aggregate):
        yield


def plain_messages(graph: CSRGraph, h, kernels, biases) -> jax.Array:
    """Concatenates both ends of each edge, applies an MLP with relu, and sums each row."""
    rows = graph.receivers()
    x = jnp.concatenate([h[..., rows, :], h[..., graph.indices, :]], axis=-1)
    for place, (kernel, bias) in enumerate(zip(kernels, biases, strict=True)):
        x = x @ kernel if bias is None else x @ kernel + bias
        x = jax.nn.relu(x) if place + 1 < len(kernels) else x
    degree = graph.uniform_degrees()[0]
    if degree is not None:
        return x.reshape(*x.shape[:-2], -1, degree, x.shape[-1]).sum(-2)
    return jax.ops.segment_sum(x, rows, graph.num_rows, indices_are_sorted=True)


def _split(function: Callable, inputs: list[tuple]) -> dict[str, Candidate]:
    """The candidate without kernels; omitted on a CPU, where it equals the op."""
    if jax.default_backend() == "cpu":
        return {}
    return {"split": Candidate(traced_with(without_kernels, function), inputs)}


@dataclass(frozen=True)
class MessageOp:
    """The op on a workload.

    Attributes:
      workload: sizes of the graphs and layers.
      graph: graph of one board.
    """

    workload: Messages
    graph: CSRGraph

    def inputs(self, dtype: str) -> list[tuple]:
        """Random sets of ``(graph, (h, kernels, biases), dy)``, all of order one.

        A regular graph is replaced by None, because as an argument its degrees would be unknown.
        """
        load = self.workload
        context = None if self.graph.uniform_degrees()[0] is not None else self.graph
        leading = (load.boards,) if load.boards > 1 else ()
        form = (*leading, load.nodes // load.boards, load.dim)
        widths = (2 * load.dim, *[load.dim] * load.layers)

        def make(key):
            h_key, dy_key, *keys = jax.random.split(key, 2 + load.layers)
            kernels = tuple(
                (jax.random.normal(k, pair) * (2 / pair[0]) ** 0.5).astype(dtype)
                for k, pair in zip(keys, pairwise(widths), strict=True)
            )
            biases = tuple(jnp.full((load.dim,), 0.1, dtype) for _ in kernels)
            h, dy = (jax.random.normal(k, form).astype(dtype) for k in (h_key, dy_key))
            return (h, kernels, biases), dy

        return [(context, *arrays) for arrays in input_sets(make)]

    def ours(self, implementation: ops.Name | None) -> Differentiable:
        """Runs the op of this library."""

        def run(graph, arrays):
            h, *layers = arrays
            params = ops.EdgeMLPParams(*layers)
            options: dict[str, Any] = {"activation": "relu", "implementation": implementation}
            graph = self.graph if graph is None else graph
            return ops.edge_mlp_aggregate(graph, h, params, **options), None

        return run

    def plain(self, graph, arrays) -> tuple[jax.Array, None]:
        """Runs plain JAX code for the messages."""
        return plain_messages(self.graph if graph is None else graph, *arrays), None

    def torch_layer(self) -> Callable:
        """Runs plain torch code, which concatenates both ends of each edge."""
        torch, functional = (importlib.import_module(m) for m in ("torch", "torch.nn.functional"))
        graph = self.graph
        rows, senders = (to_torch(ends).long() for ends in (graph.receivers(), graph.indices))
        degree = graph.uniform_degrees()[0]

        def layer(h, *parameters):
            weights, biases = parameters[: len(parameters) // 2], parameters[len(parameters) // 2 :]
            x = torch.cat([h.index_select(-2, rows), h.index_select(-2, senders)], -1)
            for place, (weight, bias) in enumerate(zip(weights, biases, strict=True)):
                x = functional.linear(x, weight, bias)
                x = functional.relu(x) if place + 1 < len(weights) else x
            if degree is not None:
                return x.unflatten(-2, (-1, degree)).sum(-2)
            return torch.zeros_like(h).index_add(-2, rows, x)

        return layer

    def candidates(self, direction: str, inputs: list[tuple]) -> dict[str, Candidate]:
        """Plain JAX, named xla; kernels; the split op without them, and as it chooses; torch."""
        auto = DIRECTIONS[direction](self.ours(None))
        return {
            **implementations(self.ours, direction, inputs),
            # Not the op's implementation of that name, whose row sums do not use equal degrees.
            "xla": Candidate(DIRECTIONS[direction](self.plain), inputs),
            **_split(auto, inputs),
            "auto": Candidate(auto, inputs),
            **self._torch_candidates(direction, inputs),
        }

    def _torch_candidates(self, direction: str, inputs: list[tuple]) -> dict[str, Candidate]:
        torch = torch_here()
        if torch is None:
            return {}
        layers = {"torch": self.torch_layer()}
        if importlib.util.find_spec("triton") is not None:
            layers["torch compiled"] = torch.compile(layers["torch"])
        candidates = {}
        for name, layer in layers.items():
            calls = []
            for _, (h, kernels, biases), dy in inputs:
                weights = [to_torch(kernel).T.contiguous() for kernel in kernels]
                leaves = [to_torch(h), *weights, *map(to_torch, biases)]
                calls.append((torch_call(direction, layer, leaves, to_torch(dy)),))
            options: dict[str, Any] = {"jit": False, "wait": wait_for_torch}
            candidates[name] = Candidate(lambda call: call(), calls, **options)
        return candidates


def training_steps(workload: Messages, graph: CSRGraph, dtype: str) -> dict[str, Candidate]:
    """A training step: plain messages, named xla; ours without kernels, and as chosen; torch.

    ``plain layers`` has our messages, but plain JAX for the linear layers of all other MLPs.
    """
    step, inputs = _training_step(workload, dtype)
    (_, puzzles, solutions), *_ = inputs
    return {
        "xla": Candidate(traced_with(with_plain_messages, step), inputs),
        **_split(step, inputs),
        "plain layers": Candidate(traced_with(with_plain_layers, step), inputs),
        "auto": Candidate(step, inputs),
        **torch_training_steps(workload, graph, dtype, puzzles, solutions),
    }


def _training_step(workload: Messages, dtype: str):
    model = RecurrentRelationalNetwork(
        box=workload.box,
        features=workload.dim,
        num_steps=workload.steps,
        dtype=jnp.dtype(dtype),
        rngs=nnx.Rngs(0),
    )
    graphdef, params, other = nnx.split(model, nnx.Param, ...)
    optimizer = optax.adam(2e-4)
    cells = workload.box**4
    digits = jax.random.randint(
        jax.random.key(1), (workload.boards, cells), 1, workload.box**2 + 1, jnp.int32
    )
    is_given = jax.random.bernoulli(jax.random.key(2), 0.4, digits.shape)

    def loss_of(params, puzzles, solutions):
        network = nnx.merge(graphdef, params, other)
        return sudoku_cross_entropy(network(puzzles), solutions)

    def step(state, puzzles, solutions):
        params, optimizer_state = state
        loss, gradient = jax.value_and_grad(loss_of)(params, puzzles, solutions)
        with jax.numpy_dtype_promotion("standard"):  # optax mixes dtypes
            updates, optimizer_state = optimizer.update(gradient, optimizer_state, params)
            params = optax.apply_updates(params, updates)
        return (params, optimizer_state), loss

    state = params, optimizer.init(params)
    return step, [(state, jnp.where(is_given, digits, 0), digits)]
