"""Hyper-connections written by hand become ``ops.mhc_pre`` and ``ops.mhc_post``.

The first half has three results, which are identified by their inputs: the weighted sum of the
streams, the weights of the layer's output, and the logits of the matrix that mixes the streams::

    t      = ((v γ) φ) / √(mean(v²) + eps)                  of the streams x, flattened to v
    h_in   = Σ_i (σ(alpha_0 t_pre + bias_pre) + pre_eps)_i x_i
    h_post = scale σ(alpha_1 t_post + bias_post)
    h_res  = alpha_2 t_res + bias_res

The second half is ``Σ_i h_res[o, i] x_i + h_post[o] f``, or with ``h_res[i, o]``.

Sound where

* products have the precision of the session, and streams have one axis after those of tokens;
* numbers have 32 bits or 16. The ops support streams of either, sum in float32 and round results
  once. They do not round intermediate values, parameters and weights that the code rounds to 16
  bits, so that no result has a larger error than that of the code;
* the mean is taken over all streams of the token, of the streams that are also summed, and the
  normalisation occurs once, before or after the product;
* the parts read columns next to each other, of one product or of three, in the order above. Gains
  are one number for each part, biases one row for all tokens;
* in the second half, the four arrays with these axes are arbitrary: the formula is an identity.

The normalisation of the mixing matrix between both halves is not changed.

It pays only where the ops would choose a kernel.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import jax.numpy as jnp

from jaxgnn import ops
from jaxgnn.fusion.program.matching import NoMatch, Refusal, need, or_none, required
from jaxgnn.fusion.program.program import Atom, Equation, Values, nbytes
from jaxgnn.fusion.program.variables import SHORT_FLOATS, UnroundedView, View, unrounded
from jaxgnn.fusion.recognise.products import (
    Factor,
    contraction_of,
    span_of,
    unless_one,
    without_repeats,
)
from jaxgnn.fusion.recognise.templates import (
    is_matrix_product,
    is_transposed,
    row_of,
    session_precision,
)
from jaxgnn.fusion.rules.rule import Rewrite, Rule
from jaxgnn.ops.core.dispatch import current_platform
from jaxgnn.ops.shared import MHC_POST, MHC_PRE, MHCConstants, MHCParams


@dataclass(frozen=True)
class _Part:
    """Some columns of the normalised product, with their gain and bias."""

    streams: Atom  # [..., n, dim]
    kernel: Atom  # [n dim, columns] or the transpose of that
    is_transposed: bool  # whether the kernel is the transpose
    columns: range  # of the matrix
    gains: tuple[Atom, ...]  # numbers that it is multiplied by
    gamma: Atom | None  # factors of the streams, n dim numbers
    norm_eps: float  # the number that is added to the mean square
    bias: Atom | None = None  # the row that is added

    @property
    def inputs(self) -> list[Atom]:
        """The atoms whose values ``arrays`` takes."""
        return [self.kernel, *self.gains, *([] if self.bias is None else [self.bias])]

    def arrays(self, values: Values) -> tuple[Any, Any, Any]:
        """The rows of φ, the gain and the bias."""
        kernel = values[self.kernel]
        kernel = (kernel if self.is_transposed else kernel.T).astype(jnp.float32)
        gains = [values[atom].reshape(()).astype(jnp.float32) for atom in self.gains]
        width = len(self.columns)
        bias = jnp.zeros(width) if self.bias is None else values[self.bias].reshape(width)
        rows = kernel[self.columns.start : self.columns.stop]
        return rows, math.prod(gains, start=jnp.float32(1)), bias.astype(jnp.float32)


@dataclass
class _Reading:
    """The factors found between a part of the coefficients and the streams."""

    view: View
    gains: list[Atom] = field(default_factory=list)  # one number each
    norms: list[tuple[Atom, bool]] = field(default_factory=list)  # of tokens, and if they divide
    gammas: list[Atom] = field(default_factory=list)  # factors of the streams that are rows

    def through(self, atom: Atom, axes: int) -> Atom:
        """The first array before products with gains, norms and rows.

        The last ``axes`` axes of the array are those of one token.
        """
        while (equation := self.view.made_by(atom, "mul", "div")) is not None:
            is_inverse = equation.primitive.name == "div"
            pairs = [equation.invars] if is_inverse else [equation.invars, equation.invars[::-1]]
            found = (inner for inner, by in pairs if self._takes(by, atom, axes, is_inverse))
            inner = next(found, None)
            if inner is None:
                break
            atom = inner
        return atom

    def _takes(self, factor: Atom, of: Atom, axes: int, is_inverse: bool) -> bool:
        """Records a factor of an array; returns False if it is none of these."""
        bare, varies = _along(self.view, factor)
        first = of.aval.ndim - axes
        wide = [d for d, n in enumerate(of.aval.shape) if n != 1]
        if not varies and not is_inverse:
            self.gains.append(bare)
        elif varies and varies == [d for d in wide if d < first]:
            self.norms.append((bare, is_inverse))
        elif varies and varies == [d for d in wide if d >= first] and not is_inverse:
            self.gammas.append(bare)
        else:
            return False
        return True


def _along(view: View, factor: Atom) -> tuple[Atom, list[int]]:
    """An array before axes of size one and repeats were added, and the axes it varies along."""
    kinds = "broadcast_in_dim", "reshape", "squeeze"
    bare, labels = without_repeats(view, factor, tuple(range(factor.aval.ndim)), *kinds)
    return bare, [label for label in unless_one(labels, bare) if label is not None]


def _maker(view: View, atom: Atom, *names: str) -> Equation:
    """The equation of one of these primitives behind axes of size one and repeats."""
    return view.match(_along(view, atom)[0], *names)


def _part_of(view: UnroundedView, atom: Atom) -> _Part | None:
    """The part of the coefficients that an array is, before it goes through a sigmoid, or None."""
    added = view.made_by(atom, "add")
    if added is None:
        return _unbiased(view, atom)
    for term, other in (added.invars, added.invars[::-1]):
        bias = row_of(view, other, atom.aval)
        part = None if bias is None else _unbiased(view, term)
        if part is not None:
            return replace(part, bias=bias)
    return None


@or_none
def _unbiased(view: UnroundedView, atom: Atom) -> _Part:
    reading, start, stop = _Reading(view), 0, atom.aval.shape[-1] if atom.aval.ndim else 0
    atom = reading.through(atom, 1)
    while (cut := view.made_by(atom, "split", "slice")) is not None:
        first = _first_column(cut, atom)
        start, stop = start + first, stop + first
        atom = reading.through(cut.invars[0], 1)
    dot = view.match(atom, "dot_general")
    left, kernel = dot.invars
    need(is_matrix_product(dot) and dot.params["precision"] == session_precision())
    need(not reading.gammas)
    streams = reading.through(left, 1)
    if (flat := view.made_by(streams, "reshape")) is not None:
        streams = reading.through(flat.invars[0], 2)
    streams = view.source(streams)
    eps = _norm_eps(view, reading.norms, streams)
    need(len(reading.gammas) <= 1 and streams.aval.shape[:-2] == left.aval.shape[:-1])
    gamma = reading.gammas[0] if reading.gammas else None
    columns, gains = range(start, stop), tuple(reading.gains)
    return _Part(streams, kernel, is_transposed(dot), columns, gains, gamma, eps)


def _first_column(cut: Equation, part: Any) -> int:
    """The column at which a part of an array begins that has all of its rows."""
    begins, ends = span_of(cut, part)
    need(not any(begins[:-1]) and ends[:-1] == tuple(cut.invars[0].aval.shape[:-1]))
    need(cut.params.get("strides") is None)
    return int(begins[-1])


def _norm_eps(view: UnroundedView, norms: list[tuple[Atom, bool]], streams: Atom) -> float:
    """The number that the norm adds to the mean square of the streams."""
    need(len(norms) == 1 and streams.aval.ndim >= 2)
    norm, is_inverse = norms[0]
    root = view.match(norm, "sqrt" if is_inverse else "rsqrt")
    mean, eps = _maker(view, root.invars[0], "add").invars
    total, count = _maker(view, mean, "div").invars
    size = streams.aval.shape[-2] * streams.aval.shape[-1]
    summed = _maker(view, total, "reduce_sum")
    (squares,), (sums,) = summed.invars, summed.outvars
    need(tuple(summed.params["axes"]) == tuple(range(sums.aval.ndim, squares.aval.ndim)))
    need(view.number(count) == size and sums.aval.size * size == streams.aval.size)
    squared = _base_of_square(view, squares)
    flat = view.made_by(squared, "reshape")
    bases = [squared, *([] if flat is None else flat.invars)]
    need(any(view.source(base) is streams for base in bases))
    return required(view.number(eps))


def _base_of_square(view: View, atom: Atom) -> Atom:
    equation = view.match(atom, "square", "integer_pow", "mul")
    base = equation.invars[0]
    need(equation.params.get("y", 2) == 2 and all(factor is base for factor in equation.invars))
    return base


@dataclass(frozen=True)
class _Found:
    """A result of ``mhc_pre`` in the program: its variable, its part, and its constant."""

    result: Any
    part: _Part
    constant: float


def _rounded_result(view: View, result: Atom) -> Atom:
    """The rounded version of a result, with fewer bits, if it is its only use."""
    users = view.users(result)
    if len(users) != 1 or view.is_output(result):
        return result
    rounded = users[0].outvars[0]
    is_it = unrounded(view).source(rounded) is unrounded(view).source(result)
    return rounded if is_it and rounded.aval.dtype.itemsize < result.aval.dtype.itemsize else result


def _propose_pre(rounded: View, equation: Equation) -> Rewrite | None:
    view = unrounded(rounded)
    found = _weighted_sum(view, equation)
    streams, n = found.part.streams, found.part.streams.aval.shape[-2]
    posts, rests = [], []
    for other in view.program.equations:
        if other.primitive.name == "logistic":
            posts += _weights(view, other, found.part, range(n, 2 * n))
        elif other.primitive.name in ("add", "mul", "div", "split"):
            rests += _logits(view, other, found.part, range(2 * n, 2 * n + n * n))
    if len(posts) != 1 or not rests:
        raise Refusal("the other coefficients of the hyper-connection are not there")
    found_parts = [found, posts[0], rests[-1]]
    parts, results = zip(*((one.part, one.result) for one in found_parts), strict=True)
    dtype = _dtype_of_op(found.result, streams)
    gamma = found.part.gamma
    eps = {"norm_eps": found.part.norm_eps, "pre_eps": found.constant}
    constants = {**eps, "post_scale": posts[0].constant}

    def function(*arrays):
        values = Values(inputs, arrays)
        x = values[streams]
        phi, alpha, bias = zip(*(part.arrays(values) for part in parts), strict=True)
        phi, alpha, bias = jnp.concatenate(phi), jnp.stack(alpha), jnp.concatenate(bias)
        scale = None
        if gamma is not None:
            scale = values[gamma].reshape(x.shape[-2:]).astype(jnp.float32)
        made = ops.mhc_pre(x.astype(dtype), phi, alpha, bias, scale, **constants)
        types = [result.aval for result in results]
        return [y.reshape(t.shape).astype(t.dtype) for y, t in zip(made, types, strict=True)]

    inputs = [streams, *([] if gamma is None else [gamma])]
    inputs += [atom for part in parts for atom in part.inputs]
    sizes = 6 * nbytes(streams) + nbytes(*results), nbytes(streams) + nbytes(*results)
    note = f"coefficients of {n} streams and their sum -> mhc_pre"
    choice = _pre_choice(streams, dtype, gamma, MHCConstants(**constants))
    is_what_runs = choice == "xla"
    return Rewrite(
        equation, inputs, function, note, *sizes, is_what_runs=is_what_runs, results=results
    )


def _dtype_of_op(result: Atom, *arrays: Atom) -> Any:
    """The dtype of the arrays of an op: that of its result if all have it, else float32."""
    dtype = result.aval.dtype
    return dtype if all(a.aval.dtype == dtype for a in arrays) else jnp.dtype("float32")


def _pre_choice(streams: Atom, dtype: Any, gamma: Atom | None, constants: MHCConstants) -> str:
    n, dim = streams.aval.shape[-2:]
    rows = 2 * n + n * n
    shapes = [(rows, n * dim), (3,), (rows,), (n, dim)]
    phi, alpha, bias, scale = [jax.ShapeDtypeStruct(shape, "float32") for shape in shapes]
    params = MHCParams(phi, alpha, bias, None if gamma is None else scale)
    like = jax.ShapeDtypeStruct(streams.aval.shape, dtype)
    options = {"return_streams": False, "constants": constants}
    return MHC_PRE.choose(current_platform(), like, params, **options)


def _summed(factor: Factor, rank: int) -> list[int | None]:
    """The labels of the axes of a factor that a contraction of this rank does not have."""
    return [label for label in factor.labels if label not in range(rank)]


def _weighted_sum(view: UnroundedView, equation: Equation) -> _Found:
    """The sum of streams, weighted by the sigmoid of their part of the coefficients."""
    output = equation.outvars[0]
    factors, rank = required(contraction_of(view, output)), output.aval.ndim
    need(rank > 0 and output.aval.dtype.name in SHORT_FLOATS)
    *tokens, last = range(rank)
    for weights, streams in (factors, factors[::-1]):
        summed = _summed(weights, rank)
        if len(summed) != 1 or weights.labels != (*tokens, summed[0]):
            continue
        if streams.labels != (*tokens, summed[0], last):
            continue
        sigmoid, eps = _sigmoid_of(view, weights.atom, "add")
        part = None if sigmoid is None else _part_of(view, sigmoid.invars[0])
        if part is not None and part.streams is view.source(streams.atom):
            need(part.columns == range(streams.atom.aval.shape[-2]))
            return _Found(_rounded_result(view, output), part, eps)
    raise NoMatch


def _sigmoid_of(view: View, atom: Atom, name: str) -> tuple[Equation | None, float]:
    """The sigmoid in an array and the number that is added to it, or that it is multiplied by."""
    neutral = 0.0 if name == "add" else 1.0
    if (sigmoid := view.made_by(atom, "logistic")) is not None:
        return sigmoid, neutral
    equation = view.made_by(atom, name)
    if equation is None:
        return None, neutral
    for inner, number in (equation.invars, equation.invars[::-1]):
        sigmoid = view.made_by(inner, "logistic")
        value = view.number(number) if sigmoid is not None else None
        if sigmoid is not None and value is not None and value >= 0:
            return sigmoid, value
    return None, neutral


def _weights(view: UnroundedView, sigmoid: Equation, first: _Part, columns: range) -> list[_Found]:
    """The weights of the layer's output that a sigmoid computes, with their scale."""
    part = _part_of(view, sigmoid.invars[0])
    if part is None or not _is_beside(part, first, columns):
        return []
    result = sigmoid.outvars[0]
    users = view.users(result)
    if len(users) == 1 and not view.is_output(result) and users[0].primitive.name == "mul":
        scaled = users[0].outvars[0]
        inner, scale = _sigmoid_of(view, scaled, "mul")
        if inner is sigmoid:
            return [_Found(scaled, part, scale)]
    return [_Found(result, part, 1.0)]


