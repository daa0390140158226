"""Helper functions on arrays for the graph structures."""

from __future__ import annotations

import functools
import mmap
from collections.abc import Callable
from typing import Any, Concatenate

import jax
import jax.export
import jax.numpy as jnp
import numpy as np

from jaxgnn._errors import bad_input

MAX_INT32 = np.iinfo(np.int32).max


def ids_in_range(ids: Any, size: int) -> Any:
    """A mask of the ids in ``[0, size)``; ``size`` may exceed the range of their dtype."""
    ids = ids.astype(np.int32) if ids.dtype.itemsize < 4 else ids
    return (ids >= 0) & (ids < size)


def first_outside(ids: np.ndarray, size: int, mask: np.ndarray | None = None) -> int | None:
    """Position of the first id outside of ``[0, size)`` that ``mask`` does not hide, or None."""
    if not ids.size or (ids.min() >= 0 and ids.max() < size):
        return None
    outside = ~ids_in_range(ids, size)
    if mask is not None:
        outside &= mask
    return int(outside.argmax()) if outside.any() else None


def shown(array: Any) -> str:
    """Describes an array by dtype and shape, such as ``int32[3]``, and other objects by repr."""
    return f"{array.dtype}{list(array.shape)}" if hasattr(array, "shape") else repr(array)


def take(array: Any, positions: Any) -> jax.Array:
    """Returns ``array[positions]``. Concrete arrays are indexed on the host, not compiled."""
    if is_concrete(array, positions):
        return put_own(np.asarray(array)[np.asarray(positions)])
    return jnp.asarray(kept(array))[positions]


def rows_at(
    array: jax.Array, ids: jax.Array, padding: float = 0, *, are_sorted: bool = False
) -> jax.Array:
    """Returns the entries of ids along the first axis, and ``padding`` where an id is out of range.

    Without entries all ids are: JAX refuses to index an axis of length zero.
    """
    size = array.shape[0]
    if isinstance(size, int) and size == 0:
        shape = (*ids.shape, *array.shape[1:])
        filled, *_ = match_varying(jnp.full(shape, padding, array.dtype), array, ids)
        return filled
    return array.at[ids].get(mode="fill", fill_value=padding, indices_are_sorted=are_sorted)


def as_jax(where: str, argument: str, array: Any, dtype: Any = None) -> jax.Array:
    """Converts an array, number or list of a user to an array of JAX.

    Args:
      where: the public function or class, for errors.
      argument: name of the argument, for errors.
      array: an array of NumPy in either byte order, one of JAX, a number, or lists of numbers.
      dtype: dtype of the result; None for that which JAX has for the dtype of ``array``.

    Raises:
      ValueError: if JAX has no such dtype, or would cut integers to fewer bits.
    """
    is_list = isinstance(array, list | tuple)
    if is_list and not any(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(array)):
        array = host_array(where, argument, array)
    array = checked_numbers(where, argument, array, dtype)
    # Without a dtype, JAX compiles a program for each shape.
    if dtype is None and isinstance(array, np.ndarray):
        dtype = dtype_of_jax(array.dtype)
    try:
        return jnp.asarray(array, dtype)
    except OverflowError:  # A Python integer may be too large.
        raise bad_input(where, argument, "an integer that JAX can hold", repr(array)) from None


def host_array(where: str, argument: str, array: Any) -> np.ndarray:
    """Returns an array or lists of a user as an array of NumPy in native byte order.

    A mapped array in native order is returned unchanged, so that it still knows its file.

    Raises:
      ValueError: if lists have different lengths.
    """
    try:
        values = array if isinstance(array, np.ndarray) else np.asarray(array)
    except ValueError as error:
        raise bad_input(where, argument, "an array, or lists of equal lengths", error) from None
    return in_native_order(values)


def to_device(where: str, tree: Any, device: Any = None, *, name: str = "") -> Any:
    """Copies a pytree of arrays from the host to a device.

    Args:
      where: the public function or class, for errors.
      tree: arrays of NumPy in either byte order, arrays of JAX, or numbers.
      device: a device, or a sharding or a pytree of shardings; None for the default device.
      name: name of the pytree in errors, before the path of an array.

    Raises:
      ValueError: names the path of an array whose dtype JAX does not have, or whose integers it
        would cut to fewer bits.
    """
    return jax.device_put(checked_tree(where, tree, name), device)


