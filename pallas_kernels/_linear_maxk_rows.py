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
_WARP_ROWS = 8  # of a tile, that a warp selects from
SHARE = 4 * _WARP_ROWS  # of a warpgroup
_PIECES = 8  # of a row of a chunk, 16 bytes each
_PIECE = COLUMNS // _PIECES
_SLAB = 32  # columns that a product of matrices takes
_QUAD = 4  # lanes that have a row


# Searches guess so often before they halve. The next guess is for a few entries more than were
# counted too many, and somewhat less far than a bell curve has them: found by trying on such rows,
# where the last of eight searches ends after 5.5 steps on average, not 5.9.
_GUESSES = 8
_MORE, _NEARER = 0.15, 0.9
# Slabs that are added up before the tensor cores do the rest.
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


def kept_columns(width: int, k: int) -> int:
    """That a warpgroup which keeps k of this width has in shared memory."""
    return SHARE // _rounds(width) * k


def _rounds(width: int) -> int:
    return 1 if width <= _SLAB * _QUAD else 2


@dataclass(frozen=True)
class KeepLargest:
    """Writes the k largest entries of each row of half of a tile, and their columns.

    The accumulators' way to lay out a matrix is also how products of matrices by a warp take
    theirs: the lanes 4 g to 4 g + 3 have the rows g and g + 8, two columns of eight in a word. Both
    are of one row of the tile here, of which a product takes 32 columns. Words of two entries are
    operands as they are: times ones they give sums of the row. What compares them, and is added up
    to count the entries that reach a threshold, is one too: times powers of two it becomes a mask
    of bits, and the lanes trade columns on the way.

    Attributes:
      width: of a row, a multiple of 64 up to 256.
      k: entries kept.
      by_magnitude: whether entries rank by that.
      format: of the entries.
    """

    width: int
    k: int
    by_magnitude: bool
    format: Format

    @property
    def longer(self) -> int:
        """Lanes of four that have two words of bits, of neighbouring slabs; the others have one."""
        return max(0, self.width // _SLAB - _QUAD)

    @property
    def rounds(self) -> int:
        """In which rows are written: in each, a lane has a word of bits."""
        return _rounds(self.width)

    @property
    def together(self) -> int:
        """Rows of a warp that are written in a round."""
        return _WARP_ROWS // self.rounds

    def __call__(
        self,
        warp: Warp,
        first: Value,
        first_row: Value,
        half: Value,
        chunks: Array,
        kept: Array,
        values: Array,
        columns: Array,
    ) -> None:
        """All eight rows of each warp.

        Args:
          warp: of a warpgroup.
          first: chunk of the ring, with the first 64 columns.
          first_row: of the tile.
          half: of the tile, 0 or 1.
          chunks: the ring, [ring, 64, 64].
          kept: shared memory of the warpgroup for as many columns.
          values: [rows, k], the result.
          columns: likewise.
        """
        in_tile = half * SHARE + warp.thread // LANES * _WARP_ROWS
        words = self._load(warp, first, in_tile, chunks)
        marks = self._choose(warp, words)
        # What is made of the lane would take registers during the search; zero tells no compiler
        # that it is the same for all tiles.
        lane = warp.lane + (first_row >> 31)
        for number, bits in enumerate(self._deal(warp, lane, marks)):
            rows = in_tile + number * self.together
            self._list(warp, *bits, kept)
            warp.sync()
            self._write(warp, lane, rows, first, first_row, chunks, kept, values, columns)
            warp.sync()

    # -- entries in registers ------------------------------------------------------------------

    def _load(self, warp, first, in_tile, chunks) -> list[list[Value]]:
        """Words of the lane's row, each with two of every eight columns, four of each slab."""
        matrix, row = warp.lane // 8, warp.lane % 8
        # Of a slab, rows g of the operand are the first half.
        piece = matrix % 2 * 2 + matrix // 2
        within = [
            (in_tile + row) * COLUMNS + (row ^ (piece + at)) * _PIECE for at in (0, _PIECES // 2)
        ]
        bases = [(first + n) * (ROWS * COLUMNS) for n in range(self.width // COLUMNS)]
        slabs = [
            chunks.load_matrices(base + place) for base, place in itertools.product(bases, within)
        ]
        if self.by_magnitude:
            slabs = [[word & 0x7FFF7FFF for word in slab] for slab in slabs]
        return slabs

    def _map(self, warp, op, slabs, *others) -> list[list[Value]]:
        """An operation on all words, and on others that are the same for all of them."""
        return [
            [warp.pairwise(op, self.format.dtype, word, *others) for word in slab] for slab in slabs
        ]

    def _sum(self, warp, slabs, squared=False) -> Value:
        """Over the row, of floats or of their squares."""
        ones = [warp.constant("u32", self.format.ones)] * 2
        sums = [warp.f32(0.0)] * 4

        def add(total, word):
            if squared:
                return warp.pairwise("fma", self.format.dtype, word, word, total)
            return warp.pairwise("add", self.format.dtype, total, word)

        for i in range(0, len(slabs), _TOGETHER):
            rest = slabs[i : i + _TOGETHER]
            together = [warp.constant("u32", 0)] * 4 if squared else rest.pop(0)
            for slab in rest:
                together = [add(*pair) for pair in zip(together, slab, strict=True)]
            sums = warp.mma(together, ones, sums, self.format.dtype)
        return sums[0] + sums[2]

    def _count(self, warp, slabs) -> Value:
        """How many ones the row has, by additions: 1 % less of the kernel's time than by products.

        Numbers of 16 bits hold those of either half.
        """

        def add(a, b):
            return warp.pairwise("add", self.format.dtype, a, b)

        words = [word for slab in slabs for word in slab]
        while len(words) > 1:
            odd = words[len(words) // 2 * 2 :]
            words = [add(*pair) for pair in zip(words[::2], words[1::2], strict=False)] + odd
        (both,) = words
        for mask in (1, 2):
            both = add(both, warp.shuffle_xor(both, mask))
        bits = both.bits("i32")
        low, high = (self.format.to_float(warp, part) for part in (bits & 0xFFFF, bits >> 16))
        return low + high

    # -- which of them are kept ----------------------------------------------------------------

    def _choose(self, warp, slabs) -> list[Value]:
        """Bits of the lane's part of its row, a slab in a word, in both or in the first."""
        total, squares = self._sum(warp, slabs), self._sum(warp, slabs, squared=True)
        slabs = self._without_nan(warp, slabs, total)
        key, reach = self._search(warp, slabs, *self._first_guess(warp, total, squares))
        threshold = _twice(self.format.keys(key))
        marks = self._marks(warp, self._map(warp, "ge", slabs, threshold))
        surplus = (reach + _INTEGER).bits("i32") - _bits_of(self.k + _INTEGER)

        def drop(marks):
            above = self._marks(warp, self._map(warp, "gt", slabs, threshold))
            return _drop_last_equals(warp, marks, above, surplus)

        return warp.change(warp.ballot(surplus != 0) != 0, marks, drop)

    def _without_nan(self, warp, slabs, total) -> list[list[Value]]:
        """NaN ranks with +inf. Sums tell where there may be any."""
        infinities = warp.constant("u32", self.format.infinity * 0x10001)
        # Nothing that is finite differs from itself.
        any_odd = warp.ballot(total - total != 0.0) != 0
        return warp.change(any_odd, slabs, lambda s: self._map(warp, "min", s, infinities))

    def _search(self, warp, slabs, guess, spacing) -> tuple[Value, Value]:
        """A key that at least k entries reach: exactly k, or fewer the next key; how many do."""
        low, high = (warp.i32(key) for key in self._range())
        start = low, high, warp.f32(float(self.width)), guess

        def open_(row):
            low, high, reach, _ = row
            return (high - low > 1) & (reach != float(self.k))

        def narrow(carry):
            row, step = carry
            low, high, reach, guess = row
            middle = warp.select(
                (step < _GUESSES) & (guess > low) & (guess < high),
                guess,
                low + ((high - low) >> 1),
            )
            bits = self.format.keys(middle)
            count = self._count(warp, self._map(warp, "ge", slabs, _twice(bits)))
            is_open, enough = open_(row), count >= float(self.k)
            number = self.format.to_float(warp, bits)
            guess = warp.fma(count - (self.k - _MORE), spacing, number)
            after = (
                warp.select(is_open & enough, middle, low),
                warp.select(is_open & ~enough, middle, high),
                warp.select(is_open & enough, count, reach),
                self.format.keys(self.format.of_float(warp, guess)),
            )
            return after, step + 1

        def goes_on(carry):
            return warp.ballot(open_(carry[0])) != 0

        (key, _, reach, _), _ = warp.repeat(goes_on, narrow, (start, warp.i32(0)))
        return key, reach

    def _range(self) -> tuple[int, int]:
        """A key that all entries reach, and one that none does."""
        infinity = self.format.infinity
        return 0 if self.by_magnitude else -1 - infinity, infinity + 1

    def _first_guess(self, warp, total, squares) -> tuple[Value, Value]:
        """Where a row of a bell curve has it, as a key; and how far apart entries lie there.

        Of a row with NaN it may be anything: searches do not trust it.
        """
        share = (self.k - 0.5) / self.width / (2 if self.by_magnitude else 1)
        bell = NormalDist()
        quantile = bell.inv_cdf(1 - share)
        density = self.width * bell.pdf(quantile) * (2 if self.by_magnitude else 1)
        mean = warp.f32(0.0) if self.by_magnitude else total * (1 / self.width)
        variance = warp.fma(mean * -1.0, mean, squares * (1 / self.width)).most(1e-30)
        deviation = variance * warp.special("normal_rsqrt", variance)
        guess = warp.fma(deviation, warp.f32(quantile), mean)
        spacing = deviation * (_NEARER / density)
        return self.format.keys(self.format.of_float(warp, guess)), spacing

    def _marks(self, warp, slabs) -> list[Value]:
        """Words of ones and zeros as bits, those of the lane's part of its row."""
        powers, zeros, quarter = self._powers(warp), [warp.f32(0.0)] * 4, warp.lane % _QUAD
        words = [zeros[:2]] * self.rounds
        for number, slab in enumerate(slabs):
            # All columns of the product are alike.
            low, _, high, _ = warp.mma(slab, powers, zeros, self.format.dtype)
            lane, word = self._place_of(number)
            words[word] = [
                warp.select(quarter == lane, made, other)
                for made, other in zip((low, high), words[word], strict=True)
            ]
        bits = [[(half + _INTEGER).bits("u32") for half in word] for word in words]
        return [low & 0xFFFF | high << 16 for low, high in bits]

    def _place_of(self, slab: int) -> tuple[int, int]:
        """The lane of four, and the word of it, that has the bits of a slab."""
        return divmod(slab, 2) if slab < 2 * self.longer else (slab - self.longer, 0)

    def _powers(self, warp) -> list[Value]:
        """Those of two that the lane has of a matrix whose rows begin with 1, 2, 4, ..."""
        exponent = (warp.lane % _QUAD * 2 + self.format.bias).bits("u32") << self.format.mantissa
        step = 1 << self.format.mantissa
        first = exponent | (exponent + step) << 16
        return [first, first + 8 * step * 0x10001]

    # -- the results ---------------------------------------------------------------------------

    def _deal(self, warp, lane, marks) -> list[tuple[Value, Value, Value]]:
        """What the lane lists in each round: bits, the first one's column, and where to."""
        row, quarter = lane // _QUAD % self.together, lane % _QUAD
        to = self._kept(warp) + row * self.k + _end(warp, marks) - _population(warp, marks)
        column = (quarter * 2).least(quarter + self.longer) * _SLAB
        if self.rounds == 1:
            return [(marks[0], column, to)]
        # Lanes of the lower rows list first words, those of the upper rows second ones.
        upper = lane // (LANES // 2)
        lists = []
        for first, second in (marks, (to, to + warp.population(marks[0]))):
            given = warp.select(upper == 0, second, first)
            got = warp.shuffle_xor(given, LANES // 2)
            lists.append([warp.select(upper == 0, *pair) for pair in ((first, got), (got, second))])
        return [(bits, column + upper * _SLAB, to) for bits, to in zip(*lists, strict=True)]

    def _kept(self, warp) -> Value:
        """Where the warp's columns begin."""
        return warp.thread // LANES * (self.together * self.k)

    def _list(self, warp, bits, first_column, to, kept) -> None:
        """Columns whose bits are set, ascending, found from both ends on."""

        def take(carry):
            left, low, high = carry
            lowest = left & (warp.constant("u32", 0) - left)
            first, last = warp.last_bit(lowest), warp.last_bit(left)
            kept.store_words(low, [(first_column + first).bits("u32")])
            kept.store_words(high, [(first_column + last).bits("u32")])
            highest = warp.constant("u32", 1) << last.bits("u32")
            return left & ~(lowest | highest), low + 1, high - 1

        end = to + warp.population(bits)
        warp.repeat(lambda carry: carry[0] != 0, take, (bits, to, end - 1))

    def _write(self, warp, lane, in_tile, first, first_row, chunks, kept, values, columns) -> None:
        """Copies the listed columns, and the entries that they name, as far as there are rows."""
        # All lanes have something to do, and a store has up to 16 bytes.
        together = math.gcd(self.k, 8, max(1, self.together * self.k // LANES))
        to_values, to_columns = (a.row(first_row + in_tile) for a in (values, columns))
        rows = values.shape[0] - first_row - in_tile

        def copy(i):
            at = i * together
            row = at // self.k
            place = first * (ROWS * COLUMNS) + (in_tile + row) * COLUMNS
            # Of all columns in a word, the pieces' numbers as they lie there.
            turn = ((in_tile + row) % _PIECES * (_PIECE * 0x01010101)).bits("u32")

            def entry(turned):
                chunk = turned // COLUMNS * (ROWS * COLUMNS)
                return chunks.load_words(place + (chunk | turned % COLUMNS))[0]

            def store():
                words = kept.load_words(self._kept(warp) + at, together)
                turned = [word ^ turn for word in words]
                entries = [entry(kept.unpack(turned, i)) for i in range(together)]
                pairs = itertools.zip_longest(entries[::2], entries[1::2])
                packed = [low if high is None else low | high << 16 for low, high in pairs]
                to_values.store_words(at, packed, together)
                to_columns.store_words(at, words, together)

            warp.when(row < rows, store)

        stop = self.together * self.k // together
        if stop == LANES:
            copy(lane)
        else:
            warp.loop(lane, stop, LANES, (), lambda i, _: copy(i))


def _twice(bits: Value) -> Value:
    """A word of two numbers alike, of one in the low bits of an i32."""
    return (bits & 0xFFFF | bits << 16).bits("u32")


def _bits_of(number: float) -> int:
    return int(jnp.float32(number).view(jnp.int32))


def _end(warp: Warp, words: Sequence[Value]) -> Value:
    """How many bits are set in the lane's words and those of the lanes before, of a row."""
    count, quarter = _population(warp, words), warp.lane % _QUAD
    for step in (1, 2):
        before = warp.shuffle(count, warp.lane - step)
        count = count + warp.select(quarter >= step, before, 0)
    return count


def _population(warp: Warp, words: Sequence[Value]) -> Value:
    return sum((warp.population(word) for word in words[1:]), warp.population(words[0]))


def _drop_last_equals(warp, marks, above, surplus) -> list[Value]:
    """Without so many of the last entries, by column, that are marked and not above."""
    equals = [m & ~a for m, a in zip(marks, above, strict=True)]
    end = _end(warp, equals)
    behind = warp.shuffle(end, warp.lane | _QUAD - 1) - end
    return _drop_last(warp, marks, equals, surplus - behind)


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
