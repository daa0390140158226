"""The k largest entries of eight rows at once, by a warp: which they are, and where they go.

Four lanes have a row, in words of two neighbouring 16-bit numbers. That is how operands of products
of matrices by a warp lie, too: lanes 4 g to 4 g + 3 have the rows g and g + 8 of those, both of one
row here, of which a product takes 32 columns, a slab. So words of entries are operands as they are:
times ones they give sums of the row. What compares them, and is added up to count the entries that
reach a threshold, is one too: times powers of two it becomes a mask of bits, and the lanes trade
columns on the way.
"""

from __future__ import annotations

import itertools
import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any, Protocol

import jax.numpy as jnp

from pallas_kernels.simt.values import Array, Value, fold_in_pairs
from pallas_kernels.simt.warp import LANES, Warp

ROWS = 8  # of a warp
SLAB = 32  # columns that a product of matrices takes
QUAD = 4  # lanes that have a row

# Searches guess so often before they halve. The next guess is for a few entries more than were
# counted too many, and somewhat less far than a bell curve has them: found by trying on such rows,
# where the last of eight searches ends after 5.5 steps on average, not 5.9.
_GUESSES = 8
_EXTRA_ENTRIES, _SPACING_FACTOR = 0.15, 0.9
# Slabs that are added up before the tensor cores do the rest.
_SLABS_ADDED = 8
# A float32 of which an added integer becomes the lowest bits.
_TWO_POW_23 = 8388608.0


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
        return warp.to_float16(number, number).bits("i32") >> 16


def rounds(width: int) -> int:
    """In which rows are listed and written: in each, a lane has a word of bits."""
    return 1 if width <= SLAB * QUAD else 2


def kept_columns(width: int, k: int) -> int:
    """That a warp which keeps k of this width has in shared memory."""
    return ROWS // rounds(width) * k


class Source(Protocol):
    """Where the entries are read that are written."""

    def load_entries(self, row: Value, words: list[Value], count: int) -> list[Value]:
        """Bits of so many entries of one of the eight rows, whose columns are in words of uint8."""
        ...


@dataclass(frozen=True)
class NormalModel:
    """Where rows like a bell curve, of deviation one around zero, have their k-th largest entry.

    Attributes:
      quantile: about there.
      spacing: how far apart entries lie there, as searches had better take it.
    """

    quantile: float
    spacing: float

    @classmethod
    def of(cls, width: int, k: int, by_magnitude: bool) -> NormalModel:
        """With both tails, if magnitudes are looked for."""
        tails, bell = 1 + by_magnitude, NormalDist()
        quantile = bell.inv_cdf(1 - (k - 0.5) / width / tails)
        return cls(quantile, _SPACING_FACTOR / (width * tails * bell.pdf(quantile)))


