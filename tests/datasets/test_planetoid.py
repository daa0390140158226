"""Planetoid's pickles, and graphs with attributes in one .npz file, are read as written."""

import re

import numpy as np
import pytest
import scipy.sparse

from jaxgnn.datasets import read_npz_graph, read_planetoid

from . import formats
from .formats import write_pickle


def _same(found, expected):
    for field in ("senders", "receivers", "features", "labels", "train", "validation", "test"):
        np.testing.assert_array_equal(getattr(found, field), getattr(expected, field), field)
        assert getattr(found, field).dtype == getattr(expected, field).dtype
    assert found.name == expected.name and found.num_classes == expected.num_classes


@pytest.mark.parametrize(("protocol", "missing"), [(0, 0), (2, 3)])
def test_planetoid_is_read_as_written_with_test_nodes_that_are_left_out(
    protocol, missing, tmp_path
):
    expected = formats.write_planetoid(tmp_path, protocol=protocol, missing=missing)
    _same(read_planetoid(tmp_path), expected)
    _same(read_planetoid(tmp_path, "tiny"), expected)
    assert (expected.labels < 0).sum() == missing


@pytest.mark.parametrize("protocol", [0, 2, 5])
def test_planetoid_may_have_arrays_of_scipy_in_the_place_of_matrices(protocol, tmp_path):
    expected = formats.write_planetoid(
        tmp_path, protocol=protocol, as_sparse=scipy.sparse.csr_array
    )
    _same(read_planetoid(tmp_path), expected)


class _Code:
    def __reduce__(self):
        return (print, ("code of a data file ran",))


def _pickled(value):
    return lambda path: write_pickle(path, value)


def _text(text):
    return lambda path: path.write_text(text)


TOO_FAR = {0: [1], 1: [0, 999]}
BAD_PLANETOID = [
    ("graph", _pickled(_Code()), "refers to builtins.print"),
    ("graph", _pickled([1, 2]), "expected a dict of lists: node -> its neighbours, got a list"),
    ("graph", _pickled({0: 3}), "got a value that is no list"),
    ("graph", _pickled(TOO_FAR), "expected nodes in [0, 519), got 999"),
    ("graph", _pickled({0: ["a"]}), "expected neighbours as integers, got 'a'"),
    ("ally", _pickled(np.full((510, 4), 2)), "expected one-hot labels, got [2.0, 2.0"),
    ("ally", _pickled(np.eye(4)), "expected 4 rows, got (510, 3)"),
    ("allx", _pickled(np.zeros((9, 3))), "expected 510 rows, got (9, 3)"),
    ("y", _pickled(np.eye(4)[np.arange(60) % 4]), "expected 500 nodes for the validation"),
    ("tx", _pickled(np.zeros((2, 3))), "expected 8 rows, one a line of ind.tiny.test.index"),
    ("tx", _pickled(np.zeros((8, 5))), "expected 3 columns, got 5"),
    ("ty", _pickled(np.eye(8, 7)), "expected 4 columns, got 7"),
    ("test.index", _text("600\n600\n"), "expected every node once"),
    ("test.index", _text("3\n4\n5\n6\n7\n8\n9\n1\n"), "expected numbers from 510 on"),
    ("test.index", _text("x\n"), "line 1, column 1: expected int32, got 'x'"),
    ("test.index", _text("2000000000\n"), "its nodes would take 8000000004 bytes"),
]


@pytest.mark.parametrize(
    ("part", "spoil", "message"), BAD_PLANETOID, ids=[m[:40] for *_, m in BAD_PLANETOID]
)
def test_a_bad_file_of_planetoid_is_named(part, spoil, message, tmp_path, capsys):
    formats.write_planetoid(tmp_path)
    spoil(tmp_path / f"ind.tiny.{part}")
    with pytest.raises(ValueError, match=re.escape(message)) as caught:
        read_planetoid(tmp_path)
    place = "ind.tiny.allx" if "4 rows, got (510" in message else f"ind.tiny.{part}"
    assert place in str(caught.value) and capsys.readouterr().out == ""


