"""Tiles of edges: what kernels know of them, and how their warpgroups get and give them."""

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
from pallas_kernels.edge_mlp.gather_scatter import (
    GatherEdges,
    GatherFeatures,
    GatherRows,
    ScatterRows,
)
from pallas_kernels.edge_mlp.places import ROWS, EdgeLayers, Layout, Places, Tables, common_swizzle


@dataclass(frozen=True)
class Plan:
    """What is known when a kernel is made.

    Attributes:
      stack: the layers behind the first, with the activation behind each.
      first: the activation in front of all of them.
      places: the edges.
      own_weights: whether each element of the batch has its own weights; None without weights.
      own_features: likewise of what edges have of their own; true if there is one element.
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
        """Of arguments of kernels; ``activation`` is in front of each layer of ``layers``."""
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
        """Of all tiles."""
        swizzle = common_swizzle(self.stack.widths)
        assert swizzle is not None
        return swizzle

    @property
    def first_activation(self) -> Activation | None:
        """In front of all layers."""
        return None if self.first is None else ACTIVATIONS[self.first]

    @property
    def has_features(self) -> bool:
        """Whether edges have something of their own."""
        return self.own_features is not None

    @property
    def lists_pieces(self) -> bool:
        """Whether there are ``Tables`` of them."""
        return self.places.degree is None

    @property
    def has_factors(self) -> bool:
        """Whether tiles have numbers that multiply their rows: weights, or zeros for no edges."""
        return self.lists_pieces or self.own_weights is not None

    def tiles(self, *shape: int):
        """Shared memory for tiles, or for kernels."""
        return tc.tiles(self.stack.dtype, *shape, swizzle=self.swizzle)

    def factors(self, *places: int):
        """Shared memory for factors of tiles, None if they have none."""
        return tc.SMEM((*places, ROWS), jnp.float32) if self.has_factors else None


@dataclass(frozen=True)
class Tiles:
    """Those of a warpgroup.

    Attributes:
      plan: what is known.
      scratch: shared memory: ``receivers``, ``senders``, ``features`` and ``factors``, with a
        leading axis of warpgroups, all but the first also one of slots.
      layers: in memory.
      tables: likewise.
      number: of the warpgroup.
    """

    plan: Plan
    scratch: dict
    layers: EdgeLayers
    tables: Tables
    number: Any

    def at(self, name: str, *place) -> Any:
        """One of them."""
        return self.scratch[name].at[(self.number, *place)]

    def layout(self, width: int) -> Layout:
        """Of a tile."""
        return Layout(width, self.plan.swizzle)

    def gather_rows(self, group, nodes, name: str) -> None:
        """Begins to copy what belongs to the rows of a group."""
        tile = self.at(name)
        kernel = GatherRows(self.plan.places, self.layout(nodes.shape[1]))
        self.inline(kernel, [group], [(nodes, False), (tile, True)])

    def gather(self, group, step, steps, slot, factors_slot=None) -> None:
        """Begins to copy what belongs to the edges of a tile, if there is one.

        Args:
          group: its number.
          step: of the tile.
          steps: of the group.
          slot: for what belongs to the senders and to the edges themselves.
          factors_slot: for factors, if that is not the same.
        """
        plan, layers = self.plan, self.layers
        if plan.own_features is not None:
            layout = self.layout(plan.stack.widths[0])
            features = GatherFeatures(plan.places, layout, plan.own_features)
            arrays = [(layers.features, False), (self.at("features", slot), True)]
            self.inline(features, [group, step, steps], arrays)
        self.gather_senders(group, step, steps, slot, factors_slot)

    def gather_senders(self, group, step, steps, slot, factors_slot=None) -> None:
        """As ``gather``, without features."""
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
        """Runs SIMT code on arrays, each a tile or none, and on the tables."""
        tiled = tc.tiled(self.plan.stack.dtype, self.plan.swizzle)
        references = [(array, tiled if is_tile else ()) for array, is_tile in arrays]
        listed = [(array, ()) for array in jax.tree.leaves(self.tables)]
        simt.inline(kernel, numbers, [*references, *listed])

    def preactivation(self, slot) -> jax.Array:
        """What both ends of the edges make together, and their features."""
        z = tc.load_float32(self.at("receivers")) + tc.load_float32(self.at("senders", slot))
        return z + tc.load_float32(self.at("features", slot)) if self.plan.has_features else z

    def scaled(self, values: jax.Array, slot) -> jax.Array:
        """Each row times its factor."""
        if not self.plan.has_factors:
            return values
        layout = tc.Layout.WGMMA.reduce(1)
        factors = tc.load(self.at("factors", slot), layout=layout, optimized=False)
        return values * lax.broadcast_in_dim(factors, values.shape, (0,))

    def zeros(self, width: int) -> jax.Array:
        """Sums of no tiles."""
        return tc.layout_cast(jnp.zeros((ROWS, width), jnp.float32), tc.Layout.WGMMA)

    def split(self, sums: jax.Array, tile, other) -> None:
        """``sums``, rounded, to a tile, and what rounding leaves over to the other."""
        dtype = self.plan.stack.dtype
        rounded = sums.astype(dtype)
        tile[...] = rounded
        other[...] = (sums - rounded.astype(jnp.float32)).astype(dtype)

    def write(self, group, sums: jax.Array, results: Sequence, tile, other) -> None:
        """The sums of a group.

        Args:
          group: its number.
          sums: float32.
          results: rows, and of listed pieces partial sums.
          tile: of shared memory, through which rows go; what others read there, they have read.
          other: likewise, for listed pieces.
        """
        if self.plan.lists_pieces:
            self.split(sums, tile, other)
        else:
            tile[...] = sums.astype(self.plan.stack.dtype)
        self.scatter(group, results, tile, other)

    def scatter(self, group, results: Sequence, tile, other) -> None:
        """As ``write``, of sums that are in the tiles, rounded, and what rounding leaves over."""
        arrays = [(results[0], False), (tile, True)]
        if self.plan.lists_pieces:
            arrays += [(other, True), (results[1], False)]
        tc.commit_smem()
        self.inline(ScatterRows(self.plan.places, self.layout(tile.shape[1])), [group], arrays)
        # Before what was read and written is used anew.
        tc.commit_smem()
