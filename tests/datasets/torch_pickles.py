"""Writes pickles of tensors as torch does, instruction by instruction, as torch is not here."""

import pickle
import struct

import numpy as np

KINDS = {
    "f8": "DoubleStorage",
    "f4": "FloatStorage",
    "f2": "HalfStorage",
    "i8": "LongStorage",
    "i4": "IntStorage",
    "i2": "ShortStorage",
    "i1": "CharStorage",
    "u1": "ByteStorage",
    "b1": "BoolStorage",
}
BEGINNING = pickle.dumps(0x1950A86A20F9469CFC6C, 2) + pickle.dumps(1001, 2)
MACHINE = {
    "protocol_version": 1001,
    "little_endian": True,
    "type_sizes": {"short": 2, "int": 4, "long": 4},
}


def whole(pickled: bytes) -> bytes:
    """A pickle of the instructions of one object."""
    return b"\x80\x03" + pickled + b"."


def name(module: str, attribute: str) -> bytes:
    return f"c{module}\n{attribute}\n".encode()


def number(value: int) -> bytes:
    return b"J" + struct.pack("<i", value)


def text(value: str) -> bytes:
    return b"X" + struct.pack("<I", len(value)) + value.encode()


def group(*objects: bytes) -> bytes:
    return b"(" + b"".join(objects) + b"t"


def call(function: bytes, *arguments: bytes) -> bytes:
    return function + group(*arguments) + b"R"


def mapping(**entries: bytes) -> bytes:
    return b"}(" + b"".join(text(key) + value for key, value in entries.items()) + b"u"


def sequence(*objects: bytes) -> bytes:
    return b"](" + b"".join(objects) + b"e"


def storage_file(
    values: np.ndarray, *, kind: str | None = None, length: int | None = None, machine=None
) -> bytes:
    """The bytes of a storage, as ``torch.save`` wrote them up to 1.5."""
    kind = kind or KINDS[values.dtype.str[1:]]
    count = number(values.size if length is None else length)
    pid = group(text("storage"), name("torch", kind), text("7"), text("cpu"), count, b"N")
    size = struct.pack("<q", values.size)
    described = b"\x80\x02" + pid + b"Q." + pickle.dumps(["7"], 2) + size
    return BEGINNING + pickle.dumps(machine or MACHINE, 2) + described + values.tobytes()


def storage(values: np.ndarray, **options) -> bytes:
    """A storage inside of another pickle, since torch 1.0."""
    data = storage_file(values, **options)
    return call(
        name("torch.storage", "_load_from_bytes"), b"B" + struct.pack("<I", len(data)) + data
    )


def listed_storage(values: np.ndarray) -> bytes:
    """A storage inside of another pickle, up to torch 0.4."""
    numbers = pickle.dumps(values.tolist(), 2)[2:-1]
    return call(name("torch", KINDS[values.dtype.str[1:]]), numbers)


def view(stored: bytes, offset: int, shape: tuple[int, ...], strides: tuple[int, ...]) -> bytes:
    """A tensor that is a view of a storage."""
    sizes, steps = (group(*map(number, numbers)) for numbers in (shape, strides))
    hooks = call(name("collections", "OrderedDict"))
    rebuild = name("torch._utils", "_rebuild_tensor_v2")
    return call(rebuild, stored, number(offset), sizes, steps, b"\x89", hooks)


def tensor(values: np.ndarray, *, listed: bool = False) -> bytes:
    """A tensor of these values."""
    values = np.ascontiguousarray(values).reshape(np.shape(values))
    strides = tuple(step // values.itemsize for step in values.strides)
    stored = listed_storage(values.ravel()) if listed else storage(values.ravel())
    return view(stored, 0, values.shape, strides)
