"""The products of tokens with phi, where these are too wide for a cluster to hold.

First of two passes forward; ``mhc.pre_mixing`` has the second. A block has 128 tokens, 64 for each
of its two warpgroups, and a share of the columns, which it walks through in chunks of 64. Chunks of
different shares are neighbours, so that what blocks read at the same time lies side by side: with
two shares of 8192 tokens, 7168 wide, an H200 took 0.303 ms, and 0.324 ms where each was half of the
columns.

The streams are read once: tensor cores multiply them where they lie in shared memory. Where an
``mhc_post`` comes before, a warpgroup first makes new streams in the place of the old ones, and
these leave from there. What the warpgroups read of phi is shared.
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
from pallas_kernels.mhc.post_coefficients import side_by_side
from pallas_kernels.mhc.slices import shapes as common
from pallas_kernels.mhc.slices.shapes import Slices
from pallas_kernels.tensor_cores import BLOCK, COLUMNS, ROWS, WARPGROUP
from pallas_kernels.tensor_cores.bfloat16_parts import split

_WARPGROUPS = 2
_HALVES = 2  # of a chunk: the registers hold all streams of one
_HALF = COLUMNS // _HALVES
_STREAMS = 4
_MOST_SHARES = 8
# Columns from which on it is taken, with an ``mhc_post`` before and without. For 8192 tokens with
# one both passes took an H200 0.198 ms where the kernels of both ops had taken 0.244 (3072 wide),
# 0.263 and 0.325 (4096), 0.454 and 0.577 (7168); without, 0.162 and 0.173 (4096), 0.277 and 0.312
# (7168).
_LEAST_WIDTH = {True: 3072, False: 4096}


class Sums(NamedTuple):
    """What shares of columns have of each token; there may be more tokens, with anything.

    Attributes:
      products: with the rows of phi, [shares, tokens or more, rows].
      squares: of the columns, [shares, tokens or more].
    """

    products: Any
    squares: Any


@dataclass(frozen=True)
class WideTile:
    """How blocks share the columns, and how far they read ahead.

    Attributes:
      shares: blocks that share the columns of their tokens.
      chunks: that a warpgroup has in shared memory, two at least.
      of_phi: halves of chunks of phi that a block has there, two at least.
    """

    shares: int
    chunks: int = 2
    of_phi: int = 4

    def __post_init__(self):
        if min(self.chunks, self.of_phi) < 2:
            raise ValueError(f"chunks and of_phi have to be two or more, got {self}")

    @classmethod
    def choose(
        cls, chip: Chip, tokens: int, n: int, dim: int, dtype, *, posts: bool
    ) -> WideTile | None:
        """The one heuristic: the fewest shares whose waves are over first; None for others."""
        if n != _STREAMS or dim < _LEAST_WIDTH[posts]:
            return None
        if not common.runs_here(chip, tokens, jnp.dtype(dtype)):
            return None
        tiles = -(-tokens // (_WARPGROUPS * ROWS))
        most = max(_MOST_SHARES, chip.multiprocessors // tiles)

        def chunks(shares: int) -> int:
            waves = -(-tiles * shares // chip.multiprocessors)
            return waves * -(-dim // (COLUMNS * shares))

        return cls(min(range(1, min(most, dim // COLUMNS) + 1), key=chunks))

    def scratch(self, form: Slices, dtype, posts: bool) -> dict[str, Any]:
        """Shared memory, and barriers."""
        ring = (_WARPGROUPS, self.chunks)
        made = {
            "streams": common.factors(dtype, *ring, form.n, ROWS, COLUMNS),
            "full": tc.Barrier(num_arrivals=form.n + posts, num_barriers=ring),
            "phi": common.factors(dtype, self.of_phi, PARTS, form.n, form.rows, _HALF),
            "phi full": tc.Barrier(num_arrivals=PARTS * form.n, num_barriers=self.of_phi),
            "phi read": tc.Barrier(num_arrivals=_WARPGROUPS, num_barriers=self.of_phi),
        }
        if posts:
            made["layer"] = common.factors(dtype, *ring, ROWS, COLUMNS)
            shape = _WARPGROUPS, form.n + form.n**2, ROWS
            made["coefficients"] = tc.SMEM(shape, jnp.float32)
            made["known"] = tc.Barrier(num_barriers=_WARPGROUPS)
        return made


def wide_sums(
    x: jax.Array,
    weight: jax.Array,
    post: tuple[jax.Array, jax.Array, jax.Array] | None,
    tile: WideTile,
    *,
    transposed: bool = False,
) -> tuple[jax.Array, Sums]:
    """The streams whose products these are, and the sums, which are still to be added up.

    Args:
      x: [tokens, n, dim] bfloat16, tokens a multiple of 8, n 2 or 4, dim a multiple of 64.
      weight: as in ``mhc_pre``.
      post: ``f``, ``h_post`` and ``h_res`` as in ``mhc_post``, whose result the streams are; or
        None, if they are ``x``.
      tile: as ``WideTile.choose`` gives it.
      transposed: as in ``mhc_post``.
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
        given |= {"layer": f, "coefficients": side_by_side(h_post, h_res.reshape(tokens, n * n))}
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
    made = call(given, split(weight, PARTS))
    y = x if post is None else made["streams"].reshape(x.shape)
    return y, Sums(made["products"], made["squares"])