def _logits(view: UnroundedView, equation: Equation, first: _Part, columns: range) -> list[_Found]:
    """The logits of the mixing matrix, if an equation computes them; the last one is used."""
    for made in equation.outvars:
        part = _part_of(view, made)
        if part is not None and _is_beside(part, first, columns):
            return [_Found(made, part, 0.0)]
    return []


def _is_beside(part: _Part, first: _Part, columns: range) -> bool:
    """Whether a part belongs to the same hyper-connection, and has these of its columns."""
    own = range(columns.start, columns.stop) if part.kernel is first.kernel else range(len(columns))
    return (
        part.streams is first.streams
        and part.gamma is first.gamma
        and part.norm_eps == first.norm_eps
        and part.columns == own
    )


def _propose_post(rounded: View, equation: Equation) -> Rewrite | None:
    view, output = unrounded(rounded), equation.outvars[0]
    need(output.aval.ndim >= 2 and output.aval.dtype.name in SHORT_FLOATS)
    for mixed, added in (equation.invars, equation.invars[::-1]):
        of_mixed, of_added = contraction_of(view, mixed), contraction_of(view, added)
        if of_mixed is None or of_added is None:
            continue
        mixing, outer = _mixing_of(of_mixed, output.aval.shape), _outer_of(of_added, added)
        if mixing is not None and outer is not None:
            return _post(view, equation, mixing, outer)
    return None


