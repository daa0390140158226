"""No data file reaches memory, runs code, or becomes many times as large as it is."""

import gzip
import io
import pickle
import struct
import tracemalloc
import zipfile

import numpy as np
import pytest
import scipy.sparse

from jaxgnn import datasets
from jaxgnn.datasets.formats import file_errors as _file_errors
from jaxgnn.datasets.formats import safe_pickle as _safe_pickle
from jaxgnn.datasets.formats.npy import read_npy, read_npz
from jaxgnn.datasets.formats.safe_pickle import read_numbers

from . import formats, fuzz_readers
from .mutations import Calls

SMALL = formats.small_hypergraph()
RECONSTRUCT = np.ones(1).__reduce__()[0]
SCALAR = np.float64(0).__reduce__()[0]
FROM_BUFFER = np.ones(1).__reduce_ex__(5)[0]
ADDRESSES = b"A" * 96


def dtype(name, *state):
    """A dtype as a pickle makes it, with a state of our choice."""
    return Calls(np.dtype, (name, False, True), state or None)


def array(kind, shape, content, order=False):
    return Calls(RECONSTRUCT, (np.ndarray, (0,), b"b"), (1, shape, kind, order, content))


OBJECT = np.dtype("O8")
WITH_OBJECTS = dtype("V8", 3, "|", None, ("a",), {"a": (OBJECT, 0)}, 8, 1, 0)
PAST_THE_END = dtype("V8", 3, "|", None, ("a",), {"a": (np.dtype("f8"), 1 << 20)}, 8, 1, 0)
SUBARRAY = dtype("V8", 3, "|", (np.dtype("f8"), (1 << 20,)), None, None, 8, 1, 0)
FORGED = {
    "fields of objects": array(WITH_OBJECTS, (12,), ADDRESSES),
    "a field past the item": array(PAST_THE_END, (12,), ADDRESSES),
    "a subarray": array(SUBARRAY, (12,), ADDRESSES),
    "a subarray by scalar": Calls(SCALAR, (SUBARRAY, b"A" * 8)),
    "a subarray by _frombuffer": Calls(FROM_BUFFER, (ADDRESSES, SUBARRAY, (12,), "C")),
    "objects by scalar": Calls(SCALAR, (WITH_OBJECTS, b"A" * 8)),
    "objects by _frombuffer": Calls(FROM_BUFFER, (ADDRESSES, WITH_OBJECTS, (12,), "C")),
    "plain objects": array(dtype("O8"), (12,), ADDRESSES),
    "objects of a list": np.array([{}, []], object),
    "an item size": array(dtype("f8", 3, "<", None, None, None, 1 << 20, 8, 0), (12,), ADDRESSES),
    "flags": array(dtype("f8", 3, "<", None, None, None, -1, -1, 63), (12,), ADDRESSES),
    "a subarray of numbers": array(
        dtype("f8", 3, "<", (np.dtype("f8"), (1 << 20,)), None, None, -1, -1, 0), (12,), ADDRESSES
    ),
    "fields of numbers": array(
        dtype("f8", 3, "<", None, ("a",), {"a": (OBJECT, 0)}, -1, -1, 0), (12,), ADDRESSES
    ),
    "a state of all dtypes": array(
        Calls(np.dtype, ("i8", False, False), (3, ">", None, None, None, -1, -1, 0)),
        (12,),
        ADDRESSES,
    ),
    "names alone": array(dtype("f8", 3, "<", None, ("a",), None, -1, -1, 0), (12,), ADDRESSES),
    "metadata": array(dtype("f8", 4, "<", None, None, None, -1, -1, 0, {"a": 1}), (12,), ADDRESSES),
    "fields by name": array(dtype("O,i4"), (8,), ADDRESSES),
    "an offset into memory": Calls(np.ndarray, ((12, 3), "f8", b"\0" * 8, -100_000)),
    "too few bytes": array(dtype("f8"), (13,), ADDRESSES),
    "too many bytes": array(dtype("f8"), (11,), ADDRESSES),
    "a negative size": array(dtype("f8"), (-12,), ADDRESSES),
    "sizes of a wrapped product": array(dtype("f8"), (1 << 32, 1 << 32, 12), ADDRESSES),
    "a shape of truth values": array(dtype("f8"), (True, 12), ADDRESSES),
    "a scalar of many": Calls(SCALAR, (dtype("f8"), ADDRESSES)),
    "no characters": array(dtype("U8", 3, "<", None, None, None, 32, 4, 8), (3,), b"\xff" * 96),
    "no truth values": array(dtype("b1"), (96,), ADDRESSES),
    "strings of a size": Calls(FROM_BUFFER, (b"", dtype("S999999999"), (12,), "C")),
    "a class beside arrays": Calls(RECONSTRUCT, (set, (0,), b"b")),
    "two states": Calls(
        RECONSTRUCT,
        (np.ndarray, (0,), b"b"),
        (1, (12,), array(dtype("f8"), (1,), b"A" * 8), 0, b""),
    ),
}
HOLDERS = {
    "hypergraph": lambda value: {0: value},
    "features": lambda value: value,
    "labels": lambda value: value,
    "splits/3": lambda value: {"train": value, "test": [1]},
}


