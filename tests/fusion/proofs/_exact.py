"""Evaluation of a jaxpr in exact rational numbers.

Numbers of floating arrays are ``fractions.Fraction`` in NumPy arrays of objects, so that nothing is
rounded: two programs that are equal in real arithmetic have equal results. Infinities and NaN are
floats of Python. A function that leads out of the rationals, such as ``exp``, is any function: it
takes a value that only its name and its argument determine, which is all that congruence needs.
Integers and truth values are those of JAX.
"""

from __future__ import annotations

import functools
import hashlib
import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

SMALLEST, LARGEST = 1, 97  # numerators and denominators of what stands for other functions


def rationals(*shapes: tuple[int, ...], seed: int) -> list[np.ndarray]:
    """Random quotients of integers, of which hardly any two sums are equal."""
    rng = np.random.default_rng(seed)
    return [
        _objects([Fraction(int(a), 97) for a in rng.integers(-400, 401, math.prod(s))], s)
        for s in shapes
    ]


def evaluated(closed: Any, arrays: Sequence[Any]) -> list[Any]:
    """The results of a closed jaxpr.

    Args:
      closed: the jaxpr.
      arrays: an array of objects for each floating argument, and of numbers for each other one.
    """
    return _run(closed.jaxpr, [_constant(c) for c in closed.consts], list(arrays))


def _run(jaxpr: Any, constants: Sequence[Any], arguments: Sequence[Any]) -> list[Any]:
    values = dict(zip(jaxpr.constvars, constants, strict=True))
    values.update(zip(jaxpr.invars, arguments, strict=True))

    def read(atom: Any) -> Any:
        if hasattr(atom, "val"):
            return _constant(np.asarray(atom.val).astype(atom.aval.dtype))
        return values[atom]

    for equation in jaxpr.eqns:
        made = _made(equation, [read(a) for a in equation.invars])
        values.update(zip(equation.outvars, made, strict=True))
    return [read(o) for o in jaxpr.outvars]


def _made(equation: Any, reads: list[Any]) -> list[Any]:
    name, params = equation.primitive.name, equation.params
    body = next((params[k] for k in ("jaxpr", "call_jaxpr", "fun_jaxpr") if k in params), None)
    if name == "jaxgnn_call":
        return _call(params["call"].program([v.aval for v in equation.invars]), reads)
    if name in _LOOPS:
        return _LOOPS[name](params, reads)
    if name in _CALLS and body is not None:
        return _run(getattr(body, "jaxpr", body), [_constant(c) for c in _consts(body)], reads)
    if name in _OF_RATIONALS and (name in _OF_ANY or any(r.dtype == object for r in reads)):
        return _as_list(_OF_RATIONALS[name](equation, *reads))
    if name == "convert_element_type" and _is_float(equation.outvars[0]):
        return [_constant(reads[0])]
    if any(r.dtype == object for r in reads):
        raise NotImplementedError(f"exact evaluation of {name}")
    made = _as_list(equation.primitive.bind(*map(jnp.asarray, reads), **params))
    return [_constant(m) for m in made]


_CALLS = ("jit", "pjit", "closed_call", "custom_jvp_call", "custom_vjp_call", "remat", "checkpoint")


def _consts(body: Any) -> Sequence[Any]:
    return getattr(body, "consts", ())


def _call(body: Any, reads: list[Any]) -> list[Any]:
    return _run(body.jaxpr, [_constant(c) for c in body.consts], reads)


def _scanned(params: Any, reads: list[Any]) -> list[Any]:
    if "num_consts" in params:
        fixed, carried = params["num_consts"], params["num_carry"]
    else:
        fixed, carried = (len(list(part.vals)) for part in params["ft_in"].unpack()[:2])
    constants, carry = reads[:fixed], reads[fixed : fixed + carried]
    rows = []
    for i in range(params["length"])[:: -1 if params["reverse"] else 1]:
        steps = [np.asarray(x[i], x.dtype) for x in reads[fixed + carried :]]
        made = _call(params["jaxpr"], [*constants, *carry, *steps])
        carry = made[:carried]
        rows.append(made[carried:])
    rows = rows[:: -1 if params["reverse"] else 1]
    return [*carry, *(np.stack(column) for column in zip(*rows, strict=True))]


def _repeated_while(params: Any, reads: list[Any]) -> list[Any]:
    first, second = params["cond_nconsts"], params["body_nconsts"]
    of_test, of_body = reads[:first], reads[first : first + second]
    carry = reads[first + second :]
    while _call(params["cond_jaxpr"], [*of_test, *carry])[0]:
        carry = _call(params["body_jaxpr"], [*of_body, *carry])
    return carry


