"""A graph of one's own is read as its files say it, and what is wrong with them is said."""

import gzip
import re

import numpy as np
import pytest

from jaxgnn.datasets import read_graph

# Nodes 0 to 9, five of each class, on a ring with one chord.
LABELS = ["a", "b"] * 5
PAIRS = [(node, (node + 1) % 10) for node in range(10)] + [(0, 5)]
BOTH = {*PAIRS, *((v, u) for u, v in PAIRS)}
PARTS = {"train": "0\n1\n2\n3\n", "validation": "4\n5\n", "test": "6\n7\n8\n"}


def lines(rows, separator=","):
    return "".join(separator.join(map(str, row)) + "\n" for row in rows)


def folder(tmp_path, **files):
    """A folder with the files that make a graph, others in the place of some, None for none."""
    own = {"edges.csv": lines(PAIRS), "labels.csv": lines(zip(LABELS))}
    for name, content in {**own, **files}.items():
        if isinstance(content, np.ndarray):
            np.save(tmp_path / name, content)
        elif isinstance(content, bytes):
            (tmp_path / name).write_bytes(content)
        elif content is not None:
            (tmp_path / name).write_text(content, encoding="utf-8")
    return tmp_path


def edge_set(data):
    found = list(zip(data.senders.tolist(), data.receivers.tolist(), strict=True))
    assert len(found) == len(set(found))
    return set(found)


def test_least_that_a_graph_needs_is_edges_and_labels(tmp_path):
    data = read_graph(folder(tmp_path))
    data.validate()
    assert data.name == tmp_path.name
    assert edge_set(data) == BOTH
    assert data.labels.tolist() == [0, 1] * 5
    assert (data.class_names, data.node_names) == (("a", "b"), None)
    np.testing.assert_array_equal(data.features, np.eye(10, dtype=np.float32))
    assert [part.size for part in (data.train, data.validation, data.test)] == [6, 2, 2]
    assert np.bincount(data.labels[data.train]).tolist() == [3, 3]


def test_seed_draws_other_random_parts(tmp_path):
    folder(tmp_path)
    drawn = {tuple(read_graph(tmp_path, seed=seed).test.tolist()) for seed in range(8)}
    assert len(drawn) > 3
    assert tuple(read_graph(tmp_path, seed=3).test.tolist()) in drawn


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("edges.csv", "source,target\n" + lines(PAIRS)),
        ("edges.csv", "from,to\r\n" + lines(PAIRS).replace("\n", "\r\n")),
        ("edges.csv", "from;to\n" + lines(PAIRS, ";")),
        ("edges.tsv", "# a comment\n\n" + lines(PAIRS, "\t") + "% another\n\n"),
        ("edges.txt", "\ufeff" + lines(PAIRS, "  ")),
        ("edges.txt", lines([*PAIRS, (5, 0), (0, 1)], " ")),
        ("edges.csv.gz", gzip.compress(lines(PAIRS).encode(), mtime=0)),
        ("edges.npy", np.array(PAIRS)),
        ("edges.npy", np.array(PAIRS, np.uint8).T),
    ],
)
def test_edges_may_be_written_in_many_ways(tmp_path, name, content):
    folder(tmp_path, **{"edges.csv": None, name: content})
    assert edge_set(read_graph(tmp_path)) == BOTH


def test_directed_edges_lead_one_way_and_loops_stay(tmp_path):
    folder(tmp_path, **{"edges.csv": lines([*PAIRS, (4, 4), (0, 1)])})
    assert edge_set(read_graph(tmp_path, directed=True)) == {*PAIRS, (4, 4)}
    assert edge_set(read_graph(tmp_path)) == {*BOTH, (4, 4)}


