"""A loop of Python over the members of a batch becomes one call for all of them.

``jnp.stack([f(x[i]) for i in range(len(x))])`` is ``jax.vmap(f)(x)``: the program then has one copy
of ``f`` instead of one for each member. So is a concatenation of ``f(x[i : i + 1])``. Other rules
then apply to this copy.

Sound where

* the stacked arrays are computed by the same equations for each member: of the same primitives,
  parameters and types, which read the same arrays in the same places. If they read different ones,
  these are members of one array, in their order and without gaps, or known whole numbers, such as
  ids to which an offset was added;
* no equation draws random numbers, which may differ in a batch; chooses a branch or ends a loop by
  a computed value, since a batch would compute both; or has a side effect.

It pays if nothing else reads the copies, and they contain a product, a gather, a reduction or the
like, which are also conditions.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import jax.extend.core as jex
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxgnn.fusion.program.matching import Refusal
from jaxgnn.fusion.program.program import (
    Atom,
    Equation,
    Values,
    is_variable,
    nbytes,
    reads_the_same,
)
from jaxgnn.fusion.program.variables import View
from jaxgnn.fusion.recognise.products import span_of
from jaxgnn.fusion.recognise.templates import calls_the_same
from jaxgnn.fusion.rules.rule import Rewrite, Rule

Members = tuple[Atom, ...]

_WORK = (
    "dot_general",
    "conv",
    "gather",
    "scatter",
    "reduce",
    "sort",
    "top_k",
    "scan",
    "custom_vjp",
)
_UNBATCHABLE = ("random_", "rng_", "threefry", "while", "cond", "pallas_call", "ffi_call")
_LARGEST_CONSTANT = 1 << 26  # Most entries of known numbers that are joined.


class _Source(NamedTuple):
    """Inputs of the members."""

    inputs: list[Atom]  # Array of the members; none if they are known numbers.
    batched: Callable[[Values], Any]  # Returns the members along a new first axis.


@dataclass
class _Copies:
    """Equations of all members of a batch."""

    view: View
    # Variables of all members, by those of the first.
    members: dict[Any, Members] = field(default_factory=dict)
    # Sources, by the variable of the first member.
    sources: dict[Any, _Source] = field(default_factory=dict)
    # Equations of all members, by identity.
    equations: dict[int, Equation] = field(default_factory=dict)

    def add(self, results: Members) -> None:
        """Adds the equations of the results; raises ``Refusal`` where the members differ."""
        waiting = [results]
        while waiting:
            members = waiting.pop()
            first = members[0]
            if not is_variable(first):
                if not all(reads_the_same(first, other) for other in members):
                    raise Refusal("the members differ in a number")
                continue
            if first in self.members:
                if any(a is not b for a, b in zip(self.members[first], members, strict=True)):
                    raise Refusal("the members read different arrays")
                continue
            self.members[first] = members
            if all(other is first for other in members):
                continue
            source = _source_of(self.view, members)
            if source is not None:
                self.sources[first] = source
                continue
            equations = _batched_equations(self.view, members)
            self.equations.update({id(e): e for e in equations})
            waiting += zip(*(e.invars for e in equations), strict=True)
            waiting += zip(*(e.outvars for e in equations), strict=True)

    def are_read_by(self, stack: Equation) -> bool:
        """Returns whether only these equations and ``stack`` read their results."""
        results = [v for e in self.equations.values() for v in e.outvars]
        users = [u for v in results for u in self.view.users(v)]
        is_read = any(u is not stack and id(u) not in self.equations for u in users)
        return not is_read and not any(map(self.view.is_output, results))

    def do_work(self) -> bool:
        """Returns whether batching pays for one of the equations."""
        return any(e.primitive.name.startswith(_WORK) for e in self.equations.values())

    def first_member(self, result: Any) -> tuple[list[Any], list[Any], Any]:
        """Returns the batched and the shared variables, and the first member as a function."""
        firsts = {v for v in self.members if v not in self.sources}
        batched_equations = (e for e in self.view.program.equations if id(e) in self.equations)
        equations = [e for e in batched_equations if e.outvars[0] in firsts]
        results = {v for e in equations for v in e.outvars}
        batched, shared = list(self.sources), [v for v in firsts if v not in results]
        return batched, shared, self.view.program.part([*batched, *shared], [result], equations)


def _producers(view: View, members: Members) -> list[Equation] | None:
    """Returns the equation of each member, or None if one is not the result of an equation."""
    equations = [e for a in members if (e := view.producer(a)) is not None]
    return equations if len(equations) == len(members) else None


def _batched_equations(view: View, members: Members) -> list[Equation]:
    """Returns the equations of the members; raises ``Refusal`` if they can not be batched."""
    equations = _producers(view, members)
    if equations is None:
        raise Refusal("the members read different arrays")
    if len({id(e) for e in equations}) < len(equations):
        raise Refusal("the members read results of one equation")
    first = equations[0]
    position = first.outvars.index(members[0])
    pairs = zip(equations, members, strict=True)
    if not all(calls_the_same(first, e) and e.outvars[position] is a for e, a in pairs):
        raise Refusal("the members are made by different equations")
    primitive = _unbatchable(first)
    if primitive is not None:
        raise Refusal(f"{primitive} of a batch may be another one")
    return equations


def _unbatchable(equation: Equation) -> str | None:
    """Returns the name of a primitive in an equation that can not be batched, or None."""
    name = equation.primitive.name
    if equation.effects or name.startswith(_UNBATCHABLE):
        return name
    values = equation.params.values()
    bodies = [b for v in values for b in (v if isinstance(v, tuple) else (v,))]
    jaxprs = [b for b in bodies if isinstance(b, jex.Jaxpr | jex.ClosedJaxpr)]
    inner = (e for body in jaxprs for e in getattr(body, "jaxpr", body).eqns)
    return next((name_inside for e in inner if (name_inside := _unbatchable(e))), None)


def _source_of(view: View, members: Members) -> _Source | None:
    """Returns the array whose members along the first axis these are, or None."""
    if len({(tuple(a.aval.shape), str(a.aval.dtype)) for a in members}) > 1:
        return None
    numbers = _known_numbers(view, members)
    if numbers is not None:
        return _Source([], lambda _: jnp.asarray(numbers))
    producers = _producers(view, members)
    if producers is None or any(
        e.primitive.name not in ("slice", "unstack", "split") for e in producers
    ):
        return None
    is_of_one = all(e.invars[0] is producers[0].invars[0] for e in producers)
    if not is_of_one or any(e.params.get("strides") is not None for e in producers):
        return None
    array, count, shape = producers[0].invars[0], len(members), members[0].aval.shape
    spans = [span_of(e, a) for e, a in zip(producers, members, strict=True)]
    (start, *begins), (stop, *ends) = spans[0]
    rows = stop - start
    whole = [((start + i * rows, *begins), (start + (i + 1) * rows, *ends)) for i in range(count)]
    if spans != whole:
        return None
    first, last = spans[0][0], spans[-1][1]
    is_whole = not any(first) and last == tuple(array.aval.shape)

    def batched(values):
        part = values[array] if is_whole else lax.slice(values[array], first, last)
        return part.reshape(count, *shape)

    return _Source([array], batched)


def _known_numbers(view: View, members: Members) -> np.ndarray | None:
    aval = members[0].aval
    is_whole = jnp.issubdtype(aval.dtype, jnp.integer) or aval.dtype == bool
    if not is_whole or aval.size * len(members) > _LARGEST_CONSTANT:
        return None
    values = [v for a in members if (v := view.value(a)) is not None]
    return np.stack(values) if len(values) == len(members) else None


def _propose(view: View, equation: Equation) -> Rewrite | None:
    members, output = tuple(equation.invars), equation.outvars[0]
    axis = equation.params["axis" if equation.primitive.name == "stack" else "dimension"]
    if axis != 0 or len(members) < 2 or len({str(a.aval) for a in members}) > 1:
        return None
    copies = _Copies(view)
    try:
        copies.add(members)
    except Refusal:
        if copies.equations:
            raise
        return None
    if not copies.sources or not copies.do_work():
        return None
    if not copies.are_read_by(equation):
        raise Refusal("a member is read by something else, too")
    batched, shared, one = copies.first_member(members[0])
    sources = [copies.sources[v] for v in batched]

    def function(*arrays):
        values = Values(inputs, arrays)
        of_members, of_all = [s.batched(values) for s in sources], [values[v] for v in shared]
        axes = [0] * len(of_members) + [None] * len(of_all)
        stacked = jax.vmap(lambda *a: one(*a)[0], in_axes=axes, out_axes=0)(*of_members, *of_all)
        return [stacked.reshape(output.aval.shape)]

    size = nbytes(*(v for e in copies.equations.values() for v in e.outvars))
    note = f"{len(members)} copies of {len(copies.equations) // len(members)} equations -> vmap"
    inputs = [*(a for s in sources for a in s.inputs), *shared]
    return Rewrite(equation, inputs, function, note, 2 * size, 2 * size, is_open=True)


RULE = Rule("unrolled_loop", frozenset(("stack", "concatenate")), _propose, is_outermost_first=True)
