"""Rules, the policy for their rewrites, and the loop that applies them until none proposes one."""

from __future__ import annotations

from collections.abc import MutableMapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from jaxgnn.fusion.graphs.preparations import insert_preparations, ordered
from jaxgnn.fusion.policy import Policy
from jaxgnn.fusion.program.matching import NoMatch, Refusal
from jaxgnn.fusion.program.program import Atom, Equation, Program, place_of
from jaxgnn.fusion.program.variables import View
from jaxgnn.fusion.rules.rule import Rewrite, Rule


@dataclass(frozen=True)
class Applied:
    """Record of an applied rule."""

    rule: str
    where: str
    note: str
    bytes_before: int
    bytes_after: int
    assumes: tuple[str, ...] = ()
    in_step: str = ""  # Computation on the ids in each call, in words.


@dataclass(frozen=True)
class Refused:
    """Record of a rule that almost applies, with the reason why it does not."""

    rule: str
    where: str
    reason: str


@dataclass
class Findings:
    """Rewrites and refusals of rules in a program, in their order."""

    applied: list[Applied] = field(default_factory=list)
    refused: list[Refused] = field(default_factory=list)
    untouched: list[str] = field(default_factory=list)


class RuleError(Exception):
    """Raised for an exception in a rule, which is a fault of the rule."""

    def __init__(self, rule: str, error: Exception):
        super().__init__(
            f"the rule {rule} failed with {type(error).__name__}: {error}; please report it"
        )


@dataclass(frozen=True)
class Rules:
    """Rules in the order in which they are tried, and the policy for their rewrites."""

    all: Sequence[Rule]
    policy: Policy

    def propose(self, rule: Rule, view: View, equation: Equation) -> Rewrite | str | None:
        """Returns the proposal of a rule for an equation, or the reason of a refusal.

        Raises:
          RuleError: if the rule raises another exception.
        """
        if equation.primitive.name not in rule.primitives:
            return None
        try:
            proposal = rule.propose(view, equation)
        except NoMatch:
            return None
        except Refusal as refusal:
            return str(refusal)
        except Exception as error:
            raise RuleError(rule.name, error) from error
        return proposal and (self.policy.refuses(proposal, proposal.case or rule.name) or proposal)


def rewritten(
    program: Program,
    rules: Rules,
    values: MutableMapping[Any, np.ndarray | None],
    findings: Findings,
    where: str = "",
) -> Program:
    """Applies every rule wherever possible, in the order of the rules.

    Each rule makes the program smaller by its own measure, so the loop ends; the limit is for wrong
    rules. Results are added to ``findings``, with the place ``where`` of the program in the
    function. ``known`` has values of variables that are known in advance.
    """
    limit = 100 + 10 * len(program.equations)
    for rule in rules.all:
        one = _Rewriting(rule, rules, View(program, values), findings, where, limit)
        has_changed = True
        while has_changed:  # A rewrite may leave a result that is read once, a new case.
            has_changed, asked = False, set()
            while one.rewrites_the_next(asked):
                has_changed = True
        findings.refused += [Refused(rule.name, place, why) for place, why in one.refusals.items()]
        program, limit = one.view.program, one.limit
    return program


@dataclass
class _Rewriting:
    """Applies one rule to a program."""

    rule: Rule
    rules: Rules
    view: View  # View of the current program.
    findings: Findings  # Findings, to which each rewrite is added.
    where: str
    limit: int  # Largest number of further rewrites.
    refusals: dict[str, str] = field(default_factory=dict)  # Reasons of refusals, by place.

    def rewrites_the_next(self, asked: set[Any]) -> bool:
        """Checks equations until one has been replaced; returns False if none was.

        ``asked`` are the results of the equations that were checked already.
        """
        equations = self.view.program.equations
        for equation in reversed(equations) if self.rule.is_outermost_first else equations:
            is_of_rule = equation.primitive.name in self.rule.primitives
            if is_of_rule and asked.isdisjoint(equation.outvars):
                asked.update(equation.outvars)
                if self._rewrites(equation):
                    return True
        return False

    def _rewrites(self, equation: Equation) -> bool:
        proposal = self.rules.propose(self.rule, self.view, equation)
        if proposal is None:
            return False
        place = place_of(equation, self.where)
        if isinstance(proposal, str):
            self.refusals[place] = proposal
            return False
        try:
            program = _applied(self.view, proposal)
        except NotImplementedError as error:  # The named implementation refuses the arguments.
            self.refusals[place] = f"the op refuses: {error}"
            return False
        except Exception as error:
            raise RuleError(self.rule.name, error) from error
        self.limit -= 1
        if self.limit < 0:
            raise RuleError(self.rule.name, RuntimeError("it applies again and again"))
        sizes = proposal.bytes_before, proposal.bytes_after
        self.findings.applied.append(
            Applied(
                *(self.rule.name, place, proposal.note, *sizes, proposal.assumes),
                in_step=_step_note(proposal),
            )
        )
        self.view = View(program, self.view.known_values)
        return True


def _applied(view: View, rewrite: Rewrite) -> Program:
    """Applies a rewrite to a program; results must keep their types."""
    added = rewrite.traced()
    old = rewrite.results or rewrite.equation.outvars
    types, old_types = [_type(o) for o in added.outputs], [_type(o) for o in old]
    if types != old_types:
        raise TypeError(f"a rewrite of {rewrite.note} returns {types} for {old_types}")
    replacements = dict(zip(old, added.outputs, strict=True))
    makers = [view.producer(variable) for variable in old]
    first = next(e for e in view.program.equations if any(e is maker for maker in makers))
    return (
        insert_preparations(view.program, rewrite.preparations)
        .replace(replacements, first, added)
        .tidy()
    )


def _step_note(rewrite: Rewrite) -> str:
    """Describes the computation on ids when the function runs, for ``explain``."""
    if not rewrite.preparations:
        return ""
    costs = [
        preparation.cost
        for preparation in ordered(rewrite.preparations)
        if preparation.cost is not None
    ]
    sorted_ones = [cost.edges for cost in costs if cost.kind == "sort"]
    if not sorted_ones:
        return "ids are known only when it runs; nothing is sorted"
    return f"{sorted_ones[0]} edges are sorted in each call, once for all that uses their order"


def _type(atom: Atom) -> tuple[Any, ...]:
    return tuple(atom.aval.shape), str(atom.aval.dtype)
