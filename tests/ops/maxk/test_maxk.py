"""maxk, todense and what they promise about ties, NaN and tails."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxgnn import _ffi, ops
from jaxgnn.graph import CBSR
from jaxgnn.ops._maxk.maxk import MAXK, TODENSE
from jaxgnn.ops._maxk.reference import maxk as reference
from jaxgnn.ops.core import dispatch
from jaxgnn.testing import (
    MAXK_SHAPES,
    assert_bit_equal,
    check_against_float64,
    check_numerical_gradients,
    random_array,
)
from tests.ops._table import usable

IMPLEMENTATIONS = usable(MAXK)
ON_CPU = dispatch.current_platform() == "cpu"


def if_supported(*shape, early_stop=None) -> list:
    """The usable implementations as parameters, skipped where they do not take such an input."""
    options = {"k": 1, "by": "value", "early_stop": early_stop}
    parameters = []
    for name in IMPLEMENTATIONS:
        reason = MAXK.why_not(name, dispatch.current_platform(), jnp.zeros(shape), **options)
        skips = [pytest.mark.skip(reason=f"reason: {reason}")] if reason else []
        parameters.append(pytest.param(name, marks=skips))
    return parameters


EARLY = if_supported(1, 8, early_stop=1)
FLOATS = ("float32", "bfloat16", "float16")


def _oracle(x: np.ndarray, k: int, by: str) -> np.ndarray:
    """Columns of the k largest, by numpy's stable sort: ties to the lowest column."""
    wide = x.astype(np.float64)
    rank = np.abs(wide) if by == "magnitude" else wide
    rank = np.where(np.isnan(rank), np.inf, rank)
    order = np.argsort(-rank, axis=-1, kind="stable")
    return np.sort(order[..., :k], axis=-1)


def _check(x, ks, implementation, by=("value", "magnitude")):
    """Compares with the oracle for each k and order, all of them compiled as one program."""
    cases = [(k, order) for k in ks for order in by]

    @jax.jit
    def all_kept(x):
        return [ops.maxk(x, k, by=order, implementation=implementation) for k, order in cases]

    rows = np.asarray(x)
    for (k, order), kept in zip(cases, all_kept(x), strict=True):
        expected = _oracle(rows, k, order)
        np.testing.assert_array_equal(np.asarray(kept.indices), expected)
        assert_bit_equal(kept.values, np.take_along_axis(rows, expected, axis=-1))
        assert kept.dim == x.shape[-1]
        assert kept.values.dtype == x.dtype


@pytest.mark.costly
@pytest.mark.parametrize("implementation", [*IMPLEMENTATIONS, None])
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(("dim", "k"), MAXK_SHAPES)
def test_keeps_exactly_the_largest_entries(dim, k, dtype, implementation):
    x = random_array((37, dim), dtype, seed=dim + k, scale=3.0)
    _check(x, [k], implementation)


@pytest.mark.parametrize(
    "dim, faster", [(32, "pallas"), (256, "pallas"), (100, "ffi"), (288, "ffi")]
)
@pytest.mark.parametrize("is_built", [True, False])
def test_none_takes_what_was_faster_on_a_gpu(dim, faster, is_built, monkeypatch):
    if MAXK.unavailable("pallas", "cuda"):
        pytest.skip(f"reason: {MAXK.unavailable('pallas', 'cuda')}")
    missing = None if is_built else "needs the compiled library"
    entry = dataclasses.replace(MAXK.implementations["ffi"], missing=lambda platform: missing)
    monkeypatch.setitem(MAXK.implementations, "ffi", entry)
    monkeypatch.setattr(_ffi, "why_missing", lambda platform: missing)
    x = jax.ShapeDtypeStruct((100, dim), "float32")
    chosen = MAXK.choose("cuda", x, k=3, by="value", early_stop=None)
    assert chosen == (faster if is_built else "pallas")


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("dtype", FLOATS)
def test_ties_go_to_the_lowest_column(dtype, implementation):
    x = jnp.asarray(np.random.default_rng(0).integers(-2, 3, (64, 40))).astype(dtype)
    _check(x, (1, 7, 39, 40), implementation)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("dtype", FLOATS)
