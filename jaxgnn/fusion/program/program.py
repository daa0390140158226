"""A jaxpr as plain data: equations without nested calls, repeats or dead code."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.extend.core as jex
import numpy as np

Atom = Any  # a variable or a literal of a jaxpr
Equation = Any

_new_variable = jex.gensym()


@dataclass(frozen=True)
class Program:
    """The equations of a function of arrays, in the order in which they run."""

    inputs: tuple[Any, ...]  # the variables of the arguments
    outputs: tuple[Atom, ...]
    equations: tuple[Equation, ...]  # each reads inputs, constants and results of earlier equations
    constants: Mapping[Any, Any]  # values of variables that are neither inputs nor results
    source: Any  # the jaxpr of the program, whose names are kept

    @classmethod
    def of(cls, closed: Any) -> Program:
        """The program of a closed jaxpr, with calls that only name code expanded."""
        inlining = _Inlining()
        inputs = tuple(map(inlining.fresh, closed.jaxpr.invars))
        outputs = inlining.expand(closed, inputs)
        made = cls(inputs, outputs, tuple(inlining.equations), inlining.constants, closed.jaxpr)
        return made.tidy()

    @property
    def effects(self) -> frozenset[Any]:
        """Side effects, such as prints and writes to references, of any equation."""
        return frozenset().union(*(e.effects for e in self.equations))

    def closed(self) -> Any:
        """The program as a closed jaxpr, which ``jax.extend.core.jaxpr_as_fun`` runs."""
        jaxpr = self._jaxpr(list(self.constants), list(self.inputs))
        return jex.ClosedJaxpr(jaxpr, list(self.constants.values()))

    def opened(self) -> Any:
        """The program as a jaxpr whose first inputs are the constants."""
        return self._jaxpr([], [*self.constants, *self.inputs])

    def _jaxpr(self, constants: list[Any], inputs: list[Any]) -> Any:
        return _jaxpr_like(self.source, constants, inputs, self.outputs, self.equations)

    def part(
        self, inputs: Sequence[Any], outputs: Sequence[Atom], equations: Sequence[Equation]
    ) -> Callable[..., list[Any]]:
        """Some of its equations as a function of all that they read."""
        one = Program(tuple(inputs), tuple(outputs), tuple(equations), {}, self.source)
        return jex.jaxpr_as_fun(one.closed())

    def alone(self, equation: Equation) -> Callable[..., list[Any]]:
        """One equation as a function of what it reads."""
        inputs = [_new_variable(a.aval) for a in equation.invars]
        return self.part(inputs, equation.outvars, [equation.replace(invars=inputs)])

    def tidy(self) -> Program:
        """Computes equal terms once, and drops what no output and no side effect needs."""
        return _without_dead_code(_without_repeats(self))

    def replace(self, made: Mapping[Any, Atom], before: Any, added: Program) -> Program:
        """Inserts the equations of another program, whose inputs are variables of this one.

        They come before the equation ``before``, after later equations whose results they read.
        ``made`` are the atoms that replace some variables.

        Raises:
          ValueError: if ``before`` is no equation of this program, or ``added`` depends
            on a replaced variable.
        """
        known = [i for i, e in enumerate(self.equations) if e is before]
        if len(known) != 1:
            raise ValueError("Program.replace: before must be an equation of this program")
        head, tail = self.equations[: known[0]], self.equations[known[0] :]
        needed = _needed_of(tail, added.inputs)
        if any(v in made for e in needed for v in (*e.outvars, *e.invars) if is_variable(v)):
            raise ValueError("Program.replace: added reads what depends on a replaced variable")
        head = (*head, *needed)
        kept = {id(e) for e in needed}
        tail = tuple(_reading(e, made) for e in tail if id(e) not in kept)
        return dataclasses.replace(
            self,
            equations=(*head, *added.equations, *tail),
            outputs=tuple(_read(made, o) for o in self.outputs),
            constants={**self.constants, **added.constants},
        )


def _needed_of(equations: Sequence[Equation], atoms: Sequence[Atom]) -> list[Equation]:
    """The equations on which atoms depend, in their order."""
    waiting = {a for a in atoms if is_variable(a)}
    found = []
    for equation in reversed(equations):
        if not waiting.isdisjoint(equation.outvars):
            waiting.update(a for a in equation.invars if is_variable(a))
            found.append(equation)
    return found[::-1]


def traced(function: Callable[..., Any], inputs: Sequence[Atom], *, is_open: bool) -> Program:
    """The program of a function of atoms of another program, which returns a list of arrays.

    If it ``is_open``, calls are expanded, so that rules apply to them; otherwise the whole function
    is one call.
    """
    closed = jax.make_jaxpr(function)(*(a.aval for a in inputs))
    inlining = _Inlining(opens=is_open)
    outputs = inlining.expand(closed if is_open else _called(closed), tuple(inputs))
    equations, constants = tuple(inlining.equations), inlining.constants
    return Program(tuple(inputs), outputs, equations, constants, closed.jaxpr)


def _called(closed: Any) -> Any:
    """A closed jaxpr that only calls this one, and passes its constants."""
    jaxpr = closed.jaxpr
    inputs = [*jaxpr.constvars, *jaxpr.invars]
    body = _jaxpr_like(jaxpr, [], inputs, jaxpr.outvars, jaxpr.eqns)
    call = jax.make_jaxpr(jax.jit(jex.jaxpr_as_fun(jex.ClosedJaxpr(body, []))))
    made = call(*(v.aval for v in inputs)).jaxpr
    count = len(closed.consts)
    constants, arguments = made.invars[:count], made.invars[count:]
    called = _jaxpr_like(made, constants, arguments, made.outvars, made.eqns)
    return jex.ClosedJaxpr(called, closed.consts)


def _jaxpr_like(source: Any, constants: Any, inputs: Any, outputs: Any, equations: Any) -> Any:
    """A jaxpr with the names of another one."""
    return jex.Jaxpr(
        constvars=list(constants),
        invars=list(inputs),
        outvars=list(outputs),
        eqns=list(equations),
        effects=frozenset().union(*(e.effects for e in equations)),
        debug_info=source.debug_info.with_unknown_names(),
    )


def closure(start: Any, following: Callable[[Any], Iterable[Any]]) -> set[Any]:
    """All things that follow from one, itself included."""
    found, waiting = set(), [start]
    while waiting:
        this = waiting.pop()
        if this not in found:
            found.add(this)
            waiting.extend(following(this))
    return found


def is_variable(atom: Atom) -> bool:
    """Whether an atom is a variable, not a literal."""
    return not isinstance(atom, jex.Literal)


def reads_the_same(one: Atom, other: Atom) -> bool:
    """Whether two atoms are one variable, or literals of one value and type."""
    return _key_of_atom(one) == _key_of_atom(other)


class _Inlining:
    """Copies equations with fresh variables, and expands the calls among them."""

    def __init__(self, *, opens: bool = True):
        self.equations: list[Equation] = []
        self.constants: dict[Any, Any] = {}
        self.opens = opens
        self._by_identity: dict[int, Any] = {}

    @staticmethod
    def fresh(variable: Any) -> Any:
        return _new_variable(variable.aval)

    def expand(self, closed: Any, arguments: Sequence[Atom]) -> tuple[Atom, ...]:
        jaxpr = closed.jaxpr
        known: dict[Any, Atom] = dict(zip(jaxpr.invars, arguments, strict=True))
        for variable, value in zip(jaxpr.constvars, closed.consts, strict=True):
            known[variable] = self._constant(variable, value)
        for equation in jaxpr.eqns:
            reads = [_read(known, a) for a in equation.invars]
            body = _body_of_plain_call(equation) if self.opens else None
            if body is not None:
                made = self.expand(body, reads)
            else:
                made = [self.fresh(v) for v in equation.outvars]
                self.equations.append(equation.replace(invars=reads, outvars=made))
            known.update(zip(equation.outvars, made, strict=True))
        return tuple(_read(known, o) for o in jaxpr.outvars)

    def _constant(self, variable: Any, value: Any) -> Any:
        """Returns one variable for each array, even if it is closed over several times."""
        if id(value) not in self._by_identity:
            made = self.fresh(variable)
            self._by_identity[id(value)] = made
            self.constants[made] = value
        return self._by_identity[id(value)]


def _read(made: Mapping[Any, Atom], atom: Atom) -> Atom:
    return made.get(atom, atom) if is_variable(atom) else atom


def _reading(equation: Equation, made: Mapping[Any, Atom]) -> Equation:
    if not any(is_variable(a) and a in made for a in equation.invars):
        return equation
    return equation.replace(invars=[_read(made, a) for a in equation.invars])


def _body_of_plain_call(equation: Equation) -> Any:
    """The jaxpr of a call that only names code, or None.

    A ``jit`` that names shardings, layouts or options of the compiler is kept as it is.
    """
    params = equation.params
    if equation.primitive.name == "closed_call":
        return params["call_jaxpr"]
    if equation.primitive.name not in ("jit", "pjit"):
        return None
    shardings = (*params["in_shardings"], *params["out_shardings"])
    layouts = (*params["in_layouts"], *params["out_layouts"])
    is_plain = (
        all(type(s).__name__ == "UnspecifiedValue" for s in shardings)
        and all(layout is None for layout in layouts)
        and not any(params["donated_invars"])
        and not params["compiler_options_kvs"]
        and not equation.effects
    )
    return params["jaxpr"] if is_plain else None


def constants_of(closed: Any) -> Iterator[Any]:
    """The values that a closed jaxpr, and the calls in it that only name code, close over."""
    yield from closed.consts
    for equation in closed.jaxpr.eqns:
        body = _body_of_plain_call(equation)
        if body is not None:
            yield from constants_of(body)


def _without_repeats(program: Program) -> Program:
    seen: dict[Any, Sequence[Any]] = {}
    made: dict[Any, Atom] = {}
    repeated: dict[Any, Atom] = {}
    kept = []
    for equation in program.equations:
        equation = _repeating_at_once(_reading(equation, made), repeated)
        key = _key(equation)
        if key is not None and key in seen:
            made.update(zip(equation.outvars, seen[key], strict=True))
            continue
        if key is not None:
            seen[key] = equation.outvars
        kept.append(equation)
    outputs = tuple(_read(made, o) for o in program.outputs)
    return dataclasses.replace(program, equations=tuple(kept), outputs=outputs)


def _repeating_at_once(equation: Equation, repeated: dict[Any, Atom]) -> Equation:
    """An equation that repeats a repeated number, as one that repeats the number.

    Batched code repeats numbers twice. ``repeated`` maps such arrays to their numbers, and is
    updated.
    """
    if equation.primitive.name != "broadcast_in_dim" or len(equation.invars) > 1:
        return equation
    (read,), (result,) = equation.invars, equation.outvars
    number = repeated.get(read) if is_variable(read) else None
    if number is not None:
        params = {**equation.params, "broadcast_dimensions": ()}
        equation = equation.replace(invars=[number], params=params)
    elif read.aval.shape == ():
        number = read
    if number is not None:
        repeated[result] = number
    return equation


def _key(equation: Equation) -> Any:
    """A key that equal equations share; None if it can not be computed."""
    if equation.effects or equation.primitive.name == "rng_uniform":
        return None
    reads = tuple(map(_key_of_atom, equation.invars))
    types = tuple(str(v.aval) for v in equation.outvars)
    params = tuple(sorted((k, key_of_param(v)) for k, v in equation.params.items()))
    key = equation.primitive, reads, types, params
    try:
        hash(key)
    except TypeError:
        return None
    return key


def _key_of_atom(atom: Atom) -> Any:
    if is_variable(atom):
        return id(atom)
    value = np.asarray(atom.val)
    return value.tobytes(), str(value.dtype), str(atom.aval)


def key_of_param(value: Any) -> Any:
    """A key of a parameter by its value; functions and most jaxprs are equal only to themselves.

    A jaxpr of plain equations, such as the addition of a scatter, equals one with the same text.
    The text of others is not complete, as for the rules of a ``custom_vjp``.
    """
    if isinstance(value, jex.Jaxpr | jex.ClosedJaxpr):
        jaxpr = getattr(value, "jaxpr", value)
        is_plain = not jaxpr.constvars and not any(e.params for e in jaxpr.eqns)
        return str(value) if is_plain else ("id", id(value))
    if callable(value) and not isinstance(value, type):
        return "id", id(value)
    if isinstance(value, float):  # 0.0 and -0.0 are equal
        return repr(value)
    return type(value).__name__, value


def _without_dead_code(program: Program) -> Program:
    needed = {o for o in program.outputs if is_variable(o)}
    kept = []
    for equation in reversed(program.equations):
        if equation.effects or any(v in needed for v in equation.outvars):
            needed.update(a for a in equation.invars if is_variable(a))
            kept.append(equation)
    constants = {v: value for v, value in program.constants.items() if v in needed}
    return dataclasses.replace(program, equations=tuple(reversed(kept)), constants=constants)


class Values:
    """The arrays that the function of a rewrite gets, by the atoms of its inputs."""

    def __init__(self, atoms: Sequence[Atom], arrays: Sequence[Any]):
        # Literals have no hash.
        self._arrays = {id(atom): array for atom, array in zip(atoms, arrays, strict=True)}

    def __getitem__(self, atom: Atom) -> Any:
        return self._arrays[id(atom)]


def nbytes(*atoms: Atom) -> int:
    """The bytes of some arrays."""
    return sum(a.aval.size * a.aval.dtype.itemsize for a in atoms)


def place_of(equation: Equation, where: str) -> str:
    """The equation for ``explain``: its primitive and the types of its results."""
    made = ", ".join(v.aval.str_short() for v in equation.outvars)
    name = f"{equation.primitive.name} -> {made}"
    return f"{where}: {name}" if where else name