def checked_tree(where: str, tree: Any, name: str = "") -> Any:
    """Returns a pytree whose numbers JAX can hold unchanged; raises as ``to_device`` does.

    Args:
      where: the public function or class, for errors.
      tree: a pytree of arrays or numbers.
      name: name of the pytree in errors, before the path of an array.
    """
    leaves, structure = jax.tree.flatten(tree)
    positions = [position for position, leaf in enumerate(leaves) if _may_change(leaf)]
    if not positions:
        return tree
    paths = jax.tree_util.tree_leaves_with_path(tree)
    for position in positions:
        argument = name_of_path(name, paths[position][0])
        leaves[position] = checked_numbers(where, argument, leaves[position])
    return structure.unflatten(leaves)


def name_of_path(name: str, path: Any) -> str:
    """The name of a leaf of a pytree in errors; a field of a dict without a name is its own."""
    text = jax.tree_util.keystr(path)
    if name or not path or not isinstance(path[0], jax.tree_util.DictKey):
        return name + text if name else text.removeprefix(".")
    return f"{path[0].key}{jax.tree_util.keystr(path[1:])}"


def checked_numbers(where: str, argument: str, array: Any, dtype: Any = None) -> Any:
    """Returns an array in native byte order and a dtype of JAX; no integer is truncated.

    Raises:
      ValueError: if an array of NumPy has another dtype, or integers out of range of ``dtype``, or
        of the dtype that JAX has for its own.
    """
    if not isinstance(array, np.ndarray | np.generic):
        return array
    if not is_dtype_of_jax(array.dtype):
        raise bad_input(where, argument, "of numbers, or bool", f"dtype {array.dtype}")
    require_kept_integers(where, argument, array, dtype)
    return in_native_order(array)


def _may_change(leaf: Any) -> bool:
    """Returns whether JAX may change the numbers of a leaf, or refuse it, by its dtype."""
    if not isinstance(leaf, np.ndarray | np.generic):
        return False
    dtype = leaf.dtype
    is_long = dtype.kind in "iu" and dtype.itemsize > 4
    return is_long or not dtype.isnative or not is_dtype_of_jax(dtype)


def dtype_of_jax(dtype: Any) -> np.dtype:
    """The dtype that JAX has for one of NumPy, in either byte order."""
    return jax.dtypes.canonicalize_dtype(np.dtype(dtype).newbyteorder("="))


def is_dtype_of_jax(dtype: np.dtype) -> bool:
    """Returns whether JAX supports a dtype of NumPy of at most 64 bits; any byte order is fine."""
    if dtype.kind in "fc":
        return dtype.itemsize <= (8 if dtype.kind == "f" else 16)
    return dtype.kind in "biu" or jnp.issubdtype(dtype, np.number)  # such as bfloat16


def match_varying(*trees: Any) -> tuple[Any, ...]:
    """Inside ``shard_map``, lets all arrays vary over the same mesh axes, as kernels need.

    Ops cast outside of their ``custom_vjp``, so that the derivative of the cast sums the gradients
    of shared operands over the mesh.
    """
    leaves, structure = jax.tree.flatten(trees)
    if is_concrete(*leaves):  # Constants vary over no axis.
        return trees
    varying = [jax.typeof(leaf).mat.varying for leaf in leaves]
    union = frozenset().union(*varying)
    if union:
        leaves = [
            jax.lax.pcast(leaf, tuple(union - axes), to="varying") if union - axes else leaf
            for leaf, axes in zip(leaves, varying, strict=True)
        ]
    return jax.tree.unflatten(structure, leaves)


def empty_like(kind: Any, like: Any) -> jax.Array:
    """Creates a new array without elements, of the shape and dtype of ``kind``.

    Inside ``shard_map`` it varies over the mesh axes of ``like``. There XLA aborts the process if
    an array without elements that is a constant, or the result of another program, is an operand of
    a custom call, a conditional or a concatenation (jaxlib 0.11.2).
    """
    empty = jnp.zeros(kind.shape, kind.dtype)
    varying = tuple(jax.typeof(like).mat.varying)
    return jax.lax.pcast(empty, varying, to="varying") if varying else empty


