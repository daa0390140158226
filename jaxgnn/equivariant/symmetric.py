"""Tables of symmetric products of a feature with itself, as MACE contracts them."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from itertools import combinations_with_replacement, permutations
from math import factorial

import numpy as np
from jaxtyping import Float

from jaxgnn._errors import bad_input
from jaxgnn.equivariant.coupling import MAX_DEGREE, clebsch_gordan
from jaxgnn.equivariant.irreps import Irrep, Irreps, as_irreps

_WHERE = "symmetric_couplings"
_MOST = 3
"""The largest number of factors."""
_INDEPENDENT = 1e-6
"""Part of the norm of a table that must be left beside the earlier ones."""


def symmetric_couplings(
    irreps: Irreps | str, order: int, irrep: Irrep | str
) -> Float[np.ndarray, "paths *components out"]:
    """Returns all symmetric equivariant products of ``order`` equal factors: MACE's U matrices.

    ``z_m = Σ U[p, i, j, k, m] x_i x_j x_k`` is equivariant for each path p, here for order 3. The
    tables are symmetric under permutations of the factors. Those of different paths are orthogonal,
    and any such product is a sum of them. The squares of a table add up to the number of components
    of ``irrep`` over ``order!``. Made from ``clebsch_gordan`` tables in a fixed order, once for
    each three arguments. See https://arxiv.org/abs/2206.07697.

    Args:
      irreps: irreps of the factor, of one channel each.
      order: number of factors, from 1 to 3.
      irrep: the irrep of the product, such as ``"1o"``.

    Returns:
      A read-only float64 array [paths, irreps.dim, ..., irreps.dim, irrep.dim] with ``order`` axes
      of the factors. There may be no path.

    Raises:
      ValueError: if irreps are not written so or have several channels, ``order`` is not an int
        from 1 to 3, or a degree is too large: for three factors above 3, otherwise above
        ``MAX_DEGREE``.

    Example:
      >>> from jaxgnn.equivariant import symmetric_couplings
      >>> symmetric_couplings("1o", 2, "0e")[0, :, :, 0].round(3).tolist()  # a dot product
      [[0.408, 0.0, 0.0], [0.0, 0.408, 0.0], [0.0, 0.0, 0.408]]
      >>> symmetric_couplings("1o", 2, "1e").shape  # a cross product with itself is zero
      (0, 3, 3, 3)
    """
    irreps = as_irreps(_WHERE, "irreps", irreps)
    if any(entry.multiplicity != 1 for entry in irreps):
        raise bad_input(_WHERE, "irreps", "of one channel each", str(irreps))
    if not isinstance(order, int) or isinstance(order, bool) or not 1 <= order <= _MOST:
        raise bad_input(_WHERE, "order", f"an int from 1 to {_MOST}", repr(order))
    most = MAX_DEGREE // 2 if order == _MOST else MAX_DEGREE
    if irreps.max_degree > most:
        expected = f"of degree at most {most} for {order} factors"
        raise bad_input(_WHERE, "irreps", expected, str(irreps))
    if isinstance(irrep, str):
        (irrep, *others) = (entry.irrep for entry in as_irreps(_WHERE, "irrep", irrep))
        if others:
            raise bad_input(_WHERE, "irrep", "one irrep", f"{1 + len(others)} of them")
    if not isinstance(irrep, Irrep) or irrep.degree > MAX_DEGREE:
        raise bad_input(_WHERE, "irrep", f"an irrep of degree at most {MAX_DEGREE}", str(irrep))
    return _tables(irreps, order, irrep)


@functools.lru_cache(maxsize=64)
def _tables(irreps: Irreps, order: int, irrep: Irrep) -> np.ndarray:
    """Concatenates the tables of all sets of entries."""
    all_tables: list[np.ndarray] = []
    for entries in combinations_with_replacement(range(len(irreps)), order):
        independent: list[np.ndarray] = []  # Tables of other sets share no coefficient.
        for coupled in _coupled([irreps[entry].irrep for entry in entries], irrep):
            table = _symmetrised(coupled, irreps, entries)
            whole = np.linalg.norm(table)
            for earlier in independent:
                table = table - np.vdot(earlier, table) * earlier
            left = np.linalg.norm(table)
            if left > _INDEPENDENT * max(whole, 1.0):
                independent.append(table / left)
        all_tables += independent
    shape = (len(all_tables), *[irreps.dim] * order, irrep.dim)
    tables = np.array(all_tables).reshape(shape) * (irrep.dim / factorial(order)) ** 0.5
    tables.setflags(write=False)
    return tables


def _coupled(factors: list[Irrep], irrep: Irrep) -> Iterator[np.ndarray]:
    """Lists tables [components, ..., out] of the factors, one for each order of products."""
    last = factors[-1]
    if len(factors) == 1:
        if last == irrep:
            yield np.eye(irrep.dim)
        return
    for between in last.products(irrep):
        if between.degree <= MAX_DEGREE:
            table = clebsch_gordan(between.degree, last.degree, irrep.degree)
            for before in _coupled(factors[:-1], between):
                yield np.tensordot(before, table, axes=1)


def _symmetrised(table: np.ndarray, irreps: Irreps, entries: tuple[int, ...]) -> np.ndarray:
    """The mean over all orders of the factors, as a table of all components of the irreps."""
    whole = np.zeros((*[irreps.dim] * len(entries), table.shape[-1]))
    orders = list(permutations(range(len(entries))))
    for order in orders:
        place = tuple(irreps.slices[entries[factor]] for factor in order)
        whole[place] += table.transpose(*order, len(entries)) / len(orders)
    return whole
