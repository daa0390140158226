"""OGB's molecules, ogbn-mag and ZINC are read as they were written, and refused if they are not."""

import re
import tracemalloc
from typing import Any

import numpy as np
import pytest

from jaxgnn import datasets
from jaxgnn.datasets import read_ogb_graphs, read_ogb_mag, read_zinc

from .formats import write_csv

ATOMS = [[5, 0, 4, 5, 3, 0, 2, 0, 0], [118, 4, 11, 11, 9, 5, 5, 1, 1], [6, 0, 2, 5, 1, 0, 1, 0, 1]]
BONDS = [[0, 0, 0], [4, 5, 1]]


@pytest.fixture
def molecules(tmp_path):
    """Three molecules of two, one and two atoms; the first and the last have one bond."""
    tables = {
        "raw/num-node-list": [[2], [1], [2]],
        "raw/num-edge-list": [[1], [0], [1]],
        "raw/edge": [[0, 1], [1, 0]],
        "raw/node-feat": [*ATOMS, *ATOMS[:2]],
        "raw/edge-feat": BONDS,
        "split/scaffold/train": [[2]],
        "split/scaffold/valid": [[0]],
        "split/scaffold/test": [[1]],
    }
    for name, table in tables.items():
        write_csv(tmp_path / f"{name}.csv", table, compressed="feat" in name)
    (tmp_path / "raw/graph-label.csv").write_text("0.0,\nnan,1.0\n1,0\n")
    return tmp_path


def test_molecules_have_both_directions_categories_and_gaps_in_their_labels(molecules):
    data = read_ogb_graphs(molecules, "ogbg-molclintox")
    assert data.num_nodes_of_each.tolist() == [2, 1, 2]
    assert data.num_edges_of_each.tolist() == [2, 0, 2]
    nan = np.nan
    np.testing.assert_array_equal(data.labels, np.float32([[0, nan], [nan, 1], [1, 0]]))
    assert data.node_categories == (119, 5, 12, 12, 10, 6, 6, 2, 2)
    assert data.edge_categories == (5, 6, 2)
    first, last = data[0], data[2]
    assert first["senders"].tolist() == [0, 1] and first["receivers"].tolist() == [1, 0]
    assert last["senders"].tolist() == [1, 0] and last["receivers"].tolist() == [0, 1]
    np.testing.assert_array_equal(last["edges"], [BONDS[1], BONDS[1]])
    np.testing.assert_array_equal(data[1]["nodes"], [ATOMS[2]])
    assert (data.train.tolist(), data.validation.tolist(), data.test.tolist()) == ([2], [0], [1])


def test_numbers_of_edges_take_no_memory_before_the_edges_are_read(molecules):
    (molecules / "raw/num-edge-list.csv").write_text(f"{1 << 24}\n0\n1\n")
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match=f"expected {(1 << 24) + 1} lines, as num-edge-list"):
            read_ogb_graphs(molecules, "ogbg-molclintox")
        assert tracemalloc.get_traced_memory()[1] < 1 << 24
    finally:
        tracemalloc.stop()


BAD_MOLECULES = [
    ("raw/num-node-list.csv", "2\n1\n", "num-edge-list.csv: expected 2 lines, as num-node-list"),
    (
        "raw/num-node-list.csv",
        "2\n-1\n2\n",
        "line 2: expected a number of nodes in [0, 2147483647], got -1",
    ),
    ("raw/edge.csv", "0,1\n", "expected 2 lines, as num-edge-list says, got 1"),
    ("raw/edge.csv", "0,1\n2,0\n", r"line 2, column 1: expected node ids in [0, 2), got 2"),
    ("raw/graph-label.csv", "0,1\n", "expected 3 lines, as num-node-list says, got 1"),
    ("raw/graph-label.csv", "0\n1\n1\n", "expected 2 columns, the tasks of ogbg-molclintox, got 1"),
    ("raw/graph-label.csv", "0,1\n1\n1,1\n", "line 2: expected 2 columns, got 1"),
    ("raw/graph-label.csv", "0,1\n1,x\n1,1\n", "line 2, column 2: expected 0, 1, or nothing"),
    ("raw/graph-label.csv", "0,1\n1,inf\n1,1\n", "line 2, column 2: expected 0, 1, or nothing"),
    ("raw/graph-label.csv", "0,1\n1,1.5\n1,1\n", "line 2, column 2: expected 0, 1, or nothing"),
    ("raw/graph-label.csv", "0,1\n1,0\n-1,1\n", "line 3, column 1: expected 0, 1, or nothing"),
    ("raw/graph-label.csv", "0,1\n1,\0\n-1,1\n", "line 2: expected text, got a NUL byte"),
    # Numbers of nodes and edges are not believed before there are so many.
    ("raw/num-edge-list.csv", "4294967296\n0\n1\n", "line 1: expected a number of edges in [0,"),
    ("raw/num-edge-list.csv", "2147483647\n0\n1\n", "edge.csv: expected 2147483648 lines, as num"),
    ("raw/num-node-list.csv", "2147483648\n1\n2\n", "line 1: expected a number of nodes in [0,"),
    ("raw/num-node-list.csv", "2147483647\n1\n2\n", "at most 2147483647 nodes of all graphs"),
    ("raw/edge-feat.csv", "0,0,0\n0,0,0\n", ""),
    ("raw/edge-feat.csv", "0,0\n0,0\n", "line 1: expected 3 columns, got 2"),
    ("raw/edge-feat.csv", "0,0,0\n5,0,0\n", "line 2, column 1: expected a whole number in [0, 5)"),
    ("raw/edge-feat.csv", "0,0,0\n0,0.5,0\n", "line 2, column 2: expected a whole number in"),
    (
        "raw/edge-feat.csv",
        "0,0,nan\n0,0,0\n",
        "line 1, column 3: expected a finite number, got nan",
    ),
    ("split/scaffold/valid.csv", "3\n", "expected numbers of graphs in [0, 3), got 3"),
    ("split/scaffold/valid.csv", "2\n", "expected each of the graphs in one part, got 2 again"),
    ("split/scaffold/train.csv", "2\n2\n", "expected each of the graphs in one part, got 2 again"),
]


