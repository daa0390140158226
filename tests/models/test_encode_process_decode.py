"""Learnt simulators: the formula, its options, rollouts, and the noise of training."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxgnn import CSRGraph
from jaxgnn.models import EncodeProcessDecode, random_walk_noise, rollout
from jaxgnn.testing import random_array

GRAPH, EDGES = CSRGraph.from_edges(
    [0, 1, 2, 0, 3, 3], [1, 2, 2, 3, 0, 0], 5, edge_data=random_array((6, 3), "float32", seed=1)
)
X = random_array((5, 4), "float32", seed=0)


def _model(**options):
    arguments = {"num_steps": 3, "num_layers": 1, "rngs": nnx.Rngs(0)} | options
    return EncodeProcessDecode(4, 3, 8, 2, **arguments)


def _wide(parameter):
    return np.asarray(parameter[...], np.float64)


def _rows(layers, norm, *parts):
    """An MLP of parts side by side, and its norm, in float64."""
    y = np.concatenate(parts, axis=1)
    for place, layer in enumerate(layers):
        y = y @ _wide(layer.kernel) + _wide(layer.bias)
        y = np.maximum(y, 0) if place < len(layers) - 1 else y
    if norm.kind is None:
        return y
    y = y - y.mean(axis=1, keepdims=True)
    y = y / np.sqrt((y**2).mean(axis=1, keepdims=True) + 1e-5)
    return y * _wide(norm.scale) + _wide(norm.offset)


def _formula(model):
    receivers, senders = np.asarray(GRAPH.receivers()), np.asarray(GRAPH.indices)

    def mlp(part, *inputs):
        return _rows(part.mlp.layers, part.norm, *inputs)

    h = mlp(model.node_encoder, np.asarray(X, np.float64))
    e = mlp(model.edge_encoder, np.asarray(EDGES, np.float64))
    for place in range(3):
        step = model.processor.steps[place % len(model.processor.steps)].network
        layers, norm = step.edge_update.layers, step.edge_update.norm
        update = _rows(layers, norm, h[receivers], h[senders], e)
        sums = np.zeros(h.shape)
        np.add.at(sums, receivers, update)
        e, h = e + update, h + mlp(step.node_update, h, sums)
    return mlp(model.decoder, h)


@pytest.mark.costly(1)
@pytest.mark.parametrize("options", [{}, {"share_weights": True}], ids=str)
def test_it_encodes_processes_and_decodes_as_its_formula_says(options):
    model = _model(**options)
    actual = jax.jit(lambda: model(GRAPH, X, EDGES))()
    np.testing.assert_allclose(actual, _formula(model), rtol=1e-5, atol=1e-5)


@pytest.mark.costly(1)
@pytest.mark.parametrize("shared", [False, True])
def test_scans_and_recomputation_change_neither_values_nor_gradients(shared):
    def values(**options):
        model = _model(share_weights=shared, num_steps=2, **options)
        graphdef, parameters = nnx.split(model)

        def loss(parameters, x):
            return jnp.sum(nnx.merge(graphdef, parameters)(GRAPH, x, EDGES) ** 2)

        return jax.jit(jax.value_and_grad(loss, argnums=1))(parameters, X)

    expected = values()
    for options in ({"scan_layers": True}, {"recompute": True}):
        for actual, wanted in zip(values(**options), expected, strict=True):
            np.testing.assert_allclose(actual, wanted, rtol=1e-4, atol=1e-4)


def test_leading_axes_share_the_graph_and_the_edges_are_shared_or_not():
    model = _model()
    x = jnp.stack([X, 2 * X])

    @jax.jit
    def run():
        both = model(GRAPH, x, EDGES), model(GRAPH, x, jnp.stack([EDGES, EDGES]))
        return *both, jnp.stack([model(GRAPH, y, EDGES) for y in x])

    shared, separate, expected = run()
    np.testing.assert_allclose(shared, expected, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(separate, expected, rtol=1e-5, atol=1e-5)


def test_bfloat16_computes_in_bfloat16_with_parameters_of_float32():
    model = _model(dtype=jnp.bfloat16, activation="silu", norm="rms")
    assert {p.dtype for p in jax.tree.leaves(nnx.state(model, nnx.Param))} == {jnp.dtype("float32")}
    assert jax.eval_shape(lambda: model(GRAPH, X, EDGES)).dtype == jnp.bfloat16


def test_bad_arguments_are_named():
    model = _model()
    with pytest.raises(ValueError, match=r"^EncodeProcessDecode: edge_features must be .*\[6, 3\]"):
        model(GRAPH, X, EDGES[:, :2])
    with pytest.raises(ValueError, match=r"^EncodeProcessDecode: graph must be square"):
        model(CSRGraph.from_edges([0], [0], 1, num_senders=2), X[:1], EDGES[:1])


def _swing(state):
    """A step of a harmonic oscillator."""
    x, v = state
    v = v - 0.1 * x
    return x + 0.1 * v, v


def test_a_rollout_is_the_step_again_and_again():
    start = jnp.ones(3), jnp.zeros(3)
    state, passed = start, []
    for _ in range(6):
        state = _swing(state)
        passed.append(state)
    last, kept = rollout(_swing, start, 6)
    for place in range(2):
        np.testing.assert_allclose(last[place], state[place], rtol=1e-6)
        np.testing.assert_allclose(kept[place], [p[place] for p in passed], rtol=1e-6)
    last, kept = rollout(_swing, start, 6, keep=lambda s: s[0], every=3)
    np.testing.assert_allclose(kept, [passed[2][0], passed[5][0]], rtol=1e-6)


def test_gradients_flow_through_a_rollout_that_recomputes():
    def end(x, **options):
        return jnp.sum(rollout(_swing, (x, 0 * x), 6, **options)[0][0] ** 2)

    x = jnp.array([1.0, -2.0])
    wanted = jax.grad(end)(x)
    for options in ({"recompute": True}, {"recompute": True, "every": 2}):
        np.testing.assert_allclose(jax.grad(lambda x: end(x, **options))(x), wanted, rtol=1e-6)  # noqa: B023


@pytest.mark.parametrize(
    "options, message",
    [
        ({"num_steps": 0}, "num_steps must be an int of at least 1, got 0"),
        ({"num_steps": 5, "every": 2}, "num_steps must be a multiple of every, 2, got 5"),
        ({"num_steps": 2, "every": True}, "every must be an int of at least 1, got True"),
    ],
)
def test_a_rollout_of_bad_length_is_refused(options, message):
    with pytest.raises(ValueError, match=rf"^models.rollout: {message}"):
        rollout(lambda x: x, jnp.ones(2), **options)


def test_a_step_that_changes_its_state_is_refused():
    with pytest.raises(ValueError, match=r"^models.rollout: step must be a function that keeps"):
        rollout(lambda x: x[:1], jnp.ones(2), 2)


def test_the_noise_of_velocities_is_a_random_walk_of_the_given_size():
    positions = jnp.zeros((2, 6, 4000, 2))
    noise = np.asarray(random_walk_noise(jax.random.key(0), positions, 0.3), np.float64)
    velocities = np.diff(noise, axis=1)
    deviations = velocities.std(axis=(0, 2, 3))
    np.testing.assert_allclose(deviations, 0.3 * np.sqrt(np.arange(1, 6) / 5), rtol=0.03)
    assert not noise[:, 0].any()
    steps = np.diff(velocities, axis=1)
    correlation = np.mean(steps[:, 0] * steps[:, 1]) / np.mean(steps**2)
    assert abs(correlation) < 0.05
    with pytest.raises(ValueError, match=r"^models.random_walk_noise: positions must be of shape"):
        random_walk_noise(jax.random.key(0), positions[0, 0], 0.1)