@pytest.mark.parametrize("file", HOLDERS)
@pytest.mark.parametrize("name", FORGED)
def test_no_state_of_an_array_is_believed(name, file, tmp_path):
    formats.write_hypergcn(tmp_path, SMALL)
    path = tmp_path / f"{file}.pickle"
    for protocol in (2, 5):
        formats.write_pickle(path, HOLDERS[file](FORGED[name]), protocol)
        with pytest.raises(ValueError) as error:
            datasets.read_hypergcn(tmp_path, split=3)
        assert str(path) in str(error.value)


@pytest.mark.parametrize(
    "changes",
    [
        {"indices": np.full(3, 1 << 30)},
        {"indices": np.full(3, -1)},
        {"indptr": np.arange(13)[::-1]},
        {"indptr": np.array([0, 1 << 40, *[3] * 11], np.uint64)},
        {"indptr": np.zeros(13)},
        {"indptr": [0] * 13},
        {"data": np.ones(1 << 10)},
        {"_shape": (1 << 40, 3)},
        {"_shape": (12, -3)},
        {"_shape": (12, (1 << 31) - 1)},
        {"_shape": 12},
    ],
    ids=str,
)
def test_no_part_of_a_sparse_matrix_is_believed(changes, tmp_path):
    formats.write_hypergcn(tmp_path, SMALL)
    matrix = scipy.sparse.csr_matrix(np.eye(12, 3))
    vars(matrix).update(changes)
    formats.write_pickle(tmp_path / "features.pickle", matrix)
    with pytest.raises(ValueError, match=r"features\.pickle: (not a csr_matrix|its dense matrix)"):
        datasets.read_hypergcn(tmp_path)


def test_arrays_of_any_byte_order_and_of_fortran_are_read(tmp_path):
    for protocol in range(6):
        for kind in (">f8", "<f4", ">i8", "u1", "?", ">f2"):
            values = np.asfortranarray(np.arange(36).reshape(12, 3) % 2).astype(kind)
            formats.write_pickle(tmp_path / "x.pickle", values, protocol)
            read = read_numbers(tmp_path / "x.pickle", "an array").value
            np.testing.assert_array_equal(read, values)
            assert read.dtype.isnative
            np.save(tmp_path / "x.npy", values)
            read = read_npy(tmp_path / "x.npy", "an array")
            np.testing.assert_array_equal(read, values)
            assert read.dtype.isnative


# -- what becomes large --------------------------------------------------------------------------


def many(instruction, count=1 << 14):
    return b"\x80\x04" + instruction * count + b"."


def doubled(times):
    """A tuple of a tuple twice, of a tuple twice, and so on: few objects on many ways."""
    return b"\x80\x04K\x01\x85" + b"2\x86" * times + b"."


def shared_rows(row, count, start=b"]"):
    """A list of one row, many times."""
    return b"\x80\x04" + start + b"(" + row + b"q\x01" + b"h\x01" * count + b"e."


