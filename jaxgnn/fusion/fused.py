"""``jaxgnn.fuse``: runs the graph code of a JAX function by this library's ops."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import jax
import jax.extend.core as jex
import jax.numpy as jnp
import numpy as np

from jaxgnn._arrays.arrays import in_native_order
from jaxgnn._errors import bad_input
from jaxgnn._methods import Method, State, captured_by, is_pytree
from jaxgnn.fusion.graphs.static_graphs import digest_of_argument
from jaxgnn.fusion.policy import Policy
from jaxgnn.fusion.program.constants import Jitted, has_large_constants, opened
from jaxgnn.fusion.program.program import Program
from jaxgnn.fusion.report import Explanation, Measured
from jaxgnn.fusion.rewriting import Findings, RuleError, Rules
from jaxgnn.fusion.rules.table import RULES
from jaxgnn.fusion.transform import index_inputs, transformed
from jaxgnn.fusion.verify import difference
from jaxgnn.graph import is_concrete
from jaxgnn.testing.timing import Candidate, measure_in_turns

Verify = Literal["off", "warn", "strict"]
"""Comparison of results with those of the original function, and the action if they differ."""


@dataclass(frozen=True)
class Options:
    """Options of a rewrite of a function."""

    static_graph: bool | tuple[str, ...]  # Arguments whose concrete ids are known ahead.
    graph_arguments: tuple[str, ...]  # Arguments whose ids each call sorts.
    verify: Verify
    policy: Policy


@dataclass(frozen=True)
class _Call:
    """Part of a call that is not traced."""

    structure: Any  # Pytree of the arguments.
    static: tuple[tuple[int, Any], ...]  # Leaves that are no arrays, with their positions.
    kinds: tuple[Any, ...]  # Keys that tell equal leaves apart: 1, 1.0 and True; 0.0 and -0.0.
    digests: tuple[tuple[int, bytes], ...] = ()  # Digests of the arrays in ``known_ids``.
    known_ids: dict[int, Any] = field(
        default_factory=dict, compare=False
    )  # Known ids, by the position of the array.
    graphs: tuple[int, ...] = ()  # Positions of the arrays that each call sorts.

    def arguments(self, arrays: Sequence[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Returns the arguments of the function."""
        leaves, rest = dict(self.static), iter(arrays)
        size = len(self.static) + len(arrays)
        return jax.tree.unflatten(
            self.structure, [leaves[i] if i in leaves else next(rest) for i in range(size)]
        )


class _LeftAsItIs(Exception):
    """Reason why a function is not rewritten."""


