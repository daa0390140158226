"""The steps of the backward pass for a tile of rows, in chunks of 64 columns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl

from pallas_kernels import tensor_cores as tc
from pallas_kernels.dense.activations import Activation
from pallas_kernels.dense.plan import BackwardPlan
from pallas_kernels.dense.stack import add_bias
from pallas_kernels.dense.terms import Tile
from pallas_kernels.tensor_cores import COLUMNS, PART

_STRIPS = [slice(first, first + 16) for first in range(0, COLUMNS, 16)]


@dataclass(frozen=True)
class GradientMaker:
    """A warpgroup that computes hidden rows, ``dz`` and ``dx`` of a tile.

    Its methods take ``inputs``, the tiles of x, dy and y by name, and ``held``, the other tiles in
    shared memory: kernels, hidden rows, dz and dx, and an opaque zero.

    Attributes:
      plan: what has to be computed.
      scratch: shared memory and barriers.
      dx: the gradient to x, in global memory.
      below: the activation that computed x, if the gradient to its preactivation is wanted; else
        None.
      member: number of this warpgroup among those that share the chunks of a tile.
      members: how many warpgroups share the chunks of a tile.
    """

    plan: BackwardPlan
    scratch: dict
    dx: Any
    below: Activation | None
    member: int
    members: int

    def _own_chunks(self, width: int, zero, make) -> None:
        """Calls ``make(chunk, columns, is_first)`` for the chunks of this member."""
        member, members = self.member, self.members
        count = tc.count_strided(width // COLUMNS, member, members)
        if count == 1:
            make(member + zero, tc.columns_at(0, member + zero), True)
            return

        @pl.loop(0, count)
        def _(turn):
            chunk = member + turn * members
            make(chunk, tc.columns_at(0, chunk), turn == 0)

    def _split_input(self, tile: Tile, width: int, zero) -> None:
        """Splits the member's chunks of a float32 tile into bfloat16 terms."""
        self._own_chunks(width, zero, lambda chunk, *_: tile.split(chunk))

    def _preactivation(self, inputs: dict, held: dict, columns):
        """Computes the preactivation of the first layer, for these columns."""
        kernel = [term.at[:, columns] for term in held["kernels"][0]]
        z = self.plan.terms.product(*inputs["x"].chunked_factors(kernel))
        return add_bias(z, self.plan.stack.bias_of(self.scratch["biases"], 0), columns)

    def _output(self, inputs: dict, held: dict, chunk, columns):
        """Returns the hidden tile to store, or None, and the output of the first layer."""
        if "y" in inputs:
            return None, inputs["y"].load(chunk)
        activation = self.plan.stack.activation(0)
        z = self._preactivation(inputs, held, columns)
        hidden = (z if activation is None else activation.value(z)).astype(self.plan.stack.dtype)
        return hidden, hidden

    def _hidden_and_slope(self, activation: Activation, inputs: dict, held: dict, columns, reuse):
        """Computes the hidden tile, or None if there is none, and the slope of the activation."""
        z = self._preactivation(inputs, held, columns)
        # Registers would not hold all columns at once: they are processed in two halves, with the
        # wait in between.
        made = [activation.value_and_slope(z[:, : COLUMNS // 2])]
        reuse()
        made.append(activation.value_and_slope(z[:, COLUMNS // 2 :]))
        hidden, slope = (jnp.concatenate(parts, axis=1) for parts in zip(*made, strict=True))
        return (hidden.astype(self.plan.stack.dtype) if "hidden" in held else None), slope

    def _keep(self, name: str, held: dict, columns, made) -> None:
        """Stores columns of the hidden tile or of dz in shared memory."""
        if made is not None:
            self.plan.terms.store([term.at[:, columns] for term in held[name]], made)

    def _dh(self, inputs: dict, held: dict, chunk, columns):
        """Computes the gradient to the output of the first layer."""
        if self.plan.stack.layers == 1:
            return inputs["dy"].load(chunk)
        kernel = [term.at[columns].T for term in held["kernels"][1]]
        return self.plan.terms.product(*inputs["dy"].chunked_factors(kernel))

    def _dz(self, known, dh):
        """Computes the gradient to the preactivation of the first layer.

        It takes the output or the slope of the activation, and the gradient to the
        output.
        """
        activation = self.plan.stack.activation(0)
        if activation is None:
            return dh
        parts = [(known[:, part].astype(jnp.float32), dh[:, part]) for part in _STRIPS]
        return jnp.concatenate([activation.pull_back(*part) for part in parts], axis=1)

    def _dx(self, inputs: dict, held: dict, chunk, columns):
        """Computes the gradient to x, or to the preactivation below it."""
        kernel = [term.at[columns].T for term in held["kernels"][0]]
        known = [(held["dz"], kernel)] if "dz" in held else inputs["dy"].chunked_factors(kernel)
        made = self.plan.terms.product(*known)
        if self.below is not None:
            made = self.below.pull_back(inputs["x"].load(chunk), made)
        return made

    def _stage(self, held: dict, chunk, made) -> None:
        """Stores a chunk of dx in shared memory, from where the copy engine stores it."""
        size = held["dx"].shape[-1]
        for part, columns in enumerate(tc.columns_of(COLUMNS, size)):
            target = held["dx"].at[chunk * (COLUMNS // size) + part]
            target[...] = made[:, columns].astype(self.plan.stack.dtype)

    def _write(self, held: dict, rows) -> None:
        """Lets the copy engine store the member's chunks of dx."""
        size, first = held["dx"].shape[-1], lax.axis_index(PART) * self.plan.columns_per_part

        def write(chunk, columns, is_first):
            del columns, is_first
            for part in range(COLUMNS // size):
                place = chunk * (COLUMNS // size) + part
                target = self.dx.at[rows, tc.columns_at(first, place, size)]
                tc.copy_smem_to_gmem(held["copied_dx"].at[place], target)

        self._own_chunks(self.plan.columns_per_part, held["zero"], write)
