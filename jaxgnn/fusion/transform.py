"""The rewriting of a whole program, with the bodies of its loops, branches and other functions."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax.extend.core as jex
import numpy as np

from jaxgnn.fusion.edges import Surroundings, row_gather, segment_reduction
from jaxgnn.fusion.leftovers import name_leftovers
from jaxgnn.fusion.lists import list_gather
from jaxgnn.fusion.loops import constants_of_scan, with_more_constants
from jaxgnn.fusion.plans import Plan, plan_of, plans_in, with_plans, with_plans_moved
from jaxgnn.fusion.program import Atom, Equation, Program, is_variable
from jaxgnn.fusion.rewrite import Findings, Rules, rewritten
from jaxgnn.fusion.search import Search, chosen
from jaxgnn.fusion.view import View

Known = dict[Any, Any]


def transformed(
    closed: Any,
    rules: Rules,
    known: Mapping[int, np.ndarray],
    search: Search = "matcher",
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
        equations, constants, plans = [], dict(program.constants), list[Plan]()
        for equation in program.equations:
            made, added = self._with_new_bodies(view, equation, where, plans)
            equations.append(made)
            constants.update(added)
        made = dataclasses.replace(program, equations=tuple(equations), constants=constants)
        return with_plans(made, plans)

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
            with_moved = body.with_plans(made, inner, moved)
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


_LIBRARY = str(Path(__file__).parents[1])


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

    def with_plans(
        self, equation: Equation, program: Program, moved: Mapping[Plan, Plan]
    ) -> Equation | None:
        """The equation with another program, whose plans it reads; None if none are moved."""
        if not moved:
            return None
        body = with_plans_moved(program, moved)
        outside = [v for plan in moved.values() for v in plan.results]
        return with_more_constants(equation, body, outside)

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