def _mixing_of(
    factors: tuple[Factor, Factor], shape: tuple[int, ...]
) -> tuple[Factor, Factor, bool] | None:
    """The streams, the matrix that mixes them, and whether it is transposed; or None."""
    *tokens, stream, column = range(len(shape))
    for matrix, streams in (factors, factors[::-1]):
        summed = _summed(streams, len(shape))
        if len(summed) != 1 or streams.labels != (*tokens, summed[0], column):
            continue
        if tuple(streams.atom.aval.shape) != tuple(shape):
            continue
        for axes, transposed in (((stream, summed[0]), False), ((summed[0], stream), True)):
            if matrix.labels in ((*tokens, *axes), axes):
                return streams, matrix, transposed
    return None


def _outer_of(factors: tuple[Factor, Factor], product: Atom) -> tuple[Factor, Factor] | None:
    """The layer's output and the weights that return it to the streams, or None."""
    *tokens, stream, column = range(product.aval.ndim)
    for weights, output in (factors, factors[::-1]):
        is_of_stream = weights.labels in ((*tokens, stream), (stream,))
        if output.labels == (*tokens, column) and is_of_stream:
            return output, weights
    return None


def _post(
    view: UnroundedView,
    equation: Equation,
    mixing: tuple[Factor, Factor, bool],
    outer: tuple[Factor, Factor],
) -> Rewrite:
    streams, matrix, transposed = mixing
    inputs = [view.source(one.atom) for one in (streams, *outer, matrix)]
    need(all(a.aval.dtype.name in SHORT_FLOATS for a in inputs))
    result = _rounded_result(view, equation.outvars[0])
    dtype = _dtype_of_op(result, *inputs[:2])
    dtypes = dtype, dtype, jnp.float32, jnp.float32

    def function(*arrays):
        arrays = [array.astype(t) for array, t in zip(arrays, dtypes, strict=True)]
        return [ops.mhc_post(*arrays, transposed=transposed).astype(result.aval.dtype)]

    avals = [a.aval for a in inputs]
    types = [jax.ShapeDtypeStruct(a.shape, t) for a, t in zip(avals, dtypes, strict=True)]
    choice = MHC_POST.choose(current_platform(), *types, transposed=transposed)
    note = f"{streams.atom.aval.shape[-2]} streams mixed, and the output of a layer -> mhc_post"
    sizes = 7 * nbytes(result), 3 * nbytes(result)
    is_what_runs = choice == "xla"
    return Rewrite(
        equation, inputs, function, note, *sizes, is_what_runs=is_what_runs, results=(result,)
    )


PRE = Rule("mhc_pre", frozenset(("dot_general", "reduce_sum")), _propose_pre)
POST = Rule("mhc_post", frozenset(("add",)), _propose_post)
