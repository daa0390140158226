"""The rewriting of a whole program, with the bodies of its loops and branches."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from jaxgnn.fusion._edges import row_gather, segment_reduction
from jaxgnn.fusion._nested import Body, bodies_of
from jaxgnn.fusion._program import Atom, Equation, Program, is_variable
from jaxgnn.fusion._rewrite import Findings, Rules, rewritten
from jaxgnn.fusion._search import Search, chosen
from jaxgnn.fusion._view import View

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
    """Rewrites a program and the bodies in it.

    Attributes:
      rules: the rules, and the policy that selects their rewrites.
      search: method to choose among rewrites that exclude each other.
      findings: list to which results are added.
    """

    rules: Rules
    search: Search
    findings: Findings

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
