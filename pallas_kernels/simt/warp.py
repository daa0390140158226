"""The operations of SIMT kernels: arithmetic, memory and control flow of 32 lanes of a warp.

A kernel is a function of a ``Warp`` and of the arrays that it reads and writes. It runs once, in
Python, and each call is recorded as an instruction. A ``Value`` has one number in each lane.
Python's ``if`` and ``for`` are evaluated while recording. Control flow on the device is
written with ``Warp.when``, ``update_when``, ``loop`` and ``while_loop``. ``simt.mosaic_warp``
records for Mosaic GPU; the tests have an implementation in NumPy.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp

from pallas_kernels.simt.values import Value

LANES = 32

_LARGEST = 2.0**126  # the largest power of two whose reciprocal is a normal number
# log2(e) in two parts, and 1.5 * 2^23: adding it to a small number rounds that to an integer.
_LOG2_E, _LOG2_E_REST = 1.4426950216293335, 1.9259629911266175e-08
_ROUND, _ROUND_BITS = 12582912.0, 0x4B400000
# A minimax polynomial of log(1 + m) = m - m²/2 + ... from -1/3 to 1/3: the coefficients of even and
# of odd powers, from the highest on.
_TWO_THIRDS_BITS, _LOG_2 = 0x3F2AAAAB, 0.6931471805599453
_LOG_EVEN = (-0.130310059, -0.121483512, -0.166846126, -0.249996200)
_LOG_ODD = (0.140869141, 0.139814854, 0.200120345)
_LOG_LAST = (0.333331972, -0.5)


class Warp(abc.ABC):
    """The lanes of a warp: their arithmetic, communication, memory accesses and control flow.

    Attributes:
      lane: number of the lane in its warp, 0 to 31.
      number: number of this warp among all warps of its slice, i32.
      count: how many warps a slice has, static.
      block: number of this warp's block among those of its slice, i32; a block has several warps.
      thread: number of this lane among the lanes of its block, i32.
      threads: how many lanes a block has, static.
      slice: number of the slice that the warp works on, i32; slices are passes over the grid, one
        after another.
      slices: how many slices there are, static.
      rank: number of this block within its cluster, i32.
      cluster: how many blocks a cluster has, static: they run at the same time and can write into
        each other's shared memory.
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

    # -- derived operations, the same for every implementation ---------------------------------

    def i32(self, x: int) -> Value:
        """Returns a constant i32."""
        return self.constant("i32", x)

    def f32(self, x: float) -> Value:
        """Returns a constant f32."""
        return self.constant("f32", x)

    def integer(self, x: Any) -> Value:
        """Returns an index as a Value: a Python number becomes a constant i32."""
        return x if isinstance(x, Value) else self.i32(x)

    def promote(self, a: Any, b: Any) -> tuple[Value, Value]:
        """Converts two operands to one kind: Python numbers take the other's, i32 widens to i64."""
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
        """Sums over each group of ``lanes`` neighbouring lanes; all of them get the result."""
        step = lanes // 2
        while step:
            value = value + self.shuffle_xor(value, step)
            step //= 2
        return value

    def sum_groups(self, value: Value, lanes: int) -> Value:
        """Sums over the lanes of equal position in all groups of ``lanes``; all of them get it."""
        while lanes < LANES:
            value = value + self.shuffle_xor(value, lanes)
            lanes *= 2
        return value

    def sum_scatter(self, values: Sequence[Value], lanes: int) -> list[tuple[Value, Value]]:
        """Sums several values over groups of ``lanes`` neighbours; each lane gets some of the sums.

        It is a reduce-scatter, like ``jax.lax.psum_scatter``.

        Returns:
          The pairs that a lane gets: the index of a value, i32, and the sum of that value. Sums at
          indices past the last value are zero. Each index belongs to one lane of the group.
        """
        parts = [*values, *[self.f32(0.0)] * (-len(values) % lanes)]
        first, step = self.i32(0), lanes // 2
        while step:
            # Each half of the lanes keeps half of the values and sends the others to its partner.
            half, upper = len(parts) // 2, (self.lane & step) != 0
            parts = [
                self.select(upper, b, a) + self.shuffle_xor(self.select(upper, a, b), step)
                for a, b in zip(parts[:half], parts[half:], strict=True)
            ]
            first, step = first + self.select(upper, half, self.i32(0)), step // 2
        return [(first + i, part) for i, part in enumerate(parts)]

    def shuffle_wide(self, value: Value, lane: Value) -> Value:
        """Returns the value that another lane has, like ``shuffle``, also of 64 bits."""
        if value.kind != "i64":
            return self.shuffle(value, lane)
        low, high = (self.shuffle((value >> by).to("i32"), lane) for by in (0, 32))
        return high.to("i64") << 32 | low.bits("u32").to("i64")

    def exp(self, x: Value) -> Value:
        """Returns e^x, within 2 units in the last place; NaN gives NaN."""
        # Outside of these bounds the result is zero, or infinite.
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
        """Returns the logarithm of a positive normal number, within 1 unit in the last place.

        NaN gives NaN.
        """
        bits = x.bits("i32")
        power = (bits - _TWO_THIRDS_BITS) & -(2**23)
        # x = 2^power (1 + m), m from -1/3 to 1/3; the two halves of the polynomial are independent.
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
        """Returns 1 / (1 + e^-x), at least 2^-126."""
        power = self.exp(x * -1.0)
        return self.normal_reciprocal(self.select(power > _LARGEST, _LARGEST, power) + 1.0)

    def reciprocal(self, x: Value) -> Value:
        """Returns 1 / x, rounded to nearest."""
        return self.special("rcp", x)

    def normal_reciprocal(self, x: Value) -> Value:
        """Returns 1 / x for 2^-126 to 2^126, within 1 unit in the last place; NaN gives NaN.

        It has no branch for other numbers, so the compiler can interleave several of them.
        """
        guess = self.special("guess_rcp", x)
        return self.fma(guess, self.fma(guess * -1.0, x, self.f32(1.0)), guess)

    def rsqrt(self, x: Value) -> Value:
        """Returns 1 / √x, within 2 units in the last place."""
        return self.special("rsqrt", x)

    def strided(self, stop: Any, body: Callable[[Value], None]) -> None:
        """Calls ``body(i)`` for all i below ``stop``, of which each lane takes every 32nd."""
        stop = self.integer(stop)
        self.loop(self.lane.to(stop.kind), stop, LANES, (), lambda i, _: body(i))

    # -- control flow --------------------------------------------------------------------------

    @abc.abstractmethod
    def when(self, condition: Value, body: Callable[[], None]) -> None:
        """Runs ``body`` in the lanes where the condition holds."""

    @abc.abstractmethod
    def update_when(self, condition: Value, carry: Any, body: Callable[[Any], Any]) -> Any:
        """Returns ``body(carry)`` in the lanes where the condition holds, else the carry."""

    @abc.abstractmethod
    def loop(self, start: Any, stop: Any, step: int, carry: Any, body: Callable[..., Any]) -> Any:
        """Repeats ``carry = body(i, carry)`` for i from ``start`` below ``stop``.

        Returns the last carry.
        """

    @abc.abstractmethod
    def while_loop(
        self, condition: Callable[[Any], Value], body: Callable[[Any], Any], carry: Any
    ) -> Any:
        """Repeats ``carry = body(carry)`` while the condition holds; returns the last carry."""

    @abc.abstractmethod
    def opaque_copy(self, value: Value) -> Value:
        """Returns a copy of an i32 whose origin is hidden from the compiler.

        Addresses computed from a copy of a loop counter are computed again in each step. Otherwise
        the compiler would keep each of them in a register and increment it from step to step.
        """

    # -- arithmetic ----------------------------------------------------------------------------

    @abc.abstractmethod
    def constant(self, kind: str, x: Any) -> Value:
        """Returns a constant of the given kind."""

    @abc.abstractmethod
    def binary(self, op: str, a: Value, b: Value) -> Value:
        """Returns ``add sub mul div rem and or xor shl shr min max`` of two values of one kind.

        Floats also have ``minimum`` and ``maximum``, which are NaN if one of the operands is.
        """

    @abc.abstractmethod
    def compare(self, op: str, a: Value, b: Value) -> Value:
        """Returns ``lt le gt ge eq ne`` of two values of the same kind, as a bool."""

    @abc.abstractmethod
    def select(self, condition: Value, a: Any, b: Any) -> Value:
        """Returns ``a`` where the condition holds, else ``b``; at least one of them is a Value."""

    @abc.abstractmethod
    def fma(self, a: Value, b: Value, c: Value) -> Value:
        """Returns ``a b + c``, rounded once."""

    @abc.abstractmethod
    def special(self, op: str, x: Value) -> Value:
        """Returns a special function of an f32, as the hardware computes it.

        They are ``rcp``, rounded to nearest; ``guess_rcp`` of normal numbers, within 1 unit in the
        last place; ``rsqrt``; ``normal_rsqrt``, of normal numbers and infinity; ``ex2``, two to the
        power of -1 to 1; and ``any_ex2``, two to any power, with results that are not normal
        flushed to zero.
        """

    @abc.abstractmethod
    def convert(self, value: Value, kind: str) -> Value:
        """Converts a value to another kind: numbers by their value, ``bool`` to 0 and 1."""

    @abc.abstractmethod
    def bitcast(self, value: Value, kind: str) -> Value:
        """Reinterprets the 32 bits of a value as another kind."""

    @abc.abstractmethod
    def half_to_float(self, bits: Value) -> Value:
        """Converts a float16 in the low bits of a word to f32."""

    @abc.abstractmethod
    def to_bfloat16(self, low: Value, high: Value) -> Value:
        """Rounds two f32 to the nearest bfloat16 and packs them into a word."""

    @abc.abstractmethod
    def to_float16(self, low: Value, high: Value) -> Value:
        """Rounds two f32 to the nearest float16 and packs them into a word."""

    @abc.abstractmethod
    def pairwise(self, op: str, dtype: Any, *words: Value) -> Value:
        """Returns ``add fma geu gtu`` of words that pack two bfloat16 or two float16 each.

        The comparisons return 1 or 0 in the same dtype; they are true where an operand is NaN.
        """

    @abc.abstractmethod
    def popcount(self, bits: Value) -> Value:
        """Counts the bits of a u32 that are set, i32."""

    @abc.abstractmethod
    def lowest_bit(self, bits: Value) -> Value:
        """Returns the position of the lowest set bit of a nonzero u32, i32."""

    @abc.abstractmethod
    def highest_bit(self, bits: Value) -> Value:
        """Returns the position of the highest set bit of a nonzero u32, i32."""

    # -- between the lanes: all of them have to call these -------------------------------------

    @abc.abstractmethod
    def sync(self) -> None:
        """Makes all lanes' earlier writes to memory visible to the whole warp."""

    @abc.abstractmethod
    def shuffle(self, value: Value, lane: Any) -> Value:
        """Returns the value that another lane has."""

    @abc.abstractmethod
    def shuffle_xor(self, value: Value, mask: int) -> Value:
        """Returns the value of the lane whose number differs in the bits of ``mask``."""

    @abc.abstractmethod
    def ballot(self, condition: Value) -> Value:
        """Returns the lanes where the condition holds, as bits of a u32."""

    @abc.abstractmethod
    def reduce(self, op: str, value: Value) -> Value:
        """Returns ``add``, ``min`` or ``max`` over all lanes, for integers of 32 bits."""

    @abc.abstractmethod
    def mma(
        self, a: Sequence[Value], b: Sequence[Value], c: Sequence[Value], dtype: Any = jnp.bfloat16
    ) -> list[Value]:
        """Returns ``c + a b`` of matrices of 16 x 16 and 16 x 8 numbers of 16 bits, in float32.

        The matrices are distributed over the lanes. With ``g = lane // 4`` and ``q = 2 (lane %
        4)``, a lane holds these fragments, of which those of ``a`` and ``b`` are words of two
        neighbours:

        Args:
          a: ``a[g, q:]``, ``a[g + 8, q:]``, ``a[g, q + 8:]`` and ``a[g + 8, q + 8:]``.
          b: ``b[q:, g]`` and ``b[q + 8:, g]``.
          c: ``c[g, q]``, ``c[g, q + 1]``, ``c[g + 8, q]`` and ``c[g + 8, q + 1]``, f32.
          dtype: dtype of ``a`` and ``b``, bfloat16 or float16.

        Returns:
          The four sums of the lane, at the same positions as those of ``c``.
        """

    # -- between the warps of a block: all of them have to call these --------------------------

    @abc.abstractmethod
    def barrier(self) -> None:
        """Waits until all warps of the block have arrived, and makes their writes visible."""

    @abc.abstractmethod
    def roles(self, *roles: tuple[int, Callable[[], None]]) -> None:
        """Specialises the warps of a block: groups of them run different functions concurrently.

        Args:
          roles: pairs of a number of warps and the function that they run, in the order of the
            warps' numbers.
        """

    # -- between the warps of a cluster: signals are mbarriers, see ``values.Signals`` ---------

    @abc.abstractmethod
    def cluster_arrive(self) -> None:
        """Announces that this warp has arrived: others may use the signals that it initialised."""

    @abc.abstractmethod
    def cluster_wait(self) -> None:
        """Waits until all warps of the cluster have arrived. It orders no other memory."""

    @abc.abstractmethod
    def init_signal(self, pointer: Any, number: Value, times: int) -> None:
        """Initialises a signal (an mbarrier) that completes after ``times`` arrivals."""

    @abc.abstractmethod
    def arrive_at_signal(self, pointer: Any, number: Value, nbytes: Value | None) -> None:
        """Arrives at a signal, and optionally announces bytes that have to arrive as well."""

    @abc.abstractmethod
    def wait_for_signal(self, pointer: Any, number: Value, phase: Value) -> None:
        """Waits until a signal has completed ``phase + 1`` times.

        It must not have completed more often.
        """

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
        """Writes words to shared memory of a block of the cluster, counted in its signal."""

    # -- memory --------------------------------------------------------------------------------

    @abc.abstractmethod
    def copy(
        self, target: Any, to: Value, source: Any, at: Value, nbytes: int, real: Value | None
    ) -> None:
        """Starts an asynchronous copy from global to shared memory; zeros if not ``real``."""

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
        """Starts a copy of ``count`` times 16 bytes from global to shared memory, with a signal."""

    @abc.abstractmethod
    def commit_copies(self) -> None:
        """Closes a group of copies: those that this lane has started since the last such call."""

    @abc.abstractmethod
    def wait_for_copies(self, groups: int) -> None:
        """Waits until at most ``groups`` groups of copies are still in flight."""

    @abc.abstractmethod
    def fence_async_proxy(self) -> None:
        """Orders the lane's accesses to shared memory before later ones by the copy engine."""

    @abc.abstractmethod
    def advance(self, pointer: Any, number: Value, nbytes: int) -> Any:
        """Returns a pointer that is ``number`` times ``nbytes`` further on."""

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
        """Loads ``nbytes`` from memory as u32 words; fewer than four bytes are one word."""

    @abc.abstractmethod
    def read_matrices(self, pointer: Any, index: Value) -> list[Value]:
        """Loads four matrices of 8 x 8 numbers of 16 bits from shared memory, a word per lane."""

    @abc.abstractmethod
    def write(
        self, pointer: Any, index: Value, itemsize: int, words: Sequence[Value], nbytes: int
    ) -> None:
        """Stores words to memory: ``nbytes``, from entry ``index`` of ``itemsize`` bytes on."""

    @abc.abstractmethod
    def atomic_add(self, pointer: Any, index: Value, values: Sequence[Value]) -> None:
        """Adds one f32, or four neighbours that are aligned together, to global memory.

        The addition of each number is atomic.
        """

    @abc.abstractmethod
    def prefetch(self, pointer: Any, index: Value, itemsize: int) -> None:
        """Starts to load an entry of global memory into the second-level cache."""

    @abc.abstractmethod
    def read_shared(self, pointer: Any, index: Value, kind: str) -> Value:
        """Loads a 32-bit number of the warp's own shared memory."""

    @abc.abstractmethod
    def write_shared(self, pointer: Any, index: Value, value: Value) -> None:
        """Stores a 32-bit number to the warp's own shared memory."""
