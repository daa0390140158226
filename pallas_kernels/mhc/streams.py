"""Loads and sums that several kernels of hyper-connections share."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

from pallas_kernels.simt.values import Array, Value
from pallas_kernels.simt.warp import Warp

READ_BYTES = 16  # the most bytes that a lane loads at once
_AT_ONCE = 8  # terms that are loaded before the first is added


def read_once(array: Array, token: Value, at: Value, entries: int) -> list[Value]:
    """Loads ``entries`` neighbours of a token, with a hint that caches need not keep them."""
    streamed = entries * array.itemsize == READ_BYTES
    return dataclasses.replace(array, streamed=streamed).row(token).load_words(at, entries)


def load_floats(array: Array) -> list[Value]:
    """Loads all entries of a small array."""
    size = math.prod(array.shape)
    words = array.load_words(0, size)
    return [array.unpack(words, i) for i in range(size)]


def combine(warp: Warp, factors: list[Value], streams: list[list[Value]]) -> list[Value]:
    """The weighted sum ``Σ_i factors_i streams_i`` of several columns, [column]."""
    totals = [factors[0] * column for column in streams[0]]
    for factor, stream in zip(factors[1:], streams[1:], strict=True):
        totals = [warp.fma(factor, c, total) for c, total in zip(stream, totals, strict=True)]
    return totals


def sum_terms(
    warp: Warp, count: int, width: int, read: Callable[[Value], list[Value]]
) -> list[Value]:
    """The sums of the ``width`` numbers that ``read(i)`` loads, over i below ``count``."""

    def add(terms: list[list[Value]], totals: list[Value]) -> list[Value]:
        for term in terms:
            totals = [total + value for total, value in zip(totals, term, strict=True)]
        return totals

    def step(first, totals):
        return add([read(first + k) for k in range(_AT_ONCE)], totals)

    whole = count // _AT_ONCE * _AT_ONCE
    totals = warp.loop(warp.i32(0), whole, _AT_ONCE, [warp.f32(0.0)] * width, step)
    return add([read(warp.i32(i)) for i in range(whole, count)], totals)
