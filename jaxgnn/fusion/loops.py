"""Loops and checkpoints whose bodies read more arrays, the same in all of their runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.extend.core as jex
from jax import lax

from jaxgnn.fusion.program import Atom, Equation, Program, traced


def constants_of_scan(params: Any) -> int:
    """The number of operands of a scan that are the same in all steps."""
    if "num_consts" in params:
        return params["num_consts"]
    return len(list(params["ft_in"].unpack()[0].vals))


def carries_of_scan(params: Any) -> list[int]:
    """The positions of the operands that a scan carries, in the order of its results."""
    first = constants_of_scan(params)
    if "num_carry" in params:
        return list(range(first, first + params["num_carry"]))
    return list(range(first, first + len(list(params["ft_in"].unpack()[1].vals))))


def with_more_constants(
    equation: Equation, body: Program, added: Sequence[Atom]
) -> Equation | None:
    """A loop that reads more arrays, or None where it can not be built again.

    Args:
      equation: a ``scan``, a ``while`` or a checkpoint.
      body: its new body, with an input for each added array before those of the old one.
      added: the arrays, the same in all steps.
    """
    if equation.primitive.name in ("remat", "remat2", "checkpoint"):
        if body.constants:
            return None
        params = {**equation.params, "jaxpr": body.opened()}
        return equation.replace(invars=[*added, *equation.invars], params=params)
    build = {"scan": _scan, "while": _while}.get(equation.primitive.name)
    if build is None:
        return None
    made = traced(build(equation, body, len(added)), [*added, *equation.invars], is_open=True)
    if len(made.equations) != 1 or made.constants:
        return None
    (loop,) = made.equations
    if list(made.outputs) != list(loop.outvars):
        return None
    return loop.replace(outvars=equation.outvars)


def _scan(equation: Equation, body: Program, count: int):
    params = equation.params
    first = count + constants_of_scan(params)
    last = first + len(carries_of_scan(params))
    names = "length", "reverse", "unroll", "_split_transpose"
    options = {name: params[name] for name in names if name in params}
    run = jex.jaxpr_as_fun(body.closed())

    def function(*operands: Any) -> list[Any]:
        def step(carry, x):
            made = run(*operands[:first], *carry, *x)
            return tuple(made[: len(carry)]), tuple(made[len(carry) :])

        carry, stacked = lax.scan(step, operands[first:last], operands[last:], **options)
        return [*carry, *stacked]

    return function


def _while(equation: Equation, body: Program, count: int):
    params = equation.params
    of_condition = count + params["cond_nconsts"]
    first = of_condition + params["body_nconsts"]
    condition = jex.jaxpr_as_fun(params["cond_jaxpr"])
    run = jex.jaxpr_as_fun(body.closed())

    def function(*operands: Any) -> list[Any]:
        added, own = operands[:count], operands[of_condition:first]

        def goes_on(carry):
            return condition(*operands[count:of_condition], *carry)[0]

        def step(carry):
            return tuple(run(*added, *own, *carry))

        return list(lax.while_loop(goes_on, step, operands[first:]))

    return function