ROW = b"](" + b"K\x01" * 1000 + b"e"
GROWING = {
    "empty lists": many(b"]"),
    "marks": many(b"("),
    "a string": b"S'" + b"a" * 100_000 + b"'\n.",
    "a string of escapes": b"S'" + b"\\x00" * 25_000 + b"'\n.",
    "names": many(b"cnumpy\ndtype\n"),
    "lists in lists": b"\x80\x04" + b"]" * (1 << 14) + b"a" * ((1 << 14) - 1) + b".",
    "tuples in tuples": b"\x80\x04)" + b"\x85" * (1 << 14) + b".",
    "sets": many(b"\x8f"),
    "short strings": many(b"\x8c\x02ab"),
    "dicts": many(b"}"),
    "numbers": many(b"J\0\1\0\1"),
    "copies of a set": b"\x80\x04cbuiltins\nset\nq\x00"
    + ROW
    + b"q\x010"
    + b"h\x00h\x01\x85R" * 2000
    + b".",
    "copies of bytes": b"\x80\x02c_codecs\nencode\nq\x00X\xe8\x03\0\0"
    + b"a" * 1000
    + b"q\x01X\x06\0\0\0latin1q\x02"
    + b"h\x00h\x01h\x02\x86R" * 5000
    + b".",
    "a far memo": b"\x80\x04]r\xff\xff\xff\x7f.",
    "a far memo in text": b"]p999999999\n.",
    "long bytes": b"\x80\x04B\xff\xff\xff\x7fa.",
    "longer bytes": b"\x80\x04\x8e" + struct.pack("<Q", 1 << 62) + b"a.",
    "long text": b"\x80\x04\x8d" + struct.pack("<Q", 1 << 40) + b"a.",
    "a long bytearray": b"\x80\x05\x96" + struct.pack("<Q", (1 << 64) - 1) + b"a.",
    "a long integer": b"\x80\x04\x8b" + struct.pack("<i", (1 << 31) - 1) + b"a.",
    "an integer of negative length": b"\x80\x04\x8b" + struct.pack("<i", -8) + b"a.",
    "a string of negative length": b"T" + struct.pack("<i", -8) + b"a.",
    "a huge frame": b"\x80\x04\x95" + struct.pack("<Q", 1 << 62) + b"]a.",
    "many digits": b"I" + b"9" * 100_000 + b"\n.",
    "an integer of many bytes": b"\x80\x04\x8b"
    + struct.pack("<i", 100_000)
    + b"\1" * 100_000
    + b".",
    "doubled tuples": doubled(60),
    "doubled tuples as a key": b"\x80\x04}" + doubled(60)[2:-1] + b"Ns.",
    "nested tuples as a key": b"\x80\x04})" + b"\x85" * 100_000 + b"Ns.",
    "shared rows": shared_rows(ROW, 5000),
    "shared hyperedges": b"\x80\x04}K\x00"
    + ROW
    + b"q\x01s"
    + b"".join(b"M" + struct.pack("<H", i) + b"h\x01s" for i in range(1, 5000))
    + b".",
    "a list in itself": b"\x80\x04]q\x00h\x00a.",
}


def peak_of(read):
    """Bytes that a call takes for a while."""
    tracemalloc.start()
    try:
        read()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.fixture
def little_slack(monkeypatch):
    """Small files may become half a megabyte, so that small ones can become too large."""
    for module in (_safe_pickle, _file_errors):
        monkeypatch.setattr(module, "SLACK", 1 << 19)
    return 1 << 19


@pytest.mark.costly
@pytest.mark.parametrize("name", GROWING)
def test_no_pickle_becomes_large(name, tmp_path, little_slack):
    formats.write_hypergcn(tmp_path, SMALL)
    for file in HOLDERS:
        path = tmp_path / f"{file}.pickle"
        good = path.read_bytes()
        path.write_bytes(GROWING[name])

        def read(path=path):
            with pytest.raises(ValueError) as error:
                datasets.read_hypergcn(tmp_path, split=3)
            assert str(path) in str(error.value)
            assert not isinstance(error.value.__cause__, MemoryError)

        allowed = 2 * little_slack + fuzz_readers.ALLOWED_GROWTH * path.stat().st_size
        assert peak_of(read) < allowed
        path.write_bytes(good)


