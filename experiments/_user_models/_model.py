"""Networks of user code with their arrays, and the neighbour lists that they read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from scipy.spatial import KDTree


@dataclass(frozen=True)
class Size:
    """Size of a network.

    Attributes:
      nodes: number of nodes.
      degree: number of neighbours of a node.
      width: features of nodes and edges.
      steps: number of blocks.
      dtype: dtype of features and parameters.
    """

    nodes: int
    degree: int
    width: int
    steps: int = 1
    dtype: str = "float32"


@dataclass(frozen=True)
class UserModel:
    """A network with its parameters and input.

    Attributes:
      run: the function of the arrays; the edge list is a constant of it.
      arrays: pytrees of arrays: parameters first.
    """

    run: Callable[..., Any]
    arrays: tuple[Any, ...]

    @classmethod
    def of_module(cls, transformed: Any, *inputs: Any, dtype: str = "float32") -> UserModel:
        """A module of Haiku or Flax, which has ``init`` and ``apply``, with random parameters."""
        parameters = parameters_of(transformed, *inputs)

        def cast(array: Any) -> Any:
            is_float = jnp.issubdtype(array.dtype, jnp.floating)
            return array.astype(dtype) if is_float else array

        return cls(transformed.apply, jax.tree.map(cast, (parameters, *inputs)))


def parameters_of(module: Any, *inputs: Any) -> Any:
    """Random parameters of a module: ones for scales, and normal numbers for all others.

    Only their shapes are asked of the module, as compiling its initialisation takes seconds.
    """
    rng = np.random.default_rng(0)

    def draw(path: Any, like: Any) -> jax.Array:
        if str(path[-1].key).startswith("scale"):
            return jnp.ones(like.shape, like.dtype)
        scale = like.shape[0] ** -0.5 if like.ndim > 1 else 0.1
        return jnp.asarray(scale * rng.standard_normal(like.shape), like.dtype)

    shapes = jax.eval_shape(module.init, jax.random.key(0), *inputs)
    return jax.tree_util.tree_map_with_path(draw, shapes)


@dataclass(frozen=True)
class Points:
    """Random points in a periodic box of side one, and the nearest neighbours of each.

    Attributes:
      positions: positions of the points, float32 [nodes, 3].
      neighbours: ids of the neighbours of each point, int32 [nodes, degree]; the nearest first.
      senders: the neighbour of each edge, int32 [edges].
      receivers: the point of each edge, int32 [edges], sorted.
    """

    positions: np.ndarray
    neighbours: np.ndarray
    senders: jax.Array
    receivers: jax.Array

    @classmethod
    def of(cls, size: Size) -> Points:
        """Draws the points of a size in random order."""
        positions = np.random.default_rng(0).random((size.nodes, 3), dtype=np.float32)
        inside = positions.astype(np.float64) % 1.0
        found = KDTree(inside, boxsize=1.0).query(inside, size.degree + 1)[1]
        neighbours = np.asarray(found[:, 1:], np.int32)
        receivers = np.repeat(np.arange(size.nodes, dtype=np.int32), size.degree)
        senders = jnp.asarray(neighbours.reshape(-1))
        return cls(positions, neighbours, senders, jnp.asarray(receivers))

    @property
    def nodes(self) -> int:
        """The number of points."""
        return len(self.positions)

    def random(self, rows: int, columns: int, seed: int = 0) -> jax.Array:
        """Normal numbers, float32 [rows, columns]."""
        return jax.random.normal(jax.random.key(seed), (rows, columns))


def shortest(displacement: Any) -> Any:
    """Displacements in the periodic box, each coordinate between -1/2 and 1/2."""
    return jnp.mod(displacement + 0.5, 1.0) - 0.5
