"""Tiles of edges in shared memory, and the copies between them and global memory."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from pallas_kernels import simt
from pallas_kernels import tensor_cores as tc
from pallas_kernels.dense.activations import ACTIVATIONS, Activation
from pallas_kernels.dense.stack import Stack
from pallas_kernels.edge_mlp.edge_tiles import (
    ROWS,
    EdgeLayers,
    Layout,
    Places,
    Tables,
    common_swizzle,
)
from pallas_kernels.edge_mlp.gather_scatter import (
    GatherEdges,
    GatherFeatures,
    GatherRows,
    ScatterRows,
)


@dataclass(frozen=True)
class Plan:
    """The static description of layers on edges, from which a kernel is built.

    Attributes:
      stack: widths, biases and dtype of the layers, with the activation after each.
      first: the activation before the first layer, or None.
      places: the shape of the graph, and how its edges are assigned to tiles.
      own_weights: whether each element of the batch has its own edge weights; None without weights.
      own_features: whether each element of the batch has its own edge features, as it has in a
        batch of one; None without features.
    """

    stack: Stack
    first: str | None
    places: Places
    own_weights: bool | None
    own_features: bool | None = None

    @classmethod
    def of(
        cls, places: Places, layers: EdgeLayers, activation: str | None, activate_last: bool
    ) -> Plan:
        """The plan of these arguments of a kernel; ``activation`` is before every layer."""
        _, _, weights, kernels, biases, features = layers
        first, *others = [activation] * len(kernels) + [activation if activate_last else None]
        widths = layers.receivers.shape[-1], *(kernel.shape[1] for kernel in kernels)
        biased = tuple(bias is not None for bias in biases)
        stack = Stack(widths, biased, tuple(others), jnp.dtype(layers.receivers.dtype))
        own_weights = None if weights is None else places.batch > 1 and weights.shape[0] > 1
        own_features = None if features is None else features.shape[0] == places.batch
        return cls(stack, first, places, own_weights, own_features)

    @functools.cached_property
    def swizzle(self) -> int:
        """Bytes of a swizzle span of all tiles and kernels."""
        swizzle = common_swizzle(self.stack.widths)
        assert swizzle is not None
        return swizzle

    @property
    def first_activation(self) -> Activation | None:
        """The activation before the first layer, or None."""
        return None if self.first is None else ACTIVATIONS[self.first]

    @property
    def has_features(self) -> bool:
        """Whether edges have features of their own."""
        return self.own_features is not None

    @property
    def lists_pieces(self) -> bool:
        """Whether ``Tables`` list pieces of rows, as rows differ in degree."""
        return self.places.degree is None

    @property
    def has_factors(self) -> bool:
        """Whether rows of tiles have factors: weights of edges, or zeros where there is no edge."""
        return self.lists_pieces or self.own_weights is not None

    def tiles(self, *shape: int):
        """Shared memory for tiles, or for kernels of layers; the last two axes are a matrix."""
        return tc.tiles(self.stack.dtype, *shape, swizzle=self.swizzle)

    def factors(self, *places: int):
        """Shared memory for the factors of tiles, None if they have none."""
        return tc.SMEM((*places, ROWS), jnp.float32) if self.has_factors else None


@dataclass(frozen=True)
class Tiles:
    """The tiles of one warpgroup, and the arrays they are copied from.

    Attributes:
      plan: the layers and the edges.
      scratch: shared memory: ``receivers``, ``senders``, ``features`` and ``factors``, with a
        leading axis of warpgroups, and all but the first also an axis of slots.
      layers: the arrays of the layers in global memory.
      tables: the tables of edges in global memory.
      number: index of the warpgroup in its block.
    """

    plan: Plan
    scratch: dict
    layers: EdgeLayers
    tables: Tables
    number: Any

    def at(self, name: str, *place) -> Any:
        """A tile of this warpgroup, by its name and slot."""
        return self.scratch[name].at[(self.number, *place)]

    def layout(self, width: int) -> Layout:
        """The layout of a tile of this width."""
        return Layout(width, self.plan.swizzle)

    def gather_rows(self, group, nodes, name: str) -> None:
        """Begins to copy the rows of ``nodes`` of a group to the tile of this name."""
        tile = self.at(name)
        kernel = GatherRows(self.plan.places, self.layout(nodes.shape[1]))
        self.inline(kernel, [group], [(nodes, False), (tile, True)])

    def gather(self, group, step, steps, slot, factors_slot=None) -> None:
        """Begins to copy senders, features and factors of a tile, if the group has this step.

        Args:
          group: number of the group.
          step: step of the tile in its group.
          steps: number of steps of the group.
          slot: slot for senders and features.
          factors_slot: slot for factors, by default the same.
        """
        plan, layers = self.plan, self.layers
        if plan.own_features is not None:
            layout = self.layout(plan.stack.widths[0])
            features = GatherFeatures(plan.places, layout, plan.own_features)
            arrays = [(layers.features, False), (self.at("features", slot), True)]
            self.inline(features, [group, step, steps], arrays)
        self.gather_senders(group, step, steps, slot, factors_slot)

    def gather_senders(self, group, step, steps, slot, factors_slot=None) -> None:
        """Begins to copy senders and factors of a tile, if the group has this step.

        Args:
          group: number of the group.
          step: step of the tile in its group.
          steps: number of steps of the group.
          slot: slot for senders.
          factors_slot: slot for factors, by default the same.
        """
        plan, layers = self.plan, self.layers
        layout = self.layout(plan.stack.widths[0])
        kernel = GatherEdges(plan.places, layout, plan.own_weights, plan.has_factors)
        arrays = [(layers.senders, False), (self.at("senders", slot), True)]
        if plan.has_factors:
            own = slot if factors_slot is None else factors_slot
            arrays.append((self.at("factors", own), False))
        if layers.weights is not None:
            arrays.append((layers.weights, False))
        self.inline(kernel, [group, step, steps], arrays)

    def inline(self, kernel, numbers: Sequence, arrays: Sequence[tuple[Any, bool]]) -> None:
        """Runs SIMT code on arrays, each with whether it is a swizzled tile, and on the tables."""
        tiled = tc.tiled(self.plan.stack.dtype, self.plan.swizzle)
        references = [(array, tiled if is_tile else ()) for array, is_tile in arrays]
        listed = [(array, ()) for array in jax.tree.leaves(self.tables)]
        simt.inline(kernel, numbers, [*references, *listed])

    def preactivation(self, slot) -> jax.Array:
        """The input of the layers: the sum of receivers, senders and features, in float32."""
        z = tc.load_float32(self.at("receivers")) + tc.load_float32(self.at("senders", slot))
        return z + tc.load_float32(self.at("features", slot)) if self.plan.has_features else z

    def scaled(self, values: jax.Array, slot) -> jax.Array:
        """The values with each row multiplied by its factor, if rows have factors."""
        if not self.plan.has_factors:
            return values
        layout = tc.Layout.WGMMA.reduce(1)
        factors = tc.load(self.at("factors", slot), layout=layout, optimized=False)
        return values * lax.broadcast_in_dim(factors, values.shape, (0,))

    def zeros(self, width: int) -> jax.Array:
        """Zeros in the layout of the sums of a warpgroup, [64, width]."""
        return tc.layout_cast(jnp.zeros((ROWS, width), jnp.float32), tc.Layout.WGMMA)

    def split(self, sums: jax.Array, tile, other) -> None:
        """Writes ``sums``, rounded, to a tile, and their rounding errors to another."""
        dtype = self.plan.stack.dtype
        rounded = sums.astype(dtype)
        tile[...] = rounded
        other[...] = (sums - rounded.astype(jnp.float32)).astype(dtype)

    def write(self, group, sums: jax.Array, results: Sequence, tile, other) -> None:
        """Writes the sums of a group to global memory, through tiles of shared memory.

        Args:
          group: number of the group.
          sums: [64, width] float32.
          results: the rows, and the partial sums of pieces if tables list them.
          tile: a tile that all warps have read; takes the rounded sums.
          other: a tile that all warps have read; takes the rounding errors if tables list pieces.
        """
        if self.plan.lists_pieces:
            self.split(sums, tile, other)
        else:
            tile[...] = sums.astype(self.plan.stack.dtype)
        self.scatter(group, results, tile, other)

    def scatter(self, group, results: Sequence, tile, other) -> None:
        """Writes the sums of a group to global memory from tiles of shared memory.

        Args:
          group: number of the group.
          results: the rows, and the partial sums of pieces if tables list them.
          tile: the rounded sums.
          other: their rounding errors, if tables list pieces.
        """
        arrays = [(results[0], False), (tile, True)]
        if self.plan.lists_pieces:
            arrays += [(other, True), (results[1], False)]
        tc.commit_smem()
        self.inline(ScatterRows(self.plan.places, self.layout(tile.shape[1])), [group], arrays)
        # All warps have read the tiles before these are overwritten.
        tc.commit_smem()
