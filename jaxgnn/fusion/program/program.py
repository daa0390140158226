"""A jaxpr as plain data: equations without nested calls, repeats or dead code."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.extend.core as jex
import numpy as np

Atom = Any  # Variable or literal of a jaxpr.
Equation = Any

_new_variable = jex.gensym()


@dataclass(frozen=True)
class Program:
    """Equations of a function of arrays, in the order in which they run."""

    inputs: tuple[Any, ...]  # Variables of the arguments.
    outputs: tuple[Atom, ...]
    equations: tuple[Equation, ...]  # Equations, each after those whose results it reads.
    constants: Mapping[Any, Any]  # Values of variables that are neither inputs nor results.
    source: Any  # Jaxpr whose names a new jaxpr keeps.

    @classmethod
    def from_jaxpr(cls, closed: Any) -> Program:
        """Returns the program of a closed jaxpr, with plain calls expanded."""
        inlining = _Inlining()
        inputs = tuple(map(inlining.fresh, closed.jaxpr.invars))
        outputs = inlining.expand(closed, inputs)
        program = cls(inputs, outputs, tuple(inlining.equations), inlining.constants, closed.jaxpr)
        return program.tidy()

    @property
    def effects(self) -> frozenset[Any]:
        """Side effects, such as prints and writes to references, of any equation."""
        return frozenset().union(*(e.effects for e in self.equations))

    def closed(self) -> Any:
        """Returns the program as a closed jaxpr, which ``jax.extend.core.jaxpr_as_fun`` runs."""
        jaxpr = self._jaxpr(list(self.constants), list(self.inputs))
        return jex.ClosedJaxpr(jaxpr, list(self.constants.values()))

    def opened(self) -> Any:
        """Returns the program as a jaxpr whose first inputs are the constants."""
        return self._jaxpr([], [*self.constants, *self.inputs])

    def _jaxpr(self, constants: list[Any], inputs: list[Any]) -> Any:
        return _jaxpr_like(self.source, constants, inputs, self.outputs, self.equations)

    def part(
        self, inputs: Sequence[Any], outputs: Sequence[Atom], equations: Sequence[Equation]
    ) -> Callable[..., list[Any]]:
        """Returns some equations as a function of all that they read."""
        one = Program(tuple(inputs), tuple(outputs), tuple(equations), {}, self.source)
        return jex.jaxpr_as_fun(one.closed())

    def alone(self, equation: Equation) -> Callable[..., list[Any]]:
        """Returns one equation as a function of its operands."""
        inputs = [_new_variable(a.aval) for a in equation.invars]
        return self.part(inputs, equation.outvars, [equation.replace(invars=inputs)])

    def tidy(self) -> Program:
        """Computes equal terms once, and drops what no output and no side effect needs."""
        return _live_part(_deduplicated(self))

    def replace(self, replacements: Mapping[Any, Atom], before: Any, added: Program) -> Program:
        """Inserts the equations of another program, whose inputs are variables of this one.

        They come before the equation ``before``, after later equations whose results they read.
        ``replacements`` maps variables to the atoms that replace them.

        Raises:
          ValueError: if ``before`` is no equation of this program, or ``added`` depends
            on a replaced variable.
        """
        positions = [i for i, e in enumerate(self.equations) if e is before]
        if len(positions) != 1:
            raise ValueError("Program.replace: before must be an equation of this program")
        head, tail = self.equations[: positions[0]], self.equations[positions[0] :]
        needed = _dependencies(tail, added.inputs)
        if any(
            v in replacements for e in needed for v in (*e.outvars, *e.invars) if is_variable(v)
        ):
            raise ValueError("Program.replace: added reads what depends on a replaced variable")
        head = (*head, *needed)
        kept = {id(e) for e in needed}
        tail = tuple(_substituted(e, replacements) for e in tail if id(e) not in kept)
        return dataclasses.replace(
            self,
            equations=(*head, *added.equations, *tail),
            outputs=tuple(_substitute(replacements, o) for o in self.outputs),
            constants={**self.constants, **added.constants},
        )


def _dependencies(equations: Sequence[Equation], atoms: Sequence[Atom]) -> list[Equation]:
    """Returns the equations that atoms depend on, in their order."""
    waiting = {a for a in atoms if is_variable(a)}
    needed = []
    for equation in reversed(equations):
        if not waiting.isdisjoint(equation.outvars):
            waiting.update(a for a in equation.invars if is_variable(a))
            needed.append(equation)
    return needed[::-1]


def traced(function: Callable[..., Any], inputs: Sequence[Atom], *, is_open: bool) -> Program:
    """Traces a function of atoms of another program, which returns a list of arrays.

    If it ``is_open``, calls are expanded, so that rules apply to them; otherwise the whole function
    is one call.
    """
    closed = jax.make_jaxpr(function)(*(a.aval for a in inputs))
    inlining = _Inlining(opens=is_open)
    outputs = inlining.expand(closed if is_open else _called(closed), tuple(inputs))
    equations, constants = tuple(inlining.equations), inlining.constants
    return Program(tuple(inputs), outputs, equations, constants, closed.jaxpr)


def _called(closed: Any) -> Any:
    """Wraps a closed jaxpr in one that only calls it and passes its constants."""
    jaxpr = closed.jaxpr
    inputs = [*jaxpr.constvars, *jaxpr.invars]
    body = _jaxpr_like(jaxpr, [], inputs, jaxpr.outvars, jaxpr.eqns)
    call = jax.make_jaxpr(jax.jit(jex.jaxpr_as_fun(jex.ClosedJaxpr(body, []))))
    caller = call(*(v.aval for v in inputs)).jaxpr
    count = len(closed.consts)
    constants, arguments = caller.invars[:count], caller.invars[count:]
    called = _jaxpr_like(caller, constants, arguments, caller.outvars, caller.eqns)
    return jex.ClosedJaxpr(called, closed.consts)


def _jaxpr_like(source: Any, constants: Any, inputs: Any, outputs: Any, equations: Any) -> Any:
    """Builds a jaxpr with the names of another one."""
    return jex.Jaxpr(
        constvars=list(constants),
        invars=list(inputs),
        outvars=list(outputs),
        eqns=list(equations),
        effects=frozenset().union(*(e.effects for e in equations)),
        debug_info=source.debug_info.with_unknown_names(),
    )


def closure(start: Any, following: Callable[[Any], Iterable[Any]]) -> set[Any]:
    """Returns everything reachable from a start, the start included."""
    reached, waiting = set(), [start]
    while waiting:
        this = waiting.pop()
        if this not in reached:
            reached.add(this)
            waiting.extend(following(this))
    return reached


def is_variable(atom: Atom) -> bool:
    """Returns whether an atom is a variable, not a literal."""
    return not isinstance(atom, jex.Literal)


def reads_the_same(one: Atom, other: Atom) -> bool:
    """Returns whether two atoms are one variable, or literals of one value and type."""
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
        atoms: dict[Any, Atom] = dict(zip(jaxpr.invars, arguments, strict=True))
        for variable, value in zip(jaxpr.constvars, closed.consts, strict=True):
            atoms[variable] = self._constant(variable, value)
        for equation in jaxpr.eqns:
            reads = [_substitute(atoms, a) for a in equation.invars]
            body = _body_of_plain_call(equation) if self.opens else None
            if body is not None:
                results = self.expand(body, reads)
            else:
                results = [self.fresh(v) for v in equation.outvars]
                self.equations.append(equation.replace(invars=reads, outvars=results))
            atoms.update(zip(equation.outvars, results, strict=True))
        return tuple(_substitute(atoms, o) for o in jaxpr.outvars)

    def _constant(self, variable: Any, value: Any) -> Any:
        """Returns one variable for each array, even if it is closed over several times."""
        if id(value) not in self._by_identity:
            variable_of_value = self.fresh(variable)
            self._by_identity[id(value)] = variable_of_value
            self.constants[variable_of_value] = value
        return self._by_identity[id(value)]


def _substitute(replacements: Mapping[Any, Atom], atom: Atom) -> Atom:
    return replacements.get(atom, atom) if is_variable(atom) else atom


def _substituted(equation: Equation, replacements: Mapping[Any, Atom]) -> Equation:
    if not any(is_variable(a) and a in replacements for a in equation.invars):
        return equation
    return equation.replace(invars=[_substitute(replacements, a) for a in equation.invars])


def _body_of_plain_call(equation: Equation) -> Any:
    """Returns the jaxpr of a call without options, or None.

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
    """Yields the values that a closed jaxpr and the plain calls in it close over."""
    yield from closed.consts
    for equation in closed.jaxpr.eqns:
        body = _body_of_plain_call(equation)
        if body is not None:
            yield from constants_of(body)


