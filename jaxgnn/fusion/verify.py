"""Comparison of a rewritten function with the original function, on the arrays of a call.

Two programs of one formula differ by their rounding. How much this changes a result depends on the
function: terms cancel, and an activation with a kink takes the other side where its argument is
near zero. So the original function runs several times with random errors, of the size of rounding,
in its arguments and in the result of every equation that rounds (Monte Carlo arithmetic), and with
the terms of its sums in other orders: a long sum loses more in its partial sums than its terms and
its result say. The changes of its results are what rounding does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxgnn.fusion.program.constants import Jitted
from jaxgnn.fusion.program.program import Atom, Equation, Program, is_variable
from jaxgnn.fusion.recognise.gathers import segment_reduction
from jaxgnn.testing import assert_close


def difference(
    original: Callable[..., Sequence[Any]],
    rewritten: Callable[..., Sequence[Any]],
    arrays: Sequence[Any],
    longest: int,
) -> str | None:
    """Describes a difference of outputs or gradients beyond rounding, or returns None.

    Gradients are those of the sum of all finite floating outputs, each times its own slope, to
    every floating array. A difference beyond the tolerance for sums of this length is compared with
    the spread of the original under errors of the size of rounding, which has to explain it.

    Args:
      original: takes the arrays, returns a list of arrays.
      rewritten: function that should do the same.
      arrays: the arguments.
      longest: terms in the longest sum, for the tolerance of ``jaxgnn.testing``.
    """
    floats = tuple(i for i, a in enumerate(arrays) if _is_float(a))
    functions: dict[str, Sequence[Callable[..., Sequence[Any]]]]
    functions = {"output": (rewritten, original)}
    if floats:
        functions["gradient"] = [
            jax.grad(_weighted_sum(f), argnums=floats) for f in (rewritten, original)
        ]
    for what, (new, old) in functions.items():
        actual, expected = list(Jitted(new)(*arrays)), list(Jitted(old)(*arrays))
        message = _first_difference(what, actual, expected, longest)
        if message is None:
            continue
        spreads = spread(lambda *a, old=old: list(old(*a)), arrays, expected)
        if not all(map(_is_explained, actual, expected, spreads)):
            return message
    return None


def _is_explained(actual: Any, expected: Any, by_rounding: np.ndarray) -> bool:
    """Returns whether errors of the size of rounding explain the change of an array.

    A few samples of errors underestimate the change of some entries, so four times that of the
    entry and the largest one of the array are allowed.
    """
    if not _is_float(actual):
        return bool(jnp.all(actual == expected))
    a, e = (np.asarray(x).astype(np.float64) for x in (actual, expected))
    is_finite = np.isfinite(e)
    if not np.array_equal(a[~is_finite], e[~is_finite], equal_nan=True):
        return False
    change = np.abs(a - e)[is_finite]  # NaN where only the new result is not finite.
    allowed = 4 * by_rounding[is_finite] + by_rounding.max(initial=0)
    return bool((change <= allowed).all())


def _first_difference(what: str, actual: Any, expected: Any, longest: int) -> str | None:
    for i, (a, e) in enumerate(zip(actual, expected, strict=True)):
        if not _is_float(a):
            if not bool(jnp.all(a == e)):
                return f"{what} {i} differs"
            continue
        short = a.dtype if a.dtype.itemsize < 4 else None  # Intermediate sums were rounded, too.
        try:
            assert_close(a, e, reduction_length=longest, operands=short, roundings=4)
        except AssertionError as error:
            lines = [line.strip() for line in str(error).splitlines() if line.strip()]
            return f"{what} {i}: {'; '.join(lines[:3])}"
    return None


def _weighted_sum(function: Callable[..., Sequence[Any]]) -> Callable[..., Any]:
    def total(*arrays: Any) -> Any:
        terms = [jnp.zeros((), jnp.float32)]
        for output in filter(_is_float, function(*arrays)):
            slopes = 1 + jnp.arange(output.size, dtype=jnp.float32) / max(output.size, 1)
            finite = jnp.where(jnp.isfinite(output), output, 0).astype(jnp.float32)
            terms.append(jnp.sum(finite.ravel() * slopes))
        return sum(terms)

    return total


def _is_float(array: Any) -> bool:
    return bool(jnp.issubdtype(array.dtype, jnp.floating))


_SAMPLES = 8
_SIZE = 4.0  # Largest error, in units of rounding.
_PLACES = 1009  # Number of offsets into the random numbers.
# Primitives that do not round. An error in their results would let an extreme differ from itself.
# fmt: off
_EXACT = frozenset((
    "abs", "argmax", "argmin", "broadcast_in_dim", "clamp", "concatenate", "copy", "copy_p",
    "cummax", "cummin", "dynamic_slice", "dynamic_update_slice", "expand_dims", "gather", "iota",
    "max", "min", "neg", "optimization_barrier", "pad", "reduce_max", "reduce_min", "reshape",
    "rev", "scatter", "scatter-max", "scatter-min", "select_and_gather_add", "select_n", "sign",
    "slice", "sort", "split", "squeeze", "stop_gradient", "top_k", "transpose",
))
# fmt: on


def spread(
    function: Callable[..., Sequence[Any]], arrays: Sequence[Any], results: Sequence[Any]
) -> list[np.ndarray]:
    """Returns the largest changes of results by errors of the size of rounding, float64."""
    noisy = Jitted(_noisy(Program.from_jaxpr(jax.make_jaxpr(function)(*arrays))))
    exact = [np.asarray(r).astype(np.float64) for r in results]
    largest = [np.zeros(r.shape) for r in exact]
    for seed in range(_SAMPLES):
        changed = noisy(jax.random.key(seed), *arrays)
        for i, (one, other) in enumerate(zip(changed, exact, strict=True)):
            with np.errstate(invalid="ignore"):
                change = np.abs(np.asarray(one).astype(np.float64) - other)
            largest[i] = np.fmax(largest[i], np.where(np.isfinite(change), change, 0))
    return largest


def _noisy(program: Program) -> Callable[..., list[Any]]:
    """Adds random relative errors to the arguments and rounded results of a program.

    The errors are slices of one array of random numbers, each from another offset.
    """
    variables = [*program.inputs, *(v for e in program.equations for v in e.outvars)]
    offsets = {v: (37 * i) % _PLACES for i, v in enumerate(variables)}
    size = _PLACES + max((v.aval.size for v in variables if _is_float(v.aval)), default=0)

    def run(key: Any, *arrays: Any) -> list[Any]:
        numbers = jax.random.uniform(key, (size,), jnp.float32, -1, 1)
        errors, place = _SIZE * numbers, (numbers[0] + 1) / 2

        def wrong(variable: Any, array: Any) -> Any:
            return _wrong(errors, offsets[variable], array) if _is_float(variable.aval) else array

        def value(atom: Atom) -> Any:
            return values[atom] if is_variable(atom) else atom.val

        values = dict(program.constants)
        values |= {v: wrong(v, a) for v, a in zip(program.inputs, arrays, strict=True)}
        for equation in program.equations:
            operands = reorder_terms(equation, place, *map(value, equation.invars))
            results = program.alone(equation)(*operands)
            pairs = zip(equation.outvars, results, strict=True)
            rounds = equation.primitive.name not in _EXACT
            values |= {v: wrong(v, y) if rounds else y for v, y in pairs}
        return [jnp.asarray(value(atom)) for atom in program.outputs]

    return run


def reorder_terms(equation: Equation, place: Any, *operands: Any) -> Sequence[Any]:
    """Reverses the terms of a sum from a ``place`` between 0 and 1 on.

    Returns the operands of other equations unchanged.
    """
    axes = _axes_of_terms(equation)
    if not axes or any(0 in a.shape for a in operands):
        return operands
    return [
        a if axis is None else _reversed_from(a, axis, place)
        for a, axis in zip(operands, axes, strict=True)
    ]


def _axes_of_terms(equation: Equation) -> Sequence[int | None]:
    """Returns the longest summed axis of each operand, or None; empty if nothing is summed."""
    name, params = equation.primitive.name, equation.params
    if name == "reduce_sum":
        shape = equation.invars[0].aval.shape
        return [max(params["axes"], key=lambda axis: shape[axis], default=None)]
    if name == "dot_general":
        (left, right), _ = params["dimension_numbers"]
        if not left:
            return []
        shape = equation.invars[0].aval.shape
        at = max(range(len(left)), key=lambda i: shape[left[i]])
        return [left[at], right[at]]
    reduction = segment_reduction(equation) if name == "scatter-add" else None
    return [None, 0, reduction.axis] if reduction is not None else []


def _reversed_from(array: Any, axis: int, place: Any) -> Any:
    """Reverses an axis, beginning at a relative place and wrapping around."""
    size = array.shape[axis]
    first = jnp.minimum((place * size).astype(jnp.int32), size - 1)
    positions = first - jnp.arange(size, dtype=jnp.int32)
    return jnp.take(array, jnp.where(positions < 0, positions + size, positions), axis=axis)


def _wrong(errors: Any, offset: int, array: Any) -> Any:
    """Multiplies an array by one plus errors, in units of rounding, from an offset on."""
    of_entries = errors[offset : offset + array.size].reshape(array.shape)
    factor = 1 + of_entries * (float(jnp.finfo(array.dtype).eps) / 2)
    return (array.astype(jnp.promote_types(array.dtype, jnp.float32)) * factor).astype(array.dtype)
