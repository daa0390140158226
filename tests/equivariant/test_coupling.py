"""Clebsch-Gordan tables against e3nn-jax, and their laws."""

import itertools

import e3nn_jax as e3nn
import numpy as np
import pytest

from jaxgnn.equivariant import MAX_DEGREE, clebsch_gordan

DEGREES = range(MAX_DEGREE + 1)
COUPLED = [
    d for d in itertools.product(DEGREES, repeat=3) if abs(d[0] - d[1]) <= d[2] <= d[0] + d[1]
]


@pytest.mark.costly
@pytest.mark.parametrize("third", DEGREES)
def test_tables_are_those_of_e3nn(third):
    for degrees in (d for d in COUPLED if d[2] == third):
        expected = np.asarray(e3nn.clebsch_gordan(*degrees))
        np.testing.assert_allclose(clebsch_gordan(*degrees), expected, atol=1e-14, err_msg=degrees)


def test_the_components_of_a_product_are_orthogonal_and_share_the_norm():
    for degrees in COUPLED:
        table = clebsch_gordan(*degrees).reshape(-1, 2 * degrees[2] + 1)
        expected = np.eye(table.shape[1]) / table.shape[1]
        np.testing.assert_allclose(table.T @ table, expected, atol=1e-14, err_msg=degrees)


def test_a_table_is_kept_and_can_not_be_changed():
    table = clebsch_gordan(1, 2, 3)
    assert clebsch_gordan(1, 2, 3) is table
    with pytest.raises(ValueError, match="read-only"):
        table[0] = 1


@pytest.mark.parametrize(
    "degrees, named",
    [
        ((7, 1, 6), "first must be an int from 0 to 6, got 7"),
        ((1, -1, 1), "second must be an int from 0 to 6, got -1"),
        ((1, 1, 1.0), "third must be an int from 0 to 6, got 1.0"),
        ((1, 1, 3), r"third must be from \|first - second\| = 0 to first \+ second = 2, got 3"),
    ],
)
def test_degrees_that_can_not_be_coupled_are_named(degrees, named):
    clebsch_gordan(1, 1, 1)  # 1.0 must not find it
    with pytest.raises(ValueError, match=f"clebsch_gordan: {named}"):
        clebsch_gordan(*degrees)
