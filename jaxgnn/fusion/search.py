"""The choice among rewrites that exclude each other: extraction from an e-graph.

Rules are tried in a fixed order, and the first one that applies is used: this is the plain matcher.
With the package ``egglog`` all proposed rewrites of a program are first compared with each other.
An e-graph holds the equations of the program, each as a function of its inputs. A rewrite is
another function of its own inputs, and is equal to the equation that it replaces. The term with the
least total cost is extracted, where terms that are used twice count once. Rewrites that are not in
it are skipped. Costs are times, of bytes and products at the speeds of the device (``cost.py``).
"""

from __future__ import annotations

import dataclasses
import functools
import importlib.util
from collections.abc import Iterator, MutableMapping
from dataclasses import dataclass, field
from typing import Any, Literal

import jax
import numpy as np

from jaxgnn._errors import bad_input
from jaxgnn.fusion.policy import (
    Speeds,
    has_own_kernel,
    measured_speeds,
    seconds_of,
    seconds_of_program,
)
from jaxgnn.fusion.program.program import Atom, Equation, Program, closure, flops_of, is_variable
from jaxgnn.fusion.program.variables import View
from jaxgnn.fusion.rewriting import Findings, Rules, rewritten
from jaxgnn.fusion.rules.rule import Rewrite, Rule

Search = Literal["auto", "matcher", "egglog"]
"""Method to choose among rewrites that exclude each other."""

_NEVER = 1e4  # seconds: more than any program takes
Known = MutableMapping[Any, np.ndarray | None]


def check_search(search: Any) -> None:
    """Raises ValueError for an unknown method, and for one whose package is not installed."""
    if search not in ("auto", "matcher", "egglog"):
        raise bad_input("fuse", "search", "one of 'auto', 'matcher', 'egglog'", repr(search))
    if search == "egglog" and not has_egglog():
        expected = "'auto' or 'matcher' where the package egglog is not installed"
        raise bad_input("fuse", "search", expected, repr(search))


@functools.cache
def has_egglog() -> bool:
    """Whether the package ``egglog`` is installed."""
    return importlib.util.find_spec("egglog") is not None


@dataclass(frozen=True)
class _ChosenRules(Rules):
    """Rules without the rewrites for which cheaper ones of the same terms exist."""

    # The rule's name, the replaced variable and the note of each skipped rewrite
    left_out: frozenset[tuple[str, Any, str]] = field(default=frozenset())

    def propose(self, rule: Rule, view: View, equation: Equation) -> Rewrite | str | None:
        """Returns the proposal of a rule for an equation, unless the search skips it."""
        made = super().propose(rule, view, equation)
        if isinstance(made, Rewrite) and _key(rule, made) in self.left_out:
            return "other rewrites of the same terms cost less"
        return made


@dataclass(frozen=True)
class _Candidate:
    """A rewrite that a rule proposes."""

    rule: Rule
    rewrite: Rewrite
    region: frozenset[int]  # positions of the equations from its inputs to the replaced one


def chosen(program: Program, rules: Rules, known: Known, search: Search) -> Rules:
    """The rules, without the rewrites of a program that the search skips.

    ``"auto"`` compares rewrites where egglog is installed and several exclude each other. It does
    not if all sound rewrites are requested at any cost, or if several processes run one program,
    since each has measured its own device and all have to make the same choice.
    """
    is_weighed = has_egglog() and rules.policy.only_if_faster and jax.process_count() == 1
    if search == "matcher" or (search == "auto" and not is_weighed):
        return rules
    candidates = list(_candidates(program, rules, known))
    if not _exclude_each_other(program, candidates):
        return rules
    graph = _Graph(program, measured_speeds(), _replaced(program, candidates))
    for candidate in candidates:
        graph.add(candidate, _seconds_of(candidate, program, rules, known, graph.speeds))
    taken = graph.cheapest()
    left_out = [c for i, c in enumerate(candidates) if i not in taken]
    keys = frozenset(_key(c.rule, c.rewrite) for c in left_out)
    return _ChosenRules(rules.all, rules.policy, keys)


def _key(rule: Rule, rewrite: Rewrite) -> tuple[str, Any, str]:
    return rule.name, rewrite.equation.outvars[0], rewrite.note


def _candidates(program: Program, rules: Rules, known: Known) -> Iterator[_Candidate]:
    view = View(program, known)
    positions = {v: i for i, e in enumerate(program.equations) for v in e.outvars}
    for rule in rules.all:
        for equation in program.equations:
            made = rules.propose(rule, view, equation)
            if isinstance(made, Rewrite):
                yield _Candidate(rule, made, _region(program, positions, made))


def _region(program: Program, positions: dict[Any, int], rewrite: Rewrite) -> frozenset[int]:
    ends = {a for a in rewrite.inputs if is_variable(a)}

    def reads(i: int) -> list[int]:
        atoms = program.equations[i].invars
        return [positions[a] for a in atoms if is_variable(a) and a not in ends and a in positions]

    return frozenset(closure(positions[rewrite.equation.outvars[0]], reads))