def test_nodes_with_names_have_ids_in_the_order_of_the_labels(tmp_path):
    names = [f"paper {node}, part one" for node in range(10)]
    quoted = [f'"{name}"' for name in names]
    features = [(quoted[node], node, -node / 2) for node in reversed(range(10))]
    folder(
        tmp_path,
        **{
            "edges.csv": lines((quoted[u], quoted[v]) for u, v in PAIRS),
            "labels.csv": "node,label\n" + lines(zip(quoted, LABELS, strict=True)),
            "features.csv": "Node,width,height\n" + lines(features),
            "train.csv": lines(zip(quoted[:4])),
            "validation.txt": "# two\n" + lines(zip(quoted[4:6])),
            "test.csv": lines(zip(quoted[6:])),
        },
    )
    data = read_graph(tmp_path)
    assert data.node_names.tolist() == names
    assert edge_set(data) == BOTH
    np.testing.assert_array_equal(data.features, [[node, -node / 2] for node in range(10)])
    assert (data.train.tolist(), data.test.tolist()) == ([0, 1, 2, 3], [6, 7, 8, 9])


CLUB = {
    "edges.csv": "id_1,id_2\n" + lines((f"n{u}", f"n{v}") for u, v in PAIRS),
    "labels.csv": None,
    "target.csv": "id,target\n" + lines((f"n{node}", node % 2) for node in range(10)),
    "features.csv": "node_id,feature_id,value\nn3,4,0.5\nn0,0,2\nn3,1,-1\n",
}


def test_files_of_karateclub_are_a_graph_as_they_are(tmp_path):
    data = read_graph(folder(tmp_path, **CLUB))
    assert edge_set(data) == BOTH and data.labels.tolist() == [0, 1] * 5
    expected = np.zeros((10, 5), np.float32)
    expected[3, 4], expected[0, 0], expected[3, 1] = 0.5, 2, -1
    np.testing.assert_array_equal(data.features, expected)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("n3,4,9", "line 5, column 2: expected each feature of a node once (n3 has it), got '4'"),
        ("n99,0,1", "line 5, column 1: expected one of the 10 nodes of target.csv, got 'n99'"),
        ("n1,-1,1", "line 5, column 2: expected the number of a feature in [0, 16777216)"),
        ("n1,x,1", "line 5, column 2: expected the number of a feature"),
        ("n1,0,nan", "line 5, column 3: expected a finite number, got 'nan'"),
        ("n1,16000000,1", "its dense matrix would take 640000040 bytes"),
    ],
)
def test_coordinates_of_features_that_are_none_are_named(tmp_path, row, message):
    files = CLUB | {"features.csv": CLUB["features.csv"] + row + "\n"}
    with pytest.raises(ValueError, match=re.escape(message)) as caught:
        read_graph(folder(tmp_path, **files))
    assert "features.csv" in str(caught.value)


def test_names_in_files_of_parts_may_have_blanks(tmp_path):
    names = [f"paper {node}" for node in range(10)]
    parts = {
        f"{part}.txt": "".join(f"paper {node}\n" for node in text.split())
        for part, text in PARTS.items()
    }
    edges = lines((names[u], names[v]) for u, v in PAIRS)
    labels = lines(zip(names, LABELS, strict=True))
    data = read_graph(folder(tmp_path, **{"edges.csv": edges, "labels.csv": labels, **parts}))
    assert data.test.tolist() == [6, 7, 8]


def test_nodes_with_numbers_of_their_own_keep_them_as_names(tmp_path):
    numbers = [31 * node + 7 for node in range(10)]
    folder(
        tmp_path,
        **{
            "edges.csv": lines((numbers[u], numbers[v]) for u, v in PAIRS),
            "labels.csv": lines(zip(numbers, LABELS, strict=True)),
            **{f"{part}.txt": None for part in PARTS},
        },
    )
    data = read_graph(tmp_path)
    assert data.node_names.tolist() == numbers
    assert edge_set(data) == BOTH


def test_rows_of_labels_that_name_ids_may_stand_in_any_order(tmp_path):
    rows = [(node, LABELS[node]) for node in (3, 1, 0, 2, 9, 8, 7, 6, 5, 4)]
    features = np.arange(20.0).reshape(10, 2)
    folder(tmp_path, **{"labels.csv": lines(rows), "features.npy": features})
    data = read_graph(tmp_path)
    assert data.node_names is None
    assert data.labels.tolist() == [0, 1] * 5
    np.testing.assert_array_equal(data.features, features)


