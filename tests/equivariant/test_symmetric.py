"""Tables of symmetric products: symmetry, equivariance, orthogonality, and that none is missing."""

import itertools
import re

import e3nn_jax as e3nn
import numpy as np
import pytest

from jaxgnn.equivariant import Irreps, symmetric_couplings
from tests.equivariant._representation import TURNS, representation

FACTOR = "0e+1o+2e"
CASES = [(order, irrep) for order in (1, 2, 3) for irrep in ("0e", "1o", "1e", "2e", "3o")]


def _turned(tables, turn, order, irrep):
    """The tables after a turn of all factors and of the result."""
    of_factor, of_result = representation(FACTOR, turn), representation(irrep, turn)
    for axis in range(1, order + 1):
        tables = np.moveaxis(np.tensordot(tables, of_factor, (axis, 0)), -1, axis)
    return tables @ of_result


@pytest.mark.parametrize("order, irrep", CASES)
def test_tables_are_symmetric_equivariant_and_orthogonal(order, irrep):
    tables = symmetric_couplings(FACTOR, order, irrep)
    for axes in itertools.permutations(range(1, order + 1)):
        np.testing.assert_allclose(tables.transpose(0, *axes, order + 1), tables, atol=1e-12)
    for turn in TURNS.values():
        np.testing.assert_allclose(_turned(tables, turn, order, irrep), tables, atol=1e-10)
    flat = tables.reshape(len(tables), np.prod(tables.shape[1:], dtype=int))
    factor = Irreps.parse(irrep).dim / [1, 2, 6][order - 1]
    np.testing.assert_allclose(flat @ flat.T, factor * np.eye(len(flat)), atol=1e-10)


@pytest.mark.parametrize("order", [2, 3])
def test_no_product_of_e3nn_is_missing(order):
    theirs = e3nn.reduced_symmetric_tensor_product_basis(FACTOR, order)
    chunks = {
        str(entry.ir): chunk for entry, chunk in zip(theirs.irreps, theirs.chunks, strict=True)
    }
    for irrep in ("0e", "1o", "1e", "2e", "3o", "4e", "0o"):
        ours = symmetric_couplings(FACTOR, order, irrep)
        expected = chunks.get(irrep)
        if expected is None:
            assert len(ours) == 0
            continue
        # Each of theirs is a sum of ours, and there are as many.
        theirs_flat = np.moveaxis(np.asarray(expected, np.float64), -2, 0).reshape(len(ours), -1)
        flat = ours.reshape(len(ours), -1)
        projected = theirs_flat @ np.linalg.pinv(flat) @ flat
        np.testing.assert_allclose(projected, theirs_flat, atol=1e-5)


@pytest.mark.parametrize(
    "arguments, message",
    [
        (("2x0e", 2, "0e"), "irreps must be of one channel each, got 2x0e"),
        (("0z", 2, "0e"), "irreps must be irreps such as"),
        (("0e", 4, "0e"), "order must be an int from 1 to 3, got 4"),
        (("0e", True, "0e"), "order must be an int from 1 to 3, got True"),
        (("0e+4e", 3, "0e"), "irreps must be of degree at most 3 for 3 factors, got"),
        (("7o", 1, "7o"), "irreps must be of degree at most 6 for 1 factors"),
        (("0e", 1, "0e+1o"), "irrep must be one irrep, got 2 of them"),
        (("0e", 1, 3), "irrep must be an irrep of degree at most 6, got 3"),
    ],
)
def test_bad_arguments_are_named(arguments, message):
    with pytest.raises(ValueError, match=re.escape(f"symmetric_couplings: {message}")):
        symmetric_couplings(*arguments)


def test_tables_can_not_be_changed_and_are_made_once():
    tables = symmetric_couplings(FACTOR, 2, "0e")
    assert symmetric_couplings(Irreps.parse(FACTOR), 2, "0e") is tables
    with pytest.raises(ValueError, match="read-only"):
        tables[0] = 0
