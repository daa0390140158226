"""Models called outside of ``jit`` are compiled once, their gradients too, and leave nothing."""

import pytest
from flax import nnx

from jaxgnn import models
from tests._eager_costs import assert_costs_nothing_again
from tests.models._table import MODELS
from tests.nn._table import public_modules
from tests.nn.test_eager import assert_cheap

# Options under which a model runs other code.
VARIANTS = [
    ("EncodeProcessDecode", {"scan_layers": True}),
    ("EncodeProcessDecode", {"scan_layers": True, "share_weights": True}),
    ("EncodeProcessDecode", {"recompute": True}),
    ("CausalLM", {"hyper_connections": 2, "recompute_every": 1}),
    ("MaxKGNN", {"scan_layers": True}),
    ("MaxKGNN", {"kind": "gcn", "scan_layers": True, "hyper_connections": 2}),
]
ALL = [*((name, {}) for name in MODELS), *VARIANTS]


def test_the_table_has_every_model():
    assert set(MODELS) == public_modules(models)


@pytest.mark.again("tests/nn/test_eager.py")
@pytest.mark.costly
@pytest.mark.parametrize("name, options", ALL)
def test_a_model_is_compiled_once_and_leaves_nothing(name, options):
    assert_cheap(MODELS[name].make(nnx.Rngs(0), **options), MODELS[name])


def test_scanned_layers_with_dropout_and_another_k_are_compiled_once():
    model = MODELS["MaxKGNN"].make(nnx.Rngs(0), scan_layers=True)
    args = MODELS["MaxKGNN"].args
    assert_costs_nothing_again(lambda: model(*args, k=3, rngs=nnx.Rngs(dropout=0)))
