"""The part of hyper-connections after a layer, in plain JAX."""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxgnn.ops.core.dtypes import accumulation_dtype


def mhc_post(
    x: Float[Array, "*batch n dim"],
    f: Float[Array, "*batch dim"],
    h_post: Float[Array, "*batch n"],
    h_res: Float[Array, "*batch n n"],
    *,
    transposed: bool,
) -> Float[Array, "*batch n dim"]:
    """``x'_o = Σ_i h_res[o, i] x_i + h_post[o] f``; ``h_res[i, o]`` if ``transposed``."""
    v, w, h_post, h_res = _widened(x, f, h_post, h_res)
    y = mixed(h_res, v, transposed=transposed) + h_post[..., None] * w[..., None, :]
    return y.astype(x.dtype)


def mhc_post_backward(
    x: Float[Array, "*batch n dim"],
    f: Float[Array, "*batch dim"],
    h_post: Float[Array, "*batch n"],
    h_res: Float[Array, "*batch n n"],
    dy: Float[Array, "*batch n dim"],
    *,
    transposed: bool,
) -> tuple[Array, Array, Array, Array]:
    """Gradients to ``x``, ``f``, ``h_post`` and ``h_res``.

    In formulae::

        dx_i = Σ_o h_res[o, i] dy_o,  df = Σ_o h_post[o] dy_o
        dh_post[o] = ⟨dy_o, f⟩,  dh_res[o, i] = ⟨dy_o, x_i⟩
    """
    v, w, weights, matrix = _widened(x, f, h_post, h_res)
    dy = dy.astype(v.dtype)
    dx = mixed(matrix, dy, transposed=not transposed)
    df = jnp.einsum("...o,...od->...d", weights, dy, precision="highest")
    dh_post = jnp.einsum("...od,...d->...o", dy, w, precision="highest")
    left, right = (v, dy) if transposed else (dy, v)
    dh_res = jnp.einsum("...od,...id->...oi", left, right, precision="highest")
    return (
        dx.astype(x.dtype),
        df.astype(f.dtype),
        dh_post.astype(h_post.dtype),
        dh_res.astype(h_res.dtype),
    )


def mixed(
    h_res: Float[Array, "*batch n n"], v: Float[Array, "*batch n dim"], *, transposed: bool
) -> Float[Array, "*batch n dim"]:
    """``Σ_i h_res[o, i] v_i``; ``h_res[i, o]`` if ``transposed``."""
    formula = "...io,...id->...od" if transposed else "...oi,...id->...od"
    return jnp.einsum(formula, h_res, v, precision="highest")


def _widened(*arrays):
    dtype = accumulation_dtype(*(a.dtype for a in arrays))
    return tuple(a.astype(dtype) for a in arrays)
