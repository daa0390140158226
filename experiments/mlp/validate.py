"""A network trained on the digits, and how far its fused layers are from what they stand for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

import jaxgnn
from experiments.mlp.config import ValidateConfig
from experiments.mlp.data import PIXELS, large_digits
from experiments.mlp.differences import largest_difference
from jaxgnn import nn, ops
from jaxgnn.datasets import NodeDataset
from jaxgnn.training import LoopConfig, accuracy, fit

_FEATURES = (PIXELS, 256, 256, 10)

# f(layers, x) -> logits, with layers a list of pairs of kernel and bias
Forward = Callable[[list[tuple[jax.Array, jax.Array]], jax.Array], jax.Array]
Differences = dict[str, dict[str, float]]


def validate(config: ValidateConfig) -> Differences:
    """Trains 784-256-256-10 on the digits, compares its layers, and runs it in the strict mode.

    The trained network, as one ``fused_mlp`` and as three ``fused_linear``, is run on the test
    images. Logits, and the gradients of the mean cross entropy to images and parameters, are
    compared with those of plain JAX code, which JAX differentiates, in float32 and in float64.
    Then both run under ``jaxgnn.verify("strict")``.

    Args:
      config: the options of the run.

    Returns:
      The largest absolute difference of logits and gradients in each comparison.

    Raises:
      ValueError: if an option is at fault.
      VerificationError: if a difference is larger than the tolerance.
    """
    data = large_digits()
    model = _train(config, data)
    layers = [(layer.kernel[...], layer.bias[...]) for layer in model.layers]  # pyrefly: ignore
    images, labels = jnp.asarray(data.features[data.test]), jnp.asarray(data.labels[data.test])
    score = accuracy(model(images), data.labels[data.test])
    print(f"{'-'.join(map(str, _FEATURES))} on the digits: test accuracy: {score:.4f}")

    fused = _fused(config.implementation)
    differences = _compare(fused, layers, images, labels)
    largest = max(max(each.values()) for each in differences.values())
    print(f"max abs diff: {largest:.1e} (tolerance {config.tolerance:.0e})")
    # NaN compares false: it must not pass.
    if not largest <= config.tolerance:
        raise ops.VerificationError(
            f"validate: the largest difference, {largest:.1e}, is more than {config.tolerance:.0e}"
        )
    for name, forward in fused.items():
        checked = _run_strict(config, forward, layers, images, labels)
        found = "agrees with its reference" if checked else "runs its reference: nothing to check"
        print(f"STRICT, {name}: {found}")
    return differences


def _train(config: ValidateConfig, data: NodeDataset) -> nn.FusedMLP:
    model = nn.FusedMLP(
        _FEATURES,
        activation="relu",
        precision="highest",
        implementation=config.implementation,
        rngs=nnx.Rngs(config.seed),
    )

    def batch(step: int):
        rng = np.random.default_rng((config.seed, step))
        chosen = rng.choice(data.train, config.batch_size)
        return data.features[chosen], data.labels[chosen]

    result = fit(
        model,
        optax.adam(config.learning_rate),
        lambda model, batch, _: (_cross_entropy(model(batch[0]), batch[1]), {}),
        batch,
        config=LoopConfig(steps=config.steps, seed=config.seed),
        progress=config.progress,
    )
    print(f"{config.steps} steps, last loss: {result.history[-1]['loss']:.4f}")
    return result.model


def _cross_entropy(logits: jax.Array, labels: jax.Array) -> jax.Array:
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()


def _fused(implementation: ops.Name | None) -> Mapping[str, Forward]:
    """The network by either op."""
    options: dict[str, Any] = {"precision": "highest", "implementation": implementation}

    def mlp(layers, x):
        kernels, biases = zip(*layers, strict=True)
        return ops.fused_mlp(x, kernels, biases, activation="relu", **options)

    def linear(layers, x):
        *hidden, last = layers
        for layer in hidden:
            x = ops.fused_linear(x, *layer, activation="relu", **options)
        return ops.fused_linear(x, *last, **options)

    return {"fused_mlp": mlp, "fused_linear": linear}


def _plain(layers, x):
    """The network without our ops."""
    *hidden, (kernel, bias) = layers
    for hidden_kernel, hidden_bias in hidden:
        x = jax.nn.relu(x @ hidden_kernel + hidden_bias)
    return x @ kernel + bias


def _results(forward: Forward):
    """``(layers, images, labels) -> (logits, gradients)``, compiled."""

    def loss(layers, images, labels):
        logits = forward(layers, images)
        return _cross_entropy(logits, labels), logits

    def results(layers, images, labels):
        (_, logits), gradients = jax.value_and_grad(loss, (0, 1), has_aux=True)(
            layers, images, labels
        )
        return logits, gradients

    return jax.jit(results)


def _compare(fused: Mapping[str, Forward], layers, images, labels) -> Differences:
    """Prints a line for each op and reference."""
    with jax.default_matmul_precision("highest"):
        expected = {"plain JAX": _results(_plain)(layers, images, labels)}
    expected["float64"] = _in_float64(layers, images, labels)
    differences: Differences = {}
    print(f"\n{'max abs diff':<30}  {'logits':>8}  {'gradients':>9}")
    for op, forward in fused.items():
        actual = _results(forward)(layers, images, labels)
        for reference, values in expected.items():
            logits, gradients = map(largest_difference, actual, values)
            name = f"{op} from {reference}"
            differences[name] = {"logits": logits, "gradients": gradients}
            print(f"{name:<30}  {logits:8.1e}  {gradients:9.1e}")
    return differences


def _in_float64(layers, images, labels):
    """Returns the results of the plain network for the same numbers, as NumPy arrays."""
    numbers = jax.tree.map(lambda array: np.asarray(array, np.float64), (layers, images))
    labels = np.asarray(labels)
    with jax.enable_x64(True), jax.default_matmul_precision("highest"):
        return jax.tree.map(np.asarray, _results(_plain)(*numbers, labels))


def _run_strict(config: ValidateConfig, forward: Forward, layers, images, labels) -> bool:
    """Runs forward and backward in the strict mode; returns whether that compared anything.

    Raises:
      VerificationError: if an implementation and the reference differ.
    """
    run = _results(forward)
    with jaxgnn.verify("strict", tolerance=config.tolerance):
        # The verdicts are callbacks.
        checked = "debug_callback" in str(jax.make_jaxpr(run)(layers, images, labels))
        try:
            jax.block_until_ready(run(layers, images, labels))
            jax.effects_barrier()
        except jax.errors.JaxRuntimeError as error:
            if "VerificationError" not in str(error):
                raise
            last = str(error).strip().splitlines()[-1]
            raise ops.VerificationError(f"validate: STRICT: {last}") from error
    return checked
