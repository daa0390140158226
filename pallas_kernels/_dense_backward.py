"""The backward pass of one or two dense layers, in one kernel that reads every row once.

Some warpgroups, the walkers, go through tiles of 64 rows as those of the forward pass do: they
recompute what is not known, and make ``dz`` of each layer and ``dx``. The others, the summers, add
the tiles up to ``dkernel`` and ``dbias`` in their registers, which would not hold both sides::

    dkernel_i = h_iᵀ dz_i,  dbias_i = dz_iᵀ 1

Each block writes its sums once; they are added in a fixed order.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from pallas_kernels import _dense_stack as dense
from pallas_kernels._dense_activations import pull_back
from pallas_kernels._dense_stack import BLOCK, COLUMNS, ROWS, WARPGROUP, Stack

# By layers. Of two, there are three warpgroups with 168 registers a thread.
_MOST_WIDTHS = {1: 256, 2: 192}
# Sums of a kernel that the registers of a warpgroup hold, 128 a thread; and with all other sums.
MOST_SUMS = 128 * 128
_MOST_HELD = 140 * 128
_ONES = 8  # columns of the smallest product
_WARPGROUPS = 3


@dataclass(frozen=True)
class BackwardTile:
    """How blocks and warpgroups share the work.

    Attributes:
      blocks: at most this many, one for each multiprocessor.
      walkers: warpgroups that go through tiles of rows.
      slots: tiles that each of them has in shared memory, read ahead.
      summers: layers of each warpgroup that sums.
    """

    blocks: int
    walkers: int
    slots: int
    summers: tuple[tuple[int, ...], ...]

    @classmethod
    def choose(cls, stack: Stack) -> BackwardTile | None:
        """The one heuristic: what fits, or None; a second walker comes before reading ahead."""
        sizes = [rows * columns for rows, columns in stack.shapes]
        most = _MOST_WIDTHS.get(stack.layers, 0)
        if max(sizes) > MOST_SUMS or max(stack.widths) > most:
            return None
        layers = tuple(range(stack.layers))
        held = sum(sizes) + _ONES * sum(stack.widths[1:])
        alone = stack.layers == 1 or held <= _MOST_HELD
        summers = (layers,) if alone else tuple((layer,) for layer in layers)
        ones = dense.aligned(_ONES * ROWS * stack.dtype.itemsize)
        room = dense.SHARED_BYTES - stack.parameter_bytes() - ones
        columns = ROWS * stack.dtype.itemsize
        slot = columns * sum(_streams(stack))
        rest = columns * (stack.widths[0] + sum(_kept(stack).values()))
        most = _WARPGROUPS - len(summers)
        for walkers, slots in ((most, 4), (most, 3), (most, 2), (1, 3), (1, 2), (1, 1)):
            if walkers * (slots * slot + rest) <= room:
                return cls(dense.MULTIPROCESSORS, walkers, slots, summers)
        return None

    @property
    def warpgroups(self) -> int:
        """Of a block."""
        return self.walkers + len(self.summers)

    def limited_to(self, rows: int) -> BackwardTile:
        """Without blocks that would have no rows."""
        return dataclasses.replace(self, blocks=min(self.blocks, -(-rows // ROWS)))


def needs_output(stack: Stack) -> bool:
    """Whether the output of the last layer is read instead of recomputed."""
    last = stack.activation(stack.layers - 1)
    return last is not None and last.of_output


def _streams(stack: Stack) -> list[int]:
    """Widths of what is read of each row: x, dy, and y if it is needed."""
    last = stack.widths[-1]
    return [stack.widths[0], last, *([last] if needs_output(stack) else [])]


def _kept(stack: Stack) -> dict[str, int]:
    """Widths of what a walker makes for the summers."""
    kept = {}
    if stack.layers == 2:
        kept["hidden"] = stack.widths[1]
    if stack.layers == 2 or stack.activation(0) is not None:
        kept["dz"] = stack.widths[1]
    return kept


def backward(
    x, kernels, biases, y, dy, activations, tile: BackwardTile | None = None
) -> tuple[jax.Array, Sequence[jax.Array], Sequence[jax.Array | None]]:
    """Gradients to ``x``, the kernels and the biases.

    Args:
      x: [rows, width], bfloat16 or float16.
      kernels: one or two, as in ``forward``; the second layer without activation.
      biases: likewise.
      y: the result of ``forward``, where ``needs_output``; else not used.
      dy: [rows, last width].
      activations: name or None, each.
      tile: by default what suits the shapes.

    Returns:
      Gradients, of the shapes and dtypes of the arguments.
    """
    stack = Stack.of(x, kernels, biases, activations)
    if x.shape[0] == 0:
        return jax.tree.map(jnp.zeros_like, (x, tuple(kernels), tuple(biases)))
    tile = (tile or _chosen(stack)).limited_to(x.shape[0])
    streams = [x, dy, *([y] if needs_output(stack) else [])]
    sums = [jax.ShapeDtypeStruct((tile.blocks, *shape), jnp.float32) for shape in stack.shapes]
    ones = [
        jax.ShapeDtypeStruct((tile.blocks, width, _ONES), jnp.float32)
        for width in itertools.compress(stack.widths[1:], stack.biased)
    ]
    call = dense.launch(
        functools.partial(_backward, stack, tile),
        "dense_backward",
        (jax.ShapeDtypeStruct(x.shape, x.dtype), sums, ones),
        tile.blocks,
        tile.warpgroups,
        _scratch(stack, tile),
    )
    given = [b for b in biases if b is not None]
    dx, sums, ones = call(streams, tuple(kernels), given, jnp.ones((_ONES, ROWS), x.dtype))
    dkernels = tuple(jnp.sum(s, axis=0).astype(x.dtype) for s in sums)
    dbiases = iter([jnp.sum(s[:, :, 0], axis=0).astype(x.dtype) for s in ones])
    return dx, dkernels, tuple(None if b is None else next(dbiases) for b in biases)


def _chosen(stack: Stack) -> BackwardTile:
    tile = BackwardTile.choose(stack)
    if tile is None:
        raise ValueError(f"sums of layers of widths {stack.widths} do not fit registers")
    return tile


def _scratch(stack: Stack, tile: BackwardTile):
    def matrices(*shape):
        return dense.tiles(stack.dtype, tile.walkers, *shape)

    def copied(*shape):
        *ring, width = shape
        chunks = (width // COLUMNS, ROWS, COLUMNS)
        return dense.copied_tiles(stack.dtype, tile.walkers, *ring, *chunks)

    streams, ring = _streams(stack), (tile.walkers, tile.slots)
    parameters = stack.layers + sum(stack.biased) + 1
    return {
        **stack.parameters(),
        "ones": dense.tiles(stack.dtype, _ONES, ROWS),
        "slots": [copied(tile.slots, width) for width in streams],
        "kept": {name: matrices(ROWS, width) for name, width in _kept(stack).items()},
        "dx": copied(stack.widths[0]),
        "full": plgpu.Barrier(num_arrivals=sum(streams) // COLUMNS, num_barriers=ring),
        "made": plgpu.Barrier(num_barriers=tile.walkers),
        "summed": plgpu.Barrier(num_arrivals=len(tile.summers), num_barriers=tile.walkers),
        "loaded": plgpu.Barrier(num_arrivals=parameters),
    }


def _backward(stack: Stack, tile: BackwardTile, scratch, *references) -> None:
    """A warpgroup's part."""
    streams, kernels, biases, ones, dx, kernel_sums, bias_sums = references
    targets = [*scratch["kernels"], *scratch["biases"], scratch["ones"]]
    dense.load_parameters([*kernels, *biases, ones], targets, scratch["loaded"])
    warpgroup, block = lax.axis_index(WARPGROUP), lax.axis_index(BLOCK)
    count = dense.own_tiles(dx.shape[0], block, tile.blocks)
    pl.when(warpgroup < tile.walkers)(
        lambda: _Walker(stack, tile, scratch, streams, dx, warpgroup).run(block, count)
    )
    for number, layers in enumerate(tile.summers):
        run = functools.partial(
            _sum, stack, tile, scratch, layers, count, (kernel_sums, bias_sums), block
        )
        pl.when(warpgroup == tile.walkers + number)(run)


