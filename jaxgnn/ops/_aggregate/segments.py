"""Reductions of segments of an array, with the signatures of ``jax.ops`` and of jraph."""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from jaxgnn._arrays.arrays import as_jax, in_native_order
from jaxgnn._arrays.eager import is_read_in_place, least_and_most
from jaxgnn._arrays.identity_cache import IdentityMemory
from jaxgnn._errors import bad_input
from jaxgnn.graph import is_concrete
from jaxgnn.ops._aggregate.segment_parts import KINDS, Segments
from jaxgnn.ops.core import dispatch
from jaxgnn.ops.core.eager import run_compiled

_MODES = (None, "drop", "fill", "clip", "promise_in_bounds")

_ARE_NEGATIVE_IDS_DROPPED = ContextVar("are_negative_ids_dropped", default=False)

# Ranges of ids on accelerators.
_RANGES = IdentityMemory[tuple[int, int]]()


def segment_sum(
    data: Any,
    segment_ids: Any,
    num_segments: int | None = None,
    indices_are_sorted: bool = False,
    unique_indices: bool = False,
    bucket_size: int | None = None,
    mode: Any = None,
) -> Array:
    """Sums the entries of each segment, as ``jax.ops.segment_sum`` does.

    Floats are accumulated in float32 (float64 for float64) and rounded once. Gradients of any order
    are sums of segments and gathers. Integers and complex numbers are left to ``jax.ops``.

    Args:
      data: an array with an entry for each id along its first axis, or a number for all of them.
      segment_ids: segment of each entry, integers. Ids of ``num_segments`` and above are padding,
        whose entries are dropped. Negative ids raise an error where their values are known: in all
        arrays except those that ``jit``, ``vmap`` and the like trace, where entries of negative ids
        are dropped. For ids on an accelerator the host waits for the smallest and the largest, once
        for each array.
      num_segments: number of segments; None for one more than the largest id, which must be known,
        so not under ``jit``.
      indices_are_sorted: whether the ids ascend.
      unique_indices: whether no id occurs twice; ignored.
      bucket_size: argument of ``jax.ops``; ignored.
      mode: ``"clip"`` moves ids out of range to the nearest segment, negative ones too; None,
        ``"drop"``, ``"fill"`` and ``"promise_in_bounds"`` drop entries out of range.

    Returns:
      An array [num_segments, ...] of the dtype of ``data``; zeros for segments without entries.

    Raises:
      ValueError: if ids are no integers, negative, or not one for each entry of the data, or if the
        number of segments is no integer of at least zero, or None or traced under ``jit``.

    Example:
      >>> import jax.numpy as jnp
      >>> import jaxgnn
      >>> jaxgnn.segment_sum(jnp.array([1.0, 2.0, 4.0]), jnp.array([0, 2, 0]), 3).tolist()
      [5.0, 0.0, 2.0]
    """
    return _reduced("segment_sum", data, segment_ids, num_segments, indices_are_sorted, mode)


def segment_mean(
    data: Any,
    segment_ids: Any,
    num_segments: int | None = None,
    indices_are_sorted: bool = False,
    unique_indices: bool = False,
) -> Array:
    """Averages the entries of each segment, as ``jraph.segment_mean`` does.

    Means of integers are floats. Arguments, gradients and errors are those of ``segment_sum``;
    segments without entries are zero.
    """
    return _reduced("segment_mean", data, segment_ids, num_segments, indices_are_sorted)


def segment_max(
    data: Any,
    segment_ids: Any,
    num_segments: int | None = None,
    indices_are_sorted: bool = False,
    unique_indices: bool = False,
    bucket_size: int | None = None,
    mode: Any = None,
) -> Array:
    """Finds the maximum of each segment, as ``jax.ops.segment_max`` does.

    Segments without entries are -inf, or the least integer. Entries that are equal to the maximum
    share its gradient. Arguments and errors are those of ``segment_sum``.
    """
    return _reduced("segment_max", data, segment_ids, num_segments, indices_are_sorted, mode)


