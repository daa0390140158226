"""The rewriting of a whole program, with the bodies of its loops, branches and other functions."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from jaxgnn.fusion.graphs.preparations import Plan, plan_of, plans_in, with_plans, with_plans_moved
from jaxgnn.fusion.program.loops import Body, bodies_of, with_more_constants
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
    known: Mapping[int, np.ndarray],
    graphs: Collection[int] = (),
) -> tuple[Program, Findings]:
    """Rewrites the program of a closed jaxpr without side effects; returns it with the findings.

    ``known`` are the values of inputs that are known, by their position, and ``graphs`` the
    positions of ids that the caller wants to be sorted when the program runs.
    """
    findings = Findings()
    program = Program.of(closed)
    if closed.effects:
        findings.untouched.append(f"it has side effects: {_names(closed.effects)}")
        return program, findings
    values: Known = {program.inputs[i]: value for i, value in known.items()}
    values[Surroundings] = Surroundings(frozenset(program.inputs[i] for i in graphs))
    rewriting = _Rewriting(rules, findings)
    return rewriting.of(program, values, ""), findings


@dataclass(frozen=True)
class _Rewriting:
    """Rewrites a program and the bodies in it."""

    rules: Rules
    findings: Findings  # to which results are added

    def of(self, program: Program, known: Known, where: str) -> Program:
        """A program, rewritten with the bodies of its loops and branches."""
        original = program
        program = rewritten(program, self.rules, known, self.findings, where)
        view = View(program, known)
        self._name_irregular_code(program, original, view, where)
        equations, constants, plans = [], dict(program.constants), list[Plan]()
        for equation in program.equations:
            made, added = self._with_new_bodies(view, equation, where, plans)
            equations.append(made)
            constants.update(added)
        made = dataclasses.replace(program, equations=tuple(equations), constants=constants)
        return with_plans(made, plans)

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

    def _with_new_bodies(
        self, view: View, equation: Equation, where: str, plans: list[Plan]
    ) -> tuple[Equation, dict[Any, Any]]:
        """The equation, with its bodies rewritten if a rule applies to them.

        To ``plans`` are added those that the program has to compute for the equation.
        """
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
            known = _fixed_values(view, inner, body)
            inner = self.of(inner, known, place)
            if len(findings.applied) == before:
                continue
            moved = _moved_out(view, View(inner, known), body)
            with_moved = _reading_moved(made, inner, moved)
            if with_moved is not None:
                made = with_moved
                plans += moved.values()
            else:
                made, added = body.replaced(made, inner)
                constants.update(added)
        return made, constants


def _moved_out(view: View, inner: View, body: Body) -> dict[Plan, Plan]:
    """The plans of a body that depend on nothing that changes, and the same outside of it."""
    pairs = zip(inner.program.inputs, body.fixed, strict=False)
    outside = {v: a for v, a in pairs if a is not None and is_variable(a)}
    moved: dict[Plan, Plan] = {}
    for plan in plans_in(inner) if body.runs_again else ():
        if all(v in outside for v in plan.inputs):
            after = [moved[p] for p in plan.after if p in moved]
            inputs = [outside[v] for v in plan.inputs]
            made = plan_of(view, plan.question, plan.function, inputs, after, plan.cost)
            moved[plan] = made
            outside |= zip(plan.results, made.results, strict=True)
    return moved


def _reading_moved(
    equation: Equation, body: Program, moved: Mapping[Plan, Plan]
) -> Equation | None:
    """The equation with a new body, which reads plans from outside; None if none are moved."""
    if not moved:
        return None
    outside = [v for plan in moved.values() for v in plan.results]
    return with_more_constants(equation, with_plans_moved(body, moved), outside)


def _fixed_values(view: View, inner: Program, body: Body) -> Known:
    """The known values in a body of arguments that are the same in every run."""
    pairs = zip(inner.inputs, body.fixed, strict=False)
    values = ((v, view.value(atom)) for v, atom in pairs if atom is not None)
    known: Known = {variable: value for variable, value in values if value is not None}
    known[Surroundings] = _surroundings(view, inner, body)
    return known


def _surroundings(view: View, inner: Program, body: Body) -> Surroundings:
    own = view.known.get(Surroundings, Surroundings())
    outside = dict(zip(inner.inputs, body.operands, strict=False))
    variables = {v: a for v, a in outside.items() if a is not None and is_variable(a)}
    named = frozenset(v for v, a in variables.items() if view.roots(a) & own.named)
    return Surroundings(named, frozenset(inner.inputs[: len(body.fixed)]), body.steps)


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
