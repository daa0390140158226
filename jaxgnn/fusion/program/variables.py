"""Producers and users of each variable of a program, and its value if that is known.

A function is traced again for its gradients, for other shapes and by ``explain``. The edge lists in
it are the same arrays each time, and so are results that depend only on them, which a store keeps
across traces. A term of such arrays is identified by a digest of its equations, with the arrays
themselves at the leaves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, MutableMapping, Sequence
from typing import Any

import jax
import numpy as np

from jaxgnn.fusion.program.integers import evaluated
from jaxgnn.fusion.program.matching import required
from jaxgnn.fusion.program.program import (
    Atom,
    Equation,
    Program,
    closure,
    is_variable,
)
from jaxgnn.fusion.program.stored_values import (
    STORE,
    Content,
    content_of_constant,
    content_of_literal,
    content_of_result,
)
from jaxgnn.graph import is_concrete

# Cheap functions of arrays, which are evaluated in advance if all of their operands are known.
# fmt: off
_EVALUATED = frozenset((
    "add", "and", "argsort", "bcoo_transpose", "broadcast_in_dim", "clamp", "concatenate",
    "convert_element_type", "copy", "cumsum", "div", "dynamic_slice", "eq", "gather", "ge", "gt",
    "integer_pow", "iota",
    "is_finite", "le", "lt", "max", "min", "mul", "ne", "neg", "not", "or", "pad", "pow",
    "reduce_and", "reduce_max", "reduce_min", "reduce_or", "reduce_sum", "rem", "reshape",
    "rev", "rsqrt", "scatter", "scatter-add", "scatter-max", "scatter-min", "select_n", "sign",
    "slice", "sort", "split", "sqrt", "square", "squeeze", "stack", "stop_gradient", "sub",
    "transpose", "unstack", "xor",
))
# fmt: on
_LARGEST_KNOWN = 1 << 28  # Largest number of entries of an array evaluated in advance.


class View:
    """Definitions and uses of the variables of one program."""

    def __init__(self, program: Program, known_values: MutableMapping[Any, Any]):
        self.program = program
        # Known values by variable, and results that depend on them alone by question. The views of
        # all versions of a program share them.
        self.known_values = known_values
        self._producers = {v: e for e in program.equations for v in e.outvars}
        self._positions = {v: i for i, e in enumerate(program.equations) for v in e.outvars}
        self._users: dict[Any, list[Equation]] = {}
        for equation in program.equations:
            for atom in equation.invars:
                if is_variable(atom):
                    self._users.setdefault(atom, []).append(equation)
        self._outputs = {o for o in program.outputs if is_variable(o)}
        self._remembered: dict[tuple[str, Any], Any] = {}

    def remembered(self, question: str, atom: Atom | None, answer: Callable[[], Any]) -> Any:
        """Returns the answer to a question about a variable; computes it once for each view.

        An answer about a literal is not kept.
        """
        if not is_variable(atom):
            return answer()
        key = question, atom
        if key not in self._remembered:
            self._remembered[key] = answer()
        return self._remembered[key]

    def derived(
        self, question: tuple[Any, ...], answer: Callable[[], Any], *, of: Sequence[Atom] = ()
    ) -> Any:
        """Returns a result of known values; computes it once for all versions of a program.

        Args:
          question: names the question, the variables whose values it is about, and all else that
            the answer depends on.
          answer: computes the answer.
          of: the variables, if the first part of the question names all else: then an array that
            answers is kept for other programs that close over the same arrays.
        """
        if question not in self.known_values:
            contents = [self._content(atom) for atom in of]
            stable = [content for content in contents if content is not None]
            is_kept = len(contents) > 0 and len(stable) == len(contents)
            self.known_values[question] = (
                STORE.get(question[0], stable, answer) if is_kept else answer()
            )
        return self.known_values[question]

    def _content(self, atom: Atom) -> Content | None:
        """Returns the content of an atom in terms of closed-over arrays, or None."""
        if not is_variable(atom):
            return content_of_literal(atom.val)
        return self._worked_out("content", atom, self._content_of)

    def _content_of(self, variable: Any) -> Content | None:
        if variable in self.program.constants:
            return content_of_constant(self.program.constants[variable])
        equation = self._producers.get(variable)
        if equation is None or equation.primitive.name not in _EVALUATED:
            return None
        reads = [self._content(atom) for atom in equation.invars]
        return content_of_result(equation, equation.outvars.index(variable), reads)

    def _worked_out(self, question: str, variable: Any, answer: Callable[[Any], Any]) -> Any:
        """Returns the answer about a variable, and first computes those about its operands.

        In this order each answer needs one equation, in programs of any length.
        """
        if (question, variable) not in self._remembered:
            done = self._remembered
            for this in self._leading_to(variable, lambda v: (question, v) in done):
                done[question, this] = answer(this)
        return self._remembered[question, variable]

    def _leading_to(self, variable: Any, is_done: Callable[[Any], bool]) -> list[Any]:
        """Lists a variable and what it depends on through equations evaluated in advance."""

        def reads(this: Any) -> Iterator[Any]:
            equation = self._producers.get(this)
            if equation is not None and equation.primitive.name in _EVALUATED:
                yield from (a for a in equation.invars if is_variable(a) and not is_done(a))

        reached = set() if is_done(variable) else closure(variable, reads)
        return sorted(reached, key=lambda v: self._positions.get(v, -1))

    def producer(self, atom: Atom) -> Equation | None:
        """Returns the equation that computes a variable; None for other atoms."""
        return self._producers.get(atom) if is_variable(atom) else None

    def produced_by(self, atom: Atom, *names: str) -> Equation | None:
        """Returns the producer of a variable if it has one of these primitives, or None."""
        equation = self.producer(atom)
        return equation if equation is not None and equation.primitive.name in names else None

    def match(self, atom: Atom, *names: str) -> Equation:
        """Returns the producer of a variable; raises ``NoMatch`` for other primitives."""
        return required(self.produced_by(atom, *names))

    def users(self, variable: Any) -> list[Equation]:
        """Returns the equations that read a variable."""
        return self._users.get(variable, [])

    def is_output(self, variable: Any) -> bool:
        """Returns whether a variable is a result of the program."""
        return variable in self._outputs

    def is_read_once(self, variable: Any) -> bool:
        """Returns whether one equation reads a variable, and nothing else."""
        return len(self.users(variable)) == 1 and not self.is_output(variable)

    def value(self, atom: Atom) -> np.ndarray | None:
        """Returns the value of an atom that is the same for all arguments, or None."""
        if not is_variable(atom):
            return np.asarray(atom.val)
        if atom not in self.known_values:
            is_known = self.is_known(atom)
            for variable in (
                self._leading_to(atom, self.known_values.__contains__) if is_known else ()
            ):
                if variable not in self.known_values:
                    self.known_values[variable] = self._evaluated(variable)
            self.known_values.setdefault(atom, None)
        return self.known_values[atom]

    def number(self, atom: Atom) -> float | None:
        """Returns the known value of an array with one entry, or None."""
        value = self.value(atom) if atom.aval.size == 1 else None
        return None if value is None else float(value.reshape(()))

    def is_known(self, atom: Atom) -> bool:
        """Returns whether ``value`` can return an array, without computing it."""
        if not is_variable(atom):
            return True
        if atom in self.known_values:
            return self.known_values[atom] is not None
        return self._worked_out("is known", atom, self._is_known)

    def _is_known(self, variable: Any) -> bool:
        if variable in self.program.constants:
            value = self.program.constants[variable]
            return is_concrete(value) and is_plain(value)
        equation = self._producers.get(variable)
        if equation is None or equation.primitive.name not in _EVALUATED:
            return False
        if any(v.aval.size > _LARGEST_KNOWN for v in equation.outvars):
            return False
        return all(map(self.is_known, equation.invars))

    def _evaluated(self, variable: Any) -> np.ndarray:
        if variable in self.program.constants:
            return np.asarray(self.program.constants[variable])
        equation = self._producers[variable]
        reads = [np.asarray(self.value(atom)) for atom in equation.invars]
        values = dict(zip(equation.outvars, self._evaluate(equation, reads), strict=True))
        self.known_values.update(values)
        return values[variable]

    def _evaluate(self, equation: Equation, reads: list[np.ndarray]) -> list[np.ndarray]:
        """Returns the results of one equation for these arrays."""
        results = evaluated(equation, reads)
        if results is not None:
            return results
        with jax.ensure_compile_time_eval():
            return [np.asarray(v) for v in self.program.alone(equation)(*reads)]

    def reads(self, variable: Any) -> Iterator[Any]:
        """Returns the variables that the equation of a variable reads."""
        equation = self._producers.get(variable)
        return filter(is_variable, () if equation is None else equation.invars)

    def roots(self, variable: Any) -> set[Any]:
        """Returns the inputs of the program on which a variable depends."""
        return closure(variable, self.reads).intersection(self.program.inputs)


def is_plain(value: Any) -> bool:
    """Returns whether a value is an array of numbers, unlike random keys and tokens."""
    dtype = getattr(value, "dtype", None)
    if dtype is None:
        return isinstance(value, int | float | bool)
    return not jax.dtypes.issubdtype(dtype, jax.dtypes.extended)


class UnroundedView(View):
    """View that ignores conversions between floats of at most 32 bits.

    Ops that compute in float32 and round their results once are matched with it.
    """

    def producer(self, atom: Atom) -> Equation | None:
        """Returns the equation that computes a variable, or the value that was rounded to it."""
        return super().producer(self.source(atom))

    def source(self, atom: Atom) -> Atom:
        """Returns the array before conversions between short floats."""
        while (equation := super().producer(atom)) is not None and _is_rounding(equation):
            atom = equation.invars[0]
        return atom


def _is_rounding(equation: Equation) -> bool:
    atoms = *equation.invars, *equation.outvars
    is_conversion = equation.primitive.name == "convert_element_type"
    return is_conversion and all(a.aval.dtype.name in SHORT_FLOATS for a in atoms)


SHORT_FLOATS = ("float32", "bfloat16", "float16")


def unrounded(view: View) -> UnroundedView:
    """Returns the view of the same program without conversions between short floats."""
    return view.remembered(
        "unrounded", None, lambda: UnroundedView(view.program, view.known_values)
    )
