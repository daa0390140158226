"""Rewriting of a whole program, with the bodies of its loops, branches and functions."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from jaxgnn.fusion.graphs.preparations import (
    Preparation,
    insert_preparations,
    preparations_in,
    prepare,
    take_out_preparations,
)
from jaxgnn.fusion.program.loops import Body, add_constants, bodies_of
from jaxgnn.fusion.program.program import Atom, Equation, Program, is_variable, place_of
from jaxgnn.fusion.program.variables import View
from jaxgnn.fusion.recognise.dense_lists import list_gather
from jaxgnn.fusion.recognise.edge_lists import Surroundings
from jaxgnn.fusion.recognise.gathers import row_gather, segment_reduction
from jaxgnn.fusion.recognise.irregular_code import irregular_code
from jaxgnn.fusion.rewriting import Findings, Refused, Rules, rewritten

Known = dict[Any, Any]


def transformed(
    closed: Any,
    rules: Rules,
    values_by_position: Mapping[int, np.ndarray],
    graphs: Collection[int] = (),
) -> tuple[Program, Findings]:
    """Rewrites the program of a closed jaxpr without side effects; returns it with the findings.

    ``known`` are the values of inputs that are known, by their position, and ``graphs`` the
    positions of ids that the caller wants to be sorted when the program runs.
    """
    findings = Findings()
    program = Program.from_jaxpr(closed)
    if closed.effects:
        findings.untouched.append(f"it has side effects: {_names(closed.effects)}")
        return program, findings
    values: Known = {program.inputs[i]: value for i, value in values_by_position.items()}
    values[Surroundings] = Surroundings(frozenset(program.inputs[i] for i in graphs))
    rewriting = _Rewriting(rules, findings)
    return rewriting.rewrite(program, values, ""), findings


@dataclass(frozen=True)
class _Rewriting:
    """Rewrites a program and the bodies in it."""

    rules: Rules
    findings: Findings  # Findings, to which results are added.

    def rewrite(self, program: Program, values: Known, where: str) -> Program:
        """Rewrites a program and the bodies of its loops and branches."""
        original = program
        program = rewritten(program, self.rules, values, self.findings, where)
        view = View(program, values)
        self._name_irregular_code(program, original, view, where)
        equations, constants, preparations = [], dict(program.constants), list[Preparation]()
        for equation in program.equations:
            rewritten_equation, added = self._rewrite_bodies(view, equation, where, preparations)
            equations.append(rewritten_equation)
            constants.update(added)
        changed = dataclasses.replace(program, equations=tuple(equations), constants=constants)
        return insert_preparations(changed, preparations)

    def _name_irregular_code(
        self, program: Program, original: Program, view: View, where: str
    ) -> None:
        """Adds a refusal for irregular code at places that no rule has refused."""
        refused = self.findings.refused
        named = {one.where for one in refused}
        reasons: dict[tuple[str, str], None] = {}
        for equation, reason in irregular_code(program, original, view):
            place = place_of(equation, where)
            if place not in named:
                reasons[place, reason] = None
        refused += [Refused("rewritten", place, reason) for place, reason in reasons]

    def _rewrite_bodies(
        self, view: View, equation: Equation, where: str, preparations: list[Preparation]
    ) -> tuple[Equation, dict[Any, Any]]:
        """Rewrites the bodies of an equation, and returns it with new constants.

        Preparations that the program has to compute for it are added to ``preparations``.
        """
        constants: dict[Any, Any] = {}
        rebuilt, findings = equation, self.findings
        for body in bodies_of(equation):
            inner = Program.from_jaxpr(body.closed)
            if inner.effects:
                reason = f"{body.name}: side effects: {_names(inner.effects)}"
                findings.untouched.append(reason)
                continue
            place = f"{where} / {body.name}" if where else body.name
            before = len(findings.applied)
            values = _fixed_values(view, inner, body)
            inner = self.rewrite(inner, values, place)
            if len(findings.applied) == before:
                continue
            moved = _moved_out(view, View(inner, values), body)
            with_moved = _reading_moved(rebuilt, inner, moved)
            if with_moved is not None:
                rebuilt = with_moved
                preparations += moved.values()
            else:
                rebuilt, added = body.replaced(rebuilt, inner)
                constants.update(added)
        return rebuilt, constants


def _moved_out(view: View, inner: View, body: Body) -> dict[Preparation, Preparation]:
    """Maps preparations of a body with fixed inputs to equal ones outside of it."""
    pairs = zip(inner.program.inputs, body.fixed, strict=False)
    outside = {v: a for v, a in pairs if a is not None and is_variable(a)}
    moved: dict[Preparation, Preparation] = {}
    for preparation in preparations_in(inner) if body.runs_again else ():
        if all(v in outside for v in preparation.inputs):
            after = [moved[p] for p in preparation.after if p in moved]
            inputs = [outside[v] for v in preparation.inputs]
            outer = prepare(
                view, preparation.question, preparation.function, inputs, after, preparation.cost
            )
            moved[preparation] = outer
            outside |= zip(preparation.results, outer.results, strict=True)
    return moved


def _reading_moved(
    equation: Equation, body: Program, moved: Mapping[Preparation, Preparation]
) -> Equation | None:
    """Rebuilds an equation whose body reads outer preparations; None if none are moved."""
    if not moved:
        return None
    outside = [v for preparation in moved.values() for v in preparation.results]
    return add_constants(equation, take_out_preparations(body, moved), outside)


def _fixed_values(view: View, inner: Program, body: Body) -> Known:
    """Returns the known values of the fixed arguments of a body."""
    pairs = zip(inner.inputs, body.fixed, strict=False)
    values = ((v, view.value(atom)) for v, atom in pairs if atom is not None)
    values_in_body: Known = {variable: value for variable, value in values if value is not None}
    values_in_body[Surroundings] = _surroundings(view, inner, body)
    return values_in_body


def _surroundings(view: View, inner: Program, body: Body) -> Surroundings:
    around = view.known_values.get(Surroundings, Surroundings())
    outside = dict(zip(inner.inputs, body.operands, strict=False))
    variables = {v: a for v, a in outside.items() if a is not None and is_variable(a)}
    named = frozenset(v for v, a in variables.items() if view.roots(a) & around.named)
    return Surroundings(named, frozenset(inner.inputs[: len(body.fixed)]), body.steps)


def index_inputs(program: Program) -> set[int]:
    """Returns the positions of the inputs that ids of gathers and segments depend on."""
    view = View(program, {})
    positions = {v: i for i, v in enumerate(program.inputs)}
    return {positions[v] for atom in _id_atoms(view, program) for v in view.roots(atom)}


def _id_atoms(view: View, program: Program) -> list[Atom]:
    ids: list[Atom] = []
    for equation in program.equations:
        reduction = segment_reduction(equation)
        if reduction is not None:
            ids.append(reduction.ids)
        result = equation.outvars[0] if equation.outvars else None
        gather = result and (row_gather(view, result) or list_gather(view, result))
        if gather is not None:
            ids.append(gather.ids)
        if equation.primitive.name in ("bcoo_dot_general", "bcsr_dot_general"):
            ids += equation.invars[1:-1]
        for body in bodies_of(equation):
            inner = Program.from_jaxpr(body.closed)
            of_inner = index_inputs(inner)
            ids += [a for i, a in enumerate(body.fixed) if i in of_inner and is_variable(a)]
    return ids


def _names(effects: Any) -> str:
    return ", ".join(sorted({_name(e) for e in effects}))


def _name(effect: Any) -> str:
    """Returns the text of an effect, or its class if it has no text."""
    says_something = type(effect).__repr__ is not object.__repr__
    return (says_something and str(effect)) or type(effect).__name__
