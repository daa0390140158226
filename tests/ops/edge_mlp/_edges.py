"""Inputs of ``edge_mlp_aggregate``, and its values and gradients."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np

from jaxgnn import CSRGraph, ops
from jaxgnn.testing import random_array

WIDTHS = (6, 8, 7)
REDUCTIONS = ("sum", "mean", "max")

# Small programs: what compiling them well would save is less than it takes.
QUICK = {"xla_backend_optimization_level": 0} if jax.default_backend() == "cpu" else None


def _bipartite(name: str) -> CSRGraph:
    """Nine receivers, seven senders and 40 slots, so that one program runs on all of these."""
    rng = np.random.default_rng(0)
    senders, receivers, mask = rng.integers(0, 7, 40), rng.integers(0, 9, 40), None
    match name:
        case "isolated nodes":
            receivers = receivers // 2 * 2
            senders = senders % 4
        case "repeated edges":
            senders, receivers = np.repeat(senders[:5], 8), np.repeat(receivers[:5], 8)
        case "padding":
            mask = np.arange(40) % 3 > 0
        case "all padding":
            mask = np.zeros(40, bool)
        case "one row has all edges":
            receivers[:] = 4
    return CSRGraph.from_edges(senders, receivers, 9, num_senders=7, edge_mask=mask)


def ring() -> CSRGraph:
    """Twelve nodes that each receive from four, themselves among them, and send to four."""
    senders = (np.arange(12)[:, None] + np.array([0, 1, 5, 7])) % 12
    return CSRGraph.from_edges(senders.ravel(), np.repeat(np.arange(12), 4), 12)


BIPARTITE = {
    name: _bipartite(name)
    for name in (
        "random",
        "isolated nodes",
        "repeated edges",
        "padding",
        "all padding",
        "one row has all edges",
    )
}
RING = ring()


def params(num_layers, inputs, dtype="float32", seed=10, out=3):
    """Layers whose outputs have about the size of their inputs; the second has no bias."""
    widths = (inputs, *WIDTHS[: num_layers - 1], out)
    kernels, biases = [], []
    for i, (before, after) in enumerate(itertools.pairwise(widths)):
        kernels.append(random_array((before, after), dtype, seed + i, scale=before**-0.5))
        biases.append(None if i == 1 else random_array((after,), dtype, seed + 50 + i, scale=0.5))
    return ops.EdgeMLPParams(tuple(kernels), tuple(biases))


def inputs(graph, *, batch=(), num_layers=3, dtype="float32", own=False):
    """Ends of different widths, layers, edge features and weights, these for each batch if own."""
    ends = tuple(
        random_array((*batch, nodes, width), dtype, seed)
        for nodes, width, seed in ((graph.num_rows, 5, 1), (graph.num_cols, 4, 2))
    )
    leading = batch if own else ()
    features = random_array((*leading, graph.num_edges, 2), dtype, seed=3)
    weights = jnp.abs(random_array((*leading, graph.num_edges), "float32", seed=4)) + 0.1
    return ends, params(num_layers, 11, dtype), features, weights


def apply(graph, ends, layers, features, weights, **options):
    """The op, of a graph and what ``inputs`` makes."""
    return ops.edge_mlp_aggregate(graph, ends, layers, features, weights=weights, **options)


def values_and_gradients(functions, *arguments):
    """Of each function, for a cotangent of its own, as one program."""
    results = []
    for i, function in enumerate(functions):
        y, pull_back = jax.vjp(function, *arguments)
        results.append((y, pull_back(random_array(y.shape, y.dtype, seed=90 + i))))
    return results


@functools.partial(jax.jit, static_argnames=("variants", "implementation"), compiler_options=QUICK)
def of_variants(graph, arguments, variants, implementation=None):
    """Values and gradients for each of a tuple of (reduction, activation)."""
    functions = [
        functools.partial(apply, graph, reduce=r, activation=a, implementation=implementation)
        for r, a in variants
    ]
    return values_and_gradients(functions, *arguments)