@pytest.mark.parametrize(
    ("labels", "ids", "names"),
    [
        ([0, 1, 1, 0, 0, 1, -1, 0, 1, 1], [0, 1, 1, 0, 0, 1, -1, 0, 1, 1], None),
        ([10, 9, 9, 10, 10, 9, "", 9, 10, 9], [1, 0, 0, 1, 1, 0, -1, 0, 1, 0], ("9", "10")),
    ],
)
def test_labels_are_numbered_in_order_and_unknown_ones_are_in_no_part(tmp_path, labels, ids, names):
    rows = enumerate(labels)
    data = read_graph(folder(tmp_path, **{"labels.csv": "node,label\n" + lines(rows)}))
    assert data.labels.tolist() == ids
    assert data.class_names == names
    used = np.concatenate([data.train, data.validation, data.test])
    assert sorted(used.tolist()) == [node for node in range(10) if ids[node] >= 0]


def test_labels_that_are_empty_are_unknown_even_in_the_last_row(tmp_path):
    rows = lines(enumerate([*LABELS[:9], ""]), "\t")
    data = read_graph(folder(tmp_path, **{"labels.csv": None, "labels.tsv": rows}))
    assert data.labels.tolist() == [0, 1] * 4 + [0, -1]


def test_headers_of_labels_are_known_by_their_word(tmp_path):
    text = "label\n" + "0\n1\n" * 5
    assert read_graph(folder(tmp_path, **{"labels.csv": text})).labels.tolist() == [0, 1] * 5


def test_numbers_too_large_for_ids_are_names(tmp_path):
    names = [10**30 + node for node in range(10)]
    edges = lines((names[u], names[v]) for u, v in PAIRS)
    labels = lines(zip(names, LABELS, strict=True))
    data = read_graph(folder(tmp_path, **{"edges.csv": edges, "labels.csv": labels}))
    assert data.node_names.tolist() == list(map(str, names))


@pytest.mark.parametrize("array", [np.array([0, 1] * 5), np.array(LABELS), np.array(LABELS, "S")])
def test_labels_of_an_array_and_parts_of_files_are_taken_as_they_are(tmp_path, array):
    files = {f"{part}.txt": text for part, text in PARTS.items()}
    folder(tmp_path, **{"labels.csv": None, "labels.npy": array, **files})
    data = read_graph(tmp_path)
    assert data.labels.tolist() == [0, 1] * 5
    parts = (data.train, data.validation, data.test)
    assert [part.tolist() for part in parts] == [[0, 1, 2, 3], [4, 5], [6, 7, 8]]


def test_files_may_lie_elsewhere_and_the_graph_is_called_like_its_file(tmp_path):
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    there.mkdir()
    (here / "friends.csv").write_text(lines(PAIRS))
    (there / "groups.csv").write_text("label\n" + lines(zip(LABELS)))
    for part, text in PARTS.items():
        (there / f"{part}.txt").write_text(text)
    features = there / "table.csv"
    features.write_text(lines((node, 1) for node in range(10)))
    given = {"labels": there / "groups.csv", "features": features}
    data = read_graph(here / "friends.csv", splits=there, **given)
    assert data.name == "friends"
    assert data.features.shape == (10, 2)
    each = {part: there / f"{part}.txt" for part in PARTS}
    np.testing.assert_array_equal(
        read_graph(here / "friends.csv", splits=each, **given).test, data.test
    )


