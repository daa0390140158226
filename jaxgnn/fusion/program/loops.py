"""Bodies of loops, branches and checkpoints, and loops that read more arrays."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax.extend.core as jex
from jax import lax

from jaxgnn.fusion.program.program import Atom, Equation, Program, traced


def constants_of_scan(params: Any) -> int:
    """Returns the number of operands of a scan that are the same in all steps."""
    if "num_consts" in params:
        return params["num_consts"]
    return len(list(params["ft_in"].unpack()[0].vals))


def carries_of_scan(params: Any) -> list[int]:
    """Returns the positions of the operands that a scan carries, in the order of its results."""
    first = constants_of_scan(params)
    if "num_carry" in params:
        return list(range(first, first + params["num_carry"]))
    return list(range(first, first + len(list(params["ft_in"].unpack()[1].vals))))


def add_constants(equation: Equation, body: Program, added: Sequence[Atom]) -> Equation | None:
    """Rebuilds a loop so that its body reads more arrays; returns None if that fails.

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
    rebuilt = traced(build(equation, body, len(added)), [*added, *equation.invars], is_open=True)
    if len(rebuilt.equations) != 1 or rebuilt.constants:
        return None
    (loop,) = rebuilt.equations
    if list(rebuilt.outputs) != list(loop.outvars):
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
            results = run(*operands[:first], *carry, *x)
            return tuple(results[: len(carry)]), tuple(results[len(carry) :])

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
        added, constants = operands[:count], operands[of_condition:first]

        def goes_on(carry):
            return condition(*operands[count:of_condition], *carry)[0]

        def step(carry):
            return tuple(run(*added, *constants, *carry))

        return list(lax.while_loop(goes_on, step, operands[first:]))

    return function


_LIBRARY = str(Path(__file__).parents[2])


@dataclass(frozen=True)
class Body:
    """Function that an equation calls."""

    name: str  # Name of the body in ``explain``.
    fixed: Sequence[Atom | None]  # First arguments, the same in every run.
    key: str  # Parameter of the equation that holds the body.
    closed: Any  # Closed jaxpr of the body.
    index: int = 0  # Position among several jaxprs of the parameter.
    rest: Sequence[Atom] = ()  # Later arguments of the first run.
    runs_again: bool = False  # True if the equation may run the body several times.
    steps: int = 1  # Number of runs, if known; else 1.

    @property
    def operands(self) -> Sequence[Atom | None]:
        """Operands that are the arguments of the first run."""
        return [*self.fixed, *self.rest]

    def replaced(self, equation: Equation, program: Program) -> tuple[Equation, dict[Any, Any]]:
        """Puts another program in place of the body; returns the equation and its constants."""
        reads, constants, old = equation.invars, {}, equation.params[self.key]
        if isinstance(old, tuple):
            new: Any = (*old[: self.index], program.closed(), *old[self.index + 1 :])
        elif old is self.closed:
            new = program.closed()
        else:  # This jaxpr has no constants: they become operands.
            constants = {jex.gensym()(v.aval): value for v, value in program.constants.items()}
            reads, new = [*constants, *reads], program.opened()
        return equation.replace(invars=reads, params={**equation.params, self.key: new}), constants


def bodies_of(equation: Equation) -> Iterator[Body]:
    """Yields the bodies of a loop, a conditional, a checkpoint, or a custom derivative.

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
        closed = jex.ClosedJaxpr(params["jaxpr"], [])  # A gradient runs the body again.
        yield Body(name, reads, "jaxpr", closed, runs_again=True)
    elif name in ("custom_jvp_call", "custom_vjp_call") and not _is_ours(params["call_jaxpr"]):
        yield Body(name.removesuffix("_call"), reads, "call_jaxpr", params["call_jaxpr"])


def _is_ours(closed: Any) -> bool:
    """Returns whether this library, or an unknown file, defines a function."""
    source = getattr(getattr(closed.jaxpr, "debug_info", None), "func_src_info", None)
    return source is None or _LIBRARY in source
