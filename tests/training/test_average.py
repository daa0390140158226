"""The moving average of parameters, and runs that stop early."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from jaxgnn.training import LoopConfig, RunFolder, fit, load_model
from jaxgnn.training._checkpoints import Checkpoints
from jaxgnn.training._step import merge_model, split_model, start_state

from .tiny_run import LOOP, Classifier, Config, digest, loss_fn, make_data, train

AVERAGED = Config(loop=dataclasses.replace(LOOP, ema_decay=0.8))


def _params(model):
    return [np.asarray(leaf) for leaf in jax.tree.leaves(nnx.state(model, nnx.Param))]


def test_the_average_is_that_of_its_formula_and_training_is_as_without_it():
    models = [
        train(None, Config(loop=LoopConfig(steps=steps, seed=7))).model for steps in range(1, 7)
    ]
    loop = LoopConfig(steps=6, seed=7, ema_decay=0.7)
    result = train(None, Config(loop=loop))
    assert digest(result.model) == digest(models[-1])
    expected = _params(models[0])
    for number, model in enumerate(models[1:], start=2):
        kept = min(0.7, 1 - 1 / number)
        expected = [
            kept * a + (1 - kept) * p for a, p in zip(expected, _params(model), strict=True)
        ]
    for got, wanted in zip(_params(result.averaged_model), expected, strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-6)


class _Short(nnx.Module):
    """A parameter of eight bits of precision, that moves by an eighth a step."""

    def __init__(self):
        self.x = nnx.Param(jnp.zeros(3, jnp.bfloat16))


def _upwards(model, batch, rngs):
    return -jnp.sum(model.x[...].astype(jnp.float32) * batch), {}


def test_the_average_of_short_parameters_does_not_stand_still(tmp_path):
    config = Config(loop=LoopConfig(steps=200, ema_decay=0.999))
    run, ones = RunFolder(tmp_path / "run", config), jnp.ones(3)
    result = fit(_Short(), optax.sgd(0.125), _upwards, lambda _: ones, config=config.loop, run=run)
    x = np.cumsum(np.full(200, 0.125))  # 25 and what is on the way, exact in bfloat16
    np.testing.assert_array_equal(np.asarray(result.model.x[...], np.float32), x[-1])
    average = x[0]
    for number, value in enumerate(x[1:], start=2):
        average += max(0.001, 1 / number) * (value - average)
    for model in (result.averaged_model, load_model(run.path, _Short(), which="average")):
        assert model.x[...].dtype == jnp.bfloat16
        np.testing.assert_allclose(np.asarray(model.x[...], np.float32), average, rtol=2**-8)


class _Long(nnx.Module):
    def __init__(self):
        self.x = nnx.Param(jnp.ones(4))


def test_an_average_with_a_decay_near_one_arrives_where_the_parameters_are():
    # One jump, of which the average has a hundredth at once; its last steps are far less than the
    # last digit of a float32.
    sizes, jump = np.float32([1 / 64, 1 / 3, 3, 100]), 200
    config = LoopConfig(steps=1500, log_every=500, ema_decay=0.99)
    result = fit(
        _Long(),
        optax.sgd(1.0),
        lambda model, batch, rngs: (-jnp.sum(model.x[...] * batch), {}),
        lambda step: sizes * np.float32(step == jump),
        config=config,
        progress=False,
    )
    before, behind = np.float64(1), np.asarray(result.model.x[...], np.float64)
    average = before
    for step in range(2, config.steps + 1):
        average = average + max(0.01, 1 / step) * ((behind if step >= jump else before) - average)
    np.testing.assert_allclose(result.averaged_model.x[...], average, rtol=2.0**-23)


def test_a_checkpoint_without_a_remainder_of_the_average_is_gone_on_from(tmp_path):
    config = Config(loop=LoopConfig(steps=3, ema_decay=0.8))
    run = RunFolder(tmp_path / "run", config, may_change=["loop"])
    expected = train(run, config)
    graphdef, arrays = split_model(Classifier(16, rngs=nnx.Rngs(0)))
    like = start_state(arrays, optax.adamw(3e-3), averaged=True)
    with Checkpoints(run.checkpoints_path, keep=2) as checkpoints:
        state, _, _ = checkpoints.restore(like)
        assert any(np.asarray(leaf).any() for leaf in jax.tree.leaves(state.remainder))
        checkpoints.save(4, state._replace(remainder=None), None, {"best": None})
        older, _, _ = checkpoints.restore(like)
    assert not any(np.asarray(leaf).any() for leaf in jax.tree.leaves(older.remainder))
    assert digest(merge_model(graphdef, older.averaged_model)) == digest(expected.averaged_model)


def test_without_a_decay_there_is_no_average():
    assert train(None, Config(loop=LoopConfig(steps=1))).averaged_model is None


def test_evaluation_and_the_best_model_have_the_average():
    seen = []

    def evaluate(model):
        seen.append(_params(model))
        return {"validation accuracy": len(seen)}

    loop = dataclasses.replace(AVERAGED.loop, steps=4)
    result = train(None, Config(loop=loop), evaluate=evaluate)
    for got, wanted in zip(seen[-1], _params(result.averaged_model), strict=True):
        np.testing.assert_array_equal(got, wanted)
    assert digest(result.best_model) == digest(result.averaged_model) != digest(result.model)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The result and the folder of a run with an average that was left alone."""
    run = RunFolder(tmp_path_factory.mktemp("averaged") / "run", AVERAGED)
    return train(run, AVERAGED), run