def offset_dtype(num_edges: int) -> type[np.signedinteger]:
    """int32 while edge offsets fit, int64 beyond 2^31 - 1 edges; int32 for an unknown number."""
    if jax.export.is_symbolic_dim(num_edges):
        return np.int32
    return np.int32 if num_edges <= MAX_INT32 else np.int64


# Arrays of ids of nodes and hyperedges. Offsets, and numbers of edges, may need 64 bits.
_IDS = ("indices", "node_ids", "hyperedge_ids")


class KeepsArrays:
    """Base class of the pytrees of arrays: it copies the arrays of callers before storing them.

    JAX on a CPU reads numpy arrays in place, and a plan is built from them once, so later changes
    to the caller's array must not affect either. ``jit`` would cut ids of 64 bits to other ids that
    are valid, so ids in memory that are out of its range raise ValueError. All other leaves are
    stored unchanged, because JAX also builds pytrees whose leaves are no arrays, such as shapes and
    shardings.
    """

    def __post_init__(self):
        for name, value in tuple(vars(self).items()):
            if isinstance(value, np.ndarray):
                if name in _IDS and not _is_mapped(value):
                    require_kept_integers(type(self).__name__, name, value)
                object.__setattr__(self, name, kept(value))


def requires_one[Self, **Arguments, Result](
    method: Callable[Concatenate[Self, Arguments], Result],
) -> Callable[Concatenate[Self, Arguments], Result]:
    """Decorates a method that needs arrays of one axis: it raises for stacked graphs.

    ``jax.vmap`` returns graphs stacked along a leading axis. Outside of ``jax.vmap`` methods do not
    know about this axis, and would compute across graphs. Numbers of nodes
    and edges are read from the last axes, so they are available for stacked graphs too.
    """

    @functools.wraps(method)
    def checked(self: Self, /, *args: Arguments.args, **options: Arguments.kwargs) -> Result:
        require_one(f"{type(self).__name__}.{method.__name__}", "self", self)
        return method(self, *args, **options)

    return checked


def require_one(where: str, argument: str, graph: Any) -> None:
    """Raises ValueError if ``graph`` holds several graphs, stacked along a leading axis."""
    for name, value in vars(graph).items():
        # Weights of a single graph may have an axis for heads, [edges, heads].
        by_edge = name == "weights" and value is not None and graph.indices.shape == value.shape[:1]
        if getattr(value, "ndim", 1) > (2 if by_edge else 1):
            expected = "a single one, with arrays of one axis (map over several by jax.vmap)"
            raise bad_input(where, argument, expected, f"{name} {shown(value)}")


def shown_sides(graph: Any) -> str:
    """Describes the shape of a graph that should be square but is not."""
    if graph.num_rows != graph.num_cols:
        return f"shape {graph.shape}"
    return f"rows and columns that are nodes of two kinds, {graph.num_rows} on each device"


def kept(array: Any) -> Any:
    """Returns a read-only native copy of a writable numpy array, and anything else unchanged."""
    if not isinstance(array, np.ndarray):
        return array
    if not array.dtype.isnative:
        return own(in_native_order(array))
    return array if _is_read_only(array) else own(np.array(array))


def own(array: Any) -> Any:
    """Makes a numpy array that the library has just created read-only, and returns it."""
    if isinstance(array, np.ndarray):
        array.flags.writeable = False
    return array


def _is_mapped(array: Any) -> bool:
    """Returns whether a numpy array is a view of a mapped file: do not read such a file whole."""
    while isinstance(array, np.ndarray):
        array = array.base
    return isinstance(array, mmap.mmap)


def _is_read_only(array: Any) -> bool:
    """Returns whether a numpy array and all arrays that it is a view of are read-only."""
    while isinstance(array, np.ndarray):
        if array.flags.writeable:
            return False
        array = array.base
    # A file is mapped to avoid reading all of it; other memory may have another owner.
    return array is None or isinstance(array, mmap.mmap)


def put_copy(array: Any) -> jax.Array:
    """Copies a caller's numpy array to the default device."""
    return put_own(kept(array))


def put_own(array: Any) -> jax.Array:
    """Puts an array that the library has just created on the default device, without a copy.

    Inside ``shard_map`` and outside of ``jit``, where every new JAX array is traced, it stays on
    the host as a constant.
    """
    if array.dtype == np.int64 and array.size and array.max() > MAX_INT32:
        require_x64()
    array = checked_numbers("CSRGraph", "an array", array)
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


