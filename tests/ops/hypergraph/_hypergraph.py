"""Hypergraphs and arguments for the convolution, and its formula in numpy with dense matrices."""

from __future__ import annotations

import numpy as np

from jaxgnn import Incidence
from jaxgnn.testing import random_array

NODES, HYPEREDGES, FEATURES, WIDTH, HEADS = 10, 7, 6, 8, 2


def awkward() -> Incidence:
    """Repeated incidences, padding, an isolated node, an empty hyperedge, a hyperedge of one."""
    rng = np.random.default_rng(0)
    index = rng.integers(0, (NODES - 1, HYPEREDGES - 2), (30, 2)).T
    index = np.concatenate([index, [[3], [HYPEREDGES - 1]]], axis=1)
    made = Incidence.from_hyperedge_index(index, NODES, HYPEREDGES).padded(num_incidences=35)
    dense = np.asarray(made.todense())
    assert dense.max() > 1 and 0 in dense.sum(axis=0) and 0 in dense.sum(axis=1)
    return made


INCIDENCE = awkward()


def arrays(
    dtype="float32",
    *,
    batch=(),
    width=WIDTH,
    weight=True,
    attention=True,
    concat=True,
    residual=False,
    scale=1.0,
):
    """The differentiable arguments by name."""
    out = width if concat else width // HEADS
    given = {
        "x": random_array((*batch, NODES, FEATURES), dtype, seed=1, scale=scale),
        "kernel": random_array((FEATURES, width), dtype, seed=2, scale=0.5),
        "bias": random_array((out,), dtype, seed=3),
    }
    if residual:
        given["residual"] = random_array((*batch, NODES, out), dtype, seed=7)
    if weight:
        given["weight"] = abs(random_array((HYPEREDGES,), "float32", seed=4)) + 0.25
    if attention:
        given["attributes"] = random_array((HYPEREDGES, FEATURES), dtype, seed=5)
        given["attention"] = random_array((HEADS, 2 * WIDTH // HEADS), dtype, seed=6)
    return given


def power(numbers: np.ndarray, exponent: float) -> np.ndarray:
    """Zero of zero."""
    return np.where(numbers == 0, 0, np.where(numbers == 0, 1, numbers) ** exponent)


ACTIVATIONS = {
    None: lambda z: z,
    "relu": lambda z: np.maximum(z, 0),
    "silu": lambda z: z / (1 + np.exp(-z)),
    "gelu": lambda z: z / (1 + np.exp(-2 * np.sqrt(2 / np.pi) * (z + 0.044715 * z**3))),
}


def formula(
    incidence,
    x,
    kernel,
    bias,
    weight=None,
    attributes=None,
    attention=None,
    *,
    weighting="paper",
    normalization="mean",
    attention_mode="node",
    concat=True,
    negative_slope=0.2,
    residual=0.0,
    activation=None,
):
    """The convolution of ``x [nodes, in]`` in float64."""
    x, kernel, bias = (np.asarray(a, np.float64) for a in (x, kernel, bias))
    counts = np.asarray(incidence.todense(), np.float64)
    w = np.ones(counts.shape[1]) if weight is None else np.asarray(weight, np.float64)
    heads = 1 if attention is None else len(attention)
    outputs = []
    for head, theta in enumerate(np.split(kernel, heads, axis=1)):
        h = counts
        if attention is not None:
            a = np.asarray(attention, np.float64)[head]
            logits = (x @ theta) @ a[: len(a) // 2]
            logits = logits[:, None] + (np.asarray(attributes) @ theta) @ a[len(a) // 2 :]
            e = counts * np.exp(np.where(logits > 0, logits, negative_slope * logits))
            h = e * power(e.sum(axis=0 if attention_mode == "node" else 1, keepdims=True), -1)
        middle = (w if weighting == "paper" else 1) * power(counts.sum(axis=0), -1)
        degrees = counts @ w
        if normalization == "mean":
            left, right = power(degrees, -1), np.ones(len(x))
        else:
            left = right = power(degrees, -0.5)
        matrix = left[:, None] * (h * middle) @ h.T * right
        outputs.append(matrix @ x @ theta)
    y = np.concatenate(outputs, axis=1) if concat else np.mean(outputs, axis=0)
    return np.asarray(residual, np.float64) + ACTIVATIONS[activation](y + bias)
