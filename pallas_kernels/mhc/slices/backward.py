"""Gradients to the streams and to phi, by tensor cores with inputs from the copy engine.

This kernel supports bfloat16 streams. Each warpgroup of a block (see ``mhc.slices.shapes``) has
some of the streams. It has a ring whose stages hold one stream of one tile, copied ahead; the
gradient is written to global memory from the same stage.

Where an ``mhc_post`` reads the streams too, its part of their gradient is either given and added,
or computed here from the gradients to the new streams, which are then among the inputs of tokens.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl

from pallas_kernels import tensor_cores as tc
from pallas_kernels.chip import Chip
from pallas_kernels.mhc.slices import shapes as common
from pallas_kernels.mhc.slices.shapes import FEW_PARTS, Slices, TokenParts, Walker
from pallas_kernels.mhc.slices.shares import Shares
from pallas_kernels.tensor_cores import COLUMNS, ROWS
from pallas_kernels.tensor_cores.bfloat16_parts import PARTS, products

_STREAMS = (2, 4)  # With more, a block's part of phi leaves no room to copy ahead.


class FollowingPost(NamedTuple):
    """The ``mhc_post`` of the same layer, which also reads the streams, and its cotangent.

    Attributes:
      h_post: weights of the layer's output, [tokens, n] float32.
      h_res: matrices that mix the streams, [tokens, n, n] float32.
      dy: gradient of the new streams, [tokens, n, dim].
      transposed: whether the matrices ``h_res`` are transposed.
    """

    h_post: jax.Array
    h_res: jax.Array
    dy: jax.Array
    transposed: bool


@dataclass(frozen=True)
class SlicesTile:
    """Division of tokens and streams among blocks and warpgroups.

    Attributes:
      shares: how tiles are assigned to blocks.
      warpgroups: warpgroups of a block, a divisor of the number of streams.
      stages: stages of each warpgroup's ring of streams: at least its number of streams, and two.
      slots: stages of the ring of inputs of tokens, two at least.
      reverse: whether to process the last tokens first, some of which are still in a cache.
    """

    shares: Shares
    warpgroups: int
    stages: int
    slots: int
    reverse: bool = True

    @classmethod
    def choose(cls, chip: Chip, tokens: int, form: Slices, dtype) -> SlicesTile | None:
        """The only heuristic: one wave of blocks that copy ahead; None if there is no tile."""
        if form.n not in _STREAMS or not common.runs_here(chip, tokens, dtype):
            return None
        # With a gradient to add and one stage more, an H200 took as long for 1280 columns and 4 %
        # longer for 7168; with one stage less, a quarter longer.
        stages = 4 if form.mixes else 3 if form.adds else 6
        return cls(Shares.even(chip, form.slices, tokens), warpgroups=2, stages=stages, slots=2)

    def scratch(self, form: Slices, dtype) -> dict[str, Any]:
        """Shared memory and barriers of a block."""
        ring = (self.warpgroups, self.stages)
        stage = (*ring, ROWS, COLUMNS)
        added = [tc.tiles(dtype, *stage)] * form.adds
        return {
            **form.shared_of_tokens(self.slots, form.coefficients, self.warpgroups, dtype),
            "phi": common.factors(dtype, FEW_PARTS, form.n, form.padded, COLUMNS),
            "loaded": tc.Barrier(num_arrivals=FEW_PARTS * form.n),
            "streams": [common.factors(dtype, *stage), *added],
            "full": tc.Barrier(num_arrivals=1 + form.adds, num_barriers=ring),
        }


def slices_backward(
    x: jax.Array,
    dh_in: jax.Array,
    dx: jax.Array | None,
    phi: jax.Array,
    token: TokenParts,
    tile: SlicesTile,
    following: FollowingPost | None = None,
) -> tuple[jax.Array, jax.Array]:
    """Partial sums of the gradient to phi, and the gradient to the streams.

    Args:
      x: the streams, [tokens, n, dim] bfloat16, tokens a multiple of 8.
      dh_in: gradient of the layer's input, [tokens, dim].
      dx: another gradient of the streams to be added, [tokens, n, dim], or None.
      phi: projection with ``gamma`` folded in, [n n + 2 n, n dim] float32.
      token: other inputs of each token; with the coefficients of ``mhc_post`` if that follows.
      tile: how blocks share the work, from ``SlicesTile.choose``.
      following: instead of ``dx``, the ``mhc_post`` whose backward pass gives it.

    Returns:
      The gradient to phi over each range of tokens, [ranges, n dim, rows]; and that to ``x``.
    """
    tokens, n, dim = x.shape
    form = Slices(n, dim, adds=dx is not None, mixes=following is not None)
    flat = jax.ShapeDtypeStruct((tokens, n * dim), x.dtype)
    sums = jax.ShapeDtypeStruct((tile.shares.parts, n * dim, form.rows), jnp.float32)
    call = tc.launch(
        functools.partial(_backward, form, tile, bool(following and following.transposed)),
        "mhc_pre_backward",
        {"dx": flat, "sums": sums},
        (tile.shares.blocks(form.slices), 1),
        tile.warpgroups,
        tile.scratch(form, x.dtype),
        barriers=False,
    )
    mixed = {"dy": following.dy.reshape(flat.shape)} if following else {}
    per_token = {"dh_in": dh_in, **token._asdict(), **mixed}
    streams = [a.reshape(flat.shape) for a in (x, dx) if a is not None]
    made = call(per_token, streams, form.parts_of_phi(phi))
    return made["sums"], made["dx"].reshape(x.shape)


def _backward(form, tile, transposed, scratch, per_token, streams, phi, results) -> None:
    """Runs one warpgroup of the kernel."""
    arrays = {"streams": streams, "phi": phi, "transposed": transposed, **results}
    walker = _StreamByStream if form.adds else _AllStreams
    walker.current(form, tile, scratch, per_token, **arrays).run_all_turns()


@dataclass(frozen=True)
class _Walker(Walker):
    """A warpgroup, which has some of the streams of a slice.

    Attributes:
      transposed: whether the matrices ``h_res`` are transposed.
      streams: x, and the gradient to add if there is one, [tokens, columns].
      phi: bfloat16 parts of phi, [parts, rows, columns].
      dx: gradient to the streams, [tokens, columns].
      sums: gradient to phi over each range of tokens, [ranges, columns, rows].
    """

    transposed: bool
    streams: Sequence
    phi: Any
    dx: Any
    sums: Any

    def run(self) -> None:
        """Processes all tiles of a turn, and writes the gradient to phi over them."""
        self._load_first()
        totals = tuple(self.zeros() for _ in range(self._own))
        totals = lax.fori_loop(0, self.count, self._process_tile, totals)
        for k, total in enumerate(totals):
            self.sums.at[self.range_number, self.columns(self._stream(k))][...] = total
        # Every phase of a barrier is waited for, also the last.
        pl.when(self.number == 0)(functools.partial(self.refill_tokens, self.count))
        tc.wait_smem_to_gmem(0)

    def _process_tile(self, i, totals):
        """Writes the gradients of tile ``i``; returns ``totals`` plus its gradients to phi."""
        raise NotImplementedError

    @property
    def _own(self) -> int:
        """Number of streams of a warpgroup."""
        return self.form.n // self.tile.warpgroups

    def _stream(self, k: int):
        """The ``k``-th stream of this warpgroup."""
        return self.number * self._own + k

    def _ring(self, i, k):
        """Index of the stage for the ``k``-th stream of tile ``i``, or ``k`` streams further on."""
        return self.number, lax.rem(i * self._own + k, self.tile.stages)

    def _load_first(self) -> None:
        """Begins to copy the first streams and inputs of tokens, and loads phi."""
        for ahead in range(self.tile.stages):
            self._load_stage(jnp.int32(0), ahead)

        def load():
            self.load_first_tokens()
            for stream in range(self.form.n):
                for part in range(FEW_PARTS):
                    source = self.phi.at[part, :, self.columns(stream)]
                    target = self.scratch["phi"].at[part, stream]
                    tc.copy_gmem_to_smem(source, target, self.scratch["loaded"])

        pl.when(self.number == 0)(load)
        tc.barrier_wait(self.scratch["loaded"])

    def _load_stage(self, i, ahead: int) -> None:
        """Begins to copy the stream ``ahead`` of the first of tile ``i``, if there is one."""
        tile, stream = i + ahead // self._own, self._stream(ahead % self._own)
        at = self._ring(i, ahead)

        def load():
            for source, target in zip(self.streams, self.scratch["streams"], strict=True):
                source = source.at[self.rows(tile), self.columns(stream)]
                tc.copy_gmem_to_smem(source, target.at[*at], self.scratch["full"].at[*at])

        pl.when(tile < self.count)(load)

    def _start_products(self, stages: Sequence[_Stage], slot) -> None:
        """Starts products: the gradients of these stages through phi, then those to phi."""
        phi, dh_mix = self.scratch["phi"], self.scratch["dh_mix"].at[slot]
        for stage in stages:
            parts = [phi.at[part, stage.stream] for part in range(FEW_PARTS)]
            self.add_through_phi(stage.through_phi, dh_mix, parts)
        for stage in stages:
            self.add_for_phi(stage.for_phi, self.scratch["streams"][0].at[*stage.at], dh_mix)

    def _through_phi(self, stages: Sequence[_Stage], k: int) -> jax.Array:
        """Waits for the gradient of the ``k``-th of these stages through phi."""
        # The number of products that were started later. If it were too large, a result would be
        # incomplete, which only shows on a GPU.
        later = len(stages) - 1 - k
        behind = later * len(products(FEW_PARTS, FEW_PARTS)) + len(stages) * PARTS
        return tc.wgmma_accumulator_load(stages[k].through_phi, wait_n=behind)

    def _multiply(self, i, own: Sequence[int], body):
        """Calls ``body`` with some stages of tile ``i`` and their accumulators.

        Returns:
          The result of ``body``, and the gradients to phi, once their products have completed.
        """
        shapes = [(ROWS, COLUMNS)] * len(own) + [(COLUMNS, self.form.padded)] * len(own)

        def run(*sums):
            pairs = zip(own, sums, sums[len(own) :], strict=False)
            stages = [_Stage(self._stream(k), self._ring(i, k), *pair) for k, *pair in pairs]
            made = body(stages)
            return made, [stage.for_phi[...][:, : self.form.rows] for stage in stages]

        return pl.run_scoped(run, *(tc.ACC(shape, jnp.float32) for shape in shapes))

    def _stage_gradient(self, i, k: int, dx) -> Any:
        """Overwrites a stage by ``dx``; returns the function that copies it, for after a sync."""
        staged = self.scratch["streams"][-1].at[*self._ring(i, k)]
        staged[...] = dx.astype(self.dx.dtype)
        target = self.dx.at[self.rows(i), self.columns(self._stream(k))]
        return functools.partial(tc.copy_smem_to_gmem, staged, target)


class _Stage(NamedTuple):
    """A stage of the ring of streams, and the accumulators of its products.

    Attributes:
      stream: number of the stream.
      at: index of the stage in shared memory.
      through_phi: accumulator of the gradient of the stream through phi, [tokens, columns].
      for_phi: accumulator of the gradient to phi, [columns, padded rows].
    """

    stream: Any
    at: Any
    through_phi: Any
    for_phi: Any


@dataclass(frozen=True)
class _StreamByStream(_Walker):
    """Processes streams one after the other; gradients replace those that were added to them."""

    def _process_tile(self, i, totals):
        slot, made = self.wait_for_tokens(i), []
        for k, total in enumerate(totals):
            tc.barrier_wait(self.scratch["full"].at[*self._ring(i, k)])
            dx, (more,) = self._multiply(i, [k], functools.partial(self._gradient, i, k, slot))
            made.append(total + more)
            if k == 0:
                pl.when(self.number == 0)(functools.partial(self.refill_tokens, i))
            start_copy = self._stage_gradient(i, k, dx)
            tc.commit_smem()
            start_copy()
        tc.barrier_arrive(self.scratch["done"].at[slot])
        return tuple(made)

    def _gradient(self, i, k: int, slot, stages: Sequence[_Stage]) -> jax.Array:
        """The gradient of a stage; meanwhile begins to copy into the previous stage."""
        self._start_products(stages, slot)
        direct = self._direct(slot, *stages)
        tc.wait_smem_to_gmem(0, wait_read_only=True)
        ahead = k - 1 + self.tile.stages
        pl.when(i * self._own + k > 0)(lambda: self._load_stage(i, ahead))
        return direct + self._through_phi(stages, 0)

    def _direct(self, slot, stage: _Stage) -> jax.Array:
        """The gradient except the part through phi."""
        x, added = (common.load(ring.at[*stage.at]) for ring in self.scratch["streams"])
        numbers = self.form.n, stage.stream
        scale, h_pre = (self.coefficient(slot, number, COLUMNS) for number in numbers)
        # In this order each addition fuses with a product.
        return h_pre * common.load(self.scratch["dh_in"].at[slot]) + added + scale * x


@dataclass(frozen=True)
class _AllStreams(_Walker):
    """Processes all streams of a tile together, since they share the inputs of tokens.

    On an H200, 16384 tokens, 1280 wide, took 0.139 ms, and 0.160 ms one stream after the other.
    """

    def _process_tile(self, i, totals):
        own = range(self._own)
        pl.when(i > 0)(functools.partial(self._refill_stages, i))
        slot = self.wait_for_tokens(i)
        for k in own:
            tc.barrier_wait(self.scratch["full"].at[*self._ring(i, k)])
        gradients, sums = self._multiply(i, own, functools.partial(self._gradients, slot))
        tc.commit_smem()  # all warps' products have read x, which dx overwrites
        tc.barrier_arrive(self.scratch["done"].at[slot])
        copies = [self._stage_gradient(i, k, dx) for k, dx in enumerate(gradients)]
        tc.commit_smem()
        for copy in copies:
            copy()
        return tuple(total + more for total, more in zip(totals, sums, strict=True))

    def _refill_stages(self, i) -> None:
        """Begins to copy into the stages of the previous tile, once its gradients were written."""
        tc.wait_smem_to_gmem(0, wait_read_only=True)
        for k in range(self._own):
            self._load_stage(i - 1, k + self.tile.stages)
        pl.when(self.number == 0)(functools.partial(self.refill_tokens, i))

    def _gradients(self, slot, stages: Sequence[_Stage]) -> list[jax.Array]:
        """The gradients of all streams of this warpgroup in a tile."""
        self._start_products(stages, slot)
        direct = self._direct(slot, stages)
        return [a + self._through_phi(stages, k) for k, a in enumerate(direct)]

    def _direct(self, slot, stages: Sequence[_Stage]) -> list[jax.Array]:
        """The gradient except the part through phi."""
        n, load = self.form.n, functools.partial(self.coefficient, slot, columns=COLUMNS)
        dh_in = common.load(self.scratch["dh_in"].at[slot])
        made = [load(stage.stream) * dh_in for stage in stages]
        for new in range(n * self.form.mixes):
            dy = common.load(self.scratch["dy"].at[slot, new])
            weights = [load(self._h_res(stage.stream, new)) for stage in stages]
            made = [total + weight * dy for total, weight in zip(made, weights, strict=True)]
        streams = [common.load(self.scratch["streams"][0].at[*stage.at]) for stage in stages]
        return [total + load(n) * x for total, x in zip(made, streams, strict=True)]

    def _h_res(self, old, new: int):
        """Row of the coefficient with which an old stream enters a new one."""
        n = self.form.n
        return self.form.h_res + (old * n + new if self.transposed else new * n + old)