@dataclass(frozen=True)
class Selection:
    """Among entries in registers: a list of slabs, of four words each, operands of a product.

    Attributes:
      width: of a row, a multiple of 32 up to 256.
      k: entries kept.
      by_magnitude: whether entries rank by that; their words are without signs then.
      format: of the entries.
      neighbours: columns beside each other in a lane: 2 of every eight, or 4 of every sixteen.
    """

    width: int
    k: int
    by_magnitude: bool
    format: Format
    neighbours: int

    @property
    def normal(self) -> NormalModel:
        """That of the rows."""
        return NormalModel.of(self.width, self.k, self.by_magnitude)

    # -- which entries are kept ----------------------------------------------------------------

    def choose(self, warp: Warp, slabs: list[list[Value]]) -> list[Value]:
        """Bits of the lane's part of its row, a slab in a word, in two words or in the first."""
        total, squares = self._sum(warp, slabs), self._sum(warp, slabs, squared=True)
        key, reach = self.search(warp, slabs, *self._first_guess(warp, total, squares))
        threshold = self.format.keys(key)
        marks = self.marks(warp, "geu", slabs, threshold)
        surplus = self.surplus(reach)

        def drop(marks):
            above = self.marks(warp, "gtu", slabs, threshold)
            # NaN ranks with the infinity, not above it.
            none_above = threshold == self.format.infinity
            above = [warp.select(none_above, 0, word) for word in above]
            equals = [m & ~a for m, a in zip(marks, above, strict=True)]
            return drop_last(warp, marks, equals, surplus)

        return warp.update_when(warp.ballot(surplus != 0) != 0, marks, drop)

    def search(
        self, warp: Warp, slabs, guess: Value, spacing: Value, done: Value | None = None
    ) -> tuple[Value, Value]:
        """A key that at least k entries reach: exactly k, or fewer the next key; how many do.

        Args:
          warp: all of whose lanes take part.
          slabs: entries; NaN reaches all keys.
          guess: a key, any.
          spacing: how far apart entries lie about there.
          done: where there is nothing to look for.
        """
        low, high = (warp.i32(key) for key in self._range())
        if done is not None:
            high = warp.select(done, low, high)
        start = low, high, warp.f32(float(self.width)), guess

        def is_open_row(row):
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
            count = self._count(warp, self._pairwise_all(warp, "geu", slabs, _pack_twice(bits)))
            is_open, enough = is_open_row(row), count >= float(self.k)
            number = self.format.to_float(warp, bits)
            guess = warp.fma(count - (self.k - _EXTRA_ENTRIES), spacing, number)
            after = (
                warp.select(is_open & enough, middle, low),
                warp.select(is_open & ~enough, middle, high),
                warp.select(is_open & enough, count, reach),
                self.format.keys(self.format.of_float(warp, guess)),
            )
            return after, step + 1

        def goes_on(carry):
            return warp.ballot(is_open_row(carry[0])) != 0

        (key, _, reach, _), _ = warp.while_loop(goes_on, narrow, (start, warp.i32(0)))
        return key, reach

    def marks(self, warp: Warp, op: str, slabs, threshold: Value) -> list[Value]:
        """Comparisons with a number as bits, those of the lane's part of its row.

        Args:
          warp: all of whose lanes take part.
          op: ``"geu"`` or ``"gtu"``.
          slabs: entries.
          threshold: the number's bits.
        """
        compared = self._pairwise_all(warp, op, slabs, _pack_twice(threshold))
        powers, zeros, quarter = self._powers(warp), [warp.f32(0.0)] * 4, warp.lane % QUAD
        words = [zeros[:2]] * rounds(self.width)
        for number, slab in enumerate(compared):
            # All columns of the product are alike.
            low, _, high, _ = warp.mma(slab, powers, zeros, self.format.dtype)
            lane, word = self._place_of(number)
            words[word] = [
                warp.select(quarter == lane, made, other)
                for made, other in zip((low, high), words[word], strict=True)
            ]
        bits = [[(half + _TWO_POW_23).bits("u32") for half in word] for word in words]
        return [low & 0xFFFF | high << 16 for low, high in bits]

    def surplus(self, reach: Value) -> Value:
        """How many more than k reach a key, i32."""
        return (reach + _TWO_POW_23).bits("i32") - _bits_of(self.k + _TWO_POW_23)

    def marked_column(self, warp: Warp, marks: list[Value]) -> Value:
        """One that is marked in the lane's row, for all lanes of the row; or 0 if none is."""
        column = warp.i32(0)
        for slab, word in zip(self.slabs_of(warp.lane % QUAD), marks, strict=True):
            last = slab * SLAB + warp.highest_bit(word | 1)
            column = column.most(warp.select(word == 0, 0, last))
        for mask in (1, 2):
            column = column.most(warp.shuffle_xor(column, mask))
        return column

    def slabs_of(self, quarter: Value) -> list[Value]:
        """Whose bits a lane of four has in its words: of none, it is one behind the last slab."""
        first = (quarter * 2).least(quarter + self._two_word_lanes)
        if rounds(self.width) == 1:
            return [first]
        return [
            first,
            quarter.warp.select(quarter < self._two_word_lanes, first + 1, self.width // SLAB),
        ]

    @property
    def _two_word_lanes(self) -> int:
        """Lanes of four that have two words of bits, of neighbouring slabs; the others have one."""
        return max(0, self.width // SLAB - QUAD)

    def _place_of(self, slab: int) -> tuple[int, int]:
        """The lane of four, and the word of it, that has the bits of a slab."""
        return (
            divmod(slab, 2) if slab < 2 * self._two_word_lanes else (slab - self._two_word_lanes, 0)
        )

    def _powers(self, warp) -> list[Value]:
        """Those of two that the lane has of a matrix: of the columns that its words have."""
        first = warp.lane % QUAD * self.neighbours
        exponent = (first + self.format.bias).bits("u32") << self.format.mantissa
        step = 1 << self.format.mantissa
        word = exponent | (exponent + step) << 16
        to_next = 8 if self.neighbours == 2 else 2
        return [word, word + to_next * step * 0x10001]

    def _range(self) -> tuple[int, int]:
        """A key that all entries reach, and one that is not tried, behind the highest."""
        infinity = self.format.infinity
        return 0 if self.by_magnitude else -1 - infinity, infinity + 1

    def _first_guess(self, warp, total, squares) -> tuple[Value, Value]:
        """Where a row of a bell curve has it, as a key; and how far apart entries lie there.

        Of a row with NaN it may be anything: searches do not trust it.
        """
        mean = warp.f32(0.0) if self.by_magnitude else total * (1 / self.width)
        variance = warp.fma(mean * -1.0, mean, squares * (1 / self.width)).most(1e-30)
        deviation = variance * warp.special("normal_rsqrt", variance)
        guess = warp.fma(deviation, warp.f32(self.normal.quantile), mean)
        return self.format.keys(self.format.of_float(warp, guess)), deviation * self.normal.spacing

    def _pairwise_all(self, warp, op, slabs, *others) -> list[list[Value]]:
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

        for i in range(0, len(slabs), _SLABS_ADDED):
            rest = slabs[i : i + _SLABS_ADDED]
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

        both = fold_in_pairs([word for slab in slabs for word in slab], add)
        for mask in (1, 2):
            both = add(both, warp.shuffle_xor(both, mask))
        bits = both.bits("i32")
        low, high = (self.format.to_float(warp, part) for part in (bits & 0xFFFF, bits >> 16))
        return low + high

    # -- the results ---------------------------------------------------------------------------

    def write(
        self,
        warp: Warp,
        lane: Value,
        marks: list[Value],
        kept: Array,
        results: tuple[Array, Array],
        rows: Value,
        source: Source,
    ) -> None:
        """Writes columns that are marked, and the entries that they name.

        Args:
          warp: all of whose lanes take part.
          lane: of it.
          marks: as ``marks`` gives them, k of each row.
          kept: shared memory for ``kept_columns`` of each warp, uint8.
          results: values, and columns of uint8, [., k], from the first of eight rows on.
          rows: so many of them there are.
          source: of the entries.
        """
        together = ROWS // rounds(self.width)
        for number, (bits, first_column, to) in enumerate(self._assign_lists(warp, lane, marks)):
            _list_columns(warp, bits, first_column, to, kept)
            warp.sync()
            self._copy(warp, lane, number * together, rows, kept, results, source)
            warp.sync()

    def _assign_lists(self, warp, lane, marks) -> list[tuple[Value, Value, Value]]:
        """What the lane lists in each round: bits, the first one's column, and where to."""
        row, quarter = lane // QUAD % (ROWS // rounds(self.width)), lane % QUAD
        to = (
            self._kept_offset(warp)
            + row * self.k
            + _count_up_to(warp, marks)
            - popcount_words(warp, marks)
        )
        column = self.slabs_of(quarter)[0] * SLAB
        if len(marks) == 1:
            return [(marks[0], column, to)]
        # Lanes of the lower rows list first words, those of the upper rows second ones.
        upper = lane // (LANES // 2)
        lists = []
        for first, second in (marks, (to, to + warp.popcount(marks[0]))):
            given = warp.select(upper == 0, second, first)
            got = warp.shuffle_xor(given, LANES // 2)
            lists.append([warp.select(upper == 0, *pair) for pair in ((first, got), (got, second))])
        return [(bits, column + upper * SLAB, to) for bits, to in zip(*lists, strict=True)]

    def _kept_offset(self, warp) -> Value:
        """Where the warp's columns begin."""
        return warp.thread // LANES * kept_columns(self.width, self.k)

    def _copy(self, warp, lane, first, rows, kept, results, source) -> None:
        """What is listed, of the rows from ``first`` on, as far as there are rows."""
        values, columns = results
        # All lanes have something to do, and a store has up to 16 bytes.
        listed, most = kept_columns(self.width, self.k), min(8, 16 // values.itemsize)
        together = math.gcd(self.k, most, max(1, listed // LANES))

        def copy(i):
            i = i * together
            row = first + i // self.k

            def store():
                words = kept.load_words(self._kept_offset(warp) + i, together)
                packed = made = source.load_entries(row, words, together)
                if values.itemsize == 2:
                    pairs = itertools.zip_longest(made[::2], made[1::2])
                    packed = [low if high is None else low | high << 16 for low, high in pairs]
                values.store_words(first * self.k + i, packed, together)
                columns.store_words(first * self.k + i, words, together)

            warp.when(row < rows, store)

        stop = listed // together
        if stop == LANES:
            copy(lane)
        else:
            warp.loop(lane, stop, LANES, (), lambda i, _: copy(i))


def _list_columns(warp: Warp, bits: Value, first_column: Value, to: Value, kept: Array) -> None:
    """Columns whose bits are set, ascending, found from both ends on."""

    def take(carry):
        left, low, high = carry
        lowest = left & (warp.constant("u32", 0) - left)
        first, last = warp.highest_bit(lowest), warp.highest_bit(left)
        kept.store_words(low, [(first_column + first).bits("u32")])
        kept.store_words(high, [(first_column + last).bits("u32")])
        highest = warp.constant("u32", 1) << last.bits("u32")
        return left & ~(lowest | highest), low + 1, high - 1

    end = to + warp.popcount(bits)
    warp.while_loop(lambda carry: carry[0] != 0, take, (bits, to, end - 1))


def _pack_twice(bits: Value) -> Value:
    """A word of two numbers alike, of one in the low bits of an i32."""
    return (bits & 0xFFFF | bits << 16).bits("u32")


def _bits_of(number: float) -> int:
    # Not by JAX: a mesh around the kernel is no concern of this number.
    return struct.unpack("<i", struct.pack("<f", number))[0]


def _count_up_to(warp: Warp, words: Sequence[Value]) -> Value:
    """How many bits are set in the lane's words and those of the lanes before, of a row."""
    count, quarter = popcount_words(warp, words), warp.lane % QUAD
    for step in (1, 2):
        before = warp.shuffle(count, warp.lane - step)
        count = count + warp.select(quarter >= step, before, 0)
    return count


def popcount_words(warp: Warp, words: Sequence[Value]) -> Value:
    """How many bits of some words are set."""
    return sum((warp.popcount(word) for word in words[1:]), warp.popcount(words[0]))


def drop_last(warp: Warp, marks: list[Value], candidates: list[Value], count: Value) -> list[Value]:
    """The marks of a row, by bits of its lanes, without the last ``count`` of the candidates."""
    end = _count_up_to(warp, candidates)
    behind = warp.shuffle(end, warp.lane | QUAD - 1) - end
    return _drop_last(warp, marks, candidates, count - behind)


def _drop_last(warp, words, candidates, count) -> list[Value]:
    """Without the last ``count`` of the candidates, or all of them."""
    *before, last = candidates
    if not before:
        return [words[0] & ~_last_bits(warp, last, count)]
    in_last = warp.popcount(last)
    is_whole = count >= in_last
    left = warp.select(is_whole, count - in_last, count)
    cut = _last_bits(warp, warp.select(is_whole, before[0], last), left)
    gone = warp.select(is_whole, cut, 0), warp.select(is_whole, last, cut)
    return [word & ~bits for word, bits in zip(words, gone, strict=True)]


def _last_bits(warp: Warp, word: Value, count: Value) -> Value:
    """The last ``count`` of the bits that are set, or all of them."""

    def goes_on(carry):
        left, count = carry
        return (count > 0) & (left != 0)

    def drop(carry):
        left, count = carry
        return left ^ warp.constant("u32", 1) << warp.highest_bit(left).bits("u32"), count - 1

    left, _ = warp.while_loop(goes_on, drop, (word, count))
    return word & ~left
