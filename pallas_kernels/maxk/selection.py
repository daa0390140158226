"""Selection of the k largest entries of eight rows at once by a warp, and their output.

Four lanes, a quad, have a row, in words of two neighbouring 16-bit numbers. This is the layout of
operands of ``Warp.mma``, in which lanes 4 g to 4 g + 3 have the rows g and g + 8; here both are
parts of one row, of which one product takes 32 columns, a slab. So words of entries are operands
without any conversion: multiplied by ones they give sums over the row. Comparisons of entries with
a threshold, as numbers 1 and 0, are operands too: added up they count the entries that reach the
threshold, and multiplied by powers of two they become a mask of bits, while the lanes exchange
columns.
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

ROWS = 8  # rows of a warp
SLAB = 32  # columns of a row that one product of matrices takes
QUAD = 4  # lanes that have a row

# Guesses of a search before it bisects. A guess aims at slightly more entries than the surplus that
# was counted, and assumes slightly smaller distances than those of a normal distribution. Both were
# tuned on normally distributed rows, where the last of eight searches ends after 5.5 steps on
# average instead of 5.9.
_GUESSES = 8
_EXTRA_ENTRIES, _SPACING_FACTOR = 0.15, 0.9
# Slabs that are added pairwise before the tensor cores add up the sums.
_SLABS_ADDED = 8
# Added to this float32, a small integer becomes the lowest bits of the sum.
_TWO_POW_23 = 8388608.0


@dataclass(frozen=True)
class Format:
    """A format of 16-bit floats.

    Attributes:
      dtype: bfloat16 or float16.
      mantissa: bits of the mantissa.
      bias: bias of the exponent.
      infinity: bits of infinity.
    """

    dtype: Any
    mantissa: int
    bias: int
    infinity: int

    @classmethod
    def of(cls, dtype: Any) -> Format:
        """Returns the format of a dtype."""
        if jnp.dtype(dtype) == jnp.bfloat16:
            return cls(dtype, 7, 127, 0x7F80)
        return cls(dtype, 10, 15, 0x7C00)

    @property
    def ones(self) -> int:
        """A word of two ones."""
        return (self.bias << self.mantissa) * 0x10001

    def keys(self, bits: Value) -> Value:
        """Maps 16-bit floats, sign-extended, to integers of the same order.

        It is its own inverse.
        """
        return bits ^ (bits >> 31 & 0x7FFF)

    def to_float(self, warp: Warp, bits: Value) -> Value:
        """Converts the number in the low bits of an i32 to f32."""
        if self.mantissa == 7:
            return (bits << 16).bits("f32")
        return warp.half_to_float(bits.bits("u32") & 0xFFFF)

    def of_float(self, warp: Warp, number: Value) -> Value:
        """Converts an f32 to a number close to it, sign-extended to an i32."""
        if self.mantissa == 7:
            return number.bits("i32") >> 16
        return warp.to_float16(number, number).bits("i32") >> 16


def rounds(width: int) -> int:
    """Returns the number of rounds in which rows are listed and written.

    A lane has a word of bits for each.
    """
    return 1 if width <= SLAB * QUAD else 2


def kept_columns(width: int, k: int) -> int:
    """Returns the shared bytes of a warp for columns, if it keeps k of this width."""
    return ROWS // rounds(width) * k


class Source(Protocol):
    """Memory from which the entries to write are loaded."""

    def load_entries(self, row: Value, words: list[Value], count: int) -> list[Value]:
        """Loads bits of entries of one of the eight rows, at columns packed in words of uint8."""
        ...


@dataclass(frozen=True)
class NormalModel:
    """A model of rows with normally distributed entries, of mean zero and deviation one.

    Searches take from it about where the k-th largest entry is.

    Attributes:
      quantile: expected position of the k-th largest entry.
      spacing: expected distance of neighbouring entries there, times a factor that makes searches
        faster.
    """

    quantile: float
    spacing: float

    @classmethod
    def of(cls, width: int, k: int, by_magnitude: bool) -> NormalModel:
        """Returns the model; magnitudes are taken from both tails of the distribution."""
        tails, bell = 1 + by_magnitude, NormalDist()
        quantile = bell.inv_cdf(1 - (k - 0.5) / width / tails)
        return cls(quantile, _SPACING_FACTOR / (width * tails * bell.pdf(quantile)))


@dataclass(frozen=True)
class Selection:
    """Selects the k largest entries of rows in registers.

    The entries are a list of slabs, each of four words, operands of ``Warp.mma``.

    Attributes:
      width: columns of a row, a multiple of 32 up to 256.
      k: entries kept of each row.
      by_magnitude: whether entries rank by their magnitude; their words then have no sign bits.
      format: format of the entries.
      neighbours: how many neighbouring columns a lane has: 2 of every eight, or 4 of every sixteen.
    """

    width: int
    k: int
    by_magnitude: bool
    format: Format
    neighbours: int

    @property
    def normal(self) -> NormalModel:
        """The model of normally distributed rows of this width."""
        return NormalModel.of(self.width, self.k, self.by_magnitude)

    # -- which entries are kept ----------------------------------------------------------------

    def choose(self, warp: Warp, slabs: list[list[Value]]) -> list[Value]:
        """Returns marks: bits of the entries that are kept, in one or two words, one for each slab.

        A lane has the marks of its quarter of the row.
        """
        total, squares = self._sum(warp, slabs), self._sum(warp, slabs, squared=True)
        key, reach = self.search(warp, slabs, *self._first_guess(warp, total, squares))
        threshold = self.format.keys(key)
        marks = self.marks(warp, "geu", slabs, threshold)
        surplus = self.surplus(reach)

        def drop(marks):
            above = self.marks(warp, "gtu", slabs, threshold)
            # NaN ranks equal to infinity, not above it.
            none_above = threshold == self.format.infinity
            above = [warp.select(none_above, 0, word) for word in above]
            equals = [m & ~a for m, a in zip(marks, above, strict=True)]
            return drop_last(warp, marks, equals, surplus)

        return warp.update_when(warp.ballot(surplus != 0) != 0, marks, drop)

    def search(
        self, warp: Warp, slabs, guess: Value, spacing: Value, done: Value | None = None
    ) -> tuple[Value, Value]:
        """Returns a key that at least k entries reach, and the number of entries that reach it.

        If that number is not k, fewer than k entries reach the next key.

        Args:
          warp: the warp; all of its lanes have to call this.
          slabs: the entries; NaN reaches all keys.
          guess: the first key to try, near that of the k-th largest entry or any other.
          spacing: about how far apart entries are near the k-th largest.
          done: rows that need no search.
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
        """Compares the entries with a threshold; returns bits of the lane's quarter of the row.

        Args:
          warp: the warp; all of its lanes have to call this.
          op: ``"geu"`` or ``"gtu"``.
          slabs: the entries.
          threshold: bits of the threshold.
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
        """Returns the number of entries that reach a key, minus k, i32."""
        return (reach + _TWO_POW_23).bits("i32") - _bits_of(self.k + _TWO_POW_23)

    def marked_column(self, warp: Warp, marks: list[Value]) -> Value:
        """Returns a marked column of the row, the same in its lanes; or 0 if none is marked."""
        column = warp.i32(0)
        for slab, word in zip(self.slabs_of(warp.lane % QUAD), marks, strict=True):
            last = slab * SLAB + warp.highest_bit(word | 1)
            column = column.at_least(warp.select(word == 0, 0, last))
        for mask in (1, 2):
            column = column.at_least(warp.shuffle_xor(column, mask))
        return column

    def slabs_of(self, quarter: Value) -> list[Value]:
        """Returns the slab of each of the words of marks that a lane of a quad has.

        For a word without a slab it is one past the last slab.
        """
        first = (quarter * 2).at_most(quarter + self._two_word_lanes)
        if rounds(self.width) == 1:
            return [first]
        return [
            first,
            quarter.warp.select(quarter < self._two_word_lanes, first + 1, self.width // SLAB),
        ]

    @property
    def _two_word_lanes(self) -> int:
        """Lanes of a quad that have marks of two neighbouring slabs; the others have one slab."""
        return max(0, self.width // SLAB - QUAD)

    def _place_of(self, slab: int) -> tuple[int, int]:
        """Returns the lane of the quad, and which of its words, that has the marks of a slab."""
        return (
            divmod(slab, 2) if slab < 2 * self._two_word_lanes else (slab - self._two_word_lanes, 0)
        )

    def _powers(self, warp) -> list[Value]:
        """Returns the lane's part of a matrix of powers of two, which makes bits of comparisons."""
        first = warp.lane % QUAD * self.neighbours
        exponent = (first + self.format.bias).bits("u32") << self.format.mantissa
        step = 1 << self.format.mantissa
        word = exponent | (exponent + step) << 16
        to_next = 8 if self.neighbours == 2 else 2
        return [word, word + to_next * step * 0x10001]

    def _range(self) -> tuple[int, int]:
        """Returns a key that all entries reach, and one past the highest key."""
        infinity = self.format.infinity
        return 0 if self.by_magnitude else -1 - infinity, infinity + 1

    def _first_guess(self, warp, total, squares) -> tuple[Value, Value]:
        """Returns the key expected for the k-th largest entry, and the distance of entries there.

        For a row with NaN they may have any value, since the search checks each guess.
        """
        mean = warp.f32(0.0) if self.by_magnitude else total * (1 / self.width)
        variance = warp.fma(mean * -1.0, mean, squares * (1 / self.width)).at_least(1e-30)
        deviation = variance * warp.special("normal_rsqrt", variance)
        guess = warp.fma(deviation, warp.f32(self.normal.quantile), mean)
        return self.format.keys(self.format.of_float(warp, guess)), deviation * self.normal.spacing

    def _pairwise_all(self, warp, op, slabs, *others) -> list[list[Value]]:
        """Applies a pairwise operation to all words, with the same further operands."""
        return [
            [warp.pairwise(op, self.format.dtype, word, *others) for word in slab] for slab in slabs
        ]

    def _sum(self, warp, slabs, squared=False) -> Value:
        """Sums the row, or the squares of its entries."""
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
        """Counts the ones of a row by pairwise additions.

        That took 1 % less of the kernel's time than products. The counts fit 16-bit floats exactly.
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
        """Writes the marked columns, and the entries at these columns.

        Args:
          warp: the warp; all of its lanes have to call this.
          lane: number of the lane.
          marks: marks as ``choose`` returns them, k of each row.
          kept: shared memory for ``kept_columns`` of each warp, uint8.
          results: values, and columns of uint8, [., k], from the first of the eight rows on.
          rows: how many rows there are from the first on.
          source: where the entries are loaded from.
        """
        together = ROWS // rounds(self.width)
        for number, (bits, first_column, to) in enumerate(self._assign_lists(warp, lane, marks)):
            _list_columns(warp, bits, first_column, to, kept)
            warp.sync()
            self._copy(warp, lane, number * together, rows, kept, results, source)
            warp.sync()

    def _assign_lists(self, warp, lane, marks) -> list[tuple[Value, Value, Value]]:
        """Returns the work of the lane in each round: bits, first column, and target index."""
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
        # In each round half of the rows are listed: half of the lanes lists their first words, the
        # other half their second ones.
        upper = lane // (LANES // 2)
        lists = []
        for first, second in (marks, (to, to + warp.popcount(marks[0]))):
            given = warp.select(upper == 0, second, first)
            got = warp.shuffle_xor(given, LANES // 2)
            lists.append([warp.select(upper == 0, *pair) for pair in ((first, got), (got, second))])
        return [(bits, column + upper * SLAB, to) for bits, to in zip(*lists, strict=True)]

    def _kept_offset(self, warp) -> Value:
        """Returns the index of the warp's first column in shared memory."""
        return warp.thread // LANES * kept_columns(self.width, self.k)

    def _copy(self, warp, lane, first, rows, kept, results, source) -> None:
        """Writes the rows from ``first`` on whose columns have been listed, if they exist."""
        values, columns = results
        # Entries of a store: up to 16 bytes, but few enough that all lanes have some.
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
    """Lists the columns whose bits are set, ascending; two at a time, from both ends."""

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
    """Returns a word of twice the number in the low bits of an i32."""
    return (bits & 0xFFFF | bits << 16).bits("u32")


