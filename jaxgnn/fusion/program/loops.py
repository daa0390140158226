"""Loops and checkpoints whose bodies read more arrays, the same in all of their runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax.extend.core as jex
from jax import lax

from jaxgnn.fusion.program.program import Atom, Equation, Program, traced


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


_LIBRARY = str(Path(__file__).parents[2])


@dataclass(frozen=True)
class Body:
    """A function that an equation calls."""

    name: str  # its purpose, for ``explain``
    fixed: Sequence[Atom | None]  # the operands that are its first arguments in every call
    key: str  # the parameter of the equation
    closed: Any  # its jaxpr
    index: int = 0  # among several jaxprs of the parameter
    rest: Sequence[Atom] = ()  # the operands that are the arguments after these in the first call
    runs_again: bool = False  # whether one run of the equation may run it several times
    steps: int = 1  # the times that it runs, if that is known

    @property
    def operands(self) -> Sequence[Atom | None]:
        """The operands that are its arguments in the first call."""
        return [*self.fixed, *self.rest]

    def replaced(self, equation: Equation, program: Program) -> tuple[Equation, dict[Any, Any]]:
        """The equation with another program, and constants that it then reads."""
        reads, constants, old = equation.invars, {}, equation.params[self.key]
        if isinstance(old, tuple):
            new: Any = (*old[: self.index], program.closed(), *old[self.index + 1 :])
        elif old is self.closed:
            new = program.closed()
        else:  # a jaxpr without constants, which become operands
            constants = {jex.gensym()(v.aval): value for v, value in program.constants.items()}
            reads, new = [*constants, *reads], program.opened()
        return equation.replace(invars=reads, params={**equation.params, self.key: new}), constants


def bodies_of(equation: Equation) -> Iterator[Body]:
    """The bodies of a loop, a conditional, a checkpoint, or a function with its own derivative.

    Their results are those of the equation. For ``custom_jvp`` and ``custom_vjp`` it is the
    function itself; its derivative is given, and is not rewritten. Ops of this library are such
    functions, too: their bodies are not rewritten.
    """
    name, params, reads = equation.primitive.name, equation.params, list(equation.invars)
    if name == "scan":
        first = constants_of_scan(params)
        yield Body(
            *(name, reads[:first], "jaxpr", params["jaxpr"]),
            rest=reads[first:],
            runs_again=True,
            steps=params["length"],
        )
    elif name == "while":
        first, second = params["cond_nconsts"], params["body_nconsts"]
        yield Body(f"{name} condition", reads[:first], "cond_jaxpr", params["cond_jaxpr"])
        fixed = reads[first : first + second]
        rest = reads[first + second :]
        yield Body(
            f"{name} body", fixed, "body_jaxpr", params["body_jaxpr"], rest=rest, runs_again=True
        )
    elif name == "cond":
        for i, branch in enumerate(params["branches"]):
            yield Body(f"{name} branch {i}", reads[1:], "branches", branch, i)
    elif name in ("remat", "remat2", "checkpoint"):
        closed = jex.ClosedJaxpr(params["jaxpr"], [])  # a gradient runs it again
        yield Body(name, reads, "jaxpr", closed, runs_again=True)
    elif name in ("custom_jvp_call", "custom_vjp_call") and not _is_ours(params["call_jaxpr"]):
        yield Body(name.removesuffix("_call"), reads, "call_jaxpr", params["call_jaxpr"])


def _is_ours(closed: Any) -> bool:
    """Whether a function is defined in this library, or in an unknown place."""
    source = getattr(getattr(closed.jaxpr, "debug_info", None), "func_src_info", None)
    return source is None or _LIBRARY in source