@pytest.mark.parametrize(("file", "text", "message"), BAD_MOLECULES)
def test_a_bad_file_of_molecules_is_named(file, text, message, molecules):
    (molecules / f"{file}.gz").unlink(missing_ok=True)
    (molecules / file).write_text(text)
    if not message:  # the table itself is good
        read_ogb_graphs(molecules, "ogbg-molclintox")
        return
    with pytest.raises(ValueError, match=re.escape(message)) as caught:
        read_ogb_graphs(molecules, "ogbg-molclintox")
    assert str(molecules) in str(caught.value)


def test_labels_that_are_numbers_may_be_any_of_float32(molecules):
    labels = molecules / "raw/graph-label.csv"
    labels.write_text("1.5\n-2e38\n\n")
    data = read_ogb_graphs(molecules, "ogbg-molesol")
    np.testing.assert_array_equal(data.labels, np.float32([[1.5], [-2e38], [np.nan]]))
    for bad in ("1e39", "-inf", "one"):
        labels.write_text(f"1.5\n{bad}\n0\n")
        message = r"line 2, column 1: expected a finite number of float32, or nothing .*, got '"
        with pytest.raises(ValueError, match=message + bad):
            read_ogb_graphs(molecules, "ogbg-molesol")


def test_missing_files_and_names_of_molecules_are_named(molecules):
    with pytest.raises(ValueError, match=r"name must be one of ogbg-molhiv.*got ogbg-code2"):
        read_ogb_graphs(molecules, "ogbg-code2")
    with pytest.raises(FileNotFoundError, match="no folder"):
        read_ogb_graphs(molecules / "raw", "ogbg-molhiv")
    for file in ("raw/node-feat.csv.gz", "raw/edge.csv", "raw/graph-label.csv"):
        path = molecules / file
        content = path.read_bytes()
        path.unlink()
        with pytest.raises(FileNotFoundError, match=re.escape(path.name.removesuffix(".gz"))):
            read_ogb_graphs(molecules, "ogbg-molclintox")
        path.write_bytes(content)


@pytest.fixture
def mag(tmp_path):
    relations = {
        ("author", "writes", "paper"): [[0, 1], [1, 2], [1, 0]],
        ("paper", "cites", "paper"): [[2, 0]],
    }
    for relation, edges in relations.items():
        folder = tmp_path / "raw/relations" / "___".join(relation)
        write_csv(folder / "edge.csv", edges, compressed=True)
        write_csv(folder / "num-edge-list.csv", [[len(edges)]], compressed=True)
    tables = {
        "raw/node-feat/paper/node-feat": [[0.5, 1], [2, 3], [4, 5]],
        "raw/node-feat/paper/node_year": [[2012], [2019], [2018]],
        "raw/node-label/paper/node-label": [[2], [0], [1]],
        "split/time/paper/train": [[0]],
        "split/time/paper/valid": [[2]],
        "split/time/paper/test": [[1]],
    }
    for name, table in tables.items():
        write_csv(tmp_path / f"{name}.csv", table, compressed=True)
    texts = {
        "num-node-dict": "author,paper\n2,3\n",
        "nodetype-has-label": "author,paper\nFalse,True\n",
        "triplet-type-list": "author,writes,paper\npaper,cites,paper\n",
    }
    for name, text in texts.items():
        (tmp_path / "raw" / f"{name}.csv").write_text(text)
    return tmp_path


