"""Rules, and the rewrites that they propose."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from jaxgnn.fusion.graphs.preparations import Preparation, reading, results_of
from jaxgnn.fusion.program.program import Atom, Equation, Program, traced
from jaxgnn.fusion.program.variables import View


@dataclass(frozen=True)
class Rewrite:
    """Equal terms for the results of one equation, or of a group of variables."""

    equation: Equation  # Equation whose results are replaced.
    inputs: Sequence[Atom]  # Atoms that the new terms read, independent of the results.
    function: Callable[..., Sequence[Any]]  # Computes the results from an array for each input.
    note: str  # Replaced and new code in words, for ``explain``.
    bytes_before: int  # Bytes that the replaced equations read and write.
    bytes_after: int  # Bytes that the new equations read and write.
    is_open: bool = False  # True if other rules may rewrite the new terms.
    case: str = ""  # Measured case of the policy; the rule's name if empty.
    is_what_runs: bool = False  # True if the op would run the replaced code here.
    results: tuple[Any, ...] = ()  # Replaced variables, if not the results of ``equation``.
    assumes: tuple[str, ...] = ()  # Conditions on the numbers under which results are equal.
    preparations: Sequence[Preparation] = ()  # Preparations whose results the function reads.

    def traced(self) -> Program:
        """Returns the program of the new terms."""
        inputs = [*self.inputs, *results_of(self.preparations)]
        return traced(reading(self.function, self.preparations), inputs, is_open=self.is_open)


@dataclass(frozen=True)
class Rule:
    """Method that finds cheaper equal terms."""

    name: str  # Name of the rule in ``explain``.
    primitives: frozenset[str]  # Primitives of the equations that the rule checks.
    # Gets the view of a program and one of these equations; returns None or raises ``NoMatch`` if
    # the equation is not related to the rule, and raises ``Refusal``.
    propose: Callable[[View, Equation], Rewrite | None]
    is_outermost_first: bool = False  # True if later equations are checked first.
