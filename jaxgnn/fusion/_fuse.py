"""``jaxgnn.fuse``: a function of JAX with its graph code on this library's ops."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import jax
import jax.extend.core as jex
import numpy as np

from jaxgnn._errors import bad_input
from jaxgnn.fusion._graphs import digest
from jaxgnn.fusion._program import Program
from jaxgnn.fusion._report import Explanation
from jaxgnn.fusion._rewrite import Findings
from jaxgnn.fusion._rules import RULES
from jaxgnn.fusion._transform import index_inputs, transformed
from jaxgnn.graph import is_concrete

Verify = Literal["off", "warn", "strict"]


@dataclass(frozen=True)
class Options:
    """How a function is rewritten.

    Attributes:
      static_graph: the names of the arguments whose ids are known when they are concrete, or
        whether those of all arguments are.
      verify: how results are compared with those of the function as it is.
    """

    static_graph: bool | tuple[str, ...]
    verify: Verify


@dataclass(frozen=True)
class _Call:
    """The part of a call that is not traced.

    Attributes:
      structure: the pytree of the arguments.
      static: the leaves that are no arrays, by position.
      digests: keys of the arrays in ``known``, by position among the arrays.
      known: ids that are known, by position among the arrays.
    """

    structure: Any
    static: tuple[tuple[int, Any], ...]
    digests: tuple[tuple[int, bytes], ...] = ()
    known: dict[int, Any] = field(default_factory=dict, compare=False)

    def arguments(self, arrays: Sequence[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments of the function."""
        leaves = dict(self.static)
        rest = iter(arrays)
        size = len(self.static) + len(arrays)
        return jax.tree.unflatten(
            self.structure, [leaves[i] if i in leaves else next(rest) for i in range(size)]
        )


class _LeftAsItIs(Exception):
    """Why a function can not be rewritten."""


