"""Networks in files: every one of the library comes back, and spoiled files are named."""

import inspect
import json
import random
import textwrap
from pathlib import Path

import flax.serialization
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import jaxgnn
from jaxgnn import Incidence, models
from jaxgnn.models import ExpertGraphLM, MaxKGNN
from jaxgnn.pretrained import _model_file, load_weights
from tests.training.tiny_run import damaged, digest

SMALL = {"features": 4, "num_steps": 2}
LANGUAGE = {"vocabulary": 16, "features": 8, "num_layers": 2, "num_heads": 2}
CASES = {
    "MaxKGNN": {
        "in_features": 4,
        "hidden_features": 8,
        "out_features": 3,
        "num_layers": 2,
        "k": (2, 4),
        "hyper_connections": 2,
        "dtype": jnp.bfloat16,
    },
    "GCNII": {"in_features": 4, "hidden_features": 8, "out_features": 3, "num_layers": 3},
    "EncodeProcessDecode": {
        "in_features": 4,
        "edge_dim": 2,
        "hidden_features": 8,
        "out_features": 3,
        "num_steps": 2,
    },
    "GraphTransformer": {
        "in_features": 4,
        "hidden_features": 8,
        "out_features": 3,
        "num_layers": 2,
        "k": 1,
        "edge_features": 2,
        "laplacian_features": 3,
        "virtual_nodes": 2,
        "hyper_connections": 2,
    },
    "HypergraphGNN": {
        "in_features": 4,
        "hidden_features": 8,
        "out_features": 3,
        "kind": "allsettransformer",
    },
    "CausalLM": {**LANGUAGE, "hyper_connections": 2, "param_dtype": jnp.bfloat16},
    "ExpertGraphLM": {**LANGUAGE, "num_experts": 3, "strategy": [{0, 1}, {1, 2}]},
    "RecurrentRelationalNetwork": {**SMALL, "box": 2},
    "EquivariantRelationalNetwork": SMALL,
    "CandidateNetwork": SMALL,
    "SudokuGNN": {**SMALL, "box": 2},
    "SchNet": {"num_species": 2, "features": 4, "species_shift": np.array([-1000.0, 2.5])},
    "NequIP": {"num_species": 2, "irreps": "4x0e+2x1o", "radial_features": (8,)},
    "PaiNN": {"num_species": 2, "features": 4, "species_scale": (3.0, 2e5), "cutoff": 600.0},
}


