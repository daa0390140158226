"""Rules, the policy for their rewrites, and the loop that applies them until none proposes one."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np

from jaxgnn.fusion.plans import Plan, in_order, reading, results_of, with_plans
from jaxgnn.fusion.program import Atom, Equation, Program, traced
from jaxgnn.fusion.view import NoMatch, View


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


class Refusal(Exception):
    """The reason why a rule does not apply at a place where it almost does; rules raise it."""


class Values:
    """The arrays that the function of a rewrite gets, by the atoms of its inputs."""

    def __init__(self, atoms: Sequence[Atom], arrays: Sequence[Any]):
        # Literals have no hash.
        self._arrays = {id(atom): array for atom, array in zip(atoms, arrays, strict=True)}

    def __getitem__(self, atom: Atom) -> Any:
        return self._arrays[id(atom)]


@dataclass(frozen=True)
class Rule:
    """A method to find cheaper equal terms."""

    name: str  # its name in ``explain``
    primitives: frozenset[str]  # the primitives of the equations that it checks
    # Gets the view of a program and one of these equations; returns None or raises ``NoMatch`` if
    # the equation is not related to the rule, and raises ``Refusal``.
    propose: Callable[[View, Equation], Rewrite | None]
    is_outermost_first: bool = False  # whether later equations are checked before earlier ones


@dataclass(frozen=True)
class Applied:
    """A rule that has been applied."""

    rule: str
    where: str
    note: str
    bytes_before: int
    bytes_after: int
    assumes: tuple[str, ...] = ()
    in_step: str = ""  # what is computed of the ids when the function runs


@dataclass(frozen=True)
class Refused:
    """A rule that has not been applied at a place where it almost applies."""

    rule: str
    where: str
    reason: str


@dataclass
class Findings:
    """The rewrites and refusals of rules in a program, in their order."""

    applied: list[Applied] = field(default_factory=list)
    refused: list[Refused] = field(default_factory=list)
    untouched: list[str] = field(default_factory=list)


class RuleError(Exception):
    """A rule that raised an exception, which is a fault of the rule."""

    def __init__(self, rule: str, error: Exception):
        super().__init__(
            f"the rule {rule} failed with {type(error).__name__}: {error}; please report it"
        )


@dataclass(frozen=True)
class Rules:
    """The rules, in the order in which they are tried, and the policy for their rewrites."""

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
            made = rule.propose(view, equation)
        except NoMatch:
            return None
        except Refusal as refusal:
            return str(refusal)
        except Exception as error:
            raise RuleError(rule.name, error) from error
        return made and (self.policy.refuses(made, made.case or rule.name) or made)


def rewritten(
    program: Program,
    rules: Rules,
    known: MutableMapping[Any, np.ndarray | None],
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
        one = _Rewriting(rule, rules, View(program, known), findings, where, limit)
        has_changed = True
        while has_changed:  # other equations may have become cases, as their result is read once
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
    view: View  # of the current program
    findings: Findings  # to which each rewrite is added
    where: str
    limit: int  # the maximum number of further rewrites
    refusals: dict[str, str] = field(default_factory=dict)  # reasons, by place

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
            made = _applied(self.view, proposal)
        except NotImplementedError as error:  # the implementation that the user named
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
                in_step=_in_step(proposal),
            )
        )
        self.view = View(made, self.view.known)
        return True


def _applied(view: View, rewrite: Rewrite) -> Program:
    """The program after a rewrite, whose results must have the types of the old ones."""
    added = rewrite.traced()
    old = rewrite.results or rewrite.equation.outvars
    types, old_types = [_type(o) for o in added.outputs], [_type(o) for o in old]
    if types != old_types:
        raise TypeError(f"a rewrite of {rewrite.note} returns {types} for {old_types}")
    made = dict(zip(old, added.outputs, strict=True))
    makers = [view.producer(variable) for variable in old]
    first = next(e for e in view.program.equations if any(e is maker for maker in makers))
    return with_plans(view.program, rewrite.plans).replace(made, first, added).tidy()


def _in_step(rewrite: Rewrite) -> str:
    """Describes the computation on ids when the function runs, for ``explain``."""
    if not rewrite.plans:
        return ""
    costs = [plan.cost for plan in in_order(rewrite.plans) if plan.cost is not None]
    sorted_ones = [cost.edges for cost in costs if cost.kind == "sort"]
    if not sorted_ones:
        return "ids are known only when it runs; nothing is sorted"
    return f"{sorted_ones[0]} edges are sorted in each call, once for all that uses their order"


def flops_of(equation: Equation) -> float:
    """Multiplications and additions of a product of matrices; zero for other equations."""
    if equation.primitive.name != "dot_general":
        return 0.0
    left: Atom = equation.invars[0]
    (contracted, _), _ = equation.params["dimension_numbers"]
    terms = math.prod(left.aval.shape[d] for d in contracted)
    return 2.0 * terms * equation.outvars[0].aval.size


def _type(atom: Atom) -> tuple[Any, ...]:
    return tuple(atom.aval.shape), str(atom.aval.dtype)


def place_of(equation: Equation, where: str) -> str:
    """The equation for ``explain``: its primitive and the types of its results."""
    made = ", ".join(v.aval.str_short() for v in equation.outvars)
    name = f"{equation.primitive.name} -> {made}"
    return f"{where}: {name}" if where else name


def nbytes(*atoms: Atom) -> int:
    """The bytes of some arrays."""
    return sum(a.aval.size * a.aval.dtype.itemsize for a in atoms)


# Bytes that the replaced code reads and writes, from which a case was faster by platform, forward
# and with gradients; math.inf if it was slower at any size. A case that is not listed is always
# faster. `python -m experiments.benchmarks.fuse_rules` measures each rule alone: the CPU's numbers
# are those of two cores, the GPU's those of an H200, on which calls of less than 0.1 ms cost their
# launches.
_MIB = 1 << 20
_FASTER_FROM: Mapping[str, Mapping[str, float]] = {
    "cpu": {
        "neighbour_sum of narrow weighted rows": math.inf,
        "lists of narrow rows": math.inf,
        "narrow products of a known matrix": math.inf,
        "sums of segments": math.inf,
        "sums of products": math.inf,
        "sums of sorted products": math.inf,
        "neighbour_sum": 4 * _MIB,
        "filtered_sum": 3 * _MIB,
        "filtered_sum by a kernel": 16 * _MIB,
        "gat_attention of narrow rows": math.inf,
        "inner products of narrow rows": 16 * _MIB,
        "neighbour_extreme": 3 * _MIB,
        "sums of sorted segments": math.inf,
        "sums of short floats": math.inf,
        "sums of sorted short floats": math.inf,
        "extremes of segments": math.inf,
        "extremes of sorted segments": math.inf,
        "segment_softmax": math.inf,
        "edge_mlp": _MIB,
        "interaction": _MIB,
        "edge_mlp at both ends": _MIB,
        "edge_projection": _MIB,
        "edge_sum": _MIB,
        "tensor_product_sum": 0.25 * _MIB,  # where the op has a kernel
        "maxk": 0.25 * _MIB,
    },
    "gpu": {
        "neighbour_sum of narrow weighted rows": math.inf,
        "lists of narrow rows": math.inf,
        "sums of segments": math.inf,
        "sums of products": math.inf,
        "sums of sorted products": math.inf,
        "neighbour_sum": 256 * _MIB,
        "filtered_sum": math.inf,
        "filtered_sum by a kernel": math.inf,
        "neighbour_extreme": 256 * _MIB,
        "sums of sorted segments": 512 * _MIB,
        "sums of short floats": 256 * _MIB,
        "sums of sorted short floats": 256 * _MIB,
        "extremes of segments": 256 * _MIB,
        "extremes of sorted segments": 256 * _MIB,
        "segment_softmax": 128 * _MIB,
        "edge_mlp": 64 * _MIB,
        "interaction": 512 * _MIB,
        "edge_mlp at both ends": math.inf,
        "edge_projection": 64 * _MIB,
        "edge_sum": 512 * _MIB,
        "fused_linear": 16 * _MIB,
        "fused_mlp": 32 * _MIB,
        "maxk": _MIB,
    },
}


# Bytes that the reductions over one list of ids, or the gathers by it, read of an edge and in all,
# from which rewrites were faster with a plan of the list made in the step, forward and with
# gradients, by platform. `python -m experiments.benchmarks.fuse_rules --in-step` measures it.
_NEVER = (math.inf, math.inf)
_PLANNED_FROM: Mapping[str, Mapping[str, tuple[float, float]]] = {
    "cpu": {"sort": (256, 8 * _MIB), "mark": (64, _MIB)},
    "gpu": {"sort": _NEVER, "mark": (512, 128 * _MIB)},
}


@dataclass(frozen=True)
class Policy:
    """Decides which sound rewrites are applied."""

    only_if_faster: bool = True  # whether rewrites are refused that were not measured to be faster

    def refuses(self, rewrite: Rewrite, case: str) -> str | None:
        """Returns the reason for refusing a rewrite of a measured case, or None."""
        platform = jax.default_backend()
        least = _FASTER_FROM.get(platform, {}).get(case, 0)
        if not self.only_if_faster:
            return None
        if rewrite.is_what_runs:
            return "the op has no kernel for it that it would choose here"
        if (reason := _refuses_plans(rewrite, platform)) is not None:
            return reason
        if rewrite.bytes_before >= least:
            return None
        if least == math.inf:
            return f"{case} was not measured to be faster on a {platform.upper()}"
        return f"it is faster from {least / 1e6:.3g} MB on"


def _refuses_plans(rewrite: Rewrite, platform: str) -> str | None:
    """The reason why no plan is made of ids when the function runs, or None."""
    table = _PLANNED_FROM.get(platform, {})
    for cost in (plan.cost for plan in in_order(rewrite.plans)):
        if cost is None:
            continue
        reason = f"the ids are known only when it runs; to {cost.kind} them there "
        each, total = table.get(cost.kind, _NEVER)
        if each == math.inf:  # also where the caller wants the plan
            return f"{reason}took longer than it saved on a {platform.upper()}"
        if cost.bytes_per_edge == math.inf:
            continue
        if cost.bytes_per_edge < each:
            got = f"and they are read for {cost.bytes_per_edge:.3g}"
            return f"{reason}pays from {each:.3g} bytes an edge on, {got}"
        if cost.bytes_per_edge * cost.edges < total:
            return f"{reason}pays from {total / 1e6:.3g} MB of rows on"
    return None
