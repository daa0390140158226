"""Weights in a file: written, read and refused."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxgnn.models import CandidateNetwork, RecurrentRelationalNetwork
from jaxgnn.nn import MLPUpdate
from jaxgnn.pretrained import _sudoku, load_weights, save_weights, sudoku_solver

OPTIONS = {"features": 4, "num_steps": 2}


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A network and the file of its weights."""
    model = CandidateNetwork(**OPTIONS, rngs=nnx.Rngs(3))
    path = tmp_path_factory.mktemp("weights") / "small.npz"
    save_weights(path, model, OPTIONS)
    return model, path


def _leaves(model):
    return jax.tree.leaves(nnx.state(model))


def test_a_model_comes_back_bit_for_bit_and_in_another_dtype_of_computation(saved):
    model, path = saved
    for options in ({}, {"dtype": jnp.bfloat16}):
        loaded = load_weights(path, **options)
        assert isinstance(loaded, CandidateNetwork) and loaded.steps.num_steps == 2
        for got, expected in zip(_leaves(loaded), _leaves(model), strict=True):
            np.testing.assert_array_equal(got, expected)
    puzzle = jnp.zeros((16,), jnp.int32)
    assert jax.eval_shape(loaded, puzzle).dtype == jnp.bfloat16


def test_parameters_of_bfloat16_come_back_as_what_they_are(tmp_path):
    options = {**OPTIONS, "param_dtype": "bfloat16"}
    model = RecurrentRelationalNetwork(**options, rngs=nnx.Rngs(3))
    save_weights(tmp_path / "short.npz", model, options)
    loaded = load_weights(tmp_path / "short.npz")
    assert {leaf.dtype.name for leaf in _leaves(loaded)} == {"bfloat16"}
    for got, expected in zip(_leaves(loaded), _leaves(model), strict=True):
        np.testing.assert_array_equal(got, expected)
    with pytest.raises(ValueError, match=r"expected float16\["):
        load_weights(tmp_path / "short.npz", param_dtype="float16")


def test_nothing_but_plain_arrays_is_stored(saved):
    with np.load(saved[1], allow_pickle=False) as file:
        kinds = {file[name].dtype.kind for name in file.files}
    assert kinds == {"f", "U"}


def test_what_is_not_such_a_file_is_named(tmp_path, saved):
    with pytest.raises(FileNotFoundError, match=r"no file .*missing\.npz"):
        load_weights(tmp_path / "missing.npz")
    (tmp_path / "text.npz").write_text("no arrays")
    with pytest.raises(ValueError, match=r"text\.npz: expected an \.npz file"):
        load_weights(tmp_path / "text.npz")
    whole = saved[1].read_bytes()
    (tmp_path / "half.npz").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match=r"half\.npz: expected an \.npz file"):
        load_weights(tmp_path / "half.npz")
    np.savez(tmp_path / "other.npz", x=np.ones(3))
    with pytest.raises(ValueError, match=r"other\.npz: expected weights that save_weights"):
        load_weights(tmp_path / "other.npz")
    pickled = np.array([{"network": "os.system"}], dtype=object)
    np.savez(tmp_path / "pickle.npz", **{"description.json": pickled})
    with pytest.raises(ValueError, match=r"pickle\.npz: expected an \.npz file"):
        load_weights(tmp_path / "pickle.npz")


def test_weights_that_do_not_fit_their_network_are_named(tmp_path, saved):
    with np.load(saved[1]) as file:
        arrays = dict(file)
    arrays["readout.kernel"] = np.zeros((5, 1), np.float32)
    np.savez(tmp_path / "wide.npz", **arrays)
    with pytest.raises(
        ValueError, match=r"readout\.kernel is float32\[5, 1\], expected float32\[4"
    ):
        load_weights(tmp_path / "wide.npz")
    del arrays["readout.kernel"]
    np.savez(tmp_path / "short.npz", **arrays)
    with pytest.raises(ValueError, match=r"readout\.kernel is absent"):
        load_weights(tmp_path / "short.npz")
    arrays["description.json"] = np.array('{"network": "Module", "options": {}}')
    np.savez(tmp_path / "class.npz", **arrays)
    with pytest.raises(ValueError, match=r"expected one of CandidateNetwork, .*'Module'"):
        load_weights(tmp_path / "class.npz")


HOSTILE = {
    "an option twice": ('"features": 4, "features": 4', "weights that save_weights has written"),
    "a box": ('"box": 1000000', "box of .* is 1000000, expected at most 16"),
    "layers": ('"num_layers": 1000000000', "num_layers of .* expected at most"),
    "features": ('"features": 1e30', "features of .* expected at most"),
    "an option that is none": ('"x": 1', r"weights of a CandidateNetwork: TypeError"),
    "an option of lists": ('"features": [[4]]', "options of .* that are numbers or names"),
    "a dtype of objects": ('"param_dtype": "O"', "weights of a CandidateNetwork"),
    "nesting": ('"features": ' + "[" * 100_000, "weights that save_weights has written"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_description_is_not_believed(name, tmp_path, saved):
    options, message = HOSTILE[name]
    with np.load(saved[1]) as file:
        arrays = dict(file)
    description = f'{{"network": "CandidateNetwork", "options": {{{options}}}}}'
    arrays["description.json"] = np.array(description)
    np.savez(tmp_path / "hostile.npz", **arrays)
    with pytest.raises(ValueError, match=message) as error:
        load_weights(tmp_path / "hostile.npz")
    assert str(error.value).startswith(str(tmp_path / "hostile.npz"))


def test_weights_of_the_other_byte_order_are_read(tmp_path, saved):
    with np.load(saved[1]) as file:
        arrays = {name: file[name].astype(file[name].dtype.newbyteorder(">")) for name in file}
    np.savez(tmp_path / "big.npz", **arrays)
    for got, expected in zip(
        _leaves(load_weights(tmp_path / "big.npz")), _leaves(saved[0]), strict=True
    ):
        np.testing.assert_array_equal(got, expected)


def test_what_could_not_be_loaded_again_is_not_saved(tmp_path, saved):
    with pytest.raises(ValueError, match="save_weights: model"):
        save_weights(tmp_path / "x.npz", MLPUpdate(2, 2, rngs=nnx.Rngs(0)), {})
    with pytest.raises(ValueError, match=r"CandidateNetwork with .*: .* expected float32"):
        save_weights(tmp_path / "x.npz", saved[0], {"features": 5})
    relational = RecurrentRelationalNetwork(box=2, features=4, rngs=nnx.Rngs(0))
    with pytest.raises(ValueError, match="expected float32"):
        save_weights(tmp_path / "x.npz", relational, {"features": 4})
    assert not (tmp_path / "x.npz").exists()


def test_missing_weights_are_asked_for_by_the_commands_that_make_them(monkeypatch, tmp_path):
    monkeypatch.setattr(_sudoku, "sudoku_weights", lambda: tmp_path / "sudoku.npz")
    with pytest.raises(FileNotFoundError, match=r"sudoku\.npz.*experiments\.sudoku"):
        sudoku_solver()
