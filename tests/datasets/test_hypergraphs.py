"""Hypergraphs from files: what is written is read, and no file runs code."""

import dataclasses
import pickle
import re

import numpy as np
import pytest
import scipy.sparse

from jaxgnn import Incidence, datasets
from jaxgnn.datasets.formats.safe_pickle import read_numbers

from . import formats

SMALL = formats.small_hypergraph()


def assert_same(got, expected, *, split=True):
    fields = ["node_ids", "hyperedge_ids", "num_hyperedges", "features", "labels", "num_classes"]
    for field in fields + ["train", "validation", "test"] * split:
        value, reference = getattr(got, field), getattr(expected, field)
        np.testing.assert_array_equal(value, reference, err_msg=field)
        assert np.asarray(value).dtype == np.asarray(reference).dtype, field


# Protocols up to 2 are what Python 2 wrote.
@pytest.mark.parametrize("protocol", range(6))
@pytest.mark.parametrize("sets", [True, False])
def test_reading_gives_back_what_was_pickled(protocol, sets, tmp_path):
    formats.write_hypergcn(tmp_path, SMALL, protocol=protocol, sets=sets)
    data = datasets.read_hypergcn(tmp_path, split=3)
    assert_same(data, SMALL)
    assert data.name == tmp_path.name
    incidence = Incidence.from_hyperedge_index(
        np.stack([data.node_ids, data.hyperedge_ids]), data.num_nodes, data.num_hyperedges
    )
    assert incidence.hyperedge_sizes().tolist() == [3, 2, 1, 5, 0]


def test_pickles_of_python_2_with_the_names_of_old_modules_are_read(tmp_path):
    formats.write_hypergcn(tmp_path, SMALL, protocol=2)
    # Protocol 2 as Python 2 wrote it: bytes are strings, and modules have the names of then.
    old = b"\x80\x02}q\x00U\x07paper\xe9 q\x01c__builtin__\nset\nq\x02]q\x03(K\x01K\x02e\x85Rs."
    (tmp_path / "hypergraph.pickle").write_bytes(old)
    matrix = pickle.dumps(scipy.sparse.csr_matrix(SMALL.features), 2)
    for new, then in (
        (b"scipy.sparse._csr", b"scipy.sparse.csr"),
        (b"numpy._core.multiarray", b"numpy.core.multiarray"),
    ):
        assert new in matrix
        matrix = matrix.replace(new, then)
    (tmp_path / "features.pickle").write_bytes(matrix)
    data = datasets.read_hypergcn(tmp_path, "old")
    assert data.node_ids.tolist() == [1, 2] and data.num_hyperedges == 1
    np.testing.assert_array_equal(data.features, SMALL.features)


def test_strings_are_read_as_python_2_wrote_them(tmp_path):
    path = tmp_path / "strings.pickle"
    lines = [rb"""S'a\x41\'\\"'""", b'S"it\'s"', rb"S'\n\xe9'", rb"V\u20ac"]
    path.write_bytes(b"(" + b"\n".join(lines) + b"\nl.")
    assert read_numbers(path, "text") == ["aA'\\\"", "it's", "\né", "€"]
    for line in (rb"S'\q'", rb"S'\x4'", rb"S'", rb"Sa", b"S'a\"", b"S'\\'"):
        path.write_bytes(line + b"\n.")
        with pytest.raises(ValueError, match=r"strings\.pickle: cannot be read as a pickle"):
            read_numbers(path, "text")


def test_features_may_be_dense_and_labels_any_numbers(tmp_path):
    formats.write_hypergcn(tmp_path, SMALL)
    formats.write_pickle(tmp_path / "features.pickle", SMALL.features.tolist())
    formats.write_pickle(tmp_path / "labels.pickle", np.array([7, -2, 40, 9])[SMALL.labels])
    data = datasets.read_hypergcn(tmp_path, split=3)
    np.testing.assert_array_equal(data.features, SMALL.features)
    order = np.argsort(np.argsort([7, -2, 40, 9]))
    np.testing.assert_array_equal(data.labels, order[SMALL.labels])
    assert data.num_classes == 4


