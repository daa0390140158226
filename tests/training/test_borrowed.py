"""What a caller hands over is copied: arrays that are refilled behind a call do not change it."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from jaxgnn.training import LoopConfig, fit, jit_apply
from jaxgnn.training._step import owned

SIZE = 16
# JAX on a CPU reads arrays in place that lie at a multiple of it.
ALIGNMENT = 64


def aligned(values) -> np.ndarray:
    """A float32 array that JAX on a CPU would read in place."""
    values = np.asarray(values, np.float32)
    memory = np.zeros(values.nbytes + ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % ALIGNMENT
    array = memory[start : start + values.nbytes].view(np.float32).reshape(values.shape)
    array[...] = values
    return array


def test_the_helper_makes_arrays_that_are_read_in_place():
    array = aligned(np.ones(SIZE))
    assert jax.device_put(array).unsafe_buffer_pointer() == array.ctypes.data


def test_batches_are_not_cut_and_are_read_in_either_byte_order():
    model, ids = Weight(jnp.ones(())), np.array([2**32, 1])
    one_step = LoopConfig(steps=1, log_every=1)
    expected = r"must be in the range of int32, or used under jax_enable_x64, got 4294967296"

    def loss(model, batch, rngs):
        return batch["x"].sum() * model.weight[...], {}

    run = lambda batch: fit(model, optax.sgd(0.1), loss, lambda _: batch, config=one_step)  # noqa: E731
    with pytest.raises(ValueError, match=rf"fit: batch\['x'\] {expected}"):
        run({"x": ids})
    with pytest.raises(ValueError, match=rf"jit_apply: \[0\] {expected}"):
        jit_apply(lambda model, x: x)(model, ids)
    assert jit_apply(lambda model, x: x)(model, ids.astype(">i4")).tolist() == [0, 1]


def slow_zero(x: jax.Array) -> jax.Array:
    """Zero, after some milliseconds of work that depends on `x` []."""
    matrix = jnp.full((300, 300), 1e-3) * x
    return 0 * jax.lax.fori_loop(0, 20, lambda _, m: jnp.tanh(m @ matrix), matrix).sum()


class Weight(nnx.Module):
    def __init__(self, value):
        self.weight = nnx.Param(value)


def first_entry(model, batch, rngs):
    """The batch's first entry, once the step before has ended."""
    return batch["x"][0] + slow_zero(model.weight[...].sum()), {}


def test_each_step_trains_on_the_batch_of_its_step_though_the_source_refills_one_buffer():
    buffer = aligned(np.zeros(SIZE))

    def batches(step):
        buffer[:] = step
        return {"x": buffer}

    result = fit(
        Weight(jnp.ones(SIZE)),
        optax.sgd(0.1),
        first_entry,
        batches,
        config=LoopConfig(steps=12, log_every=12),
        progress=False,
    )
    assert [row["loss"] for row in result.history] == list(range(1, 13))


def test_training_begins_with_the_parameters_that_were_given():
    value = aligned(np.ones(SIZE))

    def batches(step):
        value[:] = 100.0
        return jnp.zeros(())

    result = fit(
        Weight(value),
        optax.sgd(0.0),
        lambda model, batch, rngs: (model.weight[...].sum() + batch, {}),
        batches,
        config=LoopConfig(steps=2),
        progress=False,
    )
    np.testing.assert_array_equal(result.model.weight[...], np.ones(SIZE))
    assert result.history[0]["loss"] == SIZE


def test_jit_apply_answers_for_what_it_was_called_with():
    predict = jit_apply(lambda model, x: x + slow_zero(x[0] + model.weight[...].sum()))
    model, x = Weight(jnp.ones(SIZE)), aligned(np.ones(SIZE))
    predict(model, x).block_until_ready()
    answers = []
    for number in range(4):
        x[:] = number
        answers.append(predict(model, x))
    assert [float(answer[0]) for answer in answers] == [0, 1, 2, 3]


def test_arrays_on_the_device_are_handed_on_as_they_are():
    batch = {"x": jnp.ones(3), "none": None, "number": 1.0}
    assert owned("fit", batch) is batch
    mixed = owned("fit", {**batch, "y": np.ones(3)})
    assert mixed["x"] is batch["x"]
