"""Rules, and the rewrites that they propose."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from jaxgnn.fusion.graphs.preparations import Plan, reading, results_of
from jaxgnn.fusion.program.program import Atom, Equation, Program, traced
from jaxgnn.fusion.program.variables import View


@dataclass(frozen=True)
class Rewrite:
    """Equal terms for the results of one equation, or for some variables that belong together."""

    equation: Equation  # its results are replaced
    inputs: Sequence[Atom]  # read by the new terms; none depends on the replaced results
    function: Callable[..., Sequence[Any]]  # from an array for each input to one for each result
    note: str  # the replaced and the new code, for ``explain``
    bytes_before: int  # bytes that the replaced equations read and write
    bytes_after: int  # bytes that the new ones read and write
    is_open: bool = False  # whether the new terms may be rewritten by other rules
    case: str = ""  # the case of the rule that is measured separately; the rule's name if empty
    is_what_runs: bool = False  # whether the op would run the same code here as the replaced code
    results: tuple[Any, ...] = ()  # the replaced variables, if not the results of ``equation``
    assumes: tuple[str, ...] = ()  # conditions on numbers, known at run time, for equality
    plans: Sequence[Plan] = ()  # of ids known at run time, whose results the function reads

    def traced(self) -> Program:
        """The program of the new terms."""
        inputs = [*self.inputs, *results_of(self.plans)]
        return traced(reading(self.function, self.plans), inputs, is_open=self.is_open)


@dataclass(frozen=True)
class Rule:
    """A method to find cheaper equal terms."""

    name: str  # its name in ``explain``
    primitives: frozenset[str]  # the primitives of the equations that it checks
    # Gets the view of a program and one of these equations; returns None or raises ``NoMatch`` if
    # the equation is not related to the rule, and raises ``Refusal``.
    propose: Callable[[View, Equation], Rewrite | None]
    is_outermost_first: bool = False  # whether later equations are checked before earlier ones
