"""Checking and timing the aggregation kernels on the graph that is trained on."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import replace

import jax
import jax.numpy as jnp

from experiments.maxk.config import TrainConfig
from jaxgnn import CSRGraph, ops
from jaxgnn.testing.timing import measure


def aggregation(config: TrainConfig) -> Callable[[CSRGraph, jax.Array, int | None], jax.Array]:
    """The activation and aggregation of one layer, ``(graph, x, k) -> y``, as the model runs it."""

    def apply(graph: CSRGraph, x: jax.Array, k: int | None) -> jax.Array:
        if k is None:
            return ops.spmm(graph, jax.nn.relu(x), implementation=config.implementation)
        kept = ops.maxk(x, k, implementation=config.implementation)
        if config.kernel_mode == "dense":
            dense = ops.todense(kept, implementation=config.implementation)
            return ops.spmm(graph, dense, implementation=config.implementation)
        name = config.implementation
        if config.kernel_mode == "maxk" and name is None:
            name = ops.sparse_implementation(graph, kept)
        return ops.maxk_spmm(graph, kept, implementation=name)

    return apply


def relative_errors(config: TrainConfig, graph: CSRGraph, x: jax.Array) -> dict[str, float]:
    """Largest error of value and gradient against the reference, relative to the largest entry."""
    ks = config.layer_ks()
    k = None if ks is None else max(ks)
    dy = jax.random.normal(jax.random.key(config.seed), (graph.num_rows, x.shape[-1]), x.dtype)
    reference = aggregation(replace(config, implementation="xla", kernel_mode="dense"))

    def value_and_gradient(apply):
        value, pull_back = jax.vjp(lambda x: apply(graph, x, k), x)
        return value, pull_back(dy)[0]

    errors = {}
    pairs = zip(
        ("forward", "backward"),
        value_and_gradient(aggregation(config)),
        value_and_gradient(reference),
        strict=True,
    )
    for name, actual, expected in pairs:
        difference = jnp.abs(actual.astype(jnp.float32) - expected.astype(jnp.float32))
        largest = jnp.maximum(jnp.abs(expected.astype(jnp.float32)).max(), 1e-30)
        errors[name] = float(difference.max() / largest)
    return errors


def validated(config: TrainConfig, graph: CSRGraph, width: int) -> TrainConfig:
    """Compares the kernels with the reference; the config to train with, kernels or dense XLA.

    Args:
      config: with ``fallback_threshold``.
      graph: the graph to train on.
      width: hidden features.
    """
    x = jax.random.normal(jax.random.key(config.seed), (graph.num_cols, width), config.dtype)
    errors = relative_errors(config, graph, x)
    print("kernel validation: " + ", ".join(f"{n} error {e:.1e}" for n, e in errors.items()))
    # NaN compares false: it must not pass.
    if all(error <= config.fallback_threshold for error in errors.values()):
        return config
    warnings.warn(
        f"kernel validation: an error exceeds {config.fallback_threshold:.1e}; training with "
        "dense XLA instead",
        stacklevel=2,
    )
    return replace(config, kernel_mode="dense", implementation="xla")


def profile(config: TrainConfig, graph: CSRGraph, width: int) -> dict[str, float]:
    """Milliseconds an epoch spends in activation and aggregation, over all layers.

    Measured apart from training, on random features, layer by layer.

    Returns:
      ``forward ms`` and ``backward ms``; backward is forward-and-backward less forward.
    """
    apply = aggregation(config)
    x = jax.random.normal(jax.random.key(config.seed), (graph.num_cols, width), config.dtype)
    ks = config.layer_ks() or (None,) * config.recipe().num_layers
    forward = both = 0.0
    for k in set(ks):
        layers = ks.count(k)

        def run(graph, x, k=k):
            return apply(graph, x, k)

        def run_both(graph, x, k=k):
            value, pull_back = jax.vjp(lambda x: apply(graph, x, k), x)
            return pull_back(value)

        forward += layers * measure(run, graph, x).median_ms
        both += layers * measure(run_both, graph, x).median_ms
    return {"forward ms": forward, "backward ms": max(both - forward, 0.0)}
