"""Divisions of matrices by their sums in turn become ``sinkhorn``, and nothing else does."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.fusion._cases import applied, arrays, assert_same, fuse

EPS = 1e-6
(LOGITS,) = arrays((5, 4, 4))


def _divided(h, axis, eps=EPS):
    return h / (h.sum(axis, keepdims=True) + eps)


def _unrolled(logits):
    h = jax.nn.softmax(logits, -2) + EPS
    h = h / (h.sum(-1)[..., None] + EPS)
    for _ in range(3):
        h = _divided(_divided(h, -2), -1)
    return h


def _with_one_more(logits):
    """An even number of divisions after the softmax, of which the op does all but the last."""
    shifted = jnp.exp(logits - logits.max(-1, keepdims=True))
    h = shifted / shifted.sum(-1, keepdims=True) + EPS
    for _ in range(3):
        h = h / jnp.expand_dims(h.sum(-2) + EPS, -2)
        h = _divided(h, -1)
    return h


def _scanned(logits):
    h = _divided(jax.nn.softmax(logits, -1) + EPS, -2)
    return jax.lax.scan(lambda h, _: (_divided(_divided(h, -1), -2), None), h, length=4)[0]


def _in_a_fori_loop(logits):
    h = jax.nn.softmax(logits, -1) + 0.5
    return jax.lax.fori_loop(0, 3, lambda _, h: _divided(_divided(h, -2, 0.5), -1, 0.5), h)


def _in_logarithms(logits):
    h = jax.nn.log_softmax(logits, -1)
    for axis in (-2, -1, -2):
        h = h - jax.nn.logsumexp(h, axis, keepdims=True)
    return jnp.exp(h)


def _scanned_in_logarithms(logits):
    def both(h, _):
        for axis in (-2, -1):
            h = h - jax.nn.logsumexp(h, axis, keepdims=True)
        return h, None

    return jnp.exp(jax.lax.scan(both, logits, length=3)[0])


WAYS = {
    way.__name__: way
    for way in (
        _unrolled,
        _with_one_more,
        _scanned,
        _in_a_fori_loop,
        _in_logarithms,
        _scanned_in_logarithms,
    )
}


@pytest.mark.costly(3)
@pytest.mark.parametrize("name", WAYS)
def test_divisions_in_turn_are_sinkhorn(name):
    assert applied(fuse(WAYS[name]), LOGITS) == ["sinkhorn"]
    assert_same(WAYS[name], fuse(WAYS[name]), LOGITS)


@pytest.mark.costly(3)
@pytest.mark.parametrize("name", WAYS)
def test_masked_entries_and_lines_and_what_is_not_finite_are_as_in_the_code(name):
    run = WAYS[name]
    logits = np.array(LOGITS)
    logits[0, 1, 2] = -np.inf
    logits[1, :, 2] = -np.inf
    logits[2, 1] = -np.inf
    logits[3, 0, 0] = np.inf
    logits[4, 3, 1] = np.nan
    made, expected = fuse(run)(jnp.asarray(logits)), run(jnp.asarray(logits))
    np.testing.assert_allclose(made, expected, rtol=1e-5, atol=1e-6)
    assert jnp.isfinite(expected[0]).all()


@pytest.mark.costly(2)
@pytest.mark.parametrize(
    ("run", "dtype"),
    [(_with_one_more, jnp.float32), (_in_logarithms, jnp.float32), (_in_logarithms, jnp.float16)],
)
def test_infinities_beside_the_lowest_numbers_have_no_part_in_the_sums(run, dtype):
    lowest = jnp.finfo(dtype).min
    logits = np.array(LOGITS.astype(dtype))
    logits[0, 1] = [lowest, lowest, lowest, -np.inf]
    logits[2, 3] = [-lowest, lowest, 0.0, -np.inf]
    if dtype == jnp.float16:  # along the second axis, too
        logits[1, :, 2] = [-6e4, -6e4, -6e4, -np.inf]

    def loss(run):
        return lambda logits: jnp.sum(run(logits).astype(jnp.float32) * LOGITS)

    for f, g in ((run, fuse(run)), (jax.grad(loss(run)), jax.grad(loss(fuse(run))))):
        made, expected = g(jnp.asarray(logits)), f(jnp.asarray(logits).astype(jnp.float32))
        np.testing.assert_allclose(made, expected, atol=4 * float(jnp.finfo(dtype).eps))


@pytest.mark.costly(3)
@pytest.mark.parametrize("name", WAYS)
def test_numbers_of_16_bits_are_rounded_once_and_so_nearer_than_by_the_code(name):
    run, logits = WAYS[name], LOGITS.astype(jnp.bfloat16)
    assert applied(fuse(run), logits) == ["sinkhorn"]
    exact = run(logits.astype(jnp.float32))
    errors = [jnp.abs(f(logits).astype(jnp.float32) - exact) for f in (fuse(run), run)]
    assert errors[0].max() <= float(
        jnp.finfo(jnp.bfloat16).eps
    )  # one more division is rounded, too
    assert errors[0].sum() <= errors[1].sum()


def _same_axis_twice(logits):
    return _divided(_divided(jax.nn.softmax(logits, -2) + EPS, -1), -1)


def _another_number(logits):
    return _divided(_divided(jax.nn.softmax(logits, -2) + EPS, -1), -2, 1e-3)


def _without_the_number(logits):
    h = jax.nn.softmax(logits, -2)
    return h / h.sum(-1, keepdims=True)


def _of_no_softmax(logits):
    return _divided(_divided(jnp.exp(logits) + EPS, -1), -2)


def _of_a_softmax_without_the_number(logits):
    return _divided(jax.nn.softmax(logits, -2), -1)


def _until_it_converges(logits):
    def has_not(h):
        return jnp.abs(h.sum(-2) - 1).max() > 1e-2

    h = _divided(jax.nn.softmax(logits, -2) + EPS, -1)
    return jax.lax.while_loop(has_not, lambda h: _divided(_divided(h, -2), -1), h)


def _with_noise_between(logits):
    def both(h, shift):
        return _divided(_divided(h, -2) + shift, -1), None

    h = _divided(jax.nn.softmax(logits, -2) + EPS, -1)
    return jax.lax.scan(both, h, jnp.arange(3.0))[0]


def _other_sums(logits):
    h = jax.nn.softmax(logits, -2) + EPS
    return h / (jnp.swapaxes(h, -1, -2).sum(-1, keepdims=True) + EPS)


def _cumulated(logits):
    """The loop gives the matrices of all steps, not the one that it carries along."""
    h = _divided(jax.nn.softmax(logits, -2) + EPS, -1)
    return jax.lax.scan(lambda h, _: (_divided(h, -2), _divided(h, -2)), h, length=2)[1]


OTHERS = {
    fn.__name__: fn
    for fn in (
        _same_axis_twice,
        _another_number,
        _without_the_number,
        _of_no_softmax,
        _of_a_softmax_without_the_number,
        _with_noise_between,
        _other_sums,
        _until_it_converges,
        _cumulated,
    )
}


@pytest.mark.costly(3)
@pytest.mark.parametrize("name", OTHERS)
def test_other_divisions_are_never_more_than_the_part_that_is_sinkhorn(name):
    fn = OTHERS[name]
    kept = ["sinkhorn"] if name in _WITH_A_BEGINNING else []
    assert applied(fuse(fn), LOGITS) == kept
    np.testing.assert_allclose(fuse(fn)(LOGITS), fn(LOGITS), rtol=1e-5, atol=1e-6)


# Their first division after the softmax is an iteration of its own.
_WITH_A_BEGINNING = (
    "_same_axis_twice",
    "_another_number",
    "_with_noise_between",
    "_until_it_converges",
    "_cumulated",
)


@pytest.mark.parametrize("shape", [(3, 2, 4), (3, 1, 1), (4,)])
def test_matrices_that_are_not_square_or_of_one_number_are_left_alone(shape):
    (logits,) = arrays(shape)

    def run(logits):
        h = jax.nn.softmax(logits, -1) + EPS
        return _divided(h, -2 if logits.ndim > 1 else -1)

    assert applied(fuse(run), logits) == []
    assert_same(run, fuse(run), logits)