def test_mag_has_relations_features_years_labels_and_a_split(mag):
    data = read_ogb_mag(mag)
    assert data.num_nodes == {"author": 2, "paper": 3} and data.target == "paper"
    assert list(data.edges) == [("author", "writes", "paper"), ("paper", "cites", "paper")]
    senders, receivers = data.edges["author", "writes", "paper"]
    assert senders.tolist() == [0, 1, 1] and receivers.tolist() == [1, 2, 0]
    assert data.edges["paper", "cites", "paper"].tolist() == [[2], [0]]
    assert data.features.keys() == {"paper"} and data.features["paper"].tolist()[2] == [4, 5]
    assert data.years["paper"].tolist() == [2012, 2019, 2018]
    assert data.labels.tolist() == [2, 0, 1] and data.num_classes == 3
    assert (data.train.tolist(), data.validation.tolist(), data.test.tolist()) == ([0], [2], [1])


WRITES = "raw/relations/author___writes___paper"
BAD_MAG = [
    ("raw/num-node-dict.csv", "author,paper\n2\n", "a line of types, and a line of their numbers"),
    ("raw/num-node-dict.csv", "author,../x\n2,3\n", "line 1: expected names of types, got '../x'"),
    (
        "raw/num-node-dict.csv",
        "author,paper\n2,-3\n",
        "line 2: expected numbers of nodes, got '-3'",
    ),
    ("raw/nodetype-has-label.csv", "author,paper\nTrue,True\n", "with labels of one of author"),
    ("raw/triplet-type-list.csv", "author,writes\n", "line 1: expected type, name, type"),
    ("raw/triplet-type-list.csv", "author,..,paper\n", "line 1: expected type, name, type"),
    ("raw/triplet-type-list.csv", "a,writes,paper\n", "with types of author, paper"),
    (
        f"{WRITES}/edge.csv",
        "0,1\n2,0\n0,0\n",
        "line 2, column 1: expected node ids in [0, 2), got 2",
    ),
    (
        f"{WRITES}/edge.csv",
        "0,1\n1,3\n0,0\n",
        "line 2, column 2: expected node ids in [0, 3), got 3",
    ),
    (f"{WRITES}/num-edge-list.csv", "4\n", "expected 4 lines, as num-edge-list says, got 3"),
    (f"{WRITES}/num-edge-list.csv", "1\n2\n", "expected 1 lines, as num-node-dict says, got 2"),
    ("raw/node-feat/paper/node-feat.csv", "1\n2\n", "expected 3 lines, as num-node-dict says"),
    ("raw/node-label/paper/node-label.csv", "1\n-1\n0\n", "line 2: expected classes from 0 on"),
    ("split/time/paper/test.csv", "7\n", "expected numbers of papers in [0, 3), got 7"),
]


@pytest.mark.parametrize(("file", "text", "message"), BAD_MAG)
def test_a_bad_file_of_mag_is_named(file, text, message, mag):
    (mag / f"{file}.gz").unlink(missing_ok=True)
    (mag / file).write_text(text)
    with pytest.raises(ValueError, match=re.escape(message)) as caught:
        read_ogb_mag(mag)
    assert str(mag) in str(caught.value)


ZINC = {
    "train": (
        "1\n1\n2\n2\n2\n",
        "1, 2\n2, 1\n4, 5\n",
        "0\n27\n3\n0\n1\n",
        "1\n1\n3\n",
        "0.5\n-2\n",
    ),
    "val": ("1\n1\n", "1, 2\n", "4\n5\n", "2\n", "1.5\n"),
    "test": ("1\n2\n", "1, 1\n", "6\n0\n", "1\n", "2.5\n3\n"),
}


@pytest.fixture
def zinc(tmp_path):
    names = ("graph_indicator", "A", "node_labels", "edge_labels", "graph_attributes")
    for part, texts in ZINC.items():
        folder = tmp_path / f"ZINC_{part}"
        folder.mkdir()
        for name, text in zip(names, texts, strict=True):
            (folder / f"ZINC_{part}_{name}.txt").write_text(text)
    return tmp_path


def test_zinc_has_three_parts_with_the_same_kinds_of_atoms(zinc):
    data = read_zinc(zinc)
    assert data.labels.ravel().tolist() == [0.5, -2, 1.5, 2.5, 3]
    assert (data.train.tolist(), data.validation.tolist(), data.test.tolist()) == (
        [0, 1],
        [2],
        [3, 4],
    )
    assert data.node_categories == (28,) and data.edge_categories == (4,)
    assert data[1]["nodes"].ravel().tolist() == [3, 0, 1]
    assert data[1]["senders"].tolist() == [1] and data[1]["edges"].tolist() == [[3]]
    assert data[3]["senders"].tolist() == [0] and data[4]["num_nodes"] == 1