def _exclude_each_other(program: Program, candidates: list[_Candidate]) -> bool:
    """Whether a rewrite replaces equations that another one would also replace."""
    positions = {id(e): i for i, e in enumerate(program.equations)}
    ends = [positions[id(c.rewrite.equation)] for c in candidates]
    return any(
        end in c.region for i, c in enumerate(candidates) for j, end in enumerate(ends) if i != j
    )


def _replaced(program: Program, candidates: list[_Candidate]) -> set[Any]:
    """The results of the equations that rewrites are for, for which some rewrite has to be applied.

    Of the equations that a rewrite replaces, these are the ones with their own kernels, or the last
    one if there is none. Equations that XLA fuses with others, such as an activation after layers
    that another rewrite fuses, may remain.
    """
    found: set[Any] = set()
    for candidate in candidates:
        equations = [program.equations[i] for i in candidate.region]
        own = [e for e in equations if has_own_kernel(e)] or [candidate.rewrite.equation]
        found.update(v for e in own for v in e.outvars)
    return found


def _seconds_of(
    candidate: _Candidate, program: Program, rules: Rules, known: Known, speeds: Speeds
) -> float:
    """The time of the new terms.

    An op computes the products that it replaces, with the bytes given by its rule. The cost of
    terms that are open for other rules is that after these rules.
    """
    rewrite = candidate.rewrite
    if not rewrite.is_open:
        flops = sum(flops_of(program.equations[i]) for i in candidate.region)
        return speeds.seconds(rewrite.bytes_after, flops)
    added = rewrite.traced()
    constants = {**program.constants, **added.constants}
    alone = dataclasses.replace(added, constants=constants).tidy()
    return seconds_of_program(rewritten(alone, rules, known, Findings()), speeds)


class _Graph:
    """An e-graph of a program and of rewrites, in the language of egglog.

    Each equation and each rewrite is a separate function, whose cost is its time in nanoseconds.
    The policy already knows whether a rewrite is faster than the replaced code. So rewrites only
    compete with each other, and equations that could be replaced cost more than any of them.
    """

    def __init__(self, program: Program, speeds: Speeds, replaced: set[Any]):
        self.speeds = speeds
        self._names: dict[Any, str] = {}
        self._lines = ["(sort Term)"]
        self._count = 0
        for variable in (*program.inputs, *program.constants):
            self._define(variable, "given", (), 0.0)
        for equation in program.equations:
            is_replaced = not replaced.isdisjoint(equation.outvars)
            seconds = _NEVER if is_replaced else seconds_of(equation, speeds)
            name = equation.primitive.name.replace("-", "_")
            whole = self._define(None, name, equation.invars, seconds)
            for variable in equation.outvars:
                self._define(variable, "result", (whole,), 0.0)
        self._root = self._define(None, "results", program.outputs, 0.0)

    def add(self, candidate: _Candidate, seconds: float) -> None:
        """Declares a rewrite equal to the equation that it replaces."""
        rewrite = candidate.rewrite
        whole = self._define(None, f"rewrite{self._count}", rewrite.inputs, seconds)
        self._count += 1
        for i, variable in enumerate(rewrite.equation.outvars):
            made = self._define(None, f"result{i}", (whole,), 0.0)
            self._lines.append(f"(union {self._names[variable]} {made})")

    def cheapest(self) -> set[int]:
        """The rewrites in the cheapest term for all results, by the order of addition."""
        from egglog.bindings import EGraph, ExtractBest, TermApp

        graph = EGraph()
        self._lines.append(f"(extract {self._root} :extractor greedy-dag)")
        found = graph.run_program(*graph.parse_program("\n".join(self._lines)))[-1]
        assert isinstance(found, ExtractBest)

        def term(i: Any) -> Any:
            made = found.termdag.get(i)
            return made if isinstance(made, TermApp) else None

        terms = closure(found.term, lambda i: made.args if (made := term(i)) else ())
        kinds = [made.name.partition("_of_")[0] for i in terms if (made := term(i))]
        return {int(k.removeprefix("rewrite")) for k in kinds if k.startswith("rewrite")}

    def _define(self, variable: Any, kind: str, reads: Any, seconds: float) -> str:
        """Defines a function of some terms, and names its value, which may represent a variable."""
        place = len(self._lines)
        operands = [o for a in reads if (o := self._operand(a)) is not None]
        function, name = f"{kind}_of_{place}", f"$term{place}"
        types = " ".join(["Term"] * len(operands))
        cost = round(1e9 * seconds)
        self._lines.append(f"(constructor {function} ({types}) Term :cost {cost})")
        self._lines.append(f"(let {name} ({function} {' '.join(operands)}))")
        if variable is not None:
            self._names[variable] = name
        return name

    def _operand(self, atom: Atom | str) -> str | None:
        """The name of a term; None for a literal, which costs nothing."""
        if isinstance(atom, str):
            return atom
        return self._names[atom] if is_variable(atom) else None
