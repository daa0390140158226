"""Spoils files: bytes, instructions of pickles, forged states, headers, members of zips."""

import io
import pickle
import pickletools
import random
import struct
import zipfile
from collections.abc import Callable

import numpy as np
import scipy.sparse

_NUMBERS = (0, 1, 2, 3, 7, 8, 12, 127, 128, 255, 256, 65535, 2**31 - 1, 2**31, 2**32 - 1)
_NUMBERS += (2**40, 2**62, 2**63 - 1, -1, -2, -8, -100_000, -(2**31), -(2**63))
_CONTENT = bytes(range(65, 65 + 12)) * 8


class Calls:
    """Pickles as a call of a function, and a state for what it returns."""

    def __init__(self, function, arguments, state=None):
        self._call = (function, arguments) if state is None else (function, arguments, state)

    def __reduce__(self):
        """What pickle is to call."""
        return self._call


def spoil(rng: random.Random, kind: str, data: bytes, others: list[bytes]) -> bytes:
    """Another content in the place of a valid one.

    Args:
        rng: of every choice.
        kind: the file's name from its last dot on.
        data: what the file holds.
        others: contents of other files of this kind, to be joined with it.
    """
    ways: list[Callable[[], bytes]] = [lambda: _bytes(rng, data, others)]
    if kind == ".pickle":
        ways += [lambda: _instructions(rng, data)] * 2 + [lambda: _forged(rng)] * 2
    elif kind == ".npy":
        ways += [lambda: _array(rng, data)] * 2
    else:
        ways += [lambda: _archive(rng, data, others)] * 3
    content = rng.choice(ways)()
    while rng.random() < 0.2:
        content = _bytes(rng, content, others)
    return content


def _number_bytes(rng: random.Random) -> bytes:
    size, order = rng.choice((1, 2, 4, 8)), rng.choice(("little", "big"))
    return (rng.choice(_NUMBERS) % 256**size).to_bytes(size, order)


def _bytes(rng: random.Random, data: bytes, others: list[bytes]) -> bytes:
    at, to = sorted(rng.randrange(len(data) + 1) for _ in range(2))
    way = rng.randrange(8)
    if way == 0:
        spoiled = bytearray(data)
        for _ in range(rng.randint(1, 8) if spoiled else 0):
            spoiled[rng.randrange(len(spoiled))] ^= 1 << rng.randrange(8)
        return bytes(spoiled)
    if way == 1:
        number = _number_bytes(rng)
        return data[:at] + number + data[at + len(number) :]
    if way == 2:
        return data[:at]
    if way == 3:
        return data[:at] + data[to:]
    if way == 4:
        return data[:to] + data[at:]
    if way == 5:
        return data[:at] + rng.randbytes(rng.randint(1, 9)) + data[at:]
    if way == 6:
        other = rng.choice(others)
        return data[:at] + other[rng.randrange(len(other) + 1) :]
    part = data[at : at + rng.randint(1, 40)]
    return data[:at] + part * rng.choice((2, 3, 30, _many(rng))) + data[at:]


def _many(rng: random.Random) -> int:
    """Mostly few, so that few files are large."""
    return rng.choice((100, 1000)) if rng.random() < 0.98 else rng.choice((10_000, 50_000))


# -- pickles -------------------------------------------------------------------------------------

_NAMES = ["numpy dtype", "numpy ndarray", "numpy._core.multiarray _reconstruct", "numpy fromfile"]
_NAMES += ["numpy.core.multiarray scalar", "numpy._core.numeric _frombuffer", "posix system"]
_NAMES += ["scipy.sparse._csr csr_matrix", "builtins set", "builtins object", "builtins bytes"]
_NAMES += ["copyreg _reconstructor", "_codecs encode", "numpy memmap", "builtins getattr"]


def _split(data: bytes) -> list[bytes]:
    starts = [position for _, _, position in pickletools.genops(data)]
    return [data[a:b] for a, b in zip(starts, [*starts[1:], len(data)], strict=True)]


def _instruction(rng: random.Random) -> bytes:
    code = rng.choice(pickletools.opcodes).code.encode("latin1")
    if code in b"c" or rng.random() < 0.1:
        return b"c" + rng.choice(_NAMES).replace(" ", "\n").encode() + b"\n"
    size = {b"K": 1, b"M": 2, b"J": 4, b"G": 8, b"q": 1, b"h": 1, b"r": 4, b"j": 4}.get(code)
    if size is not None:
        return code + (rng.choice(_NUMBERS) % 256**size).to_bytes(size, "little")
    if code in b"ILFSVpgP":
        return code + rng.choice((b"1", b"-1", b"1_0", b"'a'", b"0" * 30, b"1e9", b"\\")) + b"\n"
    formats = {b"C": "<B", b"\x8c": "<B", b"U": "<B", b"\x8a": "<B", b"B": "<I", b"X": "<I"}
    formats |= {b"T": "<i", b"\x8b": "<i", b"\x8e": "<Q", b"\x8d": "<Q", b"\x96": "<Q"}
    if code in formats:
        content = rng.randbytes(rng.choice((0, 1, 8, 9)))
        size = len(content) if rng.random() < 0.6 else rng.choice(_NUMBERS)
        width = struct.calcsize(formats[code])
        return code + (size % 256**width).to_bytes(width, "little") + content
    return code + (rng.randbytes(8) if code == b"\x95" else b"")