def test_the_random_split_has_half_a_quarter_and_a_quarter_of_each_class(tmp_path):
    labels = np.repeat([0, 1, 2], [8, 20, 12])
    big = dataclasses.replace(SMALL, labels=labels, features=np.ones((40, 2), np.float32))
    formats.write_hypergcn(tmp_path, dataclasses.replace(big, train=SMALL.train))
    data = datasets.read_hypergcn(tmp_path, seed=1)
    for part, share in ((data.train, 0.5), (data.validation, 0.25), (data.test, 0.25)):
        np.testing.assert_array_equal(np.bincount(labels[part]), share * np.array([8, 20, 12]))
    again = datasets.read_hypergcn(tmp_path, seed=1)
    np.testing.assert_array_equal(again.test, data.test)
    assert not np.array_equal(datasets.read_hypergcn(tmp_path, seed=2).test, data.test)


@pytest.mark.parametrize("separator", [",", " ", ", ", "\t"])
def test_reading_gives_back_the_lines_of_text(separator, tmp_path):
    formats.write_hyperedge_text(tmp_path, SMALL, separator=separator)
    # Empty lines at the end are no hyperedges: one cannot see how many there should be.
    expected = dataclasses.replace(SMALL, num_hyperedges=4)
    data = datasets.read_hyperedge_text(tmp_path)
    assert_same(data, expected, split=False)
    assert len(data.train) + len(data.validation) + len(data.test) == formats.NODES


def test_ids_may_count_from_zero_and_an_empty_line_is_an_empty_hyperedge(tmp_path):
    formats.write_hyperedge_text(tmp_path, SMALL)
    (tmp_path / "hyperedges-small.txt").write_text("0,11\n\n3\n")
    data = datasets.read_hyperedge_text(tmp_path, first_id=0)
    assert data.node_ids.tolist() == [0, 11, 3]
    assert data.hyperedge_ids.tolist() == [0, 0, 2] and data.num_hyperedges == 3


def test_features_of_labels_are_one_hot_and_noise(tmp_path):
    formats.write_hyperedge_text(tmp_path, SMALL, features=False)
    exact = datasets.read_hyperedge_text(tmp_path, feature_noise=0.0).features
    np.testing.assert_array_equal(exact, np.eye(formats.CLASSES)[SMALL.labels])
    noisy = datasets.read_hyperedge_text(tmp_path, feature_noise=2.0, seed=1).features
    assert noisy.dtype == np.float32
    assert 1 < np.std(noisy - exact) < 3


def test_digits_have_a_hyperedge_of_each_image_and_its_nearest():
    data = datasets.digits_hypergraph(neighbors=3)
    members = data.node_ids.reshape(data.num_hyperedges, 4)
    assert data.num_hyperedges == data.num_nodes == 1797
    np.testing.assert_array_equal(members[:, 0], np.arange(1797))
    np.testing.assert_array_equal(data.hyperedge_ids, np.repeat(np.arange(1797), 4))
    pixels = data.features[:50, None] - data.features[None]
    distances = np.square(pixels.astype(np.float64)).sum(axis=-1)
    farthest = np.take_along_axis(distances, members[:50], axis=1).max(axis=1)
    np.testing.assert_allclose(np.sort(distances, axis=1)[:, 3], farthest, rtol=1e-6)
    graph = datasets.digits()
    for field in ("features", "labels", "train", "validation", "test"):
        np.testing.assert_array_equal(getattr(data, field), getattr(graph, field))
    assert (data.labels[members[:, 1:]] == data.labels[:, None]).mean() > 0.95
    with pytest.raises(ValueError, match="digits_hypergraph: neighbors: expected 1 to 1796, got 0"):
        datasets.digits_hypergraph(0)


