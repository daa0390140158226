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
_OF_EACH_ITS_OWN = ("random_", "rng_", "threefry", "while", "cond", "pallas_call", "ffi_call")
_LARGEST_CONSTANT = 1 << 26  # entries of known numbers that are joined


class _Source(NamedTuple):
    """The inputs of the members."""

    inputs: list[Atom]  # the array of which they are members; none if they are known
    batched: Callable[[Values], Any]  # returns the members along a new first axis


@dataclass
class _Copies:
    """The equations of all members, side by side."""

    view: View
    of_first: dict[Any, Members] = field(default_factory=dict)  # of all, by those of the first
    sources: dict[Any, _Source] = field(default_factory=dict)  # by the variable of the first member
    equations: dict[int, Equation] = field(default_factory=dict)  # of all members, by their ids

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
            if first in self.of_first:
                if any(a is not b for a, b in zip(self.of_first[first], members, strict=True)):
                    raise Refusal("the members read different arrays")
                continue
            self.of_first[first] = members
            if all(other is first for other in members):
                continue
            source = _source_of(self.view, members)
            if source is not None:
                self.sources[first] = source
                continue
            made = _batched_equations(self.view, members)
            self.equations.update({id(e): e for e in made})
            waiting += zip(*(e.invars for e in made), strict=True)
            waiting += zip(*(e.outvars for e in made), strict=True)

    def are_read_by(self, stack: Equation) -> bool:
        """Whether only these equations and ``stack`` read their results."""
        made = [v for e in self.equations.values() for v in e.outvars]
        users = [u for v in made for u in self.view.users(v)]
        is_read = any(u is not stack and id(u) not in self.equations for u in users)
        return not is_read and not any(map(self.view.is_output, made))

    def do_work(self) -> bool:
        """Whether batching pays for one of the equations."""
        return any(e.primitive.name.startswith(_WORK) for e in self.equations.values())

    def of_one(self, result: Any) -> tuple[list[Any], list[Any], Any]:
        """The first member as a function of batched and of shared arrays, and these variables."""
        firsts = {v for v in self.of_first if v not in self.sources}
        own = (e for e in self.view.program.equations if id(e) in self.equations)
        equations = [e for e in own if e.outvars[0] in firsts]
        made = {v for e in equations for v in e.outvars}
        batched, shared = list(self.sources), [v for v in firsts if v not in made]
        return batched, shared, self.view.program.part([*batched, *shared], [result], equations)


def _producers(view: View, members: Members) -> list[Equation] | None:
    """The equation of each member, or None if one is not the result of an equation."""
    made = [e for a in members if (e := view.producer(a)) is not None]
    return made if len(made) == len(members) else None


def _batched_equations(view: View, members: Members) -> list[Equation]:
    """The equations of the members; raises ``Refusal`` if they can not be batched."""
    made = _producers(view, members)
    if made is None:
        raise Refusal("the members read different arrays")
    if len({id(e) for e in made}) < len(made):
        raise Refusal("the members read results of one equation")
    first = made[0]
    place = first.outvars.index(members[0])
    pairs = zip(made, members, strict=True)
    if not all(calls_the_same(first, e) and e.outvars[place] is a for e, a in pairs):
        raise Refusal("the members are made by different equations")
    own = _of_its_own(first)
    if own is not None:
        raise Refusal(f"{own} of a batch may be another one")
    return made


def _of_its_own(equation: Equation) -> str | None:
    """The name of a primitive in an equation or its bodies that can not be batched, or None."""
    name = equation.primitive.name
    if equation.effects or name.startswith(_OF_EACH_ITS_OWN):
        return name
    values = equation.params.values()
    bodies = [b for v in values for b in (v if isinstance(v, tuple) else (v,))]
    jaxprs = [b for b in bodies if isinstance(b, jex.Jaxpr | jex.ClosedJaxpr)]
    inner = (e for body in jaxprs for e in getattr(body, "jaxpr", body).eqns)
    return next((own for e in inner if (own := _of_its_own(e))), None)


def _source_of(view: View, members: Members) -> _Source | None:
    """The array of which these are the members, along its first axis, or None."""
    if len({(tuple(a.aval.shape), str(a.aval.dtype)) for a in members}) > 1:
        return None
    known = _known_numbers(view, members)
    if known is not None:
        return _Source([], lambda _: jnp.asarray(known))
    made = _producers(view, members)
    if made is None or any(e.primitive.name not in ("slice", "unstack", "split") for e in made):
        return None
    is_of_one = all(e.invars[0] is made[0].invars[0] for e in made)
    if not is_of_one or any(e.params.get("strides") is not None for e in made):
        return None
    array, count, shape = made[0].invars[0], len(members), members[0].aval.shape
    spans = [span_of(e, a) for e, a in zip(made, members, strict=True)]
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
    batched, shared, one = copies.of_one(members[0])
    sources = [copies.sources[v] for v in batched]

    def function(*arrays):
        values = Values(inputs, arrays)
        of_members, of_all = [s.batched(values) for s in sources], [values[v] for v in shared]
        axes = [0] * len(of_members) + [None] * len(of_all)
        made = jax.vmap(lambda *a: one(*a)[0], in_axes=axes, out_axes=0)(*of_members, *of_all)
        return [made.reshape(output.aval.shape)]

    size = nbytes(*(v for e in copies.equations.values() for v in e.outvars))
    note = f"{len(members)} copies of {len(copies.equations) // len(members)} equations -> vmap"
    inputs = [*(a for s in sources for a in s.inputs), *shared]
    return Rewrite(equation, inputs, function, note, 2 * size, 2 * size, is_open=True)


RULE = Rule("unrolled_loop", frozenset(("stack", "concatenate")), _propose, is_outermost_first=True)
