"""Checks implementations against the references, on the arguments that they run on."""

from __future__ import annotations

import contextlib
import itertools
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Literal, NamedTuple, get_args

import jax
import jax.numpy as jnp
import numpy as np

from jaxgnn._errors import bad_input
from jaxgnn.ops.core.custom_gradient import custom_vjp
from jaxgnn.ops.core.settings import ThreadSetting

Mode = Literal["off", "warn", "strict"]

# Allowed difference of sums in another order, relative to the largest entry: half of the digits of
# a dtype, or two roundings for 16-bit dtypes.
_TOLERANCES = {"float64": 1e-9, "float32": 1e-4, "bfloat16": 2.0**-7, "float16": 2.0**-10}
# Number of roundings by which the arguments of the reference are changed, to measure the effect on
# results whose terms cancel: these may have no correct digit.
_NUDGE = 16


class Setting(NamedTuple):
    """Settings of the checks of implementations.

    Attributes:
      mode: ``"off"``, ``"warn"`` or ``"strict"``: the action if results differ.
      tolerance: largest allowed difference, relative to the largest entry of an array; None for the
        tolerance of the dtype.
    """

    mode: Mode = "off"
    tolerance: float | None = None


_setting = ThreadSetting(Setting())


class VerificationError(ArithmeticError):
    """An implementation and the reference differ by more than the tolerance."""


@contextlib.contextmanager
def verify(mode: Mode, *, tolerance: float | None = None) -> Iterator[None]:
    """Context manager and decorator: checks every op that does not run its reference.

    The op runs its implementation and its reference on the same arguments, in the forward and in
    the backward pass, and returns the result of the implementation. Results must not differ by more
    than the tolerance times the largest finite magnitude in the reference's array, and have its
    shape; NaN and infinities, of either sign, must be in the same places whatever the tolerance,
    and integers equal. References multiply matrices in full precision.

    The terms of a sum may cancel, such as those of the gradient to the scores of attention where
    each node has one neighbour. Then only rounding errors are left. So the reference runs once
    more, on arguments that differ by 16 roundings, and results may differ by as much as its own do.

    Some ops consist of several kernels (``hypergraph_conv`` with ``path="mixing"``,
    ``edge_mlp_aggregate`` by products of nodes). At the kink of an activation two of their
    gradients may differ and both be right. Their gradients are checked only for being finite where
    the reference's are.

    The setting is part of ``jax.jit``'s cache key: a function traced under another setting is
    traced again, and ``"off"`` adds no operations. Arrays are compared on their device; a host
    callback reports the result.

    It holds for the thread: for all that it runs before the block ends, so also for other tasks of
    asyncio while the block awaits, and not for other threads.

    Args:
      mode: ``"off"``; ``"warn"`` for a ``RuntimeWarning``; ``"strict"`` for an error. Under
        ``jax.jit`` this is a ``jax.errors.JaxRuntimeError`` that quotes it, raised when the results
        are waited for.
      tolerance: relative, finite and at least zero; by default 1e-9 for float64, 1e-4 for float32,
        2^-10 for float16 and 2^-7 for bfloat16, and more for TF32 products, which JAX uses by
        default on recent NVIDIA GPUs. For a node of more than 1,677 edges in float32 it is 2^-24 an
        edge, which is the error of the reference's sum.

    Raises:
      ValueError: if there is no such mode, or the tolerance is negative or not finite.
      VerificationError: in the ``"strict"`` mode, if results differ. It names the op, the
        implementation, the array and its worst entry.

    Example:
      >>> import jax.numpy as jnp
      >>> import jaxgnn
      >>> graph = jaxgnn.CSRGraph.from_edges([0, 1], [1, 0], 2)
      >>> with jaxgnn.verify("strict"):
      ...     jaxgnn.ops.spmm(graph, jnp.array([[1.0], [2.0]])).tolist()
      [[2.0], [1.0]]
    """
    if mode not in get_args(Mode):
        raise bad_input("verify", "mode", "one of " + ", ".join(get_args(Mode)), repr(mode))
    if tolerance is not None and not 0 <= tolerance < np.inf:
        raise bad_input("verify", "tolerance", "None or at least zero, and finite", tolerance)
    with _setting.block(Setting(mode, None if tolerance is None else float(tolerance))):
        yield


