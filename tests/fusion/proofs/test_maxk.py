"""Ways to keep the largest entries of a row are one function of the columns that are kept."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import z3

from jaxgnn import ops
from tests.fusion.proofs._induction import ANY_NUMBER, Fold, array, holds_for_all_lists, ids

ROW, COLUMNS = array("row"), ids("columns")
COLUMN = z3.Int("column")
IS_KEPT = Fold(
    "is kept", lambda j: COLUMNS(j) == COLUMN, False, lambda so_far, now: z3.Or(so_far, now)
)


def test_a_scatter_of_the_values_is_the_row_where_a_column_is_kept():
    scattered = Fold(
        "scattered",
        lambda j: j,
        0,
        lambda so_far, j: z3.If(COLUMNS(j) == COLUMN, ROW(COLUMNS(j)), so_far),
    )

    def claim(n):
        return scattered(n) == z3.If(IS_KEPT(n), ROW(COLUMN), z3.RealVal(0))

    assert holds_for_all_lists(claim, [scattered, IS_KEPT])


def test_a_mask_of_ones_times_the_row_is_the_row_where_a_column_is_kept():
    ones = Fold(
        "ones",
        lambda j: j,
        0,
        lambda so_far, j: z3.If(COLUMNS(j) == COLUMN, z3.RealVal(1), so_far),
    )

    def claim(n):
        return ROW(COLUMN) * ones(n) == z3.If(IS_KEPT(n), ROW(COLUMN), z3.RealVal(0))

    assert holds_for_all_lists(claim, [ones, IS_KEPT])


def test_zero_times_an_entry_is_zero_if_and_only_if_the_entry_is_finite():
    """So a mask needs finite rows: numbers are real ones in the other proofs of this file."""
    entry = z3.FP("entry", z3.Float32())
    is_finite = z3.Not(z3.Or(z3.fpIsInf(entry), z3.fpIsNaN(entry)))
    solver = z3.Solver()
    solver.add(z3.fpIsZero(z3.FPVal(0.0, z3.Float32()) * entry) != is_finite)
    assert solver.check() == z3.unsat


def test_a_sum_of_one_hot_rows_is_a_mask_as_top_k_gives_no_column_twice():
    one_hots = Fold("one hots", lambda j: z3.If(COLUMNS(j) == COLUMN, z3.RealVal(1), z3.RealVal(0)))

    def claim(n):
        return one_hots(n) == z3.If(IS_KEPT(n), z3.RealVal(1), z3.RealVal(0))

    distinct = z3.Implies(IS_KEPT(ANY_NUMBER), COLUMNS(ANY_NUMBER) != COLUMN)
    assert holds_for_all_lists(claim, [one_hots, IS_KEPT], distinct)
    assert not holds_for_all_lists(claim, [one_hots, IS_KEPT])


def test_the_op_keeps_the_columns_of_top_k_in_every_row_of_small_integers():
    rows = jnp.asarray(list(itertools.product((-1.0, 0.0, 1.0), repeat=4)), jnp.float32)
    for k in range(1, 5):
        columns = np.sort(np.asarray(jax.lax.top_k(rows, k)[1]), axis=1)
        kept = ops.maxk(rows, k)
        np.testing.assert_array_equal(kept.indices, columns)
        np.testing.assert_array_equal(kept.values, np.take_along_axis(rows, columns, 1))