def test_large_pickles_of_numbers_are_read(tmp_path):
    count = 100_000
    stored = {i: list(range(i, i + 4)) for i in range(count // 4)} | {"x": [np.int64(3)] * 8}
    for protocol in (0, 2, 5):
        formats.write_pickle(tmp_path / "big.pickle", stored, protocol)
        assert read_numbers(tmp_path / "big.pickle", "a dict") == stored


# -- numpy's files -------------------------------------------------------------------------------


def npy(header, content=b"\0" * 96, version=b"\1\0", length=None):
    size = struct.pack(
        "<H" if version == b"\1\0" else "<I", len(header) if length is None else length
    )
    return b"\x93NUMPY" + version + size + header.encode("latin1") + content


def header(descr="'<f8'", shape="(12,)", order="False"):
    return f"{{'descr': {descr}, 'fortran_order': {order}, 'shape': {shape}, }}\n"


ARRAYS = {
    "a huge shape": npy(header(shape="(99999999999,)")),
    "an infinite shape": npy(header(shape="(1e400,)")),
    "a negative shape": npy(header(shape="(-1,)")),
    "a shape whose product wraps": npy(header(shape="(4294967296, 4294967296)"), b""),
    "an empty shape of many": npy(header(shape="(0, 9223372036854775807)"), b""),
    "a shape of underscores": npy(header(shape="(1_2,)")),
    "a shape of truth values": npy(header(shape="(True, 12)")),
    "a long of Python 2 in a header of Python 3": npy(header(shape="(12L,)"), version=b"\3\0"),
    "forty axes": npy(header(shape="(" + "1, " * 40 + "12)")),
    "objects": npy(header("'|O'")),
    "fields": npy(header("[('a', '<f8')]")),
    "fields of objects": npy(header("[('a', '|O')]")),
    "a subarray": npy(header("('<f8', (12,))")),
    "raw bytes": npy(header("'|V8'")),
    "times": npy(header("'<M8[s]'")),
    "an unknown kind": npy(header("'<q9'")),
    "a header with a NUL": npy(header()[:-3] + "\0}\n"),
    "a header of brackets": npy("(" * 9000),
    "a header of signs": npy("{'descr': " + "-" * 9000 + "1}"),
    "a long header": npy(header(), version=b"\2\0", length=1 << 31),
    "a header of code": npy("{'descr': __import__('os').getpid(), 'shape': ()}"),
    "a key twice": npy(header()[:-2] + "'shape': (1,), }\n"),
    "a missing key": npy("{'descr': '<f8', 'shape': (12,)}"),
    "too few bytes": npy(header(), b"\0" * 95),
    "too many bytes": npy(header(), b"\0" * 97),
    "an unknown version": npy(header(), version=b"\4\0"),
    "nothing": b"",
    "a pickle": pickle.dumps(np.zeros(12)),
}


def zipped(members, method=zipfile.ZIP_DEFLATED):
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", method) as archive:
        for name, content in members:
            archive.writestr(name, content)
    return made.getvalue()


@pytest.mark.parametrize("name", ARRAYS)
def test_no_header_of_an_array_is_believed(name, tmp_path):
    content = ARRAYS[name]
    for path, whole in (
        (tmp_path / "x.npy", content),
        (tmp_path / "x.npz", zipped([("a.npy", content)])),
    ):
        path.write_bytes(whole)

        def read(path=path):
            with pytest.raises(ValueError) as error:
                read_npy(path, "x") if path.suffix == ".npy" else read_npz(path, ("a",), "x")
            assert str(error.value).startswith(f"{path}: cannot be read as an .np")
            assert not isinstance(error.value.__cause__, MemoryError)

        assert peak_of(read) < 2 << 20


GOOD = npy(header())


def patched(content, mark, field, number, size=2):
    """A field of the first header that begins with a mark."""
    at = content.find(mark) + field
    return content[:at] + number.to_bytes(size, "little") + content[at + size :]


def in_both_headers(fields, number, size=2):
    content = zipped([("a.npy", GOOD)])
    for mark, field in zip((b"PK\3\4", b"PK\1\2"), fields, strict=True):
        content = patched(content, mark, field, number, size)
    return content


ARCHIVES = {
    "a bomb": (
        zipped([("a.npy", npy(header(shape="(1250000,)"), bytes(10**7)))]),
        "what it holds",
    ),
    "a size that is not there": (in_both_headers((22, 24), 1 << 30, 4), "what it holds"),
    "a size that is too small": (in_both_headers((22, 24), 100, 4), "CRC"),
    "a flag of encryption": (in_both_headers((6, 8), 1), "encrypted"),
    "a flag of patches": (in_both_headers((6, 8), 0x20), "patch"),
    "an unknown method": (in_both_headers((8, 10), 99), "compression method"),
    "another checksum": (in_both_headers((14, 16), 7, 4), "CRC"),
    "a member twice": (zipped([("a", GOOD), ("a.npy", GOOD)]), "the array 'a' twice"),
    "a member missing": (zipped([("b.npy", GOOD)]), "no array 'a'"),
    "an endless list of members": (
        zipped([(f"{i:0200}.npy", b"") for i in range(5000)], zipfile.ZIP_STORED),
        "list of members is too long",
    ),
    "something in front": (b"x" * 8 + zipped([("a.npy", GOOD)]), "begin as a zip file"),
    "half of it": (zipped([("a.npy", GOOD)])[:100], "not a zip file"),
}


@pytest.mark.parametrize("name", ARCHIVES)
def test_no_header_of_an_archive_is_believed(name, tmp_path, little_slack):
    content, message = ARCHIVES[name]
    path = tmp_path / "x.npz"
    path.write_bytes(content)

    def read():
        with pytest.raises(ValueError, match=message) as error:
            read_npz(path, ("a",), "an array")
        assert str(error.value).startswith(f"{path}: ")

    assert peak_of(read) < (8 << 20)


def test_no_lines_of_text_become_large(tmp_path, little_slack):
    path = tmp_path / "puzzles.gz"
    path.write_bytes(gzip.compress(b"." * (4 << 20)))

    def read():
        with pytest.raises(ValueError, match=r"puzzles\.gz: what it holds would take"):
            datasets.sudoku.read_lines(path)

    assert peak_of(read) < 4 << 20


def test_readers_of_spoiled_files_return_what_they_say_or_name_them():
    outcomes, faults, _ = fuzz_readers.run(seed=5, first=0, count=200)
    assert not faults, faults
    assert sum(outcomes.values()) == 200
    assert any("admitted" in outcome for outcome in outcomes)
