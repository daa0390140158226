"""Whatever is wrong with a file, one error names the file and what is wrong."""

import gzip
import json
import re

import numpy as np
import pytest
import scipy.sparse

from jaxgnn import datasets

from . import formats


def delete(path):
    path.unlink()


def truncate(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def empty(path):
    path.write_bytes(gzip.compress(b"") if path.suffix == ".gz" else b"")


def put(text):
    """Replaces the content by `text`, whatever the file's name promises."""
    return lambda path: path.write_text(text)


def lines(edit):
    """Passes the list of a csv.gz file's lines through `edit`."""

    def change(path):
        old = gzip.decompress(path.read_bytes()).decode().splitlines()
        path.write_bytes(gzip.compress(("\n".join(edit(old)) + "\n").encode()))

    return change


def line(number, text):
    """Replaces one line, counted from 1."""
    return lines(lambda old: [*old[: number - 1], text, *old[number:]])


def arrays(**changes):
    """Replaces arrays of an .npz file; None takes one away."""

    def change(path):
        with np.load(path) as old:
            new = {**old, **changes}
        np.savez(path, **{key: value for key, value in new.items() if value is not None})

    return change


def saved_matrix(matrix):
    return lambda path: scipy.sparse.save_npz(path, matrix)


def saved_array(array):
    return lambda path: np.save(path, array)


def archive_of_one_array(path):
    with open(path, "wb") as file:
        np.save(file, np.zeros(3))


def objects(path):
    np.save(path, np.array([{"a": 1}]), allow_pickle=True)


def entries(**changes):
    """Replaces entries of a .json file; None takes one away."""

    def change(path):
        new = {**json.loads(path.read_text()), **changes}
        path.write_text(json.dumps({k: v for k, v in new.items() if v is not None}))

    return change


def pairs(text):
    """Puts text behind the opening bracket of a .json file: entries that may be there twice."""
    return lambda path: path.write_text(path.read_text().replace("{", "{" + text, 1))


def mapped(value):
    """Gives all nodes the same label."""

    def change(path):
        path.write_text(json.dumps(dict.fromkeys(json.loads(path.read_text()), value)))

    return change


N = formats.NODES
NAN_FEATURES = np.full((N, 3), np.nan, np.float32)
WIDE = scipy.sparse.csr_matrix((N, N + 1))
CASES = [
    # data set, file, what happens to it, what the message says besides the file
    ("reddit", "reddit_data.npz", delete, "feature, label and node_types"),
    ("reddit", "reddit_data.npz", truncate, ".npz archive"),
    ("reddit", "reddit_data.npz", empty, ".npz archive"),
    ("reddit", "reddit_data.npz", put('{"a": 1}'), ".npz archive"),
    ("reddit", "reddit_data.npz", archive_of_one_array, "single array"),
    ("reddit", "reddit_data.npz", arrays(label=None), "no array 'label'"),
    ("reddit", "reddit_data.npz", arrays(label=np.zeros(N - 1, int)), "12 rows of label"),
    (
        "reddit",
        "reddit_data.npz",
        arrays(label=np.full(N, -1)),
        "class ids in [0, 0), got -1 at [0]",
    ),
    ("reddit", "reddit_data.npz", arrays(label=np.full(N, 2**40)), "labels as integers"),
    ("reddit", "reddit_data.npz", arrays(label=np.full(N, "a")), "labels as integers"),
    ("reddit", "reddit_data.npz", arrays(node_types=np.full(N, 4)), "got 4 at [0]"),
    ("reddit", "reddit_data.npz", arrays(node_types=np.full(N, 1)), "at least one node"),
    ("reddit", "reddit_data.npz", arrays(feature=NAN_FEATURES), "got nan at [0, 0]"),
    ("reddit", "reddit_data.npz", arrays(feature=np.full((N, 1), 1e300)), "got inf at [0, 0]"),
    ("reddit", "reddit_data.npz", arrays(feature=np.zeros(N)), "2-d array of numbers"),
    ("reddit", "reddit_graph.npz", delete, "sparse adjacency"),
    ("reddit", "reddit_graph.npz", truncate, ".npz archive"),
    ("reddit", "reddit_graph.npz", put("{}"), ".npz archive"),
    ("reddit", "reddit_graph.npz", arrays(col=None), "no array 'col'"),
    ("reddit", "reddit_graph.npz", arrays(row=np.zeros(1, int)), "1 row indices"),
    ("reddit", "reddit_graph.npz", arrays(shape=np.array([3, 3])), "expected 3 rows of feature"),
    ("reddit", "reddit_graph.npz", arrays(shape=np.array([N, N, 1])), "square"),
    ("reddit", "reddit_graph.npz", arrays(format=np.array("dia")), "'dia'"),
    ("reddit", "reddit_graph.npz", saved_matrix(WIDE), "square"),
    ("flickr", "adj_full.npz", delete, "sparse adjacency"),
    ("flickr", "adj_full.npz", arrays(indptr=np.zeros(3, int)), "13 row offsets"),
    ("flickr", "adj_full.npz", arrays(indptr=np.arange(N + 1)[::-1]), "do not rise from 0"),
    ("flickr", "adj_full.npz", arrays(indices=np.zeros(2, int)), "do not rise from 0"),
    ("flickr", "adj_full.npz", arrays(indptr=np.zeros(N + 1)), "row offsets as integers"),
    ("flickr", "adj_full.npz", arrays(indptr=np.full(N + 1, "a")), "row offsets as integers"),
    (
        "flickr",
        "adj_full.npz",
        arrays(indptr=np.array([0, 2**40, *[0] * (N - 1)], np.uint64), indices=np.zeros(0, int)),
        "do not rise from 0",
    ),
    ("flickr", "adj_full.npz", arrays(shape=np.full(2, np.inf)), "its shape as integers, got inf"),
    ("flickr", "adj_full.npz", arrays(shape=np.full(2, np.nan)), "square"),
    ("flickr", "adj_full.npz", arrays(shape=np.full(2, "12")), "its shape as integers"),
    ("flickr", "adj_full.npz", arrays(shape=np.full(2, -1)), "square"),
    ("flickr", "adj_full.npz", arrays(shape=np.full(2, 2**62)), "its shape as integers"),
    ("flickr", "adj_full.npz", arrays(format=np.array(["csr"])), "a format that is no text"),
    ("flickr", "adj_full.npz", arrays(format=np.array(3)), "a format that is no text"),
    ("reddit", "reddit_data.npz", arrays(node_types=np.full(N, "1")), "a 1-d array of numbers"),
    ("reddit", "reddit_data.npz", arrays(node_types=np.ones((N, 2))), "a 1-d array of numbers"),
    ("reddit", "reddit_data.npz", arrays(label=np.full(N, {}, object)), "plain numbers"),
    ("flickr", "feats.npy", delete, "[nodes, features]"),
    ("flickr", "feats.npy", truncate, ".npy array"),
    ("flickr", "feats.npy", empty, ".npy array"),
    ("flickr", "feats.npy", put("[1, 2]"), ".npy array"),
    ("flickr", "feats.npy", objects, ".npy array"),
    ("flickr", "feats.npy", saved_array(np.zeros((N + 1, 2))), "12 rows"),
    ("flickr", "feats.npy", saved_array(NAN_FEATURES), "got nan at [0, 0]"),
    ("flickr", "class_map.json", delete, "node id -> class"),
    ("flickr", "class_map.json", truncate, "JSON object"),
    ("flickr", "class_map.json", put("[1, 2]"), "top level is a list"),
    ("flickr", "class_map.json", lambda path: path.write_bytes(b"\xff\xfe\x00"), "JSON object"),
    ("flickr", "class_map.json", entries(**{"12": 0}), "a label for '12'"),
    ("flickr", "class_map.json", entries(**{"-1": 0}), "a label for '-1'"),
    ("flickr", "class_map.json", entries(x=0), "a label for 'x'"),
    ("flickr", "class_map.json", entries(**{"3": None}), "no label for node 3"),
    ("flickr", "class_map.json", entries(**{"3": "cat"}), "labels as integers"),
    ("flickr", "class_map.json", entries(**{"3": -2}), "got -2 at [3]"),
    ("flickr", "class_map.json", entries(**{"3": 0.5}), "got 0.5"),
    ("flickr", "class_map.json", entries(**{"3": [0, 1]}), "one shape"),
    ("yelp", "class_map.json", entries(**{"3": [0, 1]}), "one shape"),
    ("yelp", "class_map.json", entries(**{"3": [0, 1, 2, 0, 0]}), "got 2.0 at [3, 2]"),
    ("flickr", "class_map.json", pairs('"3": 0, '), "the key '3' twice"),
    ("flickr", "class_map.json", entries(**{"1_0": 0}), "a label for '1_0'"),
    ("flickr", "class_map.json", entries(**{"03": 0}), "a label for '03'"),
    ("flickr", "class_map.json", entries(**{"٣": 0}), "a label for '٣'"),
    ("flickr", "class_map.json", entries(**{"1" * 5000: 0}), "a label for '111"),
    ("flickr", "class_map.json", pairs('"3": 1_0, '), "JSON object"),
    ("flickr", "class_map.json", pairs('"x": NaN, '), "NaN is no JSON"),
    ("flickr", "class_map.json", put('{"a":' * 200_000), "JSON object: RecursionError"),
    ("flickr", "class_map.json", put('{"0": ' + "9" * 5000 + "}"), "JSON object"),
    ("flickr", "class_map.json", entries(**{"3": 10**20}), "labels as integers, got 1e+20"),
    ("flickr", "class_map.json", entries(**{"3": True}), "labels as integers, got True"),
    ("flickr", "class_map.json", entries(**{"3": "1_0"}), "labels as integers, got '1_0'"),
    ("flickr", "class_map.json", mapped([]), "at least one label in the list of each node"),
    ("flickr", "class_map.json", mapped([[]]), "labels as plain integers"),
    ("yelp", "class_map.json", mapped([]), "at least one label in the list of each node"),
    ("yelp", "class_map.json", entries(**{"3": [0, 1, True, 0, 0]}), "got True at"),
    ("yelp", "class_map.json", entries(**{"3": [[0], 1, 1, 0, 0]}), "plain integers, got a list"),
    ("flickr", "role.json", pairs('"va": [1], '), "the key 'va' twice"),
    ("flickr", "role.json", entries(va=[True]), "node ids under 'va' as integers, got True"),
    ("flickr", "role.json", entries(va=["1_0"]), "node ids under 'va' as integers, got '1_0'"),
    ("flickr", "role.json", entries(va=[10**400]), "cannot be read as node ids: OverflowError"),
    ("flickr", "role.json", delete, "tr, va, te"),
    ("flickr", "role.json", truncate, "JSON object"),
    ("flickr", "role.json", entries(va=None), "under 'va'"),
    ("flickr", "role.json", entries(va=[]), "at least one node"),
    ("flickr", "role.json", entries(va=["a"]), "node ids under 'va' as integers"),
    ("flickr", "role.json", entries(va=[[1], [1, 2]]), "plain node ids under 'va'"),
    ("flickr", "role.json", entries(va=[[1]]), "1-d int32"),
    ("flickr", "role.json", entries(te=[99]), "got 99 at [0]"),
    ("flickr", "role.json", entries(te=[1, 1]), "without repeats"),
    ("flickr", "role.json", entries(va=list(range(N))), "outside train"),
    ("ogbn-products", "raw/edge.csv.gz", delete, "two node ids"),
    ("ogbn-products", "raw/edge.csv.gz", truncate, "csv table"),
    ("ogbn-products", "raw/edge.csv.gz", put("0,1\n"), "csv table"),
    ("ogbn-products", "raw/edge.csv.gz", empty, "the file is empty"),
    (
        "ogbn-products",
        "raw/edge.csv.gz",
        line(3, "1,b"),
        "line 3, column 2: expected int32, got 'b'",
    ),
    ("ogbn-products", "raw/edge.csv.gz", line(3, "1.5,2"), "line 3, column 1"),
    ("ogbn-products", "raw/edge.csv.gz", line(3, "1,99999999999"), "line 3, column 2"),
    ("ogbn-products", "raw/edge.csv.gz", line(3, "1,2,3"), "line 3: expected 2 columns, got 3"),
    ("ogbn-products", "raw/edge.csv.gz", line(3, "1,12"), "line 3, column 2: expected node ids"),
    ("ogbn-products", "raw/edge.csv.gz", line(3, "-1,2"), "line 3, column 1: expected node ids"),
    ("ogbn-products", "raw/edge.csv.gz", lines(lambda old: old[1:]), "as num-edge-list says"),
    ("ogbn-products", "raw/edge.csv.gz", lines(lambda old: ["1,2,3"]), "2 columns, got 3"),
    ("ogbn-products", "raw/edge.csv.gz", line(3, "1_0,2"), "line 3, column 1: expected int32"),
    ("ogbn-products", "raw/node-label.csv.gz", line(3, "1_0"), "line 3, column 1: expected float"),
    ("ogbn-products", "raw/node-label.csv.gz", line(3, "9" * 20), "labels as integers, got 1e+20"),
    ("ogbn-products", "raw/node-feat.csv.gz", line(2, "1,1_0,2"), "column 2: expected float32"),
    ("ogbn-products", "raw/num-node-list.csv.gz", line(1, "1_2"), "line 1, column 1"),
    ("ogbn-products", "raw/num-node-list.csv.gz", line(1, "9" * 30), "line 1, column 1"),
    ("ogbn-products", "raw/node-feat.csv.gz", delete, "its features"),
    ("ogbn-products", "raw/node-feat.csv.gz", line(2, "1,x,2"), "line 2, column 2"),
    ("ogbn-products", "raw/node-feat.csv.gz", line(2, "1,,2"), "line 2, column 2"),
    ("ogbn-products", "raw/node-feat.csv.gz", line(2, "1,nan,2"), "got nan at [1, 1]"),
    ("ogbn-products", "raw/node-feat.csv.gz", lines(lambda old: old[1:]), "expected 12 lines"),
    ("ogbn-products", "raw/node-label.csv.gz", line(5, "nan"), "line 5: expected a label"),
    ("ogbn-products", "raw/node-label.csv.gz", line(5, "-3"), "got -3 at [4]"),
    ("ogbn-products", "raw/node-label.csv.gz", line(5, "0.5"), "got 0.5"),
    ("ogbn-products", "raw/node-label.csv.gz", lines(lambda old: old[1:]), "expected 12 lines"),
    ("ogbn-products", "raw/num-node-list.csv.gz", delete, "number of nodes"),
    ("ogbn-products", "raw/num-node-list.csv.gz", lines(lambda old: ["5", "7"]), "one graph"),
    ("ogbn-products", "raw/num-edge-list.csv.gz", delete, "number of edges"),
    ("ogbn-products", "split/sales_ranking/valid.csv.gz", delete, "its id"),
    ("ogbn-products", "split/sales_ranking/valid.csv.gz", line(1, "77"), "got 77"),
    ("ogbn-products", "split/sales_ranking/valid.csv.gz", line(1, "1,2"), "1 columns, got 2"),
    ("ogbn-proteins", "raw/edge-feat.csv.gz", delete, "its features"),
    ("ogbn-proteins", "raw/edge-feat.csv.gz", lines(lambda old: old[1:]), "as num-edge-list says"),
    ("ogbn-proteins", "raw/edge-feat.csv.gz", line(2, "inf,0,0,0,0,0,0,0"), "got inf at"),
    ("ogbn-proteins", "raw/node-label.csv.gz", line(2, "0,1"), "112 columns"),
    ("ogbn-proteins", "raw/node-label.csv.gz", line(1, ",".join("2" * 112)), "got 2.0 at [0, 0]"),
]


@pytest.mark.parametrize(
    ("name", "file", "spoil", "fragment"),
    CASES,
    ids=[f"{name}-{file}-{number}" for number, (name, file, _, _) in enumerate(CASES)],
)
def test_error_names_the_file_and_the_fault(name, file, spoil, fragment, tmp_path):
    formats.WRITERS[name](tmp_path)
    spoil(tmp_path / file)
    expected = FileNotFoundError if spoil is delete else ValueError
    with pytest.raises(expected, match=re.escape(fragment)) as caught:
        datasets.read(name, tmp_path)
    assert str(tmp_path / file) in str(caught.value)


@pytest.mark.parametrize("name", datasets.READERS)
def test_missing_folder_is_named(name, tmp_path):
    with pytest.raises(FileNotFoundError, match=re.escape(str(tmp_path / "absent"))):
        datasets.read(name, tmp_path / "absent")


def test_missing_split_folder_is_named(tmp_path):
    formats.WRITERS["ogbn-arxiv"](tmp_path)
    (tmp_path / "split/time").rename(tmp_path / "split/random")
    with pytest.raises(FileNotFoundError, match=re.escape(str(tmp_path / "split/time"))):
        datasets.read("ogbn-arxiv", tmp_path)


def test_fault_in_an_uncompressed_table_names_that_file(tmp_path):
    formats.write_ogb(tmp_path, formats.small_dataset(), "ogbn-products", compressed=False)
    path = tmp_path / "raw/edge.csv"
    path.write_text("\n" + path.read_text() + "3,?\n")
    count = len(path.read_text().splitlines())
    with pytest.raises(ValueError, match=rf"edge\.csv: line {count}, column 2.*'\?'"):
        datasets.read("ogbn-products", tmp_path)
