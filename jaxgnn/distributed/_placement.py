"""Arrays of the devices along one axis of a mesh, with the axis of the devices in front."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxgnn._errors import bad_input


def axis_of(where: str, mesh: Any, axis: str | None) -> str:
    """The mesh axis to spread over: the named one, or the only one.

    Raises:
      ValueError: if there is no such axis, or none is named and there are several.
    """
    if not isinstance(mesh, Mesh):
        raise bad_input(where, "mesh", "a jax.sharding.Mesh", type(mesh).__name__)
    names = tuple(mesh.axis_names)
    if axis is None and len(names) == 1:
        return names[0]
    if axis is None:
        raise bad_input(
            where, "axis", f"the name of one of several axes of the mesh, {names}", None
        )
    if axis not in names:
        raise bad_input(where, "axis", f"an axis of the mesh, {names}", repr(axis))
    return axis


def local_places(mesh: Mesh, axis: str) -> dict[int, list[jax.Device]]:
    """This process's devices by their place along the axis."""
    at = mesh.axis_names.index(axis)
    along = np.moveaxis(mesh.devices, at, 0).reshape(mesh.shape[axis], -1)
    here = jax.process_index()
    places = {
        place: [d for d in devices if d.process_index == here]
        for place, devices in enumerate(along)
    }
    return {place: devices for place, devices in places.items() if devices}


def stacked[Tree](mesh: Mesh, axis: str, make: Callable[[int], Tree]) -> Tree:
    """Builds a pytree for each place along the axis, and stacks their arrays along a first axis.

    Each process builds those of its own devices, with their device as the default device.

    Args:
      mesh: the mesh.
      axis: its axis.
      make: builds the pytree of a place; all have one structure and equal shapes.
    """
    places = local_places(mesh, axis)
    sharding = NamedSharding(mesh, PartitionSpec(axis))
    of_leaves: list[list[jax.Array]] = []
    structure: Any = None
    for place, devices in places.items():
        with jax.default_device(devices[0]):
            leaves, structure = jax.tree.flatten(make(place))
        of_leaves = of_leaves or [[] for _ in leaves]
        for arrays, leaf in zip(of_leaves, leaves, strict=True):
            first = jax.device_put(leaf, devices[0])[None]
            arrays += [jax.device_put(first, device) for device in devices]
    joined = [
        jax.make_array_from_single_device_arrays(
            (mesh.shape[axis], *arrays[0].shape[1:]), sharding, arrays
        )
        for arrays in of_leaves
    ]
    return jax.tree.unflatten(structure, joined)