class Fused(Method):
    """A function that is rewritten when it is called."""

    def __init__(self, fn: Callable[..., Any], options: Options):
        super().__init__(fn)
        self.options = options
        self._fn = fn
        self._is_module = is_pytree(fn)
        self._compiled = Jitted(self._run, static_argnums=(0,))
        self._has_large_constants: dict[_Call, bool] = {}
        self._index_inputs: dict[Any, set[int]] = {}
        self._trusted: dict[Any, bool] = {}
        functools.update_wrapper(self, fn, updated=())

    def of_function(self, function: Callable[..., Any]) -> Fused:
        """Rewrites another function with the same options."""
        return Fused(function, self.options)

    @property
    def function(self) -> Callable[..., Any]:
        """The original function."""
        return self._fn

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        try:
            call, arrays = self._call(args, kwargs)
            is_traced = not is_concrete(*arrays)
            if self.options.verify != "off" and not self._is_trusted(call, arrays, is_traced):
                return self._fn(*args, **kwargs)
            return (self._run if is_traced else self._runner(call, arrays))(call, *arrays)
        except _LeftAsItIs as reason:
            self._warn(f"is left as it is: {reason}", stacklevel=3)
            return self._fn(*args, **kwargs)

    def _runner(self, call: _Call, arrays: list[Any]) -> Callable[..., Any]:
        """Compiles the rewritten function, with large constants as arguments if there are any."""
        is_large = self._has_large_constants.get(call)
        if is_large is None:
            is_large = has_large_constants(self._compiled.inner.trace(call, *arrays).jaxpr)
            self._has_large_constants[call] = is_large
        return self._compiled if is_large else self._compiled.inner

    def explanation(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], *, measure: bool
    ) -> Explanation:
        """Explains the rewrites of a call with these arguments.

        With ``measure``, both functions are timed if any code was rewritten.
        """
        findings = Findings()
        try:
            call, arrays = self._call(args, kwargs)
            closed, _ = self._traced(call, arrays)
            program, findings = self._transformed(closed, call)
        except _LeftAsItIs as reason:
            findings.untouched.append(str(reason))
            return Explanation(self._name, findings, 0, 0)
        before = Program.from_jaxpr(closed)
        is_timed = measure and bool(findings.applied)
        return Explanation(
            self._name,
            findings,
            len(before.equations),
            len(program.equations),
            measured=_times(closed, program.closed(), arrays) if is_timed else None,
            _programs=(before, program),
        )

    def __repr__(self) -> str:
        """Names the function and how to export it; errors of JAX print this text."""
        return f"<{self._name} after jaxgnn.fuse; jaxgnn.export exports it>"

    @property
    def _name(self) -> str:
        return getattr(self._fn, "__name__", type(self._fn).__name__)

    def _is_trusted(self, call: _Call, arrays: list[Any], is_traced: bool) -> bool:
        """Compares the rewritten function with the original once; returns whether it may run."""
        key = _typed(call, arrays)
        if key in self._trusted:
            return self._trusted[key]
        if is_traced:
            self._warn("is not verified inside of a transformation: call it with arrays first")
            return True
        message = self._difference(call, arrays)
        if message is not None:
            self._warn(f"is not what it was: {message}")
        self._trusted[key] = message is None or self.options.verify == "warn"
        return self._trusted[key]

    def _difference(self, call: _Call, arrays: list[Any]) -> str | None:
        closed, _ = self._traced(call, arrays)
        program, findings = self._transformed(closed, call)
        if not findings.applied:
            return None
        sizes = [n for e in closed.jaxpr.eqns for v in e.outvars for n in v.aval.shape]
        functions = jex.jaxpr_as_fun(closed), jex.jaxpr_as_fun(program.closed())
        return difference(*functions, arrays, max(sizes, default=1))

    def _warn(self, what: str, stacklevel: int = 4) -> None:
        warnings.warn(f"jaxgnn.fuse: {self._name} {what}", stacklevel=stacklevel)

    def _call(self, args: Any, kwargs: Any) -> tuple[_Call, list[Any]]:
        """Splits a call into its static part and its arrays; raises if an argument has no hash."""
        tree = ((self._fn if self._is_module else None, *args), kwargs)
        leaves, structure = jax.tree.flatten(tree)
        arrays = [in_native_order(leaf) for leaf in leaves if is_array(leaf)]
        static = tuple((i, x) for i, x in enumerate(leaves) if not is_array(x))
        call = _Call(structure, static, tuple(_kind(x) for _, x in static))
        try:
            hash(call)
        except TypeError:
            raise _LeftAsItIs("an argument is no array and has no hash") from None
        if self.options.graph_arguments:
            call = dataclasses.replace(call, graphs=self._graphs(arrays, args, kwargs))
        return self._add_known_ids(call, arrays, args, kwargs), arrays

    def _graphs(self, arrays: list[Any], args: Any, kwargs: Any) -> tuple[int, ...]:
        """Returns the positions of integer arrays in arguments that ``graph_arguments`` names.

        Raises:
          ValueError: if an argument is missing, or has no integer arrays.
        """
        bound = inspect.signature(self._fn).bind(*args, **kwargs).arguments
        positions: set[int] = set()
        for name in self.options.graph_arguments:
            leaves = jax.tree.leaves(bound.get(name))
            ids = {id(leaf) for leaf in leaves if is_array(leaf) and _may_be_ids(leaf)}
            if not ids:
                expected = "an array of integers, or a pytree that has some"
                shown = ", ".join(_shown(leaf) for leaf in leaves[:4])
                raise bad_input("fuse", f"graph_arguments: {name}", expected, shown or "nothing")
            positions |= {i for i, a in enumerate(arrays) if id(a) in ids}
        return tuple(sorted(positions))

    def _add_known_ids(self, call: _Call, arrays: list[Any], args: Any, kwargs: Any) -> _Call:
        candidates = self._candidates(arrays, args, kwargs) - set(call.graphs)
        if not candidates:
            return call
        ids_by_position = {i: arrays[i] for i in sorted(self._indices(call, arrays) & candidates)}
        digests = tuple((i, digest_of_argument(ids)) for i, ids in ids_by_position.items())
        return dataclasses.replace(call, digests=digests, known_ids=ids_by_position)

    def _indices(self, call: _Call, arrays: list[Any]) -> set[int]:
        """Returns the positions of the arrays that ids of gathers and segments depend on."""
        key = _typed(call, arrays)
        if key not in self._index_inputs:
            positions = set()
            try:
                positions = index_inputs(Program.from_jaxpr(self._traced(call, arrays)[0]))
            except _LeftAsItIs:
                pass  # The call itself reports the reason.
            except Exception as error:
                self._warn(f"has no ids that are known: {type(error).__name__}: {error}")
            self._index_inputs[key] = positions
        return self._index_inputs[key]

    def _candidates(self, arrays: list[Any], args: Any, kwargs: Any) -> set[int]:
        """Returns the positions of integer arrays that may be treated as known."""
        names = self.options.static_graph
        if names is False:
            return set()
        may_be = {i for i, a in enumerate(arrays) if _holds_ids(a)}
        if names is True:
            return may_be
        bound = inspect.signature(self._fn).bind(*args, **kwargs).arguments
        named = {id(leaf) for name in names for leaf in jax.tree.leaves(bound.get(name))}
        return {i for i in may_be if id(arrays[i]) in named}

    def _traced(self, call: _Call, arrays: Sequence[Any]) -> tuple[Any, Any]:
        """Returns the closed jaxpr of the original function, and the structure of its results."""
        shape: Any = None

        def flat(*arrays: Any) -> list[Any]:
            nonlocal shape
            leaves, shape = jax.tree.flatten(self._apply(*call.arguments(arrays)))
            return leaves

        try:
            return jax.make_jaxpr(flat)(*arrays), shape
        except _LeftAsItIs:
            raise
        except Exception as error:
            reason = f"it can not be traced: {type(error).__name__}: {error}"
            raise _LeftAsItIs(reason) from error

    def _apply(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Calls the original function on the unflattened arguments.

        Raises where it changes an argument, such as the averages of a module or a stream of random
        numbers: the caller's objects would not see the change.
        """
        module, *rest = args
        arguments = args, kwargs, captured_by(self._fn)
        before = State(arguments)
        results = module(*rest, **kwargs) if self._is_module else self._fn(*rest, **kwargs)
        if before.changes(arguments):
            what = "its own state" if self._is_module else "an argument"
            raise _LeftAsItIs(f"it changes {what}")
        return results

    def _transformed(self, closed: Any, call: _Call) -> tuple[Program, Findings]:
        """Returns the rewritten program; the original program and the reason if a rule fails."""
        values = {i: np.asarray(ids) for i, ids in call.known_ids.items()}
        rules = Rules(RULES, self.options.policy)
        try:
            return transformed(closed, rules, values, call.graphs)
        except (KeyboardInterrupt, SystemExit):
            raise
        # A fault of ours must not end the user's function; a panic in Rust is no Exception.
        except BaseException as error:
            reason = f"rewriting failed: {type(error).__name__}: {error}"
            reason = str(error) if isinstance(error, RuleError) else reason
            return Program.from_jaxpr(closed), Findings(untouched=[reason])

    def _run(self, call: _Call, *arrays: Any) -> Any:
        """Runs the rewritten function."""
        closed, shape = self._traced(call, arrays)
        program, findings = self._transformed(closed, call)
        if findings.untouched and not findings.applied:
            self._warn("is left as it is: " + "; ".join(findings.untouched))
        runnable = program.closed() if findings.applied else closed
        return jax.tree.unflatten(shape, jex.jaxpr_as_fun(runnable)(*arrays))


def _times(before: Any, after: Any, arrays: Sequence[Any]) -> Measured:
    """Measures two closed jaxprs on the same arrays."""
    candidates = {}
    for name, closed in (("before_ms", before), ("after_ms", after)):
        parts = opened(jax.jit(jex.jaxpr_as_fun(closed)).trace(*arrays))
        candidates[name] = Candidate(parts.run, [(parts.constants, *arrays)])
    measurements = measure_in_turns(candidates, budget_ms=1_000.0)
    return Measured(
        **{name: None if t is None else t.median_ms for name, t in measurements.items()}
    )


def _typed(call: _Call, arrays: Sequence[Any]) -> Any:
    """Returns a key of a call and the types of its arrays."""
    return call, tuple((a.shape, a.dtype) for a in arrays)


def _kind(leaf: Any) -> tuple[Any, ...]:
    """Returns a key of a leaf that is no array: its type, and the text of a float."""
    return type(leaf), repr(leaf) if isinstance(leaf, float | complex) else None


def is_array(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array | np.ndarray | np.generic | jax.ShapeDtypeStruct)


def _holds_ids(array: Any) -> bool:
    return is_concrete(array) and _may_be_ids(array)


def _may_be_ids(array: Any) -> bool:
    return bool(jnp.issubdtype(array.dtype, jnp.integer)) and len(array.shape) > 0


def _shown(leaf: Any) -> str:
    if not is_array(leaf):
        return type(leaf).__name__
    return f"{leaf.dtype}[{','.join(map(str, leaf.shape))}]"
