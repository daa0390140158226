"""Weights and features of edges, headers that are inferred, and PyTorch Geometric's folders."""

import re
import warnings

import numpy as np
import pytest

from jaxgnn import CSRGraph
from jaxgnn.datasets import read_graph, read_planetoid
from tests.datasets import formats

PAIRS = [(node, (node + 1) % 10) for node in range(10)]
LABELS = "a\nb\n" * 5


def _folder(tmp_path, edges, **files):
    for name, text in {"edges.csv": edges, "labels.csv": LABELS, **files}.items():
        (tmp_path / name).write_text(text)
    return tmp_path


def _rows(*columns, header=None):
    """The text of edges with further columns, each a function of the row."""
    rows = [",".join(map(str, (*pair, *(c(i) for c in columns)))) for i, pair in enumerate(PAIRS)]
    return "\n".join([*([header] if header else []), *rows]) + "\n"


def _by_pair(data, values):
    ends = zip(data.senders.tolist(), data.receivers.tolist(), strict=True)
    return dict(zip(ends, np.asarray(values).tolist(), strict=True))


def test_columns_of_the_edges_are_weights_and_features(tmp_path):
    header = "Year,source,weight,target,Length"
    rows = [f"{1990 + i},{u},{i / 4},{v},{-i}" for i, (u, v) in enumerate(PAIRS)]
    data = read_graph(_folder(tmp_path, "\n".join([header, *rows])))
    data.validate()
    assert data.edge_weights.dtype == data.edge_features.dtype == np.float32
    assert data.edge_feature_names == ("year", "length")
    weights, features = (_by_pair(data, v) for v in (data.edge_weights, data.edge_features))
    for i, (u, v) in enumerate(PAIRS):
        assert weights[u, v] == weights[v, u] == i / 4
        assert features[u, v] == features[v, u] == [1990 + i, -i]
    graph = CSRGraph.from_edges(data.senders, data.receivers, 10, data.edge_weights)
    assert graph.to_scipy()[1, 0] == 0.0 and graph.to_scipy()[2, 1] == 0.25
    some = read_graph(tmp_path, edge_columns=("Length",))
    assert some.edge_weights is None and some.edge_feature_names == ("length",)
    none = read_graph(tmp_path, edge_columns=())
    assert none.edge_weights is none.edge_features is None and none.num_edges == 20


def test_directions_of_a_directed_graph_have_their_own_weights(tmp_path):
    edges = "source,target,weight\n0,1,1\n1,0,2\n0,1,1\n"
    data = read_graph(_folder(tmp_path, edges), directed=True)
    assert _by_pair(data, data.edge_weights) == {(0, 1): 1.0, (1, 0): 2.0}
    message = r"edges.csv: line 3, column 3: expected the numbers of the same edge in line 2 in eit"
    with pytest.raises(ValueError, match=message):
        read_graph(tmp_path)


INFERRED = {
    "names of edges": (_rows(header="one end,other end"), {}, "line 1 names the columns one end, "),
    "names of numbers": (
        _rows(lambda i: i / 3, header="person,friend,weight"),
        {},
        r"edges.csv: read as if line 1 names .* friend, weight; otherwise pass header=False",
    ),
    "weight": (_rows(lambda i: i), {}, r"column 3 is the weight .* pass edge_columns=\(\"feature"),
    "features": (
        _rows(abs, abs),
        {},
        r"columns 3 to 4 are features .* pass edge_columns with a na",
    ),
    "labels": (
        _rows(),
        {"labels.csv": "kind\n" + "0\n1\n" * 5},
        r"labels.csv: read as if line 1 names the columns kind; otherwise pass header=False",
    ),
}


@pytest.mark.parametrize("name", INFERRED)
def test_what_is_inferred_is_said_with_the_option_that_says_otherwise(tmp_path, name):
    edges, files, message = INFERRED[name]
    with pytest.warns(UserWarning, match=message):
        data = read_graph(_folder(tmp_path, edges, **files))
    assert data.num_edges == 20
    assert (data.edge_weights is not None) == (name in ("names of numbers", "weight"))
    assert (data.edge_features is not None) == (name == "features")