@pytest.mark.again("tests/training/test_resume.py")
def test_a_run_that_stops_in_time_goes_on_to_the_same_end(tmp_path, whole):
    config = dataclasses.replace(
        AVERAGED, loop=dataclasses.replace(AVERAGED.loop, max_seconds=1e-9, log_every=1)
    )
    for call in (1, 2):
        # Each call does one step: its time is over behind the first.
        run = RunFolder(tmp_path / "run", config)
        stopped = train(run, config)
        assert not stopped.finished and len(stopped.history) == call
        assert (run.checkpoints_path / str(call)).is_dir()
    run = RunFolder(tmp_path / "run", AVERAGED, may_change=["loop"])
    result, (expected, _) = train(run, AVERAGED), whole
    assert result.finished and expected.finished
    assert digest(result.averaged_model) == digest(expected.averaged_model)
    assert digest(result.model) == digest(expected.model)
    assert result.history == expected.history


def test_load_model_finds_the_average(whole):
    result, run = whole
    fresh = Classifier(16, rngs=nnx.Rngs(5))
    assert digest(load_model(run.path, fresh, which="average")) == digest(result.averaged_model)
    assert digest(load_model(run.path, fresh)) == digest(result.model)
    with pytest.raises(ValueError, match="'average', got 'mean'"):
        load_model(run.path, fresh, which="mean")  # type: ignore[arg-type]


def test_a_checkpoint_with_an_average_and_a_run_without_one_do_not_fit(tmp_path, whole):
    _, run = whole
    with pytest.raises(
        ValueError, match=r"holds a moving average .* another LoopConfig\.ema_decay"
    ):
        train(run, Config(loop=dataclasses.replace(LOOP, steps=20)))
    plain = RunFolder(tmp_path / "run", Config())
    fit(
        Classifier(16, rngs=nnx.Rngs(0)),
        optax.sgd(0.1),
        loss_fn,
        lambda step: make_data(32, seed=step),
        config=LoopConfig(steps=1),
        run=plain,
        progress=False,
    )
    with pytest.raises(ValueError, match="holds no average model"):
        load_model(plain.path, Classifier(16, rngs=nnx.Rngs(0)), which="average")


@pytest.mark.parametrize("decay", [0.0, 1.0, -0.5])
def test_a_decay_that_is_none_is_refused(decay):
    with pytest.raises(ValueError, match=r"LoopConfig\.ema_decay: expected in \(0, 1\)"):
        LoopConfig(steps=1, ema_decay=decay)


def test_progress_shows_the_pace_in_examples(capsys):
    loop = LoopConfig(steps=4, log_every=2, examples_per_step=32, examples="points")
    train(None, Config(loop=loop), progress=True)
    assert capsys.readouterr().err.splitlines()[-1].endswith(" points/s")
