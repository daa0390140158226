"""Batches divided over devices: the training is that of one, and goes on with another number."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from jax.sharding import Mesh

from jaxgnn.training import LoopConfig, RunFolder, fit, jit_apply
from jaxgnn.training.processes import warn_if_separate

LOOP = LoopConfig(steps=6, eval_every=2, checkpoint_every=2, select="distance", select_mode="min")


@dataclasses.dataclass(frozen=True)
class Config:
    """What the run folder of the tests keeps."""

    steps: int = 6


class Network(nnx.Module):
    """Two layers, and a running mean of the examples."""

    def __init__(self):
        rngs = nnx.Rngs(0)
        self.first, self.last = nnx.Linear(3, 16, rngs=rngs), nnx.Linear(16, 1, rngs=rngs)
        self.mean = nnx.BatchStat(jnp.zeros(3))

    def __call__(self, x):
        return self.last(jax.nn.tanh(self.first(x)))[:, 0]


def _batch(step, count=8):
    draws = np.random.default_rng(step)
    x = draws.standard_normal((count, 3)).astype(np.float32)
    return {"x": x, "y": x.sum(axis=1), "scale": np.float32(step)}


def _loss(model, batch, rngs):
    errors = model(batch["x"]) - batch["y"]
    model.mean[...] = 0.5 * model.mean[...] + 0.5 * batch["x"].mean(axis=0)
    # The scalar is one for all parts.
    return batch["scale"] * jnp.mean(errors**2), {"error": jnp.abs(errors).mean()}


_predict = jit_apply(lambda model, x: model(x))


def _evaluate(model):
    batch = _batch(99, count=5)
    return {"distance": float(np.abs(_predict(model, batch["x"]) - batch["y"]).mean())}


def _fit(devices, loss=_loss, batches=_batch, config=LOOP, **options):
    mesh = None if devices is None else Mesh(np.array(devices), ("batch",))
    return fit(
        Network(),
        optax.adam(1e-2),
        loss,
        batches,
        config=config,
        evaluate=_evaluate,
        progress=False,
        mesh=mesh,
        **options,
    )


@pytest.fixture(scope="module")
def of_one_device():
    return _fit(None)


def _assert_same(result, expected):
    for row, wanted in zip(result.history, expected.history, strict=True):
        assert row == pytest.approx(wanted, rel=1e-5)
    for a, b in zip(
        *(jax.tree.leaves(nnx.state(r.model)) for r in (result, expected)), strict=True
    ):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("count", [1, 2, 4])
def test_losses_metrics_parameters_and_state_are_those_of_one_device(
    count, of_one_device, four_devices
):
    result = _fit(four_devices[:count])
    _assert_same(result, of_one_device)
    assert result.best.step == of_one_device.best.step
    # Evaluation and result need no mesh.
    assert {len(a.sharding.device_set) for a in jax.tree.leaves(nnx.state(result.model))} == {1}


def test_each_device_has_a_part_of_the_examples_and_draws_of_its_own(four_devices):
    shapes = []

    def loss(model, batch, rngs):
        shapes.append(batch["x"].shape)
        draw = jax.random.uniform(rngs(), ())
        return model(batch["x"]).mean(), {"draw": draw, "square": draw**2}

    one, four = (
        _fit(devices, loss, config=LoopConfig(steps=1)).history[0]
        for devices in (four_devices[:1], four_devices)
    )
    assert set(shapes) == {(8, 3), (2, 3)}
    # The variance over the devices.
    assert one["square"] - one["draw"] ** 2 == pytest.approx(0, abs=1e-6)
    assert four["square"] - four["draw"] ** 2 > 1e-3


def test_a_run_on_two_devices_goes_on_with_four(tmp_path, of_one_device, four_devices):
    def killed_at_step_5(step):
        if step == 5:
            raise KeyboardInterrupt
        return _batch(step)

    run = RunFolder(tmp_path / "run", Config())
    with pytest.raises(KeyboardInterrupt):
        _fit(four_devices[:2], batches=killed_at_step_5, run=run)
    _assert_same(_fit(four_devices, run=run), of_one_device)


def test_examples_that_cannot_be_divided_are_named_with_numbers(four_devices):
    message = r"fit: batch.x must be of a leading axis divisible by the 4 devices of the mesh, got "
    with pytest.raises(ValueError, match=message + r"shape \(6, 3\)"):
        _fit(four_devices, batches=lambda step: _batch(step, count=6))


def test_a_mesh_of_several_axes_is_named(four_devices):
    mesh = Mesh(four_devices.reshape(2, 2), ("a", "b"))
    options = {"config": LoopConfig(steps=1), "mesh": mesh}
    with pytest.raises(ValueError, match=r"fit: mesh must be a mesh of one axis, got \('a', 'b'\)"):
        fit(Network(), optax.sgd(0.1), _loss, _batch, **options)


def test_state_that_has_no_mean_over_the_devices_is_an_error(four_devices):
    class Counting(Network):
        def __init__(self):
            super().__init__()
            self.count = nnx.BatchStat(jnp.zeros((), jnp.int32))

    def loss(model, batch, rngs):
        model.count[...] += jnp.sum(batch["x"][:, 0] > 0)
        return model(batch["x"]).mean(), {}

    mesh = Mesh(four_devices, ("batch",))
    with pytest.raises(ValueError, match="state of int32 from the examples of a part of the batch"):
        fit(Counting(), optax.sgd(0.1), loss, _batch, config=LoopConfig(steps=1), mesh=mesh)


def test_processes_that_share_no_array_are_warned(monkeypatch, recwarn):
    arrays = {"x": jnp.ones(3), "y": np.ones(3)}
    warn_if_separate(arrays)
    assert not recwarn
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    with pytest.warns(UserWarning, match="fit: each of 2 processes trains a model of its own"):
        warn_if_separate(arrays)