def _instructions(rng: random.Random, data: bytes) -> bytes:
    """Instructions left out, added, exchanged, repeated."""
    parts = _split(data)
    for _ in range(rng.randint(1, 3)):
        at, to = rng.randrange(len(parts)), rng.randrange(len(parts))
        way = rng.randrange(6)
        if way == 0:
            del parts[at]
            parts = parts or [b"."]
        elif way == 1:
            parts.insert(at, _instruction(rng))
        elif way == 2:
            parts[at] = _instruction(rng)
        elif way == 3:
            parts[at], parts[to] = parts[to], parts[at]
        elif way == 4:
            parts[at:at] = [parts[to]] * rng.choice((1, 2, _many(rng)))
        else:
            parts[at] = parts[at][:1] + _bytes(rng, parts[at][1:], parts)
    return b"".join(parts)


_DTYPES = ["V8", "O", "O8", "f8", ">f8", "i8", "i4", "u1", "?", "b1", "c16", "M8[s]", "U3", "S1"]
_DTYPES += ["f8,i4", "(2,)f8", "2f8", "V0", "U0", "S999999999", "U999999999", "f2", "g", "i4,O"]
_REAL_DTYPES = [np.dtype(name) for name in ("f8", "i4", ">i8", "U3", "O", "V8", "f8,i4", "(2,)f8")]
_REAL_DTYPES += [np.dtype({"names": ["a"], "formats": ["O"], "offsets": [0], "itemsize": 8})]


def _dtype(rng: random.Random):
    """A dtype, mostly with a state that it must not have."""
    if rng.random() < 0.3:
        return rng.choice(_REAL_DTYPES)
    inner = np.dtype(rng.choice(("O8", "f8", "u1")))
    fields = [None, {}, {"a": (inner, rng.choice((0, 8, 2**30, -8)))}]
    state = (
        rng.choice((3, 3, 3, 2, 4)),
        rng.choice("<>|=?"),
        rng.choice((None, None, (inner, (rng.choice((1, 2, 10**9)),)), inner)),
        rng.choice((None, None, ("a",), ())),
        rng.choice(fields),
        rng.choice((-1, -1, 8, 0, 2**31 - 1, 10**9)),
        rng.choice((-1, -1, 1, 8)),
        rng.choice((0, 0, 8, 63, 27, -1)),
    )
    arguments = (rng.choice(_DTYPES), rng.choice((False, True)), rng.choice((False, True)))
    return Calls(np.dtype, arguments, state if rng.random() < 0.8 else None)


def _shape(rng: random.Random):
    sizes = (0, 1, 2, 3, 12, 36, 96, -1, 2**31, 2**40, 2**62, True, 1.5)
    if rng.random() < 0.5:
        return rng.choice(((12,), (12, 3), (12, 1), ()))
    return tuple(rng.choice(sizes) for _ in range(rng.choice((0, 1, 1, 2, 2, 3, 40))))


def _value(rng: random.Random):
    """An array, a number or a matrix, made in one of the ways that numpy has, or none."""
    reconstruct = np.ones(1).__reduce__()[0]
    scalar, from_buffer = np.float64(0).__reduce__()[0], np.ones(1).__reduce_ex__(5)[0]
    shape, dtype = _shape(rng), _dtype(rng)
    data = _CONTENT[: rng.choice((0, 1, 4, 8, 12, 48, 96))]
    if rng.random() < 0.5 and all(type(size) is int and 0 <= size < 99 for size in shape):
        data = (_CONTENT * 8)[: int(np.prod(shape)) * rng.choice((1, 4, 8))]
    way = rng.randrange(6)
    if way == 0:
        name = rng.choice(_DTYPES[:9])
        return Calls(np.ndarray, (shape, name, data, rng.choice((0, 8, -100_000, 2**40))))
    if way in (1, 2):
        state = (1, shape, dtype, rng.choice((False, True)), rng.choice((data, [1, 2], "a" * 8)))
        kind = np.ndarray if rng.random() < 0.9 else set
        return Calls(reconstruct, (kind, rng.choice(((0,), (0,), (12,))), b"b"), state)
    if way == 3:
        return Calls(scalar, (dtype, data))
    if way == 4:
        return Calls(from_buffer, (data, dtype, shape, rng.choice("CFK")))
    matrix = scipy.sparse.csr_matrix(np.eye(12, 3))
    name = rng.choice(("indptr", "indices", "data"))
    array = rng.choice(([1, 2], np.arange(13)[::-1], np.full(3, 2**40), np.zeros(13), _value))
    matrix.__dict__[name] = array(rng) if array is _value else array
    matrix.__dict__["_shape"] = rng.choice(((12, 3), (12, 3), (12, 2**31 - 1), (2**40, 3), (-1,)))
    return matrix


