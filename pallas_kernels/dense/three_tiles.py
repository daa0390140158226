"""The backward pass of two layers whose kernels leave room for three tiles of rows.

Two tiles hold ``x`` and ``dy``, and swap their roles: ``x`` of the next tile is loaded into the
memory of ``dy`` as soon as the second layer has been summed, and the other way round. The third
tile is computed: the hidden rows, then ``dz`` of the first layer in the same memory, then ``dx``,
each as soon as nobody reads what it overwrites. Two walkers have a chunk of columns each, and each
layer has a summer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl

from pallas_kernels import tensor_cores as tc
from pallas_kernels.dense import terms as dense_terms
from pallas_kernels.dense.gradient_maker import GradientMaker
from pallas_kernels.dense.plan import BackwardPlan, TightTile
from pallas_kernels.dense.terms import Tile
from pallas_kernels.tensor_cores import BLOCK, COLUMNS, Ring, TiledInput


def scratch(plan: BackwardPlan) -> dict:
    """Returns scratch memory for the three tiles, and the barriers of their readers and writers."""
    dtype, (before, between, after) = plan.stack.dtype, plan.stack.widths
    members = TightTile.walkers
    barriers = {"barriers": (1,)}
    return {
        "x": Ring.scratch(dtype, [before], (), **barriers)["full"],
        "dy": Ring.scratch(dtype, [after], (), **barriers)["full"],
        "read": dense_terms.split_tiles(dtype, max(before, after), 2),
        "made": dense_terms.reused_tiles(dtype, between, before),
        # Barriers among the members; and for each layer, when its summer may read, and has read.
        "met": tc.Barrier(num_arrivals=members),
        "ready": [tc.Barrier(num_arrivals=members) for _ in range(2)],
        "summed": [tc.Barrier(num_arrivals=members + 1) for _ in range(2)],
    }


@dataclass(frozen=True)
class _TileSlots:
    """The memory of the three tiles.

    Attributes:
      plan: what has to be computed.
      scratch: shared memory and barriers.
    """

    plan: BackwardPlan
    scratch: dict

    def rings(self, x, dy) -> tuple[Ring, Ring]:
        """Returns the rings of x and of dy, which share the same two slots."""
        numbers, _ = dense_terms.split_views(self.scratch["read"])
        before, _, after = self.plan.stack.widths
        named = (("x", TiledInput(x, before)), ("dy", TiledInput(dy, after)))
        x_ring, dy_ring = (
            Ring({"tiles": [numbers], "full": self.scratch[name]}, [array]) for name, array in named
        )
        return x_ring, dy_ring

    def inputs(self, n) -> dict[str, Tile]:
        """Returns x and dy of the n-th tile."""
        numbers, terms = dense_terms.split_views(self.scratch["read"])
        numbers, _ = tc.tile_views(numbers)
        x = lax.rem(n, 2)
        places = {"x": x, "dy": 1 - x}
        return {name: Tile(numbers.at[at], terms.at[at]) for name, at in places.items()}

    def held(self, zero) -> dict[str, Any]:
        """Returns the kernels, and the computed tiles: hidden, dz and dx share one memory."""
        each = self.plan.terms.each
        terms, numbers = dense_terms.reused_views(self.scratch["made"])
        staged, copied = (face.at[zero] for face in tc.tile_views(numbers))
        made = each(terms.at[zero])
        kernels = [each(kernel.at[zero]) for kernel in self.scratch["kernels"]]
        both = {"dx": staged, "copied_dx": copied, "hidden": made, "dz": made}
        return {"zero": zero, "kernels": kernels} | both


@dataclass(frozen=True)
class TilesOfLayer:
    """The tiles that the summer of a layer accumulates.

    Attributes:
      plan: what has to be computed.
      scratch: shared memory and barriers.
      layer: number of the layer.
    """

    plan: BackwardPlan
    scratch: dict
    layer: int

    def acquire(self, n) -> tuple[dict[str, Tile], dict[str, Sequence], Any]:
        """Waits until the walkers have handed over tile n of this layer."""
        tc.barrier_wait(self.scratch["ready"][self.layer])
        room, zero = _TileSlots(self.plan, self.scratch), tc.opaque_zero(n)
        made = "hidden" if self.layer else "dz"
        return room.inputs(n), {made: room.held(zero)[made]}, zero

    def release(self, n) -> None:
        """Arrives at the barrier at which walkers wait for the sums of this layer."""
        del n
        tc.barrier_arrive(self.scratch["summed"][self.layer])


@dataclass(frozen=True)
class ThreeTileWalker(GradientMaker):
    """One of two walkers that go through the tiles together.

    Attributes:
      tile: how blocks share the work.
      x: the input in global memory.
      dy: the gradient to the output, in global memory.
    """

    tile: TightTile
    x: Any
    dy: Any

    def run(self, count) -> None:
        """Computes all tiles of the block."""
        room = _TileSlots(self.plan, self.scratch)
        x_ring, dy_ring = room.rings(self.x, self.dy)

        def rows(n):
            return tc.rows_of(lax.axis_index(BLOCK) + n * self.tile.blocks)

        def load(ring, n, place):
            if self.member == 0:
                pl.when(n < count)(lambda: ring.load(rows(n), (place,), (0,)))

        load(x_ring, jnp.int32(0), 0)
        load(dy_ring, jnp.int32(0), 1)
        tc.barrier_wait(self.scratch["loaded"])

        @pl.loop(0, count)
        def _(n):
            inputs, held, place = room.inputs(n), room.held(tc.opaque_zero(n)), lax.rem(n, 2)
            x_ring.wait((0,))
            self._split_input(inputs["x"], self.plan.stack.widths[0], held["zero"])
            tc.commit_smem()
            self._meet()
            known = self._make_hidden(inputs, held)
            dy_ring.wait((0,))
            self._split_input(inputs["dy"], self.plan.stack.widths[2], held["zero"])
            self._hand_over(1)
            dz = self._make_dz(inputs, held, known)
            self._wait_for_sums(1)
            load(x_ring, n + 1, 1 - place)
            self._keep("dz", held, self._columns(1, held), dz)
            self._hand_over(0)
            dx = self._make_dx(inputs, held)
            self._wait_for_sums(0)
            load(dy_ring, n + 1, place)
            if dx is not None:
                self._stage(held, self.member + held["zero"], dx)
            tc.commit_smem()
            self._write(held, rows(n))

        tc.wait_smem_to_gmem(0)

    def _meet(self) -> None:
        """Waits until all members have arrived here."""
        tc.barrier_arrive(self.scratch["met"])
        tc.barrier_wait(self.scratch["met"])

    def _hand_over(self, layer: int) -> None:
        """Waits until all members have written what they and a layer's summer read next."""
        tc.commit_smem()
        tc.barrier_arrive(self.scratch["ready"][layer])
        tc.barrier_wait(self.scratch["ready"][layer])

    def _wait_for_sums(self, layer: int) -> None:
        """Waits until all members and the summer have read what was handed over."""
        tc.barrier_arrive(self.scratch["summed"][layer])
        tc.barrier_wait(self.scratch["summed"][layer])

    def _has_chunk(self, number: int) -> bool:
        """Returns whether the member has a chunk of this one of the stack's widths."""
        return self.member < self.plan.stack.widths[number] // COLUMNS

    def _columns(self, number: int, held: dict):
        """Returns the columns of the member's chunk of a width of the stack, or None."""
        return tc.columns_at(0, self.member + held["zero"]) if self._has_chunk(number) else None

    def _make_hidden(self, inputs: dict, held: dict):
        """Computes the member's chunk of the hidden tile; returns its slope, if known already."""

        def reuse():
            """Waits until the copy engine has read all members' chunks of dx from this memory."""
            tc.wait_smem_to_gmem(0, wait_read_only=True)
            self._meet()

        activation, columns = self.plan.stack.activation(0), self._columns(1, held)
        if columns is None:
            reuse()
            return None
        if activation is None or activation.of_output:
            hidden, _ = self._output(inputs, held, self.member, columns)
            known = None  # it is loaded again later: registers would not hold it
            reuse()
        else:
            hidden, known = self._hidden_and_slope(activation, inputs, held, columns, reuse)
        self._keep("hidden", held, columns, hidden)
        return known

    def _make_dz(self, inputs: dict, held: dict, known):
        """Computes the member's chunk of dz of the first layer."""
        columns = self._columns(1, held)
        if columns is None:
            return None
        dh = self._dh(inputs, held, self.member, columns)
        if known is None and self.plan.stack.activation(0) is not None:
            first, *others = (tc.load_float32(term.at[:, columns]) for term in held["hidden"])
            known = sum(others, first)
        return self._dz(known, dh)

    def _make_dx(self, inputs: dict, held: dict):
        """Computes the member's chunk of dx."""
        columns = self._columns(0, held)
        return None if columns is None else self._dx(inputs, held, self.member, columns)
