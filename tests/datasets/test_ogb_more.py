"""OGB's proteins, syntax trees, vessels and knowledge graphs are read as they were written."""

import gzip
import pickle
import re

import numpy as np
import pytest

from experiments.graphs.task import task_of
from jaxgnn.datasets import read_ogb_code, read_ogb_graphs, read_ogb_links, read_ogb_triples

from .formats import write_csv
from .test_ogb_links import _new, _old


def _write_tables(folder, tables):
    for name, table in tables.items():
        write_csv(folder / f"{name}.csv", table, compressed=True)
    return folder


@pytest.fixture
def proteins(tmp_path):
    """Three graphs of two, one and two proteins."""
    weights = np.arange(14).reshape(2, 7) / 16
    return _write_tables(
        tmp_path,
        {
            "raw/num-node-list": [[2], [1], [2]],
            "raw/num-edge-list": [[1], [0], [1]],
            "raw/edge": [[0, 1], [1, 0]],
            "raw/edge-feat": weights,
            "raw/graph-label": [[36], [0], [5]],
            "split/species/train": [[2]],
            "split/species/valid": [[0]],
            "split/species/test": [[1]],
        },
    )


def test_proteins_have_features_of_edges_alone_and_classes(proteins):
    data = read_ogb_graphs(proteins, "ogbg-ppa")
    assert data.node_features is None and data.labels.tolist() == [36, 0, 5]
    assert data.num_classes == 37 and task_of(data).metric == "accuracy"
    last = data[2]
    assert last["senders"].tolist() == [1, 0] and last["receivers"].tolist() == [0, 1]
    np.testing.assert_array_equal(last["edges"], [np.arange(7, 14) / 16] * 2)
    assert [data.train.tolist(), data.validation.tolist(), data.test.tolist()] == [[2], [0], [1]]


def test_bad_files_of_proteins_are_named(proteins):
    _write_tables(proteins, {"raw/graph-label": [[36], [37], [5]]})
    with pytest.raises(ValueError, match=r"line 2: expected a class in \[0, 37\), got 37"):
        read_ogb_graphs(proteins, "ogbg-ppa")
    (proteins / "raw/edge-feat.csv.gz").unlink()
    with pytest.raises(FileNotFoundError, match=r"edge-feat.*: expected a line for each edge"):
        read_ogb_graphs(proteins, "ogbg-ppa")


@pytest.fixture
def code(tmp_path):
    """Three syntax trees of two, one and two nodes."""
    _write_tables(
        tmp_path,
        {
            "raw/num-node-list": [[2], [1], [2]],
            "raw/num-edge-list": [[1], [0], [1]],
            "raw/edge": [[0, 1], [0, 1]],
            "raw/node-feat": [[7, 100], [8, 3], [7, 0], [7, 1], [9, 2]],
            "raw/node_depth": [[0], [1], [0], [0], [1]],
            "raw/node_is_attributed": [[0], [1], [0], [0], [1]],
            "raw/node_dfs_order": [[0], [1], [0], [0], [1]],
            "split/project/train": [[0], [2]],
            "split/project/valid": [[1]],
            "split/project/test": [],
        },
    )
    text = "get all users\nget z\nset user get\n"
    (tmp_path / "raw/graph-label.csv.gz").write_bytes(gzip.compress(text.encode()))
    write_csv(tmp_path / "split/project/test.csv", [[1]], compressed=True)
    write_csv(tmp_path / "split/project/valid.csv", [[0]], compressed=True)
    write_csv(tmp_path / "split/project/train.csv", [[2]], compressed=True)
    return tmp_path


def test_trees_have_the_first_words_of_their_names_by_the_words_of_the_training(code):
    data = read_ogb_code(code, vocabulary=2, words=3)
    # "set user get" trains: of three words that are there once the first two of the alphabet.
    assert data.class_names == ("get", "set", "<other>", "<end>") and data.num_classes == 4
    assert data.labels.tolist() == [[0, 2, 2], [0, 2, 3], [1, 2, 0]]
    assert data.labels.dtype == np.int32
    assert data[0]["nodes"].tolist() == [[7, 100, 0, 0, 0], [8, 3, 1, 1, 1]]
    assert data[2]["senders"].tolist() == [0] and data[2]["receivers"].tolist() == [1]
    assert read_ogb_code(code, words=1).labels.shape == (3, 1)
    with pytest.raises(ValueError, match=r"--dataset must be one with .* whose labels are words"):
        task_of(data)