def setting() -> Setting:
    """The setting for the op that is being traced."""
    return _setting.value


def using(setting: Setting):
    """Context manager: sets the checks of ops, from the forward pass to the backward pass."""
    return _setting.nested(setting)


def checked(
    name: str,
    run: Callable[..., Any],
    reference: Callable[..., Any],
    known: Callable[..., float | None] | None = None,
    longest_sum: Callable[..., jax.Array | None] = lambda *args: None,
):
    """``run``, whose results are compared with those of ``reference`` on the same arguments.

    Args:
      name: names of the kernel and of the implementation.
      run: the implementation.
      reference: the function that the implementation has to equal.
      known: returns the tolerance for these arguments, where the requested precision needs a
        special one. None, or a result of None, for the tolerance of the dtype. A tolerance in the
        setting takes precedence.
      longest_sum: returns the number of terms in the longest sum of the reference for these
        arguments; None if all sums are short.
    """
    mode, asked = _setting.value

    def both(*args):
        made = run(*args)
        tolerance = known(*args) if asked is None and known is not None else asked
        # Ops that the reference calls are not checked themselves.
        with using(Setting()), jax.default_matmul_precision("highest"):
            expected = reference(*args)
            changed = reference(*_nudged(args, tolerance))
        longest = longest_sum(*args) if tolerance is None else None
        for (path, a, e), (_, _, c) in zip(
            _pairs(made, expected), _pairs(made, changed), strict=True
        ):
            if a.shape != e.shape:
                shapes = f"is of shape {a.shape}, the reference's of {e.shape}"
                _report(mode, f"{name}{path} {shapes}")
                continue
            difference = _worst(a, e, c, tolerance, longest)
            jax.debug.callback(partial(_judge, mode, f"{name}{path}"), *difference)
        return made

    return both


def contained(name: str, run: Callable[..., Any], reference: Callable[..., Any]):
    """``run``, whose results and gradients have to be finite wherever those of ``reference`` are.

    For ops of several kernels, each of which is compared with its own reference.

    Args:
      name: names of the op and of the method of computation.
      run: a function of pytrees of arrays, which depends on nothing else.
      reference: a function of the same arguments, which ``run`` has to equal.
    """
    mode = _setting.value.mode

    def compare(what: str, made: Any, expected: Any) -> None:
        for path, a, e in _pairs(made, expected):
            where = _wrongly_not_finite(a, e)
            jax.debug.callback(partial(_judge_not_finite, mode, f"{name}{what}{path}"), *where)

    def exactly(function: Callable[..., Any]):
        with using(Setting()), jax.default_matmul_precision("highest"):
            return function()

    @custom_vjp
    def both(*args):
        return forward(*args)[0]

    def forward(*args):
        made, pull_back = jax.vjp(run, *args)
        compare("", made, exactly(lambda: reference(*args)))
        return made, (args, pull_back)

    def backward(residuals, dy):
        args, pull_back = residuals
        made = pull_back(dy)
        compare(".gradients", made, exactly(lambda: jax.vjp(reference, *args)[1](dy)))
        return made

    both.defvjp(forward, backward)
    return both


def _wrongly_not_finite(made: jax.Array, expected: jax.Array):
    """Whether ``made`` is not finite where ``expected`` is; the first such index, and its entry."""
    wrong = ~jnp.isfinite(made) & jnp.isfinite(expected)
    place = jnp.argmax(wrong)
    return jnp.any(wrong), _index(place, made.shape), made.reshape(-1)[place]


def _judge_not_finite(mode: Mode, name: str, is_wrong, index, actual) -> None:
    if is_wrong:
        place = np.asarray(index).tolist()
        _report(mode, f"{name}: entry {place} is {actual}, the reference's is finite")


