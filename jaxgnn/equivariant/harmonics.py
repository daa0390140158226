"""Real spherical harmonics of vectors, as polynomials of their coordinates."""

from __future__ import annotations

from functools import partial
from math import factorial, sqrt
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxgnn._arrays.arrays import as_jax
from jaxgnn._errors import bad_input
from jaxgnn.equivariant.coupling import MAX_DEGREE
from jaxgnn.equivariant.irreps import Irreps, as_irreps

_WHERE = "spherical_harmonics"


def spherical_harmonics(
    irreps: Irreps | str | int, vectors: Float[Array, "*batch 3"], *, normalize: bool = True
) -> Float[Array, "*batch dim"]:
    """Computes real spherical harmonics of vectors, in e3nn's order, signs and normalisation.

    Component normalisation: on the sphere the squares of a degree's ``2 degree + 1`` components add
    up to that number. Degree 1 is ``√3 (x, y, z)``.

    Plain polynomials, differentiable any number of times and in forward mode. The direction of a
    zero vector is zero, with a zero gradient: only degree 0 remains. Vectors of any finite length
    have a direction, also where the square of the length overflows.

    Args:
      irreps: their irreps, such as ``"0e+1o+2e"``, each with one channel and parity
        ``(-1)^degree``; or the largest degree, for all from 0 to it.
      vectors: floating [..., 3], coordinates x, y, z.
      normalize: whether to take the direction of each vector. Without it the result is
        a polynomial of each component's degree, which grows with the length.

    Returns:
      The harmonics, of the dtype of ``vectors``.

    Raises:
      ValueError: if ``vectors`` are not floating [..., 3], a degree is above ``MAX_DEGREE``, or an
        entry of the irreps has several channels or another parity.

    Example:
      >>> import jax.numpy as jnp
      >>> from jaxgnn.equivariant import spherical_harmonics
      >>> print(spherical_harmonics(1, jnp.array([0.0, 2.0, 0.0])).round(2))
      [1.   0.   1.73 0.  ]
      >>> spherical_harmonics("2e", jnp.zeros(3)).tolist()
      [0.0, 0.0, 0.0, 0.0, 0.0]
    """
    degrees = _degrees(irreps)
    _check_vectors(vectors)
    vectors = as_jax("spherical_harmonics", "vectors", vectors)
    return _compute(degrees, vectors, bool(normalize))


@partial(jax.jit, static_argnums=(0, 2), inline=True)
def _compute(
    degrees: tuple[int, ...], vectors: Float[Array, "*batch 3"], normalize: bool
) -> Float[Array, "*batch dim"]:
    """The harmonics of these degrees, one after the other."""
    wide = vectors.astype(jnp.float64 if vectors.dtype == jnp.float64 else jnp.float32)
    components = _harmonics(max(degrees), _directions(wide) if normalize else wide)
    columns = [column for degree in degrees for column in components[degree]]
    return jnp.stack(columns, axis=-1).astype(vectors.dtype)


def _degrees(irreps: Any) -> tuple[int, ...]:
    """The degrees of the harmonics, checked."""
    if isinstance(irreps, int) and not isinstance(irreps, bool) and irreps >= 0:
        irreps = Irreps.harmonics(irreps)
    irreps = as_irreps(_WHERE, "irreps", irreps)
    for entry in irreps:
        if entry.multiplicity != 1:
            raise bad_input(_WHERE, "irreps", "of one channel each", str(entry))
        if entry.irrep.parity != (-1) ** entry.irrep.degree:
            raise bad_input(_WHERE, "irreps", "of parity (-1)^degree", str(entry))
    if irreps.max_degree > MAX_DEGREE:
        raise bad_input(_WHERE, "irreps", f"of degree at most {MAX_DEGREE}", irreps.max_degree)
    return tuple(entry.irrep.degree for entry in irreps)


def _check_vectors(vectors: Any) -> None:
    """Raises ValueError unless the vectors are floating [..., 3]."""
    shape, dtype = getattr(vectors, "shape", None), getattr(vectors, "dtype", None)
    if shape is None or dtype is None:
        raise bad_input(_WHERE, "vectors", "an array", type(vectors).__name__)
    if not jnp.issubdtype(dtype, jnp.floating):
        raise bad_input(_WHERE, "vectors", "of a floating dtype", dtype)
    if shape[-1:] != (3,):
        raise bad_input(_WHERE, "vectors", "of shape [..., 3]", f"shape {shape}")


def _directions(vectors: Float[Array, "*batch 3"]) -> Float[Array, "*batch 3"]:
    """Vectors of length one, and zero with a zero gradient where the vector is zero.

    A direction does not depend on the length, so a scale without gradient changes no derivative.
    """
    largest = jnp.max(jnp.abs(vectors), axis=-1, keepdims=True)
    largest = jax.lax.stop_gradient(largest)
    is_zero = largest == 0
    scaled = jnp.where(is_zero, 0, vectors) / jnp.where(is_zero, 1, largest)
    squares = jnp.sum(scaled**2, axis=-1, keepdims=True)
    return scaled / jnp.sqrt(jnp.where(is_zero, 1, squares))


def _harmonics(max_degree: int, vectors: Float[Array, "*batch 3"]) -> list[list[Array]]:
    """The components of each degree, orders from -degree to degree; the axis of the poles is y.

    They are products of a polynomial of y and of the squared length, the associated Legendre
    function without its sines, and of the real or imaginary part of ``(z + i x)^order``.
    """
    x, y, z = (vectors[..., axis] for axis in range(3))
    square = x * x + y * y + z * z
    real, imaginary = [jnp.ones_like(x)], [jnp.zeros_like(x)]
    for _ in range(max_degree):
        a, b = real[-1], imaginary[-1]
        real.append(z * a - x * b)
        imaginary.append(z * b + x * a)
    components: list[list[Array]] = [[] for _ in range(max_degree + 1)]
    legendre = [_legendre(max_degree, order, y, square) for order in range(max_degree + 1)]
    for degree in range(max_degree + 1):
        for order in range(-degree, degree + 1):
            m = abs(order)
            part = imaginary[m] if order < 0 else real[m]
            components[degree].append(_factor(degree, m) * legendre[m][degree - m] * part)
    return components


def _legendre(max_degree: int, order: int, y: Array, square: Array) -> list[Array]:
    """``P_degree^order / sin^order``, homogeneous, for degrees from ``order`` on, by recursion."""
    start = factorial(2 * order) / (2**order * factorial(order))  # 1 · 3 · 5 ⋯ (2 order - 1)
    polynomials = [jnp.full_like(y, start)]
    for degree in range(order + 1, max_degree + 1):
        term = (2 * degree - 1) * y * polynomials[-1]
        if len(polynomials) > 1:
            term = term - (degree + order - 1) * square * polynomials[-2]
        polynomials.append(term / (degree - order))
    return polynomials


def _factor(degree: int, order: int) -> float:
    """The component normalisation of an order."""
    doubled = 1 if order == 0 else 2
    share = factorial(degree - order) / factorial(degree + order)
    return sqrt(doubled * (2 * degree + 1) * share)