_LOOPS = {
    "scan": _scanned,
    "while": _repeated_while,
    "cond": lambda params, reads: _call(params["branches"][int(reads[0])], reads[1:]),
}


def _as_list(made: Any) -> list[Any]:
    return list(made) if isinstance(made, list | tuple) else [made]


def _is_float(variable: Any) -> bool:
    return bool(jnp.issubdtype(variable.aval.dtype, jnp.floating))


def _constant(value: Any) -> Any:
    """An array of JAX as an exact one."""
    array = np.asarray(value)
    if array.dtype == object or not jnp.issubdtype(array.dtype, jnp.floating):
        return array
    return _objects([_exact(float(v)) for v in array.ravel()], array.shape)


def _exact(value: float) -> Any:
    return Fraction(value) if math.isfinite(value) else value


def _objects(values: Sequence[Any], shape: tuple[int, ...]) -> np.ndarray:
    made = np.empty(len(values), object)
    made[:] = values
    return made.reshape(shape)


# -- numbers -----------------------------------------------------------------------------------


def _each(function: Callable[..., Any]) -> Callable[..., Any]:
    """A primitive of one result that takes its operands entry by entry."""

    def run(equation: Any, *reads: Any) -> Any:
        shape = np.broadcast_shapes(*(r.shape for r in reads))
        entries = zip(*(np.broadcast_to(r, shape).ravel().tolist() for r in reads), strict=True)
        of_params = functools.partial(function, equation.params)
        made = [of_params(*e) for e in entries]
        if jnp.issubdtype(equation.outvars[0].aval.dtype, jnp.floating):
            return _objects(made, shape)
        return np.array(made, equation.outvars[0].aval.dtype).reshape(shape)

    return run


def _times(a: Any, b: Any) -> Any:
    if isinstance(a, float) or isinstance(b, float):
        return float(a) * float(b)
    return a * b


def _over(a: Any, b: Any) -> Any:
    if _finite(a) and _finite(b) and b != 0:
        return a / b
    if b == 0:
        return math.nan if a == 0 or math.isnan(a) else math.copysign(math.inf, a)
    return Fraction(0) if _finite(a) and math.isinf(b) else float(a) / float(b)


def _finite(a: Any) -> bool:
    return isinstance(a, Fraction)


def _larger(a: Any, b: Any) -> Any:
    return a if a != a or a >= b else b


def _smaller(a: Any, b: Any) -> Any:
    return a if a != a or a <= b else b


def any_function(name: str, argument: Any) -> Any:
    """The value that stands for a function at an argument: a positive rational of its own."""
    if not _finite(argument):
        return _AT_INFINITY.get((name, argument), math.nan)
    if (name, argument) in _AT_ZERO:
        return _AT_ZERO[name, argument]
    made = hashlib.blake2b(f"{name}({argument})".encode(), digest_size=8).digest()
    return Fraction(_between(made[:4]), _between(made[4:]))


def _between(made: bytes) -> int:
    return SMALLEST + int.from_bytes(made) % (LARGEST - SMALLEST + 1)


_AT_INFINITY = {("exp", -math.inf): Fraction(0), ("logistic", -math.inf): Fraction(0)}
_AT_ZERO = {("exp", 0): Fraction(1), ("tanh", 0): Fraction(0)}


def _any(name: str) -> Callable[..., Any]:
    return _each(lambda params, a: any_function(name, a))


# -- arrays ------------------------------------------------------------------------------------


def _moved(equation: Any, operand: Any, *places: Any) -> Any:
    """What a gather reads: entries are where JAX moves their numbers."""
    numbers = np.arange(operand.size, dtype=np.int32).reshape(operand.shape)
    params, filled = dict(equation.params), math.nan
    if "fill_value" in params:
        filled = math.nan if params["fill_value"] is None else _exact(params["fill_value"])
        params["fill_value"] = -1
    found = np.asarray(equation.primitive.bind(numbers, *map(jnp.asarray, places), **params))
    entries = [*operand.ravel().tolist(), filled]  # -1 is what is out of range
    return _objects([entries[i] for i in found.ravel()], found.shape)


def _repeated(equation: Any, operand: Any) -> Any:
    shape = equation.params["shape"]
    dims = equation.params["broadcast_dimensions"]
    inner = [1] * len(shape)
    for d, n in zip(dims, operand.shape, strict=True):
        inner[d] = n
    return np.broadcast_to(operand.reshape(inner), shape).copy()


def _cut(equation: Any, operand: Any) -> Any:
    params = equation.params
    steps = params["strides"] or (1,) * operand.ndim
    spans = zip(params["start_indices"], params["limit_indices"], steps, strict=True)
    return operand[tuple(slice(*span) for span in spans)]


def _joined(equation: Any, *operands: Any) -> Any:
    return np.concatenate(operands, axis=equation.params["dimension"])


