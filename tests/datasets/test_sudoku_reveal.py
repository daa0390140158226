"""Further givens on the device."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxgnn.datasets import sudoku


@pytest.fixture(scope="module")
def data():
    return sudoku.generate(64, seed=21)


reveal = jax.jit(jax.vmap(sudoku.reveal))


def test_puzzles_have_as_many_givens_as_asked_for_or_their_own(data):
    keys = jax.random.split(jax.random.key(0), len(data))
    for givens in (0, 24, 30, 81, 90):
        wanted = jnp.full(len(data), givens, jnp.int32)
        puzzles = np.asarray(reveal(keys, data.puzzles, data.solutions, wanted))
        assert puzzles.dtype == np.int8
        np.testing.assert_array_equal(
            np.count_nonzero(puzzles, axis=1), np.clip(givens, data.givens, 81)
        )
        assert (puzzles[data.puzzles > 0] == data.puzzles[data.puzzles > 0]).all()
        given = puzzles > 0
        np.testing.assert_array_equal(puzzles[given], data.solutions[given])


def test_every_blank_cell_is_given_as_often(data):
    count, extra = 20_000, 10
    keys = jax.random.split(jax.random.key(1), count)
    puzzle, solution = data.puzzles[0], data.solutions[0]
    own = int(data.givens[0])
    many = jax.jit(jax.vmap(sudoku.reveal, in_axes=(0, None, None, None)))
    puzzles = np.asarray(many(keys, puzzle, solution, own + extra))
    shares = (puzzles[:, puzzle == 0] > 0).mean(axis=0)
    expected = extra / (81 - own)
    spread = np.sqrt(expected * (1 - expected) / count)
    assert np.abs(shares - expected).max() < 5 * spread