FAULTS = [
    ({"edges.csv": ""}, r"edges.csv: expected the two nodes of an edge, but .* it is empty"),
    ({"edges.csv": "source,target\n"}, r"edges.csv: .* only the names of columns"),
    ({"labels.csv": "# none\n\n"}, r"labels.csv: .* it is empty"),
    ({"features.csv": ""}, r"features.csv: .* it is empty"),
    (
        {"edges.csv": "0,1\n1,2\n2,3,1\n"},
        r"edges.csv: line 3: expected 2 columns \(the two nodes of an edge\), got 3",
    ),
    ({"edges.csv": "0,1\n1\n"}, r"edges.csv: line 2: expected 2 columns .*, got 1"),
    (
        {"edges.csv": "0,1\n# twelve\n1,12\n"},
        r"edges.csv: line 3, column 2: expected a node id in \[0, 10\), the nodes of labels.csv, "
        r"got '12'",
    ),
    ({"edges.csv": "0,1\n1,-2\n"}, r"edges.csv: line 2, column 2: expected a node id in .* '-2'"),
    ({"edges.csv": "0,1\n1,x\n"}, r"line 2, column 2: expected a node id, .* whole number, got 'x"),
    ({"edges.csv": "0,1\n1_0,2\n"}, r"line 2, column 1: expected a node id, .* got '1_0'"),
    ({"edges.csv": '0,1\n"1,2\n'}, r"edges.csv: line 2: cannot be read as quoted cells"),
    ({"edges.csv": b"0,1\n\xff,2\n"}, r"edges.csv: cannot be read as a table of text"),
    (
        {"labels.csv": lines((node + (node > 4), "ab"[node % 2]) for node in range(10))},
        r"edges.csv: line 5, column 2: expected one of the 10 nodes of labels.csv, got '5'",
    ),
    ({"labels.csv": lines([(0, "a"), (0, "b")])}, r"labels.csv: line 2, .* each node once .* line"),
    ({"labels.csv": lines([(0, "a", 1)])}, r"labels.csv: line 1: expected 1 or 2 columns"),
    ({"labels.csv": lines([(0, "a"), (1,)])}, r"labels.csv: line 2: expected 2 columns .*, got 1"),
    ({"labels.csv": "a\n\nb\n" * 5}, r"labels.csv: line 2: expected a label, or -1 .* empty line"),
    ({"features.csv": "1\n\n2\n" * 5}, r"features.csv: line 2: expected a number, got an empty"),
    ({"labels.csv": "a\n" * 10}, r"labels.csv: .* at least two classes, got only the class 'a'"),
    ({"labels.csv": "-1\n" * 10}, r"labels.csv: .* at least two classes, got no label at all"),
    ({"labels.csv": "a\nb\n" + "-1\n" * 8}, r"labels.csv: .* got none for validation; give files"),
    ({"labels.npy": np.eye(10)}, r"expected one file of labels, got .*labels.csv and .*labels.npy"),
    (
        {"features.csv": lines((node, 1) for node in range(9))},
        r"features.csv: expected features of the 10 nodes of labels.csv, got 9 rows",
    ),
    (
        {"features.csv": "1,2\n" * 3 + "1,nan\n" + "1,2\n" * 6},
        r"features.csv: line 4, column 2: expected a finite number, got 'nan'",
    ),
    ({"features.csv": "1,2\n" * 9 + "1,1e99\n"}, r"line 10, column 2: .* finite number, got '1e99"),
    (
        {"features.csv": "1,2\n" * 9 + "1,\n"},
        r"line 10, column 2: expected a finite number, got ''",
    ),
    ({"features.npy": np.full((10, 2), np.nan)}, r"features.npy\): expected finite .*\[0, 0\]"),
    ({"features.npy": np.ones((11, 2))}, r"features.npy: expected features of the 10 .* 11 rows"),
    ({"features.csv": "node,x\n" + "1,2\n" * 10}, r"features.csv: line 3, column 1: .* node once"),
    ({"edges.csv": None, "edges.npy": np.array([[0, 10]]).T}, r"edges.npy: .* got 10 at \[1, 0\]"),
    ({"edges.csv": None, "edges.npy": np.ones((3, 3))}, r"edges.npy: .* got \(3, 3\)"),
    ({"train.txt": "", **{f"{p}.txt": PARTS[p] for p in ("validation", "test")}}, r"train.*empty"),
    (
        {"train.txt": "0\n5\n", "validation.txt": "4\n5\n", "test.txt": "6\n"},
        r"validation.txt: node 5 is in train.txt already",
    ),
    (
        {"train.txt": "0\n0\n", "validation.txt": "4\n", "test.txt": "6\n"},
        r"train.txt: line 2, column 1: expected each node once, got '0'",
    ),
    (
        {"train.txt": "0\n", "validation.txt": "4\n", "test.txt": "10\n"},
        r"test.txt: line 1, column 1: expected a node id in \[0, 10\), .* got '10'",
    ),
    (
        {
            "labels.csv": "a\nb\n" * 4 + "a\n-1\n",
            **{"train.txt": "0\n", "validation.txt": "4\n", "test.txt": "9\n"},
        },
        r"test.txt: node 9 has no label in labels.csv",
    ),
]


