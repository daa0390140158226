"""A reader of pickles of numbers that cannot execute any other code.

``pickle.Unpickler`` with a list of allowed names would not do: it hashes keys that are nested too
deeply, allocates memos and strings of any claimed size, and does not limit the memory of objects.
"""

import codecs
import re
import struct
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from jaxgnn.datasets.formats.file_errors import SLACK, bad_file, naming, require_file
from jaxgnn.datasets.formats.pickle_parts import (
    PARTS,
    Budget,
    Part,
    Refused,
    StoredArray,
    StoredCSR,
    StoredDtype,
    StoredSet,
    new_csr,
)

# Bytes of objects for each byte of the file. Numbers in a list take four, numpy's in a set nine.
_GROWTH = 8
_SLOT = 9  # Bytes of a place in a list, including its spare capacity.
_ENTRY = 100  # Bytes of a place in a dict while it grows.
_HEADER = 16  # Bytes of the header of Python's garbage collector.
_LARGEST_SHARED = 256  # Smaller integers exist only once.

_NEWEST = 5
_WHOLE = re.compile(rb"(?P<number>[+-]?[0-9]{1,20})L?", re.ASCII)
_FLOAT = re.compile(rb"(?P<number>[+-]?([0-9.]+([eE][+-]?[0-9]+)?|inf|nan))", re.ASCII)
_INDEX = re.compile(rb"(?P<number>[0-9]{1,18})", re.ASCII)
# In strings of Python 2, unprintable characters are escapes of four characters.
_ESCAPED = re.compile(rb"""\\(x[0-9a-fA-F]{2}|[\\'"nrt])?""", re.ASCII)


def read_numbers(path: Path, contents: str) -> Any:
    """Reads a pickle of numbers, text, containers, numpy arrays and sparse matrices.

    A pickle is a program, which may call any importable function, and give its result any state.
    Here it is read by a machine that supports a few names with checked arguments: arrays of plain
    numbers and strings, of exactly the bytes in the file. It takes at most 32 MiB of memory plus
    eight times the file. Strings of Python 2 are read as latin-1.

    Returns:
      The object; arrays, sets and sparse matrices as ``StoredArray``, ``StoredSet`` and
      ``StoredCSR``, numpy's numbers as Python's.
    """
    require_file(path, contents)
    return read_number_bytes(path, path.read_bytes())


def read_number_bytes(
    path: Path, data: bytes, *, skipped: int = 0, parts: Mapping[tuple[str, str], Part] = PARTS
) -> Any:
    """Reads the bytes of a pickle of numbers, as ``read_numbers`` does.

    Args:
      path: the file of the bytes.
      data: the bytes.
      skipped: number of previous pickles, which are read too, but not returned.
      parts: the supported names, and their replacements.
    """
    with naming(path, "a pickle"):
        try:
            start = 0
            for _ in range(skipped):
                _, start = run_pickle(data, start, parts)
            return run_pickle(data, start, parts)[0]
        except Refused as error:
            raise bad_file(
                path,
                f"refers to {error}, which is not read from a data file: a pickle may hold "
                "numbers, text, containers, arrays of numpy, and csr_matrix and csr_array of scipy",
            ) from None


def run_pickle(
    data: bytes,
    start: int,
    parts: Mapping[tuple[str, str], Part],
    *,
    persistent: Callable[[Any], Any] | None = None,
    most: int | None = None,
) -> tuple[Any, int]:
    """Reads the pickle that begins at a byte.

    Args:
      data: the bytes.
      start: position of the pickle.
      parts: the supported names, and their replacements.
      persistent: creates the objects that a pickle refers to by id; None rejects them.
      most: largest size of its objects, in bytes; None for that of a data file.

    Returns:
      The object, and the end position of the pickle.
    """
    size = SLACK + _GROWTH * len(data) if most is None else most
    machine = _Machine(data, start, parts, persistent or _refuse_persistent, Budget(size))
    value = machine.run()
    return value, machine.position


