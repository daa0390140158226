"""The parts of a traced program, those of this library's ops included."""

from collections.abc import Iterator
from typing import Any

import jax
import jax.extend.core as jex


def programs_in(equation: Any) -> Iterator[Any]:
    """The bodies of an equation; for a call of an op, its program."""
    for value in jax.tree.leaves(equation.params, is_leaf=_is_program):
        if _is_program(value):
            yield getattr(value, "jaxpr", value)
    if equation.primitive.name == "jaxgnn_call":
        yield equation.params["call"].program([v.aval for v in equation.invars]).jaxpr


def equations_of(jaxpr: Any) -> Iterator[Any]:
    """The equations of a program and of its parts."""
    for equation in jaxpr.eqns:
        yield equation
        for inner in programs_in(equation):
            yield from equations_of(inner)


def _is_program(value: Any) -> bool:
    return isinstance(value, jex.Jaxpr | jex.ClosedJaxpr)
