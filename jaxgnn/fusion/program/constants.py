"""Compilation of functions whose large arrays are arguments of the program, not constants in it.

``jax.jit`` writes the arrays that a function closes over into the text of the program, and XLA
evaluates expressions of them at compile time. With edge lists of a hundred million edges the text
has gigabytes, more than a compiler supports, and counting the edges of each node takes XLA minutes.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.extend.core as jex
import jax.numpy as jnp

from jaxgnn._arrays.arrays import to_device
from jaxgnn._errors import bad_input
from jaxgnn._methods import Method, State, captured_by
from jaxgnn.fusion.program.program import Program, constants_of

# Least bytes of an array that becomes an argument. Smaller arrays cost a compiler nothing, and an
# argument takes time in every call.
_LARGE = 1 << 16


@dataclass(frozen=True)
class Opened:
    """Function of arrays, and the arrays that it closed over."""

    run: Callable[..., list[Any]]  # Takes a list of the constants, and the leaves of the arguments.
    constants: list[jax.Array]  # Large closed-over arrays on the device, each once.
    structure: Any  # Pytree of the results.


def opened(traced: jax.stages.Traced) -> Opened:
    """Turns the large arrays that a traced function closes over into arguments.

    Calls of ``jax.jit`` in it, which may close over other arrays, are expanded.
    """
    program = Program.from_jaxpr(traced.jaxpr)
    large = {v: value for v, value in program.constants.items() if _is_large(value)}
    small = {v: value for v, value in program.constants.items() if v not in large}
    inner = dataclasses.replace(program, inputs=(*large, *program.inputs), constants=small)
    function = jex.jaxpr_as_fun(inner.closed())
    with jax.ensure_compile_time_eval():
        constants = [jnp.asarray(value) for value in large.values()]

    def run(constants: list[Any], *arrays: Any) -> list[Any]:
        return function(*constants, *arrays)

    return Opened(run, constants, jax.tree.structure(traced.out_info))


def has_large_constants(closed: Any) -> bool:
    """Returns whether a closed jaxpr closes over an array too large for a program's text.

    This includes the arrays of calls of ``jax.jit`` in it.
    """
    return any(map(_is_large, constants_of(closed)))


def _is_large(value: Any) -> bool:
    return getattr(value, "nbytes", 0) >= _LARGE


class Jitted(Method):
    """Function that is compiled when called, with closed-over arrays as arguments."""

    def __init__(
        self,
        function: Callable[..., Any],
        static_argnums: Sequence[int] = (),
        donate_argnums: Sequence[int] = (),
    ):
        super().__init__(getattr(function, "__wrapped__", function))
        self._function = function
        self.inner = jax.jit(function, static_argnums=tuple(static_argnums))
        self._static = frozenset(static_argnums)
        self._donated = frozenset(donate_argnums)
        self._by_jaxpr: dict[int, tuple[Any, Callable[..., Any]]] = {}
        functools.update_wrapper(self, function, updated=())

    def __repr__(self) -> str:
        """Names the function and how to export it; errors of JAX print this text."""
        name = getattr(self._function, "__name__", type(self._function).__name__)
        return f"<{name} after jaxgnn.fuse.jit; jaxgnn.export exports it>"

    def of_function(self, function: Callable[..., Any]) -> Jitted:
        """Compiles another function, of the arguments after the first, with the same options."""
        static, donated = ([i - 1 for i in at if i > 0] for at in (self._static, self._donated))
        return Jitted(function, static, donated)

    @property
    def function(self) -> Callable[..., Any]:
        """The original function."""
        return self._function

    def __call__(self, *args: Any, **named: Any) -> Any:
        if named:
            expected = "given by position"
            raise bad_input("fuse.jit", next(iter(named)), expected, "it by name")
        leaves = [jax.tree.leaves(a) for i, a in enumerate(args) if i not in self._static]
        if any(isinstance(leaf, jax.core.Tracer) for of_one in leaves for leaf in of_one):
            return self.inner(*args)
        traced = self.inner.trace(*args)
        entry = self._by_jaxpr.get(id(traced.jaxpr))
        if entry is None:
            if _closes_over_traced(traced, sum(map(len, leaves))):
                return self.inner(*args)  # This call is part of another traced function.
            # The jaxpr is kept, so that no other jaxpr gets its id.
            entry = traced.jaxpr, self._compiled(traced, args)
            self._by_jaxpr[id(traced.jaxpr)] = entry
        return entry[1](*(leaf for of_one in leaves for leaf in of_one))

    def _compiled(self, traced: jax.stages.Traced, args: Sequence[Any]) -> Callable[..., Any]:
        parts = opened(traced)
        positions, start = [], 1
        for i, argument in enumerate(args):
            if i in self._static:
                continue
            size = len(jax.tree.leaves(argument))
            positions += range(start, start + size) if i in self._donated else ()
            start += size
        run = jax.jit(parts.run, donate_argnums=tuple(positions))
        constants = _Placed(parts.constants)
        closed_over = {id(c) for c in parts.constants}

        def call(*arrays: Any) -> Any:
            operands = list(arrays)
            for i in (position - 1 for position in positions):
                if id(operands[i]) in closed_over:  # The next call reads this array, too.
                    operands[i] = operands[i].copy()
            return jax.tree.unflatten(
                parts.structure, run(constants.moved_beside(operands), *operands)
            )

        return call


class _Placed:
    """Constants on the devices of the other arguments of a call.

    JAX raises for arguments on different devices. Constants in the text of a program are on the
    device that runs it.
    """

    def __init__(self, constants: list[jax.Array]):
        self._constants = constants
        self._committed = [c for c in constants if c.committed]
        self._moved: dict[jax.sharding.Sharding, list[jax.Array]] = {}

    def moved_beside(self, arrays: Sequence[Any]) -> list[jax.Array]:
        """Returns the constants, moved to the devices of these arrays if necessary."""
        if not self._committed:
            return self._constants
        committed = (a for a in arrays if isinstance(a, jax.Array) and a.committed)
        sharding = next(committed, self._committed[0]).sharding
        if all(c.sharding.device_set == sharding.device_set for c in self._committed):
            return self._constants
        if isinstance(sharding, jax.NamedSharding):
            sharding = jax.NamedSharding(sharding.mesh, jax.P())
        elif len(sharding.device_set) > 1:
            return self._constants  # JAX raises the error for these devices.
        if sharding not in self._moved:
            self._moved[sharding] = [
                to_device("jaxgnn.fuse", c, sharding) if c.committed else c for c in self._constants
            ]
        return self._moved[sharding]


def _closes_over_traced(traced: jax.stages.Traced, count: int) -> bool:
    """Returns whether a function of ``count`` arrays closes over traced arrays.

    JAX makes them further inputs of its jaxpr.
    """
    constants = constants_of(traced.jaxpr)
    has_more = len(traced.jaxpr.jaxpr.invars) != count
    return has_more or any(isinstance(c, jax.core.Tracer) for c in constants)


def jit(fn: Callable[..., Any], *, donate_argnums: int | Sequence[int] = ()) -> Callable[..., Any]:
    """Compiles a function as ``jax.jit`` does, with large arrays it closes over as arguments.

    ``jax.jit`` makes them constants of the program: their bytes are copied into its text, and XLA
    evaluates all expressions that depend only on them. For a training step on a large graph, whose
    edge lists ``fuse`` needs closed over, that takes minutes or does not fit the program. Results
    are the same. Arrays that are closed over must not change.

    Args:
      fn: a function of pytrees of arrays, such as a step of training that calls a fused function.
      donate_argnums: positions of arguments whose memory the results may use.

    Returns:
      A function of the same positional arguments.

    Raises:
      ValueError: if ``fn`` can not be called, or a position is negative, no integer, or that of no
        argument; when called, if ``fn`` changes an argument, such as the averages of a module.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> import jaxgnn
      >>> senders, receivers = jnp.array([0, 1, 2]), jnp.array([1, 2, 2])
      >>> def loss(x):
      ...     return jnp.sum(jax.ops.segment_sum(x[senders], receivers, 3) ** 2)
      >>> step = jaxgnn.fuse.jit(jax.grad(jaxgnn.fuse(loss)))
      >>> step(jnp.array([[1.0], [2.0], [4.0]])).tolist()
      [[2.0], [12.0], [12.0]]
    """
    if not callable(fn):
        raise bad_input("fuse.jit", "fn", "a function of JAX arrays", type(fn).__name__)
    is_list = isinstance(donate_argnums, Sequence)
    positions = tuple(donate_argnums) if is_list else (donate_argnums,)
    for position in positions:
        if not isinstance(position, int) or position < 0:
            expected = "positions of arguments, 0 or more"
            raise bad_input("fuse.jit", "donate_argnums", expected, repr(position))
    try:
        jax.jit(fn.__func__ if isinstance(fn, staticmethod) else fn, donate_argnums=positions)
    except ValueError:
        expected = "positions of arguments that the function has"
        raise bad_input("fuse.jit", "donate_argnums", expected, repr(donate_argnums)) from None
    return Jitted(_unchanging(fn), donate_argnums=positions)


def _unchanging(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps a function so that a change of an argument raises ValueError.

    The compiled function gets copies of the caller's objects, so the change would be lost.
    """

    def checked(*args: Any) -> Any:
        arguments = args, captured_by(fn)
        before = State(arguments)
        results = fn(*args)
        if before.changes(arguments):
            expected = (
                "a function that does not change its arguments; pass the state of a module in and "
                "return it (nnx.split, nnx.merge, nnx.state)"
            )
            name = getattr(fn, "__name__", type(fn).__name__)
            raise bad_input("fuse.jit", "fn", expected, f"{name}, which changes an argument")
        return results

    return functools.wraps(fn, updated=())(checked)
