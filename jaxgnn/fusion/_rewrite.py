"""Rules, what they propose, and the loop that applies them until none has anything to say."""

from __future__ import annotations

from collections.abc import Callable, MutableMapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from jaxgnn.fusion._policy import Policy
from jaxgnn.fusion._program import Atom, Equation, Program, traced
from jaxgnn.fusion._view import View


@dataclass(frozen=True)
class Rewrite:
    """Equal terms for the results of one equation, or for some variables that belong together.

    Attributes:
      equation: the equation whose results are replaced.
      inputs: the atoms that the new terms read, none of which depends on what is replaced.
      function: takes an array for each input, and returns an array for each result.
      note: what is replaced and by what, for ``explain``.
      bytes_before: bytes that the replaced equations read and write.
      bytes_after: bytes that the new ones read and write.
      is_open: whether the new terms are for other rules to look into.
      case: what is measured apart from the other rewrites of its rule; the rule's name if empty.
      is_what_runs: whether the op would choose here what the replaced code does anyway.
      results: the variables that are replaced, if they are not the results of ``equation``.
    """

    equation: Equation
    inputs: Sequence[Atom]
    function: Callable[..., Sequence[Any]]
    note: str
    bytes_before: int
    bytes_after: int
    is_open: bool = False
    case: str = ""
    is_what_runs: bool = False
    results: tuple[Any, ...] = ()


@dataclass(frozen=True)
class Refusal:
    """A place that looks like a rule's, and why the rule does not apply.

    Attributes:
      equation: the equation at the place.
      reason: what is missing.
    """

    equation: Equation
    reason: str


@dataclass(frozen=True)
class Rule:
    """A way to find equal terms that are cheaper.

    Attributes:
      name: what ``explain`` calls it.
      primitives: names of the primitives at whose equations it looks.
      propose: gets the view of a program and one of these equations; returns a ``Rewrite``, a
        ``Refusal``, or None where the equation has nothing to do with the rule.
      is_outermost_first: whether later equations are asked about before earlier ones.
    """

    name: str
    primitives: frozenset[str]
    propose: Callable[[View, Equation], Rewrite | Refusal | None]
    is_outermost_first: bool = False


@dataclass(frozen=True)
class Applied:
    """A rule that has been applied."""

    rule: str
    where: str
    note: str
    bytes_before: int
    bytes_after: int


@dataclass(frozen=True)
class Refused:
    """A rule that has not been applied at a place that looked like its own."""

    rule: str
    where: str
    reason: str


@dataclass
class Findings:
    """What rules have done to a program, in the order in which they did it."""

    applied: list[Applied] = field(default_factory=list)
    refused: list[Refused] = field(default_factory=list)
    untouched: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Rules:
    """The rules, in the order in which they are tried, and which of their rewrites are done."""

    all: Sequence[Rule]
    policy: Policy

    def propose(self, rule: Rule, view: View, equation: Equation) -> Rewrite | Refusal | None:
        """What a rule says of an equation, after the policy has had its say."""
        if equation.primitive.name not in rule.primitives:
            return None
        proposal = rule.propose(view, equation)
        if not isinstance(proposal, Rewrite):
            return proposal
        case = proposal.case or rule.name
        reason = self.policy.refuses(
            case, proposal.bytes_before, is_what_runs=proposal.is_what_runs
        )
        return proposal if reason is None else Refusal(equation, reason)


def rewritten(
    program: Program,
    rules: Rules,
    known: MutableMapping[Any, np.ndarray | None],
    findings: Findings,
    where: str = "",
) -> Program:
    """The program with every rule applied wherever it can be, in the order of the rules.

    Each rule makes the program smaller by its own measure, so the loop ends; the limit is for rules
    that are wrong.

    Args:
      program: the program.
      rules: earlier ones go first; later ones see what they have left.
      known: values of variables that are known ahead.
      findings: to which what is found is added.
      where: the place of the program in the function, for ``explain``.
    """
    limit = 100 + 10 * len(program.equations)
    for rule in rules.all:
        one = _Rewriting(rule, rules, View(program, known), findings, where, limit)
        while one.runs_through():
            pass
        findings.refused += [Refused(rule.name, place, why) for place, why in one.refusals.items()]
        program, limit = one.view.program, one.limit
    return program


@dataclass
class _Rewriting:
    """One rule at work on a program.

    Attributes:
      rule: the rule.
      rules: all of them, with the policy.
      view: the view of the program as it is by now.
      findings: to which each rewrite is added.
      where: the place of the program in the function.
      limit: how many more rewrites there may be.
      refusals: why the rule was not applied, by place.
    """

    rule: Rule
    rules: Rules
    view: View
    findings: Findings
    where: str
    limit: int
    refusals: dict[str, str] = field(default_factory=dict)

    def runs_through(self) -> bool:
        """Asks the rule about each equation once; returns whether it changed the program.

        Then other equations may have become cases of the rule, such as those whose result is read
        once by now: ask again until nothing changes.
        """
        asked: set[Any] = set()
        has_changed = False
        while self._rewrites_the_next(asked):
            has_changed = True
        return has_changed

    def _rewrites_the_next(self, asked: set[Any]) -> bool:
        """Asks about equations until one has been replaced; False if none was.

        ``asked`` are the results of those about which the rule was asked already.
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
        """Whether the rule has replaced an equation."""
        proposal = self.rules.propose(self.rule, self.view, equation)
        if proposal is None:
            return False
        place = _place(equation, self.where)
        if isinstance(proposal, Refusal):
            self.refusals[place] = proposal.reason
            return False
        try:
            made = _applied(self.view, proposal)
        except (ValueError, NotImplementedError) as error:
            self.refusals[place] = f"the op refuses: {error}"
            return False
        self.limit -= 1
        if self.limit < 0:
            raise RuntimeError(f"jaxgnn.fuse: rule {self.rule.name!r} does not come to an end")
        sizes = proposal.bytes_before, proposal.bytes_after
        self.findings.applied.append(Applied(self.rule.name, place, proposal.note, *sizes))
        self.view = View(made, self.view.known)
        return True


def _applied(view: View, rewrite: Rewrite) -> Program:
    """The program after a rewrite, whose results have to be of the types of the old ones."""
    added = traced(rewrite.function, rewrite.inputs, is_open=rewrite.is_open)
    old = rewrite.results or rewrite.equation.outvars
    if [_type(o) for o in added.outputs] != [_type(o) for o in old]:
        raise TypeError(
            f"jaxgnn.fuse: a rewrite of {rewrite.note} made {[_type(o) for o in added.outputs]} of "
            f"{[_type(o) for o in old]}"
        )
    made = dict(zip(old, added.outputs, strict=True))
    makers = [view.producer(variable) for variable in old]
    first = next(e for e in view.program.equations if any(e is maker for maker in makers))
    return view.program.replace(made, first, added).tidy()


def _type(atom: Atom) -> tuple[Any, ...]:
    return tuple(atom.aval.shape), str(atom.aval.dtype)


def _place(equation: Equation, where: str) -> str:
    """The equation for ``explain``: its primitive and the types of its results."""
    made = ", ".join(v.aval.str_short() for v in equation.outvars)
    name = f"{equation.primitive.name} -> {made}"
    return f"{where}: {name}" if where else name


def nbytes(*atoms: Atom) -> int:
    """The bytes of some arrays."""
    return sum(a.aval.size * a.aval.dtype.itemsize for a in atoms)
