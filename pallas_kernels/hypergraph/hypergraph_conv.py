"""The mixing of ``hypergraph_conv``: one small matrix for the nodes of every token.

A block has some columns of all nodes, and shares the tokens with the other blocks of these columns.
While a lane works on some tokens, its part of the next ones is copied to shared memory; no lane
reads what another lane has copied. Sums over tokens stay in registers until the end, and are then
added up in a fixed order: by lanes, by warps, by blocks.

An entry +0 of the matrix contributes nothing to a sum, even if it meets a number that is not
finite. The kernels first compute sums without regard to this. If one of the numbers is not finite,
the sum for the first node, which includes the numbers of all nodes, is not finite either. Then the
sums are computed again, without the terms of zero entries.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from pallas_kernels import simt
from pallas_kernels.chip import Chip
from pallas_kernels.dense.warp_activations import activate, pull_back
from pallas_kernels.simt.values import Array, Value
from pallas_kernels.simt.warp import LANES, Warp

_ENTRIES = 4  # neighbouring columns of a lane: 16 bytes of float32
_FLOATS = 4  # float32 numbers in 16 bytes
# Warps of a block, most first. With eight, a block has a multiprocessor for itself, with 255
# registers a lane. With 12, the backward kernel spills registers: on an H200 it took 7 % longer in
# float32, and 20 % in bfloat16.
_WARPS = (8, 4)
_MOST_AHEAD = 2


@dataclass(frozen=True)
class MixTile:
    """Division of columns and tokens among blocks, and the steps that they read ahead.

    Attributes:
      lanes: lanes that share a token; the other lanes of the warp have other tokens.
      warps: warps of a block; each has other tokens.
      ranges: blocks that have the same columns and share the tokens.
      ahead: how many steps ahead a lane reads.
    """

    lanes: int
    warps: int
    ranges: int
    ahead: int

    @classmethod
    def choose(cls, chip: Chip, x: Any, arrays: int) -> MixTile:
        """The one heuristic: one wave of blocks, and as much read ahead as shared memory holds.

        Args:
          chip: the GPU.
          x: [tokens, nodes, width].
          arrays: how many arrays of the shape of ``x`` are read.
        """
        tokens, nodes, width = x.shape
        lanes = math.gcd(width // _ENTRIES, LANES)
        of_lane = arrays * nodes * _ENTRIES * x.dtype.itemsize
        for warps in _WARPS:
            ring = chip.shared_bytes - 4 * _fixed_words(nodes, warps)
            ahead = min(ring // (warps * LANES * of_lane) - 1, _MOST_AHEAD)
            if ahead >= 1:
                break
        most = max(1, chip.multiprocessors // (width // (lanes * _ENTRIES)))
        ranges = min(most, -(-tokens // (LANES // lanes * warps)))
        return cls(lanes, warps, ranges, ahead)

    @property
    def columns_per_block(self) -> int:
        """Number of columns of a block."""
        return self.lanes * _ENTRIES

    @property
    def tokens_per_warp(self) -> int:
        """Number of tokens that a warp processes at once."""
        return LANES // self.lanes


def _pitch(nodes: int) -> int:
    """Returns the floats of a row of the matrix in shared memory, padded to 16 bytes."""
    return -(-nodes // _FLOATS) * _FLOATS


def _padded_pairs(nodes: int) -> int:
    """Returns the number of sums for the matrix, padded to the same number for each lane."""
    return -(-nodes * nodes // LANES) * LANES


def _fixed_words(nodes: int, warps: int) -> int:
    """Returns the words of shared memory besides the ring."""
    return nodes * _pitch(nodes) + warps * (_padded_pairs(nodes) + LANES * _ENTRIES)


class _Inputs(NamedTuple):
    """Inputs of the kernels: arrays, in a kernel as ``Array``, or None.

    Attributes:
      x: [tokens, nodes, width].
      other: [tokens, nodes, width]: what is added to the result, or the gradient to the result.
      matrix: [nodes, nodes] float32.
      bias: [width] float32.
    """

    x: Any
    other: Any
    matrix: Any
    bias: Any


def mix(
    x: jax.Array,
    matrix: jax.Array,
    bias: jax.Array | None = None,
    residual: jax.Array | None = None,
    activation: str | None = None,
    *,
    tile: MixTile | None = None,
) -> jax.Array:
    """Computes ``residual + activation(matrix x + bias)`` in float32, rounded once.

    A number that is not finite contributes nothing through an entry +0 of the matrix; through -0 it
    does.

    Args:
      x: [tokens, nodes, width], float32, bfloat16 or float16. There are up to 8 nodes, since a lane
        of the backward pass has a sum for each pair of them; the width is a multiple of 32.
      matrix: [nodes, nodes] float32.
      bias: [width] float32, or None.
      residual: of the shape and dtype of ``x``, or None.
      activation: name of an activation of ``dense.activations``, or None.
      tile: how the work is divided; chosen by the shapes if None.

    Returns:
      The result, of the shape and dtype of ``x``.
    """
    tokens, nodes, _ = x.shape
    if tokens == 0:
        return jnp.zeros_like(x)
    inputs = _Inputs(x, residual, matrix, bias)
    tile = tile or MixTile.choose(Chip.current(), x, 1 if residual is None else 2)
    return _launch(
        _Forward(tile, activation),
        inputs,
        [jax.ShapeDtypeStruct(x.shape, x.dtype)],
        "hypergraph_conv_mix",
        {"matrix": (nodes, _pitch(nodes))},
    )[0]


def mix_backward(
    x: jax.Array,
    matrix: jax.Array,
    bias: jax.Array | None,
    dy: jax.Array,
    activation: str | None = None,
    *,
    tile: MixTile | None = None,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Computes the gradients to ``x``, ``matrix`` and ``bias``; that to the residual is ``dy``.

    With ``da = dy activation'(matrix x + bias)``, which is recomputed, they are ``dx = matrixᵀ
    da``, ``Σ da xᵀ`` and ``Σ da``, all in one pass. Through an entry +0 of the matrix nothing
    passes to dx, but the entry itself has a gradient.

    Args:
      x: [tokens, nodes, width], float32, bfloat16 or float16.
      matrix: [nodes, nodes] float32.
      bias: [width] float32, or None.
      dy: the gradient to the result, of the shape and dtype of ``x``.
      activation: name of the activation, or None.
      tile: how the work is divided; chosen by the shapes if None.

    Returns:
      The gradients: of the shape and dtype of ``x``, [nodes, nodes] float32 and [width] float32.
    """
    tokens, nodes, width = x.shape
    if tokens == 0:
        return jnp.zeros_like(x), jnp.zeros_like(matrix), jnp.zeros(width, jnp.float32)
    tile = tile or MixTile.choose(Chip.current(), x, 2)
    slices, pairs = width // tile.columns_per_block, nodes * nodes
    partial = jax.ShapeDtypeStruct(
        (tile.ranges * slices, pairs + tile.columns_per_block), jnp.float32
    )
    dx, partial = _launch(
        _Backward(tile, activation),
        _Inputs(x, dy, matrix, bias),
        [jax.ShapeDtypeStruct(x.shape, x.dtype), partial],
        "hypergraph_conv_mix_backward",
        {
            "matrix": (nodes, _pitch(nodes)),
            "pairs": (tile.warps, _padded_pairs(nodes)),
            "columns": (tile.warps, LANES * _ENTRIES),
        },
    )
    sums = jnp.sum(partial.reshape(tile.ranges, slices, -1), axis=0)
    dmatrix = jnp.sum(sums[:, :pairs], axis=0).reshape(matrix.shape)
    return dx, dmatrix, sums[:, pairs:].reshape(width)


