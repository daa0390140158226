"""Calls of the Mosaic GPU kernels that select, spread and gather the kept entries of rows."""

from __future__ import annotations

from functools import partial

from jaxtyping import Array, Float, UInt

from jaxgnn.graph import CBSR, column_dtype
from jaxgnn.ops.core.pallas_call import batches_as_rows, compiled, vary_like


@partial(compiled, static_argnames=("k", "by", "early_stop"))
def maxk(x: Float[Array, "*batch dim"], *, k: int, by: str, early_stop: None) -> CBSR:
    """Keeps the ``k`` largest entries of each row; it has no early stop."""
    from pallas_kernels.maxk import maxk as kernels

    dim = x.shape[-1]
    run = batches_as_rows(lambda rows: kernels.maxk(rows, k, by, column_dtype(dim)))
    made = run(x.reshape(-1, dim))
    values, indices = (vary_like(x, part.reshape(*x.shape[:-1], k)) for part in made)
    return CBSR(values, indices, dim)


def has_eight_rows(dim: int) -> bool:
    """Whether a warp of ``maxk`` processes eight rows of ``dim`` columns at a time."""
    from pallas_kernels.chip import Chip
    from pallas_kernels.maxk import maxk as kernels

    return kernels.MaxkTile.choose(Chip.current(), dim, column_dtype(dim)).rows > 1


@compiled
def todense(cbsr: CBSR) -> Float[Array, "*batch rows dim"]:
    """Spreads the kept values out over rows of zeros."""
    from pallas_kernels.maxk import maxk as kernels

    values, indices = (part.reshape(-1, cbsr.k) for part in (cbsr.values, cbsr.indices))
    dense = batches_as_rows(lambda v, i: kernels.todense(v, i, cbsr.dim))(values, indices)
    return vary_like(cbsr.values, dense.reshape(cbsr.shape))


@compiled
def gather_columns(
    dense: Float[Array, "*batch rows dim"], indices: UInt[Array, "*batch rows k"]
) -> Float[Array, "*batch rows k"]:
    """Picks the entries of each row that ``indices`` names."""
    from pallas_kernels.maxk import maxk as kernels

    flat = (part.reshape(-1, part.shape[-1]) for part in (dense, indices))
    return vary_like(dense, batches_as_rows(kernels.gather_columns)(*flat).reshape(indices.shape))
