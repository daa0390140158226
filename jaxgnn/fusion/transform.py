"""The rewriting of a whole program, with the bodies of its loops, branches and other functions."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax.extend.core as jex
import numpy as np

from jaxgnn.fusion.edges import row_gather, segment_reduction
from jaxgnn.fusion.leftovers import name_leftovers
from jaxgnn.fusion.lists import list_gather
from jaxgnn.fusion.program import Atom, Equation, Program, is_variable
from jaxgnn.fusion.rewrite import Findings, Rules, rewritten
from jaxgnn.fusion.search import Search, chosen
from jaxgnn.fusion.view import View

Known = dict[Any, np.ndarray | None]


def transformed(
    closed: Any, rules: Rules, known: Mapping[int, np.ndarray], search: Search = "matcher"
) -> tuple[Program, Findings]:
    """Rewrites the program of a closed jaxpr without side effects; returns it with the findings.

    ``known`` are the values of inputs that are known, by their position.
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

    rules: Rules
    search: Search
    findings: Findings  # to which results are added

    def of(self, program: Program, known: Known, where: str) -> Program:
        """A program, rewritten with the bodies of its loops and branches."""
        rules, original = chosen(program, self.rules, known, self.search), program
        program = rewritten(program, rules, known, self.findings, where)
        view = View(program, known)
        name_leftovers(program, original, view, self.findings, where)
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
                made, added = body.replaced(made, inner)
                constants.update(added)
        return made, constants


def _fixed_values(view: View, inner: Program, body: Body) -> Known:
    """The known values in a body of arguments that are the same in every run."""
    pairs = zip(inner.inputs, body.fixed, strict=False)
    values = ((v, view.value(atom)) for v, atom in pairs if atom is not None)
    return {variable: value for variable, value in values if value is not None}


def index_inputs(program: Program) -> set[int]:
    """The positions of the inputs that the ids of gathers of rows and of segments depend on."""
    view = View(program, {})
    positions = {v: i for i, v in enumerate(program.inputs)}
    return {positions[v] for atom in _places(view, program) for v in view.roots(atom)}


def _places(view: View, program: Program) -> list[Atom]:
    places: list[Atom] = []
    for equation in program.equations:
        reduction = segment_reduction(equation)
        if reduction is not None:
            places.append(reduction.places)
        made = equation.outvars[0] if equation.outvars else None
        gather = made and (row_gather(view, made) or list_gather(view, made))
        if gather is not None:
            places.append(gather.places)
        if equation.primitive.name in ("bcoo_dot_general", "bcsr_dot_general"):
            places += equation.invars[1:-1]
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

    name: str  # its purpose, for ``explain``
    fixed: Sequence[Atom | None]  # the operands that are its first arguments in every call
    key: str  # the parameter of the equation
    closed: Any  # its jaxpr
    index: int = 0  # among several jaxprs of the parameter

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
        yield Body(name, reads[: _constants_of_scan(params)], "jaxpr", params["jaxpr"])
    elif name == "while":
        first, second = params["cond_nconsts"], params["body_nconsts"]
        yield Body(f"{name} condition", reads[:first], "cond_jaxpr", params["cond_jaxpr"])
        fixed = reads[first : first + second]
        yield Body(f"{name} body", fixed, "body_jaxpr", params["body_jaxpr"])
    elif name == "cond":
        for i, branch in enumerate(params["branches"]):
            yield Body(f"{name} branch {i}", reads[1:], "branches", branch, i)
    elif name in ("remat", "remat2", "checkpoint"):
        yield Body(name, reads, "jaxpr", jex.ClosedJaxpr(params["jaxpr"], []))
    elif name in ("custom_jvp_call", "custom_vjp_call") and not _is_ours(params["call_jaxpr"]):
        yield Body(name.removesuffix("_call"), reads, "call_jaxpr", params["call_jaxpr"])


def _is_ours(closed: Any) -> bool:
    """Whether a function is defined in this library, or in an unknown place."""
    source = getattr(getattr(closed.jaxpr, "debug_info", None), "func_src_info", None)
    return source is None or _LIBRARY in source


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