@pytest.mark.parametrize(("files", "message"), FAULTS)
def test_faults_are_named_with_their_file_and_place(tmp_path, files, message):
    with pytest.raises(ValueError, match=message) as caught:
        read_graph(folder(tmp_path, **files))
    assert str(tmp_path) in str(caught.value)


@pytest.mark.parametrize(
    ("files", "missing"),
    [
        ({"labels.csv": None}, "labels.*"),
        ({"edges.csv": None}, "edges.*"),
        ({"train.txt": "0\n", "test.txt": "1\n"}, "validation.*"),
    ],
)
def test_missing_files_are_named(tmp_path, files, missing):
    with pytest.raises(FileNotFoundError, match=re.escape(str(tmp_path / missing))):
        read_graph(folder(tmp_path, **files))


def test_paths_that_are_not_there_are_named(tmp_path):
    folder(tmp_path)
    for options in ({"labels": "no.csv"}, {"features": "no.csv"}, {"splits": "no"}):
        with pytest.raises(FileNotFoundError, match="no"):
            read_graph(tmp_path, **options)
    with pytest.raises(FileNotFoundError, match="no folder or file"):
        read_graph(tmp_path / "no")
    with pytest.raises(ValueError, match="read_graph: splits must be a file for each of train"):
        read_graph(tmp_path, splits={"train": tmp_path / "labels.csv"})


def test_arrays_of_edges_need_nodes_that_are_numbers(tmp_path):
    rows = zip("abcdefghij", LABELS, strict=True)
    files = {"edges.csv": None, "edges.npy": np.array(PAIRS), "labels.csv": lines(rows)}
    with pytest.raises(ValueError, match=r"edges.npy: .* labels.csv calls nodes by words"):
        read_graph(folder(tmp_path, **files))


def test_large_graphs_need_features(tmp_path):
    labels = "a\nb\n" * 5000
    with pytest.raises(ValueError, match=r"expected a file features.*up to 8192 nodes.*10000"):
        read_graph(folder(tmp_path, **{"labels.csv": labels}))


NUMBERS = np.arange(20, dtype=np.float32).reshape(10, 2)


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", ">f4"])
def test_features_may_stay_on_the_disk_and_are_read_when_they_are_used(dtype, tmp_path):
    data = read_graph(
        folder(tmp_path, **{"features.npy": NUMBERS.astype(dtype)}), map_features=True
    )
    assert data.features_on_disk and not read_graph(tmp_path).features_on_disk
    np.testing.assert_array_equal(data.features, NUMBERS)
    # What is written behind the reading is what is read then: nothing was copied.
    spoiled = NUMBERS.astype(dtype)
    spoiled[7] = np.nan
    with open(tmp_path / "features.npy", "r+b") as file:
        file.seek(-spoiled.nbytes, 2)
        file.write(spoiled.tobytes())
    assert np.isnan(data.features[7]).all() and data.features[3].tolist() == [6, 7]


UNMAPPED = {
    "text": {"features.csv": lines(NUMBERS)},
    "columns in order": {"features.npy": np.asfortranarray(NUMBERS)},
}


@pytest.mark.parametrize("form", UNMAPPED)
def test_features_that_can_not_be_mapped_are_read_or_refused_as_asked(form, tmp_path):
    folder(tmp_path, **UNMAPPED[form])
    data = read_graph(tmp_path, map_features=None)
    assert not data.features_on_disk
    np.testing.assert_array_equal(data.features, NUMBERS)
    with pytest.raises(ValueError, match=r"features must be a file features\.npy of numbers"):
        read_graph(tmp_path, map_features=True)


def test_bad_files_to_be_mapped_are_named(tmp_path):
    folder(tmp_path, **{"features.npy": NUMBERS[:9]})
    with pytest.raises(ValueError, match=r"features\.npy: expected features of the 10 nodes .* 9"):
        read_graph(tmp_path, map_features=None)
    path = tmp_path / "features.npy"
    path.write_bytes(path.read_bytes()[:-4])
    with pytest.raises(ValueError, match=r"features\.npy: cannot .*: expected 72 bytes .* got 68"):
        read_graph(tmp_path, map_features=True)