def test_a_caller_who_says_it_hears_nothing(tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        folder = _folder(tmp_path, _rows(lambda i: i, abs, header="p,q,r,weight"))
        data = read_graph(folder, header={"edges": True})
        assert data.edge_feature_names == ("r",) and data.edge_weights is not None
        folder = _folder(tmp_path, _rows(lambda i: i, abs))
        named = read_graph(folder, header=False, edge_columns=("Weight", "age"))
        assert named.edge_feature_names == ("age",) and named.edge_weights.max() == 9


FAULTS = {
    "word": (
        _rows(lambda i: "x" if i == 3 else 1, header="u,v,kind"),
        {},
        r"line 5, column 3: expected a finite number of kind \(edge_columns leaves columns out\), "
        r"got 'x'",
    ),
    "infinite": (_rows(lambda i: "inf", header="u,v,weight"), {}, r"line 2, column 3: .* 'inf'"),
    "short row": ("u,v,weight\n0,1,1\n1,2\n", {}, r"line 3: expected 3 columns .*, got 2"),
    "one column": (
        "0\n1\n",
        {},
        r"edges.csv: line 1: expected 2 columns \(the two nodes .*, got 1",
    ),
    "unknown column": (
        _rows(abs, header="u,v,weight"),
        {"edge_columns": ("cost",)},
        r"edge_columns must be among the columns of .*edges.csv, weight, got 'cost'",
    ),
    "names": (_rows(abs), {"edge_columns": ("a", "b")}, "a name for each of the 1 columns behind"),
    "a string": (
        _rows(abs),
        {"edge_columns": "weight"},
        "edge_columns must be a sequence of names",
    ),
    "header": (_rows(), {"header": {"edge": True}}, "header must be True, False, None, or a dict"),
    "first line": (
        "person,friend\nnobody,1\n",
        {},
        r"line 1, column 1: expected a node id, .*'person'; if this line names the columns, pass "
        r"header=True",
    ),
    "said to be none": (
        _rows(header="u,v"),
        {"header": False},
        "line 1, column 1: expected a node",
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_faults_name_the_file_the_line_and_the_option(tmp_path, name):
    edges, options, message = FAULTS[name]
    with pytest.raises(ValueError, match=message):
        read_graph(_folder(tmp_path, edges), **options)


def test_an_array_of_edges_has_no_columns(tmp_path):
    folder = _folder(tmp_path, _rows())
    (folder / "edges.csv").unlink()
    np.save(folder / "edges.npy", np.array(PAIRS))
    assert read_graph(folder).edge_weights is None
    with pytest.raises(ValueError, match=r"edge_columns must be None for edges in an \.npy file"):
        read_graph(folder, edge_columns=("weight",))


def test_the_folders_of_pytorch_geometric_are_read(tmp_path):
    raw = tmp_path / "Tiny" / "raw"
    raw.mkdir(parents=True)
    formats.write_planetoid(raw)
    expected = read_planetoid(raw)
    found = [
        read_graph(raw),
        read_graph(tmp_path / "Tiny"),
        read_planetoid(tmp_path / "Tiny"),
        read_planetoid(tmp_path, "tiny"),
        read_planetoid(tmp_path / "Tiny", "TINY"),
    ]
    for data in found:
        assert data.name == "tiny" and data.num_classes == expected.num_classes
        np.testing.assert_array_equal(data.test, expected.test)
        np.testing.assert_array_equal(data.senders, expected.senders)
    bare = read_graph(tmp_path / "Tiny", labelled=False)
    assert bare.num_classes == 0 and bare.train.size == 0 and (bare.labels == -1).all()
    with pytest.raises(
        ValueError, match=r"directed must be its default for the files of Planetoid"
    ):
        read_graph(raw, directed=True)
    with pytest.raises(FileNotFoundError, match=re.escape("ind.*.allx of one data set")):
        read_planetoid(tmp_path)


def test_weights_and_features_of_a_record_are_checked(tmp_path):
    data = read_graph(_folder(tmp_path, _rows(lambda i: i, header="u,v,weight")))
    object.__setattr__(data, "edge_weights", data.edge_weights[:-1])
    with pytest.raises(ValueError, match=r"edge_weights: expected as many as senders \(20\)"):
        data.validate()
    object.__setattr__(data, "edge_weights", np.full(20, np.nan, np.float32))
    with pytest.raises(
        ValueError, match=r"edge_weights: expected finite numbers, got nan at \[0\]"
    ):
        data.validate()