def segment_min(
    data: Any,
    segment_ids: Any,
    num_segments: int | None = None,
    indices_are_sorted: bool = False,
    unique_indices: bool = False,
    bucket_size: int | None = None,
    mode: Any = None,
) -> Array:
    """Finds the minimum of each segment, as ``jax.ops.segment_min`` does.

    Segments without entries are inf, or the largest integer. Entries that are equal to the minimum
    share its gradient. Arguments and errors are those of ``segment_sum``.
    """
    return _reduced("segment_min", data, segment_ids, num_segments, indices_are_sorted, mode)


def segment_max_or_constant(
    data: Any,
    segment_ids: Any,
    num_segments: int | None = None,
    indices_are_sorted: bool = False,
    unique_indices: bool = False,
    constant: float = 0.0,
) -> Array:
    """Finds the maximum of each segment, and ``constant`` for segments without entries, as jraph.

    Other arguments, gradients and errors are those of ``segment_max``.
    """
    arguments = data, segment_ids, num_segments, indices_are_sorted
    return _reduced("segment_max_or_constant", *arguments, option=constant)


def segment_min_or_constant(
    data: Any,
    segment_ids: Any,
    num_segments: int | None = None,
    indices_are_sorted: bool = False,
    unique_indices: bool = False,
    constant: float = 0.0,
) -> Array:
    """Finds the minimum of each segment, and ``constant`` for segments without entries, as jraph.

    Other arguments, gradients and errors are those of ``segment_min``.
    """
    arguments = data, segment_ids, num_segments, indices_are_sorted
    return _reduced("segment_min_or_constant", *arguments, option=constant)


def segment_prod(
    data: Any,
    segment_ids: Any,
    num_segments: int | None = None,
    indices_are_sorted: bool = False,
    unique_indices: bool = False,
    bucket_size: int | None = None,
    mode: Any = None,
) -> Array:
    """Multiplies the entries of each segment, as ``jax.ops.segment_prod`` does.

    The product itself is that of ``jax.ops``. Unlike there it has a gradient even if ids are not
    unique: the product of the other entries of the segment, also where entries are zero. Segments
    without entries are one. Arguments and errors are those of ``segment_sum``.
    """
    return _reduced("segment_prod", data, segment_ids, num_segments, indices_are_sorted, mode)


def segment_logsumexp(
    data: Any,
    segment_ids: Any,
    num_segments: int | None = None,
    indices_are_sorted: bool = False,
    unique_indices: bool = False,
) -> Array:
    """Computes the logarithm of the sum of the exponentials of each segment.

    No intermediate result overflows. Segments without entries are -inf. Arguments, gradients and
    errors are those of ``segment_sum``.

    Example:
      >>> import jax.numpy as jnp
      >>> import jaxgnn
      >>> jaxgnn.segment_logsumexp(jnp.array([1000.0, 2.0]), jnp.array([0, 1]), 2).tolist()
      [1000.0, 2.0]
    """
    return _reduced("segment_logsumexp", data, segment_ids, num_segments, indices_are_sorted)


def segment_variance(
    data: Any,
    segment_ids: Any,
    num_segments: int | None = None,
    indices_are_sorted: bool = False,
    unique_indices: bool = False,
) -> Array:
    """Computes the mean squared distance from the mean of each segment, as jraph does.

    Segments without entries are zero. Arguments, gradients and errors are those of ``segment_sum``.
    """
    return _reduced("segment_variance", data, segment_ids, num_segments, indices_are_sorted)


