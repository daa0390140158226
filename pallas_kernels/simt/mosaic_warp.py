"""Records the calls of ``simt.warp`` as instructions of a GPU: LLVM, ``scf``, ``arith``, PTX.

This is the only module of the SIMT code that uses the builders of Mosaic GPU and MLIR, which change
between releases of JAX. ``simt.launching`` launches the recorded code.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental.mosaic.gpu import utils
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import arith, gpu, llvm, nvvm, scf

from pallas_kernels.simt.values import Value
from pallas_kernels.simt.warp import LANES, Warp

WARPS_PER_WARPGROUP = 4
_SHARED_SPACE = 3  # LLVM's address space of shared memory
_SIMT_BARRIER = 15  # the last of a block's 16 named barriers; Mosaic GPU numbers its own from 0


def _integer(width: int) -> ir.Type:
    return ir.IntegerType.get_signless(width)


def _type_of(kind: str) -> ir.Type:
    """Returns the MLIR type of a kind; integers are signless."""
    widths = {"bool": 1, "i32": 32, "u32": 32, "i64": 64}
    return ir.F32Type.get() if kind == "f32" else _integer(widths[kind])


_FLOAT_OPS = {
    "add": arith.addf,
    "sub": arith.subf,
    "mul": arith.mulf,
    "min": arith.minnumf,
    "max": arith.maxnumf,
    "minimum": arith.minimumf,
    "maximum": arith.maximumf,
}
_SIGNED_OPS = {
    "add": arith.addi,
    "sub": arith.subi,
    "mul": arith.muli,
    "div": arith.divsi,
    "rem": arith.remsi,
    "and": arith.andi,
    "or": arith.ori,
    "xor": arith.xori,
    "shl": arith.shli,
    "shr": arith.shrsi,
    "min": arith.minsi,
    "max": arith.maxsi,
}
_UNSIGNED_OPS = _SIGNED_OPS | {
    "div": arith.divui,
    "rem": arith.remui,
    "shr": arith.shrui,
    "min": arith.minui,
    "max": arith.maxui,
}
_OPS = {
    "f32": _FLOAT_OPS,
    "i32": _SIGNED_OPS,
    "i64": _SIGNED_OPS,
    "u32": _UNSIGNED_OPS,
    "bool": _UNSIGNED_OPS,
}
_PTX_TYPES = {"bfloat16": "bf16", "float16": "f16"}


class MosaicWarp(Warp):
    """Records instructions at MLIR's current insertion point; ``grid`` is a ``simt.Grid``."""

    def __init__(self, grid: Any, cluster, rank, slice_number):
        self.thread, self.threads = Value(self, "i32", utils.thread_idx()), grid.warps * LANES
        self.lane, self.warp_in_block = self.thread % LANES, self.thread // LANES
        self.slice = Value(self, "i32", slice_number.registers.item())
        self.slices, self.count = grid.slices, grid.blocks * grid.warps
        self.rank, self.cluster = Value(self, "i32", rank.registers.item()), grid.cluster
        first = Value(self, "i32", cluster.registers.item()) * grid.cluster
        self.block = first if grid.cluster == 1 else first + self.rank
        self.number = self.block * grid.warps + self.warp_in_block

    # -- control flow --------------------------------------------------------------------------

    def when(self, condition, body):
        """Records an ``scf.if`` without results."""
        branch = scf.IfOp(condition.data)
        with ir.InsertionPoint(branch.then_block):
            body()
            scf.yield_([])

    def update_when(self, condition, carry, body):
        """Records an ``scf.if`` whose else branch yields the carry unchanged."""
        leaves, tree = jax.tree.flatten(carry)
        kinds = [leaf.kind for leaf in leaves]
        branch = scf.IfOp(condition.data, [_type_of(kind) for kind in kinds], has_else=True)
        otherwise = branch.else_block
        assert otherwise is not None
        with ir.InsertionPoint(branch.then_block):
            self._yield(body(carry), kinds)
        with ir.InsertionPoint(otherwise):
            self._yield(carry, kinds)
        return self._values(tree, kinds, branch.results)

    def loop(self, start, stop, step, carry, body):
        """Records an ``scf.for``, with a counter of the kind of ``stop``."""
        start, stop = self.promote(start, stop) if isinstance(start, Value) else (start, stop)
        stop = self.integer(stop)
        start = start if isinstance(start, Value) else self.constant(stop.kind, start)
        leaves, tree = jax.tree.flatten(carry)
        kinds = [leaf.kind for leaf in leaves]
        by = self.constant(stop.kind, step).data
        op = scf.ForOp(start.data, stop.data, by, [leaf.data for leaf in leaves])
        with ir.InsertionPoint(op.body):
            inner = self._values(tree, kinds, op.inner_iter_args)
            self._yield(body(Value(self, stop.kind, op.induction_variable), inner), kinds)
        return self._values(tree, kinds, op.results)

    def while_loop(self, condition, body, carry):
        """Records an ``scf.while`` loop with the carry as its state."""
        leaves, tree = jax.tree.flatten(carry)
        kinds = [leaf.kind for leaf in leaves]
        types = [_type_of(kind) for kind in kinds]
        op = scf.WhileOp(types, [leaf.data for leaf in leaves])
        before = op.before.blocks.append(*types)
        after = op.after.blocks.append(*types)
        with ir.InsertionPoint(before):
            arguments = [*before.arguments]
            scf.condition(condition(self._values(tree, kinds, arguments)).data, arguments)
        with ir.InsertionPoint(after):
            self._yield(body(self._values(tree, kinds, after.arguments)), kinds)
        return self._values(tree, kinds, op.results)

    def opaque_copy(self, value):
        """Records a move in inline assembly, which the compiler does not look into."""
        operands = [value.data]
        return Value(
            self, "i32", llvm.inline_asm(_integer(32), operands, "mov.b32 $0, $1;", "=r,r")
        )

    def _values(self, tree, kinds, data):
        """Returns a carry of this tree, whose leaves are MLIR values of these kinds."""
        return tree.unflatten(Value(self, *pair) for pair in zip(kinds, data, strict=True))

    @staticmethod
    def _yield(results, kinds):
        """Records an ``scf.yield`` of a carry, whose kinds must not have changed."""
        leaves = jax.tree.leaves(results)
        if [leaf.kind for leaf in leaves] != kinds:
            raise TypeError(f"expected {kinds}, got {[leaf.kind for leaf in leaves]}")
        scf.yield_([leaf.data for leaf in leaves])

    # -- arithmetic ----------------------------------------------------------------------------

    def constant(self, kind, x):
        """Records an ``arith.constant`` of the kind's type."""
        mlir_type = _type_of(kind)
        if kind == "f32":
            attribute = ir.FloatAttr.get(mlir_type, float(x))
        else:
            width = {"bool": 1, "i64": 64}.get(kind, 32)
            # Attributes of signless types hold signed numbers.
            x = int(x) % 2**width
            attribute = ir.IntegerAttr.get(mlir_type, x - (x >> (width - 1) << width))
        return Value(self, kind, arith.constant(mlir_type, attribute))

    def binary(self, op, a, b):
        """Records the operation of the ``arith`` dialect for this kind."""
        return Value(self, a.kind, _OPS[a.kind][op](a.data, b.data))

    def compare(self, op, a, b):
        """Records a comparison; with NaN all but ``ne`` are false."""
        if a.kind == "f32":
            # Comparisons with NaN are false, except ``ne``.
            name = "UNE" if op == "ne" else "O" + op.upper()
            data = arith.cmpf(getattr(arith.CmpFPredicate, name), a.data, b.data)
        else:
            sign = "s" if a.kind in ("i32", "i64") else "u"
            name = op if op in ("eq", "ne") else sign + op
            data = arith.cmpi(getattr(arith.CmpIPredicate, name), a.data, b.data)
        return Value(self, "bool", data)

    def select(self, condition, a, b):
        """Records an ``arith.select`` of two values."""
        a, b = self.promote(a, b)
        return Value(self, a.kind, arith.select(condition.data, a.data, b.data))

    def fma(self, a, b, c):
        """Records a fused multiply-add of f32."""
        return Value(self, "f32", llvm.intr_fma(a.data, b.data, c.data))

    def special(self, op, x):
        """Records a PTX instruction of the special function unit."""
        # By the PTX manual: rcp.rn is correctly rounded, ex2.approx has an error of at most 2^-22.5
        # and rsqrt.approx of at most 2^-22.9 of the result, rcp.approx of 1 unit in the last place.
        names = {"rcp": "rcp.rn", "guess_rcp": "rcp.approx.ftz", "rsqrt": "rsqrt.approx"}
        names["normal_rsqrt"] = "rsqrt.approx.ftz"
        ptx = f"{names.get(op, 'ex2.approx.ftz')}.f32"
        float_type = ir.F32Type.get()
        return Value(self, "f32", llvm.inline_asm(float_type, [x.data], f"{ptx} $0, $1;", "=f,f"))

    def convert(self, value, kind):
        """Records a conversion between kinds, as far as kernels need it."""
        target = _type_of(kind)
        if {value.kind, kind} == {"i32", "u32"}:
            data = value.data
        elif value.kind == "bool" or (value.kind == "u32" and kind == "i64"):
            data = arith.extui(target, value.data)
        elif value.kind == "i32" and kind == "i64":
            data = arith.extsi(target, value.data)
        elif value.kind == "i32" and kind == "f32":
            data = arith.sitofp(target, value.data)
        elif value.kind == "i64":
            data = arith.trunci(target, value.data)
        else:
            raise NotImplementedError(f"{value.kind} to {kind}")
        return Value(self, kind, data)

    def bitcast(self, value, kind):
        """Records a bitcast; signed and unsigned integers are the same type in MLIR."""
        target = _type_of(kind)
        data = value.data if value.data.type == target else arith.bitcast(target, value.data)
        return Value(self, kind, data)

    def half_to_float(self, bits):
        """Records a widening of the lower 16 bits as float16."""
        half = arith.bitcast(ir.F16Type.get(), arith.trunci(_integer(16), bits.data))
        return Value(self, "f32", arith.extf(ir.F32Type.get(), half))

    def to_bfloat16(self, low, high):
        """Records one conversion of two f32 to a word of bfloat16."""
        return self._narrow("bf16x2", low, high)

    def to_float16(self, low, high):
        """Records one conversion of two f32 to a word of float16."""
        return self._narrow("f16x2", low, high)

    def _narrow(self, kind, low, high):
        """Records one PTX conversion of two f32 to a word of two 16-bit floats."""
        # Conversions of one number at a time are slow.
        operands = [high.data, low.data]
        ptx = f"cvt.rn.{kind}.f32 $0, $1, $2;"
        return Value(self, "u32", llvm.inline_asm(_integer(32), operands, ptx, "=r,f,f"))

    def pairwise(self, op, dtype, *words):
        """Records a PTX instruction on words of two 16-bit floats."""
        kind = _PTX_TYPES[jnp.dtype(dtype).name] + "x2"
        name = {"add": "add.rn", "fma": "fma.rn"}.get(op, f"set.{op}.{kind}")
        places = ", ".join(f"${i}" for i in range(len(words) + 1))
        constraints = ",".join(["=r", *["r"] * len(words)])
        operands = [word.data for word in words]
        data = llvm.inline_asm(_integer(32), operands, f"{name}.{kind} {places};", constraints)
        return Value(self, "u32", data)

    def popcount(self, bits):
        """Records ``llvm.ctpop``, a population count."""
        return Value(self, "i32", llvm.intr_ctpop(bits.data))

    def lowest_bit(self, bits):
        """Records ``llvm.cttz``, the number of trailing zeros."""
        return Value(self, "i32", llvm.intr_cttz(bits.data, True))

    def highest_bit(self, bits):
        """Records 31 minus the number of leading zeros."""
        return Value(self, "i32", llvm.intr_ctlz(bits.data, True)) ^ 31

    # -- between the lanes ---------------------------------------------------------------------

    def _all_lanes(self) -> ir.Value:
        return self.constant("u32", 0xFFFFFFFF).data

    def sync(self):
        """Records a ``bar.warp.sync`` of all lanes."""
        nvvm.bar_warp_sync(self._all_lanes())

    def _shuffle(self, value, lane, kind):
        clamp = self.i32(LANES - 1).data
        data = nvvm.shfl_sync(self._all_lanes(), value.data, lane.data, clamp, kind)
        return Value(self, value.kind, data)

    def shuffle(self, value, lane):
        """Records a ``shfl.sync.idx`` of all lanes."""
        return self._shuffle(value, self.integer(lane), nvvm.ShflKind.idx)

    def shuffle_xor(self, value, mask):
        """Records a ``shfl.sync.bfly`` of all lanes."""
        return self._shuffle(value, self.i32(mask), nvvm.ShflKind.bfly)

    def ballot(self, condition):
        """Records a ``vote.sync.ballot`` of all lanes."""
        kind = nvvm.VoteSyncKind.ballot
        mask = self._all_lanes()
        data = nvvm.vote_sync(mask, condition.data, kind, results=[_integer(32)])
        return Value(self, "u32", data)

    def reduce(self, op, value):
        """Records a ``redux.sync``; sums of unsigned numbers are those of signed ones."""
        names = {"add": "ADD", "min": "MIN", "max": "MAX"}
        prefix = "U" if value.kind == "u32" and op != "add" else ""
        kind = getattr(nvvm.ReductionKind, prefix + names[op])
        return Value(self, value.kind, nvvm.redux_sync(value.data, kind, self._all_lanes()))

    def mma(self, a, b, c, dtype=jnp.bfloat16):
        """Records an ``mma.sync`` of 16 x 8 x 16 numbers."""
        float_type, kind = ir.F32Type.get(), _PTX_TYPES[jnp.dtype(dtype).name]
        made = llvm.inline_asm(
            llvm.StructType.get_literal([float_type] * 4),
            [value.data for value in (*a, *b, *c)],
            f"mma.sync.aligned.m16n8k16.row.col.f32.{kind}.{kind}.f32 "
            "{$0, $1, $2, $3}, {$4, $5, $6, $7}, {$8, $9}, {$10, $11, $12, $13};",
            "=f,=f,=f,=f,r,r,r,r,r,r,f,f,f,f",
            convergent=True,  # all lanes execute it: it must not be moved behind a branch
        )
        assert isinstance(made, ir.Value)
        return [Value(self, "f32", llvm.extractvalue(float_type, made, [i])) for i in range(4)]

    # -- between the warps of a block ----------------------------------------------------------

    def barrier(self):
        """Records a barrier of the warps that run the kernel.

        If they are whole warpgroups, they are all warps of the block. Otherwise the last warpgroup
        has idle warps, which never arrive, so the barrier is one with a count of threads.
        """
        if self.threads % (WARPS_PER_WARPGROUP * LANES) == 0:
            gpu.barrier()
        else:
            self._ordered_asm(f"bar.sync {_SIMT_BARRIER}, {self.threads};")

    def roles(self, *roles):
        """Records a branch for each role, which its warps take by their number in the block."""
        first = 0
        for count, body in roles:
            mine = (self.warp_in_block >= first) & (self.warp_in_block < first + count)
            self.when(mine, body)
            first += count

    # -- between the warps of a cluster's blocks -----------------------------------------------

    def cluster_arrive(self):
        """Records a fence for initialised mbarriers, and an arrival at the cluster's barrier."""
        self._ordered_asm("fence.mbarrier_init.release.cluster;")
        if self.cluster > 1:
            # An arrival with release semantics would wait for all stores that are in flight.
            self._ordered_asm("barrier.cluster.arrive.relaxed;")

    def cluster_wait(self):
        """Records a wait at the cluster's barrier, or at the block's if it has no others."""
        if self.cluster > 1:
            self._ordered_asm("barrier.cluster.wait;")
        else:
            self.barrier()

    def init_signal(self, pointer, number, times):
        """Records an ``mbarrier.init`` in shared memory."""
        operands = [self._shared_address(pointer, number, 8), self.i32(times).data]
        self._ordered_asm("mbarrier.init.shared::cta.b64 [$0], $1;", operands, "r,r")

    def arrive_at_signal(self, pointer, number, nbytes):
        """Records an ``mbarrier.arrive``, with ``expect_tx`` if bytes are announced."""
        address = self._shared_address(pointer, number, 8)
        # Arrivals release, and waits acquire, at the scope of the block: by default.
        if nbytes is None:
            self._ordered_asm("mbarrier.arrive.shared::cta.b64 _, [$0];", [address], "r")
        else:
            ptx = "mbarrier.arrive.expect_tx.shared::cta.b64 _, [$0], $1;"
            self._ordered_asm(ptx, [address, nbytes.data], "r,r")

    def wait_for_signal(self, pointer, number, phase):
        """Records a loop of ``mbarrier.try_wait.parity``."""
        # An acquire at the scope of the cluster would also invalidate the first-level cache of
        # global memory. It is not needed: data is sent to shared memory, which is not cached.
        ptx = (
            "{ .reg .pred come; again: "
            "mbarrier.try_wait.parity.shared::cta.b64 come, [$0], $1; @!come bra again; }"
        )
        self._ordered_asm(ptx, [self._shared_address(pointer, number, 8), (phase & 1).data], "r,r")

    def send(self, pointer, index, words, rank, signal, number):
        """Records an ``st.async`` to the shared memory of a block of the cluster."""
        if self.cluster == 1:  # the instruction is illegal in a launch without clusters
            raise NotImplementedError("blocks without a cluster can not send")
        addresses = [
            self._address_in_rank(self._shared_address(*place), rank)
            for place in ((pointer, index, 4), (signal, number, 8))
        ]
        count = len(words)
        vector = f".v{count}" if count > 1 else ""
        listed = ", ".join(f"${2 + i}" for i in range(count))
        ptx = (
            f"st.async.weak.shared::cluster.mbarrier::complete_tx::bytes{vector}.b32 "
            f"[$0], {f'{{{listed}}}' if count > 1 else listed}, [$1];"
        )
        operands = [*addresses, *(word.data for word in words)]
        self._ordered_asm(ptx, operands, ",".join("r" * (2 + count)))

    def _shared_address(self, pointer, index, itemsize):
        return llvm.ptrtoint(_integer(32), self.offset(pointer, index, itemsize))

    def _address_in_rank(self, address, rank):
        """Maps an address of shared memory to the same place in another block of the cluster."""
        operands = [address, rank.data]
        ptx = "mapa.shared::cluster.u32 $0, $1, $2;"
        made = llvm.inline_asm(_integer(32), operands, ptx, "=r,r,r")
        assert isinstance(made, ir.Value)
        return made

    def _ordered_asm(
        self, ptx: str, operands: Sequence[ir.Value] = (), constraints: str = ""
    ) -> None:
        """Records inline assembly that no access to memory may be moved across."""
        clobber = ",".join(filter(None, (constraints, "~{memory}")))
        void = ir.Type.parse("!llvm.void")
        llvm.inline_asm(void, operands, ptx, clobber, has_side_effects=True, convergent=True)

    # -- memory --------------------------------------------------------------------------------

    def copy(self, target, to, source, at, nbytes, real):
        """Records a ``cp.async``; the bytes are zeros where ``real`` is false."""
        operands = [
            self._shared_address(target, to, nbytes),
            self.offset(source, at.to("i64"), nbytes),
        ]
        # Only copies of 16 bytes can bypass the first-level cache. The hint loads whole lines into
        # the second-level cache, since other lanes read the rest of a line.
        caches = "cg.shared.global.L2::128B" if nbytes == 16 else "ca.shared.global"
        if real is None:
            return self._ordered_asm(f"cp.async.{caches} [$0], [$1], {nbytes};", operands, "r,l")
        # The instruction writes zeros for bytes that are not read.
        operands.append(self.select(real, self.i32(nbytes), 0).data)
        self._ordered_asm(f"cp.async.{caches} [$0], [$1], {nbytes}, $2;", operands, "r,l,r")

    def bulk_copy(self, target, to, source, at, count, signal, number):
        """Records a ``cp.async.bulk``, whose bytes an mbarrier counts."""
        operands = [
            self._shared_address(target, to, 16),
            self.offset(source, at.to("i64"), 16),
            (count * 16).data,
            self._shared_address(signal, number, 8),
        ]
        kind = "shared::cluster.global.mbarrier::complete_tx::bytes"
        self._ordered_asm(f"cp.async.bulk.{kind} [$0], [$1], $2, [$3];", operands, "r,l,r,r")

    def commit_copies(self):
        """Records a ``cp.async.commit_group`` of this lane."""
        self._ordered_asm("cp.async.commit_group;")

    def wait_for_copies(self, groups):
        """Records a ``cp.async.wait_group`` of this lane."""
        self._ordered_asm(f"cp.async.wait_group {groups};")

    def fence_async_proxy(self):
        """Records a ``fence.proxy.async`` for shared memory."""
        self._ordered_asm("fence.proxy.async.shared::cta;")

    def offset(self, pointer, index, itemsize):
        """Returns a pointer ``index`` entries further on."""
        flags, dynamic = llvm.GEPNoWrapFlags.none, -(2**31)
        unit = _integer(8 * itemsize)
        return llvm.getelementptr(pointer.type, pointer, [index.data], [dynamic], unit, flags)

    def advance(self, pointer, number, nbytes):
        """Records pointer arithmetic in bytes, with 64 bits for global memory."""
        # Addresses of shared memory have 32 bits.
        wide = number if _is_shared(pointer) else number.to("i64")
        return self.offset(pointer, wide * nbytes, 1)

    def read(self, pointer, index, itemsize, nbytes, constant, streamed):
        """Records the widest loads that divide ``nbytes``, and unpacks them into words."""
        address = self.offset(pointer, index, itemsize)
        if streamed and nbytes == 16:
            return self._read_streamed(address)
        words = []
        for first, size in _widest_loads(nbytes):
            at = self.offset(address, self.i32(first), 1)
            kind = (
                _integer(8 * size) if size <= 4 else ir.VectorType.get((size // 4,), _integer(32))
            )
            loaded = llvm.load(kind, at, alignment=size, invariant=constant or None)
            if size < 4:
                words.append(arith.extui(_integer(32), loaded))
            elif size == 4:
                words.append(loaded)
            else:
                places = [self.i32(i).data for i in range(size // 4)]
                words += [llvm.extractelement(loaded, place) for place in places]
        return [Value(self, "u32", word) for word in words]

    def _read_streamed(self, address):
        """Loads four words with the hint that caches evict them first."""
        word = _integer(32)
        # Without side effects it would be moved to where the words are used, after other reads.
        read = llvm.inline_asm(
            llvm.StructType.get_literal([word] * 4),
            [address],
            "ld.global.cs.v4.b32 {$0, $1, $2, $3}, [$4];",
            "=r,=r,=r,=r,l",
            has_side_effects=True,
        )
        assert isinstance(read, ir.Value)
        return [Value(self, "u32", llvm.extractvalue(word, read, [i])) for i in range(4)]

    def read_matrices(self, pointer, index):
        """Records an ``ldmatrix`` of four matrices."""
        word = _integer(32)
        # It must not be moved across writes of other lanes, nor behind a branch.
        read = llvm.inline_asm(
            llvm.StructType.get_literal([word] * 4),
            [llvm.ptrtoint(word, self.offset(pointer, index, 2))],
            "ldmatrix.sync.aligned.m8n8.x4.shared.b16 {$0, $1, $2, $3}, [$4];",
            "=r,=r,=r,=r,r,~{memory}",
            has_side_effects=True,
            convergent=True,
        )
        assert isinstance(read, ir.Value)
        return [Value(self, "u32", llvm.extractvalue(word, read, [i])) for i in range(4)]

    def write(self, pointer, index, itemsize, words, nbytes):
        """Records one store of all words."""
        address = self.offset(pointer, index, itemsize)
        if nbytes < 4:
            data = arith.trunci(_integer(8 * nbytes), words[0].data)
        elif nbytes == 4:
            data = words[0].data
        else:
            data = llvm.mlir_undef(ir.VectorType.get((len(words),), _integer(32)))
            for i, word in enumerate(words):
                data = llvm.insertelement(data, word.data, self.i32(i).data)
        llvm.store(data, address, alignment=nbytes)

    def atomic_add(self, pointer, index, values):
        """Records a ``red.global.add`` of one f32 or a vector of four."""
        address = self.offset(pointer, index, 4)
        if len(values) == 1:
            ptx, constraints = "red.global.add.f32 [$0], $1;", "l,f"
        else:
            ptx, constraints = "red.global.add.v4.f32 [$0], {$1, $2, $3, $4};", "l,f,f,f,f"
        operands = [address, *(value.data for value in values)]
        void = ir.Type.parse("!llvm.void")
        llvm.inline_asm(void, operands, ptx, constraints, has_side_effects=True)

    def prefetch(self, pointer, index, itemsize):
        """Records a prefetch into the second-level cache, to be evicted last."""
        address = self.offset(pointer, index, itemsize)
        ptx, void = "prefetch.global.L2::evict_last [$0];", ir.Type.parse("!llvm.void")
        llvm.inline_asm(void, [address], ptx, "l", has_side_effects=True)

    def read_shared(self, pointer, index, kind):
        """Records a load of 32 bits."""
        address = self.offset(pointer, index, 4)
        return Value(self, kind, llvm.load(_type_of(kind), address, alignment=4))

    def write_shared(self, pointer, index, value):
        """Records a store of 32 bits."""
        llvm.store(value.data, self.offset(pointer, index, 4), alignment=4)


class WarpgroupWarp(MosaicWarp):
    """A warp of a warpgroup within a Pallas kernel: the four warps act as the whole block."""

    def __init__(self, cluster: int = 1):
        group = WARPS_PER_WARPGROUP
        thread = Value(self, "i32", utils.thread_idx())
        self.thread, self.threads = thread % (group * LANES), group * LANES
        self.lane, self.warp_in_block = thread % LANES, self.thread // LANES
        self.number, self.count = self.warp_in_block, group
        self.block = self.slice = self.rank = self.i32(0)
        self.slices, self.cluster = 1, cluster


def _is_shared(pointer: ir.Value) -> bool:
    return pointer.type == llvm.PointerType.get(_SHARED_SPACE)


def _widest_loads(nbytes: int) -> list[tuple[int, int]]:
    """Returns offsets and sizes of the widest loads that divide ``nbytes``."""
    size = math.gcd(nbytes, 16)
    return [(first, size) for first in range(0, nbytes, size)]


# -- conversions of the arguments that Pallas passes to inline code --------------------------------


def pointer_of(memref: ir.Value) -> ir.Value:
    """Returns a pointer to the first entry of a memref, in shared or global memory."""
    if utils.is_smem_ref(ir.MemRefType(memref.type)):
        return utils.memref_ptr(memref)
    return _global_pointer(memref)


def _global_pointer(memref: ir.Value) -> ir.Value:
    return llvm.addrspacecast(llvm.PointerType.get(1), utils.memref_ptr(memref))


def strides_of(memref: ir.Value) -> tuple[int, ...] | None:
    """Returns the strides of a memref in global memory, or None if it is contiguous."""
    form = ir.MemRefType(memref.type)
    if utils.is_smem_ref(form) or form.rank < 2:
        return None
    strides, _ = form.get_strides_and_offset()
    whole = [math.prod(form.shape[axis + 1 :]) for axis in range(form.rank)]
    return None if list(strides) == whole else tuple(strides)


def word_pairs(warp: MosaicWarp, registers: Any) -> list[list[Value]]:
    """Returns the 16-bit numbers of a product as pairs of words, in the order of its registers."""
    words = [
        Value(warp, "u32", utils.bitcast(pair, _integer(32))) for pair in registers.reshape(-1)
    ]
    return [words[first : first + 2] for first in range(0, len(words), 2)]