def _launch(kernel, inputs: _Inputs, outputs, name: str, floats: dict[str, tuple[int, ...]]):
    """Launches a kernel with a ring of tokens and further float32 arrays in shared memory."""
    tile, x = kernel.tile, inputs.x
    vectors = x.shape[1] * (1 if inputs.other is None else 2)
    ring = tile.warps, tile.ahead + 1, vectors, LANES, _ENTRIES
    shared = {"ring": jax.ShapeDtypeStruct(ring, x.dtype)}
    shared |= {n: jax.ShapeDtypeStruct(shape, jnp.float32) for n, shape in floats.items()}
    blocks = tile.ranges * (x.shape[2] // tile.columns_per_block)
    grid = simt.Grid(blocks, tile.warps)
    return simt.launch(kernel, inputs, outputs, name=name, grid=grid, block_shared=shared)


@dataclass(frozen=True)
class _TokenWalk:
    """A lane's walk through its tokens: what it reads of them, and the matrix.

    Attributes:
      warp: the warp of the lane.
      tile: how columns and tokens are shared.
      inputs: the arrays that are read.
      ring: tokens that have been read, [warps, stages, vectors, lanes, columns]: a vector is what a
        lane has of a node.
      matrix: the matrix in shared memory, with padded rows.
    """

    warp: Warp
    tile: MixTile
    inputs: _Inputs
    ring: Array
    matrix: Array

    @property
    def nodes(self) -> int:
        """Number of nodes of a token."""
        return self.inputs.x.shape[1]

    @property
    def slices(self) -> int:
        """Number of blocks that share a token, each with some of its columns."""
        return self.inputs.x.shape[2] // self.tile.columns_per_block

    @property
    def column(self) -> Value:
        """The first column of the lane."""
        place = self.warp.block % self.slices
        return place * self.tile.columns_per_block + self.warp.lane % self.tile.lanes * _ENTRIES

    def run(self, carry: Any, take: Any) -> Any:
        """Repeats ``carry = take(i, token, carry)`` for the tokens of this lane; returns the carry.

        Lanes without a token in the last step get one that does not exist.
        """
        warp, tile = self.warp, self.tile
        self._copy_matrix()
        tokens, step = self.inputs.x.shape[0], tile.ranges * tile.warps * tile.tokens_per_warp
        in_block = warp.thread // LANES
        first = (warp.block // self.slices * tile.warps + in_block) * tile.tokens_per_warp
        # The first lane of a warp has the most tokens.
        count = (tokens - 1 - first + step).at_least(0) // step

        def token(i: Value) -> Value:
            return first + i * step + warp.lane // tile.lanes

        def load(i: Value) -> None:
            warp.when(i < count, lambda: self._load(i, token(i)))
            warp.commit_copies()

        def work(i, carry):
            load(i + tile.ahead)
            warp.wait_for_copies(tile.ahead)
            return take(i, token(i), carry)

        for i in range(tile.ahead):
            load(warp.i32(i))
        return warp.loop(warp.i32(0), count, 1, carry, work)

    def _copy_matrix(self) -> None:
        """Copies the matrix to shared memory, by all warps of the block."""
        nodes, pitch = self.matrix.shape

        def copy(i, _):
            row = i // nodes
            value = self.inputs.matrix.load(i)
            self.matrix.store(row * pitch + (i - row * nodes), value)

        self.warp.loop(self.warp.thread, nodes * nodes, self.warp.threads, (), copy)
        self.warp.barrier()

    def row(self, node: int) -> list[Value]:
        """Loads a row of the matrix."""
        nodes, pitch = self.matrix.shape
        words = self.matrix.load_words(node * pitch, pitch)
        return [self.matrix.unpack(words, i) for i in range(nodes)]

    def bias(self) -> list[Value]:
        """Loads the bias of the lane's columns."""
        if self.inputs.bias is None:
            return [self.warp.f32(0.0)] * _ENTRIES
        words = self.inputs.bias.load_words(self.column, _ENTRIES)
        return [self.inputs.bias.unpack(words, e) for e in range(_ENTRIES)]

    def each_node(self, carry: Any, body: Any) -> Any:
        """Repeats ``carry = body(node, carry)`` in a loop that is not unrolled: for rare cases."""
        return self.warp.loop(self.warp.i32(0), self.nodes, 1, carry, body)

    def exact_preactivation(self, i: Value, node: Value | int, bias: list[Value]) -> list[Value]:
        """Computes the preactivation of a node without the terms of entries +0."""
        first = self.warp.integer(node) * self.matrix.shape[1]
        return self.each_node(
            bias,
            lambda u, z: self._add_term(z, self.matrix.load(first + u), self.node_columns(i, u)),
        )

    def exact_gradient(self, i: Value, node: Value, da: Any, token: Value) -> list[Value]:
        """Computes the gradient to a node's features without the terms of entries +0.

        ``da(i, v, token)`` returns the gradient to the preactivation of node v.
        """
        pitch = self.matrix.shape[1]
        zeros = [self.warp.f32(0.0)] * _ENTRIES
        return self.each_node(
            zeros,
            lambda v, dx: self._add_term(dx, self.matrix.load(v * pitch + node), da(i, v, token)),
        )

    def _add_term(self, sums: list[Value], factor: Value, values: list[Value]) -> list[Value]:
        """Adds a factor times values to sums, unless the factor is +0."""
        is_term, zero = factor.bits("i32") != 0, self.warp.f32(0.0)
        pairs = zip(values, sums, strict=True)
        return [self.warp.fma(factor, self.warp.select(is_term, v, zero), s) for v, s in pairs]

    def inside(self, token: Value) -> Value:
        """Returns whether the token exists."""
        return token < self.inputs.x.shape[0]

    def _load(self, i: Value, token: Value) -> None:
        """Starts to copy the lane's columns of a token to a stage of the ring."""
        x = self.inputs.x
        tokens, nodes, width = x.shape
        known = token if self.tile.tokens_per_warp == 1 else token.at_most(tokens - 1)
        first = known.to("i64") * (nodes * width // _ENTRIES) + self.column // _ENTRIES
        arrays = [array for array in (x, self.inputs.other) if array is not None]
        for number, array in enumerate(arrays):
            for node in range(nodes):
                place = self._place(i, number * nodes + node)
                at = first + node * (width // _ENTRIES)
                self.ring.copy_from(place, array, at, _ENTRIES * array.itemsize)

    def node_columns(self, i: Value, number: Value | int) -> list[Value]:
        """Returns the lane's columns of a node of ``x``.

        Numbers past its nodes are nodes of ``other``.
        """
        words = self.ring.load_words(self._place(i, number) * _ENTRIES, _ENTRIES)
        return [self.ring.unpack(words, e) for e in range(_ENTRIES)]

    def _place(self, i: Value, vector: Value | int) -> Value:
        """Returns an index in the ring, in units of what a lane reads at once."""
        _, stages, vectors, _, _ = self.ring.shape
        stage = self.warp.thread // LANES * stages + i % stages
        return (stage * vectors + vector) * LANES + self.warp.lane

    def store(self, token: Value, node: Value | int, values: list[Value], target: Array) -> None:
        """Stores the lane's columns of a node, if the token exists."""

        def write():
            target.row(token).store(self.column + node * target.shape[2], *values)

        if self.tile.tokens_per_warp == 1:
            write()
        else:
            self.warp.when(self.inside(token), write)


@dataclass(frozen=True)
class _Forward:
    """Mixes the nodes of each token, adds the bias, and applies the activation."""

    tile: MixTile
    activation: str | None

    def __call__(self, warp: Warp, inputs, y: Array, *, ring: Array, matrix: Array) -> None:
        walk = _TokenWalk(warp, self.tile, inputs, ring, matrix)
        bias = walk.bias()

        def finish(i, token, node, z):
            made = [activate(warp, self.activation, value) for value in z]
            if inputs.other is not None:
                made = _add_columns(made, walk.node_columns(i, node + walk.nodes))
            walk.store(token, node, made, y)

        def take(i, token, _):
            x = [walk.node_columns(i, node) for node in range(walk.nodes)]
            first = _preactivation(warp, walk.row(0), x, bias)
            not_finite = _any_not_finite(warp, first)
            finish(i, token, 0, first)
            for node in range(1, walk.nodes):
                finish(i, token, node, _preactivation(warp, walk.row(node), x, bias))
            again = functools.partial(exact, i, token)
            warp.when(not_finite, lambda: walk.each_node((), lambda node, _: again(node)))

        def exact(i, token, node):
            finish(i, token, node, walk.exact_preactivation(i, node, bias))

        walk.run((), take)


class _Totals(NamedTuple):
    """Sums of a lane over its tokens.

    Attributes:
      pairs: for each pair of nodes, row by row, the gradient at the first times the features of the
        second.
      columns: gradients to the bias, for each column of the lane.
    """

    pairs: list[Value]
    columns: list[Value]


@dataclass(frozen=True)
class _Backward:
    """Computes dx of each token, and accumulates the gradients to the matrix and the bias."""

    tile: MixTile
    activation: str | None

    def __call__(self, warp: Warp, inputs, dx: Array, partial: Array, **shared: Array) -> None:
        walk = _TokenWalk(warp, self.tile, inputs, shared["ring"], shared["matrix"])
        bias, zero, nodes = walk.bias(), warp.f32(0.0), range(walk.nodes)

        def take(i, token, totals):
            x = [walk.node_columns(i, node) for node in nodes]
            if self.activation is None:
                return fast(i, token, x, totals)
            # The gradient to a preactivation depends on the features of all nodes.
            not_finite = _any_not_finite(warp, _preactivation(warp, walk.row(0), x, bias))
            totals = warp.update_when(~not_finite, totals, functools.partial(fast, i, token, x))
            return warp.update_when(not_finite, totals, functools.partial(exact, i, token))

        def fast(i, token, x, totals):
            made = [[zero] * _ENTRIES for _ in nodes]
            for node in nodes:
                row = walk.row(node)
                da = self._through_activation(
                    walk, row, x, bias, walk.node_columns(i, walk.nodes + node)
                )
                if self.tile.tokens_per_warp > 1:
                    da = [warp.select(walk.inside(token), d, zero) for d in da]
                totals = self._add(warp, totals, node, da, x)
                for other, factor in enumerate(row):
                    pairs = zip(da, made[other], strict=True)
                    made[other] = [warp.fma(factor, d, m) for d, m in pairs]
            for node in nodes:
                walk.store(token, node, made[node], dx)
            warp.when(_any_not_finite(warp, made[0]), lambda: store_exact(i, token))
            return totals

        def exact(i, token, totals):
            x = [walk.node_columns(i, node) for node in nodes]
            for node in nodes:
                totals = self._add(warp, totals, node, exact_da(i, warp.i32(node), token), x)
            store_exact(i, token)
            return totals

        def exact_da(i, node, token):
            da = walk.node_columns(i, node + walk.nodes)
            if self.activation is not None:
                z = walk.exact_preactivation(i, node, bias)
                pairs = zip(z, da, strict=True)
                da = [pull_back(warp, self.activation, z, d) for z, d in pairs]
            return [warp.select(walk.inside(token), d, zero) for d in da]

        def store_exact(i, token):
            def store(node, _):
                walk.store(token, node, walk.exact_gradient(i, node, exact_da, token), dx)

            walk.each_node((), store)

        totals = walk.run(_Totals([zero] * walk.nodes**2, [zero] * _ENTRIES), take)
        partial = partial.row(warp.block)
        self._store(walk, totals, shared["pairs"], shared["columns"], partial)

    def _through_activation(self, walk: _TokenWalk, row, x, bias, dy) -> list[Value]:
        """Returns the gradient to the preactivation at one node."""
        if self.activation is None:
            return dy
        pairs = zip(_preactivation(walk.warp, row, x, bias), dy, strict=True)
        return [pull_back(walk.warp, self.activation, z, d) for z, d in pairs]

    def _add(self, warp: Warp, totals: _Totals, node: int, da, x) -> _Totals:
        """Adds a node's contributions to the totals."""
        pairs = [*totals.pairs]
        for other, columns in enumerate(x):
            place = node * len(x) + other
            for d, value in zip(da, columns, strict=True):
                pairs[place] = warp.fma(d, value, pairs[place])
        return _Totals(pairs, _add_columns(totals.columns, da))

    def _store(self, walk: _TokenWalk, totals: _Totals, pairs, columns, target: Array) -> None:
        """Adds up the totals of lanes and warps in a fixed order, and stores those of the block."""
        warp, tile, count = walk.warp, self.tile, walk.nodes**2
        first = warp.thread // LANES * pairs.shape[1]
        for number, total in warp.sum_scatter(totals.pairs, LANES):
            pairs.store(first + number, total)
        sums = [warp.sum_groups(value, tile.lanes) for value in totals.columns]
        columns.store(warp.thread * _ENTRIES, *sums)
        warp.barrier()

        def add(array, offset):
            def store(i, _):
                total = array.load(i)
                for number in range(1, tile.warps):
                    total = total + array.load(i + number * array.shape[1])
                target.store(i + offset, total)

            return store

        warp.loop(warp.thread, count, warp.threads, (), add(pairs, 0))
        warp.loop(warp.thread, tile.columns_per_block, warp.threads, (), add(columns, count))


def _preactivation(warp: Warp, row: list[Value], x: list[list[Value]], bias) -> list[Value]:
    """Returns a row of the matrix times ``x``, plus the bias."""
    totals = bias
    for factor, columns in zip(row, x, strict=True):
        totals = [warp.fma(factor, c, total) for c, total in zip(columns, totals, strict=True)]
    return totals


def _any_not_finite(warp: Warp, sums: list[Value]) -> Value:
    """Returns whether one of the sums is not finite."""
    zero = total = warp.f32(0.0)
    for value in sums:
        total = warp.fma(value, zero, total)
    return total != 0.0


def _add_columns(a: list[Value], b: list[Value]) -> list[Value]:
    return [x + y for x, y in zip(a, b, strict=True)]