class Fused:
    """A function that is rewritten when it is called.

    Attributes:
      options: how it is rewritten.
    """

    def __init__(self, fn: Callable[..., Any], options: Options):
        leaves = jax.tree.leaves(fn)
        self.options = options
        self._fn = fn
        self._is_module = bool(leaves) and leaves[0] is not fn
        self._compiled = jax.jit(self._run, static_argnums=0)
        self._index_inputs: dict[Any, set[int]] = {}
        functools.update_wrapper(self, fn, updated=())

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        call, arrays = self._call(args, kwargs)
        if call is None:
            return self._left_as_it_is("an argument is no array and has no hash", args, kwargs)
        is_traced = any(isinstance(a, jax.core.Tracer) for a in arrays)
        try:
            return (self._run if is_traced else self._compiled)(call, *arrays)
        except _LeftAsItIs as reason:
            return self._left_as_it_is(str(reason), args, kwargs)

    def explanation(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Explanation:
        """What a call with these arguments rewrites."""
        call, arrays = self._call(args, kwargs)
        findings, before, after = Findings(), (), ()
        try:
            if call is None:
                raise _LeftAsItIs("an argument is no array and has no hash")
            closed, _ = self._traced(call, arrays)
            before = Program.of(closed).equations
            program, findings = self._transformed(closed, call)
            after = program.equations
        except _LeftAsItIs as reason:
            findings.untouched.append(str(reason))
        return Explanation(self._name, findings, len(before), len(after))

    @property
    def _name(self) -> str:
        return getattr(self._fn, "__name__", type(self._fn).__name__)

    def _left_as_it_is(self, reason: str, args: Any, kwargs: Any) -> Any:
        self._warn(reason)
        return self._fn(*args, **kwargs)

    def _warn(self, reason: str) -> None:
        message = f"jaxgnn.fuse: {self._name} is left as it is: {reason}"
        warnings.warn(message, stacklevel=4)

    def _call(self, args: Any, kwargs: Any) -> tuple[_Call | None, list[Any]]:
        """The static part of a call and its arrays; no static part if that has no hash."""
        tree = ((self._fn if self._is_module else None, *args), kwargs)
        leaves, structure = jax.tree.flatten(tree)
        is_array = [_is_array(leaf) for leaf in leaves]
        arrays = [leaf for leaf, traced in zip(leaves, is_array, strict=True) if traced]
        static = tuple((i, x) for i, x in enumerate(leaves) if not is_array[i])
        call = _Call(structure, static)
        try:
            hash(call)
        except TypeError:
            return None, arrays
        return self._with_known_ids(call, arrays, args, kwargs), arrays

    def _with_known_ids(self, call: _Call, arrays: list[Any], args: Any, kwargs: Any) -> _Call:
        candidates = self._candidates(arrays, args, kwargs)
        if not candidates:
            return call
        known = {i: arrays[i] for i in sorted(self._indices(call, arrays) & candidates)}
        digests = tuple((i, digest(ids)) for i, ids in known.items())
        return dataclasses.replace(call, digests=digests, known=known)

    def _indices(self, call: _Call, arrays: list[Any]) -> set[int]:
        """The positions of the arrays on which ids depend."""
        key = call, tuple((a.shape, a.dtype) for a in arrays)
        if key not in self._index_inputs:
            try:
                found = index_inputs(Program.of(self._traced(call, arrays)[0]))
            except _LeftAsItIs:
                found = set()  # the call says why
            self._index_inputs[key] = found
        return self._index_inputs[key]

    def _candidates(self, arrays: list[Any], args: Any, kwargs: Any) -> set[int]:
        """The positions of integer arrays that may be taken as known."""
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
        """The closed jaxpr of the function as it is, and the structure of its results."""
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
        """The function as it is, of the arguments as a pytree has them."""
        module, *rest = args
        if not self._is_module:
            return self._fn(*rest, **kwargs)
        before = jax.tree.leaves(module)
        made = module(*rest, **kwargs)
        after = jax.tree.leaves(module)
        if len(before) != len(after) or any(a is not b for a, b in zip(before, after, strict=True)):
            raise _LeftAsItIs("it changes its own state")
        return made

    def _transformed(self, closed: Any, call: _Call) -> tuple[Program, Findings]:
        known = {i: np.asarray(ids) for i, ids in call.known.items()}
        return transformed(closed, RULES, known)

    def _run(self, call: _Call, *arrays: Any) -> Any:
        """The results of the rewritten function."""
        closed, shape = self._traced(call, arrays)
        program, findings = self._transformed(closed, call)
        if findings.untouched and not findings.applied:
            self._warn("; ".join(findings.untouched))
        made = program.closed() if findings.applied else closed
        return jax.tree.unflatten(shape, jex.jaxpr_as_fun(made)(*arrays))


def _is_array(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array | np.ndarray | np.generic)


def _holds_ids(array: Any) -> bool:
    return is_concrete(array) and np.issubdtype(array.dtype, np.integer) and array.ndim > 0


def fuse(
    fn: Callable[..., Any],
    *,
    static_graph: bool | str | Sequence[str] = False,
    verify: Verify = "off",
) -> Callable[..., Any]:
    """Rewrites graph code written in plain JAX to run on the ops of this library."""
    return Fused(fn, options_of(fn, static_graph, verify))


def options_of(fn: Callable[..., Any], static_graph: Any, verify: Any) -> Options:
    """The options, after they have been checked."""
    if not callable(fn):
        raise bad_input("fuse", "fn", "a function of JAX arrays", type(fn).__name__)
    if verify not in get_args(Verify):
        expected = "one of " + ", ".join(map(repr, get_args(Verify)))
        raise bad_input("fuse", "verify", expected, repr(verify))
    return Options(_static_names(fn, static_graph), verify)


def _static_names(fn: Callable[..., Any], given: Any) -> bool | tuple[str, ...]:
    if isinstance(given, bool):
        return given
    names = (given,) if isinstance(given, str) else tuple(given)
    known = tuple(inspect.signature(fn).parameters)
    for name in names:
        if name not in known:
            expected = f"True, False or names among {', '.join(known) or 'none'}"
            raise bad_input("fuse", "static_graph", expected, repr(name))
    return names


def explain(
    fn: Callable[..., Any],
    *args: Any,
    static_graph: bool | str | Sequence[str] = False,
    **kwargs: Any,
) -> Explanation:
    """Says what ``fuse`` rewrites in a call of a function, and what it does not, and why."""
    fused = fn if isinstance(fn, Fused) else Fused(fn, options_of(fn, static_graph, "off"))
    return fused.explanation(args, kwargs)


fuse.explain = explain  # pyrefly: ignore
