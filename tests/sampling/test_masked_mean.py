"""The mean over the seeds of a batch, of which a process may have none."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from jaxgnn import CSRGraph, nn, sampling, training
from jaxgnn.sampling import masked_mean

LOSSES = np.array([[1.0, 2.0], [np.nan, np.inf], [5.0, 0.0]], np.float32)


@pytest.mark.parametrize("apply", [lambda f: f, jax.jit], ids=["now", "jit"])
def test_it_is_the_mean_where_the_mask_is_true(apply):
    mean = apply(masked_mean)
    assert mean(LOSSES[:, 0], np.array([True, False, True])) == 3
    assert mean(LOSSES, np.array([True, False, True])) == 2
    assert mean(LOSSES, np.array([[True, False], [False, False], [True, True]])) == 2
    assert mean(np.arange(4), np.arange(4) > 1) == 2.5  # integers, and bools
    assert mean(np.arange(4) > 2, np.arange(4) > 1) == 0.5


@pytest.mark.parametrize("shape", [(3,), (3, 2), (0,), (0, 2), (3, 0)])
def test_it_is_zero_without_an_entry_and_so_is_its_gradient(shape):
    values = np.full(shape, np.nan, np.float32)
    value, gradient = jax.value_and_grad(masked_mean)(values, np.zeros(shape[:1], bool))
    assert value == 0
    np.testing.assert_array_equal(gradient, np.zeros(shape))


def test_gradients_are_those_of_the_mean():
    mask = np.array([True, False, True])
    gradient = jax.grad(masked_mean)(LOSSES, mask)
    np.testing.assert_array_equal(gradient, np.where(mask[:, None], 0.25, [[0, 0]] * 3))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "int8", "bool"])
def test_sums_of_short_dtypes_do_not_overflow(dtype):
    mean = masked_mean(jnp.ones(100_000, dtype), jnp.ones(100_000, bool))
    assert mean == 1 and mean.dtype == (dtype if "float" in dtype else "float32")


BAD = [
    (np.ones(3), np.ones(3), "mask must be of bools, got dtype float"),
    (np.ones(3), np.array([0, 2]), "mask must be of bools, got dtype int32"),
    (np.ones(3), np.ones(2, bool), r"mask must be of the leading shape of values, \(3,\)"),
    (np.ones(3), np.ones((3, 1), bool), r"mask must be of the leading shape of values, \(3,\)"),
    (np.ones(3), np.True_, r"mask must be of the leading shape of values, \(3,\), got shape \(\)"),
]


@pytest.mark.parametrize(("values", "mask", "message"), BAD)
def test_bad_masks_are_named(values, mask, message):
    with pytest.raises(ValueError, match="sampling.masked_mean: " + message):
        masked_mean(values, mask)


RING = CSRGraph.from_edges(np.arange(12), np.roll(np.arange(12), -1), 12)
OPTIONS = {"features": np.eye(12, dtype=np.float32), "labels": np.arange(12) % 3}
LOADERS = {
    "neighbor": lambda **o: sampling.NeighborLoader(RING, range(5), (2,), 2, **o),
    "shadow": lambda **o: sampling.ShadowLoader(RING, range(5), (2,), 2, **o),
}


@pytest.mark.parametrize("name", LOADERS)
def test_a_process_without_seeds_in_the_last_step_trains_like_the_others(name):
    def loss(model, batch, rngs):
        if name == "neighbor":
            (block,) = batch.blocks
            scores = model(block, (batch.x[: block.num_rows], batch.x))[batch.seed_ids]
        else:
            scores = model(batch.graph, batch.x)[batch.root]
        losses = optax.softmax_cross_entropy_with_integer_labels(scores, batch.y)
        return masked_mean(losses, batch.seed_mask), {}

    loader = LOADERS[name](**OPTIONS, processes=(1, 2), shuffle=False)
    assert len(loader) == 2 and not loader.batch(0, 1).seed_mask.any()
    model = nn.SAGEConv(12, 3, rngs=nnx.Rngs(0))
    config = training.LoopConfig(steps=4)
    fitted = training.fit(model, optax.sgd(0.1), loss, loader, config=config, progress=False)
    first, without, *_ = (row["loss"] for row in fitted.history)
    assert first > 0 and without == 0
