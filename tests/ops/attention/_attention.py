"""The ops of attention as a table: how each is called, and with which arrays."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from jaxgnn import ops
from jaxgnn.ops._attention import dot_attention, gat_attention, gatv2_attention
from jaxgnn.testing import random_array
from tests.ops._table import usable

HEADS, GROUPS, DIM, WIDTH, FEATURES = 4, 2, 5, 3, 2
SHARED = ("attention", "edge_kernel", "edge_value_kernel")
"""Arrays that have no batch axes."""


@dataclass(frozen=True)
class Attention:
    """An op.

    Attributes:
      name: of the op.
      required: shapes of its arrays, by name, from the rows, columns and edges of a graph.
      optional: shapes of the arrays that it can do without. A map of the features of edges to
        values, ``edge_value_kernel``, is passed in a pair with ``edge_kernel``.
      score: one edge's score for one head, in NumPy, from the arrays by name; the op's definition.
      slopes: bounds of the derivative of a score by one number of each array, by name, from the
        largest magnitudes in the arrays. An array without one has no part in the scores.
      in_sums: the same of a number that is summed, but for what is summed itself.
      summed: the name of what is summed.
    """

    name: str
    required: Callable[[int, int, int], dict[str, tuple[int, ...]]]
    optional: Callable[[int, int, int], dict[str, tuple[int, ...]]]
    score: Callable[..., float]
    slopes: Callable[[dict[str, float]], dict[str, float]]
    summed: str
    in_sums: Callable[[dict[str, float]], dict[str, float]] = lambda largest: {}

    def __call__(self, graph, arrays: dict[str, Any], **options):
        if "edge_value_kernel" in arrays:
            arrays = dict(arrays)
            arrays["edge_kernel"] = arrays["edge_kernel"], arrays.pop("edge_value_kernel")
        return getattr(ops, self.name)(graph, **arrays, **options)

    def arrays(self, graph, *, full=True, dtype="float32", batch=(), seed=1, scale=1.0):
        """Random arrays by name; with ``full`` those that the op can do without as well."""
        sizes = graph.num_rows, graph.num_cols, graph.num_edges
        shapes = self.required(*sizes) | (self.optional(*sizes) if full else {})
        return {
            name: random_array(
                shape if name in SHARED else (*batch, *shape), dtype, seed=seed + i, scale=scale
            )
            for i, (name, shape) in enumerate(shapes.items())
        }


def _leaky_relu(x, slope=0.2):
    return np.where(x > 0, x, slope * x)


def _dot_score(a, i, j, e, h):
    group = h // (a["q"].shape[1] // a["k"].shape[1])
    key = a["k"][j, group]
    if "edge_kernel" in a:
        key = key + a["edge_features"][e] @ a["edge_kernel"][:, group]
    return a["q"][i, h] @ key / np.sqrt(a["q"].shape[-1]) + _logit(a, e, h)


def _gat_score(a, i, j, e, h):
    return _leaky_relu(a["a_dst"][i, h] + a["a_src"][j, h] + _logit(a, e, h))


def _gatv2_score(a, i, j, e, h):
    total = a["x_dst"][i, h] + a["x_src"][j, h]
    if "edge_features" in a:
        total = total + a["edge_features"][e] @ a["edge_kernel"][:, h]
    return a["attention"][h] @ _leaky_relu(total) + _logit(a, e, h)


def _dot_slopes(largest):
    scale = DIM**-0.5
    features, kernel = largest.get("edge_features", 0.0), largest.get("edge_kernel", 0.0)
    return {
        "q": scale * (largest["k"] + FEATURES * features * kernel),
        "k": scale * largest["q"],
        "edge_logits": 1.0,
        "edge_features": scale * DIM * largest["q"] * kernel,
        "edge_kernel": scale * largest["q"] * features,
    }


def _dot_in_sums(largest):
    return {
        "edge_values": 1.0,
        "edge_features": WIDTH * largest.get("edge_value_kernel", 0.0),
        "edge_value_kernel": largest.get("edge_features", 0.0),
    }


def _gat_slopes(largest):
    return {"a_dst": 1.0, "a_src": 1.0, "edge_logits": 1.0}


def _gatv2_slopes(largest):
    vector, kernel = largest["attention"], largest.get("edge_kernel", 0.0)
    features = largest.get("edge_features", 0.0)
    added = FEATURES * features * kernel
    return {
        "x_dst": vector,
        "x_src": vector,
        "attention": largest["x_dst"] + largest["x_src"] + added,
        "edge_logits": 1.0,
        "edge_features": DIM * vector * kernel,
        "edge_kernel": vector * features,
    }


def _logit(a, e, h):
    return a["edge_logits"][e, h] if "edge_logits" in a else 0.0


TABLE = {
    attention.name: attention
    for attention in (
        Attention(
            "dot_attention",
            lambda rows, cols, edges: {
                "q": (rows, HEADS, DIM),
                "k": (cols, GROUPS, DIM),
                "v": (cols, GROUPS, WIDTH),
            },
            lambda rows, cols, edges: {
                "edge_logits": (edges, HEADS),
                "edge_values": (edges, GROUPS, WIDTH),
                "edge_features": (edges, FEATURES),
                "edge_kernel": (FEATURES, GROUPS, DIM),
                "edge_value_kernel": (FEATURES, GROUPS, WIDTH),
            },
            _dot_score,
            _dot_slopes,
            "v",
            _dot_in_sums,
        ),
        Attention(
            "gat_attention",
            lambda rows, cols, edges: {
                "a_dst": (rows, HEADS),
                "a_src": (cols, HEADS),
                "v": (cols, HEADS, DIM),
            },
            lambda rows, cols, edges: {"edge_logits": (edges, HEADS)},
            _gat_score,
            _gat_slopes,
            "v",
        ),
        Attention(
            "gatv2_attention",
            lambda rows, cols, edges: {
                "x_dst": (rows, HEADS, DIM),
                "x_src": (cols, HEADS, DIM),
                "attention": (HEADS, DIM),
            },
            lambda rows, cols, edges: {
                "edge_logits": (edges, HEADS),
                "edge_features": (edges, FEATURES),
                "edge_kernel": (FEATURES, HEADS, DIM),
            },
            _gatv2_score,
            _gatv2_slopes,
            "x_src",
        ),
    )
}
_MODULES = {
    "dot_attention": dot_attention,
    "gat_attention": gat_attention,
    "gatv2_attention": gatv2_attention,
}
IMPLEMENTATIONS = usable(dot_attention.FORWARD)
COMPILED = [name for name in IMPLEMENTATIONS if name != "xla"]


def kernels(name: str):
    """The tables of an op's kernels."""
    module = _MODULES[name]
    return module.FORWARD, module.WEIGHTS, module.BACKWARD