@dataclass(frozen=True)
class _Walker:
    """A warpgroup that makes ``dz`` and ``dx``.

    Attributes:
      stack: the layers.
      tile: who does what.
      scratch: in shared memory.
      streams: x, dy and y.
      dx: the result.
      number: among the walkers.
    """

    stack: Stack
    tile: BackwardTile
    scratch: dict
    streams: Sequence
    dx: Any
    number: jax.Array

    def run(self, block, count) -> None:
        """All tiles of the block whose number is this walker's, modulo walkers."""
        tile, number = self.tile, self.number
        full = self.scratch["full"]
        slots, copied = zip(*map(dense.faces, self.scratch["slots"]), strict=True)
        summed = self.scratch["summed"].at[number]
        own = (count - number + tile.walkers - 1) // tile.walkers

        def place(i):
            return dense.rows_of(block + (number + i * tile.walkers) * tile.blocks)

        def load(i):
            slot = lax.rem(i, tile.slots)
            for source, target in zip(self.streams, copied, strict=True):
                for chunk, part in enumerate(dense.columns_of(source.shape[1])):
                    plgpu.copy_gmem_to_smem(
                        source.at[place(i), part],
                        target.at[number, slot, chunk],
                        full.at[number, slot],
                    )

        def reuse(i):
            """Waits for the summers to be done with the tile before, and reads into its slot."""

            def wait():
                plgpu.barrier_wait(summed)
                following = i - 1 + tile.slots
                pl.when(following < own)(lambda: load(following))

            pl.when(i > 0)(wait)

        for i in range(tile.slots):
            pl.when(i < own)(functools.partial(load, jnp.int32(i)))

        @pl.loop(0, own)
        def _(i):
            slot = lax.rem(i, tile.slots)
            plgpu.barrier_wait(full.at[number, slot])
            x, dy, *y = (ring.at[number, slot] for ring in slots)
            dz = self._make_dz(x, dy, y, functools.partial(reuse, i))
            plgpu.commit_smem()
            plgpu.barrier_arrive(self.scratch["made"].at[number])
            self._make_dx(dz, place(i))

        # Every completion is waited for, also the last.
        pl.when(own > 0)(lambda: plgpu.barrier_wait(summed))
        plgpu.wait_smem_to_gmem(0)

    def _make_dz(self, x, dy, y, reuse):
        """That of the first layer, in shared memory; and the hidden tile, if there is one.

        ``reuse`` is called before any of it is overwritten.
        """
        stack = self.stack
        activation = stack.activation(0)
        if stack.layers == 1 and activation is None:
            reuse()
            return [dy.at[chunk] for chunk in range(stack.widths[1] // COLUMNS)]
        dz = self.scratch["kept"]["dz"].at[self.number]

        @pl.loop(0, stack.widths[1] // COLUMNS)
        def _(chunk):
            columns = pl.ds(pl.multiple_of(chunk * COLUMNS, COLUMNS), COLUMNS)
            known = self._known(x, y, chunk, columns)
            # The slope comes before the second product: registers would not hold all of it.
            h, slope = self._activate(known, lambda: pl.when(chunk == 0)(reuse))
            if stack.layers == 2:
                self.scratch["kept"]["hidden"].at[self.number, :, columns][...] = h
            dh = self._dh(dy, chunk, columns)
            if slope is not None:
                dh = pull_back(slope, dh)
            dz.at[:, columns][...] = dh.astype(stack.dtype)

        return [dz.at[:, part] for part in dense.columns_of(stack.widths[1])]

    def _known(self, x, y, chunk, columns):
        """What the derivative is made of, y or z; z if there is a hidden layer."""
        if y:
            layout = plgpu.Layout.WGMMA
            return plgpu.load(y[0].at[chunk], layout=layout).astype(jnp.float32)
        kernel = self.scratch["kernels"][0]
        z = dense.product(
            *(
                (x.at[k], kernel.at[part, columns])
                for k, part in enumerate(dense.columns_of(self.stack.widths[0]))
            )
        )
        bias = self.stack.bias_of(self.scratch["biases"], 0)
        return dense.add_bias(z, bias, columns)

    def _dh(self, dy, chunk, columns):
        """The gradient behind the activation of the first layer."""
        if self.stack.layers == 2:
            kernel = self.scratch["kernels"][1]
            return dense.product(
                *(
                    (dy.at[k], kernel.at[columns, part].T)
                    for k, part in enumerate(dense.columns_of(self.stack.widths[2]))
                )
            )
        return plgpu.load(dy.at[chunk], layout=plgpu.Layout.WGMMA).astype(jnp.float32)

    def _activate(self, known, meanwhile):
        """The hidden tile if there is one, rounded, and the slope if there is an activation."""
        stack, activation = self.stack, self.stack.activation(0)
        hidden = stack.layers == 2
        if activation is None:
            meanwhile()
            return (known.astype(stack.dtype) if hidden else None), None

        def activate(part):
            if not hidden:
                return None, activation.derivative(part)
            h = activation.value(part)
            slope = activation.derivative(h if activation.of_output else part)
            return h.astype(stack.dtype), slope

        # Half of the columns at a time: what is between would not fit the registers.
        parts = [activate(known[:, : COLUMNS // 2])]
        meanwhile()
        parts.append(activate(known[:, COLUMNS // 2 :]))
        h, slope = zip(*parts, strict=True)
        return (jnp.concatenate(h, axis=1) if hidden else None), jnp.concatenate(slope, axis=1)

    def _make_dx(self, dz, rows) -> None:
        staged, copied = (face.at[self.number] for face in dense.faces(self.scratch["dx"]))
        kernel = self.scratch["kernels"][0]
        parts = dense.columns_of(self.stack.widths[1])

        @pl.loop(0, self.stack.widths[0] // COLUMNS)
        def _(chunk):
            columns = pl.ds(pl.multiple_of(chunk * COLUMNS, COLUMNS), COLUMNS)
            pairs = zip(dz, parts, strict=True)
            made = dense.product(
                *((chunk_dz, kernel.at[columns, part].T) for chunk_dz, part in pairs)
            )
            pl.when(chunk == 0)(lambda: plgpu.wait_smem_to_gmem(0, wait_read_only=True))
            staged.at[chunk][...] = made.astype(self.stack.dtype)

        plgpu.commit_smem()
        for chunk, part in enumerate(dense.columns_of(self.stack.widths[0])):
            plgpu.copy_smem_to_gmem(copied.at[chunk], self.dx.at[rows, part])


def _sum(stack: Stack, tile: BackwardTile, scratch, layers, count, results, block) -> None:
    """Adds all tiles of the block up, for some layers."""
    kernel_sums, bias_sums = results
    biased = [layer for layer in layers if stack.biased[layer]]

    streams = [dense.faces(slots)[0] for slots in scratch["slots"]]

    def factors(layer, walker, slot):
        """Of the sum: both as what lies in one piece, the columns with the matrix."""
        x, dy, *_ = (
            [(part, stream.at[walker, slot, chunk]) for chunk, part in _chunks(stream)]
            for stream in streams
        )
        kept = {name: [(slice(None), made.at[walker])] for name, made in scratch["kept"].items()}
        h = x if layer == 0 else kept["hidden"]
        return h, kept.get("dz", dy) if layer == 0 else dy

    def accumulate(sums):
        @pl.loop(0, count)
        def _(n):
            walker = lax.rem(n, tile.walkers)
            slot = lax.rem(n // tile.walkers, tile.slots)
            plgpu.barrier_wait(scratch["made"].at[walker])
            for layer in layers:
                h, dz = factors(layer, walker, slot)
                for (rows, a), (columns, b) in itertools.product(h, dz):
                    plgpu.wgmma(sums["kernel", layer].at[rows, columns], a.T, b)
                for rows, a in dz if layer in biased else ():
                    plgpu.wgmma(sums["bias", layer].at[rows], a.T, scratch["ones"].T)
            plgpu.wgmma_wait(0)
            plgpu.barrier_arrive(scratch["summed"].at[walker])

        for layer in layers:
            kernel_sums[layer].at[block][...] = sums["kernel", layer][...]
        for layer in biased:
            stack.bias_of(bias_sums, layer).at[block][...] = sums["bias", layer][...]

    shapes = {("kernel", layer): stack.shapes[layer] for layer in layers}
    shapes |= {("bias", layer): (stack.widths[layer + 1], _ONES) for layer in biased}
    forms = [plgpu.ACC(shape, jnp.float32) for shape in shapes.values()]
    pl.run_scoped(lambda *refs: accumulate(dict(zip(shapes, refs, strict=True))), *forms)


def _chunks(stream):
    """Of a ring: the numbers of what lies side by side, and its columns."""
    return enumerate(dense.columns_of(stream.shape[2] * COLUMNS))