def _run(form, tile, transposed, scratch, given, phi, results) -> None:
    """A warpgroup's part."""
    arrays = {"scratch": scratch, "given": given, "phi": phi, "results": results}
    walker = _Walker.here(form, tile, transposed, **arrays)
    exists = walker.tile_number * ROWS < given["streams"].shape[0]
    pl.when(exists)(walker.run)
    pl.when(~exists)(walker.only_read_phi)


@dataclass(frozen=True)
class _Walker:
    """A warpgroup on its way through its columns.

    Warps meet where ``mhc.slices.shapes`` says.

    Attributes:
      form: shapes.
      tile: who does what.
      transposed: see ``mhc_post``.
      number: of the warpgroup.
      tile_number: of its tokens, 64 of them.
      share: the first chunk of its columns; then there is every so many-th.
      count: of chunks.
      scratch: in shared memory.
      given: streams, and what there is of an ``mhc_post``, [tokens, columns].
      phi: its parts, [parts, rows, columns].
      results: see ``Sums``; and new streams if there is an ``mhc_post``.
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
    def here(cls, form: Slices, tile: WideTile, transposed: bool, **arrays):
        """The warpgroup that runs this; ``arrays`` are attributes."""
        block, number = lax.axis_index(BLOCK), lax.axis_index(WARPGROUP)
        rows, share = block // tile.shares, lax.rem(block, tile.shares)
        count = tc.count_strided(form.slices, share, tile.shares)
        numbers = number, rows * _WARPGROUPS + number, share, count
        return cls(form, tile, transposed, *numbers, **arrays)

    @property
    def posts(self) -> bool:
        """Whether it makes the streams."""
        return "layer" in self.given

    @property
    def rows(self):
        """Its tokens."""
        return tc.rows_of(self.tile_number)

    def run(self) -> None:
        """All chunks."""
        for ahead in range(self.tile.chunks):
            self._load(ahead)
        self._begin_phi()
        weights = self._coefficients() if self.posts else None
        products = jnp.zeros((ROWS, self.form.rows), jnp.float32)
        zeros = [tc.layout_cast(products, tc.Layout.WGMMA)]
        squares = jnp.zeros((ROWS, common.AT_ONCE), jnp.float32)
        zeros.append(tc.layout_cast(squares, tc.Layout.WGMMA))
        take = functools.partial(self._take, weights)
        products, squares = lax.fori_loop(0, self.count, take, tuple(zeros))
        self.results["products"].at[self.share, self.rows][...] = products
        self.results["squares"].at[self.share, self.rows][...] = jnp.sum(squares, axis=1)
        self._finish_phi()
        tc.wait_smem_to_gmem(0)

    def only_read_phi(self) -> None:
        """What others wait for, of a warpgroup without tokens."""

        def take(k):
            tc.barrier_wait(self.scratch["phi full"].at[lax.rem(k, self.tile.of_phi)])
            tc.barrier_arrive(self.scratch["phi read"].at[lax.rem(k, self.tile.of_phi)])

        pl.loop(0, _HALVES * self.count)(take)

    def _coefficients(self) -> list[list[jax.Array]]:
        """What each new stream has of each old one, and then of the layer's output, of a token."""
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
        """Of a chunk of this block's, or of a part of it, among those of all streams."""
        chunk = chunk * self.tile.shares + self.share
        first = stream * self.form.dim + chunk * COLUMNS + half * count
        return pl.ds(pl.multiple_of(first, count), count)

    def _load(self, chunk) -> None:
        """If there is such a chunk."""
        at = self.number, lax.rem(jnp.int32(chunk), self.tile.chunks)

        def load():
            places = [("streams", stream) for stream in range(self.form.n)]
            for name, stream in places + [("layer", 0)] * self.posts:
                target = self.scratch[name].at[*at, *[stream] * (name == "streams")]
                source = self.given[name].at[self.rows, self._columns(stream, chunk)]
                tc.copy_gmem_to_smem(source, target, self.scratch["full"].at[*at])

        pl.when(chunk < self.count)(load)

    def _take(self, weights, chunk, sums):
        """Both halves of a chunk; the sums with theirs.

        While tensor cores multiply the first, the streams of the second are made.
        """
        products, squares = sums
        at = self.number, lax.rem(chunk, self.tile.chunks)
        tc.barrier_wait(self.scratch["full"].at[*at])
        streams = self._make(weights, at, 0)
        self._reload(chunk)
        for half in range(_HALVES):

            def meanwhile(half=half, streams=streams):
                squares = (common.add_products(x, x) for x in streams)
                more = functools.reduce(jnp.add, squares)
                return more, self._make(weights, at, 1) if half == 0 else None

            more, (of_squares, streams) = self._products(chunk, at, half, meanwhile)
            products, squares = products + more, squares + of_squares
        self._leave(chunk, at)
        return products, squares

    def _places(self, at, half: int) -> list:
        """Where half of the streams' chunk lies."""
        columns = pl.ds(half * _HALF, _HALF)
        return [self.scratch["streams"].at[*at, s, :, columns] for s in range(self.form.n)]

    def _make(self, weights, at, half: int) -> list[jax.Array]:
        """The streams of half a chunk; they lie in shared memory then."""
        places = self._places(at, half)
        streams = [common.load(place) for place in places]
        if self.posts:
            columns = pl.ds(half * _HALF, _HALF)
            layer = common.load(self.scratch["layer"].at[*at, :, columns])
            made = [_combine(row, [*streams, layer]).astype(jnp.bfloat16) for row in weights]
            for place, new in zip(places, made, strict=True):
                place[...] = new
            streams = [new.astype(jnp.float32) for new in made]
        tc.commit_smem()  # where warps meet: tensor cores and copy engine are to read it
        return streams

    def _leave(self, chunk, at) -> None:
        """Writes new streams."""
        for stream in range(self.form.n if self.posts else 0):
            source = self.scratch["streams"].at[*at, stream]
            target = self.results["streams"].at[self.rows, self._columns(stream, chunk)]
            tc.copy_smem_to_gmem(source, target)

    def _reload(self, chunk) -> None:
        """Reads on where the chunk before was, once all warps have read it, and it has left."""
        if self.posts:
            tc.wait_smem_to_gmem(0, wait_read_only=True)
        pl.when(chunk > 0)(lambda: self._load(chunk - 1 + self.tile.chunks))

    def _products(self, chunk, at, half: int, meanwhile):
        """Those of half a chunk with the rows of phi, and what is made meanwhile."""
        k = chunk * _HALVES + half
        place = lax.rem(k, self.tile.of_phi)
        phi, streams = self.scratch["phi"].at[place], self._places(at, half)
        tc.barrier_wait(self.scratch["phi full"].at[place])

        def run(sums):
            for part in reversed(range(PARTS)):  # the smaller ones first
                for stream, x in enumerate(streams):
                    tc.wgmma(sums, x, phi.at[part, stream].T)
            made = meanwhile()
            return sums[...], made

        products = pl.run_scoped(run, tc.ACC((ROWS, self.form.rows), jnp.float32))
        tc.barrier_arrive(self.scratch["phi read"].at[place])
        pl.when(self.number == 0)(lambda: self._reload_phi(k))
        return products

    def _begin_phi(self) -> None:
        def begin():
            for k in range(self.tile.of_phi):
                self._load_phi(jnp.int32(k))

        pl.when(self.number == 0)(begin)

    def _load_phi(self, k) -> None:
        """Half ``k``, if there is such."""
        place, chunk, half = lax.rem(k, self.tile.of_phi), k // _HALVES, lax.rem(k, _HALVES)

        def load():
            for stream in range(self.form.n):
                columns = self._columns(stream, chunk, half, _HALF)
                for part in range(PARTS):
                    target = self.scratch["phi"].at[place, part, stream]
                    full = self.scratch["phi full"].at[place]
                    tc.copy_gmem_to_smem(self.phi.at[part, :, columns], target, full)

        pl.when(chunk < self.count)(load)

    def _reload_phi(self, k) -> None:
        """Where half ``k`` minus one was, once both warpgroups have read it."""

        def wait():
            tc.barrier_wait(self.scratch["phi read"].at[lax.rem(k - 1, self.tile.of_phi)])
            self._load_phi(k - 1 + self.tile.of_phi)

        pl.when(k > 0)(wait)

    def _finish_phi(self) -> None:
        """Every completion is waited for, also the last."""
        pl.when(self.number == 0)(lambda: self._reload_phi(_HALVES * self.count))


def _combine(weights: list[jax.Array], streams: list[jax.Array]) -> jax.Array:
    """The sum of these streams with these weights."""
    terms = [weight * x for weight, x in zip(weights, streams, strict=True)]
    return functools.reduce(jnp.add, terms)
