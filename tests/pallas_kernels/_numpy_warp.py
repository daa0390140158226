"""The vocabulary of ``pallas_kernels.simt.warp`` in NumPy, of all warps at once."""

from __future__ import annotations

import functools
import threading
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pallas_kernels.simt.values import Array, Shared, Value
from pallas_kernels.simt.warp import LANES, Warp
from tests.pallas_kernels._emulated_block import BlockMemory, Schedule, Signal

_DTYPES = {"bool": np.bool_, "i32": np.int32, "u32": np.uint32, "i64": np.int64, "f32": np.float32}
_OPS: dict[str, Any] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.floor_divide,
    "rem": np.remainder,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "shl": np.left_shift,
    "shr": np.right_shift,
    "min": np.fmin,
    "max": np.fmax,
    "minimum": np.minimum,
    "maximum": np.maximum,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "geu": lambda a, b: ~(a < b),
    "gtu": lambda a, b: ~(a <= b),
    "eq": np.equal,
    "ne": np.not_equal,
}


class NumpyWarp(Warp):
    """All warps of a slice, [warps, lanes], of which some lanes are active."""

    def __init__(self, grid, slice_number, seed=0):
        self.count, self.slices = grid.blocks * grid.warps, grid.slices
        shape = (self.count, LANES)
        self.lane = Value(self, "i32", np.broadcast_to(np.arange(LANES, dtype=np.int32), shape))
        numbers = np.arange(self.count, dtype=np.int32)[:, None]
        self.number = Value(self, "i32", np.broadcast_to(numbers, shape))
        self.warps, self.threads = grid.warps, grid.warps * LANES
        self.block = self.number // grid.warps
        self.thread = self.number % grid.warps * LANES + self.lane
        self.block_memories: list[BlockMemory] = []
        self.rank, self.cluster = self.block % grid.cluster, grid.cluster
        assert grid.blocks % grid.cluster == 0
        self.slice = self.i32(slice_number)
        # Vector clocks: what each warp knows of those of its cluster, and of what each has sent.
        # Own time goes on when the lanes synchronise; others are told of the time before.
        self.peers = grid.cluster * grid.warps
        self.clocks = np.zeros((self.count, 2 * self.peers), np.int32)
        self._tick(np.arange(self.count))
        self.signals: dict[Any, Signal] = {}
        # How often warps have arrived and waited.
        self.arrived, self.waited = np.zeros((2, self.count), int)
        self.schedule = Schedule(seed)
        # Roles have threads of their own.
        self._local = threading.local()
        self._begin(np.ones(shape, bool))

    def _begin(self, active):
        self._local.active, self._local.copies = active, [[]]

    @property
    def active(self):
        """Lanes that run, [warps, lanes]."""
        return self._local.active

    @active.setter
    def active(self, lanes):
        self._local.active = lanes

    @property
    def copies(self):
        """Groups of copies that were begun."""
        return self._local.copies

    def now(self, warps):
        """Their own clocks."""
        return self.clocks[warps, warps % self.peers]

    def _tick(self, warps):
        self.clocks[warps, warps % self.peers] += 1

    def _told(self, warps):
        """What others learn of a warp: its lanes know of one another up to their last sync."""
        clocks = self.clocks[warps]
        clocks[np.arange(len(warps)), warps % self.peers] -= 1
        return clocks

    def _active_threads(self):
        """Of all blocks, [active]."""
        return (self.number.data * LANES + self.lane.data)[self.active]

    def _active_warps(self):
        return np.flatnonzero(self.active.any(1))

    def array(self, data, constant):
        memory = np.ascontiguousarray(data).reshape(-1).view(np.uint8)
        assert np.shares_memory(memory, data) or constant
        return Array(self, (memory, np.int64(0)), data.shape, data.dtype, constant)

    def shared(self, kind, count):
        shape = (self.count, count)
        words = np.full(shape, np.nan if kind == "f32" else 2**30, _DTYPES[kind])
        return Shared(self, (words, np.full(shape, -1), np.full(shape, -1)), kind)

    def block_shared(self, form):
        memory = BlockMemory(self, form.dtype.itemsize * form.size)
        self.block_memories.append(memory)
        start = self.block.data.astype(np.int64) * memory.size
        return Array(self, (memory, start, self.block.data), form.shape, form.dtype, False)

    def end(self):
        """No block may end before others have sent to it."""
        assert (self.arrived == self.waited).all(), "arrived and did not wait"
        assert not self.schedule.messages, "sent, and nobody waited for it"
        assert not any(signal.nbytes for signal in self.signals.values()), "bytes that never came"
        for memory in self.block_memories:
            memory.check_the_end()

    def _value(self, kind, data):
        return Value(self, kind, np.asarray(data).astype(_DTYPES[kind], copy=False))

    # -- control flow

    def when(self, condition, body):
        outer = self.active
        self.active = outer & condition.data
        if self.active.any():
            body()
        self.active = outer

    def update_when(self, condition, carry, body):
        outer, mask = self.active, self.active & condition.data
        if not mask.any():
            return carry
        self.active = mask
        after = body(carry)
        self.active = outer
        return self._where(mask, after, carry)

    def _where(self, mask, new, old):
        def choose(new, old):
            return self._value(new.kind, np.where(mask, new.data, old.data))

        return jax.tree.map(choose, new, old)

    def opaque_copy(self, value):
        return value

    def loop(self, start, stop, step, carry, body):
        start, stop = self.promote(start, stop) if isinstance(start, Value) else (start, stop)
        stop = self.integer(stop)
        number = start if isinstance(start, Value) else self.constant(stop.kind, start)

        def advance(state):
            number, carry = state
            return number + step, () if (made := body(number, carry)) is None else made

        return self.while_loop(lambda state: state[0] < stop, advance, (number, carry))[1]

    def while_loop(self, condition, body, carry):
        outer = self.active
        while True:
            self.active = outer & condition(carry).data
            if not self.active.any():
                break
            mask = self.active
            carry = self._where(mask, body(carry), carry)
        self.active = outer
        return carry

    # -- arithmetic

    def constant(self, kind, x):
        if kind in ("u32", "i32") and not isinstance(x, bool):
            x = int(x) % 2**32
            x = x - 2**32 if kind == "i32" and x >= 2**31 else x
        return self._value(kind, np.full((self.count, LANES), x, _DTYPES[kind]))

    def binary(self, op, a, b):
        return self._value(a.kind, _OPS[op](a.data, b.data))

    def compare(self, op, a, b):
        return self._value("bool", _OPS[op](a.data, b.data))

    def select(self, condition, a, b):
        a, b = self.promote(a, b)
        return self._value(a.kind, np.where(condition.data, a.data, b.data))

    def fma(self, a, b, c):
        return self._value("f32", a.data.astype(np.float64) * b.data + c.data)

    def special(self, op, x):
        exact = {
            "rcp": np.reciprocal,
            "guess_rcp": lambda x: 1 / x * (1 + 2.0**-23),
            "rsqrt": lambda x: 1 / np.sqrt(x),
            "ex2": lambda x: np.exp2(x),
            "normal_rsqrt": lambda x: 1 / np.sqrt(x),
            "any_ex2": lambda x: np.where(x < -126, 0, np.exp2(x)),
        }[op]
        normal = (np.abs(x.data) >= 2.0**-126) & (np.abs(x.data) <= 2.0**126) | np.isnan(x.data)
        assert op != "guess_rcp" or normal[self.active].all(), "not normal"
        assert op != "normal_rsqrt" or not (x.data[self.active] < 2.0**-126).any(), "not normal"
        assert op != "ex2" or not (np.abs(x.data[self.active]) > 1).any(), "outside of -1 to 1"
        return self._value("f32", exact(x.data.astype(np.float64)))

    def convert(self, value, kind):
        return self._value(kind, value.data)

    def bitcast(self, value, kind):
        return self._value(kind, np.ascontiguousarray(value.data).view(_DTYPES[kind]))

    def half_to_float(self, bits):
        return self._value("f32", bits.data.astype(np.uint16).view(np.float16))

    def to_bfloat16(self, low, high):
        return self._narrow(jnp.bfloat16, low, high)

    def to_float16(self, low, high):
        return self._narrow(np.float16, low, high)

    def _narrow(self, dtype, low, high):
        low, high = (x.data.astype(dtype).view(np.uint16) for x in (low, high))
        return self._value("u32", low | high.astype(np.uint32) << 16)

    def pairwise(self, op, dtype, *words):
        halves = [np.stack([_half_of_word(w, i, dtype) for i in range(2)]) for w in words]
        made = halves[0] * halves[1] + halves[2] if op == "fma" else _OPS[op](*halves)
        bits = made.astype(np.float32).astype(dtype).view(np.uint16).astype(np.uint32)
        return self._value("u32", bits[0] | bits[1] << np.uint32(16))

    def popcount(self, bits):
        return self._value("i32", np.bitwise_count(bits.data))

    def lowest_bit(self, bits):
        return self._value("i32", np.bitwise_count((bits.data & -bits.data) - np.uint32(1)))

    def highest_bit(self, bits):
        return self._value("i32", np.frexp(bits.data.astype(np.float64))[1] - 1)

    # -- between the lanes

    def _all_take_part(self):
        assert (self.active.all(1) | ~self.active.any(1)).all(), "a warp is divided"

    def sync(self):
        self._all_take_part()
        self._tick(self._active_warps())

    def shuffle(self, value, lane):
        self._all_take_part()
        lanes = np.broadcast_to(self.integer(lane).data % LANES, value.data.shape)
        return self._value(value.kind, np.take_along_axis(value.data, lanes, 1))

    def shuffle_xor(self, value, mask):
        return self.shuffle(value, self.lane ^ mask)

    def ballot(self, condition):
        self._all_take_part()
        bits = (condition.data.astype(np.uint64) << np.arange(LANES, dtype=np.uint64)).sum(1)
        return self._value("u32", np.repeat(bits[:, None], LANES, 1))

    def reduce(self, op, value):
        self._all_take_part()
        reduced = getattr(value.data, {"add": "sum"}.get(op, op))(1, keepdims=True)
        return self._value(value.kind, np.repeat(reduced, LANES, 1))

    def mma(self, a, b, c, dtype=jnp.bfloat16):
        self._all_take_part()
        lanes = np.arange(LANES)
        g, q = lanes // 4, 2 * (lanes % 4)
        left, right = (np.zeros((self.count, *shape)) for shape in ((16, 16), (16, 8)))
        total = np.zeros((self.count, 16, 8))
        for half in range(2):
            for i, word in enumerate(a):
                left[:, g + i % 2 * 8, q + i // 2 * 8 + half] = _half_of_word(word, half, dtype)
            for i, word in enumerate(b):
                right[:, q + i * 8 + half, g] = _half_of_word(word, half, dtype)
            for i in range(2):
                total[:, g + i * 8, q + half] = c[2 * i + half].data
        total += left @ right
        places = [(g + i * 8, q + half) for i in range(2) for half in range(2)]
        return [self._value("f32", total[:, row, column]) for row, column in places]

    # -- between the warps of a block

    def barrier(self):
        active = self.active.reshape(-1, self.threads)
        assert (active.all(1) | ~active.any(1)).all(), "a block is divided"
        here = active.any(1)
        clocks = self.clocks.reshape(len(here), self.warps, -1)
        clocks[here] = clocks[here].max(1, keepdims=True)
        self.sync()

    def roles(self, *roles):
        assert sum(count for count, _ in roles) == self.warps
        in_block, first, bodies = self.number.data % self.warps, 0, []
        outer = self.active
        assert outer.all(), "roles of some lanes"
        for count, body in roles:
            mine = (in_block >= first) & (in_block < first + count)
            for block in range(self.count // self.warps):
                bodies.append(
                    functools.partial(self._play, mine & (self.block.data == block), body)
                )
            first += count
        assert self.copies == [[]], "copies under way"
        self.schedule.run(bodies)

    def _play(self, mine, body):
        self._begin(np.broadcast_to(mine, (self.count, LANES)))
        body()

    # -- between the warps of a cluster's blocks

    def cluster_arrive(self):
        self._all_take_part()
        warps = self._active_warps()
        assert (self.arrived == self.waited)[warps].all(), "arrived twice"
        self.arrived[warps] += 1

    def cluster_wait(self):
        self._all_take_part()
        warps = self._active_warps()
        assert (self.arrived == self.waited + 1)[warps].all(), "waited without having arrived"
        clusters = np.unique(warps // self.peers)
        arrived = self.arrived.reshape(-1, self.peers)
        number = self.waited[warps].max() + 1
        self.schedule.wait(lambda: (arrived[clusters] >= number).all())
        self.waited[warps] += 1

    def init_signal(self, pointer, number, times):
        places = self._bytes(pointer, number, 8, 8)[:, 0]
        assert not self.arrived[self._active_warps()].any(), "made when others may use it"
        for place, thread in zip(places, self._active_threads(), strict=True):
            assert (pointer[0], place) not in self.signals and place % 8 == 0
            self.signals[pointer[0], place] = Signal(thread // LANES, times, 2 * self.peers)

    def _signals(self, pointer, number):
        """Those of the active lanes, which are in one block, and the warps of these lanes."""
        places = self._bytes(pointer, number, 8, 8)[:, 0]
        warps = self._active_threads() // LANES
        signals = [self.signals[pointer[0], place] for place in places]
        own = warps == [signal.maker for signal in signals]
        assert ((self.waited[warps] > 0) | own).all(), "signals that may not have been made"
        return signals, warps

    def arrive_at_signal(self, pointer, number, nbytes):
        signals, warps = self._signals(pointer, number)
        announced = np.zeros(len(warps), int) if nbytes is None else nbytes.data[self.active]
        for signal, told, count in zip(signals, self._told(warps), announced, strict=True):
            signal.change(1, int(count), told)

    def wait_for_signal(self, pointer, number, phase):
        signals, warps = self._signals(pointer, number)
        phases = phase.data[self.active].tolist()
        waiting = {*zip(signals, phases, warps.tolist(), strict=True)}

        def come():
            # Of a phase only the lowest bit is known to the GPU.
            assert all(signal.phase - phase in (0, 1) for signal, phase, _ in waiting), "missed"
            return all(signal.phase > phase for signal, phase, _ in waiting)

        for signal, phase, warp in waiting:
            # Where the phase before is not over yet, the GPU takes the one before that for this.
            assert phase <= signal.phase, "waits for the phase after the next"
            known = phase == 0 or (self.clocks[warp] >= signal.over[phase - 1]).all()
            assert known, "waits for a phase without knowing that the one before is over"
        self.schedule.wait(come)
        for signal, phase, warp in waiting:
            self.clocks[warp] = np.maximum(self.clocks[warp], signal.over[phase])

    def send(self, pointer, index, words, rank, signal, number):
        assert self.cluster > 1, "an H200 calls it illegal in a launch without clusters"
        count = 4 * len(words)
        places = self._bytes(self._of_block(pointer, rank), index, 4, count)
        assert (places[:, 0] % count == 0).all(), "not aligned"
        data = self._bytes_of_words(words, count)
        self._send(pointer[0], places, data, self._of_block(signal, rank), number)

    def bulk_copy(self, target, to, source, at, count, signal, number):
        outer = self.active
        for size in np.unique(count.data[outer]):
            self.active = outer & (count.data == size)
            places = self._bytes(target, to, 16, 16 * size)
            data = source[0][self._bytes(source, at, 16, 16 * size)]
            assert not target[0].written_by_lanes(places), "fetched there without a fence"
            assert size > 0 and (places[:, 0] % 16 == 0).all(), "not aligned"
            self._send(target[0], places, data, signal, number)
        self.active = outer

    def _send(self, memory, places, data, signal, number):
        """Bytes of the active lanes, which come later."""
        signals, warps = self._signals(signal, number)
        assert len(np.unique(places)) == places.size, "two lanes send to one place"
        assert not memory.under_way[places].any(), "sent over what is under way"
        memory.under_way[places] = True
        clock = self.peers + warps % self.peers
        self.clocks[np.unique(warps), np.unique(clock)] += 1
        told = self._told(warps)

        for signal in {*signals}:
            mine = np.array([other is signal for other in signals])
            place, time = clock[mine][:, None], told[mine, clock[mine]][:, None]

            def deliver(signal=signal, mine=mine, place=place, time=time):
                memory.receive(places[mine], data[mine], told[mine], place, time)
                signal.change(0, -data[mine].size, told[mine].max(0))

            self.schedule.messages.append(deliver)

    def _of_block(self, pointer, rank):
        memory, start, block = pointer
        other = block - self.rank.data + rank.data
        assert ((rank.data >= 0) & (rank.data < self.cluster))[self.active].all(), "no such block"
        return memory, start + (other - block).astype(np.int64) * memory.size, other

    # -- memory

    def copy(self, target, to, source, at, nbytes, real):
        places = self._bytes(target, to, nbytes, nbytes)
        data = np.zeros(places.shape, np.uint8)
        is_real = np.ones(len(places), bool) if real is None else real.data[self.active]
        all_active = self.active
        self.active = all_active if real is None else all_active & real.data
        data[is_real] = source[0][self._bytes(source, at, nbytes, nbytes)]
        self.active = all_active
        assert (places[:, 0] % nbytes == 0).all(), "not aligned"
        threads = self._active_threads()
        # Until it is waited for there is nothing to be seen.
        assert not target[0].under_way[places].any(), "two copies to one place"
        target[0].write(places, threads, np.full_like(data, 0xFF))
        target[0].under_way[places] = True
        self.copies[-1].append((target[0], places, threads, data))

    def commit_copies(self):
        self.copies.append([])

    def wait_for_copies(self, groups):
        for group in self.copies[: len(self.copies) - 1 - groups]:
            for memory, places, *copy in group:
                memory.under_way[places] = False
                memory.write(places, *copy)
            group.clear()

    def fence_async_proxy(self):
        """No copy engine is emulated that could come before."""

    def advance(self, pointer, number, nbytes):
        return pointer[0], pointer[1] + number.data.astype(np.int64) * nbytes, *pointer[2:]

    def _bytes(self, pointer, index, itemsize, nbytes):
        """Active lanes' byte places, [active, nbytes], checked."""
        memory, start = pointer[:2]
        places = (start + index.data.astype(np.int64) * itemsize)[self.active]
        first = pointer[2][self.active].astype(np.int64) * memory.size if pointer[2:] else 0
        inside = (places >= first) & (places + nbytes <= first + memory.size)
        assert inside.all(), "outside of an array"
        return places[:, None] + np.arange(nbytes)

    def read(self, pointer, index, itemsize, nbytes, constant, streamed):
        assert constant or not streamed
        places = self._bytes(pointer, index, itemsize, nbytes)
        assert (places[:, 0] % np.gcd(nbytes, 16) == 0).all(), "not aligned"
        if _is_shared(pointer):
            read = pointer[0].read(places, self._active_threads())
        else:
            read = pointer[0][places]
        read = np.pad(read, ((0, 0), (0, -nbytes % 4)))
        words = np.ascontiguousarray(read).view(np.uint32)
        result = np.zeros((words.shape[1], self.count, LANES), np.uint32)
        result[:, self.active] = words.T
        return [self._value("u32", word) for word in result]

    def read_matrices(self, pointer, index):
        self._all_take_part()
        rows = self.read(pointer, index, 2, 16, False, False)
        lanes = np.arange(LANES)

        def words_of(matrix):
            # Lane 4 g + q gets word q of what lane 8 matrix + g read.
            given = [row.data[:, 8 * matrix + lanes // 4] for row in rows]
            return self._value("u32", np.choose(lanes % 4, given))

        return [words_of(matrix) for matrix in range(4)]

    def write(self, pointer, index, itemsize, words, nbytes):
        places = self._bytes(pointer, index, itemsize, nbytes)
        assert (places[:, 0] % nbytes == 0).all(), "not aligned"
        assert len(np.unique(places)) == places.size, "two lanes write one place"
        data = self._bytes_of_words(words, nbytes)
        if _is_shared(pointer):
            pointer[0].write(places, self._active_threads(), data)
        else:
            pointer[0][places] = data

    def _bytes_of_words(self, words, nbytes):
        data = np.stack([word.data[self.active] for word in words], 1).astype(np.uint32)
        return np.ascontiguousarray(data).view(np.uint8)[:, :nbytes]

    def atomic_add(self, pointer, index, values):
        places = self._bytes(pointer, index, 4, 4 * len(values))
        assert (places[:, 0] % (4 * len(values)) == 0).all(), "not aligned"
        for i, value in enumerate(values):
            at = places[:, 4 * i] // 4
            np.add.at(pointer[0].view(np.float32), at, value.data[self.active])

    def prefetch(self, pointer, index, itemsize):
        self._bytes(pointer, index, itemsize, itemsize)

    def _place(self, pointer, index):
        warps, lanes = np.nonzero(self.active)
        index = np.broadcast_to(index.data, self.active.shape)[self.active]
        assert (index >= 0).all() and (index < pointer[0].shape[1]).all(), (
            "outside of shared memory"
        )
        return warps, index, lanes

    def read_shared(self, pointer, index, kind):
        words, writers, epochs = pointer
        warps, at, lanes = self._place(pointer, index)
        seen = (writers[warps, at] == lanes) | (epochs[warps, at] < self.now(warps))
        assert seen.all(), "read before the writer was waited for"
        result = np.zeros(self.active.shape, _DTYPES[kind])
        result[self.active] = words[warps, at]
        return self._value(kind, result)

    def write_shared(self, pointer, index, value):
        words, writers, epochs = pointer
        warps, at, lanes = self._place(pointer, index)
        assert len(set(zip(warps.tolist(), at.tolist(), strict=True))) == len(at), (
            "two lanes write one place"
        )
        words[warps, at] = value.data[self.active]
        writers[warps, at], epochs[warps, at] = lanes, self.now(warps)


def _half_of_word(word, half, dtype):
    bits = (word.data >> np.uint32(16 * half) & np.uint32(0xFFFF)).astype(np.uint16)
    return bits.view(dtype).astype(np.float64)


def _is_shared(pointer) -> bool:
    return isinstance(pointer[0], BlockMemory)
