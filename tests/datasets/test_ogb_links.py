"""OGB's link-prediction sets are read, their files of torch without torch and without code."""

import io
import pickle
import re
import zipfile

import numpy as np
import pytest

from jaxgnn.datasets import read_ogb_links

from .formats import write_csv

MAGIC, VERSION = 0x1950A86A20F9469CFC6C, 1001


def _old(value) -> bytes:
    """As torch up to 1.5 writes it."""
    machine = {"protocol_version": VERSION, "little_endian": True, "type_sizes": {"int": 4}}
    parts = (MAGIC, VERSION, machine, value, [])
    return b"".join(pickle.dumps(part, protocol=2) for part in parts)


def _new(value) -> bytes:
    """As later ones do."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("train/data.pkl", pickle.dumps(value, protocol=2))
        archive.writestr("train/version", "3\n")
    return file.getvalue()


PAIRS = {
    "train": {"edge": np.array([[0, 1], [1, 2]]), "weight": np.array([1, 2]), "year": [2001, 2002]},
    "valid": {"edge": np.array([[2, 3]]), "edge_neg": np.array([[0, 3], [1, 3]])},
    "test": {"edge": np.array([[3, 1]]), "edge_neg": np.array([[0, 2]])},
}
CITATIONS = {
    "train": {"source_node": np.array([0, 1]), "target_node": np.array([1, 2])},
    "valid": {
        "source_node": np.array([2]),
        "target_node": np.array([3]),
        "target_node_neg": np.array([[0, 1, 2]]),
    },
    "test": {
        "source_node": np.array([3]),
        "target_node": np.array([1]),
        "target_node_neg": np.array([[0, 2, 3]]),
    },
}


def _write(folder, split, parts, save):
    tables = {
        "num-node-list": [[4]],
        "num-edge-list": [[2]],
        "edge": [[0, 1], [1, 2]],
        "node-feat": [[0.5], [1], [2], [3]],
    }
    for name, table in tables.items():
        write_csv(folder / "raw" / f"{name}.csv", table, compressed=True)
    (folder / "split" / split).mkdir(parents=True)
    for part, value in parts.items():
        (folder / "split" / split / f"{part}.pt").write_bytes(save(value))
    return folder


@pytest.mark.parametrize("save", [_old, _new])
def test_pairs_and_negatives_are_read_as_torch_saved_them(save, tmp_path):
    data = read_ogb_links(_write(tmp_path, "time", PAIRS, save), "ogbl-collab")
    assert data.messages.tolist() == [[0, 1, 1, 2], [1, 2, 0, 1]] and data.num_nodes == 4
    assert data.features is not None and data.features.ravel().tolist() == [0.5, 1, 2, 3]
    assert data.train.tolist() == [[0, 1], [1, 2]]
    assert data.validation.tolist() == [[2], [3]]
    assert data.validation_negatives.tolist() == [[0, 1], [3, 3]]
    assert data.test.tolist() == [[3], [1]] and data.test_negatives.tolist() == [[0], [2]]


def test_citations_keep_their_direction_and_have_candidates(tmp_path):
    data = read_ogb_links(_write(tmp_path, "time", CITATIONS, _old), "ogbl-citation2")
    assert data.messages.tolist() == [[0, 1], [1, 2]]
    assert data.train.tolist() == [[0, 1], [1, 2]] and data.test.tolist() == [[3], [1]]
    assert data.test_negatives.tolist() == [[0, 2, 3]]


class _Code:
    def __reduce__(self):
        return (print, ("code of a data file ran",))


BAD = {
    "code in an old file": (_old(_Code()), "refers to __builtin__.print"),
    "code in a new file": (_new({"edge": _Code()}), "refers to __builtin__.print"),
    "code in front": (
        b"".join(pickle.dumps(part, 2) for part in (MAGIC, VERSION, _Code(), {})),
        "refers to __builtin__.print",
    ),
    "no file of torch": (b"edges", "it starts with b'edges', as no file of torch does"),
    "no pickle inside": (b"PK\3\4" + b"x" * 50, "cannot be read as an archive of torch"),
    "cut short": (_old(PAIRS["valid"])[:-40], "cannot be read as a pickle"),
    "no dict": (_old([1]), "expected a dict of arrays, got a list"),
    "no edges": (_old({"edge_neg": np.zeros((1, 2), int)}), "expected an array 'edge' among"),
    "a node too far": (
        _new({"edge": np.array([[0, 9]])}),
        "expected edge of nodes in [0, 4), got 9",
    ),
    "fractions": (_new({"edge": np.array([[0, 0.5]])}), "expected edge as integers, got 0.5"),
    "three ends": (_new({"edge": np.zeros((1, 3), int)}), "expected edge of shape [pairs, 2]"),
    "no negatives": (_new({"edge": np.zeros((1, 2), int)}), "expected an array 'edge_neg' among"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_file_of_pairs_is_named_and_none_of_its_code_runs(name, tmp_path, capsys):
    content, message = BAD[name]
    folder = _write(tmp_path, "target", PAIRS, _old)
    path = folder / "split/target/valid.pt"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=re.escape(message)) as caught:
        read_ogb_links(folder, "ogbl-ddi")
    assert str(path) in str(caught.value) and capsys.readouterr().out == ""


def test_missing_files_and_names_of_links_are_named(tmp_path):
    with pytest.raises(ValueError, match="name must be one of ogbl-ppa"):
        read_ogb_links(tmp_path, "ogbl-wikikg")
    folder = _write(tmp_path, "throughput", PAIRS, _new)
    (folder / "split/throughput/test.pt").unlink()
    with pytest.raises(FileNotFoundError, match=r"test\.pt"):
        read_ogb_links(folder, "ogbl-ppa")
    (folder / "raw/num-edge-list.csv.gz").unlink()
    (folder / "raw/num-edge-list.csv").write_text("3\n")
    with pytest.raises(ValueError, match=r"expected 3 lines, as num-edge-list says, got 2"):
        read_ogb_links(folder, "ogbl-ppa")
