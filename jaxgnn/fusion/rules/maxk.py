"""The ``k`` largest entries of a row, kept by ``top_k`` and a scatter or a mask, become ``maxk``.

Sound for rows of a matrix along their last axis, if what keeps the entries is one of the known ways
to write it, as a whole: values scattered to their columns, or a mask of the columns times the rows,
or in a ``where``. Both keep exactly ``k`` entries, ties to the lowest column. A mask of all entries
that reach the k-th largest keeps more where there are ties: another function, which is left alone
and named.
``top_k`` ranks -0 below +0 and NaN above +inf, which the op takes for equal: only where both stand
in a row, the column that gets the gradient of a zero may be another one.

A mask times the rows makes NaN of an entry that is not finite and not kept, where the op has zero:
rows are assumed to be finite there. The other ways to write it assume nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from jaxgnn import ops
from jaxgnn.fusion.program.matching import NoMatch, Refusal, need, or_none, required
from jaxgnn.fusion.program.program import Atom, Equation, nbytes
from jaxgnn.fusion.program.variables import View
from jaxgnn.fusion.recognise.templates import form_of
from jaxgnn.fusion.rules.rule import Rewrite, Rule

_DEPTH = 12  # Most equations between `top_k` and the result.


def _row_and_column(x: Any, columns: Any) -> tuple[Any, Any]:
    return jnp.arange(x.shape[0])[:, None], columns


def _scattered(x: Any, k: int) -> Any:
    values, columns = lax.top_k(x, k)
    return jnp.zeros_like(x).at[_row_and_column(x, columns)].set(values)


def _scattered_where_they_were(x: Any, k: int) -> Any:
    columns = lax.top_k(x, k)[1]
    values = jnp.take_along_axis(x, columns, axis=-1)
    return jnp.put_along_axis(jnp.zeros_like(x), columns, values, axis=-1, inplace=False)


def _put(x: Any, k: int) -> Any:
    values, columns = lax.top_k(x, k)
    return jnp.put_along_axis(jnp.zeros_like(x), columns, values, axis=-1, inplace=False)


def _masked(x: Any, k: int) -> Any:
    columns = lax.top_k(x, k)[1]
    return x * jnp.zeros_like(x).at[_row_and_column(x, columns)].set(1)


def _masked_by_one_hot(x: Any, k: int) -> Any:
    columns = lax.top_k(x, k)[1]
    return x * jax.nn.one_hot(columns, x.shape[-1], dtype=x.dtype).sum(axis=-2)


def _selected(x: Any, k: int) -> Any:
    columns = lax.top_k(x, k)[1]
    mask = jnp.zeros(x.shape, bool).at[_row_and_column(x, columns)].set(True)
    return jnp.where(mask, x, 0)


_WRITTEN: tuple[Callable[[Any, int], Any], ...] = (
    _scattered,
    _scattered_where_they_were,
    _put,
    _masked,
    _masked_by_one_hot,
    _selected,
)
_MASKS = (_masked, _masked_by_one_hot)  # Zero times an entry that is not finite is NaN.
_FINITE = ("rows of finite numbers, which a mask of zeros makes zero",)


@dataclass(frozen=True)
class Kept:
    """Largest entries of each row of a matrix."""

    x: Atom  # Matrix whose largest entries are kept.
    k: int  # Number of kept entries of a row.
    assumes: tuple[str, ...] = ()  # Conditions on the matrix, for ``Rewrite.assumes``.


@or_none
def maxk_of(view: View, atom: Atom) -> Kept:
    """Returns the ``maxk`` that computes an atom, or None."""
    view.match(atom, "scatter", "mul", "select_n")
    need(atom.aval.ndim == 2)
    k = required(_kept(view, atom))
    x, form = required(form_of(view, atom, _WRITTEN, k))
    written = _WRITTEN[form]
    return Kept(x, k, _FINITE if written in _MASKS else ())


def _kept(view: View, atom: Atom) -> int | None:
    """Returns the ``k`` of a ``top_k`` at most ``_DEPTH`` equations before an atom, or None."""
    seen, layer = set(), [atom]
    for _ in range(_DEPTH):
        producers = {id(e): e for a in layer if (e := view.producer(a)) is not None}
        for equation in producers.values():
            if equation.primitive.name == "top_k":
                return int(equation.params["k"])
        layer = [a for key, e in producers.items() if key not in seen for a in e.invars]
        seen |= producers.keys()
    return None


@or_none
def _threshold_of(view: View, equation: Equation) -> Atom:
    """Returns the matrix of which an order statistic of the rows selects entries."""
    need(equation.outvars[0].aval.ndim == 2 and equation.primitive.name in ("select_n", "mul"))
    for mask in equation.invars:
        while (widened := view.produced_by(mask, "convert_element_type")) is not None:
            mask = widened.invars[0]
        compared = view.produced_by(mask, "ge", "gt", "le", "lt")
        for x, bound in () if compared is None else (compared.invars, compared.invars[::-1]):
            if any(a is x for a in equation.invars) and _is_order_statistic(view, bound, x):
                return x
    raise NoMatch


def _is_order_statistic(view: View, atom: Atom, x: Atom) -> bool:
    """Returns whether an array is read from sorted rows of a matrix, in a few steps."""
    for _ in range(_DEPTH):
        equation = view.producer(atom)
        if equation is None or not equation.invars:
            return False
        if equation.primitive.name in ("top_k", "sort"):
            source = equation.invars[0]
            negated = view.produced_by(source, "neg")
            return source is x or (negated is not None and negated.invars[0] is x)
        atom = equation.invars[0]
    return False


def _propose(view: View, equation: Equation) -> Rewrite:
    output = equation.outvars[0]
    if _threshold_of(view, equation) is not None:
        raise Refusal("a threshold keeps all entries that tie with the k-th largest, maxk only k")
    largest = required(maxk_of(view, output))

    def function(x):
        return [ops.todense(ops.maxk(x, largest.k))]

    size = nbytes(output)
    note = f"{largest.k} largest of {output.aval.shape[1]} columns -> maxk"
    return Rewrite(
        equation, [largest.x], function, note, 4 * size, 2 * size, assumes=largest.assumes
    )


RULE = Rule("maxk", frozenset(("scatter", "mul", "select_n")), _propose)
