"""What warps do with tiles of 64 rows beside the tensor cores' products, in SIMT code.

A tile lies in chunks of 64 columns, as the tensor cores take them: rows of 128 bytes, whose pieces
of 16 bytes change places with the row. The chunks are neighbours in a ring.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import jax.numpy as jnp

from pallas_kernels._values import Array, Value
from pallas_kernels._warp import LANES, Warp

ROWS, COLUMNS = 64, 64  # of a chunk
_WARP_ROWS, _HALF = 16, 8  # of a tile, that a warp selects from, and that it writes at a time
_PIECES = 8  # of a row of a chunk, 16 bytes each
_PIECE = COLUMNS // _PIECES
_SLAB = 16  # columns that a product of matrices takes
_QUAD = 4  # lanes that have a row


@dataclass(frozen=True)
class LoadChunk:
    """Begins to copy a chunk of rows into the ring; behind the last row the last comes again.

    Attributes:
      columns: the first of the chunk.
    """

    columns: int

    def __call__(self, warp: Warp, first_row: Value, x: Array, chunk: Array) -> None:
        row, piece = warp.thread // _PIECES, warp.thread % _PIECES
        step = warp.threads // _PIECES
        to = row * _PIECES + (piece ^ (row % _PIECES))
        for i in range(0, ROWS, step):
            source = x.row((first_row + row + i).least(x.shape[0] - 1))
            chunk.copy_from(to + i * _PIECES, source, piece + self.columns // _PIECE)


# Searches guess so often before they halve.
_GUESSES = 8
# Words of comparisons that are added up before the tensor cores do the rest.
_TOGETHER = 8
_INTEGER = 8388608.0  # 2^23, which has integers that are added to it in its lowest bits


@dataclass(frozen=True)
class Format:
    """Floats of 16 bits.

    Attributes:
      dtype: bfloat16 or float16.
      mantissa: bits.
      bias: of the exponent.
      infinity: its bits.
    """

    dtype: Any
    mantissa: int
    bias: int
    infinity: int

    @classmethod
    def of(cls, dtype: Any) -> Format:
        """That of a dtype."""
        if jnp.dtype(dtype) == jnp.bfloat16:
            return cls(dtype, 7, 127, 0x7F80)
        return cls(dtype, 10, 15, 0x7C00)

    @property
    def ones(self) -> int:
        """A word of two."""
        return (self.bias << self.mantissa) * 0x10001

    def keys(self, bits: Value) -> Value:
        """Integers that order like the numbers, of 16 bits with their sign; and back."""
        return bits ^ (bits >> 31 & 0x7FFF)

    def to_float(self, warp: Warp, bits: Value) -> Value:
        """The number in the low bits of an i32."""
        if self.mantissa == 7:
            return (bits << 16).bits("f32")
        return warp.half_to_float(bits.bits("u32") & 0xFFFF)

    def of_float(self, warp: Warp, number: Value) -> Value:
        """A number close to a float32, its sign spread over the higher bits of an i32."""
        if self.mantissa == 7:
            return number.bits("i32") >> 16
        return (warp.to_float16(number) << 16).bits("i32") >> 16


@dataclass(frozen=True)
class KeepLargest:
    """Writes the k largest entries of each row of a tile, and their columns.

    The accumulators' way to lay out a matrix is also how products of matrices by a warp take
    theirs: the lanes 4 g to 4 g + 3 have the rows g and g + 8, two columns of eight in a word. So
    what compares words, two entries at a time, goes on as an operand: times ones it counts the
    entries that reach a threshold; times powers of two it becomes a mask of bits, and the lanes
    trade columns on the way.

    Attributes:
      width: of a row, a multiple of 64 up to 256.
      k: entries kept.
      by_magnitude: whether entries rank by that.
      format: of the entries.
      ring: chunks of the ring.
    """

    width: int
    k: int
    by_magnitude: bool
    format: Format
    ring: int

    def __call__(
        self,
        warp: Warp,
        first: Value,
        first_row: Value,
        chunks: Array,
        kept: Array,
        values: Array,
        columns: Array,
    ) -> None:
        """All 16 rows of each warp.

        Args:
          warp: of a warpgroup.
          first: chunk of the ring, with the first 64 columns.
          first_row: of the tile.
          chunks: the ring, [ring, 64, 64].
          kept: shared memory for columns, [32, k].
          values: [rows, k], the result.
          columns: likewise.
        """
        words = self._load(warp, first, chunks)
        marks = self._choose(warp, words)
        ends = _ends(warp, marks)
        # Half of the rows at a time, for which there is room.
        for half in range(2):
            self._list(warp, marks[half], ends[half], kept)
            warp.sync()
            self._write(warp, half, first, first_row, chunks, kept, values, columns)
            warp.sync()

    # -- entries in registers ------------------------------------------------------------------

    def _load(self, warp, first, chunks) -> list[list[Value]]:
        """Words of the lane's two rows, each with two of every eight columns."""
        matrix, row = warp.lane // 8, warp.lane % 8
        # Of a slab: the upper rows, the lower rows, and both of the next eight columns.
        in_tile = warp.thread // LANES * _WARP_ROWS + matrix % 2 * 8 + row
        within = [
            in_tile * COLUMNS + (row ^ (matrix // 2 + piece)) * _PIECE
            for piece in range(0, _PIECES, 2)
        ]
        bases = [self._chunk(warp, first, n) for n in range(self.width // COLUMNS)]
        slabs = [
            chunks.load_matrices(base + place) for base, place in itertools.product(bases, within)
        ]
        rows = [[word for slab in slabs for word in slab[half::2]] for half in range(2)]
        if self.by_magnitude:
            rows = [[word & 0x7FFF7FFF for word in words] for words in rows]
        return rows

    def _chunk(self, warp, first, number) -> Value:
        """Where a chunk begins, in entries."""
        at = first + number
        if self.ring % (self.width // COLUMNS):
            at = warp.select(at >= self.ring, at - self.ring, at)
        return at * (ROWS * COLUMNS)

    def _slabs(self, words) -> list[list[Value]]:
        """Operands of products, 16 rows by 16 columns each."""
        upper, lower = words
        return [[upper[i], lower[i], upper[i + 1], lower[i + 1]] for i in range(0, len(upper), 2)]

    def _map(self, warp, op, words, *others) -> list[list[Value]]:
        """An operation on all words, with a word or two for each row."""
        return [
            [warp.pairwise(op, self.format.dtype, word, *(o[i] for o in others)) for word in row]
            for i, row in enumerate(words)
        ]

    def _sums(self, warp, words, squared=False) -> list[Value]:
        """Over the rows, of floats or of their squares."""
        ones = [warp.constant("u32", self.format.ones)] * 2
        sums = [warp.f32(0.0)] * 4

        def add(total, word):
            if squared:
                return warp.pairwise("fma", self.format.dtype, word, word, total)
            return warp.pairwise("add", self.format.dtype, total, word)

        slabs = self._slabs(words)
        for i in range(0, len(slabs), _TOGETHER):
            rest = slabs[i : i + _TOGETHER]
            together = [warp.constant("u32", 0)] * _QUAD if squared else rest.pop(0)
            for slab in rest:
                together = [add(*pair) for pair in zip(together, slab, strict=True)]
            sums = warp.mma(together, ones, sums, self.format.dtype)
        return [sums[0], sums[2]]

    # -- which of them are kept ----------------------------------------------------------------

    def _choose(self, warp, words) -> list[list[Value]]:
        """Bits of the lane's part of its two rows, 32 columns in a word.

        A lane's part are a quarter of the columns, side by side.
        """
        sums = self._sums(warp, words)
        words = self._without_nan(warp, words, sums)
        keys, reach = self._search(warp, words, sums)
        thresholds = [_twice(self.format.keys(key)) for key in keys]
        marks = self._marks(warp, self._map(warp, "ge", words, thresholds))
        surplus = [r.bits("i32") - _bits_of(self.k + _INTEGER) for r in reach]

        def drop(marks):
            above = self._marks(warp, self._map(warp, "gt", words, thresholds))
            return _drop_last_equals(warp, marks, above, surplus)

        any_surplus = warp.ballot((surplus[0] | surplus[1]) != 0) != 0
        return warp.change(any_surplus, marks, drop)

    def _without_nan(self, warp, words, sums) -> list[list[Value]]:
        """NaN ranks with +inf. Sums tell where there may be any."""
        infinities = [warp.constant("u32", self.format.infinity * 0x10001)] * 2
        # Nothing that is finite differs from itself.
        odd = [s - s != 0.0 for s in sums]
        any_odd = warp.ballot(odd[0] | odd[1]) != 0
        return warp.change(any_odd, words, lambda w: self._map(warp, "min", w, infinities))

    def _search(self, warp, words, sums) -> tuple[list[Value], list[Value]]:
        """Keys that at least k entries reach: exactly k, or fewer the next key; and how many do.

        What is counted has 2^23 added to it.
        """
        lowest, highest = self._range()
        full = warp.f32(self.width + _INTEGER)
        wanted = self.k + _INTEGER
        guesses, spacings = self._first_guesses(warp, words, sums)
        zero = warp.i32(0)
        start = [(warp.i32(lowest), warp.i32(highest), full, guess) for guess in guesses]

        def open_(row):
            low, high, reach, _ = row
            return (high - low > 1) & (reach != wanted)

        def goes_on(carry):
            rows, _ = carry
            return warp.ballot(open_(rows[0]) | open_(rows[1])) != 0

        def narrow(carry):
            rows, step = carry
            middles = [
                warp.select(
                    (step < _GUESSES) & (guess > low) & (guess < high),
                    guess,
                    low + ((high - low) >> 1),
                )
                for low, high, _, guess in rows
            ]
            bits = [self.format.keys(middle) for middle in middles]
            thresholds = [_twice(b) for b in bits]
            counts = self._sums(warp, self._map(warp, "ge", words, thresholds))
            after = []
            for row, middle, b, count, spacing in zip(
                rows, middles, bits, counts, spacings, strict=True
            ):
                low, high, reach, _ = row
                count = count + _INTEGER
                is_open, enough = open_(row), count >= wanted
                number = self.format.to_float(warp, b)
                guess = warp.fma(count - wanted, spacing, number)
                after.append(
                    (
                        warp.select(is_open & enough, middle, low),
                        warp.select(is_open & ~enough, middle, high),
                        warp.select(is_open & enough, count, reach),
                        self.format.keys(self.format.of_float(warp, guess)),
                    )
                )
            return after, step + 1

        rows, _ = warp.repeat(goes_on, narrow, (start, zero))
        return [row[0] for row in rows], [row[2] for row in rows]

    def _range(self) -> tuple[int, int]:
        """A key that all entries reach, and one that none does."""
        infinity = self.format.infinity
        return 0 if self.by_magnitude else -1 - infinity, infinity + 1

    def _first_guesses(self, warp, words, sums) -> tuple[list[Value], list[Value]]:
        """Where rows of a bell curve have it, as keys; and how far apart entries lie there."""
        share = (self.k - 0.5) / self.width / (2 if self.by_magnitude else 1)
        bell = NormalDist()
        quantile = bell.inv_cdf(1 - share)
        density = self.width * bell.pdf(quantile) * (2 if self.by_magnitude else 1)
        squares = self._sums(warp, words, squared=True)
        guesses, spacings = [], []
        for total, square in zip(sums, squares, strict=True):
            mean = warp.f32(0.0) if self.by_magnitude else total * (1 / self.width)
            variance = warp.fma(mean * -1.0, mean, square * (1 / self.width)).most(1e-30)
            deviation = variance * warp.rsqrt(variance)
            guess = warp.fma(deviation, warp.f32(quantile), mean)
            guesses.append(self.format.keys(self.format.of_float(warp, guess)))
            spacings.append(deviation * (1 / density))
        return guesses, spacings

    def _marks(self, warp, words) -> list[list[Value]]:
        """Words of ones and zeros as bits, those of the lane's part of its two rows."""
        slabs = self._slabs(words)
        own = len(slabs) // _QUAD
        powers = self._powers(warp)
        zero = warp.constant("u32", 0)
        matrices = {}
        sums = [[warp.f32(0.0)] * 4 for _ in range(0, own, 2)]
        for number, slab in enumerate(slabs):
            # Column n of the product, of eight, goes to lane n // 2 of each quad.
            quarter, part = divmod(number, own)
            to = 2 * quarter + part % 2
            if to not in matrices:
                here = warp.lane // _QUAD == to
                matrices[to] = [warp.select(here, power, zero) for power in powers]
            sums[part // 2] = warp.mma(slab, matrices[to], sums[part // 2], self.format.dtype)
        bits = [[(s + _INTEGER).bits("u32") for s in four] for four in sums]
        return [[four[i] & 0xFFFF | four[i + 1] << 16 for four in bits] for i in (0, 2)]

    def _powers(self, warp) -> list[Value]:
        """Those of two that the lane has of a matrix whose rows begin with 1, 2, 4, ..."""
        exponent = (warp.lane % _QUAD * 2 + self.format.bias).bits("u32") << self.format.mantissa
        step = 1 << self.format.mantissa
        first = exponent | (exponent + step) << 16
        return [first, first + 8 * step * 0x10001]

    # -- the results ---------------------------------------------------------------------------

    def _list(self, warp, marks, end, kept) -> None:
        """Columns whose bits are set, ascending, of the lane's upper or lower row."""
        group, quarter = warp.lane // _QUAD, warp.lane % _QUAD
        first_column = quarter * (self.width // _QUAD)
        last = (warp.thread // LANES * _HALF + group) * self.k + end - 1
        streams = []
        for i in reversed(range(len(marks))):
            streams.append((marks[i], last, first_column + 32 * i))
            last = last - warp.population(marks[i])

        def any_left(carry):
            left, _ = carry
            together = left[0]
            for word in left[1:]:
                together = together | word
            return together != 0

        def take(carry):
            left, step = carry
            rest = []
            for word, (_, last, column) in zip(left, streams, strict=True):
                bit = warp.last_bit(word | 1)
                at, found = last - step, (column + bit).bits("u32")
                warp.when(word != 0, lambda a=at, f=found: kept.store_words(a, [f]))
                rest.append(word & ~(warp.constant("u32", 1) << bit.bits("u32")))
            return rest, step + 1

        warp.repeat(any_left, take, ([word for word, *_ in streams], warp.i32(0)))

    def _write(self, warp, half, first, first_row, chunks, kept, values, columns) -> None:
        """Copies the listed columns, and the entries that they name, as far as there are rows."""
        together = math.gcd(self.k, 8)
        warp_row = warp.thread // LANES * _WARP_ROWS + half * _HALF
        own = kept.shifted(warp.thread // LANES * (_HALF * self.k))
        to_values, to_columns = (a.row(first_row + warp_row) for a in (values, columns))
        rows = values.shape[0] - first_row - warp_row

        def copy(i):
            at = i * together
            row = at // self.k
            place = (warp_row + row) * COLUMNS
            turn = row * _PIECE

            def entry(column):
                chunk = self._chunk(warp, first, column // COLUMNS)
                return chunks.load_words(chunk + place + (column % COLUMNS ^ turn))[0]

            def store():
                words = own.load_words(at, together)
                entries = [entry(own.unpack(words, i)) for i in range(together)]
                pairs = itertools.zip_longest(entries[::2], entries[1::2])
                packed = [low if high is None else low | high << 16 for low, high in pairs]
                to_values.store_words(at, packed, together)
                to_columns.store_words(at, words, together)

            warp.when(row < rows, store)

        warp.strided(_HALF * self.k // together, copy)


def _twice(bits: Value) -> Value:
    """A word of two numbers alike, of one in the low bits of an i32."""
    return (bits & 0xFFFF | bits << 16).bits("u32")


def _bits_of(number: float) -> int:
    return int(jnp.float32(number).view(jnp.int32))


def _ends(warp: Warp, marks: Sequence[Sequence[Value]]) -> list[Value]:
    """How many bits are set in the lane's words and those of the lanes before, of each row."""
    counts = [_population(warp, words) for words in marks]
    both, quarter = counts[0] | counts[1] << 16, warp.lane % _QUAD
    for step in (1, 2):
        before = warp.shuffle(both, warp.lane - step)
        both = both + warp.select(quarter >= step, before, 0)
    return [both & 0xFFFF, both >> 16]


def _population(warp: Warp, words: Sequence[Value]) -> Value:
    return sum((warp.population(word) for word in words[1:]), warp.population(words[0]))


def _drop_last_equals(warp, marks, above, surplus) -> list[list[Value]]:
    """Without so many of the last entries, by column, that are marked and not above."""
    equals = [
        [m & ~a for m, a in zip(*pair, strict=True)] for pair in zip(marks, above, strict=True)
    ]
    ends, rest = _ends(warp, equals), []
    for words, same, end, count in zip(marks, equals, ends, surplus, strict=True):
        behind = warp.shuffle(end, warp.lane | _QUAD - 1) - end
        rest.append(_drop_last(warp, words, same, count - behind))
    return rest


def _drop_last(warp, words, candidates, count) -> list[Value]:
    """Without the last ``count`` of the candidates, or all of them."""
    left = list(zip(words, candidates, strict=True))

    def goes_on(carry):
        left, count = carry
        together = left[0][1]
        for _, candidates in left[1:]:
            together = together | candidates
        return (count > 0) & (together != 0)

    def drop(carry):
        left, count = carry
        rest, done = [], None
        for word, candidates in reversed(left):
            bit = warp.constant("u32", 1) << warp.last_bit(candidates | 1).bits("u32")
            bit = bit & candidates
            if done is not None:
                bit = warp.select(done, 0, bit)
            found = candidates != 0
            done = found if done is None else done | found
            rest.append((word & ~bit, candidates & ~bit))
        return rest[::-1], count - 1

    left, _ = warp.repeat(goes_on, drop, (left, count))
    return [word for word, _ in left]
