"""``fuse`` and ``explain``, with checks of their options."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any, get_args

import jax

from jaxgnn._errors import bad_input
from jaxgnn._methods import unbound
from jaxgnn.fusion.fused import Fused, Options, Verify, is_array
from jaxgnn.fusion.policy import Policy
from jaxgnn.fusion.program.constants import jit
from jaxgnn.fusion.report import Explanation
from jaxgnn.graph import is_concrete


def fuse(
    fn: Callable[..., Any],
    *,
    static_graph: bool | str | Sequence[str] = False,
    graph_arguments: str | int | Sequence[str | int] = (),
    verify: Verify = "off",
    only_if_faster: bool = True,
) -> Callable[..., Any]:
    """Rewrites a function so that its graph code runs by this library's ops.

    ``fn`` is traced to a jaxpr, in which gathers, segment sums and their surroundings are replaced
    by faster ops with the same results up to rounding. This is done before the function is
    differentiated, so gradients are those of the ops. All other code is unchanged. The conditions
    of each rule are checked; code that does not meet them is not rewritten.

    Edge lists are best known for that: arrays that ``fn`` closes over, or arguments that
    ``static_graph`` names. A graph is sorted once for each content of its lists, and kept. Lists
    that are known only when the function runs are sorted in each call, once for all layers that
    use them, where that was measured to pay, or where ``graph_arguments`` names them.

    The result can be called inside of ``jax.jit``, ``jax.grad``, ``jax.vmap`` and
    ``jax.shard_map``, which trace arguments: there, known lists have to be closed over. Called with
    arrays, it compiles itself like ``jax.jit``, once for each combination of shapes, known lists
    and arguments that are no arrays; Python numbers are among these. Arrays that ``fn`` closes over
    must not change, as under ``jax.jit``. A module of Flax NNX is an argument of itself, so its
    parameters may change.

    A function with side effects, such as ``jax.debug.print``, one that can not be traced, and a
    module that changes its own state in the call run unchanged, with a warning.

    Args:
      fn: a function of pytrees of arrays, or a module.
      static_graph: the names of arguments whose integer arrays are known edge lists, or True for
        all arguments. Only arrays that ids of gathers and segments depend on are used. With another
        list the function is compiled again.
      graph_arguments: the names or positions of arguments whose integer arrays are edge lists that
        differ from call to call, such as a padded ``jraph.GraphsTuple``. They are sorted in each
        call, and the function is compiled once for all graphs of the same shapes.
      verify: ``"warn"`` compares outputs and gradients with those of ``fn`` at the first call with
        arrays of each combination of shapes, and warns of a difference beyond rounding;
        ``"strict"`` also runs ``fn`` unchanged from then on if they differ. ``"off"`` compares
        nothing.
      only_if_faster: skip sound rewrites that are too small to be faster on this platform.

    Returns:
      A function of the same arguments.

    Raises:
      ValueError: if ``fn`` can not be called, ``static_graph`` or ``graph_arguments`` names no
        argument of it, or ``verify`` is unknown; when called, if an argument of
        ``graph_arguments`` has no integer arrays.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> import jaxgnn
      >>> senders, receivers = jnp.array([0, 1, 2]), jnp.array([1, 2, 2])
      >>> def layer(x):
      ...     return jax.ops.segment_sum(x[senders], receivers, 3)
      >>> fused = jaxgnn.fuse(layer, only_if_faster=False)
      >>> fused(jnp.array([[1.0], [2.0], [4.0]])).tolist()
      [[0.0], [1.0], [6.0]]
      >>> print(jaxgnn.fuse.explain(fused, jnp.ones((3, 1))))  # doctest: +ELLIPSIS
      layer: 1 rewrites, 8 equations -> 1
        neighbour_sum: sum over 3 edges of 1 features -> spmm
      ...
    """
    policy = Policy(only_if_faster=bool(only_if_faster))
    return Fused(fn, _options(fn, static_graph, graph_arguments, verify, policy))


def explain(
    fn: Callable[..., Any],
    *args: Any,
    static_graph: bool | str | Sequence[str] = False,
    graph_arguments: str | int | Sequence[str | int] = (),
    measure: bool | None = None,
    **kwargs: Any,
) -> Explanation:
    """Explains which code of a function ``fuse`` rewrites in a call, which not, and why.

    Where code is rewritten, it also runs the function as it is and rewritten, in turns, and reports
    the times of a call of each. That takes about as long as compiling both, and a second.

    Args:
      fn: a function, or a result of ``fuse``, whose options are then used.
      *args: arguments of the call; arrays may be ``jax.ShapeDtypeStruct``.
      static_graph: an option of ``fuse``.
      graph_arguments: an option of ``fuse``.
      measure: whether to run both functions. By default they run if all arguments are arrays, not
        ``jax.ShapeDtypeStruct`` and not traced.
      **kwargs: further arguments of the call.

    Returns:
      The explanation, to be printed; its ``save_html`` draws both programs.

    Raises:
      ValueError: as in ``fuse``, and with ``measure`` if arrays are ``jax.ShapeDtypeStruct``.
    """
    fn, bound = unbound(fn)
    args = *bound, *args
    if isinstance(fn, Fused):
        fused = fn
    else:
        options = _options(fn, static_graph, graph_arguments, "off", Policy())
        fused = Fused(fn, options)
    leaves = [leaf for leaf in jax.tree.leaves((args, kwargs)) if is_array(leaf)]
    can_run = is_concrete(*leaves) and not any(
        isinstance(leaf, jax.ShapeDtypeStruct) for leaf in leaves
    )
    if measure and not can_run:
        got = "ShapeDtypeStruct or traced arrays"
        raise bad_input("explain", "args", "arrays, which measure=True runs", got)
    return fused.explanation(args, kwargs, measure=can_run if measure is None else measure)


def _options(
    fn: Callable[..., Any],
    static_graph: Any,
    graph_arguments: Any,
    verify: Any,
    policy: Policy,
) -> Options:
    """Checks the options and returns them."""
    if not callable(fn):
        raise bad_input("fuse", "fn", "a function of JAX arrays", type(fn).__name__)
    if verify not in get_args(Verify):
        expected = "one of " + ", ".join(map(repr, get_args(Verify)))
        raise bad_input("fuse", "verify", expected, repr(verify))
    names = _static_names(fn, static_graph), _graph_names(fn, graph_arguments)
    return Options(*names, verify, policy)


def _static_names(fn: Callable[..., Any], names_or_bool: Any) -> bool | tuple[str, ...]:
    if isinstance(names_or_bool, bool):
        return names_or_bool
    names = (names_or_bool,) if isinstance(names_or_bool, str) else tuple(names_or_bool)
    parameters = _parameters(fn)
    for name in names:
        if name not in parameters:
            expected = f"True, False or names among {', '.join(parameters) or 'none'}"
            raise bad_input("fuse", "static_graph", expected, repr(name))
    return names


def _graph_names(fn: Callable[..., Any], names_or_positions: Any) -> tuple[str, ...]:
    """Returns the names of arguments that a caller names or numbers."""
    names_or_positions = (
        (names_or_positions,)
        if isinstance(names_or_positions, str | int)
        else tuple(names_or_positions)
    )
    parameters = _parameters(fn)
    names = []
    for one in names_or_positions:
        is_position = (
            isinstance(one, int) and not isinstance(one, bool) and 0 <= one < len(parameters)
        )
        name = parameters[one] if is_position else one
        if name not in parameters:
            expected = f"names or positions of arguments among {', '.join(parameters) or 'none'}"
            raise bad_input("fuse", "graph_arguments", expected, repr(one))
        names.append(name)
    return tuple(names)


def _parameters(fn: Callable[..., Any]) -> tuple[str, ...]:
    try:
        return tuple(inspect.signature(fn).parameters)
    except (TypeError, ValueError):  # Some builtins have no signature.
        return ()


fuse.explain = explain  # pyrefly: ignore
fuse.jit = jit  # pyrefly: ignore
