"""Stacks of dense layers that fit shared memory: their shapes, biases and activations.

A block keeps the weights in shared memory. Its warpgroups go through tiles of 64 rows, which the
copy engine loads ahead and stores.
"""

from __future__ import annotations

import dataclasses
import itertools
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from pallas_kernels import tensor_cores as tc
from pallas_kernels.dense.activations import ACTIVATIONS, Activation


@dataclass(frozen=True)
class Stack:
    """The static description of the layers.

    Attributes:
      widths: width of the input, and of the output of each layer.
      biased: whether each layer has a bias.
      activations: name of the activation after each layer, or None.
      dtype: dtype of all arrays in global memory, of 16 bits or float32.
      precision: how float32 is multiplied, a key of ``dense.products.PRODUCTS``; None for 16 bits.
    """

    widths: tuple[int, ...]
    biased: tuple[bool, ...]
    activations: tuple[str | None, ...]
    dtype: jnp.dtype
    precision: str | None = None

    @classmethod
    def of(cls, x, kernels, biases, activations, precision: str | None = None) -> Stack:
        """Returns the stack that these arguments of a layer function describe."""
        widths = (x.shape[1], *(kernel.shape[1] for kernel in kernels))
        biased = tuple(bias is not None for bias in biases)
        return cls(widths, biased, tuple(activations), jnp.dtype(x.dtype), precision)

    def part(self, start: int, stop: int) -> Stack:
        """Returns the layers from ``start`` to before ``stop``."""
        layers = slice(start, stop)
        return dataclasses.replace(
            self,
            widths=self.widths[start : stop + 1],
            biased=self.biased[layers],
            activations=self.activations[layers],
        )

    def without_last_activation(self) -> Stack:
        """Returns the same stack without an activation after the last layer."""
        return dataclasses.replace(self, activations=(*self.activations[:-1], None))

    @property
    def layers(self) -> int:
        """Number of layers."""
        return len(self.biased)

    @property
    def shapes(self) -> tuple[tuple[int, int], ...]:
        """Shapes of the kernels, [input width, output width] each."""
        return tuple(itertools.pairwise(self.widths))

    def activation(self, layer: int) -> Activation | None:
        """Returns the activation after a layer, or None."""
        name = self.activations[layer]
        return None if name is None else ACTIVATIONS[name]

    @property
    def last_activation(self) -> Activation | None:
        """The activation after the last layer, or None."""
        return self.activation(self.layers - 1)

    def parameter_bytes(self, parts: int = 1) -> int:
        """Returns the shared bytes of the parameters in one of ``parts`` parts of the kernels."""
        kernels = sum(rows * columns for rows, columns in self.shapes)
        biases = itertools.compress(self.widths[1:], self.biased)
        itemsize = self.dtype.itemsize
        return kernels * itemsize // parts + sum(tc.aligned(width * itemsize) for width in biases)

    def row_bytes(self, *widths: int) -> int:
        """Returns the bytes of a tile of 64 rows of these widths together."""
        return tc.ROWS * sum(widths) * self.dtype.itemsize

    def bias_of(self, biases, layer: int) -> Any:
        """Returns the bias of a layer, from a list without those that are None; or None."""
        return biases[sum(self.biased[:layer])] if self.biased[layer] else None


def finish(stack: Stack, layer: int, z: jax.Array, columns: slice, bias) -> jax.Array:
    """Adds the bias and applies the activation, for these columns of a layer's product."""
    z, activation = add_bias(z[:, columns], bias, columns), stack.activation(layer)
    return z if activation is None else activation.value(z)


def add_bias(z: jax.Array, bias, columns) -> jax.Array:
    """Adds these ``columns`` of a bias, a reference or None, to the columns ``z`` of a product."""
    if bias is None:
        return z
    return z + tc.rows_of_bias(bias, columns)
