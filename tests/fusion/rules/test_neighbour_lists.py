"""Sums and extremes over dense neighbour lists [nodes, neighbours], with masks, become ops."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxgnn
from tests.fusion._cases import applied, arrays, assert_same, fuse, refused

SIDE = 6  # nodes, neighbours and features: sizes do not tell axes apart
_rng = np.random.default_rng(0)
IDS = jnp.asarray(_rng.integers(0, SIDE - 1, (SIDE, SIDE)), jnp.int32)  # nobody reads the last
KEPT = jnp.asarray(_rng.random((SIDE, SIDE)) < 0.7).at[2].set(False)  # one list is empty
PADDED = jnp.where(KEPT, IDS, SIDE)  # as jax-md pads: with the number of nodes
X, H, W = arrays((SIDE, SIDE), (SIDE, SIDE), (SIDE, SIDE))
(CUBE,) = arrays((SIDE, SIDE, SIDE))


def _mask(messages, mask=KEPT, instead=0):
    return jnp.where(mask[..., None], messages, instead)


SUMS = {
    "numbers of nodes and places": (
        lambda x, h, w: -(x[IDS] * h[:, :1, None] / (1 + w[0, None, :, None] ** 2)).sum(1),
        (X, H, W),
    ),
    "rows": (lambda x: x[IDS].sum(1), (X,)),
    "a mean": (lambda x: x[IDS].mean(1), (X,)),
    "weights": (lambda x, w: (x[IDS] * w[..., None]).sum(1), (X, W)),
    "a mask": (lambda x: _mask(x[IDS]).sum(1), (X,)),
    "a mask in the sum": (lambda x: x[IDS].sum(1, where=KEPT[..., None]), (X,)),
    "a mask behind weights": (lambda x, w: _mask(x[IDS] * w[..., None]).sum(1), (X, W)),
    "a mask as weights": (lambda x: (x[IDS] * KEPT[..., None].astype(x.dtype)).sum(1), (X,)),
    "padding that is no node": (
        lambda x, w: _mask(x[PADDED] * w[..., None], PADDED < SIDE).sum(1),
        (X, W),
    ),
    "an einsum": (lambda x, w: jnp.einsum("nk,nkd->nd", w, x[IDS]), (X, W)),
    "an einsum with a mask": (lambda x, w: jnp.einsum("nkd,nk->nd", _mask(x[IDS]), w), (X, W)),
    "a product of matrices": (lambda x, w: (w[:, None] @ x[IDS])[:, 0], (X, W)),
    "rows of nodes": (lambda x, h: (x[IDS] * h[:, None]).sum(1), (X, H)),
    "negative ids": (lambda x: x[IDS - SIDE].sum(1), (X,)),
    "two axes of features": (
        lambda x, w: (x[IDS] * w[..., None, None]).sum(1),
        (CUBE.at[-1].set(0), W),
    ),
    "numbers": (lambda x: x[IDS].sum(1), (X[:, 0],)),
    "one place": (lambda x: x[IDS[:, :1]].sum(1), (X,)),
    "one node": (lambda x: x[IDS[:1]].sum(1), (X,)),
}


@pytest.mark.costly(6)
@pytest.mark.parametrize("name", SUMS)
def test_a_sum_over_a_list_is_a_sum_over_edges(name):
    fn, args = SUMS[name]
    assert applied(fuse(fn), *args) == ["spmm"]
    assert_same(fn, fuse(fn), *args)


EXTREMES = {
    "maximum": lambda x: x[IDS].max(1),
    "minimum of those that are kept": lambda x: _mask(x[IDS], instead=jnp.inf).min(1),
    "ties": lambda x: _mask(jnp.round(x)[IDS], instead=-jnp.inf).max(1),
}


@pytest.mark.costly(2)
@pytest.mark.parametrize("name", EXTREMES)
def test_an_extreme_over_a_list_is_one_over_edges(name):
    fn = EXTREMES[name]
    assert applied(fuse(fn), X) == ["neighbour_reduce"]
    assert_same(fn, fuse(fn), X)


def test_what_a_mask_of_a_list_hides_may_be_any_number():
    fn, (x, w) = SUMS["a mask behind weights"]
    read = jnp.zeros(SIDE, bool).at[PADDED].set(True, mode="drop")
    x = jnp.where(read[:, None], x, jnp.nan)
    w = jnp.where(KEPT, w, jnp.inf)
    np.testing.assert_allclose(fuse(fn)(x, w), fn(x, w), rtol=1e-5, atol=1e-6)
    slopes = jax.grad(lambda x, w: fuse(fn)(x, w).sum(), (0, 1))(x, w)
    assert all(jnp.isfinite(of_one).all() for of_one in slopes)


def test_lists_of_16_bits_are_summed_in_32():
    x = X.astype(jnp.bfloat16)
    fn, _ = SUMS["a mask"]
    assert applied(fuse(fn), x) == ["spmm"]
    exact = fn(x.astype(jnp.float32))
    np.testing.assert_allclose(fuse(fn)(x).astype(jnp.float32), exact, rtol=2**-7, atol=1e-2)


LEFT = {
    "nodes": (lambda x: x[IDS].sum(0), (X,)),
    "both ends, entry by entry": (lambda x: jnp.tanh(x[IDS] - x[:, None]).sum(1), (X,)),
    "two tables": (lambda x, h: (x[IDS] * h[IDS[:, ::-1]]).sum(1), (X, H)),
    "features": (lambda x: x[IDS].sum(2), (X,)),
    "a mask that is computed": (lambda x: _mask(x[IDS], x > 0).sum(1), (X,)),
    "integers": (lambda x: x.astype(jnp.int32)[IDS].sum(1), (X,)),
    "an id out of range": (lambda x: x[IDS + 1].at[0].get().sum(), (X,)),
}


@pytest.mark.costly(3)
@pytest.mark.parametrize("name", LEFT)
def test_what_no_op_sums_stays(name):
    fn, args = LEFT[name]
    assert not {"spmm", "neighbour_reduce"} & set(applied(fuse(fn), *args))
    assert_same(fn, fuse(fn), *args)


def test_reasons_are_named():
    for name, reason in (
        ("two tables", "rows of two tables are multiplied"),
        ("a mask that is computed", "a mask that hides messages is known only when it runs"),
    ):
        fn, args = LEFT[name]
        assert reason in refused(fuse(fn), *args)


def test_a_list_that_is_an_argument_is_known_if_it_is_static():
    def run(x, ids):
        return x[ids].sum(1)

    fused = fuse(run, static_graph="ids")
    assert applied(fused, X, IDS) == ["spmm"]
    np.testing.assert_allclose(fused(X, IDS), run(X, IDS), rtol=1e-5, atol=1e-6)


def test_a_list_that_is_known_only_when_it_runs_is_sorted_there():
    def run(x, ids):
        return x[ids].sum(1)

    assert applied(fuse(run), X, IDS) == ["spmm"]
    assert_same(run, fuse(run), X, IDS)


def test_filters_of_a_list_are_those_of_edges():
    def run(x, filters):
        return (x[IDS] * filters).sum(1)

    assert applied(fuse(run), X, CUBE) == ["filtered_sum"]
    assert_same(run, fuse(run), X, CUBE)


def test_lists_of_narrow_rows_are_left_to_xla():
    ids = jnp.zeros((40_000, 32), jnp.int32)
    narrow, wide = (jax.ShapeDtypeStruct((40_000, n), jnp.float32) for n in (3, 64))

    def rules(x):
        found = jaxgnn.fuse.explain(lambda x: x[ids].sum(1), x, measure=False).findings
        return [one.rule for one in found.applied]

    assert rules(narrow) == []
    assert rules(wide) == ["neighbour_list"]