def segment_softmax(
    logits: Any,
    segment_ids: Any,
    num_segments: int | None = None,
    indices_are_sorted: bool = False,
    unique_indices: bool = False,
) -> Array:
    """Computes the softmax over the entries of each segment, as ``jraph.segment_softmax`` does.

    Entries of ids out of range are zero. Arguments, gradients and errors are those of
    ``segment_sum``.

    Returns:
      Probabilities of the shape and dtype of ``logits``.

    Example:
      >>> import jax.numpy as jnp
      >>> import jaxgnn
      >>> jaxgnn.segment_softmax(jnp.array([5.0, 1.0, 1.0]), jnp.array([0, 1, 1]), 2).tolist()
      [1.0, 0.5, 0.5]
    """
    return _reduced("segment_softmax", logits, segment_ids, num_segments, indices_are_sorted)


def segment_normalize(
    data: Any,
    segment_ids: Any,
    num_segments: int | None = None,
    indices_are_sorted: bool = False,
    unique_indices: bool = False,
    eps: float = 1e-8,
) -> Array:
    """Subtracts the mean of its segment from each entry, and divides by the deviation, as jraph.

    Variances are at least ``eps``. Entries of ids out of range are zero. Other arguments, gradients
    and errors are those of ``segment_sum``.

    Returns:
      An array of the shape and dtype of ``data``.
    """
    arguments = data, segment_ids, num_segments, indices_are_sorted
    return _reduced("segment_normalize", *arguments, option=eps)


def _reduced(
    op: str,
    data: Any,
    ids: Any,
    count: Any,
    is_sorted: Any,
    mode: Any = None,
    *,
    option: Any = None,
) -> Array:
    """The result of the function ``op`` of this module, as described in ``KINDS``.

    ``option`` is its ``constant`` or ``eps``, if it has one.
    """
    kind = KINDS[op]
    data, ids, count = _checked(op, data, ids, count, mode)
    has_floats, is_empty = jnp.issubdtype(data.dtype, jnp.floating), 0 in (data.size, count)
    options = () if option is None else (float(option),)
    if kind.of_jax is not None and (is_empty or not has_floats):
        made = kind.of_jax(data, ids, count, bool(is_sorted))
        if option is None:
            return made
        members = jax.ops.segment_sum(jnp.ones(ids.shape, jnp.int32), ids, count, bool(is_sorted))
        has_some = members.reshape(-1, *[1] * (made.ndim - 1)) > 0
        return jnp.where(has_some, made, jnp.asarray(option, made.dtype))
    if not has_floats:
        if not any(jnp.issubdtype(data.dtype, numbers) for numbers in (jnp.integer, jnp.bool_)):
            raise bad_input(op, "the data", "of real numbers", data.dtype)
        data = data.astype(jnp.zeros((), float).dtype)
    features = data.shape[1:]
    shape = data.shape if kind.by_entry else (count, *features)
    if is_empty:
        return jnp.full(shape, kind.empty, data.dtype)
    segments = Segments(dispatch.resolve(op, None), count, bool(is_sorted))
    arrays = dispatch.match_varying(ids, data.reshape(data.shape[0], math.prod(features)))
    return run_compiled(_apply, (kind.function, segments, options), arrays).reshape(shape)


def _apply(static, arrays):
    function, segments, options = static
    return function(segments, *arrays, *options)


def _checked(op: str, data: Any, ids: Any, count: Any, mode: Any) -> tuple[Array, Array, int]:
    """The data and ids as arrays, and the number of segments.

    Raises:
      ValueError: if they do not fit each other, or one of them is invalid.
    """
    data, ids = as_jax(op, "the data", data), _as_array(ids)
    if not jnp.issubdtype(ids.dtype, jnp.integer):
        raise bad_input(op, "segment_ids", "of an integer dtype", ids.dtype)
    if data.ndim == 0 and ids.ndim == 1:  # one number for all entries
        data = jnp.broadcast_to(data, ids.shape)
    if ids.ndim != 1 or data.shape[:1] != ids.shape:
        expected = "one id for each entry of the first axis of the data"
        raise bad_input(
            op, "segment_ids", expected, f"shape {ids.shape} for data of shape {data.shape}"
        )
    name = getattr(mode, "name", mode)
    name = name.lower() if isinstance(name, str) else name
    if (name or None) not in (*_MODES, "fill_or_drop"):
        raise bad_input(op, "mode", "None, 'drop', 'fill' or 'clip'", repr(mode))
    are_negative_fine = name == "clip" or _ARE_NEGATIVE_IDS_DROPPED.get()
    count = _checked_count(op, ids, count, are_negative_fine)
    ids = _as_int32(ids, count)
    if name == "clip":
        ids = jnp.clip(ids, 0, count - 1)
    return data, ids, count


