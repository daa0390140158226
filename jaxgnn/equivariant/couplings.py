"""Couplings of a tensor product: its paths with places in arrays, and their tables.

References read dense tables, one coupling after the other. Compiled kernels read
``CouplingArrays``, in which the tables are sparse.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

from jaxgnn.equivariant.paths import TensorProduct

# Coefficients below this are rounding errors of zeros: others are above 0.001 up to degree 6.
ZERO = 1e-12


class Coupling(NamedTuple):
    """A path, which adds ``w_u Σ_ab C[a, b, c] x[u, a] y[b]`` to the result's ``[u, c]``.

    Attributes:
      of_in: the part of a row of features that the path reads.
      of_sh: the part of the harmonics.
      of_out: the part of the result that the path adds to.
      of_weights: the part of the weights, one for each channel.
      channels: number of channels.
      table: the Clebsch-Gordan table, with the factor of the component normalisation.
    """

    of_in: slice
    of_sh: slice
    of_out: slice
    of_weights: slice
    channels: int
    table: Float[np.ndarray, "in sh out"]

    def exchanged(self) -> Coupling:
        """The coupling that reads what this one adds to, and adds to what it reads: its transpose.

        The gradient of a product to its features is the product by exchanged couplings.
        """
        of_in, of_out, table = self.of_out, self.of_in, self.table.transpose(2, 1, 0)
        return self._replace(of_in=of_in, of_out=of_out, table=table)


@functools.lru_cache(maxsize=256)
def couplings(product: TensorProduct, *, exchanged: bool = False) -> tuple[Coupling, ...]:
    """Lists the couplings of a product, path after path.

    Args:
      product: the product.
      exchanged: whether features and result exchange their roles.
    """
    all_couplings = (
        Coupling(
            product.irreps_in.slices[path.i_in],
            product.irreps_sh.slices[path.i_sh],
            product.irreps_out.slices[path.i_out],
            weights,
            product.channels(path),
            product.table(path),
        )
        for path, weights in zip(product.paths, product.weight_slices, strict=True)
    )
    return tuple(coupling.exchanged() if exchanged else coupling for coupling in all_couplings)


class CouplingArrays(NamedTuple):
    """Couplings as arrays, for compiled kernels.

    Attributes:
      paths: a row for each coupling: where its parts of the features, of the harmonics, of the
        result and of the weights start; the number of channels; the number of components of the
        features, of the harmonics and of the result; and the number of its entries.
      entries: the component of the features, of the harmonics and of the result of each
        coefficient that is not zero, coupling after coupling.
      coefficients: these coefficients.
    """

    paths: Int[np.ndarray, "paths 9"]
    entries: Int[np.ndarray, "entries 3"]
    coefficients: Float[np.ndarray, " entries"]


@functools.lru_cache(maxsize=256)
def coupling_arrays(product: TensorProduct, *, exchanged: bool = False) -> CouplingArrays:
    """The couplings of a product as arrays; the arguments are those of ``couplings``."""
    paths, entries, coefficients = [], [], []
    for coupling in couplings(product, exchanged=exchanged):
        nonzero = np.argwhere(np.abs(coupling.table) > ZERO)
        parts = coupling.of_in, coupling.of_sh, coupling.of_out, coupling.of_weights
        starts = (part.start for part in parts)
        paths.append((*starts, coupling.channels, *coupling.table.shape, len(nonzero)))
        entries.append(nonzero)
        coefficients.append(coupling.table[tuple(nonzero.T)])
    return CouplingArrays(
        np.array(paths, np.int32),
        np.concatenate(entries).astype(np.int32),
        np.concatenate(coefficients),
    )