BAD_CODE = [
    ("raw/node_depth", [[0], [1], [0], [0]], "expected 5 lines, as num-node-list says, got 4"),
    ("raw/node_depth", [[0], [1], [-2], [0], [1]], "line 3: expected whole numbers in [0, 2^24)"),
    ("raw/node-feat", [[7], [8], [7], [7], [9]], "line 1: expected 2 columns, got 1"),
    ("raw/graph-label", [[1]], "expected 3 lines, as num-node-list says, got 1"),
    ("raw/edge", [[0, 2], [0, 1]], "line 1, column 2: expected node ids in [0, 2), got 2"),
]


@pytest.mark.parametrize(("file", "table", "message"), BAD_CODE)
def test_a_bad_file_of_code_is_named(file, table, message, code):
    _write_tables(code, {file: table})
    with pytest.raises(ValueError, match=re.escape(message)) as caught:
        read_ogb_code(code)
    assert file in str(caught.value)


def test_options_of_code_below_one_are_named(code):
    for name in ("vocabulary", "words"):
        with pytest.raises(ValueError, match=f"read_ogb_code: {name} must be at least 1, got 0"):
            read_ogb_code(code, **{name: 0})


VESSELS = {
    "train": {"edge": np.array([[2, 1], [1, 2], [0, 1]]), "edge_neg": np.array([[0, 3]])},
    "valid": {"edge": np.array([[2, 3]]), "edge_neg": np.array([[1, 3]])},
    "test": {"edge": np.array([[0, 2]]), "edge_neg": np.array([[3, 0]])},
}


def _write_vessels(folder, stored=None, **arrays):
    (folder / "raw").mkdir()
    (folder / "split/random").mkdir(parents=True)
    points = np.arange(12, dtype=np.float32).reshape(4, 3)
    arrays = {"num_nodes_list": [4], "node_feat": points, "edge_index": [[2], [1]]} | arrays
    np.savez(folder / "raw/data.npz", **arrays)
    (folder / "split/random/split_dict.pt").write_bytes(_new(stored or VESSELS))
    return folder


def test_vessels_have_negatives_to_train_on_and_their_training_pairs_as_messages(tmp_path):
    data = read_ogb_links(_write_vessels(tmp_path), "ogbl-vessel")
    assert data.messages.tolist() == [[0, 1, 1, 2], [1, 2, 0, 1]] and data.num_nodes == 4
    assert data.train.tolist() == [[2, 1, 0], [1, 2, 1]]
    assert data.train_negatives is not None and data.train_negatives.tolist() == [[0], [3]]
    assert data.test_negatives.tolist() == [[3], [0]]
    assert data.features is not None and data.features[3].tolist() == [9, 10, 11]


def test_bad_files_of_vessels_are_named(tmp_path):
    cases = {
        "a": ({"stored": {"train": 1}}, r"split_dict\.pt: expected a dict of arrays, got a int"),
        "b": ({"stored": [1]}, r"split_dict\.pt: expected a dict of parts, got a list"),
        "c": ({"num_nodes_list": [5]}, r"data\.npz: expected as many rows of node_feat"),
        "d": ({"node_feat": np.full((4, 3), np.nan, "f4")}, r"data\.npz: node_feat: expected fini"),
    }
    for name, (options, message) in cases.items():
        (tmp_path / name).mkdir()
        with pytest.raises(ValueError, match=message):
            read_ogb_links(_write_vessels(tmp_path / name, **options), "ogbl-vessel")


WIKI = {
    "train": {"head": [0, 1], "relation": [2, 0], "tail": [1, 3]},
    "valid": {
        "head": [2],
        "relation": [1],
        "tail": [0],
        "head_neg": [[0, 1]],
        "tail_neg": [[3, 2]],
    },
    "test": {"head": [3], "relation": [0], "tail": [2], "head_neg": [[1, 0]], "tail_neg": [[0, 1]]},
}
BIO = {
    "train": {
        "head_type": ["drug", "protein"],
        "head": [1, 0],
        "relation": [0, 3],
        "tail_type": ["protein", "protein"],
        "tail": [0, 2],
    },
    "valid": {
        "head_type": ["protein"],
        "head": [2],
        "relation": [1],
        "tail_type": ["drug"],
        "tail": [1],
        "head_neg": [[0, 1]],
        "tail_neg": [[0, 0]],
    },
}
BIO["test"] = BIO["valid"] | {"head": [1]}