def _pairs(made: Any, expected: Any) -> Iterator[tuple[str, jax.Array, jax.Array]]:
    leaves, structure = jax.tree.flatten_with_path(made)
    others = structure.flatten_up_to(expected)
    for (path, a), e in zip(leaves, others, strict=True):
        if a.size and a.dtype != jax.dtypes.float0:
            yield jax.tree_util.keystr(path), a, e


@partial(jax.jit, static_argnums=1, inline=True)
def _nudged(args: Any, tolerance: float | None) -> Any:
    """The arguments with each number changed by a few roundings, up or down at random."""
    keys = itertools.count()

    def nudge(leaf):
        number = next(keys)
        if not jnp.issubdtype(leaf.dtype, jnp.floating) or leaf.dtype.itemsize < 4:
            return leaf
        step = _NUDGE * float(jnp.finfo(leaf.dtype).eps)
        step = step if tolerance is None else min(step, tolerance)
        signs = jax.random.rademacher(jax.random.key(number), leaf.shape, leaf.dtype)
        return leaf * (1 + step * signs)

    return jax.tree.map(nudge, args)


def _worst(
    made: jax.Array,
    expected: jax.Array,
    changed: jax.Array,
    tolerance: float | None,
    longest_sum: jax.Array | None,
):
    """The index of the largest difference, the difference, the allowed one, and both entries.

    ``changed`` is the result of the reference for arguments that differ by a few roundings.
    """
    if not jnp.issubdtype(made.dtype, jnp.floating):
        cut = expected.astype(made.dtype), made.astype(expected.dtype)  # the dtypes may differ
        difference = ((made != cut[0]) | (cut[1] != expected)).astype(jnp.float32)
        allowed = jnp.float32(0.0)
    else:
        wide = jnp.dtype("float64" if made.dtype == jnp.float64 else "float32")
        if tolerance is None:
            tolerance = _of_dtype(made.dtype, wide, longest_sum)
        a, e = made.astype(wide), expected.astype(wide)
        same = (a == e) | (jnp.isnan(a) & jnp.isnan(e))
        difference = jnp.where(same, 0, jnp.abs(a - e))
        # The difference is NaN where only one of the two is an infinity or NaN.
        difference = jnp.where(jnp.isnan(difference), jnp.inf, difference)
        largest = jnp.max(jnp.abs(e), initial=0, where=jnp.isfinite(e))
        change = jnp.abs(changed.astype(wide) - e)
        change = jnp.max(change, initial=0, where=jnp.isfinite(change))
        # No tolerance allows infinite differences.
        allowed = jnp.minimum(jnp.maximum(tolerance * largest, change), jnp.finfo(wide).max)
    place = jnp.argmax(difference)
    entries = (array.reshape(-1)[place] for array in (made, expected))
    return _index(place, made.shape), difference.reshape(-1)[place], allowed, *entries


def _index(place: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    return jnp.stack(jnp.unravel_index(place, shape)) if shape else place[None]


def _of_dtype(dtype: jnp.dtype, wide: jnp.dtype, longest_sum: jax.Array | None) -> Any:
    """The allowed difference of sums computed in ``wide`` and rounded to ``dtype``."""
    tolerance = _TOLERANCES[dtype.name]
    if longest_sum is None:
        return tolerance
    # The reference adds one number after another, and each sum is rounded.
    roundings = longest_sum.astype(wide) * (jnp.finfo(wide).eps / 2)
    return jnp.maximum(tolerance, roundings)


def _judge(mode: Mode, name: str, index, difference, allowed, actual, expected) -> None:
    if difference <= allowed:
        return
    text = (
        f"{name}: entry {np.asarray(index).tolist()} is {actual}, the reference has {expected}: "
        f"the difference {difference:.3g} is more than {allowed:.3g}"
    )
    _report(mode, text)


def _report(mode: Mode, text: str) -> None:
    if mode == "strict":
        raise VerificationError(text)
    warnings.warn(f"jaxgnn: {text}", RuntimeWarning, stacklevel=2)
