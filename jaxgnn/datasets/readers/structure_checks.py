"""Checks that all readers of atomic structures share."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np

from jaxgnn._errors import bad_input
from jaxgnn.datasets.formats.file_errors import bad_file
from jaxgnn.datasets.records.elements import NUMBERS
from jaxgnn.datasets.records.structures_dataset import Structure

Missing = Literal["error", "nan", "skip"]
"""Treatment of structures without a label that others of the file have."""

SPANNING = "linearly independent vectors along periodic axes"

# Cell vectors of length one must span at least this much, as ``graph.radius_graph`` asks.
_LEAST_SPAN = 1e-6
# Places of xx, yy, zz, yz, xz, xy in a symmetric matrix by rows.
_VOIGT = [0, 5, 4, 5, 1, 3, 4, 3, 2]
# Structures that an error names.
_MOST_NAMES = 5


def check_elements(where: str, elements: Sequence[str] | None) -> frozenset[str]:
    """Returns the elements that a file may have; ValueError if one is unknown or given twice."""
    if elements is None:
        return frozenset(NUMBERS)
    valid = not isinstance(elements, str) and all(symbol in NUMBERS for symbol in elements)
    if not valid or len(set(elements)) < len(elements):
        expected = "different chemical symbols, such as ('H', 'O')"
        raise bad_input(where, "elements", expected, repr(elements))
    return frozenset(elements)


def expected_element(allowed: frozenset[str], otherwise: str) -> str:
    """Description of the elements that a file may have; ``otherwise`` if it may have any."""
    return otherwise if len(allowed) == len(NUMBERS) else f"one of {' '.join(sorted(allowed))}"


def spans(cell: np.ndarray, periodic: np.ndarray) -> bool:
    """Returns whether the periodic cell vectors are linearly independent."""
    rows = cell[periodic]
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    if not len(rows) or not (lengths > 0).all():
        return not len(rows)
    return bool(np.linalg.svd(rows / lengths, compute_uv=False)[-1] >= _LEAST_SPAN)


def full_stress(numbers: np.ndarray) -> np.ndarray:
    """Returns a stress as a matrix, of 9 numbers by rows, or of xx, yy, zz, yz, xz, xy."""
    return (numbers if numbers.size == 9 else numbers[_VOIGT]).reshape(3, 3)


def check_missing(where: str, missing: Any) -> None:
    """Raises ValueError unless the option ``missing`` is one of its values."""
    if missing not in get_args(Missing):
        raise bad_input(where, "missing", "'error', 'nan' or 'skip'", repr(missing))


def settle_missing(path: Path, structures: list[Structure], missing: Missing) -> list[Structure]:
    """Applies the option ``missing`` to structures that lack a label that others have.

    A stress is expected only of structures that are periodic in three directions.

    Raises:
      ValueError: the file and the structures, by their number from 0 and their place in the file,
        for ``"error"``; for ``"skip"``, if none is left.
    """
    if missing == "nan":
        return structures
    lacking = {label: _lacking(structures, label) for label in ("energy", "forces", "stress")}
    if missing == "skip":
        skipped = frozenset[int]().union(*lacking.values())
        kept = [one for number, one in enumerate(structures) if number not in skipped]
        if not kept:
            labels = " and ".join(label for label, numbers in lacking.items() if numbers)
            raise bad_file(path, f"expected a structure with {labels}, as others have, got none")
        return kept
    for label, numbers in lacking.items():
        if numbers:
            named = ", ".join(f"{at} ({structures[at].place})" for at in numbers[:_MOST_NAMES])
            more = f" and {len(numbers) - _MOST_NAMES} more" if len(numbers) > _MOST_NAMES else ""
            expected = f"{label} of all {len(structures)} structures, as others have it"
            raise bad_file(
                path,
                f"expected {expected}, got none of structure {named}{more}; missing='skip' leaves "
                "them out, and missing='nan' reads NaN",
            )
    return structures


def _lacking(structures: Sequence[Structure], label: str) -> list[int]:
    """Returns numbers of the structures without a label; none if no structure has it."""
    is_none = [getattr(one, label) is None for one in structures]
    if all(is_none):
        return []
    is_expected = [label != "stress" or bool(one.periodic.all()) for one in structures]
    return [at for at in range(len(structures)) if is_none[at] and is_expected[at]]
