"""Values of SIMT code: a number in each lane, and arrays in global and shared memory.

They are thin handles: their methods call the ``Warp`` that they belong to, which records the
instructions.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp

if TYPE_CHECKING:
    from pallas_kernels.simt.warp import Warp

# Kinds of a Value; entries of uint8 and uint16 arrays are loaded as i32, floats of 16 bits as f32.
KINDS = ("bool", "i32", "u32", "i64", "f32")
_KIND_OF_DTYPE = {
    "int32": "i32",
    "int64": "i64",
    "uint8": "i32",
    "uint16": "i32",
    "uint32": "u32",
    "float32": "f32",
    "bfloat16": "f32",
    "float16": "f32",
}


class Value:
    """A number in each lane, with the operators of its kind; mixes with Python numbers."""

    __slots__ = ("data", "kind", "warp")

    def __init__(self, warp: Warp, kind: str, data: Any):
        self.warp, self.kind, self.data = warp, kind, data

    def __bool__(self):
        raise TypeError("a Value is known on the device only: use Warp.when or select")

    def _binary(self, op: str, other: Any, swapped: bool = False) -> Value:
        a, b = self.warp.promote(self, other)
        return self.warp.binary(op, *((b, a) if swapped else (a, b)))

    def _compare(self, op: str, other: Any) -> Value:
        return self.warp.compare(op, *self.warp.promote(self, other))

    def __add__(self, other):
        return self._binary("add", other)

    def __sub__(self, other):
        return self._binary("sub", other)

    def __rsub__(self, other):
        return self._binary("sub", other, swapped=True)

    def __mul__(self, other):
        return self._binary("mul", other)

    def __truediv__(self, other):
        return self * self.warp.reciprocal(other)

    def __and__(self, other):
        return self._binary("and", other)

    def __or__(self, other):
        return self._binary("or", other)

    def __xor__(self, other):
        return self._binary("xor", other)

    def __lshift__(self, other):
        return self._binary("shl", other)

    def __rlshift__(self, other):
        return self._binary("shl", other, swapped=True)

    def __rshift__(self, other):
        return self._binary("shr", other)

    def __floordiv__(self, other):
        """Returns the quotient of integers that are not negative."""
        if isinstance(other, int) and other & (other - 1) == 0:
            return self >> (other.bit_length() - 1)
        return self._binary("div", other)

    def __mod__(self, other):
        """Returns the remainder of integers that are not negative."""
        if isinstance(other, int) and other & (other - 1) == 0:
            return self & (other - 1)
        return self._binary("rem", other)

    __radd__, __rmul__, __rand__, __ror__ = __add__, __mul__, __and__, __or__

    def __invert__(self):
        return self ^ (True if self.kind == "bool" else -1)

    def __lt__(self, other):
        return self._compare("lt", other)

    def __le__(self, other):
        return self._compare("le", other)

    def __gt__(self, other):
        return self._compare("gt", other)

    def __ge__(self, other):
        return self._compare("ge", other)

    # Equality is elementwise, as of arrays; a Value is no key of a dictionary.
    def __eq__(self, other):  # pyrefly: ignore[bad-override]
        return self._compare("eq", other)

    def __ne__(self, other):  # pyrefly: ignore[bad-override]
        return self._compare("ne", other)

    __hash__ = None  # pyrefly: ignore[bad-override]

    def at_most(self, other) -> Value:
        """Returns the smaller of two: the number, but at most the other."""
        return self._binary("min", other)

    def at_least(self, other) -> Value:
        """Returns the larger of two: the number, but at least the other."""
        return self._binary("max", other)

    def to(self, kind: str) -> Value:
        """Converts to another kind: numbers by their value, ``bool`` to 0 and 1."""
        return self if kind == self.kind else self.warp.convert(self, kind)

    def bits(self, kind: str) -> Value:
        """Reinterprets the same 32 bits as another kind."""
        return self if kind == self.kind else self.warp.bitcast(self, kind)


def fold_in_pairs(values: Iterable[Value], operation: Callable[[Value, Value], Value]) -> Value:
    """Reduces values by an operation on neighbours first, which makes the chain short."""
    values = list(values)
    while len(values) > 1:
        odd = values[len(values) // 2 * 2 :]
        pairs = zip(values[::2], values[1::2], strict=False)
        values = [operation(a, b) for a, b in pairs] + odd
    return values[0]


@dataclass(frozen=True)
class Array:
    """An array in global memory, or one in shared memory of a block, or a row of either.

    Indices count entries.

    Attributes:
      warp: the warp whose lanes read and write it.
      pointer: address of its first entry.
      shape: shape of the array.
      dtype: dtype of its entries.
      constant: whether nothing writes it while the kernel runs.
      streamed: whether loads, of constant arrays, are evicted first from the caches.
      strides: entries from one to the next along each axis, or None if the array is contiguous.
    """

    warp: Warp
    pointer: Any
    shape: tuple[int, ...]
    dtype: Any
    constant: bool
    streamed: bool = False
    strides: tuple[int, ...] | None = None

    @property
    def itemsize(self) -> int:
        """Bytes of an entry."""
        return jnp.dtype(self.dtype).itemsize

    @property
    def kind(self) -> str:
        """Kind of the values that loads return."""
        return _KIND_OF_DTYPE[jnp.dtype(self.dtype).name]

    def row(self, number: Value) -> Array:
        """Returns one row of a matrix; its offset has 64 bits."""
        entries = math.prod(self.shape[1:]) if self.strides is None else self.strides[0]
        pointer = self.warp.advance(self.pointer, number, self.itemsize * entries)
        strides = None if self.strides is None else self.strides[1:]
        return dataclasses.replace(self, pointer=pointer, shape=self.shape[1:], strides=strides)

    def viewed(self, dtype: Any) -> Array:
        """Returns the same bytes of a contiguous array as entries of another dtype."""
        *outer, last = self.shape
        entries = last * self.itemsize // jnp.dtype(dtype).itemsize
        return dataclasses.replace(self, shape=(*outer, entries), dtype=dtype)

    def shifted(self, entries: Value) -> Array:
        """Returns the array from a later entry on, ``entries`` further; rows keep their length."""
        pointer = self.warp.advance(self.pointer, entries, self.itemsize)
        return dataclasses.replace(self, pointer=pointer)

    def send(self, rank: Any, index: Any, values: Sequence[Value], signals: Signals, step) -> None:
        """Writes entries into the same array of another block of the cluster.

        The bytes are counted in the receiving block's signal of the step. They are visible after a
        wait for the signal.

        Args:
          rank: number of the receiving block in the cluster, which may be this block's own.
          index: index of the first entry, each of four bytes.
          values: one, two or four neighbours, whose bytes are aligned together.
          signals: the signals of the receiving block, in which the bytes are counted.
          step: step of the pipeline that the entries belong to, which selects the signal.
        """
        warp, (number, _) = self.warp, signals.slot_and_phase(step)
        place = warp.integer(index), self.pack(*values), warp.integer(rank)
        warp.send(self.pointer, *place, signals.array.pointer, number)

    def copy_from(
        self, number: Any, source: Array, at: Any, nbytes: int = 16, real: Value | None = None
    ) -> None:
        """Starts an asynchronous copy (``cp.async``) from global memory into this shared array.

        After ``Warp.wait_for_copies`` the copy is visible to this lane only, and after a barrier
        also to other lanes.

        Args:
          number: position to write to, in units of ``nbytes``.
          source: array in global memory that is read.
          at: position to read from, in units of ``nbytes``.
          nbytes: bytes to copy: 4, 8 or 16.
          real: where it is false, zeros are written and the source is not read.
        """
        to, at = self.warp.integer(number), self.warp.integer(at)
        self.warp.copy(self.pointer, to, source.pointer, at, nbytes, real)

    def bulk_copy_from(
        self, number: Value, source: Array, at: Value, count: Any, signals: Signals, step
    ):
        """Starts a bulk copy from global memory into this array in shared memory.

        The bytes are counted in the signal of the step. They are visible after a wait for the
        signal.

        Args:
          number: position to write to, in units of 16 bytes.
          source: array in global memory that is read.
          at: position to read from, in units of 16 bytes.
          count: how many units of 16 bytes are copied.
          signals: the block's signals, in which the bytes are counted.
          step: step of the pipeline that the copy belongs to, which selects the signal.
        """
        warp, (signal, _) = self.warp, signals.slot_and_phase(step)
        place = self.pointer, number, source.pointer, at, warp.integer(count)
        warp.bulk_copy(*place, signals.array.pointer, signal)

    def load_words(self, index: Any, entries: int = 1) -> list[Value]:
        """Loads neighbouring entries, aligned together, packed in words of 32 bits."""
        index = self.warp.integer(index)
        nbytes = entries * self.itemsize
        access = (self.constant, self.streamed)
        return self.warp.read(self.pointer, index, self.itemsize, nbytes, *access)

    def load_matrices(self, index: Value) -> list[Value]:
        """Loads four matrices of 8 x 8 entries of 16 bits from shared memory for ``Warp.mma``.

        Lane 8 i + r passes the index at which row r of matrix i begins. Lane ``4 g + q`` gets a
        word of each matrix: columns ``2 q`` and ``2 q + 1`` of row ``g``. All lanes take part.
        """
        return self.warp.read_matrices(self.pointer, index)

    def load(self, index: Any) -> Value:
        """Loads one entry, widened to 32 bits if it is narrower."""
        return self.unpack(self.load_words(index), 0)

    def unpack(self, words: Sequence[Value], entry: int) -> Value:
        """Returns entry ``entry`` of the words that ``load_words`` loaded."""
        if self.itemsize == 8:
            low, high = words[2 * entry].to("i64"), words[2 * entry + 1].to("i64")
            return high << 32 | low
        if self.itemsize == 4:
            return words[entry].bits(self.kind)
        per_word = 4 // self.itemsize
        word, width = words[entry // per_word], 8 * self.itemsize
        at = entry % per_word
        if jnp.dtype(self.dtype) == jnp.bfloat16:
            return (word << 16 if at == 0 else word & 0xFFFF0000).bits("f32")
        part = (word >> (width * at) if at else word) & ((1 << width) - 1)
        return self.warp.half_to_float(part) if self.kind == "f32" else part.bits("i32")

    def store_words(self, index: Any, words: Sequence[Value], entries: int = 1) -> None:
        """Stores neighbouring entries, packed in words as ``load_words`` returns them."""
        index = self.warp.integer(index)
        self.warp.write(self.pointer, index, self.itemsize, words, entries * self.itemsize)

    def store(self, index: Any, *values: Value) -> None:
        """Stores neighbouring entries, whose bytes are aligned together; floats are rounded."""
        self.store_words(index, self.pack(*values), len(values))

    def pack(self, *values: Value) -> list[Value]:
        """Packs neighbouring entries into words, as ``load_words`` returns them.

        Floats are rounded.
        """
        if self.itemsize != 2:
            return [value.bits("u32") for value in values]
        lows, highs = values[::2], values[1::2] or (self.warp.constant(self.kind, 0),)
        return [self._pack_pair(*pair) for pair in zip(lows, highs, strict=True)]

    def _pack_pair(self, low: Value, high: Value) -> Value:
        if self.kind != "f32":
            return low.bits("u32") | high.bits("u32") << 16
        if jnp.dtype(self.dtype) != jnp.bfloat16:
            return self.warp.to_float16(low, high)
        return self.warp.to_bfloat16(low, high)

    def prefetch(self, index: Any) -> None:
        """Starts to load an entry of global memory into the second-level cache."""
        self.warp.prefetch(self.pointer, self.warp.integer(index), self.itemsize)

    def add(self, index: Any, *values: Value) -> None:
        """Adds to one float32 entry, or to four that are aligned together, atomically."""
        self.warp.atomic_add(self.pointer, self.warp.integer(index), values)


@dataclass(frozen=True)
class Shared:
    """32-bit words of shared memory that belong to one warp.

    Attributes:
      warp: the warp that they belong to.
      pointer: address of the first word.
      kind: kind of the values, f32 or i32.
    """

    warp: Warp
    pointer: Any
    kind: str

    def load(self, index: Any) -> Value:
        """Loads the word at an index."""
        return self.warp.read_shared(self.pointer, self.warp.integer(index), self.kind)

    def store(self, index: Any, value: Value) -> None:
        """Stores a value at an index."""
        self.warp.write_shared(self.pointer, self.warp.integer(index), value)


@dataclass(frozen=True)
class Signals:
    """A ring of mbarriers, through which warps wait for steps of a pipeline.

    Step i uses signal i modulo their number. The signal of a step completes when it has had as many
    arrivals as it was initialised for, and all bytes that were announced with them have arrived
    from any block of the cluster. Writes before an arrival are visible after a wait.

    Attributes:
      array: [signals, 2] words of 32 bits in the shared memory of the block.
    """

    array: Array

    def init(self, times: int) -> None:
        """Initialises all signals for ``times`` arrivals.

        One lane of the block calls it, before ``Warp.cluster_arrive``.
        """
        for number in range(self.array.shape[0]):
            self.array.warp.init_signal(self.array.pointer, self.array.warp.i32(number), times)

    def arrive(self, step: Value, nbytes: Value | None = None) -> None:
        """Arrives at the signal of a step, and optionally announces bytes to wait for.

        One lane of a warp calls it.
        """
        number, _ = self.slot_and_phase(step)
        self.array.warp.arrive_at_signal(self.array.pointer, number, nbytes)

    def wait(self, step: Value) -> None:
        """Waits for the signal of a step.

        A signal must not complete again before the step has been waited for.
        """
        self.array.warp.wait_for_signal(self.array.pointer, *self.slot_and_phase(step))

    def slot_and_phase(self, step: Value) -> tuple[Value, Value]:
        """Returns which signal a step uses, and how often it has completed for earlier steps."""
        size = self.array.shape[0]
        return step % size, step // size
