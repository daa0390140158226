"""Comparison of values and gradients with float64, by one rule for the tolerance."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

# A sum of n float32 terms of random signs errs by about sqrt(n) roundings; four times that passes.
_SLACK = 4.0


def tolerances(
    dtype: Any, reduction_length: int, operands: Any = None, roundings: int = 1
) -> tuple[float, float]:
    """Relative error of a stored result, and of a float32 sum against the largest result.

    Args:
      dtype: dtype of the stored result.
      reduction_length: terms in the longest sum of the result.
      operands: dtype to which the terms of the sum were rounded before, or None. Their errors add
        up as the terms do.
      roundings: how many times in succession the terms were rounded to ``operands``.

    Returns:
      ``(storage, accumulation)``: a result may differ by ``storage`` times itself plus
      ``accumulation`` times the largest magnitude among the expected results.
    """
    dtype = jnp.dtype(dtype)
    accumulator = jnp.float64 if dtype == jnp.float64 else jnp.float32
    storage = float(jnp.finfo(dtype).eps)
    accumulation = float(jnp.finfo(accumulator).eps) * _SLACK * np.sqrt(max(reduction_length, 1))
    if operands is not None:
        accumulation += roundings * float(jnp.finfo(operands).eps)
    return storage, accumulation


def assert_close(
    actual: Any,
    expected: Any,
    *,
    reduction_length: int,
    operands: Any = None,
    roundings: int = 1,
    largest_term: float = 0.0,
    err_msg: str = "",
) -> None:
    """Asserts that ``actual``, of its own dtype, is ``expected`` (float64) up to rounding.

    NaN and infinities must be in the same places. The other options are those of ``tolerances``.

    Args:
      actual: array to test.
      expected: what it should be.
      reduction_length: see ``tolerances``.
      operands: see ``tolerances``.
      roundings: see ``tolerances``.
      largest_term: magnitude of the largest term of the sums, where these may cancel: an error is
        relative to this, if it is more than the largest result.
      err_msg: name of the compared array, for the message.
    """
    storage, accumulation = tolerances(actual.dtype, reduction_length, operands, roundings)
    actual64 = np.asarray(actual).astype(np.float64)
    expected64 = np.asarray(expected).astype(np.float64)
    assert actual64.shape == expected64.shape, f"{actual64.shape} != {expected64.shape} {err_msg}"
    finite = np.abs(expected64[np.isfinite(expected64)])
    largest = max(float(finite.max(initial=0.0)), largest_term)
    np.testing.assert_allclose(
        actual64, expected64, rtol=storage, atol=accumulation * largest, err_msg=err_msg
    )


def to_float64(tree: Any) -> Any:
    """The same pytree with its floating leaves in float64; needs ``jax.enable_x64``."""

    def widen(leaf):
        return leaf.astype(jnp.float64) if jnp.issubdtype(leaf.dtype, jnp.floating) else leaf

    return jax.tree.map(widen, tree)


def random_array(shape: tuple[int, ...], dtype: Any, seed: int, scale: float = 1.0) -> jax.Array:
    """Normal entries times ``scale``, rounded to ``dtype``."""
    values = np.random.default_rng(seed).normal(size=shape) * scale
    # Rounded in NumPy, where nothing is compiled for each shape; to infinity as well, as in JAX.
    with np.errstate(over="ignore"):
        rounded = values.astype(np.float32).astype(jnp.dtype(dtype))
    # Without the dtype, JAX would compile an identity program for each shape.
    return jnp.asarray(rounded, rounded.dtype)


def check_against_float64(
    function: Callable[..., Any],
    reference: Callable[..., Any],
    *args: Any,
    reduction_length: int,
    gradient_length: int | None = None,
    largest_terms: Callable[..., Sequence[float]] | None = None,
) -> None:
    """Compares value and every gradient with plain autodiff of the reference in float64.

    Args:
      function: the tested function, which returns a pytree of arrays; runs under ``jit``.
      reference: the same maths; gets the arguments in float64. One function object that several
        tests share is compiled once for all of them.
      *args: floating arrays, all differentiated.
      reduction_length: terms in the longest sum of the value.
      gradient_length: terms in the longest sum of a gradient; default ``reduction_length``.
      largest_terms: for gradients that are sums whose terms may cancel; gets the arguments, the
        values and the gradients to the values, in float64, and returns for each argument the
        largest magnitude among the terms of its gradient.
    """
    value, pull_back = jax.vjp(jax.jit(function), *args)
    leaves, structure = jax.tree.flatten(value)
    cotangents = [random_array(v.shape, v.dtype, seed=99 + i) for i, v in enumerate(leaves)]
    gradients = pull_back(jax.tree.unflatten(structure, cotangents))
    with jax.enable_x64(True):
        wide_leaves, wide_gradients = _float64_program(reference)(args, cotangents)
        assert all(leaf.dtype == jnp.float64 for leaf in wide_leaves)
    terms: Sequence[float] = [0.0] * len(args)
    if largest_terms is not None:
        wide = ([np.asarray(a, np.float64) for a in group] for group in (args, cotangents))
        wide_args, wide_cotangents = wide
        terms = largest_terms(wide_args, [np.asarray(v) for v in wide_leaves], wide_cotangents)
    for i, (actual, expected) in enumerate(zip(leaves, wide_leaves, strict=True)):
        err_msg = "value" if len(leaves) == 1 else f"value {i}"
        assert_close(actual, expected, reduction_length=reduction_length, err_msg=err_msg)
    length = reduction_length if gradient_length is None else gradient_length
    pairs = zip(gradients, wide_gradients, args, terms, strict=True)
    for i, (actual, expected, arg, largest_term) in enumerate(pairs):
        assert actual.dtype == arg.dtype, f"gradient {i} is {actual.dtype} for a {arg.dtype}"
        options = {"reduction_length": length, "largest_term": largest_term}
        assert_close(actual, expected, **options, err_msg=f"gradient {i}")


@functools.lru_cache(maxsize=64)
def _float64_program(reference: Callable[..., Any]) -> Callable[..., Any]:
    """Compiles value and gradients as one program; single operations would be hundreds of them."""

    def value_and_gradients(args, cotangents):
        value, pull_back = jax.vjp(reference, *to_float64(args))
        leaves, structure = jax.tree.flatten(value)
        return leaves, pull_back(jax.tree.unflatten(structure, to_float64(cotangents)))

    # It runs once or twice: optimising it would take longer than it saves.
    quick = {"xla_backend_optimization_level": 0} if jax.default_backend() == "cpu" else None
    return jax.jit(value_and_gradients, compiler_options=quick)


def check_numerical_gradients(function: Callable[..., Any], *args: jax.Array) -> None:
    """Compares reverse-mode gradients with finite differences in float32."""
    from jax.test_util import check_grads

    check_grads(function, args, order=1, modes=("rev",), atol=2e-2, rtol=2e-2, eps=1e-2)


def check_forward_mode(function: Callable[[Any], jax.Array], x: Any) -> None:
    """Compares forward mode with reverse mode along one tangent: ``⟨J v, dy⟩ = ⟨v, Jᵀ dy⟩``.

    ``x`` is a pytree of floating arrays. The function returns an array, and runs under ``jit``.
    """
    result = jax.eval_shape(function, x)
    dy = random_array(result.shape, result.dtype, seed=98)

    @jax.jit  # one program, since most of the time is compilation
    def products(x, dy):
        along = jax.tree.map(jnp.cos, x)
        _, slope = jax.jvp(function, (x,), (along,))
        _, pull_back = jax.vjp(function, x)
        pairs = jax.tree.map(jnp.vdot, along, pull_back(dy)[0])
        return jnp.vdot(slope, dy), sum(jax.tree.leaves(pairs), start=jnp.zeros((), dy.dtype))

    forward, reverse = products(x, dy)
    np.testing.assert_allclose(forward, reverse, rtol=1e-4)


def assert_bit_equal(first: Any, second: Any) -> None:
    """Asserts that two pytrees of arrays are equal to the last bit, NaN payloads included."""
    for a, b in zip(jax.tree.leaves(first), jax.tree.leaves(second), strict=True):
        assert a.dtype == b.dtype
        assert np.asarray(a).tobytes() == np.asarray(b).tobytes()