def test_zinc_of_the_small_benchmark_has_the_molecules_that_the_index_names(zinc):
    for part, text in {"train": "1", "val": "0", "test": "1,0"}.items():
        (zinc / f"{part}.index").write_text(text + "\n")
    data = read_zinc(zinc, subset=True)
    assert data.labels.ravel().tolist() == [-2, 1.5, 3, 2.5]
    assert data[0]["nodes"].ravel().tolist() == [3, 0, 1] and data.test.tolist() == [2, 3]
    (zinc / "val.index").write_text("1\n")
    with pytest.raises(ValueError, match=r"val\.index: expected numbers in \[0, 1\), got 1"):
        read_zinc(zinc, subset=True)


def test_a_bad_file_of_zinc_is_named(zinc):
    (zinc / "ZINC_val/ZINC_val_edge_labels.txt").write_text("-2\n")
    with pytest.raises(ValueError, match=r"line 1, column 1: expected a label in 0\.\.999, got -2"):
        read_zinc(zinc)
    (zinc / "ZINC_val/ZINC_val_edge_labels.txt").unlink()
    with pytest.raises(ValueError, match=r"ZINC_val: expected a file .*_edge_labels\.txt"):
        read_zinc(zinc)


def test_mutag_has_the_published_counts_and_both_directions_of_every_bond():
    data = datasets.mutag()
    assert (data.num_graphs, data.num_nodes_of_each.sum(), data.num_edges_of_each.sum()) == (
        188,
        3371,
        7442,
    )
    assert np.bincount(data.labels).tolist() == [63, 125]
    elements, bonds = data.node_features.sum(axis=0), data.edge_features.sum(axis=0)
    assert elements.tolist() == [2395, 345, 593, 12, 1, 23, 2]
    assert bonds.sum() == 7442 and (bonds % 2 == 0).all()
    for graph in (data[0], data[187]):
        there = set(zip(graph["senders"].tolist(), graph["receivers"].tolist(), strict=True))
        assert len(there) == graph["senders"].size == len(there | {(b, a) for a, b in there})
        assert max(map(max, there)) == graph["num_nodes"] - 1


def test_digits_are_graphs_of_neighbouring_pixels():
    from sklearn.datasets import load_digits

    data, image = datasets.digit_graphs(), load_digits().images[7]
    graph, pixels = data[7], np.argwhere(image > 0)
    np.testing.assert_allclose(graph["nodes"][:, 0], image[image > 0] / 16)
    steps = pixels[graph["receivers"]] - pixels[graph["senders"]]
    np.testing.assert_array_equal(graph["edges"], steps)
    close = np.abs(pixels[:, None] - pixels[None]).max(axis=2) == 1
    assert (
        close.sum() == graph["senders"].size and close[graph["senders"], graph["receivers"]].all()
    )


def test_graphs_are_split_class_by_class_and_again_by_another_seed():
    data = datasets.split_graphs(datasets.mutag(), (0.5, 0.25, 0.25), seed=1)
    parts = data.train, data.validation, data.test
    assert sorted(np.concatenate(parts).tolist()) == list(range(188))
    assert [np.bincount(data.labels[part]).tolist() for part in parts] == [
        [32, 62],
        [15, 32],
        [16, 31],
    ]
    assert (datasets.split_graphs(data, seed=2).train[:20] != data.train[:20]).any()
    with pytest.raises(ValueError, match="fractions must be numbers that add up to one"):
        datasets.split_graphs(data, (0.5, 0.1, 0.1))
    with pytest.raises(ValueError, match=r"fractions must be three numbers in \[0, 1\]"):
        datasets.split_graphs(data, (1.5, -0.5, 0.0))
    with pytest.raises(ValueError, match=r"fractions must be three numbers in \[0, 1\]"):
        datasets.split_graphs(data, (True, 0.0, 0.0))
    one: Any = 0.8
    with pytest.raises(ValueError, match=r"fractions must be three numbers in .*, got 0\.8"):
        datasets.split_graphs(data, one)
    with pytest.raises(ValueError, match="seed must be an integer from 0 on, got -1"):
        datasets.split_graphs(data, seed=-1)
    everything: Any = slice(0, 3)
    with pytest.raises(ValueError, match="must be a number of one of 188 graphs, got slice"):
        data[everything]
    with pytest.raises(ValueError, match="with none for test"):
        datasets.split_graphs(data, (0.9, 0.1, 0.0))
