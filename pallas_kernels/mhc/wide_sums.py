"""The first of two passes of ``mhc_pre``: products with phi, of tokens too wide for a cluster.

``mhc.pre_mixing`` is the second pass. A block has 128 tokens, 64 for each of its two warpgroups,
and a share of the columns, which it processes in chunks of 64. Shares are interleaved chunk by
chunk, so that blocks read neighbouring columns at the same time: with two shares of 8192 tokens,
7168 wide, an H200 took 0.303 ms, and 0.324 ms where each share was one half of the columns.

The streams are read once: tensor cores multiply them in shared memory. Where an ``mhc_post`` comes
before, a warpgroup first replaces the old streams in shared memory by the new ones, and writes
these to global memory from there. The warpgroups share the chunks of phi.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl

from pallas_kernels import tensor_cores as tc
from pallas_kernels.chip import Chip
from pallas_kernels.mhc.cluster.streams import PARTS
from pallas_kernels.mhc.post_coefficients import stack_coefficients
from pallas_kernels.mhc.slices import shapes as common
from pallas_kernels.mhc.slices.shapes import Slices
from pallas_kernels.tensor_cores import BLOCK, COLUMNS, ROWS, WARPGROUP
from pallas_kernels.tensor_cores.bfloat16_parts import split

_WARPGROUPS = 2
_HALVES = 2  # halves of a chunk: registers hold all streams of one half
_HALF = COLUMNS // _HALVES
_STREAMS = 4
_MOST_SHARES = 8
# The least width for which the two passes are used, with an ``mhc_post`` before and without. Times
# for 8192 tokens on an H200, of both passes and of the kernels of both ops: with one, 0.198 and
# 0.244 ms (3072 wide), 0.263 and 0.325 (4096), 0.454 and 0.577 (7168); without, 0.162 and 0.173
# (4096), 0.277 and 0.312 (7168).
_LEAST_WIDTH = {True: 3072, False: 4096}


class Sums(NamedTuple):
    """Partial sums of each token over shares of columns, with undefined padding of tokens.

    Attributes:
      products: products with the rows of phi, [shares, padded tokens, rows].
      squares: sums of squares, [shares, padded tokens].
    """

    products: Any
    squares: Any


@dataclass(frozen=True)
class WideTile:
    """Division of the columns among blocks, and the stages that they copy ahead.

    Attributes:
      shares: blocks that share the columns of the same tokens.
      chunks: stages of each warpgroup's ring of chunks of streams, two at least.
      phi_stages: stages of a block's ring of half chunks of phi, two at least.
    """

    shares: int
    chunks: int = 2
    phi_stages: int = 4

    def __post_init__(self):
        if min(self.chunks, self.phi_stages) < 2:
            raise ValueError(f"chunks and phi_stages have to be two or more, got {self}")

    @classmethod
    def choose(
        cls, chip: Chip, tokens: int, n: int, dim: int, dtype, *, posts: bool
    ) -> WideTile | None:
        """The only heuristic: the shares with the shortest time, the fewest of these; or None.

        Args:
          chip: the GPU.
          tokens: number of tokens.
          n: number of streams.
          dim: width of a stream.
          dtype: dtype of the streams.
          posts: whether an ``mhc_post`` comes before.
        """
        if n != _STREAMS or dim < _LEAST_WIDTH[posts]:
            return None
        if tokens % tc.GROUP or not common.runs_here(chip, tokens, jnp.dtype(dtype)):
            return None
        tiles = -(-tokens // (_WARPGROUPS * ROWS))
        most = max(_MOST_SHARES, chip.multiprocessors // tiles)

        def chunks(shares: int) -> int:
            waves = -(-tiles * shares // chip.multiprocessors)
            return waves * -(-dim // (COLUMNS * shares))

        return cls(min(range(1, min(most, dim // COLUMNS) + 1), key=chunks))

    def scratch(self, form: Slices, dtype, posts: bool) -> dict[str, Any]:
        """Shared memory and barriers of a block."""
        ring = (_WARPGROUPS, self.chunks)
        made = {
            "streams": common.factors(dtype, *ring, form.n, ROWS, COLUMNS),
            "full": tc.Barrier(num_arrivals=form.n + posts, num_barriers=ring),
            "phi": common.factors(dtype, self.phi_stages, PARTS, form.n, form.rows, _HALF),
            "phi full": tc.Barrier(num_arrivals=PARTS * form.n, num_barriers=self.phi_stages),
            "phi read": tc.Barrier(num_arrivals=_WARPGROUPS, num_barriers=self.phi_stages),
        }
        if posts:
            made["layer"] = common.factors(dtype, *ring, ROWS, COLUMNS)
            shape = _WARPGROUPS, form.n + form.n**2, ROWS
            made["coefficients"] = tc.SMEM(shape, jnp.float32)
            made["known"] = tc.Barrier(num_barriers=_WARPGROUPS)
        return made


def wide_sums(
    x: jax.Array,
    phi: jax.Array,
    post: tuple[jax.Array, jax.Array, jax.Array] | None,
    tile: WideTile,
    *,
    transposed: bool = False,
) -> tuple[jax.Array, Sums]:
    """The streams that ``mhc_pre`` reads, and partial sums of their products with phi.

    Args:
      x: the streams, [tokens, n, dim] bfloat16, tokens a multiple of 8, n 2 or 4, dim a multiple of
        64.
      phi: projection with ``gamma`` folded in, [n n + 2 n, n dim] float32.
      post: ``f``, ``h_post`` and ``h_res`` of an ``mhc_post`` that is applied to ``x`` first; or
        None.
      tile: how blocks share the work, from ``WideTile.choose``.
      transposed: whether the matrices ``h_res`` are transposed.

    Returns:
      The new streams, or ``x`` without ``post``; and the partial sums.
    """
    tokens, n, dim = x.shape
    form, flat = Slices(n, dim), (tokens, n * dim)
    tiles = -(-tokens // (_WARPGROUPS * ROWS))
    padded = tiles * _WARPGROUPS * ROWS
    results = {
        "products": jax.ShapeDtypeStruct((tile.shares, padded, form.rows), jnp.float32),
        "squares": jax.ShapeDtypeStruct((tile.shares, padded), jnp.float32),
    }
    given = {"streams": x.reshape(flat)}
    if post is not None:
        f, h_post, h_res = post
        given |= {
            "layer": f,
            "coefficients": stack_coefficients(h_post, h_res.reshape(tokens, n * n)),
        }
        results["streams"] = jax.ShapeDtypeStruct(flat, x.dtype)
    call = tc.launch(
        functools.partial(_run, form, tile, transposed),
        "mhc_wide_sums" if post is None else "mhc_post_sums",
        results,
        (tiles * tile.shares, 1),
        _WARPGROUPS,
        tile.scratch(form, x.dtype, post is not None),
        barriers=False,
    )
    made = call(given, split(phi, PARTS))
    y = x if post is None else made["streams"].reshape(x.shape)
    return y, Sums(made["products"], made["squares"])


def _run(form, tile, transposed, scratch, given, phi, results) -> None:
    """Runs one warpgroup of the kernel."""
    arrays = {"scratch": scratch, "given": given, "phi": phi, "results": results}
    walker = _Walker.current(form, tile, transposed, **arrays)
    exists = walker.tile_number * ROWS < given["streams"].shape[0]
    pl.when(exists)(walker.run)
    pl.when(~exists)(walker.drain_phi)


@dataclass(frozen=True)
class _Walker:
    """A warpgroup that processes the chunks of its share of the columns, for 64 tokens.

    Its warps synchronize by the rules of ``mhc.slices.shapes``.

    Attributes:
      form: shapes of the streams.
      tile: how blocks share the work.
      transposed: whether the matrices ``h_res`` are transposed.
      number: index of the warpgroup in its block.
      tile_number: number of its tile of 64 tokens.
      share: number of its share of the columns: of every ``shares`` chunks it has one.
      count: number of chunks of the share.
      scratch: arrays and barriers in shared memory.
      given: the streams, and the layer's output and coefficients if an ``mhc_post`` comes before.
      phi: bfloat16 parts of phi, [parts, rows, columns].
      results: the arrays of ``Sums``; and the new streams if an ``mhc_post`` comes before.
    """

    form: Slices
    tile: WideTile
    transposed: bool
    number: Any
    tile_number: Any
    share: Any
    count: Any
    scratch: dict
    given: Mapping[str, Any]
    phi: Any
    results: Mapping[str, Any]

    @classmethod
    def current(cls, form: Slices, tile: WideTile, transposed: bool, **arrays):
        """Describes the warpgroup that runs this; ``arrays`` are attributes."""
        block, number = lax.axis_index(BLOCK), lax.axis_index(WARPGROUP)
        rows, share = block // tile.shares, lax.rem(block, tile.shares)
        count = tc.count_strided(form.slices, share, tile.shares)
        numbers = number, rows * _WARPGROUPS + number, share, count
        return cls(form, tile, transposed, *numbers, **arrays)

    @property
    def posts(self) -> bool:
        """Whether an ``mhc_post`` comes before."""
        return "layer" in self.given

    @property
    def rows(self):
        """The tokens of this warpgroup, as an index of rows."""
        return tc.rows_of(self.tile_number)

    def run(self) -> None:
        """Processes all chunks, and writes the partial sums."""
        for ahead in range(self.tile.chunks):
            self._load(ahead)
        self._begin_phi()
        weights = self._coefficients() if self.posts else None
        products = jnp.zeros((ROWS, self.form.rows), jnp.float32)
        zeros = [tc.layout_cast(products, tc.Layout.WGMMA)]
        squares = jnp.zeros((ROWS, common.AT_ONCE), jnp.float32)
        zeros.append(tc.layout_cast(squares, tc.Layout.WGMMA))
        take = functools.partial(self._add_chunk, weights)
        products, squares = lax.fori_loop(0, self.count, take, tuple(zeros))
        self.results["products"].at[self.share, self.rows][...] = products
        self.results["squares"].at[self.share, self.rows][...] = jnp.sum(squares, axis=1)
        self._finish_phi()
        tc.wait_smem_to_gmem(0)

    def drain_phi(self) -> None:
        """Marks phi as read in a warpgroup without tokens, for which the loader waits."""

        def take(k):
            tc.barrier_wait(self.scratch["phi full"].at[lax.rem(k, self.tile.phi_stages)])
            tc.barrier_arrive(self.scratch["phi read"].at[lax.rem(k, self.tile.phi_stages)])

        pl.loop(0, _HALVES * self.count)(take)

    def _coefficients(self) -> list[list[jax.Array]]:
        """Weights of the old streams and then the layer's output in each new stream."""
        held, known = (self.scratch[name].at[self.number] for name in ("coefficients", "known"))
        tc.copy_gmem_to_smem(self.given["coefficients"].at[:, self.rows], held, known)
        tc.barrier_wait(known)
        n, layout = self.form.n, tc.Layout.WGMMA.reduce(1)

        def load(k):
            column = tc.load(held.at[k], layout=layout, optimized=False)
            return lax.broadcast_in_dim(column, (ROWS, _HALF), (0,))

        def h_res(new, old):
            return load(n + (old * n + new if self.transposed else new * n + old))

        return [[*(h_res(o, i) for i in range(n)), load(o)] for o in range(n)]

    def _columns(self, stream: int, chunk, half=0, count: int = COLUMNS):
        """Columns of this block's chunk, or of a part of it, among the columns of all streams."""
        chunk = chunk * self.tile.shares + self.share
        first = stream * self.form.dim + chunk * COLUMNS + half * count
        return pl.ds(pl.multiple_of(first, count), count)

    def _load(self, chunk) -> None:
        """Begins to copy a chunk of streams and of the layer's output, if there is one."""
        at = self.number, lax.rem(jnp.int32(chunk), self.tile.chunks)

        def load():
            places = [("streams", stream) for stream in range(self.form.n)]
            for name, stream in places + [("layer", 0)] * self.posts:
                target = self.scratch[name].at[*at, *[stream] * (name == "streams")]
                source = self.given[name].at[self.rows, self._columns(stream, chunk)]
                tc.copy_gmem_to_smem(source, target, self.scratch["full"].at[*at])

        pl.when(chunk < self.count)(load)

    def _add_chunk(self, weights, chunk, sums):
        """``sums`` plus the products and squares of a chunk, by halves.

        While tensor cores multiply the first half, the streams of the second are computed.
        """
        products, squares = sums
        at = self.number, lax.rem(chunk, self.tile.chunks)
        tc.barrier_wait(self.scratch["full"].at[*at])
        streams = self._half_streams(weights, at, 0)
        self._reload(chunk)
        for half in range(_HALVES):

            def meanwhile(half=half, streams=streams):
                squares = (common.add_products(x, x) for x in streams)
                more = functools.reduce(jnp.add, squares)
                return more, self._half_streams(weights, at, 1) if half == 0 else None

            more, (of_squares, streams) = self._products(chunk, at, half, meanwhile)
            products, squares = products + more, squares + of_squares
        self._write_streams(chunk, at)
        return products, squares

    def _stages(self, at, half: int) -> list:
        """The tiles of shared memory with one half of a chunk, for each stream."""
        columns = pl.ds(half * _HALF, _HALF)
        return [self.scratch["streams"].at[*at, s, :, columns] for s in range(self.form.n)]

    def _half_streams(self, weights, at, half: int) -> list[jax.Array]:
        """The streams of half a chunk; with an ``mhc_post`` also written to shared memory."""
        places = self._stages(at, half)
        streams = [common.load(place) for place in places]
        if self.posts:
            columns = pl.ds(half * _HALF, _HALF)
            layer = common.load(self.scratch["layer"].at[*at, :, columns])
            made = [_combine(row, [*streams, layer]).astype(jnp.bfloat16) for row in weights]
            for place, new in zip(places, made, strict=True):
                place[...] = new
            streams = [new.astype(jnp.float32) for new in made]
        tc.commit_smem()  # all warps have written what tensor cores and copy engine read
        return streams

    def _write_streams(self, chunk, at) -> None:
        """Begins to copy the new streams of a chunk to global memory, if there are any."""
        for stream in range(self.form.n if self.posts else 0):
            source = self.scratch["streams"].at[*at, stream]
            target = self.results["streams"].at[self.rows, self._columns(stream, chunk)]
            tc.copy_smem_to_gmem(source, target)

    def _reload(self, chunk) -> None:
        """Refills the stage of the previous chunk, which was read, and copied if it is new."""
        if self.posts:
            tc.wait_smem_to_gmem(0, wait_read_only=True)
        pl.when(chunk > 0)(lambda: self._load(chunk - 1 + self.tile.chunks))

    def _products(self, chunk, at, half: int, meanwhile):
        """The products of half a chunk with phi, and ``meanwhile()``, run at the same time."""
        k = chunk * _HALVES + half
        place = lax.rem(k, self.tile.phi_stages)
        phi, streams = self.scratch["phi"].at[place], self._stages(at, half)
        tc.barrier_wait(self.scratch["phi full"].at[place])

        def run(sums):
            for part in reversed(range(PARTS)):  # the smallest first
                for stream, x in enumerate(streams):
                    tc.wgmma(sums, x, phi.at[part, stream].T)
            made = meanwhile()
            return sums[...], made

        products = pl.run_scoped(run, tc.ACC((ROWS, self.form.rows), jnp.float32))
        tc.barrier_arrive(self.scratch["phi read"].at[place])
        pl.when(self.number == 0)(lambda: self._reload_phi(k))
        return products

    def _begin_phi(self) -> None:
        """Begins to copy the first halves of phi; the first warpgroup does so for the block."""

        def begin():
            for k in range(self.tile.phi_stages):
                self._load_phi(jnp.int32(k))

        pl.when(self.number == 0)(begin)

    def _load_phi(self, k) -> None:
        """Begins to copy half ``k`` of phi, if there is one."""
        place, chunk, half = lax.rem(k, self.tile.phi_stages), k // _HALVES, lax.rem(k, _HALVES)

        def load():
            for stream in range(self.form.n):
                columns = self._columns(stream, chunk, half, _HALF)
                for part in range(PARTS):
                    target = self.scratch["phi"].at[place, part, stream]
                    full = self.scratch["phi full"].at[place]
                    tc.copy_gmem_to_smem(self.phi.at[part, :, columns], target, full)

        pl.when(chunk < self.count)(load)

    def _reload_phi(self, k) -> None:
        """Refills the stage of half ``k - 1`` of phi, once both warpgroups have read it."""

        def wait():
            tc.barrier_wait(self.scratch["phi read"].at[lax.rem(k - 1, self.tile.phi_stages)])
            self._load_phi(k - 1 + self.tile.phi_stages)

        pl.when(k > 0)(wait)

    def _finish_phi(self) -> None:
        """Waits for the last phase of the barriers of phi, as every phase has to be waited for."""
        pl.when(self.number == 0)(lambda: self._reload_phi(_HALVES * self.count))


def _combine(weights: list[jax.Array], streams: list[jax.Array]) -> jax.Array:
    """The weighted sum of streams."""
    terms = [weight * x for weight, x in zip(weights, streams, strict=True)]
    return functools.reduce(jnp.add, terms)