def by_hand(attention: Attention, graph, arrays) -> tuple[np.ndarray, np.ndarray]:
    """The op in float64 with a loop over rows, heads and edges: sums and weights."""
    given = {name: np.asarray(array, np.float64) for name, array in arrays.items()}
    indptr, senders = np.asarray(graph.indptr), np.asarray(graph.indices)
    values = given[attention.summed]
    y = np.zeros((graph.num_rows, HEADS, values.shape[-1]))
    weights = np.zeros((graph.num_edges, HEADS))
    for row, head in np.ndindex(graph.num_rows, HEADS):
        edges = range(indptr[row], indptr[row + 1])
        scores = [attention.score(given, row, senders[e], e, head) for e in edges]
        if not scores or max(scores) == -np.inf:
            continue
        exponentials = np.exp(np.array(scores) - max(scores))
        group = head // (HEADS // values.shape[1])
        for e, p in zip(edges, exponentials / exponentials.sum(), strict=True):
            value = values[senders[e], group]
            if "edge_values" in given:
                value = value + given["edge_values"][e, group]
            if "edge_value_kernel" in given:
                value = value + given["edge_features"][e] @ given["edge_value_kernel"][:, group]
            weights[e, head] = p
            y[row, head] += p * value
    return y, weights


def value_and_gradients(attention, graph, arrays, implementation, key=None, **options):
    """Sums, weights and every gradient, as one program, which equal calls share."""
    static = attention.name, implementation, tuple(options.items())
    return _value_and_gradients(static, graph, arrays, key)


@functools.partial(jax.jit, static_argnums=0)
def _value_and_gradients(static, graph, arrays, key):
    name, implementation, options = static
    options = dict(options, implementation=implementation, key=key, return_weights=True)
    made, pull_back = jax.vjp(functools.partial(TABLE[name], graph, **options), arrays)
    return made, pull_back(cotangents_of(made))[0]


def cotangents_of(made):
    """The gradients to the sums and to the weights that ``value_and_gradients`` pulls back."""
    return tuple(random_array(m.shape, m.dtype, seed=70 + i) for i, m in enumerate(made))
