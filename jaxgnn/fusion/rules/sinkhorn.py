"""Divisions of small matrices by their sums, in turn along both axes, become ``ops.sinkhorn``.

Two forms of the code are recognised, with the divisions one after the other, in ``lax.scan`` or in
``lax.fori_loop``. With a positive number ``eps``, the same everywhere::

    h = softmax(logits, first) + eps
    h = h / (Σ_second h + eps);  h = h / (Σ_first h + eps);  h = h / (Σ_second h + eps) ...

and without it in logarithms, where a division is ``l - logsumexp(l)``, and ``exp`` the last step.

Sound where

* the matrices are square, in the last two axes; axes alternate without gaps;
* a division is the first along its axis, or follows one along the other: of ``2 k - 1`` divisions
  after the softmax, which is the first along its own axis, the op does ``k`` iterations, and one
  more, if their number is even, is done after it;
* the matrices are float32 or float64, or of 16 bits, since the op computes in float32 and rounds
  once what the code rounds after each step;
* -inf among the logits gives zeros in the code, and NaN in the op. It is replaced by a large
  negative number, whose exponential is zero, except where a whole line is -inf, which is NaN in
  both: a line along the first axis, and in logarithms along either. The other numbers of a line
  along the second axis must not all be lower in logarithms, below half of the lowest number.

Divisions without ``eps`` that are not in logarithms are not rewritten: numbers that underflow in
them stay zero, and in the op they do not. It pays only where the op would choose a kernel.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from jaxgnn import ops
from jaxgnn.fusion.program.loops import carries_of_scan
from jaxgnn.fusion.program.matching import need, or_none, required
from jaxgnn.fusion.program.program import Atom, Equation, Program, nbytes
from jaxgnn.fusion.program.variables import View
from jaxgnn.fusion.recognise.templates import form_of
from jaxgnn.fusion.rules.rule import Rewrite, Rule
from jaxgnn.ops.core.dispatch import current_platform
from jaxgnn.ops.shared import SINKHORN

_AXES = (-1, -2)


class _Form(NamedTuple):
    """Forms of the code of steps, as functions of an array, the axis and eps."""

    first: tuple[Callable[[Any, int, float], Any], ...]  # of the first step, of the logits
    step: tuple[Callable[[Any, int, float], Any], ...]  # of the others


def _by_exponentials(l: Any, axis: int, eps: float) -> Any:  # noqa: E741
    shifted = jnp.exp(l - l.max(axis, keepdims=True))
    return shifted / shifted.sum(axis, keepdims=True) + eps


_DIVISIONS = _Form(
    (lambda l, axis, eps: jax.nn.softmax(l, axis) + eps, _by_exponentials),  # noqa: E741
    (
        lambda h, axis, eps: h / (h.sum(axis, keepdims=True) + eps),
        lambda h, axis, eps: h / (jnp.expand_dims(h.sum(axis), axis) + eps),
        lambda h, axis, eps: h / jnp.expand_dims(h.sum(axis) + eps, axis),
    ),
)
_LOGARITHMS = _Form(
    (lambda l, axis, _: jax.nn.log_softmax(l, axis),),  # noqa: E741
    (lambda l, axis, _: l - jax.nn.logsumexp(l, axis, keepdims=True),),  # noqa: E741
)


class _Chain(NamedTuple):
    """Steps that follow each other."""

    argument: Atom  # of the first step
    axes: tuple[int, ...]  # the axis of each, the first one first


def _propose(view: View, equation: Equation) -> Rewrite:
    (*_, output) = equation.outvars
    shape = output.aval.shape
    need(len(shape) >= 2 and shape[-1] == shape[-2] and shape[-1] > 1)
    need(jnp.issubdtype(output.aval.dtype, jnp.floating))
    if equation.primitive.name == "exp":
        eps, found = 0.0, _steps(view, equation.invars[0], _LOGARITHMS, 0.0)
    else:
        eps = _eps_of(view, output)
        found = _steps(view, output, _DIVISIONS, eps)
    need(len(found.axes) >= 2)
    need(all(one != other for one, other in itertools.pairwise(found.axes)))
    return _rewrite(equation, output, found, eps)


def _steps(view: View, atom: Atom, form: _Form, eps: float) -> _Chain:
    """The steps from the logits to an array, the first one among them."""
    made = _only_steps(view, atom, form, eps)
    first = _step(view, made.argument, form.first, eps)
    if first is not None:
        return _Chain(first.argument, first.axes + made.axes)
    need(form is _LOGARITHMS and made.axes)  # there the first step may have the form of the others
    return made


def _only_steps(view: View, atom: Atom, form: _Form, eps: float) -> _Chain:
    """All steps but the first that lead to an array."""
    made = _Chain(atom, ())
    while True:
        inner = _step(view, atom, form.step, eps) or _loop(view, atom, form, eps)
        if inner is None or (made.axes and not _is_passed_on(view, atom)):
            return made
        atom = inner.argument
        made = _Chain(atom, inner.axes + made.axes)


def _is_passed_on(view: View, atom: Atom) -> bool:
    """Whether nothing but a next step reads an array: it and its sums, or maxima."""
    return len(view.users(atom)) <= 3 and not view.is_output(atom)


def _step(view: View, atom: Atom, forms: Any, eps: float) -> _Chain | None:
    for axis in _AXES:
        found = form_of(view, atom, forms, axis, eps)
        if found is not None:
            return _Chain(found[0], (axis,))
    return None


def _body_of(scan: Equation, atom: Atom) -> tuple[Program, Atom, int]:
    """The body of a loop whose result is an array that it carries.

    Returns also the result of the body, and the position of the operand.
    """
    carries, place = carries_of_scan(scan.params), scan.outvars.index(atom)
    need(place < len(carries))
    inner = Program.of(scan.params["jaxpr"])
    return inner, inner.outputs[place], carries[place]


@or_none
def _loop(view: View, atom: Atom, form: _Form, eps: float) -> _Chain:
    """The steps of a loop whose result is an array that it carries; or None."""
    equation = view.match(atom, "scan")
    need(not equation.effects)
    inner, result, place = _body_of(equation, atom)
    steps = _only_steps(View(inner, {}), result, form, eps)
    need(steps.axes and steps.argument is inner.inputs[place])
    return _Chain(equation.invars[place], steps.axes * equation.params["length"])


def _eps_of(view: View, atom: Atom) -> float:
    """The positive number that is added to a divisor, in the last division."""
    equation = view.match(atom, "scan", "div")
    if equation.primitive.name == "scan":
        inner, result, _ = _body_of(equation, atom)
        return _eps_of(View(inner, {}), result)
    divisor = equation.invars[1]
    while (outer := view.made_by(divisor, "broadcast_in_dim", "reshape")) is not None:
        divisor = outer.invars[0]
    _, added = view.match(divisor, "add").invars
    number = required(view.number(added))
    need(added.aval.shape == () and 0 < number < 1)
    return number


def iterations_of(divisions: int) -> tuple[int, bool]:
    """The iterations of the op for ``divisions`` after the first, and whether one is left."""
    return (divisions + 1) // 2, divisions % 2 == 0


def _rewrite(equation: Equation, output: Atom, found: _Chain, eps: float) -> Rewrite:
    first = found.axes[0]
    iterations, is_one_more = iterations_of(len(found.axes) - 1)
    last = "columns" if first == -1 else "rows"
    options: dict[str, Any] = {"iterations": iterations, "eps": eps, "last": last}
    # float16 has no number far below those of masks.
    dtype = jnp.float32 if output.aval.dtype == jnp.float16 else output.aval.dtype

    def function(logits: Any) -> list[Any]:
        safe = _without_infinities(logits.astype(dtype), first, both=eps == 0)
        h = ops.sinkhorn(safe, **options)
        if is_one_more:
            h = h / (h.sum(first, keepdims=True) + eps)
        return [h.astype(output.aval.dtype)]

    size = nbytes(output)
    like = jax.ShapeDtypeStruct(output.aval.shape, dtype)
    choice = SINKHORN.choose(current_platform(), like, **options)
    note = f"{len(found.axes)} divisions of {output.aval.str_short()} -> sinkhorn"
    sizes = (2 * len(found.axes) + 2) * size, 2 * size
    return Rewrite(
        equation, [found.argument], function, note, *sizes, is_what_runs=choice == "xla",
        results=(output,),
    )  # fmt: skip


def _without_infinities(logits: Any, first: int, *, both: bool) -> Any:
    """The logits with a number whose exponential is zero instead of -inf, except in lines of -inf.

    Lines with such a number are shifted so that their largest number is zero, which does not change
    divisions along them. Next to large negative numbers, as in masks, no exponential would be zero.
    """
    is_masked = logits == -jnp.inf
    is_whole = is_masked.all(first, keepdims=True)
    has_one = is_masked.any(first, keepdims=True) & ~is_whole
    top = jnp.where(has_one, lax.stop_gradient(logits.max(first, keepdims=True)), 0)
    if both:
        is_whole = is_whole | is_masked.all(-3 - first, keepdims=True)
    lowest = jnp.finfo(logits.dtype).min / 2
    moved = jnp.where(has_one & ~is_masked, jnp.maximum(logits - top, lowest), logits)
    return jnp.where(is_masked & ~is_whole, lowest, moved)


RULE = Rule("sinkhorn", frozenset(("div", "scan", "exp")), _propose, is_outermost_first=True)
