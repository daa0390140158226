"""Options are checked when a layer is made; dropout wants its stream of random numbers."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxgnn import nn
from jaxgnn.models._layer_scan import LayerScan
from tests.nn._bad_options import assert_refused, bad_options
from tests.nn._table import GRAPH, LAYERS, X


@pytest.mark.parametrize(
    "name, option, values", [p for name in LAYERS for p in bad_options(name, getattr(nn, name))]
)
def test_a_layer_with_a_bad_option_is_not_made(name, option, values):
    assert_refused(LAYERS[name].make, option, values)


@pytest.mark.parametrize("name", LAYERS)
def test_the_options_of_the_tables_are_good(name):
    LAYERS[name].make(nnx.Rngs(0))


@pytest.mark.parametrize(
    "options, message",
    [
        ({"bias": False}, "^GATConv: no option is called 'bias'; did you mean 'use_bias'"),
        ({"num_heads": 2}, "did you mean 'heads'"),
        ({"droput": 0.1}, "did you mean 'dropout'"),
        ({"colour": 1}, "called 'colour'. There are in_features, out_features, heads, "),
        ({"rngs": None}, "^GATConv: missing a required argument: 'rngs', such as rngs=nnx.Rngs"),
        ({"in_channels": 8}, "did you mean 'in_features'"),
    ],
)
def test_an_option_that_a_layer_lacks_is_an_error_that_names_the_one_that_is_meant(
    options, message
):
    arguments = {"in_features": 8, "out_features": 4, "rngs": nnx.Rngs(0)} | options
    with pytest.raises(TypeError, match=message):
        nn.GATConv(**{key: value for key, value in arguments.items() if value is not None})


def test_numbers_of_numpy_and_names_of_dtypes_are_good_options():
    layer = nn.SAGEConv(
        np.int64(8),
        np.int32(4),
        activation="maxk",
        k=np.int64(2),
        dropout=np.float32(0.5),
        dtype="bfloat16",
        param_dtype=np.float32,
        rngs=nnx.Rngs(0),
    )
    assert layer(GRAPH, X).dtype == jnp.bfloat16


DROPPING = [name for name, case in LAYERS.items() if case.drops]


@pytest.mark.costly
@pytest.mark.parametrize("name", DROPPING)
def test_dropout_wants_a_stream_in_training_and_none_in_evaluation(name):
    case = LAYERS[name]
    layer = case.make(nnx.Rngs(0))
    plain = layer(*case.args)
    dropped = layer(*case.args, rngs=nnx.Rngs(dropout=0))
    assert not jnp.allclose(plain, dropped)
    layer.train()
    with pytest.raises(ValueError, match=r"rngs must be an nnx.Rngs with a dropout stream.*train"):
        layer(*case.args)
    np.testing.assert_array_equal(layer(*case.args, rngs=nnx.Rngs(dropout=0)), dropped)
    np.testing.assert_array_equal(layer(*case.args, rngs=nnx.Rngs(0)).shape, dropped.shape)
    with pytest.raises(ValueError, match="a stream dropout, or default, got streams params"):
        layer(*case.args, rngs=nnx.Rngs(params=0))
    layer.eval()
    np.testing.assert_array_equal(layer(*case.args), plain)
    np.testing.assert_array_equal(layer(*case.args, rngs=nnx.Rngs(dropout=0)), plain)


@pytest.mark.parametrize("name", DROPPING)
def test_a_key_in_the_place_of_a_stream_is_named(name):
    case = LAYERS[name]
    layer = case.make(nnx.Rngs(0))
    for key, shown in ((jax.random.key(0), "a random key"), (0, "int")):
        with pytest.raises(ValueError, match=rf"rngs must be None or an nnx.Rngs.*got {shown}"):
            layer(*case.args, rngs=key)


def test_a_layer_without_dropout_takes_no_key_either():
    layer = nn.GCNConv(8, 4, rngs=nnx.Rngs(0))
    layer.train()
    layer(GRAPH, X)  # there is nothing to drop
    layer(GRAPH, X, rngs=nnx.Rngs(params=0))
    scan = LayerScan([nn.GCNConv(8, 8, rngs=nnx.Rngs(0))])
    for call in (layer, scan):
        with pytest.raises(ValueError, match="got a random key"):
            call(GRAPH, X, rngs=jax.random.key(0))
