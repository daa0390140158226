"""Options are checked when a model is made; dropout wants its stream of random numbers."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxgnn import models
from tests.models._table import MODELS
from tests.nn._bad_options import assert_refused, bad_options


@pytest.mark.costly
@pytest.mark.parametrize(
    "name, option, values",
    [p for name in MODELS for p in bad_options(name, getattr(models, name))],
)
def test_a_model_with_a_bad_option_is_not_made(name, option, values):
    assert_refused(MODELS[name].make, option, values)


@pytest.mark.costly
@pytest.mark.parametrize("name", [name for name, case in MODELS.items() if case.drops])
def test_dropout_wants_a_stream_in_training_and_none_in_evaluation(name):
    case = MODELS[name]
    model = case.make(nnx.Rngs(0))

    def run(**options):
        return jax.jit(lambda: model(*case.args, **options))()

    def rngs():
        return nnx.Rngs(dropout=0)

    plain, dropped = run(), jax.jit(lambda: model(*case.args, rngs=rngs()))()
    assert not jnp.allclose(plain, dropped)
    with pytest.raises(ValueError, match="got a random key"):
        run(rngs=jax.random.key(0))
    model.train()
    with pytest.raises(ValueError, match=r"rngs must be an nnx.Rngs with a dropout stream.*train"):
        run()
    again = jax.jit(lambda: model(*case.args, rngs=rngs()))()
    np.testing.assert_array_equal(again, dropped)
    model.eval()
    np.testing.assert_array_equal(run(), plain)
    np.testing.assert_array_equal(jax.jit(lambda: model(*case.args, rngs=rngs()))(), plain)