def _forged(rng: random.Random) -> bytes:
    """A pickle that is well formed, of values that are not."""
    values = [_value(rng) for _ in range(rng.choice((1, 1, 2, 12)))]
    one = values[0]
    holder = rng.choice((one, values, dict(enumerate(values)), {"train": one, "test": [1]}))
    try:
        return pickle.dumps(holder, rng.randrange(6))
    except Exception:  # what even pickle does not write, such as arrays of forged shapes
        return pickle.dumps(values[:1], 2) if isinstance(one, Calls) else b"."


# -- arrays --------------------------------------------------------------------------------------

_SHAPES = ["(12,)", "(12, 3)", "()", "(-1,)", "(1e400,)", "(inf,)", "(12", "12", "(12L, 3L)"]
_SHAPES += ["(4294967296, 4294967296)", "(99999999999999999999,)", "(1_2,)", "(True,)", "(12,-3)"]
_SHAPES += ["(0, 9223372036854775807)", "(10000000000,)", "(" + "1," * 60 + ")"]
_DESCRS = ["'<f8'", "'>f8'", "'<i4'", "'|O'", "'|V8'", "'<U3'", "[('a', '<f8')]", "'|b1'", "'<c16'"]
_DESCRS += ["('<f8', (2,))", "'<M8[s]'", "'<V2'", "'<U99999999'", "None", "'<f8' '"]


def _array(rng: random.Random, data: bytes) -> bytes:
    """An array under another header."""
    length = 10 + int.from_bytes(data[8:10], "little")
    header, content = data[10:length].decode("latin1"), data[length:]
    way = rng.randrange(5)
    if way == 0:
        header = header.replace("'shape': ", f"'shape': {rng.choice(_SHAPES)}, 'x': ")
        header = header.replace(", 'x': ", rng.choice((", 'x': ", ", }#")))
    elif way in (1, 2):
        descr = rng.choice(_DESCRS)
        order = rng.choice(("False", "False", "True", "1"))
        shape = rng.choice(_SHAPES)
        header = f"{{'descr': {descr}, 'fortran_order': {order}, 'shape': {shape}, }}\n"
    elif way == 3:
        at = rng.randrange(len(header) + 1)
        header = header[:at] + rng.choice(("\0", "(" * 300, "-" * 5000, "é", "'")) + header[at:]
    else:
        content = content[: rng.randrange(len(content) + 1)] + content[: rng.choice((0, 0, 8))]
    version, format = rng.choice(((1, "<H"), (1, "<H"), (2, "<I"), (3, "<I"), (9, "<H")))
    size = len(header) if rng.random() < 0.9 else rng.choice(_NUMBERS)
    length_bytes = (size % 256 ** struct.calcsize(format)).to_bytes(
        struct.calcsize(format), "little"
    )
    return b"\x93NUMPY" + bytes((version, 0)) + length_bytes + header.encode("latin1") + content


def _archive(rng: random.Random, data: bytes, others: list[bytes]) -> bytes:
    """An archive of other members, or under other headers."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        members = [(info.filename, archive.read(info)) for info in archive.infolist()]
    at = rng.randrange(len(members))
    name, content = members[at]
    way = rng.randrange(8)
    if way <= 1:
        members[at] = name, _array(rng, content)
    elif way == 2:
        members[at] = name, _bytes(rng, content, [content])
    elif way == 3:
        del members[at]
    elif way == 4:
        members[at] = rng.choice(("a/../" + name, "x" * 60_000, "\0", name + "x")), content
    elif way == 5:
        members.append((name, members[rng.randrange(len(members))][1]))
    elif way == 6 and rng.random() < 0.1:
        members[at] = name, content + bytes(rng.choice((10**6, 60 * 10**6)))
    made = io.BytesIO()
    method = rng.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2))
    with zipfile.ZipFile(made, "w", method, compresslevel=1) as archive:
        for number, (member, text) in enumerate(members):
            # Of another name at first, since zipfile warns about a name that is there already.
            archive.writestr(member if number < len(members) - 1 else "?" * len(member), text)
    spoiled = bytearray(made.getvalue().replace(b"?" * len(members[-1][0]), _zip_name(members[-1])))
    return bytes(_with_spoiled_fields(rng, spoiled) if rng.random() < 0.4 else spoiled)


def _zip_name(member: tuple[str, bytes]) -> bytes:
    return member[0].encode()


def _with_spoiled_fields(rng: random.Random, data: bytearray) -> bytearray:
    """Flags, methods, sums, sizes and offsets of the headers of members, and of the end."""
    starts = []
    for mark, fields in ((b"PK\1\2", (8, 10, 16, 20, 24, 28, 30, 42)), (b"PK\3\4", (6, 8, 14, 18))):
        position = data.find(mark)
        while position >= 0:
            starts += [position + field for field in fields]
            position = data.find(mark, position + 1)
    end = data.rfind(b"PK\5\6")
    starts += [end + field for field in (8, 10, 12, 16, 20)] if end >= 0 else []
    for _ in range(rng.randint(1, 3)):
        at, number = rng.choice(starts), _number_bytes(rng)
        data[at : at + len(number)] = number
    return data