def test_special_values_have_the_documented_rank(dtype, implementation):
    special = [jnp.nan, -jnp.nan, jnp.inf, -jnp.inf, 0.0, -0.0, 1.0, -1.0, 1e-7, -1e-7]
    rng = np.random.default_rng(1)
    rows = np.stack([rng.permutation(special) for _ in range(50)])
    x = jnp.asarray(rows, jnp.float32).astype(dtype)
    _check(x, range(1, 11), implementation)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_extreme_magnitudes_do_not_confuse_the_search(implementation):
    tiny, huge = np.finfo(np.float32).smallest_subnormal, np.finfo(np.float32).max
    values = np.array([huge, -huge, tiny, -tiny, 2 * tiny, 1.0, -1.0, 0.0], np.float32)
    x = jnp.asarray(np.stack([np.roll(values, i) for i in range(8)]))
    if implementation == "xla" and jax.default_backend() == "cpu":
        x = jnp.where(jnp.abs(x) < 1e-30, 0, x)  # XLA on CPU flushes subnormals to zero
    _check(x, range(1, 9), implementation, by=["value"])


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_all_equal_rows_keep_the_first_columns(implementation):
    kept = ops.maxk(jnp.full((3, 20), 2.5), 6, implementation=implementation)
    np.testing.assert_array_equal(kept.indices, np.tile(np.arange(6), (3, 1)))


@pytest.mark.parametrize(
    ("dim", "dtype", "implementation"),
    [
        pytest.param(dim, dtype, *named.values, marks=named.marks)
        for dim, dtype in ((256, "uint8"), (257, "uint16"), (70_000, "uint32"))
        for named in if_supported(2, dim)
    ],
)
def test_column_ids_use_the_smallest_type(dim, dtype, implementation):
    x = random_array((2, dim), "float32", seed=2)
    kept = ops.maxk(x, 5, implementation=implementation).validate()
    assert kept.indices.dtype == dtype
    np.testing.assert_array_equal(kept.indices, _oracle(np.asarray(x), 5, "value"))


@pytest.mark.parametrize("implementation", EARLY)
@pytest.mark.parametrize("steps", [0, 1, 4, 40])
def test_early_stop_is_the_documented_bisection(steps, implementation):
    x = np.asarray(random_array((50, 64), "float32", seed=3))
    for by in ("value", "magnitude"):
        kept = ops.maxk(
            jnp.asarray(x), 8, by=by, early_stop=steps, implementation=implementation
        ).validate()
        rank = np.abs(x) if by == "magnitude" else x
        for row, columns in zip(rank, np.asarray(kept.indices), strict=True):
            low, high = row.min(), row.max()
            for _ in range(steps):
                middle = np.float32(0.5) * low + np.float32(0.5) * high
                if (row >= middle).sum() >= 8:
                    low = middle
                else:
                    high = middle
            np.testing.assert_array_equal(columns, np.flatnonzero(row >= low)[:8])


@pytest.mark.parametrize("implementation", EARLY)
@pytest.mark.parametrize(
    ("dtype", "scale"), [("bfloat16", 1.0), ("float16", 1.0), ("float16", 1e-6)]
)
def test_early_stop_of_half_precision_ranks_subnormals_by_value(dtype, scale, implementation):
    x = random_array((50, 64), dtype, seed=11, scale=scale)
    early = ops.maxk(x, 8, early_stop=60, implementation=implementation)
    exact = ops.maxk(x, 8, implementation=implementation)
    # Enough steps part all but equal values, of which both keep the first.
    kept = np.asarray(early.values).astype(np.float64).min(axis=-1)
    best = np.asarray(exact.values).astype(np.float64).min(axis=-1)
    np.testing.assert_array_equal(kept, best)


@pytest.mark.parametrize("implementation", EARLY)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_early_stop_of_numbers_whose_sum_is_infinite(dtype, implementation):
    x = jnp.array(
        [[1.0, 3e38, 2e38, jnp.inf, jnp.inf], [2e38, 2.2e38, 2.4e38, 2.6e38, 3e38]], dtype
    )
    kept = ops.maxk(x, 2, early_stop=30, implementation=implementation)
    assert kept.indices.tolist() == [[3, 4], [3, 4]]


