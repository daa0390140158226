"""Preparations: arrays that a program computes from ids that are known only when it runs.

A preparation is one call in the program, such as sorting a list of edges. All rewrites of all
layers share its results. A rewrite names the preparations that its function reads, and the loop of
rewrites adds the calls that the program lacks.
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
    """Work of a preparation of a list of edges, and the bytes that profit from it."""

    kind: Literal["sort", "mark"]  # "sort" orders the edges; "mark" marks the rows that they read.
    edges: int
    # Bytes that reductions over these edges, or gathers by them, read of an edge, summed over the
    # steps of a loop; infinite if the caller asks for it.
    bytes_per_edge: float


@dataclass(frozen=True, eq=False)
class Preparation:
    """Arrays that one call computes from ids, and from the results of other preparations."""

    question: tuple[Any, ...]  # Function and static options; equal questions are one preparation.
    function: Function
    inputs: tuple[Atom, ...]
    program: Program  # Program of the one call.
    after: tuple[Preparation, ...] = ()  # Preparations whose results are inputs of this one.
    cost: Work | None = None  # None if the call takes negligible time.

    @property
    def results(self) -> tuple[Any, ...]:
        """Variables of the results."""
        return self.program.outputs

    @property
    def arrays(self) -> Sequence[Any]:
        """Traced results, available while the function of a rewrite is traced."""
        return _BOUND.get()[self]


def prepare(
    view: View,
    question: tuple[Any, ...],
    function: Function,
    inputs: Sequence[Atom],
    after: Sequence[Preparation] = (),
    cost: Work | None = None,
) -> Preparation:
    """Returns the preparation of some ids, one for each question about them.

    Args:
      view: the view of the program.
      question: names the function and its static options.
      function: takes an array for each input, and returns a list of arrays.
      inputs: variables of the program, or results of other preparations.
      after: these preparations.
      cost: what it does.
    """

    def build() -> Preparation:
        program = traced(function, inputs, is_open=False)
        return Preparation(question, function, tuple(inputs), program, tuple(after), cost)

    return view.derived(("plan", question, *inputs), build)


def preparations_in(view: View) -> list[Preparation]:
    """Lists the preparations that a program computes, each after those that it reads."""
    preparations = {
        p.results[0]: p for p in view.known_values.values() if isinstance(p, Preparation)
    }
    first = (e.outvars[0] for e in view.program.equations if e.outvars)
    return [preparations[v] for v in first if v in preparations]


def ordered(preparations: Iterable[Preparation]) -> list[Preparation]:
    """Lists preparations and all that they read, each after those that it reads."""
    unique: dict[Preparation, None] = {}
    for preparation in preparations:
        unique |= dict.fromkeys((*ordered(preparation.after), preparation))
    return list(unique)


def insert_preparations(program: Program, preparations: Iterable[Preparation]) -> Program:
    """Adds the missing calls of preparations to a program, each as early as possible."""
    equations = list(program.equations)
    constants = dict(program.constants)
    for preparation in ordered(preparations):
        positions = {v: i for i, e in enumerate(equations) for v in e.outvars}
        if preparation.results[0] in positions:
            continue
        start = (
            max((positions.get(v, -1) for v in preparation.inputs if is_variable(v)), default=-1)
            + 1
        )
        equations[start:start] = preparation.program.equations
        constants.update(preparation.program.constants)
    return dataclasses.replace(program, equations=tuple(equations), constants=constants)


def take_out_preparations(program: Program, preparations: Iterable[Preparation]) -> Program:
    """Removes calls of preparations; their results become the first inputs of the program."""
    preparations = list(preparations)
    results = tuple(v for preparation in preparations for v in preparation.results)
    calls = {preparation.results[0] for preparation in preparations}
    kept = tuple(e for e in program.equations if not (e.outvars and e.outvars[0] in calls))
    return dataclasses.replace(program, inputs=(*results, *program.inputs), equations=kept)


def reading(function: Function, preparations: Sequence[Preparation]) -> Function:
    """Returns a function that takes the results of preparations after its other arrays."""
    preparations = ordered(preparations)
    counts = [len(preparation.results) for preparation in preparations]

    def run(*arrays: Any) -> Sequence[Any]:
        count = len(arrays) - sum(counts)
        rest = iter(arrays[count:])
        bound = {
            p: [next(rest) for _ in range(n)] for p, n in zip(preparations, counts, strict=True)
        }
        with _bound_to(bound):
            return function(*arrays[:count])

    return run


def results_of(preparations: Sequence[Preparation]) -> list[Any]:
    """Lists the variables of the results of preparations, in the order of ``reading``."""
    return [v for preparation in ordered(preparations) for v in preparation.results]


_BOUND: ContextVar[Mapping[Preparation, Sequence[Any]]] = ContextVar("results of preparations")


@contextmanager
def _bound_to(arrays: Mapping[Preparation, Sequence[Any]]) -> Iterator[None]:
    token = _BOUND.set(arrays)
    try:
        yield
    finally:
        _BOUND.reset(token)