def _write_triples(folder, split, parts, save=_old):
    tables = {"raw/num-node-list": [[4]]}
    _write_tables(folder, tables)
    (folder / "raw/num-node-dict.csv").write_text("drug,protein\n2,3\n")
    (folder / "split" / split).mkdir(parents=True)
    for part, value in parts.items():
        arrays = {
            k: v if isinstance(v, list) and v and isinstance(v[0], str) else np.array(v)
            for k, v in value.items()
        }
        (folder / "split" / split / f"{part}.pt").write_bytes(save(arrays))
    return folder


@pytest.mark.parametrize("save", [_old, _new])
def test_triples_of_entities_are_read_as_torch_saved_them(save, tmp_path):
    data = read_ogb_triples(_write_triples(tmp_path, "time", WIKI, save), "ogbl-wikikg2")
    assert data.num_nodes_of == {"entity": 4} and data.num_nodes == 4 and data.num_relations == 3
    assert data.train.tolist() == [[0, 1], [2, 0], [1, 3]]
    assert data.validation.tolist() == [[2], [1], [0]] and data.test.tolist() == [[3], [0], [2]]
    assert data.validation_heads.tolist() == [[0, 1]] and data.test_tails.tolist() == [[0, 1]]


def test_nodes_of_types_are_counted_over_all_types(tmp_path):
    data = read_ogb_triples(_write_triples(tmp_path, "random", BIO), "ogbl-biokg")
    assert data.first_of == {"drug": 0, "protein": 2} and data.num_nodes == 5
    assert data.train.tolist() == [[1, 2], [0, 3], [2, 4]]
    assert data.validation.tolist() == [[4], [1], [1]]
    assert data.validation_heads.tolist() == [[2, 3]] and data.validation_tails.tolist() == [[0, 0]]
    assert data.test[0].tolist() == [3] and data.num_relations == 4


BAD_TRIPLES = {
    "too far": ({"tail": [2]}, "expected tail of nodes in [0, 2), got 2"),
    "of another type": ({"tail_neg": [[0, 2]]}, "expected tail_neg of nodes in [0, 2), got 2"),
    "lengths": ({"relation": [1, 1]}, "expected as many head as relation and tail, got [1, 2, 1]"),
    "below zero": ({"relation": [-1]}, "expected relation from 0 on, got -1"),
    "candidates": (
        {"head_neg": [[0], [1]]},
        "expected head_type of 2 entries, as many as head_neg",
    ),
    "types": ({"head_type": ["gene"]}, "expected head_type as a list of drug, protein, got others"),
    "few types": ({"head_type": ["drug"] * 2}, "expected head_type of 1 entries, as many as head"),
    "axes": ({"head": [[1]]}, "expected head of 1 axes, got shape (1, 1)"),
    "missing": ({"head": "x"}, "expected an array 'head' among"),
}


@pytest.mark.parametrize("name", BAD_TRIPLES)
def test_a_bad_file_of_triples_is_named(name, tmp_path):
    changes, message = BAD_TRIPLES[name]
    folder = _write_triples(tmp_path, "random", BIO)
    path = folder / "split/random/valid.pt"
    value = {k: np.array(v) if "type" not in k else v for k, v in (BIO["valid"] | changes).items()}
    if name == "missing":
        value["head"] = "x"
    path.write_bytes(_old(value))
    with pytest.raises(ValueError, match=re.escape(message)) as caught:
        read_ogb_triples(folder, "ogbl-biokg")
    assert str(path) in str(caught.value)


def test_code_in_a_file_of_triples_does_not_run(tmp_path):
    folder = _write_triples(tmp_path, "time", WIKI)
    (folder / "split/time/test.pt").write_bytes(_old(pickle.PickleBuffer))
    with pytest.raises(ValueError, match=r"test\.pt: refers to"):
        read_ogb_triples(folder, "ogbl-wikikg2")
    with pytest.raises(ValueError, match="name must be one of ogbl-wikikg2, ogbl-biokg, got x"):
        read_ogb_triples(folder, "x")
