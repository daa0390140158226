"""The k largest entries of each row, and moves between dense and compressed rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp

from pallas_kernels import _simt
from pallas_kernels._pieces import lanes_before, striding_blocks
from pallas_kernels._values import Array, Shared, Value
from pallas_kernels._warp import LANES, Warp

# Of a row, which a warp holds in registers.
MOST_COLUMNS = 1024


@dataclass(frozen=True)
class MaxkTile:
    """How a warp holds a row: lane l has the columns l * own up to (l + 1) * own.

    Attributes:
      own: columns of a lane, a power of two.
      wide: whether no lane's columns are cut, so that they are read together.
      warps: warps of a block.
    """

    own: int
    wide: bool
    warps: int = 8

    @classmethod
    def choose(cls, dim: int) -> MaxkTile:
        """The one heuristic: as few columns a lane as hold the row."""
        own = 4
        while own * LANES < dim:
            own *= 2
        return cls(own, dim % own == 0)


# Warps of a block in the kernels without a tile: they keep nothing from row to row.
_WARPS = 8


def maxk(
    x: jax.Array, k: int, by: str, column_dtype: jnp.dtype, tile: MaxkTile | None = None
) -> tuple[jax.Array, jax.Array]:
    """Keeps the entries of each row with the largest ranks; exact.

    Ties go to the lowest column, -0 equals +0, and NaN ranks with +inf. The bits of what is kept
    stay as they are.

    Args:
      x: [rows, dim], float32, bfloat16 or float16, dim at most ``MOST_COLUMNS``.
      k: entries to keep, 1 to dim.
      by: rank by ``"value"`` or by ``"magnitude"``.
      column_dtype: uint8 or uint16.
      tile: by default what suits the shape.

    Returns:
      [rows, k] values, and their columns, ascending.
    """
    rows, dim = x.shape
    results = [jax.ShapeDtypeStruct((rows, k), dtype) for dtype in (x.dtype, column_dtype)]
    if rows == 0:
        return jnp.zeros((0, k), x.dtype), jnp.zeros((0, k), column_dtype)
    tile = tile or MaxkTile.choose(dim)
    values, columns = _simt.launch(
        _Maxk(tile, k, by == "magnitude"),
        x,
        results,
        name="maxk",
        grid=_simt.Grid(striding_blocks(rows, tile.warps), tile.warps),
        shared={"kept": ("i32", k)},
    )
    return values, columns


# How often the search for the k-th largest entry guesses before it halves.
_GUESSES = 6


@dataclass(frozen=True)
class _Maxk:
    """A warp a row; kept columns are put together in shared memory, to write whole sectors.

    The k-th largest entry is looked for among keys, integers that order like the ranks. Where
    exactly k entries reach a key, those are the k largest; where none has that, entries are equal.
    """

    tile: MaxkTile
    k: int
    by_magnitude: bool

    def __call__(self, warp: Warp, x: Array, values: Array, columns: Array, kept: Shared) -> None:
        first_column = warp.lane * self.tile.own

        def take(number, guess):
            row = x.row(number)
            mask, guess = self._keep(
                warp, self._load_keys(warp, row, first_column), x.shape[1], guess
            )
            to = _set_before(warp, mask, self.tile.own)
            for i in range(self.tile.own):
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

    def _load_keys(self, warp, row, first_column) -> list[Value]:
        """Integers that order like the ranks; zero, below all ranks, behind the last column."""
        own, dim = self.tile.own, row.shape[0]
        if own * LANES == dim:
            words = row.load_words(first_column, own)
            return [self._key(warp, row.unpack(words, i)) for i in range(own)]
        if self.tile.wide:
            # All columns of a lane lie inside, or none: such a lane reads the first ones.
            inside = [first_column < dim] * own
            words = row.load_words(warp.select(inside[0], first_column, 0), own)
            entries = [row.unpack(words, i) for i in range(own)]
        else:
            at = [first_column + i for i in range(own)]
            inside = [column < dim for column in at]
            entries = [row.load(column.least(dim - 1)) for column in at]
        keys = [self._key(warp, entry) for entry in entries]
        return [warp.select(i, key, 0) for i, key in zip(inside, keys, strict=True)]

    def _key(self, warp, entry) -> Value:
        bits = entry.bits("u32")
        magnitude = bits & 0x7FFFFFFF
        is_nan = magnitude > 0x7F800000
        rank = magnitude if self.by_magnitude else warp.select(magnitude == 0, magnitude, bits)
        rank = warp.select(is_nan, 0x7F800000, rank)
        # The sign, spread over all bits: negative numbers order the other way round.
        spread = (rank.bits("i32") >> 31).bits("u32")
        return rank ^ (spread | 0x80000000)

    def _keep(self, warp, keys, dim, guess) -> tuple[Value, Value]:
        """Bits of the lane's entries that are among the k largest; and where they were found."""
        low, count, above = self._search(warp, keys, dim, guess)
        mask = _mask(warp, [key >= low for key in keys])

        def drop_equals(_):
            # Those above `low` and the first of its equals.
            equals = [key == low for key in keys]
            rank, wanted = _set_before(warp, _mask(warp, equals), len(keys)), self.k - above
            keep = []
            for key, is_equal in zip(keys, equals, strict=True):
                keep.append((key > low) | (is_equal & (rank < wanted)))
                rank = rank + is_equal.to("i32")
            return _mask(warp, keep)

        return warp.change(count != self.k, mask, drop_equals), low

    def _search(self, warp, keys, dim, guess) -> tuple[Value, Value, Value]:
        """A key that at least k entries reach, how many do, and how many reach the next key.

        The last is right only if it is not exactly k that reach the key. The key at which the row
        before was done is the first guess, since rows are often alike.
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
            # Near the k-th largest, entries lie about this far apart in rows of a bell curve.
            guess = _key_of(warp, warp.fma((reach - self.k).to("f32"), spacing, _rank_of(middle)))
            return (
                warp.select(enough, middle, low),
                warp.select(enough, high, middle),
                warp.select(enough, reach, count),
                warp.select(enough, above, reach),
                guess,
                step + 1,
            )

        zero = warp.i32(0)
        start = low, high, warp.i32(dim), zero, guess, zero
        low, _, count, above, *_ = warp.repeat(goes_on, narrow, start)
        return low, count, above

    def _range(self, warp, keys) -> tuple[Value, Value, Value]:
        """The lowest key, one above the highest, and how far apart their ranks lie, a column."""
        # The keys behind the last column are zero: as the highest number they do not count.
        least, most = keys[0] - 1, keys[0]
        for key in keys[1:]:
            least, most = least.least(key - 1), most.most(key)
        low, high = warp.reduce("min", least) + 1, warp.reduce("max", most)
        spacing = (_rank_of(high) - _rank_of(low)) * (1 / (LANES * self.tile.own))
        return low, high + 1, spacing


def _rank_of(key: Value) -> Value:
    """The number that orders like the key."""
    sign = (key.bits("i32") >> 31).bits("u32")
    return (key ^ (~sign | 0x80000000)).bits("f32")


def _key_of(warp: Warp, rank: Value) -> Value:
    bits = rank.bits("u32")
    return bits ^ ((bits.bits("i32") >> 31).bits("u32") | 0x80000000)


def _mask(warp: Warp, chosen: Sequence[Value]) -> Value:
    """Bit i is set where entry i of the lane is chosen."""
    mask = warp.constant("u32", 0)
    for i, is_chosen in enumerate(chosen):
        mask = mask | is_chosen.to("u32") << i
    return mask


def _set_before(warp: Warp, mask: Value, entries: int) -> Value:
    """How many bits are set in the masks, of ``entries`` bits, of the lanes before each."""
    own, before = warp.population(mask), warp.i32(0)
    # The bits of the lanes' counts, one after another.
    for bit in range(entries.bit_length()):
        voted = warp.ballot((own >> bit & 1) == 1)
        before = before + (warp.population(voted & lanes_before(warp)) << bit)
    return before


def todense(values: jax.Array, columns: jax.Array, dim: int) -> jax.Array:
    """Spreads kept values out over rows of zeros.

    Args:
      values: [rows, k], of 16 or 32 bits.
      columns: [rows, k], unsigned, distinct in each row.
      dim: columns of the result.

    Returns:
      [rows, dim], of the dtype of the values.
    """
    shape = values.shape[0], dim
    if values.size == 0:
        return jnp.zeros(shape, values.dtype)
    return _by_rows(_todense, "todense", (values, columns), shape, values.dtype)


def gather_columns(dense: jax.Array, columns: jax.Array) -> jax.Array:
    """Picks the entries of each row that ``columns`` names: the transpose of ``todense``.

    Args:
      dense: [rows, dim], of 16 or 32 bits.
      columns: [rows, k], unsigned.

    Returns:
      [rows, k], of the dtype of ``dense``.
    """
    if columns.size == 0:
        return jnp.zeros(columns.shape, dense.dtype)
    inputs = dense, columns
    return _by_rows(_gather_columns, "gather_columns", inputs, columns.shape, dense.dtype)


def _by_rows(kernel, name, inputs, shape, dtype):
    grid = _simt.Grid(striding_blocks(shape[0], _WARPS), _WARPS)
    return _simt.launch(kernel, inputs, [jax.ShapeDtypeStruct(shape, dtype)], name=name, grid=grid)[
        0
    ]


def _todense(warp: Warp, inputs, dense: Array) -> None:
    values, columns = inputs
    zero = [warp.constant("u32", 0)]

    def take(number, _):
        row, value, column = (array.row(number) for array in (dense, values, columns))
        warp.strided(dense.shape[1], lambda i: row.store_words(i, zero))
        # Orders the zeros before the values that other lanes write over them.
        warp.sync()
        warp.strided(
            values.shape[1],
            lambda i: row.store_words(column.load(i).to("i32"), value.load_words(i)),
        )

    warp.loop(warp.number, dense.shape[0], warp.count, (), take)


def _gather_columns(warp: Warp, inputs, values: Array) -> None:
    dense, columns = inputs

    def take(number, _):
        row, value, column = (array.row(number) for array in (dense, values, columns))
        warp.strided(
            columns.shape[1],
            lambda i: value.store_words(i, row.load_words(column.load(i).to("i32"))),
        )

    warp.loop(warp.number, values.shape[0], warp.count, (), take)
