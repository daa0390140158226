"""Gradients through the ``mhc_post`` that made the streams, and to phi, by slices.

What ``mhc.tokens.backward`` makes with an ``mhc_post``, for four streams of bfloat16. Of the
warpgroups of a block, see ``mhc.slices.shapes``, two are walkers, that make 32 columns of all
streams each: their gradients meet in registers. What both read, new streams and their gradients,
lies in a ring for both, of pieces that are one stream of one tile each. What only one of them
reads, the layer's output and old streams, lies in rings of its own, and the gradients to them leave
from there. The third, the helper, reads what is shared, and adds up sums for phi, and what both
walkers have of inner products over columns.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

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
# Rows of the coefficients.
_H_PRE, _SCALE, _H_POST, _H_RES = 0, _N, _N + 1, 2 * _N + 1


@dataclass(frozen=True)
class SlicesPostTile:
    """How blocks share the tokens, and how far they read ahead.

    Attributes:
      shares: which blocks have which tiles.
      new: new streams, with their gradients, that a block has in shared memory; two at least.
      old: old streams that each walker has there, twice ``together`` at least.
      layer: tiles of the layer's output, likewise, one at least.
      slots: tiles whose tokens' cotangents and coefficients are there, two at least.
      backwards: see ``Walker``; the kernel of tokens goes the other way, by default beginning with
        those that the forward pass ended with.
      together: old streams, a divisor of their number, whose gradients leave together.
    """

    shares: Shares
    new: int
    old: int
    layer: int
    slots: int
    backwards: bool = False
    together: int = 2

    @classmethod
    def choose(cls, chip: Chip, tokens: int, form: Slices, dtype) -> SlicesPostTile | None:
        """The one heuristic: one wave of blocks, reading ahead; None for other kernels.

        Rings of just one tile, whose places are constants: on an H200, 16384 tokens, 1280 wide took
        0.214 ms, and with room for two more old streams and one more output 0.236 ms.
        """
        if form.n != _N or not common.runs_here(chip, tokens, dtype):
            return None
        return cls(Shares.even(chip, form.slices, tokens), new=_N, old=_N, layer=1, slots=2)

    def scratch(self, form: Slices, dtype) -> dict[str, Any]:
        """Shared memory, and barriers."""
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
    weight: jax.Array,
    token: TokenParts,
    post: tuple[jax.Array, jax.Array],
    tile: SlicesPostTile,
    totals: jax.Array | None = None,
    *,
    transposed: bool,
) -> tuple[jax.Array, ...]:
    """Terms of the gradient to phi; gradients to old streams and output; and inner products.

    See ``Partial`` for the terms and products, which are still to be added up: these only without
    ``totals``.

    Args:
      y: the new streams, [tokens, 4, dim] bfloat16, tokens a multiple of 8.
      dh_in: [tokens, dim].
      dy: like ``y``, a part of its gradient.
      weight: as in ``mhc_pre``.
      token: what there is of tokens beside these, with ``of_post``.
      post: the old streams and the layer's output that made ``y``.
      tile: as ``SlicesPostTile.choose`` gives it.
      totals: zeros, [n + n n, tokens], to which slices add their inner products, in any order; None
        for products of each slice.
      transposed: as in ``mhc_post``.
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
        functools.partial(_backward, form, tile, transposed),
        "mhc_post_pre_backward",
        results,
        (tile.shares.blocks(form.slices), 1),
        _WARPGROUPS,
        tile.scratch(form, y.dtype),
        barriers=False,
    )
    of_tokens = {"dh_in": dh_in, **token._asdict()}
    x, layer = post
    y, dy, old = (a.reshape(flat.shape) for a in (y, dy, x))
    sources = {"new": [y, dy], "old": old, "layer": layer}
    added_to = None if totals is None else jax.new_ref(totals)
    made = call(of_tokens, sources, form.parts_of_phi(weight), added_to)
    found = made["products"] if added_to is None else jax.freeze(added_to)[None]
    return made["sums"], made["old"].reshape(x.shape), made["layer"], found


def _backward(form, tile, transposed, scratch, of_tokens, sources, phi, totals, results) -> None:
    """A warpgroup's part."""
    given = form, tile, scratch, of_tokens
    arrays = {"sources": sources, "results": results}
    walker = _Walker.here(*given, transposed=transposed, **arrays)
    pl.when(walker.number < _WALKERS)(walker.take_turns)
    helper = _Helper.here(*given, phi=phi, totals=totals, **arrays)
    pl.when(helper.number == _WALKERS)(helper.take_turns)


@dataclass(frozen=True)
class _Warpgroup(Walker):
    """What walkers and the helper have.

    Attributes:
      sources: new streams and their gradients, old streams, and the layer's output.
      results: gradients to old streams and to the layer's output; of each range, and of the rest,
        sums for that to phi, and of each slice inner products unless they are added to totals.
    """

    sources: Mapping[str, Any]
    results: Mapping[str, Any]

    def ring(self, name: str, i, k: int):
        """Where the ``k``-th of tile ``i`` lies; ``k`` may count on."""
        length, of_tile = getattr(self.tile, name), _OF_TILE[name]
        return k % length if length == of_tile else lax.rem(i * of_tile + k, length)