def test_missing_files_of_planetoid_are_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="no folder"):
        read_planetoid(tmp_path / "nowhere")
    with pytest.raises(FileNotFoundError, match=r"ind\.\*\.allx of one data set, or its name"):
        read_planetoid(tmp_path)
    formats.write_planetoid(tmp_path)
    for part in ("graph", "test.index", "ty"):
        path = tmp_path / f"ind.tiny.{part}"
        content = path.read_bytes()
        path.unlink()
        with pytest.raises(FileNotFoundError, match=re.escape(str(path))):
            read_planetoid(tmp_path)
        path.write_bytes(content)


DATA = formats.small_dataset()


@pytest.mark.parametrize("beginning", ["{}_", "{}_matrix."])
def test_a_graph_in_one_npz_file_is_read_as_written(beginning, tmp_path):
    path = tmp_path / "small.npz"
    formats.write_npz_graph(path, DATA, beginning=beginning)
    found = read_npz_graph(path, per_class=(1, 1), seed=4)
    order = np.lexsort([DATA.receivers, DATA.senders])
    np.testing.assert_array_equal(found.senders, DATA.senders[order])
    np.testing.assert_array_equal(found.receivers, DATA.receivers[order])
    np.testing.assert_array_equal(found.features, DATA.features)
    np.testing.assert_array_equal(found.labels, DATA.labels)
    assert found.name == "small" and found.num_classes == formats.CLASSES
    assert (found.train.size, found.validation.size, found.test.size) == (4, 4, 4)
    assert (np.bincount(found.labels[found.train]) == 1).all()


def test_edges_of_an_npz_file_keep_their_directions_if_asked_for(tmp_path):
    one_way = formats.small_dataset()
    kept = one_way.senders < one_way.receivers
    arrays = {"senders": one_way.senders[kept], "receivers": one_way.receivers[kept]}
    one_way = type(one_way)(**{**vars(one_way), **arrays})
    path = tmp_path / "one_way.npz"
    formats.write_npz_graph(path, one_way)
    found = read_npz_graph(path, per_class=(1, 1), directed=True)
    assert set(zip(found.senders.tolist(), found.receivers.tolist(), strict=True)) == set(
        zip(arrays["senders"].tolist(), arrays["receivers"].tolist(), strict=True)
    )
    assert read_npz_graph(path, per_class=(1, 1)).num_edges == 2 * found.num_edges


BAD_NPZ = {
    "no matrix": ({"adj_data": None}, "expected arrays adj_data, adj_indices"),
    "no attributes": ({"attr_indptr": None}, "expected arrays adj_data, adj_indices"),
    "no labels": ({"labels": None}, "expected labels, got"),
    "another number of labels": ({"labels": np.zeros(3, int)}, "labels: expected 12"),
    "not square": ({"adj_shape": np.array([12, 5])}, "adj: expected a square matrix"),
    "a column out of range": ({"adj_indices": 99}, "adj: expected columns in [0, 12)"),
    "offsets that fall": ({"adj_indptr": -1}, "adj: row offsets do not rise"),
    "an attribute out of range": ({"attr_indices": 99}, "not a csr_matrix: a column is not in"),
    "objects": ({"labels": np.array([{}] * 12)}, "expected a dtype of plain numbers"),
    "too few of a class": ({"labels": np.arange(12) // 11}, "more than 2 nodes of each class"),
}


@pytest.mark.parametrize("name", BAD_NPZ)
def test_a_bad_npz_graph_is_named(name, tmp_path):
    changes, message = BAD_NPZ[name]
    path = tmp_path / "small.npz"
    formats.write_npz_graph(path, DATA)
    with np.load(path) as stored:
        arrays = dict(stored)
    for key, value in changes.items():
        arrays[key] = np.full_like(arrays[key], value) if isinstance(value, int) else value
    np.savez(path, **{key: value for key, value in arrays.items() if value is not None})
    with pytest.raises(ValueError, match=re.escape(message)) as caught:
        read_npz_graph(path, per_class=(1, 1))
    assert str(path) in str(caught.value)
