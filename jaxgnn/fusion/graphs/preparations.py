"""Plans: arrays that a program computes from ids that are known only when it runs.

A plan is one call in the program, such as the order of a list of edges. It is made once for all
rewrites that read its results, of all layers. A rewrite names the plans that its function reads;
the loop of rewrites adds the calls that the program does not have yet.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Literal

from jaxgnn.fusion.program.program import Atom, Program, is_variable, traced
from jaxgnn.fusion.program.variables import View

Function = Callable[..., Sequence[Any]]


@dataclass(frozen=True)
class Work:
    """The work of a plan on a list of edges, and the bytes that gain from it."""

    kind: Literal["sort", "mark"]  # whether it sorts them, or marks the rows that they read
    edges: int
    # Bytes that the reductions over these edges, or gathers by them, read of an edge, those of all
    # steps of a loop; infinite where the caller wants the plan.
    bytes_per_edge: float


@dataclass(frozen=True, eq=False)
class Plan:
    """Arrays that one call computes from ids, and from the results of other plans."""

    question: tuple[Any, ...]  # the function and its static options, by which plans are equal
    function: Function
    inputs: tuple[Atom, ...]
    program: Program  # the call
    after: tuple[Plan, ...] = ()  # the plans whose results are inputs
    cost: Work | None = None  # None if it takes no time worth counting

    @property
    def results(self) -> tuple[Any, ...]:
        """The variables of the results."""
        return self.program.outputs

    @property
    def arrays(self) -> Sequence[Any]:
        """The results, while the function of a rewrite is traced."""
        return _BOUND.get()[self]


def plan_of(
    view: View,
    question: tuple[Any, ...],
    function: Function,
    inputs: Sequence[Atom],
    after: Sequence[Plan] = (),
    cost: Work | None = None,
) -> Plan:
    """The plan that a function makes of some ids; the same one for the same question about them.

    Args:
      view: the view of the program.
      question: names the function and its static options.
      function: takes an array for each input, and returns a list of arrays.
      inputs: variables of the program, or results of other plans.
      after: these plans.
      cost: what it does.
    """

    def made() -> Plan:
        program = traced(function, inputs, is_open=False)
        return Plan(question, function, tuple(inputs), program, tuple(after), cost)

    return view.derived(("plan", question, *inputs), made)


def plans_in(view: View) -> list[Plan]:
    """The plans that a program computes, each after those that it reads."""
    plans = {p.results[0]: p for p in view.known.values() if isinstance(p, Plan)}
    first = (e.outvars[0] for e in view.program.equations if e.outvars)
    return [plans[v] for v in first if v in plans]


def in_order(plans: Iterable[Plan]) -> list[Plan]:
    """Plans with all that they read, each after those."""
    found: dict[Plan, None] = {}
    for plan in plans:
        found |= dict.fromkeys((*in_order(plan.after), plan))
    return list(found)


def with_plans(program: Program, plans: Iterable[Plan]) -> Program:
    """The program with the calls of plans that it lacks, each as early as possible."""
    equations = list(program.equations)
    constants = dict(program.constants)
    for plan in in_order(plans):
        places = {v: i for i, e in enumerate(equations) for v in e.outvars}
        if plan.results[0] in places:
            continue
        at = max((places.get(v, -1) for v in plan.inputs if is_variable(v)), default=-1) + 1
        equations[at:at] = plan.program.equations
        constants.update(plan.program.constants)
    return dataclasses.replace(program, equations=tuple(equations), constants=constants)


def with_plans_moved(program: Program, plans: Iterable[Plan]) -> Program:
    """The program without the calls of plans, whose results become its first inputs."""
    plans = list(plans)
    results = tuple(v for plan in plans for v in plan.results)
    calls = {plan.results[0] for plan in plans}
    kept = tuple(e for e in program.equations if not (e.outvars and e.outvars[0] in calls))
    return dataclasses.replace(program, inputs=(*results, *program.inputs), equations=kept)


def reading(function: Function, plans: Sequence[Plan]) -> Function:
    """The function, which takes the results of plans after its own arrays."""
    plans = in_order(plans)
    counts = [len(plan.results) for plan in plans]

    def run(*arrays: Any) -> Sequence[Any]:
        own = len(arrays) - sum(counts)
        rest = iter(arrays[own:])
        bound = {p: [next(rest) for _ in range(n)] for p, n in zip(plans, counts, strict=True)}
        with _bound_to(bound):
            return function(*arrays[:own])

    return run


def results_of(plans: Sequence[Plan]) -> list[Any]:
    """The variables that ``reading`` takes the arrays of."""
    return [v for plan in in_order(plans) for v in plan.results]


_BOUND: ContextVar[Mapping[Plan, Sequence[Any]]] = ContextVar("results of plans")


@contextmanager
def _bound_to(arrays: Mapping[Plan, Sequence[Any]]) -> Iterator[None]:
    token = _BOUND.set(arrays)
    try:
        yield
    finally:
        _BOUND.reset(token)
