"""Checks that all readers of atomic structures share."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from jaxgnn._errors import bad_input
from jaxgnn.datasets.records.elements import NUMBERS

SPANNING = "linearly independent vectors along periodic axes"

# Cell vectors of length one must span at least this much, as ``graph.radius_graph`` asks.
_LEAST_SPAN = 1e-6
# Places of xx, yy, zz, yz, xz, xy in a symmetric matrix by rows.
_VOIGT = [0, 5, 4, 5, 1, 3, 4, 3, 2]


def check_elements(where: str, elements: Sequence[str] | None) -> frozenset[str]:
    """Returns the elements that a file may have; ValueError if one is unknown or given twice."""
    if elements is None:
        return frozenset(NUMBERS)
    valid = not isinstance(elements, str) and all(symbol in NUMBERS for symbol in elements)
    if not valid or len(set(elements)) < len(elements):
        expected = "different chemical symbols, such as ('H', 'O')"
        raise bad_input(where, "elements", expected, repr(elements))
    return frozenset(elements)


def expected_element(known: frozenset[str], otherwise: str) -> str:
    """Description of the elements that a file may have; ``otherwise`` if it may have any."""
    return otherwise if len(known) == len(NUMBERS) else f"one of {' '.join(sorted(known))}"


def spans(cell: np.ndarray, periodic: np.ndarray) -> bool:
    """Whether the periodic cell vectors are linearly independent."""
    rows = cell[periodic]
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    if not len(rows) or not (lengths > 0).all():
        return not len(rows)
    return bool(np.linalg.svd(rows / lengths, compute_uv=False)[-1] >= _LEAST_SPAN)


def full_stress(numbers: np.ndarray) -> np.ndarray:
    """A stress as a matrix, of 9 numbers by rows, or of xx, yy, zz, yz, xz, xy."""
    return (numbers if numbers.size == 9 else numbers[_VOIGT]).reshape(3, 3)
