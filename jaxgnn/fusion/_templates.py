"""Recognises a function of one array by its whole program."""

from __future__ import annotations

from typing import Any

import jax
import jax.extend.core as jex
import numpy as np

from jaxgnn.fusion._graphs import digest
from jaxgnn.fusion._program import (
    Atom,
    Equation,
    Program,
    is_variable,
    key_of_param,
    reads_the_same,
)
from jaxgnn.fusion._view import View, is_plain
from jaxgnn.graph import is_concrete


def argument_of(view: View, atom: Atom, template: Program) -> Atom | None:
    """The atom at the template's input if an atom matches the template, or None.

    Args:
      view: the view of a program.
      atom: the atom that may match the template.
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


def calls_the_same(one: Equation, other: Equation) -> bool:
    """Whether two equations do the same with any operands, and return arrays of one type.

    Loops with separate bodies match if all equations of the bodies do the same.
    """
    if one is other:
        return True
    if one.primitive is not other.primitive or one.params.keys() != other.params.keys():
        return False
    types = [[str(a.aval) for a in (*e.invars, *e.outvars)] for e in (one, other)]
    if types[0] != types[1]:
        return False
    if one.primitive.name == "custom_jvp_call":  # each call of a function has its own parameters
        return _derivative(one) == _derivative(other)
    return all(_same_parameter(value, other.params[key]) for key, value in one.params.items())


def _same_parameter(one: Any, other: Any) -> bool:
    if isinstance(one, jex.Jaxpr | jex.ClosedJaxpr):
        return type(one) is type(other) and _same_body(one, other)
    if isinstance(one, tuple) and any(isinstance(v, jex.Jaxpr | jex.ClosedJaxpr) for v in one):
        return len(one) == len(other) and all(map(_same_parameter, one, other))
    keys = key_of_param(one), key_of_param(other)
    try:
        return hash(keys[0]) == hash(keys[1]) and keys[0] == keys[1]
    except TypeError:  # an array, which may be large
        return one is other


def _same_body(one: Any, other: Any) -> bool:
    """Whether two jaxprs have the same equations, in the same order, and the same constants."""
    jaxprs = [getattr(body, "jaxpr", body) for body in (one, other)]
    constants = [getattr(body, "consts", ()) for body in (one, other)]
    first, second = jaxprs
    if len(first.eqns) != len(second.eqns) or len(first.outvars) != len(second.outvars):
        return False
    if any(a is not b for a, b in zip(*constants, strict=False)):
        return False
    found: dict[Any, Any] = {}

    def defined(left: list[Any], right: list[Any]) -> bool:
        found.update(zip(left, right, strict=False))
        return [str(v.aval) for v in left] == [str(v.aval) for v in right]

    def read(left: Any, right: Any) -> bool:
        if is_variable(left):
            return found[left] is right
        return reads_the_same(left, right)

    is_same = defined(first.invars, second.invars) and defined(first.constvars, second.constvars)
    for left, right in zip(first.eqns, second.eqns, strict=True):
        is_same = is_same and not left.effects and len(left.invars) == len(right.invars)
        is_same = is_same and all(map(read, left.invars, right.invars))
        is_same = is_same and calls_the_same(left, right) and defined(left.outvars, right.outvars)
        if not is_same:
            return False
    return is_same and all(map(read, first.outvars, second.outvars))


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


def _derivative(equation: Equation) -> tuple[Any, ...]:
    """The program of a function and of its forward derivative, traced once for each function.

    Its text does not include the constants that it reads, so their keys are added.
    """
    params = tuple(equation.params.values())
    key = tuple(map(id, params))
    if key not in _DERIVATIVES:
        if len(_DERIVATIVES) >= _MOST_DERIVATIVES:
            _DERIVATIVES.clear()
        # The parameters are kept with it, so that no other objects get their ids.
        _DERIVATIVES[key] = params, _traced_derivative(equation)
    return _DERIVATIVES[key][1]


_MOST_DERIVATIVES = 1024
_DERIVATIVES: dict[tuple[int, ...], tuple[Any, tuple[Any, ...]]] = {}


def _traced_derivative(equation: Equation) -> tuple[Any, ...]:
    types = [a.aval for a in equation.invars]

    def both(*arrays):
        half = len(arrays) // 2

        def run(*arrays):
            return equation.primitive.bind(
                *arrays, **equation.primitive.get_bind_params(equation.params)
            )

        return jax.jvp(run, arrays[:half], arrays[half:])

    made = Program.of(jax.make_jaxpr(both)(*types, *types))
    values = made.constants.values()
    keys = (digest(v) if is_concrete(v) and is_plain(v) else id(v) for v in values)
    return str(made.closed()), *keys


def _same(left: Any, right: Any) -> bool:
    if isinstance(left, jex.Jaxpr | jex.ClosedJaxpr):
        return str(left) == str(right)
    return bool(left == right)
