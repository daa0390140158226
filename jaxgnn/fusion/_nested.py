"""Rewriting inside of loops, branches, checkpoints and functions with their own derivatives."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax.extend.core as jex

from jaxgnn.fusion._program import Atom, Equation, Program

_LIBRARY = str(Path(__file__).parents[1])


@dataclass(frozen=True)
class Body:
    """A function that an equation calls.

    Attributes:
      name: purpose of the body, for ``explain``.
      closed: its jaxpr.
      fixed: the operands that are its first arguments in every call.
      with_program: takes the equation and a new program; returns the equation that calls it, and
        constants that it reads.
    """

    name: str
    closed: Any
    fixed: Sequence[Atom | None]
    with_program: Callable[[Equation, Program], tuple[Equation, dict[Any, Any]]]


def bodies_of(equation: Equation) -> Iterator[Body]:
    """The bodies of a loop, a conditional, a checkpoint, or a function with its own derivative.

    Their results are those of the equation. For ``custom_jvp`` and ``custom_vjp`` it is the
    function itself; its derivative is given, and is not rewritten. Ops of this library are such
    functions, too: their bodies are not rewritten.
    """
    name, params, reads = equation.primitive.name, equation.params, list(equation.invars)
    if name == "scan":
        fixed = reads[: _constants_of_scan(params)]
        yield _body(name, params, "jaxpr", fixed)
    elif name == "while":
        first, second = params["cond_nconsts"], params["body_nconsts"]
        yield _body(f"{name} condition", params, "cond_jaxpr", reads[:first])
        yield _body(f"{name} body", params, "body_jaxpr", reads[first : first + second])
    elif name == "cond":
        for i, branch in enumerate(params["branches"]):
            yield Body(f"{name} branch {i}", branch, reads[1:], functools.partial(_with_branch, i))
    elif name in ("remat", "remat2", "checkpoint"):
        yield Body(name, jex.ClosedJaxpr(params["jaxpr"], []), reads, _with_operands)
    elif name in ("custom_jvp_call", "custom_vjp_call") and not _is_ours(params["call_jaxpr"]):
        yield _body(name.removesuffix("_call"), params, "call_jaxpr", reads)


def _is_ours(closed: Any) -> bool:
    """Whether a function is defined in this library, or in an unknown place."""
    source = getattr(getattr(closed.jaxpr, "debug_info", None), "func_src_info", None)
    return source is None or _LIBRARY in source


def _body(name: str, params: Any, key: str, fixed: Sequence[Atom]) -> Body:
    def with_program(equation: Equation, program: Program) -> tuple[Equation, dict[Any, Any]]:
        return equation.replace(params={**equation.params, key: program.closed()}), {}

    return Body(name, params[key], fixed, with_program)


def _with_branch(
    index: int, equation: Equation, program: Program
) -> tuple[Equation, dict[Any, Any]]:
    branches = list(equation.params["branches"])
    branches[index] = program.closed()
    return equation.replace(params={**equation.params, "branches": tuple(branches)}), {}


def _with_operands(equation: Equation, program: Program) -> tuple[Equation, dict[Any, Any]]:
    """Returns a checkpoint of a program whose constants become operands, as it has no constants."""
    constants = {jex.gensym()(v.aval): value for v, value in program.constants.items()}
    params = {**equation.params, "jaxpr": program.opened()}
    return equation.replace(invars=[*constants, *equation.invars], params=params), constants


def _constants_of_scan(params: Any) -> int:
    """The number of operands of a scan that are the same in all steps."""
    if "num_consts" in params:
        return params["num_consts"]
    return len(list(params["ft_in"].unpack()[0].vals))


def carries_of_scan(params: Any) -> list[int]:
    """The positions of the operands that a scan carries, in the order of its results."""
    first = _constants_of_scan(params)
    if "num_carry" in params:
        return list(range(first, first + params["num_carry"]))
    return list(range(first, first + len(list(params["ft_in"].unpack()[1].vals))))