@pytest.mark.parametrize("implementation", ["xla", "ffi"])
def test_todense_leaves_out_ids_that_are_no_columns(implementation):
    cbsr = CBSR(jnp.ones((2, 3)), jnp.array([[0, 1, 2], [0, 1, 255]], jnp.uint8), 10)
    expected = np.zeros((2, 10))
    expected[0, :3] = expected[1, :2] = 1
    np.testing.assert_array_equal(ops.todense(cbsr, implementation=implementation), expected)


@pytest.mark.parametrize("implementation", EARLY)
def test_early_stop_with_many_steps_is_exact_without_ties(implementation):
    x = random_array((40, 100), "float32", seed=4)
    early = ops.maxk(x, 10, early_stop=64, implementation=implementation)
    assert_bit_equal(early, ops.maxk(x, 10, implementation=implementation))


@pytest.mark.parametrize("implementation", EARLY)
def test_early_stop_keeps_k_entries_of_rows_with_infinities_and_nan(implementation):
    x = random_array((4, 12), "float32", seed=5)
    x = x.at[0, 3].set(jnp.inf).at[1, 4].set(-jnp.inf).at[2, 5].set(jnp.nan)
    # With the range that wide a few steps cut nothing off: the first columns that are finite.
    few = ops.maxk(x, 4, early_stop=6, implementation=implementation).validate()
    np.testing.assert_array_equal(few.indices[0], [0, 1, 2, 3])
    np.testing.assert_array_equal(few.indices[1], [0, 1, 2, 3])
    # With many it is the exact result.
    many = ops.maxk(x, 4, early_stop=400, implementation=implementation)
    assert_bit_equal(many, ops.maxk(x, 4, implementation=implementation))


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_gradient_passes_through_the_kept_columns_only(dtype, implementation):
    x = random_array((9, 30), dtype, seed=6)
    check_against_float64(
        lambda x: ops.maxk(x, 4, implementation=implementation).values,
        lambda x: reference.maxk(x, k=4, by="value", early_stop=None).values,
        x,
        reduction_length=1,
    )


@pytest.mark.parametrize("implementation", usable(TODENSE))
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_todense_inverts_maxk_and_its_gradient_gathers(dtype, implementation):
    x = random_array((9, 300), dtype, seed=7)
    kept = ops.maxk(x, 300)
    assert_bit_equal(ops.todense(kept, implementation=implementation), x)
    few = ops.maxk(x, 5)
    assert_bit_equal(ops.todense(few, implementation=implementation), few.todense())
    check_against_float64(
        lambda v: ops.todense(CBSR(v, few.indices, 300), implementation=implementation),
        lambda v: reference.todense(CBSR(v, few.indices, 300)),
        few.values,
        reduction_length=1,
    )


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_gradient_agrees_with_finite_differences_away_from_ties(implementation):
    x = jnp.asarray(np.random.default_rng(8).permutation(24).reshape(3, 8).astype(np.float32))
    check_numerical_gradients(
        lambda x: ops.todense(ops.maxk(x, 3, implementation=implementation)) ** 2 / 10, x
    )


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("shape", [(12,), (2, 3, 12), (0, 12), (4, 3, 7), (3, 9, 32)])
def test_any_leading_axes_and_vmap_give_the_rows_one_by_one(shape, implementation):
    x = random_array(shape, "float32", seed=9)
    kept = ops.maxk(x, 3, implementation=implementation)
    np.testing.assert_array_equal(kept.indices, _oracle(np.asarray(x), 3, "value"))
    if len(shape) > 1 and shape[0]:
        mapped = jax.vmap(lambda x: ops.maxk(x, 3, implementation=implementation))(x)
        assert_bit_equal(mapped, kept)
        dense = jax.vmap(lambda kept: ops.todense(kept, implementation=implementation))(kept)
        assert_bit_equal(dense, kept.todense())


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("dim", [12, 7])
def test_vmap_of_grad_over_values_with_shared_columns(dim, implementation):
    x = random_array((5, dim), "float32", seed=10)
    kept = ops.maxk(x, 3, implementation=implementation)
    values = jnp.stack([kept.values, 2 * kept.values])

    def gradient(values):
        def loss(values):
            dense = ops.todense(CBSR(values, kept.indices, dim), implementation=implementation)
            return jnp.sum(dense**3)

        return jax.grad(loss)(values)

    np.testing.assert_allclose(jax.vmap(gradient)(values), 3 * values**2, rtol=1e-6)
