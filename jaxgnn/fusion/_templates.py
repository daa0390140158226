"""Recognising a function of one array by its whole program."""

from __future__ import annotations

from typing import Any

import jax
import jax.extend.core as jex
import numpy as np

from jaxgnn.fusion._program import Atom, Equation, Program, is_variable
from jaxgnn.fusion._view import View


def argument_of(view: View, atom: Atom, template: Program) -> Atom | None:
    """What stands in the place of the template's input, if all the rest is the same, or None.

    Args:
      view: the view of a program.
      atom: what may be made as the template says.
      template: the program of a function of one array, with one result.
    """
    makers = {v: e for e in template.equations for v in e.outvars}
    found: dict[Any, Atom] = {}

    def matches(pattern: Atom, actual: Atom) -> bool:
        if not is_variable(pattern):
            return not is_variable(actual) and _same_literal(pattern, actual)
        if pattern in found:
            return found[pattern] is actual
        if not is_variable(actual):
            return False
        wanted, equation = makers.get(pattern), view.producer(actual)
        found[pattern] = actual
        if wanted is None:
            return pattern.aval.shape == actual.aval.shape
        return (
            equation is not None
            and equation.primitive is wanted.primitive
            and equation.outvars.index(actual) == wanted.outvars.index(pattern)
            and len(equation.invars) == len(wanted.invars)
            and _same_call(equation, wanted)
            and all(map(matches, wanted.invars, equation.invars))
        )

    return found.get(template.inputs[0]) if matches(template.outputs[0], atom) else None


def _same_literal(pattern: Atom, actual: Atom) -> bool:
    same_type = pattern.aval.shape == actual.aval.shape and pattern.aval.dtype == actual.aval.dtype
    return same_type and bool(np.asarray(pattern.val) == np.asarray(actual.val))


def _same_call(left: Equation, right: Equation) -> bool:
    """Whether two equations compute the same, and have the same derivative if that is given."""
    if left.primitive.name == "custom_jvp_call":
        return _derivative(left) == _derivative(right)
    if left.params.keys() != right.params.keys():
        return False
    return all(_same(value, right.params[key]) for key, value in left.params.items())


def _derivative(equation: Equation) -> str:
    """The program of a function and of its forward derivative, made once for each function."""
    params = tuple(equation.params.values())
    key = tuple(map(id, params))
    if key not in _DERIVATIVES:
        if len(_DERIVATIVES) >= _MOST_DERIVATIVES:
            _DERIVATIVES.clear()
        # The parameters are kept with it, so that no others get their ids.
        _DERIVATIVES[key] = params, _traced_derivative(equation)
    return _DERIVATIVES[key][1]


_MOST_DERIVATIVES = 1024
_DERIVATIVES: dict[tuple[int, ...], tuple[Any, str]] = {}


def _traced_derivative(equation: Equation) -> str:
    types = [a.aval for a in equation.invars]

    def both(*arrays):
        half = len(arrays) // 2

        def run(*arrays):
            return equation.primitive.bind(
                *arrays, **equation.primitive.get_bind_params(equation.params)
            )

        return jax.jvp(run, arrays[:half], arrays[half:])

    return str(jax.make_jaxpr(both)(*types, *types))


def _same(left: Any, right: Any) -> bool:
    if isinstance(left, jex.Jaxpr | jex.ClosedJaxpr):
        return str(left) == str(right)
    return bool(left == right)
