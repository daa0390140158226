"""Arguments of ``fit``: lists of batches, and one line for what is no argument of its kind."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from jaxgnn.training import LoopConfig, RunFolder, fit


class Weight(nnx.Module):
    def __init__(self):
        self.weight = nnx.Param(jnp.zeros(()))


def _fit(batches: Any, steps: int = 5, **options: Any):
    arguments: dict[str, Any] = {
        "model": Weight(),
        "optimizer": optax.sgd(1.0),
        "loss_fn": lambda model, batch, rngs: (model.weight[...] * batch, {}),
        "batches": batches,
        "config": LoopConfig(steps),
        "progress": False,
    }
    return fit(**arguments | options)


def test_a_list_of_batches_is_repeated_in_its_order_and_resumed_exactly(tmp_path):
    batches = [np.float32(1), np.float32(2), np.float32(3)]
    whole = _fit(batches, steps=5)
    assert [row["loss"] for row in whole.history] == [0.0, -2.0, -9.0, -6.0, -14.0]
    for steps in (2, 5):
        config = LoopConfig(steps)
        run = RunFolder(tmp_path / "run", config, may_change=["steps"])
        result = _fit(batches, config=config, run=run)
    assert result.history == whole.history


def _generator():
    yield jnp.float32(1)


@pytest.mark.parametrize(
    "batches, message",
    [
        (_generator(), "a generator, which a resumed run can not repeat; make a list of it"),
        (iter([1.0]), "a list_iterator, which a resumed run can not repeat"),
        (zip([1.0], [2.0], strict=True), "a zip, which a resumed run can not repeat"),
        ((jnp.ones(2), jnp.ones(2)), "a tuple; for the same batch at every step, use lambda step:"),
        ({"x": jnp.ones(2)}, "a dict; for the same batch at every step"),
        (np.ones(2), "a ndarray; for the same batch at every step"),
        (range(3), "got range"),
        (None, "got NoneType"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_batches_of_another_kind_are_refused_in_one_line(batches, message):
    with pytest.raises(ValueError, match=r"^fit: batches must be a function of the step") as error:
        _fit(batches)
    assert message in str(error.value) and "\n" not in str(error.value)


def test_an_empty_list_of_batches_is_refused():
    with pytest.raises(ValueError, match=r"fit: batches must be .* got an empty list"):
        _fit([])


@pytest.mark.parametrize(
    "argument, value, message",
    [
        ("optimizer", "nnx", "optimizer must be a .*, got an nnx.Optimizer; pass its tx"),
        ("optimizer", optax.adam, "optimizer must be a transformation of optax.*, got function"),
        ("optimizer", 1e-3, "optimizer must be a transformation of optax.*, got float"),
        ("model", Weight, "model must be an nnx.Module, as an object, got the class Weight"),
        ("model", lambda x: x, "model must be an nnx.Module, as an object, got function"),
        ("loss_fn", None, "loss_fn must be a function, got NoneType"),
        ("evaluate", {"mse": 1.0}, "evaluate must be a function, got dict"),
        ("static", 3, "static must be a function, got int"),
        ("on_row", [], "on_row must be a function, got list"),
        ("config", {"steps": 3}, "config must be a training.LoopConfig, got dict"),
        ("run", "runs/a", r"run must be a training.RunFolder or None, got 'runs/a'; use RunFolder"),
    ],
    ids=lambda value: value if isinstance(value, str) and value.isidentifier() else "",
)
def test_arguments_of_another_kind_are_named(argument, value, message):
    if isinstance(value, str) and value == "nnx":
        value = nnx.Optimizer(Weight(), optax.adam(1e-3), wrt=nnx.Param)
    with pytest.raises(ValueError, match=f"^fit: {message}"):
        _fit([jnp.float32(1)], **{argument: value})
