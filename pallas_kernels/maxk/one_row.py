"""The k largest entries of a row, by a warp that has the whole row in registers.

The search bisects keys, integers that order like the ranks of the entries. Where exactly k entries
reach a key, those are the k largest. If there is no such key, the k-th largest entry has equals.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pallas_kernels.simt.blocks import lanes_before
from pallas_kernels.simt.values import Array, Shared, Value
from pallas_kernels.simt.warp import LANES, Warp

# Guesses of the search for the k-th largest entry before it bisects.
_GUESSES = 6


@dataclass(frozen=True)
class OneRow:
    """Selects from one row per warp; lane l has the columns from l * own up to (l + 1) * own.

    Attributes:
      dim: columns of the row.
      k: entries kept of each row.
      by_magnitude: whether entries rank by their magnitude.
    """

    dim: int
    k: int
    by_magnitude: bool

    @property
    def own(self) -> int:
        """Columns of a lane: the least power of two, at least four, with which the row fits."""
        return max(4, 1 << (-(-self.dim // LANES) - 1).bit_length())

    def __call__(self, warp: Warp, x: Array, values: Array, columns: Array, kept: Shared) -> None:
        """Selects from one row after another.

        Kept columns are gathered in shared memory first, so that whole sectors are written. The
        first guess for a row is the key at which the search of the row before ended, since rows are
        often alike.
        """
        first_column = warp.lane * self.own

        def take(number, guess):
            row = x.row(number)
            mask, guess = self.keep(warp, row, guess)
            to = _bits_before(warp, mask, self.own)
            for i in range(self.own):
                bit, here, column = mask >> i & 1, to, first_column + i
                warp.when(bit == 1, lambda h=here, c=column: kept.store(h, c))
                to = to + bit.to("i32")
            warp.sync()
            to_values, to_columns = values.row(number), columns.row(number)

            def copy(i):
                column = kept.load(i)
                to_values.store_words(i, row.load_words(column))
                to_columns.store(i, column)

            warp.strided(self.k, copy)
            warp.sync()
            return guess

        warp.loop(warp.number, x.shape[0], warp.count, warp.constant("u32", 0), take)

    def keep(self, warp: Warp, row: Array, guess: Value) -> tuple[Value, Value]:
        """Returns which of the lane's entries are among the k largest, as bits, and the key found.

        Args:
          warp: the warp; all of its lanes have to call this.
          row: a row of float32, bfloat16 or float16.
          guess: a key near that of the k-th largest entry, or any other.
        """
        keys = self._load_keys(warp, row)
        low, count, above = self._search(warp, keys, guess)
        mask = _mask(warp, [key >= low for key in keys])

        def drop_equals(_):
            # Keeps the entries above ``low``, and the first of those that are equal to it.
            equals = [key == low for key in keys]
            rank, wanted = _bits_before(warp, _mask(warp, equals), len(keys)), self.k - above
            keep = []
            for key, is_equal in zip(keys, equals, strict=True):
                keep.append((key > low) | (is_equal & (rank < wanted)))
                rank = rank + is_equal.to("i32")
            return _mask(warp, keep)

        return warp.update_when(count != self.k, mask, drop_equals), low

    def _load_keys(self, warp, row) -> list[Value]:
        """Loads entries as keys; past the last column they are zero, which is below all ranks."""
        own, dim = self.own, self.dim
        first_column = warp.lane * own
        if own * LANES == dim:
            words = row.load_words(first_column, own)
            return [self._key(warp, row.unpack(words, i)) for i in range(own)]
        if dim % own == 0:
            # All columns of a lane exist, or none; a lane without columns reads the first ones.
            inside = [first_column < dim] * own
            words = row.load_words(warp.select(inside[0], first_column, 0), own)
            entries = [row.unpack(words, i) for i in range(own)]
        else:
            at = [first_column + i for i in range(own)]
            inside = [column < dim for column in at]
            entries = [row.load(column.at_most(dim - 1)) for column in at]
        keys = [self._key(warp, entry) for entry in entries]
        return [warp.select(i, key, 0) for i, key in zip(inside, keys, strict=True)]

    def _key(self, warp, entry) -> Value:
        """Returns the key of an entry: an unsigned integer that orders like its rank."""
        bits = entry.bits("u32")
        magnitude = bits & 0x7FFFFFFF
        is_nan = magnitude > 0x7F800000
        rank = magnitude if self.by_magnitude else warp.select(magnitude == 0, magnitude, bits)
        rank = warp.select(is_nan, 0x7F800000, rank)
        # All bits are copies of the sign, to reverse the order of negative numbers.
        spread = (rank.bits("i32") >> 31).bits("u32")
        return rank ^ (spread | 0x80000000)

    def _search(self, warp, keys, guess) -> tuple[Value, Value, Value]:
        """Returns a key that at least k entries reach, how many do, and how many are above it.

        The last number is valid only if it is not exactly k entries that reach the key.
        """
        low, high, spacing = self._range(warp, keys)

        def goes_on(carry):
            low, high, count, *_ = carry
            return (high - low > 1) & (count != self.k)

        def narrow(carry):
            low, high, count, above, guess, step = carry
            is_good = (step < _GUESSES) & (guess > low) & (guess < high)
            middle = warp.select(is_good, guess, low + ((high - low) >> 1))
            own = sum(((key >= middle).to("i32") for key in keys), warp.i32(0))
            reach = warp.reduce("add", own)
            enough = reach >= self.k
            # Near the k-th largest, entries of normally distributed rows are about this far apart.
            guess = key_of(warp, warp.fma((reach - self.k).to("f32"), spacing, _rank_of(middle)))
            return (
                warp.select(enough, middle, low),
                warp.select(enough, high, middle),
                warp.select(enough, reach, count),
                warp.select(enough, above, reach),
                guess,
                step + 1,
            )

        zero = warp.i32(0)
        start = low, high, warp.i32(self.dim), zero, guess, zero
        low, _, count, above, *_ = warp.while_loop(goes_on, narrow, start)
        return low, count, above

    def _range(self, warp, keys) -> tuple[Value, Value, Value]:
        """Returns the lowest key, one above the highest, and the mean distance of ranks."""
        # Keys past the last column are zero; minus one they are the highest number, and so never
        # the minimum.
        least, most = keys[0] - 1, keys[0]
        for key in keys[1:]:
            least, most = least.at_most(key - 1), most.at_least(key)
        low, high = warp.reduce("min", least) + 1, warp.reduce("max", most)
        spacing = (_rank_of(high) - _rank_of(low)) * (1 / (LANES * self.own))
        return low, high + 1, spacing


def _rank_of(key: Value) -> Value:
    """Returns the float whose key this is."""
    sign = (key.bits("i32") >> 31).bits("u32")
    return (key ^ (~sign | 0x80000000)).bits("f32")


def key_of(warp: Warp, rank: Value) -> Value:
    """Returns the key of a rank that is not NaN."""
    bits = rank.bits("u32")
    return bits ^ ((bits.bits("i32") >> 31).bits("u32") | 0x80000000)


def _mask(warp: Warp, chosen: Sequence[Value]) -> Value:
    """Returns a word in which bit i is set where entry i of the lane is chosen."""
    mask = warp.constant("u32", 0)
    for i, is_chosen in enumerate(chosen):
        mask = mask | is_chosen.to("u32") << i
    return mask


def _bits_before(warp: Warp, mask: Value, entries: int) -> Value:
    """Counts the bits that are set in the masks, of ``entries`` bits, of all lanes before each."""
    own, before = warp.popcount(mask), warp.i32(0)
    # Each ballot adds up one bit of all lanes' counts.
    for bit in range(entries.bit_length()):
        voted = warp.ballot((own >> bit & 1) == 1)
        before = before + (warp.popcount(voted & lanes_before(warp)) << bit)
    return before
