"""Folders of the TU collection are read as they were written, and refused where they are not so."""

import numpy as np
import pytest

from jaxgnn.datasets import read_tu
from jaxgnn.graph import GraphBatch, GraphSample

# Two graphs whose nodes and edges are mixed up in the files: 1, 3 and 4 are of the first.
FILES = {
    "A": "4, 1\n2, 5\n1, 4\n3, 1\n5, 2\n",
    "graph_indicator": "1\n2\n1\n1\n2\n",
    "graph_labels": "1\n-1\n",
    "node_labels": "7\n5\n7\n0\n0\n",
    "node_attributes": "0.5, 1\n1.5, 2\n2.5, 3\n3.5, 4\n4.5, 5\n",
    "edge_labels": "3\n1\n3\n3\n1\n",
}


@pytest.fixture
def write(tmp_path):
    def write(**changed):
        for part, text in (FILES | changed).items():
            if text is not None:
                (tmp_path / f"TINY_{part}.txt").write_text(text)
        return tmp_path

    return write


def test_graphs_have_their_nodes_edges_features_and_classes(write):
    data = read_tu(write())
    assert (data.name, data.num_graphs, len(data), data.num_classes) == ("TINY", 2, 2, 2)
    assert data.class_names == ("-1", "1") and data.labels.tolist() == [1, 0]
    assert data.num_nodes_of_each.tolist() == [3, 2] and data.num_edges_of_each.tolist() == [3, 2]
    first, last = data[0], data[-1]
    assert first["senders"].tolist() == [2, 0, 1] and first["receivers"].tolist() == [0, 2, 0]
    assert last["senders"].tolist() == [0, 1] and last["receivers"].tolist() == [1, 0]
    # Attributes, and behind them a column for each of the labels 0, 5 and 7.
    np.testing.assert_array_equal(
        first["nodes"], [[0.5, 1, 0, 0, 1], [2.5, 3, 0, 0, 1], [3.5, 4, 1, 0, 0]]
    )
    np.testing.assert_array_equal(last["edges"], [[1, 0], [1, 0]])
    batch = GraphBatch.from_graphs([GraphSample(**data[at]) for at in range(2)], pad_to=(8, 8))
    np.testing.assert_array_equal(batch.globals[:2], [1, 0])
    assert batch.graph.degrees().tolist() == [2, 0, 1, 1, 1, 0, 0, 0]


def test_numbers_to_predict_are_read_and_features_may_be_missing(write):
    nothing = {"node_labels": None, "node_attributes": None, "edge_labels": None}
    data = read_tu(write(graph_attributes="0.5, 1\n1.5, 2\n", **nothing))
    np.testing.assert_array_equal(data.labels, np.float32([[0.5, 1], [1.5, 2]]))
    assert data.num_classes == 2 and data.class_names is None
    assert data.node_features is None and data[0]["edges"] is None


@pytest.mark.parametrize("edge_labels", [None, ""])
@pytest.mark.parametrize("empty", ["", "\n\n"])
def test_a_set_without_any_edge_is_a_set_of_nodes(write, empty, edge_labels):
    (write() / "TINY_edge_labels.txt").unlink()
    data = read_tu(write(A=empty, edge_labels=edge_labels))
    assert data.senders.shape == data.receivers.shape == (0,)
    assert data.num_edges_of_each.tolist() == [0, 0] and data.edge_features is None
    assert {data.senders.dtype, data.num_edges_of_each.dtype} == {np.dtype(np.int32)}
    batch = GraphBatch.from_graphs([GraphSample(**data[at]) for at in range(2)])
    assert batch.graph.shape == (5, 5) and batch.graph.num_edges == 0


BAD = {
    "a node out of range": ({"A": "4, 1\n2, 6\n"}, r"TINY_A.txt: line 2, column 2: expected nodes"),
    "an edge between graphs": (
        {"A": "1, 2\n"},
        "line 1: expected edges inside of a graph",
    ),
    "a graph out of range": ({"graph_indicator": "1\n2\n1\n1\n9\n"}, "line 5: expected graphs"),
    "too few labels": ({"graph_labels": "1\n"}, "graph_labels.txt: expected 2 lines, a graph each"),
    "a label that is no number": ({"graph_labels": "1\nx\n"}, "TINY_graph_labels.txt: "),
    "too few node labels": ({"node_labels": "7\n"}, "expected 5 lines, one for each node, got 1"),
    "too many edge labels": ({"edge_labels": "7\n" * 6}, "expected 5 lines, one for each edge"),
    "an attribute that is not finite": (
        {"node_attributes": "0.5, 1\n1.5, nan\n2.5, 3\n3.5, 4\n4.5, 5\n"},
        "line 2, column 2: expected a finite number, got nan",
    ),
    "no nodes": ({"graph_indicator": ""}, "graph_indicator.txt: expected at least one node"),
    "no labels": ({"graph_labels": "\n"}, "graph_labels.txt: expected 2 lines, .* got 0"),
    "features of edges that are not there": ({"A": ""}, "edge_labels.txt: expected 0 lines, .* 5"),
    "no features of edges": ({"edge_labels": ""}, "edge_labels.txt: expected 5 lines, .* got 0"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_file_is_named(name, write):
    changed, message = BAD[name]
    with pytest.raises(ValueError, match=message):
        read_tu(write(**changed))


def test_missing_files_and_graphs_are_named(write, tmp_path):
    with pytest.raises(FileNotFoundError, match="no folder"):
        read_tu(tmp_path / "nowhere")
    with pytest.raises(FileNotFoundError, match=r"expected one file that ends in _A\.txt"):
        read_tu(tmp_path)
    data = read_tu(write())
    with pytest.raises(ValueError, match=r"\[graph\] must be a number of one of 2 graphs, got 2"):
        data[2]
    (tmp_path / "TINY_graph_indicator.txt").unlink()
    with pytest.raises(FileNotFoundError, match=r"TINY_graph_indicator.txt"):
        read_tu(tmp_path)
