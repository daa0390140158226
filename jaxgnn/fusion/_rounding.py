"""Sensitivity of a function to rounding: Monte Carlo arithmetic on its equations.

Two programs of one formula differ by their rounding. How much this changes a result depends on the
function: terms cancel, and an activation with a kink takes the other side where its argument is
near zero. So the function as it is runs several times with random errors, of the size of
rounding, in its arguments and in the result of every equation that rounds. The changes of its
results are what rounding does.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.extend.core as jex
import jax.numpy as jnp
import numpy as np

from jaxgnn.fusion._constants import Jitted
from jaxgnn.fusion._program import Atom, Program, is_variable

_SAMPLES = 8
_SIZE = 4.0  # largest error, in units of rounding
_PLACES = 1009  # places in the array of random numbers at which errors begin
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
    """Largest changes of results by errors of the size of rounding, float64.

    Args:
      function: takes the arrays, returns a list of arrays.
      arrays: the arguments.
      results: the results without errors.
    """
    noisy = Jitted(_with_errors(Program.of(jax.make_jaxpr(function)(*arrays))))
    exact = [np.asarray(r).astype(np.float64) for r in results]
    largest = [np.zeros(r.shape) for r in exact]
    for seed in range(_SAMPLES):
        made = noisy(jax.random.key(seed), *arrays)
        for i, (one, other) in enumerate(zip(made, exact, strict=True)):
            with np.errstate(invalid="ignore"):
                change = np.abs(np.asarray(one).astype(np.float64) - other)
            largest[i] = np.fmax(largest[i], np.where(np.isfinite(change), change, 0))
    return largest


def _with_errors(program: Program) -> Callable[..., list[Any]]:
    """The program with random relative errors in its arguments and in results that are rounded.

    The errors are parts of one array of random numbers, each from a place of its own.
    """
    variables = [*program.inputs, *(v for e in program.equations for v in e.outvars)]
    places = {v: (37 * i) % _PLACES for i, v in enumerate(variables)}
    size = _PLACES + max((v.aval.size for v in variables if _is_float(v.aval)), default=0)

    def run(key: Any, *arrays: Any) -> list[Any]:
        errors = _SIZE * jax.random.uniform(key, (size,), jnp.float32, -1, 1)

        def wrong(variable: Any, array: Any) -> Any:
            return _wrong(errors, places[variable], array) if _is_float(variable.aval) else array

        def value(atom: Atom) -> Any:
            return known[atom] if is_variable(atom) else atom.val

        known = dict(program.constants)
        known |= {v: wrong(v, a) for v, a in zip(program.inputs, arrays, strict=True)}
        for equation in program.equations:
            made = _alone(program, equation)(*map(value, equation.invars))
            pairs = zip(equation.outvars, made, strict=True)
            rounds = equation.primitive.name not in _EXACT
            known |= {v: wrong(v, y) if rounds else y for v, y in pairs}
        return [jnp.asarray(value(atom)) for atom in program.outputs]

    return run


def _alone(program: Program, equation: Any) -> Callable[..., list[Any]]:
    """One equation as a function of what it reads."""
    inputs = tuple(jex.gensym()(a.aval) for a in equation.invars)
    made = dataclasses.replace(
        program,
        inputs=inputs,
        outputs=tuple(equation.outvars),
        equations=(equation.replace(invars=list(inputs)),),
        constants={},
    )
    return jex.jaxpr_as_fun(made.closed())


def _is_float(aval: Any) -> bool:
    return jnp.issubdtype(aval.dtype, jnp.floating) and aval.size > 0


def _wrong(errors: Any, place: int, array: Any) -> Any:
    """The array times one plus errors, in units of rounding, that begin at a place."""
    own = errors[place : place + array.size].reshape(array.shape)
    factor = 1 + own * (float(jnp.finfo(array.dtype).eps) / 2)
    return (array.astype(jnp.promote_types(array.dtype, jnp.float32)) * factor).astype(array.dtype)
