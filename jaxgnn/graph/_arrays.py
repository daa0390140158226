"""Small questions about arrays that the graph structures ask."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Concatenate

import jax
import jax.export
import jax.numpy as jnp
import numpy as np

from jaxgnn._errors import bad_input

MAX_INT32 = np.iinfo(np.int32).max


def is_concrete(*arrays: Any) -> bool:
    """True where every array has values that the host can read now (None counts as one)."""
    return not any(isinstance(a, jax.core.Tracer) for a in arrays)


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
        return put_own(np.asarray(array)[np.asarray(positions)])
    return jnp.asarray(kept(array))[positions]


def match_varying(*trees: Any) -> tuple[Any, ...]:
    """Inside ``shard_map``, lets all arrays vary over the same mesh axes.

    A kernel needs that of its operands, and a loop of what it carries on. Ops do it outside of
    their ``custom_vjp``, so that differentiating the cast sums the gradients of shared operands
    over the mesh.
    """
    leaves, structure = jax.tree.flatten(trees)
    varying = [jax.typeof(leaf).mat.varying for leaf in leaves]
    union = frozenset().union(*varying)
    if union:
        leaves = [
            jax.lax.pcast(leaf, tuple(union - own), to="varying") if union - own else leaf
            for leaf, own in zip(leaves, varying, strict=True)
        ]
    return jax.tree.unflatten(structure, leaves)


def empty_like(kind: Any, like: Any) -> jax.Array:
    """An array without elements of the shape and dtype of ``kind``, made anew.

    Inside ``shard_map`` it varies as ``like`` does. XLA ends the process there where a constant,
    or a result of another program, that has no elements is an operand of a custom call, of a
    conditional or of a concatenation (jaxlib 0.11.2).
    """
    empty = jnp.zeros(kind.shape, kind.dtype)
    varying = tuple(jax.typeof(like).mat.varying)
    return jax.lax.pcast(empty, varying, to="varying") if varying else empty


def offset_dtype(num_edges: int) -> type[np.signedinteger]:
    """int32 while edge offsets fit, int64 beyond 2^31 - 1 edges; int32 for an unknown number."""
    if jax.export.is_symbolic_dim(num_edges):
        return np.int32
    return np.int32 if num_edges <= MAX_INT32 else np.int64


class KeepsArrays:
    """Base of the pytrees of arrays: what a caller hands over is copied before it is kept.

    JAX on a CPU reads numpy arrays where they lie, and a plan is made of them once: neither may
    notice that the caller fills his array anew. All other leaves are kept as they come, so that
    anything can be put in their places, as JAX does.
    """

    def __post_init__(self):
        for name, value in tuple(vars(self).items()):
            if isinstance(value, np.ndarray):
                object.__setattr__(self, name, kept(value))


def of_one[Self, **Arguments, Result](
    method: Callable[Concatenate[Self, Arguments], Result],
) -> Callable[Concatenate[Self, Arguments], Result]:
    """A method that computes on arrays of one axis each, as all graphs have but stacked ones.

    Graphs may be stacked along a leading axis (``jax.vmap`` returns them so), of which methods know
    nothing outside of ``jax.vmap``: they would take differences between graphs, or mix them.
    Numbers of nodes and edges are read off the last axes, and can be told of stacked graphs too.
    """

    @functools.wraps(method)
    def checked(self: Self, /, *args: Arguments.args, **options: Arguments.kwargs) -> Result:
        require_one(f"{type(self).__name__}.{method.__name__}", "self", self)
        return method(self, *args, **options)

    return checked


def require_one(where: str, argument: str, graph: Any) -> None:
    """Raises ValueError if graphs are stacked in ``graph``; see ``of_one``."""
    for name, value in vars(graph).items():
        if getattr(value, "ndim", 1) > 1:
            expected = "a single one, with arrays of one axis (map over several by jax.vmap)"
            raise bad_input(where, argument, expected, f"{name} {shown(value)}")


def kept(array: Any) -> Any:
    """A numpy array that nobody writes to: a copy, unless it is one. Anything else as it is."""
    if not isinstance(array, np.ndarray) or _is_read_only(array):
        return array
    return own(np.array(array))


def own(array: Any) -> Any:
    """``array``, which our own code has just made: if of numpy, never to be written to again."""
    if isinstance(array, np.ndarray):
        array.flags.writeable = False
    return array


def _is_read_only(array: Any) -> bool:
    """Whether neither this numpy array nor what it is a view of can be written to."""
    while isinstance(array, np.ndarray):
        if array.flags.writeable:
            return False
        array = array.base
    return array is None  # other memory may belong to anybody


def put_copy(array: Any) -> jax.Array:
    """Puts a caller's array on the default device, copied, without narrowing its dtype in silence.

    An array of JAX is nobody's to write to, and needs no copy.
    """
    return put_own(kept(array))


def put_own(array: Any) -> jax.Array:
    """As ``put_copy``, of an array that our own code has just made: the result may alias it.

    Inside ``shard_map`` and outside of ``jit``, where all that JAX makes is traced, it stays on the
    host, as a constant.
    """
    if array.dtype == np.int64 and array.size and array.max() > MAX_INT32:
        require_x64()
    # Under an enclosing trace the graph is still a constant: it must not become a tracer. Unlike
    # asarray, device_put compiles nothing for a new shape.
    with jax.ensure_compile_time_eval():
        placed = jax.device_put(own(array))
    on_host: Any = np.asarray
    return placed if is_concrete(placed) else own(on_host(array, placed.dtype))


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
