"""Gradients to phi, and through the ``mhc_post`` that computed the streams, by slices.

This kernel supports four bfloat16 streams. A block (see ``mhc.slices.shapes``) has three
warpgroups. Two are walkers: each computes the gradients to 32 columns of all new streams in
registers, and from these the gradients to the old streams and the layer's output. The new streams
and their given gradients are in a ring that both walkers read, one stream of one tile in each
stage. The old streams and the layer's output are in rings of each walker, and their gradients are
written to global memory from the same stages.

The third warpgroup, the helper, fills the shared rings, accumulates the gradient to phi, and adds
the inner products that the walkers have over their columns.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
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
from pallas_kernels.tensor_cores.bfloat16_parts import products

_N = 4
_HALF = COLUMNS // 2  # columns of a walker
_WALKERS = COLUMNS // _HALF
_WARPGROUPS = _WALKERS + 1
_PRODUCTS = _N + _N * _N  # inner products of a token: for h_post, and for h_res
# First rows of the coefficients.
_H_PRE, _SCALE, _H_POST, _H_RES = 0, _N, _N + 1, 2 * _N + 1


class PrecedingPost(NamedTuple):
    """The ``mhc_post`` that computed the streams.

    Attributes:
      x: its streams, [tokens, 4, dim].
      f: its layer's output, [tokens, dim].
      transposed: whether its matrices ``h_res`` are transposed.
    """

    x: jax.Array
    f: jax.Array
    transposed: bool


@dataclass(frozen=True)
class SlicesPostTile:
    """Division of the tokens among blocks, and the stages that they copy ahead.

    Attributes:
      shares: how tiles are assigned to blocks.
      new: stages of the ring of new streams and their gradients, two at least.
      old: stages of each walker's ring of old streams, twice ``together`` at least.
      layer: stages of each walker's ring of the layer's output, one at least.
      slots: stages of the ring of inputs of tokens, two at least.
      reverse: whether to process the last tokens first. The kernel of tokens uses the opposite
        order, by default beginning with those that the forward pass ended with.
      together: number of old streams, a divisor of all, whose gradients are written together.
    """

    shares: Shares
    new: int
    old: int
    layer: int
    slots: int
    reverse: bool = False
    together: int = 2

    @classmethod
    def choose(cls, chip: Chip, tokens: int, form: Slices, dtype) -> SlicesPostTile | None:
        """The only heuristic: one wave of blocks that copy ahead; None if there is no tile.

        Rings hold one tile, so that stages are constants: on an H200, 16384 tokens, 1280 wide, took
        0.214 ms, and 0.236 ms with stages for two more old streams and one more output.
        """
        if form.n != _N or not common.runs_here(chip, tokens, dtype):
            return None
        return cls(Shares.even(chip, form.slices, tokens), new=_N, old=_N, layer=1, slots=2)

    def scratch(self, form: Slices, dtype) -> dict[str, Any]:
        """Shared memory and barriers of a block."""
        own = {"old": (_WALKERS, self.old), "layer": (_WALKERS, self.layer)}
        matrices = functools.partial(common.factors, dtype)
        coefficients = _H_RES + _N * _N
        return {
            **form.shared_of_tokens(self.slots, coefficients, _WARPGROUPS, dtype),
            "phi": matrices(FEW_PARTS, _N, form.padded, COLUMNS),
            "loaded": tc.Barrier(num_arrivals=FEW_PARTS * _N),
            "new": [matrices(self.new, ROWS, COLUMNS)] * 2,
            "new full": tc.Barrier(num_arrivals=2, num_barriers=self.new),
            "new read": tc.Barrier(num_arrivals=_WARPGROUPS, num_barriers=self.new),
            **{name: matrices(*ring, ROWS, _HALF) for name, ring in own.items()},
            **{f"{name} full": tc.Barrier(num_barriers=ring) for name, ring in own.items()},
            "products": tc.SMEM((_WALKERS, _PRODUCTS, ROWS), jnp.float32),
            "taken": tc.Barrier(),
        }


def slices_post_backward(
    y: jax.Array,
    dh_in: jax.Array,
    dy: jax.Array,
    phi: jax.Array,
    token: TokenParts,
    post: PrecedingPost,
    tile: SlicesPostTile,
    totals: jax.Array | None = None,
) -> tuple[jax.Array, ...]:
    """Gradients to phi, to the old streams and the layer's output, and inner products.

    Args:
      y: the new streams, [tokens, 4, dim] bfloat16, tokens a multiple of 8.
      dh_in: gradient of the layer's input, [tokens, dim].
      dy: another gradient of the new streams to be added, [tokens, 4, dim].
      phi: projection with ``gamma`` folded in, [24, 4 dim] float32.
      token: other inputs of each token, with the coefficients of ``mhc_post``.
      post: the ``mhc_post`` that computed ``y``.
      tile: how blocks share the work, from ``SlicesPostTile.choose``.
      totals: zeros, [n + n n, tokens], to which slices add their inner products in no fixed order;
        None for separate products of each slice.

    Returns:
      The gradient to phi over each range of tokens; the gradients to the old streams and the
      layer's output; and the inner products. ``Partial`` describes the first and the last.
    """
    tokens, n, dim = y.shape
    form, f32 = Slices(n, dim), jnp.float32
    flat = jax.ShapeDtypeStruct((tokens, n * dim), y.dtype)
    results = {
        "old": flat,
        "layer": jax.ShapeDtypeStruct((tokens, dim), y.dtype),
        "sums": jax.ShapeDtypeStruct((tile.shares.parts, n * dim, form.rows), f32),
    }
    if totals is None:
        of_slices = form.slices, _PRODUCTS, tokens
        results["products"] = jax.ShapeDtypeStruct(of_slices, f32)
    call = tc.launch(
        functools.partial(_backward, form, tile, post.transposed),
        "mhc_post_pre_backward",
        results,
        (tile.shares.blocks(form.slices), 1),
        _WARPGROUPS,
        tile.scratch(form, y.dtype),
        barriers=False,
    )
    per_token = {"dh_in": dh_in, **token._asdict()}
    y, dy, old = (a.reshape(flat.shape) for a in (y, dy, post.x))
    sources = {"new": [y, dy], "old": old, "layer": post.f}
    totals_ref = None if totals is None else jax.new_ref(totals)
    sources["phi"] = form.parts_of_phi(phi)
    made = call(per_token, sources, totals_ref)
    found = made["products"] if totals_ref is None else jax.freeze(totals_ref)[None]
    return made["sums"], made["old"].reshape(post.x.shape), made["layer"], found


def _backward(form, tile, transposed, scratch, per_token, sources, totals, results) -> None:
    """Runs one warpgroup of the kernel, as a walker or as the helper."""
    given = form, tile, scratch, per_token
    arrays = {"sources": sources, "results": results}
    walker = _Walker.current(*given, transposed=transposed, **arrays)
    pl.when(walker.number < _WALKERS)(walker.run_all_turns)
    helper = _Helper.current(*given, totals=totals, **arrays)
    pl.when(helper.number == _WALKERS)(helper.run_all_turns)


@dataclass(frozen=True)
class _Warpgroup(Walker):
    """A walker or the helper.

    Attributes:
      sources: the new streams with their gradients, the old streams, the layer's output, and the
        bfloat16 parts of phi, [parts, rows, columns].
      results: gradients to the old streams and the layer's output; gradient to phi over each range
        of tokens; and inner products of each slice, unless they are added to totals.
    """

    sources: Mapping[str, Any]
    results: Mapping[str, Any]

    def ring(self, name: str, i, k: int):
        """Index of the stage for the ``k``-th operand of tile ``i``; ``k`` may exceed a tile."""
        length, of_tile = getattr(self.tile, name), _PER_TILE[name]
        return k % length if length == of_tile else lax.rem(i * of_tile + k, length)


# Stages of a tile in each ring.
_PER_TILE = {"new": _N, "old": _N, "layer": 1}


@dataclass(frozen=True)
class _Walker(_Warpgroup):
    """A warpgroup that computes gradients in its half of the columns.

    Attributes:
      transposed: whether the matrices ``h_res`` are transposed.
    """

    transposed: bool

    def run(self) -> None:
        """Processes all tiles of a turn."""
        for name in ("layer", "old"):
            for ahead in range(getattr(self.tile, name)):
                self._load(name, jnp.int32(0), ahead)
        tc.barrier_wait(self.scratch["loaded"])
        pl.loop(0, self.count)(self._process_tile)
        self._wait_until_products_read(self.count)  # every phase is waited for, also the last
        tc.wait_smem_to_gmem(0)

    @property
    def _half(self):
        """This walker's columns of a slice."""
        return pl.ds(pl.multiple_of(self.number * _HALF, _HALF), _HALF)

    def _own(self, stream: int):
        """This walker's columns of a stream."""
        return self.columns(stream, self.number, _HALF)

    def _load(self, name: str, i, ahead: int) -> None:
        """Begins to copy the operand ``ahead`` of the first of tile ``i``, if there is one."""
        tile, stream = i + ahead // _PER_TILE[name], ahead % _PER_TILE[name]
        at = self.number, self.ring(name, i, ahead)

        def load():
            source = self.sources[name].at[self.rows(tile), self._own(stream)]
            full = self.scratch[f"{name} full"].at[*at]
            tc.copy_gmem_to_smem(source, self.scratch[name].at[*at], full)

        pl.when(tile < self.count)(load)

    def _reload(self, i, operands: Sequence[tuple[str, int]]) -> None:
        """Refills stages of tile ``i``, once the gradients in them were written."""
        tc.wait_smem_to_gmem(0, wait_read_only=True)
        for name, stream in operands:
            self._load(name, i, stream + getattr(self.tile, name))

    def _reload_last(self, i) -> None:
        """Begins to copy into the last stages of the previous tile."""
        operands = self._groups()[-1]
        pl.when(i > 0)(lambda: self._reload(i - 1, operands))

    def _groups(self) -> list[list[tuple[str, int]]]:
        """Operands whose gradients are written together: the layer's output, then old streams."""
        size = self.tile.together
        streams = [("old", stream) for stream in range(_N)]
        return [[("layer", 0)], *(streams[k : k + size] for k in range(0, _N, size))]

    def _process_tile(self, i) -> None:
        """Computes and writes the gradients and inner products of tile ``i``."""
        slot = self.wait_for_tokens(i)
        sums = [tc.ACC((ROWS, _HALF), jnp.float32)] * _N
        gradients = pl.run_scoped(functools.partial(self._new_streams, i, slot), *sums)
        self._wait_until_products_read(i)
        before: list[tuple[str, int]] = []
        for operands in self._groups():
            made = [self._gradient(*operand, i, slot, gradients) for operand in operands]
            if before:
                self._reload(i, before)
            self._write_gradients(i, operands, made)
            before = operands
        tc.barrier_arrive(self.scratch["done"].at[slot])

    def _wait_until_products_read(self, i) -> None:
        """Waits until the helper has read the inner products of the previous tile."""
        pl.when(i > 0)(lambda: tc.barrier_wait(self.scratch["taken"]))

    def _new_streams(self, i, slot, *through_phi) -> list[jax.Array]:
        """The gradients to the new streams, in float32.

        Tensor cores first start the gradients through phi of all streams, whose inputs are loaded.
        """
        phi, dh_mix = self.scratch["phi"], self.scratch["dh_mix"].at[slot]
        for stream, sums in enumerate(through_phi):
            parts = [phi.at[part, stream, :, self._half] for part in range(FEW_PARTS)]
            self.add_through_phi(sums, dh_mix, parts)
        made = []
        for stream, sums in enumerate(through_phi):
            direct = self._direct(i, slot, stream)
            behind = (_N - 1 - stream) * len(products(FEW_PARTS, FEW_PARTS))
            made.append(direct + tc.wgmma_accumulator_load(sums, wait_n=behind))
            if stream == 0:
                self._reload_last(i)
            if stream % 2:
                self._release(i, stream - 1, stream)
        return made

    def _release(self, i, *streams: int) -> None:
        """Marks stages of new streams as read, two at once so that warps synchronize less."""
        tc.commit_smem()  # all warps have read what the copy engine overwrites
        for stream in streams:
            tc.barrier_arrive(self.scratch["new read"].at[self.ring("new", i, stream)])

    def _direct(self, i, slot, stream: int) -> jax.Array:
        """The gradient to a new stream except the part through phi."""
        at, half = self.ring("new", i, stream), self._half
        tc.barrier_wait(self.scratch["new full"].at[at])
        y, dy = (common.load(ring.at[at, :, half]) for ring in self.scratch["new"])
        scale, h_pre = (self.coefficient(slot, c, _HALF) for c in (_SCALE, _H_PRE + stream))
        through_layer = h_pre * common.load(self.scratch["dh_in"].at[slot, :, half])
        # In this order each addition fuses with a product.
        return through_layer + dy + scale * y

    def _gradient(self, name: str, stream: int, i, slot, gradients) -> jax.Array:
        """The gradient to an old stream or the layer's output; writes its inner products."""
        at = self.number, self.ring(name, i, stream)
        tc.barrier_wait(self.scratch[f"{name} full"].at[*at])
        old, places = common.load(self.scratch[name].at[*at]), self._product_rows(name, stream)
        weights = [self.coefficient(slot, _H_POST + place, _HALF) for place in places]
        terms = [weight * dy for weight, dy in zip(weights, gradients, strict=True)]
        for place, dy in zip(places, gradients, strict=True):
            self.scratch["products"].at[self.number, place][...] = _inner(dy, old)
        return functools.reduce(jnp.add, terms).astype(self.results[name].dtype)

    def _write_gradients(
        self, i, operands: Sequence[tuple[str, int]], made: Sequence[jax.Array]
    ) -> None:
        """Overwrites operands by their gradients, and begins to copy these to global memory."""
        places = [self.scratch[n].at[self.number, self.ring(n, i, s)] for n, s in operands]
        for place, gradient in zip(places, made, strict=True):
            place[...] = gradient
        tc.commit_smem()
        for place, (name, stream) in zip(places, operands, strict=True):
            target = self.results[name].at[self.rows(i), self._own(stream)]
            tc.copy_smem_to_gmem(place, target)

    def _product_rows(self, name: str, stream: int) -> list[int]:
        """Rows of the inner products of an operand with the gradients to the new streams."""
        if name == "layer":
            return [*range(_N)]
        return [_N + (stream * _N + o if self.transposed else o * _N + stream) for o in range(_N)]


