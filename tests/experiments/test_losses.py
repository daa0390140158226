"""The loss over nodes: which of them count, and what a label may be."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments._nodes import node_loss

CLASSES = "classes"
TASKS = "tasks"


def case(kind):
    """Logits [40, 5], labels, and which nodes count."""
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(40, 5)).astype(np.float32)
    if kind == CLASSES:
        labels = rng.integers(0, 5, 40).astype(np.int32)
    else:
        labels = rng.integers(0, 2, (40, 5)).astype(np.float32)
    return logits, labels, rng.random(40) < 0.6


def entropies(logits, labels):
    """In float64, of [nodes] or of [nodes, tasks]."""
    logits = logits.astype(np.float64)
    if labels.ndim == 2:
        return np.logaddexp(0, logits) - labels * logits
    shares = logits - np.logaddexp.reduce(logits, axis=1, keepdims=True)
    return -shares[np.arange(len(labels)), labels]


@pytest.mark.parametrize("kind", [CLASSES, TASKS])
def test_the_loss_is_the_mean_over_what_counts_and_is_labelled(kind):
    logits, labels, counted = case(kind)
    expected = entropies(logits, labels)
    np.testing.assert_allclose(
        node_loss(logits, labels, counted), expected[counted].mean(), rtol=1e-5
    )
    unlabelled = np.random.default_rng(1).random(labels.shape) < 0.3
    known = unlabelled < counted.reshape((-1,) + (1,) * (labels.ndim - 1))
    holes = np.where(unlabelled, -1, labels)
    np.testing.assert_allclose(node_loss(logits, holes, counted), expected[known].mean(), rtol=1e-5)
    if kind == TASKS:
        holes = np.where(unlabelled, np.nan, labels)
        loss, gradient = jax.value_and_grad(node_loss)(jnp.asarray(logits), holes, counted)
        np.testing.assert_allclose(loss, expected[known].mean(), rtol=1e-5)
        np.testing.assert_array_equal(np.asarray(gradient) != 0, known)


@pytest.mark.parametrize("kind, bad", [(CLASSES, 5), (CLASSES, 2**30), (TASKS, 2), (TASKS, 0.5)])
def test_a_label_that_is_no_class_makes_the_loss_nan_where_it_counts(kind, bad):
    logits, labels, counted = case(kind)
    expected = entropies(logits, labels)
    node = int(np.flatnonzero(counted)[3])
    labels[node] = bad
    assert np.isnan(node_loss(logits, labels, counted))
    counted[node] = False
    np.testing.assert_allclose(
        node_loss(logits, labels, counted), expected[counted].mean(), rtol=1e-5
    )
