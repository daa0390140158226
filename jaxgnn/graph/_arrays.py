"""Small questions about arrays that the graph structures ask."""

from __future__ import annotations

import contextlib
from typing import Any

import jax
import jax.export
import jax.numpy as jnp
import numpy as np

from jaxgnn._errors import bad_input

MAX_INT32 = np.iinfo(np.int32).max


def is_concrete(*arrays: Any) -> bool:
    """True where every array has values that the host can read now (None counts as one)."""
    return not any(isinstance(a, jax.core.Tracer) for a in arrays)


def evaluated_if_concrete(*arrays: Any) -> contextlib.AbstractContextManager:
    """Inside, JAX computes on concrete ``arrays`` at once, even under an enclosing trace.

    What is derived from constants stays a constant. Where one of ``arrays`` is a tracer this does
    nothing; the code inside must touch no other tracer.
    """
    return jax.ensure_compile_time_eval() if is_concrete(*arrays) else contextlib.nullcontext()


def ids_in_range(ids: Any, size: int) -> Any:
    """Which ids are in ``[0, size)``, a number that their own dtype may be too narrow for."""
    ids = ids.astype(np.int32) if ids.dtype.itemsize < 4 else ids
    return (ids >= 0) & (ids < size)


def shown(array: Any) -> str:
    """Dtype and shape, ``int32[3]``, or what stands in the place of an array."""
    return f"{array.dtype}{list(array.shape)}" if hasattr(array, "shape") else repr(array)


def take(array: Any, positions: Any) -> jax.Array:
    """``array[positions]``; on the host if both are there, where no length needs compiling."""
    if is_concrete(array, positions):
        return to_device(np.asarray(array)[np.asarray(positions)])
    return jnp.asarray(array)[positions]


def offset_dtype(num_edges: int) -> type[np.signedinteger]:
    """int32 while edge offsets fit, int64 beyond 2^31 - 1 edges; int32 for an unknown number."""
    if jax.export.is_symbolic_dim(num_edges):
        return np.int32
    return np.int32 if num_edges <= MAX_INT32 else np.int64


def to_device(array: np.ndarray | jax.Array) -> jax.Array:
    """Puts a host array on the default device without narrowing its dtype in silence.

    It may alias ``array``, which must not be written to afterwards.
    """
    if array.dtype == np.int64 and array.size and array.max() > MAX_INT32:
        require_x64()
    # Under an enclosing trace the graph is still a constant: it must not become a tracer. Unlike
    # asarray, device_put compiles nothing for a new shape.
    with jax.ensure_compile_time_eval():
        return jax.device_put(array)


def require_x64() -> None:
    """Raises ValueError unless JAX has int64."""
    if not jax.config.jax_enable_x64:
        raise bad_input(
            "CSRGraph",
            "jax_enable_x64",
            "True for a graph of more than 2^31 - 1 edges, whose offsets are int64",
            "False",
        )


def require_size(where: str, argument: str, size: Any) -> None:
    """Raises ValueError unless ``size`` is a number of nodes that int32 ids can name.

    It may be one that is known only when an exported program is called.
    """
    if jax.export.is_symbolic_dim(size):
        return
    is_integer = isinstance(size, int | np.integer) and not isinstance(size, bool)
    if not is_integer or not 0 <= size <= MAX_INT32:
        raise bad_input(where, argument, "an integer in [0, 2^31)", repr(size))


def require_integers(where: str, argument: str, array: Any) -> None:
    """Raises ValueError unless ``array`` has an integer dtype."""
    if not jnp.issubdtype(array.dtype, jnp.integer):
        raise bad_input(where, argument, "of an integer dtype", array.dtype)


def require_floats(where: str, argument: str, array: Any) -> None:
    """Raises ValueError unless ``array`` has a floating dtype."""
    if not jnp.issubdtype(array.dtype, jnp.floating):
        raise bad_input(where, argument, "of a floating dtype", array.dtype)


def require_length(where: str, argument: str, array: Any, length: int, what: str) -> None:
    """Raises ValueError unless ``array`` is one-dimensional with ``length`` entries."""
    if array.ndim != 1 or array.shape[0] != length:
        raise bad_input(where, argument, f"of shape ({length},), one entry {what}", array.shape)