_OF_TILE = {"new": _N, "old": _N, "layer": 1}


@dataclass(frozen=True)
class _Walker(_Warpgroup):
    """Makes its columns.

    Attributes:
      transposed: see ``mhc_post``.
    """

    transposed: bool

    def run(self) -> None:
        """All tiles of a turn."""
        for name in ("layer", "old"):
            for ahead in range(getattr(self.tile, name)):
                self._load(name, jnp.int32(0), ahead)
        tc.barrier_wait(self.scratch["loaded"])
        pl.loop(0, self.count)(self._take)
        self._wait_until_taken(self.count)  # every completion is waited for, also the last
        tc.wait_smem_to_gmem(0)

    @property
    def _half(self):
        """Its columns of a slice."""
        return pl.ds(pl.multiple_of(self.number * _HALF, _HALF), _HALF)

    def _own(self, stream: int):
        """Its columns of a stream."""
        return self.columns(stream, self.number, _HALF)

    def _load(self, name: str, i, ahead: int) -> None:
        """What is ``ahead`` of the first of tile ``i``, if there is such."""
        tile, stream = i + ahead // _OF_TILE[name], ahead % _OF_TILE[name]
        at = self.number, self.ring(name, i, ahead)

        def load():
            source = self.sources[name].at[self.rows(tile), self._own(stream)]
            full = self.scratch[f"{name} full"].at[*at]
            tc.copy_gmem_to_smem(source, self.scratch[name].at[*at], full)

        pl.when(tile < self.count)(load)

    def _reload(self, i, pieces: Sequence[tuple[str, int]]) -> None:
        """Reads on into pieces of tile ``i``, with which the last gradients left."""
        tc.wait_smem_to_gmem(0, wait_read_only=True)
        for name, stream in pieces:
            self._load(name, i, stream + getattr(self.tile, name))

    def _reload_last(self, i) -> None:
        """That of the tile before."""
        pieces = self._groups()[-1]
        pl.when(i > 0)(lambda: self._reload(i - 1, pieces))

    def _groups(self) -> list[list[tuple[str, int]]]:
        """Pieces whose gradients leave together: the layer's output, then old streams."""
        size = self.tile.together
        streams = [("old", stream) for stream in range(_N)]
        return [[("layer", 0)], *(streams[k : k + size] for k in range(0, _N, size))]

    def _take(self, i) -> None:
        """Tile ``i``."""
        slot = self.wait_for_tokens(i)
        sums = [tc.ACC((ROWS, _HALF), jnp.float32)] * _N
        gradients = pl.run_scoped(functools.partial(self._new_streams, i, slot), *sums)
        self._wait_until_taken(i)
        before: list[tuple[str, int]] = []
        for pieces in self._groups():
            made = [self._through(*piece, i, slot, gradients) for piece in pieces]
            if before:
                self._reload(i, before)
            self._leave(i, pieces, made)
            before = pieces
        tc.barrier_arrive(self.scratch["done"].at[slot])

    def _wait_until_taken(self, i) -> None:
        """The inner products of the tile before."""
        pl.when(i > 0)(lambda: tc.barrier_wait(self.scratch["taken"]))

    def _new_streams(self, i, slot, *through_phi) -> list[jax.Array]:
        """The gradients to the new streams, in float32.

        Tensor cores begin with what comes through phi to all of them, which is there already.
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
                self._give_back(i, stream - 1, stream)
        return made

    def _give_back(self, i, *streams: int) -> None:
        """New streams that were read, two at once so that the warps meet less often."""
        tc.commit_smem()  # the copy engine will write there
        for stream in streams:
            tc.barrier_arrive(self.scratch["new read"].at[self.ring("new", i, stream)])

    def _direct(self, i, slot, stream: int) -> jax.Array:
        """The gradient to a new stream but for what comes through phi."""
        at, half = self.ring("new", i, stream), self._half
        tc.barrier_wait(self.scratch["new full"].at[at])
        y, dy = (common.load(ring.at[at, :, half]) for ring in self.scratch["new"])
        scale, h_pre = (self.coefficient(slot, c, _HALF) for c in (_SCALE, _H_PRE + stream))
        through_layer = h_pre * common.load(self.scratch["dh_in"].at[slot, :, half])
        # In this order all sums are those of products.
        return through_layer + dy + scale * y

    def _through(self, name: str, stream: int, i, slot, gradients) -> jax.Array:
        """The gradient to an old stream, or the layer's output; writes inner products with it."""
        at = self.number, self.ring(name, i, stream)
        tc.barrier_wait(self.scratch[f"{name} full"].at[*at])
        old, places = common.load(self.scratch[name].at[*at]), self._products(name, stream)
        weights = [self.coefficient(slot, _H_POST + place, _HALF) for place in places]
        terms = [weight * dy for weight, dy in zip(weights, gradients, strict=True)]
        for place, dy in zip(places, gradients, strict=True):
            self.scratch["products"].at[self.number, place][...] = _inner(dy, old)
        return functools.reduce(jnp.add, terms).astype(self.results[name].dtype)

    def _leave(self, i, pieces: Sequence[tuple[str, int]], made: Sequence[jax.Array]) -> None:
        """Writes gradients from where the pieces were."""
        places = [self.scratch[n].at[self.number, self.ring(n, i, s)] for n, s in pieces]
        for place, gradient in zip(places, made, strict=True):
            place[...] = gradient
        tc.commit_smem()
        for place, (name, stream) in zip(places, pieces, strict=True):
            target = self.results[name].at[self.rows(i), self._own(stream)]
            tc.copy_smem_to_gmem(place, target)

    def _products(self, name: str, stream: int) -> list[int]:
        """Rows of its inner products with the gradients to the new streams."""
        if name == "layer":
            return [*range(_N)]
        return [_N + (stream * _N + o if self.transposed else o * _N + stream) for o in range(_N)]


