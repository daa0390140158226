"""Data parallelism: the examples of a batch are divided over the devices of a mesh."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxgnn._errors import bad_input

from ._trees import PyTree, named

_EVERYWHERE = PartitionSpec()


@dataclasses.dataclass(frozen=True)
class DataParallel:
    """Devices, a mesh of one axis, that share the examples of a batch."""

    mesh: Mesh

    def __post_init__(self):
        if not isinstance(self.mesh, Mesh):
            raise bad_input("fit", "mesh", "a jax.sharding.Mesh", type(self.mesh).__name__)
        if len(self.mesh.axis_names) != 1:
            raise bad_input("fit", "mesh", "a mesh of one axis", tuple(self.mesh.axis_names))

    @property
    def axis(self) -> str:
        """Name of the axis."""
        return self.mesh.axis_names[0]

    def replicate[Tree](self, tree: Tree) -> Tree:
        """Puts arrays on every device."""
        return jax.device_put(tree, NamedSharding(self.mesh, _EVERYWHERE))

    def divide(self, batch: PyTree) -> PyTree:
        """Puts a part of the examples on each device, and scalars on all.

        Raises:
          ValueError: The examples of an array cannot be divided; the message names it.
        """
        for name, leaf in named(batch).items():
            if np.ndim(leaf) and np.shape(leaf)[0] % self.mesh.size:
                array, devices = f"batch{'.' * bool(name)}{name}", self.mesh.size
                expected = f"of a leading axis divisible by the {devices} devices of the mesh"
                raise bad_input("fit", array, expected, f"shape {np.shape(leaf)}")
        shardings = jax.tree.map(lambda spec: NamedSharding(self.mesh, spec), self._specs(batch))
        return jax.device_put(batch, shardings)

    def on_each(
        self,
        gradient_of: Callable[..., Any],
        params: PyTree,
        other: PyTree,
        batch: PyTree,
        key: jax.Array,
    ) -> Any:
        """Returns ``gradient_of(params, other, batch, key)``, from each device's part of the batch.

        It is ``((loss, (values, other)), gradients)``, as ``jax.value_and_grad`` returns it. All
        parts have the same number of examples, so that means over parts are means over examples.
        State that differs between the devices, such as batch statistics, is averaged.
        """

        def of_part(params: PyTree, other: PyTree, batch: PyTree, key: jax.Array) -> Any:
            if self.mesh.size > 1:
                # Each part draws its own dropout.
                key = jax.random.fold_in(key, jax.lax.axis_index(self.axis))
            # The gradient is that of the part; its mean is taken once, at the end.
            params = jax.lax.pcast(params, self.axis, to="varying")
            return jax.tree.map(self._mean, gradient_of(params, other, batch, key))

        specs = (_EVERYWHERE, _EVERYWHERE, self._specs(batch), _EVERYWHERE)
        mapped = jax.shard_map(of_part, mesh=self.mesh, in_specs=specs, out_specs=_EVERYWHERE)
        return mapped(params, other, batch, key)

    def _specs(self, batch: PyTree) -> PyTree:
        divided = PartitionSpec(self.axis)
        return jax.tree.map(lambda leaf: divided if np.ndim(leaf) else _EVERYWHERE, batch)

    def _mean(self, leaf: jax.Array) -> jax.Array:
        """Averages over the devices a value that differs between them."""
        if self.axis not in jax.typeof(leaf).mat.varying:
            return leaf
        if not jnp.issubdtype(leaf.dtype, jnp.inexact):
            raise ValueError(
                f"fit: loss_fn makes state of {leaf.dtype} from the examples of a part of the "
                "batch, which has no mean over the devices of a mesh"
            )
        return jax.lax.pmean(leaf, self.axis)


def on_one_device[Tree](tree: Tree) -> Tree:
    """Takes the first device's copy, in this process, of arrays that are on several devices."""

    def first(array: jax.Array) -> jax.Array:
        return array.addressable_data(0) if len(array.sharding.device_set) > 1 else array

    return jax.tree.map(first, tree)
