"""No table of text takes more memory than the limit for its file, or holds what is no text."""

import gzip
import tracemalloc

import numpy as np
import pytest

from jaxgnn import datasets
from jaxgnn.datasets.formats import file_errors, files
from jaxgnn.datasets.formats.files import read_csv, read_text

from . import formats

SLACK = 1 << 19


@pytest.fixture(autouse=True)
def little_slack(monkeypatch):
    """Small files may become half a megabyte, so that small ones can become too large."""
    monkeypatch.setattr(file_errors, "SLACK", SLACK)
    monkeypatch.setattr(files, "_LONGEST_LINE", 1 << 18)


def read_floats(path):
    return read_csv(path, np.float64, "numbers")


def read_graph(path):
    np.save(path.with_name("edges.npy"), [[0, 1], [1, 2]])
    return datasets.read_graph(path.with_name("edges.npy"), labels=path)


READERS = {
    "read_csv": read_floats,
    "read_graph": read_graph,
    "read_lines": datasets.sudoku.read_lines,
    "read_extxyz": datasets.read_extxyz,
}
BOMBS = {
    "one long line": b"1," * (4 << 20),
    "one line of a digit": b"1" * (8 << 20),
    "lines": b"1\n" * (4 << 20),
    "empty lines": b"\n" * (8 << 20),
    "lines of Macs": b"1\r" * (4 << 20),
    "form feeds": b"\f" * (8 << 20),
    "blanks": b" " * (8 << 20),
}


def packed(text, members=1):
    """A file of gzip, in which the text is spread over several members."""
    size = -(-len(text) // members)
    return b"".join(gzip.compress(text[i : i + size]) for i in range(0, len(text), size))


def error_and_peak(read, path):
    """The message of a ValueError, and the bytes that the call takes for a while."""
    tracemalloc.start()
    try:
        with pytest.raises(ValueError) as error:
            read(path)
        assert not isinstance(error.value.__cause__, MemoryError)
        return str(error.value), tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("members", [1, 64])
@pytest.mark.parametrize("bomb", BOMBS)
@pytest.mark.parametrize("name", READERS)
def test_no_packed_text_becomes_large(name, bomb, members, tmp_path):
    path = tmp_path / "labels.csv.gz"
    path.write_bytes(packed(BOMBS[bomb], members))
    message, peak = error_and_peak(READERS[name], path)
    assert message.startswith(f"{path}: ")
    assert "would take" in message or "expected a line of at most 262144 characters" in message
    assert peak < 4 * (SLACK + file_errors.GROWTH * path.stat().st_size)


def test_lines_of_text_take_memory_beside_their_characters(tmp_path):
    path = tmp_path / "lines.gz"
    text = b"1\n" * (SLACK // 4)
    path.write_bytes(gzip.compress(text))
    limit = SLACK + file_errors.GROWTH * path.stat().st_size
    assert len(text) < limit < 10 * len(text)
    message, _ = error_and_peak(lambda path: read_text(path, "lines"), path)
    assert message.startswith(f"{path}: its lines would take ")
    path.write_bytes(gzip.compress(b"1" * (SLACK // 2)))
    assert len(read_text(path, "lines")) == SLACK // 2


def test_a_table_is_as_large_as_its_numbers(tmp_path):
    # Two characters of text become eight bytes, and the text alone is within the limit.
    path = tmp_path / "table.csv.gz"
    text = (b"1," * 99 + b"1\n") * 1500
    path.write_bytes(gzip.compress(text))
    limit = SLACK + file_errors.GROWTH * path.stat().st_size
    assert len(text) < limit < 4 * len(text)
    message, _ = error_and_peak(read_floats, path)
    assert message.startswith(f"{path}: its table would take ")
    assert read_csv(path, np.int8, "numbers").shape == (1500, 100)
    path.with_suffix("").write_bytes(text)
    path.unlink()
    assert read_floats(path).shape == (1500, 100)  # without compression all is its own size


def test_lines_of_a_table_are_no_longer_than_parsers_bear(tmp_path):
    path = tmp_path / "table.csv"
    path.write_bytes(b"1,2\n" + b"1," * (1 << 20))
    message, _ = error_and_peak(read_floats, path)
    assert (
        message == f"{path}: line 2: expected a line of at most 262144 characters, got a longer one"
    )


def test_members_and_line_ends_make_no_difference(tmp_path):
    path = tmp_path / "table.csv.gz"
    text = b"1,2\n3,4\n5,6\n"
    for members in (1, 3, 12):
        for ends in (b"\n", b"\r\n", b"\r"):
            path.write_bytes(packed(text.replace(b"\n", ends), members))
            assert read_floats(path).tolist() == [[1, 2], [3, 4], [5, 6]]
            assert read_text(path, "numbers").split() == text.split()


def test_bad_cells_are_named_through_blocks_members_and_line_ends(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "_BLOCK", 5)
    path = tmp_path / "table.csv.gz"
    for ends in ("\n", "\r\n", "\r"):
        for cell in ("x", "1_0", "\u00e9", ""):
            text = ends.join(["1,2", "3,4", f"5,{cell}", "7,8"])
            path.write_bytes(packed(text.encode(), 3))
            message, _ = error_and_peak(read_floats, path)
            expected = f"line 3, column 2: expected float64, got {cell!r}"
            assert message == f"{path}: {expected}"
        path.write_bytes(packed(ends.join(["1,2", "3,4", "5", "7,8", ""]).encode(), 3))
        message, _ = error_and_peak(read_floats, path)
        assert message == f"{path}: line 3: expected 2 columns, got 1"


@pytest.mark.parametrize("name", READERS)
def test_damaged_files_of_gzip_are_named(name, tmp_path):
    path = tmp_path / "labels.csv.gz"
    good = gzip.compress(b"0\n1\n" * 100)
    wrong_sum = good[:-8] + bytes(4) + good[-4:]
    for content in (good[:-1], good[:12], good[:5], wrong_sum, good + b"more", b"0\n1\n", b""):
        path.write_bytes(content)
        message, _ = error_and_peak(READERS[name], path)
        assert message.startswith(f"{path}: ")


@pytest.mark.parametrize("name", READERS)
@pytest.mark.parametrize("suffix", ["csv", "csv.gz"])
def test_text_has_no_nul(name, suffix, tmp_path):
    path = tmp_path / f"labels.{suffix}"
    content = b"0,a\n1,b\n2,a\0\n"
    path.write_bytes(gzip.compress(content) if suffix.endswith("gz") else content)
    message, _ = error_and_peak(READERS[name], path)
    assert message == f"{path}: line 3: expected text, got a NUL byte"


def test_names_that_numpy_would_take_as_one_are_told_apart():
    data = formats.small_dataset()
    names = ("a", "a\0", *map(str, range(data.num_classes - 2)))
    vars(data)["class_names"] = names
    data.validate()
    vars(data)["class_names"] = ("a", *names[1:-1], "a")
    with pytest.raises(ValueError, match="class_names: expected every name once, got a twice"):
        data.validate()


def test_a_count_of_nodes_takes_no_memory_before_it_is_confirmed(tmp_path):
    data = formats.small_dataset()
    formats.write_ogb(tmp_path, data, "ogbn-arxiv")
    path = tmp_path / "raw/num-node-list.csv.gz"
    path.unlink(missing_ok=True)
    path.with_suffix("").write_text("2147483647\n")
    message, peak = error_and_peak(lambda path: datasets.read_ogb(path, "ogbn-arxiv"), tmp_path)
    assert "node-label.csv" in message and peak < 4 << 20