def _as_array(ids: Any) -> Any:
    """The ids as an array of numpy, which keeps int64, or of JAX if they are traced."""
    if isinstance(ids, np.ndarray | jax.Array):
        return in_native_order(ids)
    is_jax = hasattr(ids, "__jax_array__") or not is_concrete(*jax.tree.leaves(ids))
    return jnp.asarray(ids) if is_jax else np.asarray(ids)


def _checked_count(op: str, ids: Any, count: Any, are_negative_fine: bool) -> int:
    """The number of segments, after a check that no known id is negative.

    Raises:
      ValueError: if there is a negative id, unless these are allowed, or the number is not a known
        integer.
    """
    is_known = is_concrete(ids)
    if count is None and not is_known:
        raise bad_input(op, "num_segments", "given under jit", None)
    if count is not None:
        count = _as_int(op, count)
    is_read = is_known and (count is None or not are_negative_fine)
    least, most = _range(ids) if is_read and ids.size else (0, -1)
    if least < 0 and not are_negative_fine:
        raise bad_input(
            op, "segment_ids", "at least zero, and num_segments or more for padding", _shown(ids)
        )
    count = max(most, -1) + 1 if count is None else count
    if count < 0:
        raise bad_input(op, "num_segments", "at least zero", count)
    if count > np.iinfo(np.int32).max:
        raise bad_input(op, "num_segments", "below 2^31, since ids are int32", count)
    return count


def _as_int(op: str, count: Any) -> int:
    try:
        if is_concrete(count):
            return operator.index(count)
    except TypeError:
        pass
    raise bad_input(op, "num_segments", "None or an int, not traced", repr(count))


def _range(ids: Any) -> tuple[int, int]:
    """The smallest and the largest id; an array of a device, which cannot change, is read once."""
    if is_read_in_place(ids):
        return least_and_most(ids)
    return _RANGES.get((ids,), None, lambda: least_and_most(ids))


def _shown(ids: Any) -> str:
    """Describes the negative ids for an error."""
    ids = np.asarray(ids)
    is_negative = ids < 0
    first = int(is_negative.argmax())
    return f"{int(is_negative.sum())} negative, the first at {first}: {ids[first]}"


def dropping_negative_ids[**P](function: Callable[P, Array]) -> Callable[P, Array]:
    """A function of this module that drops the entries of negative ids, as ``jax.ops`` does."""

    @functools.wraps(function)
    def dropping(*args: P.args, **kwargs: P.kwargs) -> Array:
        token = _ARE_NEGATIVE_IDS_DROPPED.set(True)
        try:
            return function(*args, **kwargs)
        finally:
            _ARE_NEGATIVE_IDS_DROPPED.reset(token)

    return dropping


def _as_int32(ids: Any, count: int) -> Array:
    """The ids, with those beyond the range of int32 out of range."""
    xp: Any = np if isinstance(ids, np.ndarray) else jnp  # numpy always has int64
    if ids.dtype.itemsize > 4 or ids.dtype == np.uint32:
        last = min(count, np.iinfo(np.int32).max)
        ids = xp.minimum(ids, xp.asarray(last, ids.dtype))
        if jnp.issubdtype(ids.dtype, jnp.signedinteger):
            ids = xp.maximum(ids, xp.asarray(-1, ids.dtype))
    return jnp.asarray(ids.astype(np.int32))