@dataclass(frozen=True)
class _Helper(_Warpgroup):
    """The warpgroup that fills shared rings, and accumulates the gradient to phi and products.

    Attributes:
      totals: array to which inner products are added, or None.
    """

    totals: Any

    def run(self) -> None:
        """Processes all tiles of a turn, and writes the gradient to phi over them."""
        for ahead in range(self.tile.new):
            self._load(jnp.int32(0), ahead)
        self.load_first_tokens()
        for stream in range(_N):
            for part in range(FEW_PARTS):
                source = self.sources["phi"].at[part, :, self.columns(stream)]
                target = self.scratch["phi"].at[part, stream]
                tc.copy_gmem_to_smem(source, target, self.scratch["loaded"])
        totals = tuple(self.zeros() for _ in range(_N))
        totals = lax.fori_loop(0, self.count, self._process_tile, totals)
        for stream, total in enumerate(totals):
            self.results["sums"].at[self.range_number, self.columns(stream)][...] = total
        # Every phase of a barrier is waited for, also the last.
        self._reload(self.count, 0)
        self._write_products(self.count)
        tc.wait_smem_to_gmem(0)

    def _load(self, i, ahead: int) -> None:
        """Begins to copy the new stream ``ahead`` of the first of tile ``i``, if there is one."""
        tile, at = i + ahead // _N, self.ring("new", i, ahead)

        def load():
            for source, ring in zip(self.sources["new"], self.scratch["new"], strict=True):
                source = source.at[self.rows(tile), self.columns(ahead % _N)]
                tc.copy_gmem_to_smem(source, ring.at[at], self.scratch["new full"].at[at])

        pl.when(tile < self.count)(load)

    def _reload(self, i, stream: int) -> None:
        """Refills the stage of the previous stream, once all warpgroups have read it."""

        def wait():
            # Counted from the tile before, so that nothing is negative.
            at = self.ring("new", i - 1, stream - 1 + _N)
            tc.barrier_wait(self.scratch["new read"].at[at])
            self._load(i - 1, stream - 1 + _N + self.tile.new)

        pl.when((i > 0) | (stream > 0))(wait)

    def _process_tile(self, i, totals):
        """``totals`` plus the gradients to phi of tile ``i``."""
        slot, made = self.wait_for_tokens(i), []
        for stream, total in enumerate(totals):
            at = self.ring("new", i, stream)
            tc.barrier_wait(self.scratch["new full"].at[at])
            y, dh_mix = self.scratch["new"][0].at[at], self.scratch["dh_mix"].at[slot]
            # Added immediately; otherwise all four products would be kept in registers.
            made.append(lax.optimization_barrier(total + self._product(y, dh_mix)))
            tc.barrier_arrive(self.scratch["new read"].at[at])
            self._reload(i, stream)
            if stream == 0:
                self._write_products(i)
        tc.barrier_arrive(self.scratch["done"].at[slot])
        return tuple(made)

    def _product(self, y, dh_mix) -> jax.Array:
        """The gradient to 64 columns of phi from one stream of a tile, [columns, rows]."""

        def run(sums):
            self.add_for_phi(sums, y, dh_mix)
            return sums[...][:, : self.form.rows]

        return pl.run_scoped(run, tc.ACC((COLUMNS, self.form.padded), jnp.float32))

    def _write_products(self, i) -> None:
        """Waits for the previous tile, refills its stage, and writes its inner products."""
        self.refill_tokens(i)
        products = self.scratch["products"]

        def add():
            parts = [products[number] for number in range(_WALKERS)]
            products.at[0][...] = functools.reduce(jnp.add, parts)
            tc.commit_smem()
            rows = self.rows(i - 1)
            if self.totals is None:
                target = self.results["products"].at[self.slice_number, :, rows]
                tc.copy_smem_to_gmem(products.at[0], target)
            else:
                target = self.totals.at[:, rows]
                tc.copy_smem_to_gmem(products.at[0], target, reduction_op="add")
            tc.wait_smem_to_gmem(0, wait_read_only=True)
            tc.barrier_arrive(self.scratch["taken"])

        pl.when(i > 0)(add)


def _inner(a: jax.Array, b: jax.Array) -> jax.Array:
    """Inner products of rows; a thread adds its own columns first."""
    return jnp.sum(common.add_products(a, b), axis=1)