# -- files that are not what they should be ------------------------------------------------------


class Calls:
    """Pickles as a call of a function."""

    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        """What pickle is to call."""
        return self.call


def touched(folder):
    return folder / "touched"


@pytest.mark.parametrize("file", ["hypergraph", "features", "labels", "splits/3"])
@pytest.mark.parametrize("protocol", [2, 4])
def test_no_file_runs_code(file, protocol, tmp_path):
    import os

    formats.write_hypergcn(tmp_path, SMALL)
    path = tmp_path / f"{file}.pickle"
    formats.write_pickle(path, {0: Calls(os.mkdir, str(touched(tmp_path)))}, protocol)
    with pytest.raises(
        ValueError, match=r"refers to (posix|nt)\.mkdir, which is not read"
    ) as error:
        datasets.read_hypergcn(tmp_path, split=3)
    assert str(path) in str(error.value)
    assert not touched(tmp_path).exists()
    pickle.loads(path.read_bytes())
    assert touched(tmp_path).exists(), "the file is one that would have run"


HARMFUL = {
    "eval": (b"cbuiltins\neval\n(X\x01\x00\x00\x001tR.", "builtins.eval"),
    "getattr": (b"cbuiltins\ngetattr\n.", "builtins.getattr"),
    "an attribute of numpy": (b"\x80\x04\x8c\x05numpy\x8c\x08fromfile\x93.", "numpy.fromfile"),
    "a dotted name": (b"\x80\x04\x8c\x05numpy\x8c\x0dndarray.dumps\x93.", "numpy.ndarray.dumps"),
    "memory maps": (b"cnumpy\nmemmap\n.", "numpy.memmap"),
    "scipy's own class": (b"cscipy.sparse._dok\ndok_matrix\n.", "scipy.sparse._dok.dok_matrix"),
    "a codec": (b"c_codecs\nencode\n(X\x01\x00\x00\x00aX\x03\x00\x00\x00bz2tR.", "the codec 'bz2'"),
    "a persistent object": (b"Pelsewhere\n.", "persistent object 'elsewhere'"),
    "an extension of copyreg": (b"\x80\x02\x82\x01.", "cannot be read as a pickle"),
}


@pytest.mark.parametrize("name", HARMFUL)
def test_whatever_else_a_pickle_names_is_refused(name, tmp_path):
    content, message = HARMFUL[name]
    formats.write_hypergcn(tmp_path, SMALL)
    path = tmp_path / "labels.pickle"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=re.escape(message)) as error:
        datasets.read_hypergcn(tmp_path)
    assert str(path) in str(error.value)


def test_a_pickle_can_not_change_what_the_next_one_meets(tmp_path):
    formats.write_hypergcn(tmp_path, SMALL)
    # Sets an attribute of the class that stands for csr_matrix, and returns an empty list.
    state = b"\x80\x02cscipy.sparse\ncsr_matrix\nN}X\x0c\x00\x00\x00__setstate__Ns\x86b0]."
    path = tmp_path / "labels.pickle"
    path.write_bytes(state)
    with pytest.raises(ValueError, match="labels"):
        datasets.read_hypergcn(tmp_path)
    formats.write_hypergcn(tmp_path, SMALL)
    assert_same(datasets.read_hypergcn(tmp_path, split=3), SMALL)


def put(value):
    return lambda path: formats.write_pickle(path, value)


def raw(content):
    return lambda path: path.write_bytes(content)


def csr(**changes):
    """A pickle of a sparse matrix whose arrays do not fit each other."""

    def change(path):
        matrix = scipy.sparse.csr_matrix(SMALL.features)
        for name, value in changes.items():
            setattr(matrix, name, value)
        formats.write_pickle(path, matrix)

    return change


