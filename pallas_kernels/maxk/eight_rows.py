"""The k largest entries of eight rows at once, by a warp that has them in registers."""

from __future__ import annotations

import operator
import struct
from dataclasses import dataclass

import jax.numpy as jnp

from pallas_kernels.maxk.one_row import OneRow, key_of
from pallas_kernels.maxk.selection import (
    QUAD,
    ROWS,
    SLAB,
    Format,
    Selection,
    drop_last,
    popcount_words,
)
from pallas_kernels.simt.values import Array, Value, fold_in_pairs
from pallas_kernels.simt.warp import Warp

MOST_WIDTH = 256
_NEIGHBOURS = 4  # neighbouring columns that a lane reads of every sixteen
# The least variance that is assumed, so that it and the reciprocal of its root are normal numbers.
# The search of rows with less takes longer.
_LEAST_VARIANCE = 2.0**-126


@dataclass(frozen=True)
class EightRows:
    """Selects from eight rows per warp and reads each row once.

    For rows of float32, the search uses 16 bits for each entry: its distance from the mean in
    standard deviations, as float16. This is monotonic, so where exactly k entries reach a
    threshold, they are the k largest. Where more than k do because some entries are equal, the
    first of those are kept. Where entries that share a float16 are not equal, or an entry or its
    square is not finite, or only a single row of the eight is undecided, the whole warp selects
    from the row again with all 32 bits.

    Attributes:
      k: entries kept of each row.
      by_magnitude: whether entries rank by their magnitude.
    """

    k: int
    by_magnitude: bool

    def __call__(self, warp: Warp, x: Array, values: Array, columns: Array, kept: Array) -> None:
        """Selects from x, [rows, dim], where dim is a multiple of 32 up to ``MOST_WIDTH``."""
        first = warp.number * ROWS
        warp.when(
            first < x.shape[0], lambda: self._select_rows(warp, first, x, values, columns, kept)
        )

    def _select_rows(self, warp, first, x, values, columns, kept) -> None:
        """Selects from the eight rows from ``first`` on, and writes what is kept."""
        last = x.shape[0] - 1
        choose = self._choose_float32 if x.itemsize == 4 else self._choose_16_bits
        selection, marks = choose(warp, x, first, last)
        results, rows = (values.row(first), columns.row(first)), x.shape[0] - first
        selection.write(warp, warp.lane, marks, kept, results, rows, _GlobalEntries(x, kept, first))

    def _selection(self, x, dtype) -> Selection:
        return Selection(x.shape[1], self.k, self.by_magnitude, Format.of(dtype), _NEIGHBOURS)

    def _load(self, warp, x, first, last) -> list[list[Value]]:
        """Loads the lane's row in words: four neighbouring entries in each half of a slab."""
        row = x.row((first + warp.lane // QUAD).at_most(last))
        column = warp.lane % QUAD * _NEIGHBOURS
        half = SLAB // 2
        return [row.load_words(column + at, _NEIGHBOURS) for at in range(0, x.shape[1], half)]

    # -- 16 bits -------------------------------------------------------------------------------

    def _choose_16_bits(self, warp, x, first, last):
        """Returns the selection and the marks for rows of 16-bit floats."""
        selection, halves = self._selection(x, x.dtype), self._load(warp, x, first, last)
        if self.by_magnitude:
            halves = [[word & 0x7FFF7FFF for word in half] for half in halves]
        return selection, selection.choose(warp, _slabs(halves))

    # -- 32 bits -------------------------------------------------------------------------------

    def _choose_float32(self, warp, x, first, last):
        """Returns the selection and the marks for rows of float32.

        It searches among the entries as float16 in units of the row's deviation. Where that does
        not decide, it compares entries exactly or selects from the row again.
        """
        selection = self._selection(x, jnp.float16)
        halves = self._load(warp, x, first, last)
        numbers = [[self._rank(word.bits("f32")) for word in half] for half in halves]
        mean, numbers = self._centred(warp, numbers, selection.width)
        deviation, scale, odd = _deviation(warp, numbers, selection.width)

        def scaled(a, b):
            return warp.to_float16(a * scale, b * scale)

        slabs = _slabs([[scaled(*half[:2]), scaled(*half[2:])] for half in numbers])
        guess = warp.constant("u32", _bits_of_half(selection.normal.quantile)).bits("i32")
        guess = selection.format.keys(guess << 16 >> 16)
        key, reach = selection.search(warp, slabs, guess, warp.f32(selection.normal.spacing), odd)
        threshold = selection.format.keys(key)
        marks = selection.marks(warp, "geu", slabs, threshold)
        is_done = (reach == float(self.k)) & ~odd
        remaining = warp.ballot(~is_done)

        def drop_equals(carry):
            _, marks = carry
            above = selection.marks(warp, "gtu", slabs, threshold)
            alike = [m & ~a for m, a in zip(marks, above, strict=True)]
            row = x.row((first + warp.lane // QUAD).at_most(last))
            equal = self._count_equal(warp, row, selection.marked_column(warp, alike))
            are_equal = (equal == warp.sum_lanes(popcount_words(warp, alike), QUAD)) & ~odd
            # The marks of other rows do not matter: these are selected from again.
            surplus = warp.select(are_equal, selection.surplus(reach), 0)
            return warp.ballot(~(is_done | are_equal)), drop_last(warp, marks, alike, surplus)

        # Selecting again from a single row is faster than this.
        remaining, marks = warp.update_when(
            warp.popcount(remaining) > QUAD, (remaining, marks), drop_equals
        )
        rank = warp.fma(selection.format.to_float(warp, threshold), deviation, mean)
        return selection, self._redo_rows(
            warp, selection, x, first, remaining, key_of(warp, rank), marks
        )

    def _count_equal(self, warp, row, column) -> Value:
        """Counts the entries of the lane's row that are equal to the one in a column."""
        one, first = self._rank(row.load(column)), warp.lane % QUAD * _NEIGHBOURS
        # The opaque start hides the loop's length from the compiler. Unrolled, the loop would reuse
        # the entries that were loaded before, and keep all of them in registers until here.
        start = warp.opaque_copy(warp.i32(0))

        def add(at, count):
            words = row.load_words(first + at, _NEIGHBOURS)
            equal = [(self._rank(word.bits("f32")) == one).to("i32") for word in words]
            return count + fold_in_pairs(equal, operator.add)

        return warp.sum_lanes(warp.loop(start, row.shape[0], SLAB // 2, warp.i32(0), add), QUAD)

    def _rank(self, number: Value) -> Value:
        """Returns the number that an entry ranks by."""
        if not self.by_magnitude:
            return number
        return (number.bits("u32") & 0x7FFFFFFF).bits("f32")

    def _centred(self, warp, numbers, width) -> tuple[Value, list[list[Value]]]:
        """Returns the mean of a row and its entries minus the mean.

        Magnitudes are taken as they are.
        """
        if self.by_magnitude:
            return warp.f32(0.0), numbers
        total = fold_in_pairs([number for half in numbers for number in half], operator.add)
        mean = warp.sum_lanes(total, QUAD) * (1 / width)
        return mean, [[number - mean for number in half] for half in numbers]

    def _redo_rows(self, warp, selection, x, first, remaining, guess, marks) -> list[Value]:
        """Selects again, one row after another, from the rows whose lanes are in ``remaining``.

        Returns the marks of all rows.
        """
        one = OneRow(selection.width, self.k, self.by_magnitude)
        slabs = selection.slabs_of(warp.lane % QUAD)

        def take(carry):
            remaining, marks = carry
            lane = warp.lowest_bit(remaining)
            row = x.row((first + lane // QUAD).at_most(x.shape[0] - 1))
            mask, _ = one.keep(warp, row, warp.shuffle(guess, lane))
            words = _join_masks(warp, mask, one.own)
            per_slab = SLAB // one.own
            marks = [
                warp.select(warp.lane // QUAD == lane // QUAD, warp.shuffle(words, s * per_slab), m)
                for s, m in zip(slabs, marks, strict=True)
            ]
            return remaining & ~(warp.constant("u32", 0xF) << lane.bits("u32")), marks

        _, marks = warp.while_loop(lambda carry: carry[0] != 0, take, (remaining, marks))
        return marks


@dataclass(frozen=True)
class _GlobalEntries:
    """The entries of a warp's rows in global memory, as a ``Source``."""

    x: Array
    kept: Array
    first: Value

    def load_entries(self, row: Value, words: list[Value], count: int) -> list[Value]:
        """Loads entries of a row at columns that are packed in words."""
        entries = self.x.row(self.first + row)
        return [entries.load_words(self.kept.unpack(words, i))[0] for i in range(count)]


def _deviation(warp: Warp, numbers: list[list[Value]], width: int) -> tuple[Value, Value, Value]:
    """Returns a row's standard deviation, its reciprocal, and whether the row may not be finite."""
    squares = warp.f32(0.0)
    for number in [number for half in numbers for number in half]:
        squares = warp.fma(number, number, squares)
    squares = warp.sum_lanes(squares, QUAD)
    variance = (squares * (1 / width)).at_least(_LEAST_VARIANCE)
    scale = warp.special("normal_rsqrt", variance)
    # A sum that is not finite, minus itself, is NaN.
    return variance * scale, scale, squares - squares != 0.0


def _slabs(halves: list[list[Value]]) -> list[list[Value]]:
    """Returns slabs as operands of ``Warp.mma``: first halves are rows g, the others rows g + 8."""
    pairs = zip(halves[::2], halves[1::2], strict=True)
    return [[upper[0], lower[0], upper[1], lower[1]] for upper, lower in pairs]


def _bits_of_half(number: float) -> int:
    return struct.unpack("<H", struct.pack("<e", number))[0]


def _join_masks(warp: Warp, mask: Value, own: int) -> Value:
    """Joins the bits of neighbouring lanes to one word, in all of these lanes."""
    lanes = SLAB // own
    word = mask << (warp.lane % lanes * own).bits("u32")
    step = 1
    while step < lanes:
        word = word | warp.shuffle_xor(word, step)
        step *= 2
    return word
