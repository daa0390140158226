"""GCNII: its formula, its dropout, its depth, and bad options."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse
from flax import nnx

from jaxgnn import CSRGraph, ops
from jaxgnn.models import GCNII, MaxKGNN
from jaxgnn.nn.shared.dropout import dropout
from jaxgnn.testing import random_array
from tests.ops._table import BUILT

GRAPH = BUILT["unweighted"].with_self_loops()
X = random_array((GRAPH.num_rows, 10), "float32", seed=0)


def _model(**options) -> GCNII:
    return GCNII(10, 16, 3, **({"num_layers": 3, "rngs": nnx.Rngs(0)} | options))


def _relu(z):
    return np.maximum(z, 0)


def _largest_four(z):
    return np.where(z >= np.sort(z, axis=1)[:, -4:-3], z, 0)


def _formula(model: GCNII, x: np.ndarray, alpha: float, strength: float, act=_relu) -> np.ndarray:
    """The formula of the paper on dense matrices."""
    normalized, identity = GRAPH.normalized("sym"), jnp.eye(GRAPH.num_cols)
    adjacency = np.asarray(ops.spmm(normalized, identity, implementation="xla"), np.float64)

    def linear(layer, x):
        bias = 0 if layer.bias is None else np.asarray(layer.bias[...], np.float64)
        return x @ np.asarray(layer.kernel[...], np.float64) + bias

    initial = h = act(linear(model.lin_in, np.asarray(x, np.float64)))
    kernels = np.asarray(model.body.layers.linear.kernel[...], np.float64)
    for place, kernel in enumerate(kernels, start=1):
        support = (1 - alpha) * adjacency @ h + alpha * initial
        beta = np.log(strength / place + 1)
        h = act((1 - beta) * support + beta * support @ kernel)
    return linear(model.lin_out, h)


@pytest.mark.parametrize(("alpha", "strength"), [(0.1, 0.5), (0.4, 1.5)])
def test_the_scores_are_those_of_the_published_formula(alpha, strength):
    model = _model(alpha=alpha, strength=strength)
    expected = _formula(model, X, alpha, strength)
    np.testing.assert_allclose(model(GRAPH, X), expected, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(model(GRAPH.normalized("sym"), X), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kernel_mode", ["auto", "dense"])
def test_with_maxk_only_the_largest_entries_are_passed_on(kernel_mode):
    model = _model(activation="maxk", k=4, kernel_mode=kernel_mode)
    expected = _formula(model, X, 0.1, 0.5, _largest_four)
    np.testing.assert_allclose(model(GRAPH, X), expected, rtol=1e-5, atol=1e-5)
    scheduled = _model(activation="maxk", k=7, kernel_mode=kernel_mode)
    np.testing.assert_allclose(scheduled(GRAPH, X, k=4), expected, rtol=1e-5, atol=1e-5)


def test_sparse_features_give_what_dense_ones_give():
    words = (np.random.default_rng(1).random((GRAPH.num_rows, 10)) < 0.2).astype(np.float32)
    sparse = CSRGraph.from_scipy(scipy.sparse.csr_array(words))
    for model in (_model(dropout=0.0), MaxKGNN(10, 16, 3, k=4, rngs=nnx.Rngs(0))):
        model.eval()

        def loss(model, x):
            scores = model(GRAPH, x)
            return jnp.sum(scores**2), scores

        results = [nnx.value_and_grad(loss, has_aux=True)(model, x) for x in (words, sparse)]
        (values, gradients), (sparse_values, sparse_gradients) = results
        np.testing.assert_allclose(sparse_values[1], values[1], rtol=1e-4, atol=1e-5)
        for a, b in zip(*map(jax.tree.leaves, (gradients, sparse_gradients)), strict=True):
            np.testing.assert_allclose(b, a, rtol=1e-3, atol=1e-4 * float(jnp.abs(a).max()))
    with pytest.raises(ValueError, match="x must be a sparse matrix of 10 columns"):
        _model()(GRAPH, GRAPH)


def test_dropout_of_sparse_features_keeps_their_mean():
    matrix = CSRGraph.from_scipy(scipy.sparse.csr_array(np.ones((200, 50), np.float32)))
    dropped = dropout(matrix, 0.4, nnx.Rngs(dropout=0))
    values = np.unique(np.asarray(dropped.weights))
    np.testing.assert_allclose(values, [0, 1 / 0.6], rtol=1e-6)
    assert float(dropped.weights.mean()) == pytest.approx(1, abs=0.05)


def test_dropout_draws_in_training_alone():
    model = _model(dropout=0.5)
    assert not np.array_equal(model(GRAPH, X, rngs=nnx.Rngs(1)), model(GRAPH, X))
    model.eval()
    np.testing.assert_array_equal(model(GRAPH, X, rngs=nnx.Rngs(1)), model(GRAPH, X))


def test_gradients_reach_the_weights_of_64_layers():
    model = _model(num_layers=64, dropout=0.0)
    gradients = nnx.grad(lambda model: jnp.sum(model(GRAPH, X) ** 2))(model)
    sizes = jax.tree.map(lambda g: float(jnp.abs(g).max()), jax.tree.leaves(gradients))
    assert min(sizes) > 0 and np.isfinite(sizes).all()
    kernels = np.asarray(gradients["body"]["layers"]["linear"]["kernel"][...])
    assert kernels.shape == (64, 16, 16) and (np.abs(kernels).max(axis=(1, 2)) > 0).all()


def test_options_that_make_no_network_are_refused():
    with pytest.raises(ValueError, match="GCNII: num_layers must be at least 1"):
        _model(num_layers=0)
    with pytest.raises(ValueError, match="GCNII: alpha"):
        _model(alpha=1.5)
    with pytest.raises(ValueError, match="GCNII: k must be given for activation='maxk'"):
        _model(activation="maxk")
    with pytest.raises(ValueError, match="GCNII: the number of features must be at least 1"):
        GCNII(10, 0, 3, rngs=nnx.Rngs(0))
