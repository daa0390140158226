"""Training of a network on the digits, and differences between its fused and its plain layers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

import jaxgnn
from experiments._seeds import streams, summarize
from experiments.mlp.config import ValidateConfig
from experiments.mlp.data import PIXELS, large_digits, majority_accuracy, neighbour_accuracy
from experiments.mlp.differences import largest_difference
from jaxgnn import nn, ops
from jaxgnn.metrics import accuracy
from jaxgnn.training import LoopConfig, fit

_FEATURES = (PIXELS, 256, 256, 10)

# f(layers, x) -> logits, with layers a list of pairs of kernel and bias
Forward = Callable[[list[tuple[jax.Array, jax.Array]], jax.Array], jax.Array]
Differences = dict[str, dict[str, float]]


@dataclass(frozen=True)
class _Trained:
    """A trained network and its test images.

    Attributes:
      layers: kernel [in, out] and bias [out] of each layer.
      images: [test, 784] float32.
      labels: [test] integers.
      scores: accuracies on them by name, of the network and of methods without training.
    """

    layers: list[tuple[jax.Array, jax.Array]]
    images: jax.Array
    labels: jax.Array
    scores: dict[str, float]


def validate(config: ValidateConfig) -> Differences:
    """Trains 784-256-256-10 on the digits, compares its layers, and runs it in the strict mode.

    The trained network is run on the test images, as one ``fused_mlp`` and as three
    ``fused_linear``. Logits, and the gradients of the mean cross entropy to images and parameters,
    are compared with those of plain JAX code, which JAX differentiates, in float32 and in float64.
    Then both run under ``jaxgnn.verify("strict")``. All this is repeated for every seed.

    Args:
      config: the options of the run.

    Returns:
      The largest absolute difference of logits and gradients in each comparison, over all seeds.

    Raises:
      ValueError: if an option is invalid.
      VerificationError: if a difference is larger than the tolerance.
    """
    config.check()
    trained = [_train(config, seed) for seed in config.seeds]
    _print_scores([one.scores for one in trained])
    fused = _fused(config.implementation)
    differences = _largest([_compare(fused, one) for one in trained])
    _print_differences(differences)
    largest = max(max(each.values()) for each in differences.values())
    print(f"max abs diff: {largest:.1e} (tolerance {config.tolerance:.0e})")
    # NaN compares false: it must not pass.
    if not largest <= config.tolerance:
        raise ops.VerificationError(
            f"validate: the largest difference, {largest:.1e}, is more than {config.tolerance:.0e}"
        )
    for name, forward in fused.items():
        checked = [_run_strict(config, forward, one) for one in trained]
        found = "agrees with its reference" if all(checked) else _UNCHECKED
        print(f"STRICT, {name}: {found}")
    return differences


_UNCHECKED = "runs its reference: nothing to check"


def _print_scores(scores: Sequence[Mapping[str, float]]) -> None:
    """Prints mean and deviation over the seeds, for the network and each trivial method."""
    print(f"\n{'test accuracy, %':<30}  mean ± deviation (seeds)")
    for name in scores[0]:
        print(f"{name:<30}  {summarize([100 * each[name] for each in scores])}")


def _train(config: ValidateConfig, seed: int) -> _Trained:
    """Trains with the split, the initial parameters and the batches of a seed."""
    of = streams(seed)
    data = large_digits(of.split)
    model = nn.FusedMLP(
        _FEATURES,
        activation="relu",
        precision="highest",
        implementation=config.implementation,
        rngs=nnx.Rngs(of.parameters),
    )

    def batch(step: int):
        rng = np.random.default_rng((of.training, step))
        chosen = rng.choice(data.train, config.batch_size)
        return data.features[chosen], data.labels[chosen]

    result = fit(
        model,
        optax.adam(config.learning_rate),
        lambda model, batch, _: (_cross_entropy(model(batch[0]), batch[1]), {}),
        batch,
        config=LoopConfig(steps=config.steps, seed=of.training),
        progress=config.progress,
        mesh=config.mesh(),
    )
    print(f"seed {seed}: {config.steps} steps, last loss: {result.history[-1]['loss']:.4f}")
    result.model.eval()
    images, labels = jnp.asarray(data.features[data.test]), jnp.asarray(data.labels[data.test])
    scores = {
        "-".join(map(str, _FEATURES)): accuracy(result.model(images), data.labels[data.test]),
        "nearest training image": neighbour_accuracy(data),
        "most frequent digit": majority_accuracy(data),
    }
    trained = [(layer.kernel[...], layer.bias[...]) for layer in result.model.layers]  # pyrefly: ignore
    # The comparison runs on one device, whatever devices trained.
    layers = jax.tree.map(lambda array: jnp.array(np.asarray(array)), trained)
    return _Trained(layers, images, labels, scores)


def _cross_entropy(logits: jax.Array, labels: jax.Array) -> jax.Array:
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()


def _fused(implementation: ops.Name | None) -> Mapping[str, Forward]:
    """The network by each of the two ops."""
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


def _compare(fused: Mapping[str, Forward], trained: _Trained) -> Differences:
    """The differences of each op from each reference."""
    arguments = trained.layers, trained.images, trained.labels
    with jax.default_matmul_precision("highest"):
        expected = {"plain JAX": _results(_plain)(*arguments)}
    expected["float64"] = _in_float64(*arguments)
    differences: Differences = {}
    for op, forward in fused.items():
        actual = _results(forward)(*arguments)
        for reference, values in expected.items():
            logits, gradients = map(largest_difference, actual, values)
            differences[f"{op} from {reference}"] = {"logits": logits, "gradients": gradients}
    return differences


def _largest(of_seeds: Sequence[Differences]) -> Differences:
    """The largest of each difference over the seeds; infinity, which marks NaN, wins."""
    return {
        name: {kind: max(each[name][kind] for each in of_seeds) for kind in kinds}
        for name, kinds in of_seeds[0].items()
    }


def _print_differences(differences: Differences) -> None:
    """Prints a line for each op and reference."""
    print(f"\n{'max abs diff':<30}  {'logits':>8}  {'gradients':>9}")
    for name, found in differences.items():
        print(f"{name:<30}  {found['logits']:8.1e}  {found['gradients']:9.1e}")


def _in_float64(layers, images, labels):
    """Returns the results of the plain network for the same numbers, as NumPy arrays."""
    numbers = jax.tree.map(lambda array: np.asarray(array, np.float64), (layers, images))
    labels = np.asarray(labels)
    with jax.enable_x64(True), jax.default_matmul_precision("highest"):
        return jax.tree.map(np.asarray, _results(_plain)(*numbers, labels))


def _run_strict(config: ValidateConfig, forward: Forward, trained: _Trained) -> bool:
    """Runs forward and backward in strict mode; returns whether anything was compared.

    Raises:
      VerificationError: if an implementation and the reference differ.
    """
    run, arguments = _results(forward), (trained.layers, trained.images, trained.labels)
    with jaxgnn.verify("strict", tolerance=config.tolerance):
        # Comparisons are compiled as callbacks.
        checked = "debug_callback" in str(jax.make_jaxpr(run)(*arguments))
        try:
            jax.block_until_ready(run(*arguments))
            jax.effects_barrier()
        except jax.errors.JaxRuntimeError as error:
            if "VerificationError" not in str(error):
                raise
            last = str(error).strip().splitlines()[-1]
            raise ops.VerificationError(f"validate: STRICT: {last}") from error
    return checked