@dataclass(frozen=True)
class _Helper(_Warpgroup):
    """Reads what is shared, and adds up.

    Attributes:
      phi: its parts, [parts, rows, columns].
      totals: to which inner products are added, or None.
    """

    phi: Any
    totals: Any

    def run(self) -> None:
        """All tiles of a turn."""
        for ahead in range(self.tile.new):
            self._load(jnp.int32(0), ahead)
        self.begin_tokens()
        for stream in range(_N):
            for part in range(FEW_PARTS):
                source = self.phi.at[part, :, self.columns(stream)]
                target = self.scratch["phi"].at[part, stream]
                tc.copy_gmem_to_smem(source, target, self.scratch["loaded"])
        totals = tuple(self.zeros() for _ in range(_N))
        totals = lax.fori_loop(0, self.count, self._take, totals)
        for stream, total in enumerate(totals):
            self.results["sums"].at[self.part, self.columns(stream)][...] = total
        # Every completion is waited for, also the last.
        self._reload(self.count, 0)
        self._finish(self.count)
        tc.wait_smem_to_gmem(0)

    def _load(self, i, ahead: int) -> None:
        """The new stream that is ``ahead`` of the first of tile ``i``, if there is one."""
        tile, at = i + ahead // _N, self.ring("new", i, ahead)

        def load():
            for source, ring in zip(self.sources["new"], self.scratch["new"], strict=True):
                source = source.at[self.rows(tile), self.columns(ahead % _N)]
                tc.copy_gmem_to_smem(source, ring.at[at], self.scratch["new full"].at[at])

        pl.when(tile < self.count)(load)

    def _reload(self, i, stream: int) -> None:
        """Where the stream before was, once all warpgroups have read it."""

        def wait():
            # Counted from the tile before, so that nothing is negative.
            at = self.ring("new", i - 1, stream - 1 + _N)
            tc.barrier_wait(self.scratch["new read"].at[at])
            self._load(i - 1, stream - 1 + _N + self.tile.new)

        pl.when((i > 0) | (stream > 0))(wait)

    def _take(self, i, totals):
        """Tile ``i``; the sums with its."""
        slot, made = self.wait_for_tokens(i), []
        for stream, total in enumerate(totals):
            at = self.ring("new", i, stream)
            tc.barrier_wait(self.scratch["new full"].at[at])
            y, dh_mix = self.scratch["new"][0].at[at], self.scratch["dh_mix"].at[slot]
            # Added at once, or all four products would be held until the end.
            made.append(lax.optimization_barrier(total + self._product(y, dh_mix)))
            tc.barrier_arrive(self.scratch["new read"].at[at])
            self._reload(i, stream)
            if stream == 0:
                self._finish(i)
        tc.barrier_arrive(self.scratch["done"].at[slot])
        return tuple(made)

    def _product(self, y, dh_mix) -> jax.Array:
        """Sums for 64 columns of phi, [columns, rows]."""

        def run(sums):
            self.add_for_phi(sums, y, dh_mix)
            return sums[...][:, : self.form.rows]

        return pl.run_scoped(run, tc.ACC((COLUMNS, self.form.padded), jnp.float32))

    def _finish(self, i) -> None:
        """Waits for the tile before; reads on, and writes its inner products."""
        self.reload_tokens(i)
        products = self.scratch["products"]

        def add():
            parts = [products[number] for number in range(_WALKERS)]
            products.at[0][...] = functools.reduce(jnp.add, parts)
            tc.commit_smem()
            rows = self.rows(i - 1)
            if self.totals is None:
                target = self.results["products"].at[self.place, :, rows]
                tc.copy_smem_to_gmem(products.at[0], target)
            else:
                target = self.totals.at[:, rows]
                tc.copy_smem_to_gmem(products.at[0], target, reduction_op="add")
            tc.wait_smem_to_gmem(0, wait_read_only=True)
            tc.barrier_arrive(self.scratch["taken"])

        pl.when(i > 0)(add)


def _inner(a: jax.Array, b: jax.Array) -> jax.Array:
    """Inner products of rows; a thread adds up what it has before others' is added."""
    return jnp.sum(common.add_products(a, b), axis=1)