def _bits_of(number: float) -> int:
    # JAX does not compute this, since a mesh around the kernel would apply to it.
    return struct.unpack("<i", struct.pack("<f", number))[0]


def _count_up_to(warp: Warp, words: Sequence[Value]) -> Value:
    """Counts the bits that are set in the words of the lane and of those before it in its quad."""
    count, quarter = popcount_words(warp, words), warp.lane % QUAD
    for step in (1, 2):
        before = warp.shuffle(count, warp.lane - step)
        count = count + warp.select(quarter >= step, before, 0)
    return count


def popcount_words(warp: Warp, words: Sequence[Value]) -> Value:
    """Counts the bits that are set in several words."""
    return sum((warp.popcount(word) for word in words[1:]), warp.popcount(words[0]))


def drop_last(warp: Warp, marks: list[Value], candidates: list[Value], count: Value) -> list[Value]:
    """Removes the last ``count`` of the candidates from the marks of a row."""
    end = _count_up_to(warp, candidates)
    behind = warp.shuffle(end, warp.lane | QUAD - 1) - end
    return _drop_last(warp, marks, candidates, count - behind)


def _drop_last(warp, words, candidates, count) -> list[Value]:
    """Removes the last ``count`` of the lane's candidates, or all of them, from its marks."""
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
    """Returns the last ``count`` of the bits that are set, or all of them."""

    def goes_on(carry):
        left, count = carry
        return (count > 0) & (left != 0)

    def drop(carry):
        left, count = carry
        return left ^ warp.constant("u32", 1) << warp.highest_bit(left).bits("u32"), count - 1

    left, _ = warp.while_loop(goes_on, drop, (word, count))
    return word & ~left