N = formats.NODES
PICKLES = [
    # file, what is put there, what the message says besides the file
    ("hypergraph", lambda path: path.unlink(), "name -> node ids"),
    ("hypergraph", lambda path: path.write_bytes(path.read_bytes()[:20]), "read as a pickle"),
    ("hypergraph", lambda path: path.write_text("1,2\n"), "read as a pickle"),
    ("hypergraph", put([[1, 2]]), "a dict of hyperedges: name -> node ids, got a list"),
    ("hypergraph", put({"a": [1], "b": [2, N]}), "node ids in [0, 12), got 12 at [2]"),
    ("hypergraph", put({"a": [-1]}), "node ids in [0, 12), got -1 at [0]"),
    ("hypergraph", put({"a": [0.5]}), "node ids of hyperedge 'a' as integers, got 0.5"),
    ("hypergraph", put({"a": ["b"]}), "node ids of hyperedge 'a' as integers"),
    ("hypergraph", put({"a": 3}), "node ids of hyperedge 'a' as a list, got a int"),
    ("hypergraph", put({"a": [[1, 2], [3]]}), "node ids of hyperedge 'a' as plain integers"),
    ("hypergraph", put({"a": [[1, 2]]}), "as plain integers, got shape (1, 2)"),
    ("hypergraph", put({"a": [True]}), "node ids of hyperedge 'a' as integers, got True"),
    ("hypergraph", put({"a": [10**20]}), "node ids of hyperedge 'a' as integers, got 1e+20"),
    ("hypergraph", put({"a": [10**40]}), "expected integers of 64 bits"),
    ("hypergraph", raw(b"(dI0\n(I1_0\nlsI1\n(I1\nls."), "expected a number, got b'1_0'"),
    ("hypergraph", raw(b"(dI0\n(lsI0\n(lsI1\n(I1\nls."), "the key 0 twice"),
    ("hypergraph", put({((1,),): [1]}), "a dict has a tuple of others as a key"),
    ("features", raw(b"((F1_0\nlt."), "expected a number, got b'1_0'"),
    ("labels", put([10**20] * N), "labels as integers, got 1e+20"),
    ("labels", put([1, "1_0"] * (N // 2)), "labels as integers, got '1_0'"),
    ("labels", raw(b"(L1_0L\nl."), "expected a number, got b'1_0L'"),
    ("features", lambda path: path.unlink(), "a row for each node"),
    ("features", put([[1.0], [1.0, 2.0]]), "features as a matrix"),
    ("features", put([1.0, 2.0]), "features as a 2-d array"),
    ("features", put(np.array([["a"]])), "features as a 2-d array"),
    ("features", put(np.full((N, 2), np.nan)), "finite numbers, got nan at [0, 0]"),
    ("features", csr(indices=np.full(99, 99, np.int32)), "not a csr_matrix"),
    ("features", csr(indptr=np.zeros(3, np.int32)), "not a csr_matrix"),
    ("features", csr(_shape=(2, 2)), "not a csr_matrix"),
    ("features", csr(_shape=None), "not a csr_matrix"),
    ("labels", lambda path: path.unlink(), "one for each node"),
    ("labels", put([0, 1]), "expected 12 labels, one for each row"),
    ("labels", put(["a"] * N), "labels as integers"),
    ("labels", put({0: 1}), "labels as a list, got a dict"),
    ("splits/3", lambda path: path.unlink(), "train, test"),
    ("splits/3", put([1, 2]), "train, test"),
    ("splits/3", put({"train": [1]}), "train, test"),
    ("splits/3", put({"train": [1], "test": [N]}), "node ids in [0, 12), got 12"),
    ("splits/3", put({"train": [1], "test": [1]}), "nodes outside train, got node 1"),
    ("splits/3", put({"train": [1, 1], "test": [2]}), "without repeats"),
    ("splits/3", put({"train": [], "test": [2]}), "at least one node"),
]


@pytest.mark.parametrize(
    ("file", "spoil", "fragment"), PICKLES, ids=[f"{f}-{i}" for i, (f, *_) in enumerate(PICKLES)]
)
def test_error_names_the_pickle_and_the_fault(file, spoil, fragment, tmp_path):
    formats.write_hypergcn(tmp_path, SMALL)
    path = tmp_path / f"{file}.pickle"
    spoil(path)
    expected = ValueError if path.exists() else FileNotFoundError
    with pytest.raises(expected, match=re.escape(fragment)) as error:
        datasets.read_hypergcn(tmp_path, split=3)
    assert str(path) in str(error.value)


def text(content):
    return lambda path: path.write_text(content)


TEXTS = [
    ("hyperedges", lambda path: path.unlink(), "a line of node ids"),
    ("hyperedges", text("1,2\n3,x\n"), "line 2: expected node ids, got 'x'"),
    ("hyperedges", text("1,2\n3,1.5\n"), "line 2: expected node ids, got '1.5'"),
    ("hyperedges", text("1,2\n\n0,3\n"), "line 3: expected node ids in [1, 12], as many"),
    ("hyperedges", text("1,13\n"), "line 1: expected node ids in [1, 12]"),
    ("node-labels", lambda path: path.unlink(), "the class of each node"),
    ("node-labels", text("1\n2,3\n"), "line 2: expected one label, got 2"),
    ("node-labels", text("1\n\n3\n"), "line 2: expected one label, got 0"),
    ("node-labels", text("1\ncat\n"), "line 2: expected a label as a whole number, got 'cat'"),
    ("hyperedges", text("1,2\n1_0\n"), "line 2: expected node ids, got '1_0'"),
    ("hyperedges", text("1,2\n٣\n"), "line 2: expected node ids, got '٣'"),
    ("hyperedges", text("1,2\n" + "9" * 5000 + "\n"), "line 2: expected node ids, got '999"),
    ("node-labels", text("1\n1_0\n"), "line 2: expected a label as a whole number, got '1_0'"),
    ("node-labels", text("1\n" + "9" * 20 + "\n"), "line 2: expected a label of at most 9223"),
    (
        "node-features",
        text("1,2\n1,1_0\n"),
        "line 2: expected numbers: expected a number, got '1_0",
    ),
    ("node-features", text("1,1e300\n" * N), "finite numbers, got inf"),
    ("node-features", text("1,2\n1,b\n"), "line 2: expected numbers"),
    ("node-features", text("1,2\n1\n"), "line 2: expected 2 features, as in line 1, got 1"),
    ("node-features", text("1,2\n"), "expected 12 lines, one for each label, got 1"),
    ("node-features", text("nan\n" * N), "finite numbers, got nan"),
    ("node-features", lambda path: path.unlink(), "with feature_noise"),
]


@pytest.mark.parametrize(
    ("file", "spoil", "fragment"), TEXTS, ids=[f"{f}-{i}" for i, (f, *_) in enumerate(TEXTS)]
)
def test_error_names_file_line_and_fault(file, spoil, fragment, tmp_path):
    formats.write_hyperedge_text(tmp_path, SMALL)
    path = tmp_path / f"{file}-small.txt"
    spoil(path)
    expected = ValueError if path.exists() else FileNotFoundError
    with pytest.raises(expected, match=re.escape(fragment)) as error:
        datasets.read_hyperedge_text(tmp_path)
    assert str(tmp_path / file) in str(error.value)


def test_two_files_of_a_kind_are_not_chosen_from(tmp_path):
    formats.write_hyperedge_text(tmp_path, SMALL)
    (tmp_path / "hyperedges-other.txt").write_text("1\n")
    with pytest.raises(ValueError, match=r"expected one file hyperedges\*\.txt, got hyperedges-o"):
        datasets.read_hyperedge_text(tmp_path)


@pytest.mark.parametrize("read", [datasets.read_hypergcn, datasets.read_hyperedge_text])
def test_missing_folder_is_named(read, tmp_path):
    with pytest.raises(FileNotFoundError, match=re.escape(str(tmp_path / "absent"))):
        read(tmp_path / "absent")