def _parts(operand: Any, sizes: Sequence[int], axis: int) -> list[Any]:
    return np.split(operand, np.cumsum(sizes)[:-1], axis=axis)


def _padded(equation: Any, operand: Any, value: Any) -> Any:
    numbers = jnp.arange(operand.size, dtype=jnp.int32).reshape(operand.shape)
    found = np.asarray(equation.primitive.bind(numbers, jnp.int32(-1), **equation.params))
    entries = [*operand.ravel().tolist(), value.item()]
    return _objects([entries[i] for i in found.ravel()], found.shape)


def _selected(equation: Any, which: Any, *cases: Any) -> Any:
    which = np.broadcast_to(which, cases[0].shape).astype(int)
    return np.choose(which, cases)


def _scattered(combine: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    def run(equation: Any, base: Any, places: Any, updates: Any) -> Any:
        params = equation.params
        numbers = params["dimension_numbers"]
        order = np.arange(base.size, dtype=np.int32).reshape(base.shape)
        windows = iter(updates.shape[d] for d in numbers.update_window_dims)
        hidden = {*numbers.inserted_window_dims, *numbers.operand_batching_dims}
        sizes = [1 if d in hidden else next(windows) for d in range(base.ndim)]
        found = lax.gather(
            order,
            places,
            lax.GatherDimensionNumbers(
                offset_dims=numbers.update_window_dims,
                collapsed_slice_dims=numbers.inserted_window_dims,
                start_index_map=numbers.scatter_dims_to_operand_dims,
                operand_batching_dims=numbers.operand_batching_dims,
                start_indices_batching_dims=numbers.scatter_indices_batching_dims,
            ),
            tuple(sizes),
            mode=params["mode"],
            fill_value=-1,
        )
        made = base.ravel().copy()
        for place, update in zip(np.asarray(found).ravel(), updates.ravel(), strict=True):
            if place >= 0:
                made[place] = combine(made[place], update)
        return made.reshape(base.shape)

    return run


def _product(equation: Any, left: Any, right: Any) -> Any:
    (of_left, of_right), (batch_left, batch_right) = equation.params["dimension_numbers"]
    left, right = _constant(left), _constant(right)
    rows = [d for d in range(left.ndim) if d not in (*of_left, *batch_left)]
    columns = [d for d in range(right.ndim) if d not in (*of_right, *batch_right)]
    batch = tuple(left.shape[d] for d in batch_left)
    inner = math.prod(left.shape[d] for d in of_left)
    first = left.transpose(*batch_left, *rows, *of_left)
    second = right.transpose(*batch_right, *of_right, *columns)
    shape = (*batch, *(left.shape[d] for d in rows), *(right.shape[d] for d in columns))
    size = math.prod(batch)
    made = first.reshape(size, -1, inner) @ second.reshape(size, inner, -1)
    return made.reshape(shape) if inner else _constant(np.zeros(shape, np.float32))


def _reduced(combine: Callable[[Any, Any], Any], start: Any) -> Callable[..., Any]:
    def run(equation: Any, operand: Any) -> Any:
        axes = tuple(equation.params["axes"])
        kept = [d for d in range(operand.ndim) if d not in axes]
        shape = tuple(operand.shape[d] for d in kept)
        rows = operand.transpose(*kept, *axes).reshape(math.prod(shape), -1)
        return _objects([functools.reduce(combine, row, start) for row in rows], shape)

    return run


def _largest(equation: Any, operand: Any) -> list[Any]:
    k = equation.params["k"]
    rows = operand.reshape(-1, operand.shape[-1])
    order = [sorted(range(len(r)), key=lambda i, r=r: (-r[i], i))[:k] for r in rows]
    shape = (*operand.shape[:-1], k)
    values = [r[i] for r, places in zip(rows, order, strict=True) for i in places]
    return [_objects(values, shape), np.array(order, np.int32).reshape(shape)]


def _sorted(equation: Any, *operands: Any) -> list[Any]:
    axis, keys = equation.params["dimension"], equation.params["num_keys"]
    moved = [np.moveaxis(o, axis, -1) for o in operands]
    flat = [m.reshape(-1, m.shape[-1]) for m in moved]
    made = [f.copy() for f in flat]
    for i in range(len(flat[0])):
        order = sorted(range(flat[0].shape[1]), key=lambda j, i=i: [f[i, j] for f in flat[:keys]])
        for f, m in zip(flat, made, strict=True):
            m[i] = f[i, order]
    return [np.moveaxis(m.reshape(o.shape), -1, axis) for m, o in zip(made, moved, strict=True)]


def _summed_up(equation: Any, operand: Any) -> Any:
    axis, reverse = equation.params["axis"], equation.params["reverse"]
    turned = np.flip(operand, axis) if reverse else operand
    made = np.add.accumulate(turned, axis=axis, dtype=object)
    return np.flip(made, axis) if reverse else made


def _converted(equation: Any, operand: Any) -> Any:
    if _is_float(equation.outvars[0]):  # rounding is what tolerances are for
        return operand
    return (
        np.array([int(v) for v in operand.ravel()])
        .reshape(operand.shape)
        .astype(equation.outvars[0].aval.dtype)
    )


_OF_RATIONALS: dict[str, Callable[..., Any]] = {
    "add": _each(lambda p, a, b: a + b),
    "add_any": _each(lambda p, a, b: a + b),
    "sub": _each(lambda p, a, b: a - b),
    "mul": _each(lambda p, a, b: _times(a, b)),
    "div": _each(lambda p, a, b: _over(a, b)),
    "neg": _each(lambda p, a: -a),
    "abs": _each(lambda p, a: abs(a)),
    "sign": _each(lambda p, a: Fraction((a > 0) - (a < 0))),
    "square": _each(lambda p, a: _times(a, a)),
    "integer_pow": _each(lambda p, a: a ** p["y"]),
    "max": _each(lambda p, a, b: _larger(a, b)),
    "min": _each(lambda p, a, b: _smaller(a, b)),
    "eq": _each(lambda p, a, b: a == b),
    "ne": _each(lambda p, a, b: a != b),
    "lt": _each(lambda p, a, b: a < b),
    "le": _each(lambda p, a, b: a <= b),
    "gt": _each(lambda p, a, b: a > b),
    "ge": _each(lambda p, a, b: a >= b),
    "is_finite": _each(lambda p, a: math.isfinite(a)),
    "stop_gradient": _each(lambda p, a: a),
    "copy": _each(lambda p, a: a),
    "reduce_precision": _each(lambda p, a: a),
    "round": _each(lambda p, a: Fraction(round(a))),
    "one_minus_square": _each(lambda p, a: 1 - a * a),
    "optimization_barrier": lambda equation, *reads: list(reads),
    **{
        name: _any(name)
        for name in ("exp", "exp2", "log", "log1p", "expm1", "tanh", "logistic", "erf", "erfc")
    },
    **{name: _any(name) for name in ("sqrt", "rsqrt", "sin", "cos", "cbrt")},
    "broadcast_in_dim": _repeated,
    "reshape": lambda equation, a: a.reshape(equation.params["new_sizes"]),
    "squeeze": lambda equation, a: a.reshape(equation.outvars[0].aval.shape),
    "transpose": lambda equation, a: a.transpose(equation.params["permutation"]),
    "rev": lambda equation, a: np.flip(a, equation.params["dimensions"]),
    "slice": _cut,
    "dynamic_slice": _moved,
    "gather": _moved,
    "concatenate": _joined,
    "split": lambda equation, operand: _parts(operand, **equation.params),
    "pad": _padded,
    "select_n": _selected,
    "scatter": _scattered(lambda old, new: new),
    "scatter-add": _scattered(lambda a, b: a + b),
    "scatter-max": _scattered(_larger),
    "scatter-min": _scattered(_smaller),
    "scatter-mul": _scattered(_times),
    "dot_general": _product,
    "reduce_sum": _reduced(lambda a, b: a + b, Fraction(0)),
    "reduce_max": _reduced(_larger, -math.inf),
    "reduce_min": _reduced(_smaller, math.inf),
    "top_k": _largest,
    "sort": _sorted,
    "cumsum": _summed_up,
    "convert_element_type": _converted,
}


# Those of integers and truth values are the same, and need not be compiled.
_OF_ANY = frozenset(
    ("add", "sub", "mul", "neg", "eq", "ne", "lt", "le", "gt", "ge", "copy", "broadcast_in_dim")
) | {
    "reshape",
    "squeeze",
    "transpose",
    "rev",
    "slice",
    "stop_gradient",
    "max",
    "min",
    "select_n",
    "concatenate",
}


def as_exact(args: Sequence[jax.Array], seed: int) -> list[Any]:
    """Random rationals in the shapes of floating arguments, and the other arguments as they are."""
    made = []
    for i, a in enumerate(args):
        if jnp.issubdtype(a.dtype, jnp.floating):
            made += rationals(a.shape, seed=1000 * seed + i)
        else:
            made.append(np.asarray(a))
    return made


def same(left: Any, right: Any) -> bool:
    """Whether two exact arrays are equal; NaN equals itself here."""
    if left.shape != right.shape:
        return False
    pairs = zip(left.ravel().tolist(), right.ravel().tolist(), strict=True)
    return all(a == b or (a != a and b != b) for a, b in pairs)
