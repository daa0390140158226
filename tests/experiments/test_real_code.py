"""Networks in the style of their users: the same under fuse, and timed by a benchmark."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments import _user_models
from experiments._user_models import MODELS, Size, user_model
from experiments.benchmarks import real_code
from experiments.benchmarks.real_code import RealCodeOptions
from jaxgnn.fusion import explain, fuse


@pytest.fixture(autouse=True)
def dtypes_are_promoted_as_for_users():
    with jax.numpy_dtype_promotion("standard"):
        yield


@pytest.mark.costly(3)
@pytest.mark.parametrize("name", ["nequip", *(name for name in MODELS if name != "nequip")])
def test_a_network_is_the_same_under_fuse(name):
    model = user_model(name, Size(40, 6, 4, 1))
    leaves, structure = jax.tree.flatten(model.arrays)

    def with_gradients(function):
        def total(arrays):
            y = function(*jax.tree.unflatten(structure, arrays))
            return jnp.sum(jnp.sin(y)), y

        return jax.jit(jax.grad(total, has_aux=True))(leaves)

    fused = fuse(model.run, only_if_faster=False)
    made, expected = (jax.tree.leaves(with_gradients(f)) for f in (fused, model.run))
    for one, other in zip(made, expected, strict=True):
        assert jnp.isfinite(other).all()
        np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-5 * (1 + jnp.abs(other).max()))


def test_all_convolutions_of_a_network_of_e3nn_are_found():
    model = user_model("nequip", Size(40, 6, 4, 2))
    explanation = explain(fuse(model.run, only_if_faster=False), *model.arrays, measure=False)
    rules = [one.rule for one in explanation.findings.applied]
    assert rules.count("tensor_product_sum") == 2


def test_rows_have_times_memory_and_the_rules(tmp_path, capsys):
    options = RealCodeOptions(out=tmp_path, models=("dense_messages",), divide=100, budget=1.0)
    real_code.main(options)
    rows = list(map(json.loads, (tmp_path / "real_code.jsonl").read_text().splitlines()))
    assert [row["direction"] for row in rows] == ["forward", "gradient"]
    for row in rows:
        assert min(row[f"{w}_{k}"] for w in ("written", "fused") for k in ("ms", "bytes")) > 0
    assert "dense_messages" in capsys.readouterr().out


def test_a_network_whose_package_is_missing_is_named(tmp_path, capsys, monkeypatch):
    entry = _user_models.Entry("weather", ("no_such_package",), (Size(4, 2, 2),), ())
    monkeypatch.setitem(MODELS, "graphcast", entry)
    real_code.main(RealCodeOptions(out=tmp_path, models=("graphcast",), sizes="cpu"))
    assert "left out: no_such_package not installed" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("option", "given"), [("models", ("nothing",)), ("sizes", "tpu"), ("divide", 0)]
)
def test_an_unknown_option_is_named(option, given):
    with pytest.raises(ValueError, match=f"real_code: --{option} must be"):
        RealCodeOptions(**{option: given}).check()