class _Machine:
    """A pickle machine: a stack, a memo, and a method for each instruction."""

    def __init__(
        self,
        data: bytes,
        start: int,
        parts: Mapping[tuple[str, str], Part],
        persistent: Callable[[Any], Any],
        budget: Budget,
    ):
        self._data, self.position, self._end = data, start, len(data)
        self._parts, self._persistent, self._budget = parts, persistent, budget
        self._stack: list[Any] = []
        self._marks: list[int] = []
        self._bottom = 0  # where the stack above the last mark begins
        # Largest numbers of stack entries, of marks, and of entries removed at once.
        self._highest = self._deepest = self._largest = 0
        self.memo: list[Any] = []
        self._integers: dict[int, int] = {}

    def run(self) -> Any:
        """Executes the instructions of the pickle, and returns the object that they build."""
        data, stack, steps = self._data, self._stack, _STEPS_BY_CODE
        while self.position < len(data):
            code = data[self.position]
            self.position += 1
            if code == _STOP:
                return self.pop()
            steps[code](self)
            if len(stack) > self._highest:
                self._budget.spend(_SLOT * (len(stack) - self._highest))
                self._highest = len(stack)
        raise ValueError("it ends without its last instruction")

    # -- the file --

    def _take(self, size: int) -> bytes:
        end = self.position + size
        if size < 0 or end > self._end:
            self._leave_frame(size)
        taken = self._data[self.position : end]
        self.position = end
        return taken

    def _leave_frame(self, size: int) -> None:
        """Continues after a frame that has ended."""
        if self.position >= self._end:
            self._end = len(self._data)
        if size < 0 or self.position + size > self._end:
            raise ValueError(f"it ends before {size} bytes from byte {self.position} on")

    def number(self, format: str) -> Any:
        return struct.unpack(format, self._take(struct.calcsize(format)))[0]

    def counted(self, format: str) -> bytes:
        """Reads bytes that are preceded by their length."""
        return self._take(self.number(format))

    def line(self) -> bytes:
        end = self._data.find(b"\n", self.position)
        if end < 0 or end >= self._end > self.position:
            raise ValueError(f"it ends within a line at byte {self.position}")
        line = self._take(end - self.position)
        self.position += 1
        return line

    def frame(self) -> None:
        """Begins a frame, a group of complete instructions."""
        size = self.number("<Q")
        if self.position < self._end < len(self._data):
            raise ValueError("a frame begins within another one")
        if size > len(self._data) - self.position:
            raise ValueError(f"it ends before a frame of {size} bytes")
        self._end = self.position + size

    def protocol(self) -> None:
        if (version := self.number("<B")) > _NEWEST:
            raise ValueError(f"expected a protocol up to {_NEWEST}, got {version}")

    # -- the stack --

    def push(self, value: Any) -> None:
        self._stack.append(value)

    def make(self, value: Any) -> None:
        self._budget.spend(sys.getsizeof(value) + _HEADER)
        self._stack.append(value)

    def integer(self, value: int) -> None:
        if 0 <= value <= _LARGEST_SHARED:
            self._stack.append(value)
        else:
            self.make(value)

    def short(self) -> None:
        """Pushes an integer of two bytes; equal integers share one object."""
        value = self.number("<H")
        if value not in self._integers:
            self._budget.spend(_ENTRY + 2 * _HEADER)
            self._integers[value] = value
        self._stack.append(self._integers[value])

    def pop(self) -> Any:
        if len(self._stack) <= self._bottom:
            raise ValueError("it takes an object that it has not made")
        return self._stack.pop()

    def top(self) -> Any:
        if len(self._stack) <= self._bottom:
            raise ValueError("it looks at an object that it has not made")
        return self._stack[-1]

    def discard(self) -> None:
        if len(self._stack) > self._bottom:
            self._stack.pop()
        else:
            self.pop_to_mark()

    def mark(self) -> None:
        self._marks.append(self._bottom)
        self._bottom = len(self._stack)
        if len(self._marks) > self._deepest:
            self._budget.spend(5 * _SLOT * (len(self._marks) - self._deepest))
            self._deepest = len(self._marks)

    def pop_to_mark(self) -> list[Any]:
        """Removes and returns all objects above the last mark, and the mark."""
        if not self._marks:
            raise ValueError("it takes a mark that it has not made")
        count = len(self._stack) - self._bottom
        if count > self._largest:
            self._budget.spend(_SLOT * (count - self._largest))
            self._largest = count
        values = self._stack[self._bottom :]
        del self._stack[self._bottom :]
        self._bottom = self._marks.pop()
        return values

    def last(self, count: int) -> tuple[Any, ...]:
        if len(self._stack) - self._bottom < count:
            raise ValueError("it takes objects that it has not made")
        values = tuple(self._stack[-count:])
        del self._stack[-count:]
        return values

    # -- the memo --

    def keep(self, index: int) -> None:
        # Pickles number their memo entries, and each takes an instruction.
        if index > self.position:
            raise ValueError(f"it remembers an object as number {index}")
        missing = index + 1 - len(self.memo)
        if missing > 0:
            self._budget.spend(_SLOT * missing)
            self.memo.extend([None] * missing)
        self.memo[index] = self.top()

    def recall(self, index: int) -> None:
        if index >= len(self.memo):
            raise ValueError(f"it asks for number {index} of {len(self.memo)} objects")
        self.push(self.memo[index])

    # -- containers --

    def extend(self, values: list[Any]) -> None:
        target = self.top()
        if type(target) is not list:
            raise ValueError(f"it appends to a {type(target).__name__}")
        self._budget.spend(_SLOT * len(values))
        target.extend(values)

    def add(self, values: list[Any]) -> None:
        target = self.top()
        if type(target) is not StoredSet:
            raise ValueError(f"it adds members to a {type(target).__name__}")
        self._budget.spend(_SLOT * len(values))
        target.members.extend(values)

    def update(self, values: list[Any]) -> None:
        target = self.top()
        if type(target) is not dict or len(values) % 2:
            raise ValueError(f"it adds {len(values)} keys and values to a {type(target).__name__}")
        self._budget.spend(_ENTRY * (len(values) // 2))
        for position in range(0, len(values), 2):
            key = _require_plain_hash(values[position])
            if key in target:
                raise ValueError(f"a dict has the key {key!r} twice")
            target[key] = values[position + 1]

    def new_dict(self, values: list[Any]) -> None:
        self.make({})
        self.update(values)

    def new_set(self, values: list[Any]) -> None:
        self._budget.spend(150)
        self.push(StoredSet([]))
        self.add(values)

    # -- replacements of names --

    def name(self, module: Any, name: Any) -> None:
        if (type(module), type(name)) != (str, str):
            raise ValueError("a name that is no text")
        if (module, name) not in self._parts:
            raise Refused(f"{module}.{name}"[:200])
        self.push(self._parts[module, name])

    def persistent(self, pid: Any) -> None:
        self.push(self._persistent(pid))

    def call(self) -> None:
        part, arguments = self.last(2)
        if type(part) is not Part:
            raise ValueError(f"it calls a {type(part).__name__}")
        self.push(part(arguments, self._budget))

    def new(self) -> None:
        """Creates an object of a class, without its state."""
        self._budget.spend(4 * _ENTRY)
        self.push(new_csr(*self.last(2)))

    def build(self) -> None:
        state, target = self.pop(), self.top()
        if type(target) not in (StoredArray, StoredDtype, StoredCSR):
            raise ValueError(f"it gives a state to a {type(target).__name__}")
        target.build(state, self._budget)


def _require_plain_hash(key: Any) -> Any:
    """Returns a key whose hash is cheap; deeply nested tuples would crash the process."""
    parts = key if type(key) is tuple else (key,)
    if not all(type(part) in (str, bytes, int, float, bool, type(None)) for part in parts):
        raise ValueError(f"a dict has a {type(key).__name__} of others as a key")
    return key


def _matched(pattern: re.Pattern[bytes], text: bytes) -> bytes:
    match = pattern.fullmatch(text)
    if match is None:
        raise ValueError(f"expected a number, got {text[:40]!r}")
    return match["number"]


def _long(data: bytes) -> int:
    if len(data) > 9:  # These are 64 bits and a byte for the sign.
        raise ValueError(f"expected integers of 64 bits, got one of {len(data)} bytes")
    return int.from_bytes(data, "little", signed=True)


def _index(machine: _Machine) -> int:
    """Returns the number of an object in the memo, written as a line."""
    return int(_matched(_INDEX, machine.line()))


def _whole_line(machine: _Machine) -> None:
    line = machine.line()
    if line in (b"00", b"01"):
        machine.push(line == b"01")
    else:
        machine.integer(int(_matched(_WHOLE, line)))


def _float_line(machine: _Machine) -> None:
    machine.make(float(_matched(_FLOAT, machine.line())))


def _quoted_line(machine: _Machine) -> None:
    line = machine.line()
    if len(line) < 2 or line[:1] not in (b"'", b'"') or line[-1:] != line[:1]:
        raise ValueError("expected a string in quotes")
    for match in _ESCAPED.finditer(line):
        if match[1] is None:
            raise ValueError(f"expected an escape as Python 2 writes it at {match.start()}")
    machine.make(codecs.escape_decode(line[1:-1])[0].decode("latin1"))


def _name_line(machine: _Machine) -> None:
    module, name = machine.line().decode(), machine.line().decode()
    machine.name(module, name)


def _refuse(message: str) -> Callable[[_Machine], None]:
    def refuse(machine: _Machine) -> None:
        raise ValueError(message)

    return refuse


def _refuse_persistent(pid: Any) -> Any:
    text = repr(pid) if isinstance(pid, str) else f"of a {type(pid).__name__}"
    raise Refused(f"the persistent object {text[:80]}")


def _read(
    read: str, format: str, decode: Callable[[Any], Any], store: str = "make"
) -> Callable[[_Machine], None]:
    """Reads a number or counted bytes, and pushes their value."""
    return lambda machine: getattr(machine, store)(decode(getattr(machine, read)(format)))


_LATIN1 = partial(str, encoding="latin1")
_UTF8 = partial(str, encoding="utf-8", errors="surrogatepass")

_STEPS: dict[bytes, Callable[[_Machine], object]] = {
    b"\x80": _Machine.protocol,
    b"\x95": _Machine.frame,
    # Values.
    b"N": lambda m: m.push(None),
    b"\x88": lambda m: m.push(True),
    b"\x89": lambda m: m.push(False),
    b"I": _whole_line,
    b"L": _whole_line,
    b"K": lambda m: m.push(m.number("<B")),
    b"M": _Machine.short,
    b"J": lambda m: m.integer(m.number("<i")),
    b"\x8a": _read("counted", "<B", _long, "integer"),
    b"\x8b": _read("counted", "<i", _long, "integer"),
    b"F": _float_line,
    b"G": _read("number", ">d", float),
    b"S": _quoted_line,
    b"U": _read("counted", "<B", _LATIN1),
    b"T": _read("counted", "<i", _LATIN1),
    b"V": lambda m: m.make(m.line().decode("raw-unicode-escape")),
    b"\x8c": _read("counted", "<B", _UTF8),
    b"X": _read("counted", "<I", _UTF8),
    b"\x8d": _read("counted", "<Q", _UTF8),
    b"C": _read("counted", "<B", bytes),
    b"B": _read("counted", "<I", bytes),
    b"\x8e": _read("counted", "<Q", bytes),
    b"\x96": _read("counted", "<Q", bytes),
    # Containers.
    b")": lambda m: m.push(()),
    b"\x85": lambda m: m.make(m.last(1)),
    b"\x86": lambda m: m.make(m.last(2)),
    b"\x87": lambda m: m.make(m.last(3)),
    b"t": lambda m: m.make(tuple(m.pop_to_mark())),
    b"]": lambda m: m.make([]),
    b"l": lambda m: m.make(m.pop_to_mark()),
    b"a": lambda m: m.extend([m.pop()]),
    b"e": lambda m: m.extend(m.pop_to_mark()),
    b"}": lambda m: m.make({}),
    b"d": lambda m: m.new_dict(m.pop_to_mark()),
    b"s": lambda m: m.update(list(m.last(2))),
    b"u": lambda m: m.update(m.pop_to_mark()),
    b"\x8f": lambda m: m.new_set([]),
    b"\x90": lambda m: m.add(m.pop_to_mark()),
    b"\x91": lambda m: m.new_set(m.pop_to_mark()),
    # The stack and the memo.
    b"(": _Machine.mark,
    b"0": _Machine.discard,
    b"1": _Machine.pop_to_mark,
    b"2": lambda m: m.push(m.top()),
    b"p": lambda m: m.keep(_index(m)),
    b"q": lambda m: m.keep(m.number("<B")),
    b"r": lambda m: m.keep(m.number("<I")),
    b"\x94": lambda m: m.keep(len(m.memo)),
    b"g": lambda m: m.recall(_index(m)),
    b"h": lambda m: m.recall(m.number("<B")),
    b"j": lambda m: m.recall(m.number("<I")),
    # Replacements of names.
    b"c": _name_line,
    b"\x93": lambda m: m.name(*m.last(2)),
    b"R": _Machine.call,
    b"\x81": _Machine.new,
    b"b": _Machine.build,
    b"P": lambda m: m.persistent(m.line().decode("latin1")),
    b"Q": lambda m: m.persistent(m.pop()),
    # Not used by data files.
    **dict.fromkeys((b"i", b"o", b"\x92"), _refuse("it has an object of a class")),
    **dict.fromkeys((b"\x82", b"\x83", b"\x84"), _refuse("it has a name from a registry")),
    **dict.fromkeys((b"\x97", b"\x98"), _refuse("it has a buffer outside of the file")),
}


_STOP = ord(".")
_UNKNOWN = _refuse("a byte is no instruction of a pickle")
_STEPS_BY_CODE = [_STEPS.get(bytes([code]), _UNKNOWN) for code in range(256)]
