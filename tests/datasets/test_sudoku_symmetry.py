"""Symmetries turn puzzles into puzzles, and every one of them comes up."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxgnn._sudoku import UNITS, have_conflicts
from jaxgnn.datasets import sudoku

COUNT = 64


@pytest.fixture(scope="module")
def data():
    return sudoku.generate(COUNT, seed=11)


@pytest.fixture(scope="module")
def keys():
    return jax.random.split(jax.random.key(0), 40_000)


@pytest.fixture(scope="module")
def symmetries(keys):
    return jax.device_get(jax.jit(jax.vmap(sudoku.random_symmetry))(keys))


def test_images_have_one_solution_which_is_the_image_of_the_solution(data, keys):
    augment = jax.jit(jax.vmap(sudoku.augment))
    puzzles, solutions = map(np.asarray, augment(keys[:COUNT], data.puzzles, data.solutions))
    assert puzzles.dtype == solutions.dtype == np.int8
    assert (puzzles != data.puzzles).any(axis=1).all()
    assert not have_conflicts(solutions).any() and (solutions > 0).all()
    found, solved = sudoku.solve(puzzles)
    assert (found == 1).all()
    np.testing.assert_array_equal(solved[:, 0], solutions)
    np.testing.assert_array_equal((puzzles > 0).sum(axis=1), data.givens)


def test_the_inverse_leads_back_from_any_board(keys):
    boards = jax.random.randint(jax.random.key(1), (COUNT, 81), 0, 10)

    @jax.jit
    @jax.vmap
    def there_and_back(key, board):
        symmetry = sudoku.random_symmetry(key)
        inverse = sudoku.invert_symmetry(symmetry)
        image = sudoku.apply_symmetry(symmetry, board)
        other_image = sudoku.apply_symmetry(inverse, board)
        return (
            sudoku.apply_symmetry(inverse, image),
            sudoku.apply_symmetry(symmetry, other_image),
        )

    for result in there_and_back(keys[:COUNT], boards):
        np.testing.assert_array_equal(result, boards)


def test_symmetries_are_permutations_that_keep_units_together(symmetries):
    cells, digits = symmetries.cells[:500], symmetries.digits[:500]
    np.testing.assert_array_equal(np.sort(cells, axis=1), np.tile(np.arange(81), (500, 1)))
    np.testing.assert_array_equal(np.sort(digits, axis=1), np.tile(np.arange(10), (500, 1)))
    assert (digits[:, 0] == 0).all()
    units = {frozenset(unit) for unit in UNITS.tolist()}
    for permutation in cells:
        assert {frozenset(permutation[unit].tolist()) for unit in UNITS} == units


def test_all_orders_of_rows_and_columns_come_up_transposed_or_not(symmetries):
    grids = symmetries.cells.reshape(-1, 9, 9)
    upright = grids[:, 0, 0] // 9 == grids[:, 0, 1] // 9
    assert abs(upright.mean() - 0.5) < 0.015
    for straight in (grids[upright], grids[~upright].swapaxes(1, 2)):
        rows, columns = straight[:, :, 0] // 9, straight[:, 0, :] % 9
        for order in (rows, columns):
            # 6^4 orders, of which each is expected 15 times.
            _, counts = np.unique(order, axis=0, return_counts=True)
            assert len(counts) == 6**4
            assert counts.max() < 45
        assert abs(np.corrcoef(rows[:, 0], columns[:, 0])[0, 1]) < 0.05


def test_digits_are_relabelled_in_all_ways(symmetries):
    counts = np.array([np.bincount(column, minlength=10) for column in symmetries.digits.T[1:]])
    assert (counts[:, 0] == 0).all()
    expected = len(symmetries.digits) / 9
    assert abs(counts[:, 1:] - expected).max() < 5 * np.sqrt(expected)


def test_one_key_is_one_symmetry_for_a_whole_batch(data):
    key = jax.random.key(3)
    stacked = jnp.asarray(data.puzzles, jnp.int32).reshape(4, 16, 81)
    batch, single, again = jax.jit(sudoku.augment)(key, data.puzzles, data.puzzles[5], stacked)
    np.testing.assert_array_equal(batch[5], single)
    assert again.dtype == jnp.int32
    np.testing.assert_array_equal(again.reshape(COUNT, 81), batch)