def is_size(size: Any) -> bool:
    """Returns whether ``size`` is symbolic, or a number of nodes whose ids fit int32."""
    if jax.export.is_symbolic_dim(size):
        return True
    is_integer = isinstance(size, int | np.integer) and not isinstance(size, bool)
    return bool(is_integer and 0 <= size <= MAX_INT32)


def require_size(where: str, argument: str, size: Any) -> None:
    """Raises ValueError unless ``size`` is symbolic, or a number of nodes with ids of int32."""
    if not is_size(size):
        raise bad_input(where, argument, "an integer in [0, 2^31)", repr(size))


def require_count(where: str, argument: str, count: Any, expected: str) -> int:
    """Returns a count as an int; ValueError, which says what is ``expected``, unless positive."""
    is_integer = isinstance(count, int | np.integer) and not isinstance(count, bool)
    if not is_integer or count < 1:
        raise bad_input(where, argument, expected, repr(count))
    return int(count)


def require_integers(where: str, argument: str, array: Any) -> None:
    """Raises ValueError unless ``array`` has an integer dtype."""
    if not jnp.issubdtype(array.dtype, jnp.integer):
        raise bad_input(where, argument, "of an integer dtype", array.dtype)


def require_kept_integers(where: str, argument: str, leaf: Any, dtype: Any = None) -> None:
    """Raises ValueError if JAX would cut integers of NumPy, and lose their upper halves.

    Args:
      where: the public function or class, for errors.
      argument: name of the argument, for errors.
      leaf: an array of NumPy, one of its numbers, or anything else, which is not checked.
      dtype: the integers that they become; None for those that JAX has for the dtype of ``leaf``.
    """
    if not isinstance(leaf, np.ndarray | np.generic) or leaf.dtype.kind not in "iu":
        return
    narrow = dtype_of_jax(leaf.dtype if dtype is None else dtype)
    if narrow == leaf.dtype or not leaf.size or not jnp.issubdtype(narrow, jnp.integer):
        return
    bounds = jnp.iinfo(narrow)
    for value in (leaf.min(), leaf.max()):
        if not bounds.min <= value <= bounds.max:
            way = ", or used under jax_enable_x64" if dtype is None else ""
            raise bad_input(where, argument, f"in the range of {narrow}{way}", int(value))


def require_floats(where: str, argument: str, array: Any) -> None:
    """Raises ValueError unless ``array`` has a floating dtype."""
    if not jnp.issubdtype(array.dtype, jnp.floating):
        raise bad_input(where, argument, "of a floating dtype", array.dtype)


def require_length(where: str, argument: str, array: Any, length: int, what: str) -> None:
    """Raises ValueError unless ``array`` is one-dimensional with ``length`` entries."""
    if array.ndim != 1 or array.shape[0] != length:
        raise bad_input(where, argument, f"of shape ({length},), one entry {what}", array.shape)


def require_weights(where: str, argument: str, weights: Any, length: int, what: str) -> None:
    """Raises ValueError unless ``weights`` are floating [length], or [length, heads]."""
    if weights.ndim not in (1, 2) or weights.shape[0] != length:
        expected = f"of shape ({length},), one entry {what}, or ({length}, heads)"
        raise bad_input(where, argument, expected, weights.shape)
    require_floats(where, argument, weights)


def require_no_heads(where: str, argument: str, weights: Any) -> None:
    """Raises ValueError if edges have weights for several heads."""
    if weights is not None and weights.ndim > 1:
        expected = "one number for each edge, since only ops.spmm takes heads"
        raise bad_input(where, f"{argument}.weights", expected, f"shape {weights.shape}")


def in_native_order(array: Any) -> Any:
    """Returns a numpy array in the byte order of the machine, and anything else unchanged.

    Files such as FITS and netCDF have the other order, which ``jax.numpy`` refuses.
    """
    if not isinstance(array, np.ndarray) or array.dtype.isnative:
        return array
    return array.astype(array.dtype.newbyteorder("="))


def is_concrete(*arrays: Any) -> bool:
    """Returns whether the host can read the values of every array now; None is readable."""
    return not any(isinstance(a, jax.core.Tracer) for a in arrays)