def _make(name: str) -> nnx.Module:
    """The network with random numbers in the place of initial ones, which would be compiled."""
    make = getattr(models, name)
    graphdef, state = nnx.split(nnx.eval_shape(lambda: make(**CASES[name], rngs=nnx.Rngs(3))))
    rng = np.random.default_rng(3)
    return nnx.merge(
        graphdef, jax.tree.map(lambda s: jnp.asarray(rng.normal(size=s.shape), s.dtype), state)
    )


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A file of a network, and the arrays in it."""
    path = tmp_path_factory.mktemp("models") / "small.npz"
    jaxgnn.save_model(path, _make("GCNII"))
    with np.load(path) as file:
        return path, dict(file)


def test_the_cases_are_all_networks_of_the_library():
    networks = {
        name
        for name, value in vars(models).items()
        if inspect.isclass(value) and issubclass(value, nnx.Module)
    }
    assert networks == set(CASES) == set(_model_file.NETWORKS)


@pytest.mark.parametrize("name", CASES)
def test_a_network_comes_back_with_its_options_and_every_bit(name, tmp_path):
    model = _make(name)
    jaxgnn.save_model(tmp_path / "model.npz", model)
    loaded = jaxgnn.load_model(tmp_path / "model.npz")
    assert nnx.graphdef(loaded) == nnx.graphdef(model)
    for got, expected in zip(*map(jax.tree.leaves, map(nnx.state, (loaded, model))), strict=True):
        assert got.dtype == expected.dtype
        np.testing.assert_array_equal(got, expected)


def test_options_of_the_caller_take_the_place_of_those_of_the_file(saved):
    path, _ = saved
    assert jaxgnn.load_model(path).dropout.rate == 0.5
    assert jaxgnn.load_model(path, dropout=0.25).dropout.rate == 0.25
    with pytest.raises(
        ValueError, match=r"kernel is float32\[3, 8, 8\], expected float32\[3, 16, 16\]"
    ):
        jaxgnn.load_model(path, hidden_features=16)


def test_a_sudoku_network_is_also_a_file_of_weights(tmp_path):
    jaxgnn.save_model(tmp_path / "sudoku.npz", _make("CandidateNetwork"))
    assert type(load_weights(tmp_path / "sudoku.npz")) is models.CandidateNetwork
    jaxgnn.save_model(tmp_path / "gcnii.npz", _make("GCNII"))
    with pytest.raises(ValueError, match=r"gcnii\.npz: expected one of CandidateNetwork, .*GCNII"):
        load_weights(tmp_path / "gcnii.npz")


def test_what_could_not_be_made_again_is_not_saved(tmp_path):
    class Own(MaxKGNN):
        """A network of a user."""

    unsaveable = nnx.eval_shape(lambda: Own(4, 8, 3, k=2, rngs=nnx.Rngs(0)))
    with pytest.raises(ValueError, match=r"save_model: model must be one of .*, got Own"):
        jaxgnn.save_model(tmp_path / "x.npz", unsaveable)
    hypergraph = Incidence.from_hyperedges([{0, 1}, {1, 2}], 3)
    options = {**CASES["ExpertGraphLM"], "strategy": hypergraph}
    expert = nnx.eval_shape(lambda: ExpertGraphLM(**options, rngs=nnx.Rngs(0)))
    with pytest.raises(ValueError, match=r"its option strategy must be .*, got Incidence"):
        jaxgnn.save_model(tmp_path / "x.npz", expert)
    assert not (tmp_path / "x.npz").exists()


def test_the_recipe_for_a_network_of_ones_own_works_as_the_error_prints_it(tmp_path, monkeypatch):
    class Own(nnx.Module):
        def __init__(self, seed):
            rngs = nnx.Rngs(seed)
            self.layers = nnx.List([jaxgnn.nn.FusedLinear(2, 3, rngs=rngs)])
            self.norm, self.dropout = nnx.BatchNorm(3, rngs=rngs), nnx.Dropout(0.5, rngs=rngs)

    network, again = Own(0), Own(1)
    with pytest.raises(ValueError, match="got Own; the arrays of a network of your own") as error:
        jaxgnn.save_model(tmp_path / "x.npz", network)
    recipe = textwrap.dedent(str(error.value).partition("\n")[2])
    lines = [line for line in recipe.splitlines() if line]
    docs = (Path(__file__).parents[2] / "docs/guides/serving.md").read_text()
    assert all(line.replace("flax.serialization", "serialization") in docs for line in lines)
    monkeypatch.chdir(tmp_path)
    exec(recipe, {"nnx": nnx, "flax": flax, "Path": Path, "network": network, "again": again})
    of_both = (nnx.state(one, nnx.Not(nnx.RngState)) for one in (again, network))
    jax.tree.map(np.testing.assert_array_equal, *of_both)


def _remove(name):
    return lambda arrays, _: arrays.pop(name)


def _array(name, array):
    return lambda arrays, _: arrays.update({name: array})


def _described(**entries):
    return lambda _, description: description.update(entries)


def _option(**options):
    return lambda _, description: description["options"].update(options)


SPOILED = {
    "another class": (_described(network="os.system"), r"expected one of .*, got 'os\.system'"),
    "a newer format": (
        _described(format=2, jaxgnn="9.9"),
        r"expected a format up to 1, which jaxgnn .* reads, got 2, written by jaxgnn 9\.9",
    ),
    "no options": (_described(options=None), "expected options of GCNII"),
    "an option that is none": (_option(colour="red"), "weights of a GCNII: TypeError.*colour"),
    "a value that is none": (_option(activation="tanh"), "activation must be"),
    "an option of lists": (_option(num_layers=[3]), "expected options of GCNII that are numbers"),
    "too many layers": (_option(num_layers=10**9), "num_layers of GCNII is .*, expected at most"),
    "another width": (_option(hidden_features=9), r"is float32\[.*8.*\], expected float32\[.*9"),
    "no array of that name": (_remove("lin_in.kernel"), r"lin_in\.kernel is absent"),
    "an array too many": (_array("other", np.zeros(2)), "other is float64.*expected absent"),
    "another dtype": (
        _array("lin_in.kernel", np.zeros((4, 8), np.float16)),
        r"lin_in\.kernel is float16\[4, 8\], expected float32\[4, 8\]",
    ),
    "objects": (_array("lin_in.kernel", np.array([{}])), r"expected an \.npz file of arrays"),
}


@pytest.mark.parametrize("name", SPOILED)
def test_a_spoiled_file_is_named_with_what_is_wrong(name, saved, tmp_path):
    spoil, message = SPOILED[name]
    arrays = dict(saved[1])
    description = json.loads(str(arrays.pop("description.json")))
    spoil(arrays, description)
    content = {**arrays, "description.json": np.array(json.dumps(description))}
    np.savez(tmp_path / "spoiled.npz", **content)
    with pytest.raises(ValueError, match=message) as error:
        jaxgnn.load_model(tmp_path / "spoiled.npz")
    assert str(error.value).startswith(str(tmp_path / "spoiled.npz"))


@pytest.mark.parametrize("name", ["NequIP", "PaiNN", "SchNet"])
def test_a_potential_of_an_earlier_version_keeps_its_convention(name, tmp_path):
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(CASES, name, CASES[name] | {"subtract_lone_atoms": False})
        model = _make(name)
    jaxgnn.save_model(tmp_path / "model.npz", model)
    with np.load(tmp_path / "model.npz") as file:
        arrays = dict(file)
    description = json.loads(str(arrays["description.json"]))
    assert description["options"].pop("subtract_lone_atoms") is False
    assert not any("lone" in array for array in arrays)  # as earlier versions wrote them
    arrays["description.json"] = np.array(json.dumps(description))
    np.savez(tmp_path / "earlier.npz", **arrays)
    loaded = jaxgnn.load_model(tmp_path / "earlier.npz")
    assert nnx.graphdef(loaded) == nnx.graphdef(model) and loaded.lone_share is None
    jaxgnn.save_model(tmp_path / "again.npz", loaded)  # with the option
    assert jaxgnn.load_model(tmp_path / "again.npz").lone_share is None
    with pytest.raises(ValueError, match="lone_share is absent, expected float32"):
        jaxgnn.load_model(tmp_path / "earlier.npz", subtract_lone_atoms=True)


def test_a_file_that_is_cut_short_or_of_another_kind_is_named(saved, tmp_path):
    (tmp_path / "half.npz").write_bytes(saved[0].read_bytes()[:1000])
    np.savez(tmp_path / "other.npz", x=np.ones(3))
    with pytest.raises(ValueError, match=r"half\.npz: expected an \.npz file of arrays"):
        jaxgnn.load_model(tmp_path / "half.npz")
    with pytest.raises(ValueError, match=r"other\.npz: expected a model that save_model"):
        jaxgnn.load_model(tmp_path / "other.npz")
    with pytest.raises(FileNotFoundError, match=r"missing\.npz"):
        jaxgnn.load_model(tmp_path / "missing.npz")


@pytest.mark.costly
@pytest.mark.parametrize("seed", range(8))
def test_a_damaged_file_is_refused_or_has_the_same_bits(tmp_path, seed):
    path, draw = tmp_path / "model.npz", random.Random(seed)
    jaxgnn.save_model(path, _make("SchNet"))
    whole, right = path.read_bytes(), jaxgnn.load_model(path)
    refused = 0
    for _ in range(12):
        path.write_bytes(damaged(whole, draw))
        try:
            loaded = jaxgnn.load_model(path)
        except ValueError as error:
            assert str(error).startswith(str(path)) and "\n" not in str(error)
            refused += 1
        else:
            assert digest(loaded) == digest(right) and loaded.made_with == right.made_with
    assert refused
