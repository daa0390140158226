"""The rewriting of a whole program, with the bodies of its loops and branches.

Rewriting inside of loops, branches, checkpoints and functions with their own derivatives.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax.extend.core as jex
import numpy as np

from jaxgnn.fusion.edges import row_gather, segment_reduction
from jaxgnn.fusion.program import Atom, Equation, Program, is_variable
from jaxgnn.fusion.rewrite import Findings, Rules, rewritten
from jaxgnn.fusion.search import Search, chosen
from jaxgnn.fusion.view import View

Known = dict[Any, np.ndarray | None]


def transformed(
    closed: Any, rules: Rules, known: Mapping[int, np.ndarray], search: Search = "matcher"
) -> tuple[Program, Findings]:
    """Rewrites the program of a closed jaxpr; returns it with the findings.

    Args:
      closed: the jaxpr. One with side effects is not rewritten.
      rules: the rules, and the policy that selects their rewrites.
      known: values of inputs that are known, by their position.
      search: method to choose among rewrites that exclude each other.
    """
    findings = Findings()
    program = Program.of(closed)
    if closed.effects:
        findings.untouched.append(f"it has side effects: {_names(closed.effects)}")
        return program, findings
    values: Known = {program.inputs[i]: value for i, value in known.items()}
    rewriting = _Rewriting(rules, search, findings)
    return rewriting.of(program, values, ""), findings


@dataclass(frozen=True)
class _Rewriting:
    """Rewrites a program and the bodies in it."""

    rules: Rules  # the rules, and the policy that selects their rewrites
    search: Search  # method to choose among rewrites that exclude each other
    findings: Findings  # list to which results are added

    def of(self, program: Program, known: Known, where: str) -> Program:
        """A program, rewritten with the bodies of its loops and branches."""
        rules = chosen(program, self.rules, known, self.search)
        program = rewritten(program, rules, known, self.findings, where)
        view = View(program, known)
        equations, constants = [], dict(program.constants)
        for equation in program.equations:
            made, added = self._with_new_bodies(view, equation, where)
            equations.append(made)
            constants.update(added)
        return dataclasses.replace(program, equations=tuple(equations), constants=constants)

    def _with_new_bodies(
        self, view: View, equation: Equation, where: str
    ) -> tuple[Equation, dict[Any, Any]]:
        """The equation, with its bodies rewritten if a rule applies to them."""
        constants: dict[Any, Any] = {}
        made, findings = equation, self.findings
        for body in bodies_of(equation):
            inner = Program.of(body.closed)
            if inner.effects:
                reason = f"{body.name}: side effects: {_names(inner.effects)}"
                findings.untouched.append(reason)
                continue
            place = f"{where} / {body.name}" if where else body.name
            before = len(findings.applied)
            inner = self.of(inner, _fixed_values(view, inner, body), place)
            if len(findings.applied) > before:
                made, added = body.with_program(made, inner)
                constants.update(added)
        return made, constants


def _fixed_values(view: View, inner: Program, body: Body) -> Known:
    """The known values in a body of arguments that are the same in every run."""
    known: Known = {}
    for variable, atom in zip(inner.inputs, body.fixed, strict=False):
        value = None if atom is None else view.value(atom)
        if value is not None:
            known[variable] = value
    return known


def index_inputs(program: Program) -> set[int]:
    """The positions of the inputs that the ids of gathers of rows and of segments depend on."""
    view = View(program, {})
    positions = {v: i for i, v in enumerate(program.inputs)}
    found: set[int] = set()
    for atom in _places(view, program):
        found |= {positions[v] for v in view.roots(atom)}
    return found


def _places(view: View, program: Program) -> list[Atom]:
    places: list[Atom] = []
    for equation in program.equations:
        reduction = segment_reduction(equation)
        if reduction is not None:
            places.append(reduction.places)
        gather = row_gather(view, equation.outvars[0]) if equation.outvars else None
        if gather is not None:
            places.append(gather.places)
        for body in bodies_of(equation):
            inner = Program.of(body.closed)
            of_inner = index_inputs(inner)
            places += [a for i, a in enumerate(body.fixed) if i in of_inner and is_variable(a)]
    return places


def _names(effects: Any) -> str:
    return ", ".join(sorted({_name(e) for e in effects}))


def _name(effect: Any) -> str:
    """The text of an effect, or its class if it has no text."""
    says_something = type(effect).__repr__ is not object.__repr__
    return (says_something and str(effect)) or type(effect).__name__


_LIBRARY = str(Path(__file__).parents[1])


@dataclass(frozen=True)
class Body:
    """A function that an equation calls."""

    name: str  # purpose of the body, for ``explain``
    closed: Any  # its jaxpr
    fixed: Sequence[Atom | None]  # the operands that are its first arguments in every call
    # Takes the equation and a new program; returns the equation that calls it, and constants that
    # it reads.
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
