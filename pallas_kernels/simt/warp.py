"""The vocabulary that the kernels are written in: SIMT code of one warp.

A kernel is a function of a ``Warp`` and of the arrays in its reach. It runs once, and what it calls
is recorded as instructions; a ``Value`` is a number that each lane has of its own. What Python's
``if`` and ``for`` see is static; ``Warp.when``, ``change``, ``loop`` and ``repeat`` are control
flow on the device. ``simt.mosaic_warp`` records for Mosaic GPU; the tests have an implementation in
NumPy.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp

from pallas_kernels.simt.values import Value

LANES = 32

_LARGEST = 2.0**126  # whose reciprocal is a normal number
# log2(e) in two parts, and 1.5 * 2^23, to which a small number is added to round it.
_LOG2_E, _LOG2_E_REST = 1.4426950216293335, 1.9259629911266175e-08
_ROUND, _ROUND_BITS = 12582912.0, 0x4B400000
# log(1 + m) = m - m²/2 + ..., minimax from -1/3 to 1/3: even and odd powers from the highest on.
_TWO_THIRDS_BITS, _LOG_2 = 0x3F2AAAAB, 0.6931471805599453
_LOG_EVEN = (-0.130310059, -0.121483512, -0.166846126, -0.249996200)
_LOG_ODD = (0.140869141, 0.139814854, 0.200120345)
_LOG_LAST = (0.333331972, -0.5)


class Warp(abc.ABC):
    """The lanes of a warp, what they say to each other, and their control flow.

    Attributes:
      lane: 0 to 31.
      number: of this warp among those of its slice, i32.
      count: how many warps that are, static.
      block: of this warp among those of its slice, i32; a block has several warps.
      thread: of this lane among those of its block, i32.
      threads: lanes of a block, static.
      slice: i32, of ``slices``, which come one after another.
      slices: how many passes there are, static.
      rank: of this block among those of its cluster, i32; they are neighbours.
      cluster: blocks of a cluster, static: they run side by side and send each other numbers.
    """

    lane: Value
    number: Value
    count: int
    block: Value
    thread: Value
    threads: int
    slice: Value
    slices: int
    rank: Value
    cluster: int

    # -- what every implementation shares ------------------------------------------------------

    def i32(self, x: int) -> Value:
        """A constant."""
        return self.constant("i32", x)

    def f32(self, x: float) -> Value:
        """A constant."""
        return self.constant("f32", x)

    def integer(self, x: Any) -> Value:
        """An index that may be a Python number."""
        return x if isinstance(x, Value) else self.i32(x)

    def promote(self, a: Any, b: Any) -> tuple[Value, Value]:
        """Two operands of one kind: Python numbers take the other's, i32 widens to i64."""
        if not isinstance(a, Value):
            return self.constant(b.kind, a), b
        if not isinstance(b, Value):
            return a, self.constant(a.kind, b)
        if a.kind == b.kind:
            return a, b
        if {a.kind, b.kind} != {"i32", "i64"}:
            raise TypeError(f"operands of kinds {a.kind} and {b.kind}")
        return a.to("i64"), b.to("i64")

    def sum_lanes(self, value: Value, lanes: int) -> Value:
        """The sum over groups of ``lanes`` neighbouring lanes, in all of them."""
        step = lanes // 2
        while step:
            value = value + self.shuffle_xor(value, step)
            step //= 2
        return value

    def sum_groups(self, value: Value, lanes: int) -> Value:
        """The sum over lanes of equal place in the groups of ``lanes``, in all of them."""
        while lanes < LANES:
            value = value + self.shuffle_xor(value, lanes)
            lanes *= 2
        return value

    def sum_scatter(self, values: Sequence[Value], lanes: int) -> list[tuple[Value, Value]]:
        """The sums of several values over groups of ``lanes`` neighbours, dealt out to those.

        Returns:
          What a lane gets: pairs of a number, i32, and the sum of the value of that number, which
          is zero for numbers behind the last value. A group has each number once.
        """
        parts = [*values, *[self.f32(0.0)] * (-len(values) % lanes)]
        first, step = self.i32(0), lanes // 2
        while step:
            # Half of the lanes go on with half of the values, and give the others away.
            half, upper = len(parts) // 2, (self.lane & step) != 0
            parts = [
                self.select(upper, b, a) + self.shuffle_xor(self.select(upper, a, b), step)
                for a, b in zip(parts[:half], parts[half:], strict=True)
            ]
            first, step = first + self.select(upper, half, self.i32(0)), step // 2
        return [(first + i, part) for i, part in enumerate(parts)]

    def shuffle_wide(self, value: Value, lane: Value) -> Value:
        """``shuffle``, of numbers of 64 bits too."""
        if value.kind != "i64":
            return self.shuffle(value, lane)
        low, high = (self.shuffle((value >> by).to("i32"), lane) for by in (0, 32))
        return high.to("i64") << 32 | low.bits("u32").to("i64")

    def exp(self, x: Value) -> Value:
        """e^x, within 2 units in the last place; of NaN, NaN."""
        # Outside of these it is zero, or infinite.
        x = self.select(x < -104.0, -104.0, x)
        x = self.select(x > 89.0, 89.0, x)
        # 2^(whole + rest): the sum with 1.5 * 2^23 has the whole part in its lowest bits.
        rounded = self.fma(x, self.f32(_LOG2_E), self.f32(_ROUND))
        whole = rounded - _ROUND
        rest = self.fma(x, self.f32(_LOG2_E), whole * -1.0)
        rest = self.fma(x, self.f32(_LOG2_E_REST), rest)
        power = rounded.bits("i32") - _ROUND_BITS
        # Two factors, since 2^whole alone may be too large or too small.
        half = power >> 1
        factors = [(part + 127 << 23).bits("f32") for part in (half, power - half)]
        return self.special("ex2", rest) * factors[0] * factors[1]

    def log(self, x: Value) -> Value:
        """The logarithm of a positive normal number, within 1 unit in the last place; or NaN."""
        bits = x.bits("i32")
        power = (bits - _TWO_THIRDS_BITS) & -(2**23)
        # 2^power (1 + m), m from -1/3 to 1/3; the two halves of the polynomial go side by side.
        m = (bits - power).bits("f32") - 1.0
        square = m * m
        even, odd = self.f32(_LOG_EVEN[0]), self.f32(_LOG_ODD[0])
        for coefficient in _LOG_EVEN[1:]:
            even = self.fma(even, square, self.f32(coefficient))
        for coefficient in _LOG_ODD[1:]:
            odd = self.fma(odd, square, self.f32(coefficient))
        log = self.fma(odd, m, even)
        for coefficient in _LOG_LAST:
            log = self.fma(log, m, self.f32(coefficient))
        log = self.fma(log, square, m)
        log = self.fma((power >> 23).to("f32"), self.f32(_LOG_2), log)
        return self.select(x == x, log, x)

    def sigmoid(self, x: Value) -> Value:
        """1 / (1 + e^-x), at least 2^-126."""
        power = self.exp(x * -1.0)
        return self.normal_reciprocal(self.select(power > _LARGEST, _LARGEST, power) + 1.0)

    def reciprocal(self, x: Value) -> Value:
        """1 / x, rounded to nearest."""
        return self.special("rcp", x)

    def normal_reciprocal(self, x: Value) -> Value:
        """1 / x of 2^-126 to 2^126, within 1 unit in the last place; of NaN, NaN.

        Without the branch for other numbers, so that several go side by side.
        """
        guess = self.special("guess_rcp", x)
        return self.fma(guess, self.fma(guess * -1.0, x, self.f32(1.0)), guess)

    def rsqrt(self, x: Value) -> Value:
        """1 / √x, within 2 units in the last place."""
        return self.special("rsqrt", x)

    def strided(self, stop: Any, body: Callable[[Value], None]) -> None:
        """``body(i)`` for i below ``stop``, the lanes side by side."""
        stop = self.integer(stop)
        self.loop(self.lane.to(stop.kind), stop, LANES, (), lambda i, _: body(i))

    # -- control flow --------------------------------------------------------------------------

    @abc.abstractmethod
    def when(self, condition: Value, body: Callable[[], None]) -> None:
        """Runs ``body`` in the lanes where the condition holds."""

    @abc.abstractmethod
    def update_when(self, condition: Value, carry: Any, body: Callable[[Any], Any]) -> Any:
        """``body(carry)`` in the lanes where the condition holds, in others the carry as it is."""

    @abc.abstractmethod
    def loop(self, start: Any, stop: Any, step: int, carry: Any, body: Callable[..., Any]) -> Any:
        """``carry = body(i, carry)`` for i from ``start`` below ``stop``; the last carry."""

    @abc.abstractmethod
    def while_loop(
        self, condition: Callable[[Any], Value], body: Callable[[Any], Any], carry: Any
    ) -> Any:
        """``carry = body(carry)`` while the condition holds; the last carry."""

    @abc.abstractmethod
    def opaque_copy(self, value: Value) -> Value:
        """The same i32; what a loop makes of its counter's is made again in each step.

        Else the compiler steps each place that depends on the counter from the one before, and
        keeps it in a register of its own.
        """

    # -- arithmetic ----------------------------------------------------------------------------

    @abc.abstractmethod
    def constant(self, kind: str, x: Any) -> Value:
        """A constant of a kind."""

    @abc.abstractmethod
    def binary(self, op: str, a: Value, b: Value) -> Value:
        """``add sub mul div rem and or xor shl shr min max`` of two of a kind.

        Of floats also ``minimum maximum``, which are NaN if one of them is.
        """

    @abc.abstractmethod
    def compare(self, op: str, a: Value, b: Value) -> Value:
        """``lt le gt ge eq ne`` of two of a kind."""

    @abc.abstractmethod
    def select(self, condition: Value, a: Any, b: Any) -> Value:
        """``a`` where the condition holds, else ``b``; at least one is a Value."""

    @abc.abstractmethod
    def fma(self, a: Value, b: Value, c: Value) -> Value:
        """``a b + c``, rounded once."""

    @abc.abstractmethod
    def special(self, op: str, x: Value) -> Value:
        """``rcp`` rounded to nearest; ``rsqrt``; ``ex2``, two to the power of -1 to 1.

        And ``guess_rcp`` of normal numbers, within 1 unit in the last place; ``normal_rsqrt`` of
        normal numbers and infinity; ``any_ex2``, two to any power, zero for what is not normal.
        """

    @abc.abstractmethod
    def convert(self, value: Value, kind: str) -> Value:
        """See ``Value.to``."""

    @abc.abstractmethod
    def bitcast(self, value: Value, kind: str) -> Value:
        """See ``Value.bits``."""

    @abc.abstractmethod
    def half_to_float(self, bits: Value) -> Value:
        """f32 of a float16 in the low bits of a word."""

    @abc.abstractmethod
    def to_bfloat16(self, low: Value, high: Value) -> Value:
        """A word of the nearest bfloat16 of two numbers."""

    @abc.abstractmethod
    def to_float16(self, low: Value, high: Value) -> Value:
        """A word of the nearest float16 of two numbers."""

    @abc.abstractmethod
    def pairwise(self, op: str, dtype: Any, *words: Value) -> Value:
        """``add fma geu gtu`` of words of two bfloat16 or float16.

        Comparisons give 1 or 0; they are true of NaN.
        """

    @abc.abstractmethod
    def popcount(self, bits: Value) -> Value:
        """How many bits of a u32 are set, i32."""

    @abc.abstractmethod
    def lowest_bit(self, bits: Value) -> Value:
        """The lowest set bit of a u32 that is not zero, i32."""

    @abc.abstractmethod
    def highest_bit(self, bits: Value) -> Value:
        """The highest set bit of a u32 that is not zero, i32."""

    # -- between the lanes: all of them take part ----------------------------------------------

    @abc.abstractmethod
    def sync(self) -> None:
        """Orders what lanes wrote to memory before it with what others read after it."""

    @abc.abstractmethod
    def shuffle(self, value: Value, lane: Any) -> Value:
        """The value that another lane has."""

    @abc.abstractmethod
    def shuffle_xor(self, value: Value, mask: int) -> Value:
        """The value of the lane whose number differs in the bits of ``mask``."""

    @abc.abstractmethod
    def ballot(self, condition: Value) -> Value:
        """The lanes where the condition holds, as bits of a u32."""

    @abc.abstractmethod
    def reduce(self, op: str, value: Value) -> Value:
        """``add``, ``min`` or ``max`` over all lanes, of integers of 32 bits."""

    @abc.abstractmethod
    def mma(
        self, a: Sequence[Value], b: Sequence[Value], c: Sequence[Value], dtype: Any = jnp.bfloat16
    ) -> list[Value]:
        """``c + a b`` of matrices of 16 x 16 and 16 x 8 numbers of 16 bits, summed in float32.

        With ``g = lane // 4`` and ``q = 2 (lane % 4)``, a lane has, in words of two neighbours:

        Args:
          a: ``a[g, q:]``, ``a[g + 8, q:]``, ``a[g, q + 8:]`` and ``a[g + 8, q + 8:]``.
          b: ``b[q:, g]`` and ``b[q + 8:, g]``.
          c: ``c[g, q]``, ``c[g, q + 1]``, ``c[g + 8, q]`` and ``c[g + 8, q + 1]``, f32.
          dtype: of ``a`` and ``b``, bfloat16 or float16.

        Returns:
          As ``c``.
        """

    # -- between the warps of a block: all of them take part -----------------------------------

    @abc.abstractmethod
    def barrier(self) -> None:
        """Waits for the whole block: as ``sync``, for what its warps share."""

    @abc.abstractmethod
    def roles(self, *roles: tuple[int, Callable[[], None]]) -> None:
        """Gives each warp of the block something else to do, all at the same time.

        Args:
          roles: how many warps, in the order of their numbers, and what they do.
        """

    # -- between the warps of a cluster's blocks: see ``Signals`` ------------------------------

    @abc.abstractmethod
    def cluster_arrive(self) -> None:
        """Says that this warp is so far: what signals it made may be used."""

    @abc.abstractmethod
    def cluster_wait(self) -> None:
        """Waits until all warps of the cluster have arrived. It orders no other memory."""

    @abc.abstractmethod
    def init_signal(self, pointer: Any, number: Value, times: int) -> None:
        """See ``Signals.make``."""

    @abc.abstractmethod
    def arrive_at_signal(self, pointer: Any, number: Value, nbytes: Value | None) -> None:
        """See ``Signals.give``."""

    @abc.abstractmethod
    def wait_for_signal(self, pointer: Any, number: Value, phase: Value) -> None:
        """Waits until a signal has come ``phase + 1`` times; once more it can not have come."""

    @abc.abstractmethod
    def send(
        self,
        pointer: Any,
        index: Value,
        words: Sequence[Value],
        rank: Value,
        signal: Any,
        number: Value,
    ) -> None:
        """See ``Array.send``."""

    # -- memory --------------------------------------------------------------------------------

    @abc.abstractmethod
    def copy(
        self, target: Any, to: Value, source: Any, at: Value, nbytes: int, real: Value | None
    ) -> None:
        """See ``Array.copy_from``."""

    @abc.abstractmethod
    def bulk_copy(
        self,
        target: Any,
        to: Value,
        source: Any,
        at: Value,
        count: Value,
        signal: Any,
        number: Value,
    ) -> None:
        """See ``Array.fetch``."""

    @abc.abstractmethod
    def commit_copies(self) -> None:
        """What this lane has begun to copy since the last such call is one group."""

    @abc.abstractmethod
    def wait_for_copies(self, groups: int) -> None:
        """Waits until no more groups than so many are under way."""

    @abc.abstractmethod
    def fence_async_proxy(self) -> None:
        """What the lane did with shared memory comes before what copy engines do with it later."""

    @abc.abstractmethod
    def advance(self, pointer: Any, number: Value, nbytes: int) -> Any:
        """A pointer ``number`` times ``nbytes`` on."""

    @abc.abstractmethod
    def read(
        self,
        pointer: Any,
        index: Value,
        itemsize: int,
        nbytes: int,
        constant: bool,
        streamed: bool,
    ) -> list[Value]:
        """u32 words; a single one for less than four bytes. See ``Array.load_words``."""

    @abc.abstractmethod
    def read_matrices(self, pointer: Any, index: Value) -> list[Value]:
        """See ``Array.load_matrices``."""

    @abc.abstractmethod
    def write(
        self, pointer: Any, index: Value, itemsize: int, words: Sequence[Value], nbytes: int
    ) -> None:
        """See ``Array.store_words``."""

    @abc.abstractmethod
    def atomic_add(self, pointer: Any, index: Value, values: Sequence[Value]) -> None:
        """See ``Array.add``."""

    @abc.abstractmethod
    def prefetch(self, pointer: Any, index: Value, itemsize: int) -> None:
        """See ``Array.prefetch``."""

    @abc.abstractmethod
    def read_shared(self, pointer: Any, index: Value, kind: str) -> Value:
        """See ``Shared.load``."""

    @abc.abstractmethod
    def write_shared(self, pointer: Any, index: Value, value: Value) -> None:
        """See ``Shared.store``."""