def _deduplicated(program: Program) -> Program:
    seen: dict[Any, Sequence[Any]] = {}
    replacements: dict[Any, Atom] = {}
    repeated: dict[Any, Atom] = {}
    kept = []
    for equation in program.equations:
        equation = _repeating_at_once(_substituted(equation, replacements), repeated)
        key = _key(equation)
        if key is not None and key in seen:
            replacements.update(zip(equation.outvars, seen[key], strict=True))
            continue
        if key is not None:
            seen[key] = equation.outvars
        kept.append(equation)
    outputs = tuple(_substitute(replacements, o) for o in program.outputs)
    return dataclasses.replace(program, equations=tuple(kept), outputs=outputs)


def _repeating_at_once(equation: Equation, repeated: dict[Any, Atom]) -> Equation:
    """Rewrites a broadcast of a broadcast number as one broadcast of the number.

    Batched code broadcasts numbers twice. ``repeated`` maps such arrays to their numbers, and is
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
    """Returns a key that equal equations share; None if it can not be computed."""
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
    """Returns a key of a parameter by its value; functions equal only themselves.

    A jaxpr of plain equations, such as the addition of a scatter, equals one with the same text.
    The text of others is not complete, as for the rules of a ``custom_vjp``.
    """
    if isinstance(value, jex.Jaxpr | jex.ClosedJaxpr):
        jaxpr = getattr(value, "jaxpr", value)
        is_plain = not jaxpr.constvars and not any(e.params for e in jaxpr.eqns)
        return str(value) if is_plain else ("id", id(value))
    if callable(value) and not isinstance(value, type):
        return "id", id(value)
    if isinstance(value, float):  # The text differs for 0.0 and -0.0, which are equal.
        return repr(value)
    return type(value).__name__, value


def _live_part(program: Program) -> Program:
    needed = {o for o in program.outputs if is_variable(o)}
    kept = []
    for equation in reversed(program.equations):
        if equation.effects or any(v in needed for v in equation.outvars):
            needed.update(a for a in equation.invars if is_variable(a))
            kept.append(equation)
    constants = {v: value for v, value in program.constants.items() if v in needed}
    return dataclasses.replace(program, equations=tuple(reversed(kept)), constants=constants)


class Values:
    """Arrays that the function of a rewrite receives, by the atoms of its inputs."""

    def __init__(self, atoms: Sequence[Atom], arrays: Sequence[Any]):
        # Literals have no hash.
        self._arrays = {id(atom): array for atom, array in zip(atoms, arrays, strict=True)}

    def __getitem__(self, atom: Atom) -> Any:
        return self._arrays[id(atom)]


def nbytes(*atoms: Atom) -> int:
    """Returns the total bytes of arrays."""
    return sum(a.aval.size * a.aval.dtype.itemsize for a in atoms)


def place_of(equation: Equation, where: str) -> str:
    """Describes an equation for ``explain``: its primitive and the types of its results."""
    types = ", ".join(v.aval.str_short() for v in equation.outvars)
    name = f"{equation.primitive.name} -> {types}"
    return f"{where}: {name}" if where else name
