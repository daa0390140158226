"""Validation and timing of the aggregation kernels on the training graph."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import replace

import jax
import jax.numpy as jnp

from experiments.maxk.config import TrainConfig
from jaxgnn import CSRGraph, nn, ops
from jaxgnn.testing.timing import Candidate, Timing, measure_in_turns


def aggregation(config: TrainConfig) -> Callable[[CSRGraph, jax.Array, int | None], jax.Array]:
    """The activation and aggregation of one layer, ``(graph, x, k) -> y``, as the model runs it."""

    def apply(graph: CSRGraph, x: jax.Array, k: int | None) -> jax.Array:
        activated = (
            jax.nn.relu(x) if k is None else ops.maxk(x, k, implementation=config.implementation)
        )
        return nn.aggregate(
            graph,
            activated,
            kernel_mode=config.kernel_mode,
            implementation=config.implementation,
        )

    return apply


def relative_errors(config: TrainConfig, graph: CSRGraph, x: jax.Array) -> dict[str, float]:
    """Largest error of value and gradient against the reference, relative to the largest entry.

    Errors are the largest over all k of the run.
    """
    dy = jax.random.normal(jax.random.key(config.seed), (graph.num_rows, x.shape[-1]), x.dtype)
    reference = replace(config, implementation="xla", kernel_mode="dense")
    errors = {"forward": 0.0, "backward": 0.0}
    for k in sorted(config.all_ks()) or [None]:
        results = []
        for variant in (config, reference):
            apply = aggregation(variant)

            @jax.jit
            def value_and_gradient(graph, x, dy, apply=apply, k=k):
                value, pull_back = jax.vjp(lambda x: apply(graph, x, k), x)
                return value, pull_back(dy)[0]

            results.append(value_and_gradient(graph, x, dy))
        for name, actual, expected in zip(errors, *results, strict=True):
            # NaN must win over every number.
            errors[name] = float(jnp.maximum(errors[name], _relative_error(actual, expected)))
    return errors


def _relative_error(actual: jax.Array, expected: jax.Array) -> jax.Array:
    difference = jnp.abs(actual.astype(jnp.float32) - expected.astype(jnp.float32)).max()
    return difference / jnp.maximum(jnp.abs(expected.astype(jnp.float32)).max(), 1e-30)


def validated(config: TrainConfig, graph: CSRGraph, width: int) -> TrainConfig:
    """Compares the kernels with the reference; returns the config with kernels or dense XLA.

    Args:
      config: options of the run, including ``fallback_threshold``.
      graph: the graph to train on.
      width: hidden features.
    """
    x = jax.random.normal(jax.random.key(config.seed), (graph.num_cols, width), config.dtype)
    errors = relative_errors(config, graph, x)
    threshold = config.threshold()
    print("kernel validation: " + ", ".join(f"{n} error {e:.1e}" for n, e in errors.items()))
    # NaN compares false: it must not pass.
    if all(error <= threshold for error in errors.values()):
        return config
    warnings.warn(
        f"kernel validation: an error exceeds {threshold:.1e}; training with dense XLA instead",
        stacklevel=2,
    )
    return replace(config, kernel_mode="dense", implementation="xla")


def profile(config: TrainConfig, graph: CSRGraph, width: int) -> dict[str, float]:
    """Milliseconds an epoch spends in activation and aggregation, over all layers.

    Measured separately from training, on random features, layer by layer.

    Returns:
      ``forward ms`` and ``backward ms``; backward is forward-and-backward minus forward. NaN after
      running out of memory.
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

        # In turns, so that a changing clock does not affect the difference.
        times = measure_in_turns(
            {"forward": Candidate(run, [(graph, x)]), "both": Candidate(run_both, [(graph, x)])}
        )
        forward += layers * _median(times["forward"])
        both += layers * _median(times["both"])
    return {"forward ms": forward, "backward ms": max(both - forward, 0.0)}


def _median(timing: Timing | None) -> float:
    return math.nan if timing is None else timing.median_ms
