"""Helper functions of the training loop on pytrees of arrays."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

PyTree = Any


def names(tree: PyTree) -> list[str]:
    """Dotted names of the leaves of ``tree``, in order, such as ``params.layers.0.kernel``."""
    paths = jax.tree_util.tree_leaves_with_path(tree)
    return [jax.tree_util.keystr(path, simple=True, separator=".") for path, _ in paths]


def named(tree: PyTree) -> dict[str, jax.Array]:
    """The leaves of ``tree`` by name, in order."""
    return dict(zip(names(tree), jax.tree.leaves(tree), strict=True))


def types(tree: PyTree) -> dict[str, str]:
    """Dtype and shape of the leaves of ``tree`` by name, such as ``float32[3, 4]``."""
    return {name: f"{leaf.dtype}{list(leaf.shape)}" for name, leaf in named(tree).items()}


def first_difference(
    found: dict[str, str], expected: dict[str, str]
) -> tuple[str, str, str] | None:
    """Compares two results of ``types``; returns name, found and expected type, or None."""
    for name in sorted(found.keys() | expected.keys()):
        if found.get(name) != expected.get(name):
            return name, found.get(name, "absent"), expected.get(name, "absent")
    return None


@jax.jit
def all_finite(tree: PyTree) -> jax.Array:
    """Bool []: no floating-point leaf of ``tree`` holds a NaN or an infinity."""
    leaves = [leaf for leaf in jax.tree.leaves(tree) if jnp.issubdtype(leaf.dtype, jnp.inexact)]
    return jnp.all(jnp.array([jnp.isfinite(leaf).all() for leaf in leaves]))


@jax.jit
def copy_arrays[T](tree: T) -> T:
    """Copies a pytree of arrays, so that donating one does not delete the other."""
    return jax.tree.map(jnp.copy, tree)


def owned(tree: PyTree) -> PyTree:
    """``tree`` with copies of its NumPy arrays, safe to pass to an asynchronous program.

    JAX on a CPU reads an aligned NumPy array in place, and a call returns before its program has
    run. Refilling the array, as many data readers do, would change the arguments of an earlier
    call. JAX's own arrays do not change, and are not copied.
    """
    leaves, structure = jax.tree.flatten(tree)
    if not any(isinstance(leaf, np.ndarray) for leaf in leaves):
        return tree
    copies = [np.array(leaf) if isinstance(leaf, np.ndarray) else leaf for leaf in leaves]
    return jax.tree.unflatten(structure, copies)


def is_key(array: jax.Array) -> bool:
    """Whether ``array`` holds random keys, which have no numeric dtype."""
    return jnp.issubdtype(array.dtype, jax.dtypes.prng_key)


def strong(array: jax.Array) -> jax.Array:
    """``array`` without JAX's weak type, which would make jit trace again."""
    return array if is_key(array) else jax.lax.convert_element_type(array, array.dtype)
