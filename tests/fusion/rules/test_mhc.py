"""Hyper-connections written by hand become ``mhc_pre`` and ``mhc_post``, and nothing else does."""

import jax
import jax.numpy as jnp
import pytest

from tests.fusion._cases import applied, arrays, assert_same, fuse

TOKENS, STREAMS, DIM = 5, 2, 4
ROWS = STREAMS**2 + 2 * STREAMS
X, F, H_POST, H_RES = arrays(
    (TOKENS, STREAMS, DIM), (TOKENS, DIM), (TOKENS, STREAMS), (TOKENS, STREAMS, STREAMS)
)
PHI, ALPHA, BIAS, GAMMA = arrays((ROWS, STREAMS * DIM), (3,), (ROWS,), (STREAMS, DIM), seed=1)
(KERNEL,) = arrays((DIM, DIM), seed=2)
MIXED = [
    lambda x, h: jnp.einsum("toi,tid->tod", h, x),
    lambda x, h: h @ x,
    lambda x, h: (h[..., None] * x[:, None]).sum(-2),
    lambda x, h: jnp.einsum("tio,tid->tod", h, x),
    lambda x, h: jnp.swapaxes(h, -1, -2) @ x,
    lambda x, h: jnp.einsum("oi,tid->tod", h[0], x),
]


def _post(x, f, h_post, h_res, mix=MIXED[0]):
    return mix(x, h_res) + h_post[..., None] * f[..., None, :]


@pytest.mark.costly(2)
@pytest.mark.parametrize("way", range(len(MIXED)))
def test_mixed_streams_and_an_output_are_mhc_post(way):
    def run(x, f, h_post, h_res):
        return _post(x, f, h_post, h_res, MIXED[way])

    assert applied(fuse(run), X, F, H_POST, H_RES) == ["mhc_post"]
    assert_same(run, fuse(run), X, F, H_POST, H_RES)


def test_an_output_may_be_returned_by_an_einsum_or_by_the_same_weights_for_all():
    def run(x, f, h_post, h_res):
        y = jnp.einsum("to,td->tod", h_post, f) + h_res @ x
        return y + (h_res @ y + h_post[0][:, None] * f[:, None, :])

    assert applied(fuse(run), X, F, H_POST, H_RES) == ["mhc_post"] * 2
    assert_same(run, fuse(run), X, F, H_POST, H_RES)


NO_POST = {
    "other streams": lambda x, f, p, r: x[:, :1] * r[..., :1] + p[..., None] * f[:, None, :],
    "a bias": lambda x, f, p, r: r @ x + p[..., None],
    "two mixtures": lambda x, f, p, r: r @ x + jnp.swapaxes(r, -1, -2) @ x,
    "tokens are mixed": lambda x, f, p, r: (
        jnp.einsum("sti,tid->sid", jnp.ones((TOKENS, TOKENS, STREAMS)), x)
        + p[..., None] * f[:, None, :]
    ),
    "a sum of repeated products": lambda x, f, p, r: (
        r @ x + (_repeated(p[..., None]) * _repeated(f[:, None, :])).sum(0)
    ),
    "another precision": lambda x, f, p, r: (
        jnp.matmul(r, x, precision="default") + p[..., None] * f[:, None, :]
    ),
}


def _repeated(x):
    return jnp.broadcast_to(x, (3, TOKENS, STREAMS, DIM))


@pytest.mark.costly(2)
@pytest.mark.parametrize("name", NO_POST)
def test_sums_of_other_products_are_not_mhc_post(name):
    fn = NO_POST[name]
    assert applied(fuse(fn), X, F, H_POST, H_RES) == []
    assert_same(fn, fuse(fn), X, F, H_POST, H_RES)


def _logits(t, alpha, bias):
    pre, post, res = jnp.split(t, [STREAMS, 2 * STREAMS], axis=-1)
    biases = jnp.split(bias, [STREAMS, 2 * STREAMS])
    return [a * part + b for a, part, b in zip(alpha, (pre, post, res), biases, strict=True)]


def _norm(v, eps=1e-5):
    return jax.lax.rsqrt(jnp.mean(v**2, axis=-1, keepdims=True) + eps)


def _coefficients(x, logits, eps=0.0, scale=2.0):
    h_pre = jax.nn.sigmoid(logits[0]) + eps
    h_res = logits[2].reshape(*x.shape[:-2], STREAMS, STREAMS)
    return jnp.einsum("...n,...nd->...d", h_pre, x), scale * jax.nn.sigmoid(logits[1]), h_res


def _flat(x):
    return x.reshape(*x.shape[:-2], -1)


def _normed_first(x, phi, alpha, bias, gamma):
    v = _flat(x)
    return _coefficients(x, _logits((v * _norm(v)) @ phi.T, alpha, bias), 1e-4)


def _normed_last(x, phi, alpha, bias, gamma):
    v = _flat(x)
    t = jnp.einsum("...k,mk->...m", v * _flat(gamma), phi) * _norm(v)
    return _coefficients(x, _logits(t, alpha, bias), scale=1.0)


def _normed_by_streams(x, phi, alpha, bias, gamma):
    rms = jnp.sqrt(jnp.mean(jnp.square(x), axis=(-2, -1), keepdims=True) + 1e-6)
    return _coefficients(x, _logits(_flat(x / rms * gamma) @ phi.T, alpha, bias))


def _three_products(x, phi, alpha, bias, gamma):
    v = _flat(x)
    parts = phi[:STREAMS].T, phi[STREAMS : 2 * STREAMS].T, phi[2 * STREAMS :].T
    logits = [a * ((v * _norm(v)) @ part) for a, part in zip(alpha, parts, strict=True)]
    return _coefficients(x, logits)


WAYS = {
    "normalised first": _normed_first,
    "normalised last, with a scale": _normed_last,
    "normalised by streams": _normed_by_streams,
    "three products without biases": _three_products,
}


@pytest.mark.costly(3)
@pytest.mark.parametrize("name", WAYS)
def test_the_coefficients_of_streams_are_mhc_pre(name):
    fn, args = WAYS[name], (X, PHI, ALPHA, BIAS, GAMMA)
    assert applied(fuse(fn), *args) == ["mhc_pre"]
    assert_same(fn, fuse(fn), *args)


def test_a_whole_layer_keeps_the_order_of_what_it_reads():
    def layer(x, phi, alpha, bias, gamma):
        h_in, h_post, logits = _normed_first(x, phi, alpha, bias, gamma)
        f = jnp.tanh(h_in @ KERNEL)
        h_res = jax.nn.softmax(logits, axis=-1) + 1e-6
        for _ in range(3):
            h_res = h_res / (h_res.sum(-2, keepdims=True) + 1e-6)
            h_res = h_res / (h_res.sum(-1, keepdims=True) + 1e-6)
        return _post(x, f, h_post, h_res, MIXED[1])

    args = jnp.stack([X, X - 1]), PHI, ALPHA, BIAS, GAMMA
    ops = ["mhc_pre", "mhc_post", "sinkhorn"]
    short = [a.astype(jnp.bfloat16) for a in args]
    assert applied(fuse(layer), *args) == ops
    assert applied(fuse(_in(jnp.float32, layer)), *short) == ops
    assert_same(layer, fuse(layer), *args)


def _not_normed(x, phi, alpha, bias, gamma):
    return _coefficients(x, _logits(_flat(x) @ phi.T, alpha, bias))


def _normed_twice(x, phi, alpha, bias, gamma):
    v = _flat(x)
    return _coefficients(x, _logits((v * _norm(v)) @ phi.T * _norm(v), alpha, bias))


def _normed_by_columns(x, phi, alpha, bias, gamma):
    norm = jax.lax.rsqrt(jnp.mean(x**2, axis=-1, keepdims=True) + 1e-6)
    return _coefficients(x, _logits(_flat(x * norm) @ phi.T, alpha, bias))


def _norm_of_something_else(x, phi, alpha, bias, gamma):
    v = _flat(x)
    return _coefficients(x, _logits((v * _norm(jnp.sin(v))) @ phi.T, alpha, bias))


def _of_other_streams(x, phi, alpha, bias, gamma):
    v = _flat(x)
    return _coefficients(2 * x, _logits((v * _norm(v)) @ phi.T, alpha, bias))


def _in_another_order(x, phi, alpha, bias, gamma):
    v = _flat(x)
    pre, post, res = _logits((v * _norm(v)) @ phi.T, alpha, bias)
    return _coefficients(x, [post, pre, res])


def _scaled_by_columns(x, phi, alpha, bias, gamma):
    """As many tokens as columns, so that shapes do not tell which of them a norm belongs to."""
    v = jnp.concatenate([_flat(x), _flat(x)])[: STREAMS * DIM]
    logits = _logits((v * _norm(v).reshape(1, -1)) @ phi.T, alpha, bias)
    return _coefficients(v.reshape(-1, STREAMS, DIM), logits)


NO_PRE = {
    "no norm": _not_normed,
    "two norms": _normed_twice,
    "a norm for each stream": _normed_by_columns,
    "the norm of another array": _norm_of_something_else,
    "a sum of other streams": _of_other_streams,
    "parts in another order": _in_another_order,
    "a norm along the columns": _scaled_by_columns,
}


@pytest.mark.costly(3)
@pytest.mark.parametrize("name", NO_PRE)
def test_other_coefficients_are_not_mhc_pre(name):
    fn, args = NO_PRE[name], (X, PHI, ALPHA, BIAS, GAMMA)
    assert applied(fuse(fn), *args) == []
    assert_same(fn, fuse(fn), *args)


def _in(dtype, fn):
    """A function of numbers of 16 bits that computes with numbers of this dtype."""

    def run(*arrays):
        results = fn(*(a.astype(dtype) for a in arrays))
        return jax.tree.map(lambda y: y.astype(jnp.bfloat16), results)

    return run


def _weights_in_float32(x, phi, alpha, bias, gamma):
    """The coefficients in float32, and the sum of streams in 16 bits."""
    v = _flat(x).astype(jnp.float32)
    wide = [a.astype(jnp.float32) for a in (phi, alpha, bias)]
    logits = _logits((v * _norm(v)) @ wide[0].T, *wide[1:])
    pre = jax.nn.sigmoid(logits[0]).astype(x.dtype)
    h_res = logits[2].reshape(*x.shape[:-2], STREAMS, STREAMS)
    return (pre[..., None] * x).sum(-2), 2.0 * jax.nn.sigmoid(logits[1]), h_res


SHORT = {
    "coefficients, all in 16 bits": (_normed_last, "mhc_pre", jnp.bfloat16),
    "coefficients, all in float32": (_normed_first, "mhc_pre", jnp.float32),
    "coefficients in float32, a sum in 16 bits": (_weights_in_float32, "mhc_pre", None),
    "a mixture, all in 16 bits": (_post, "mhc_post", jnp.bfloat16),
    "a mixture, all in float32": (_post, "mhc_post", jnp.float32),
}


@pytest.mark.costly(3)
@pytest.mark.parametrize("name", SHORT)
def test_streams_of_16_bits_are_rewritten_with_no_larger_errors(name):
    fn, op, dtype = SHORT[name]
    wide = (X, PHI, ALPHA, BIAS, GAMMA) if op == "mhc_pre" else (X, F, H_POST, H_RES)
    run = fn if dtype is None else _in(dtype, fn)
    short = [a.astype(jnp.bfloat16) for a in wide]
    assert applied(fuse(run), *short) == [op]

    def with_gradients(f, args):
        def total(*args):
            made = f(*args)
            return sum(jnp.sum(y.astype(jnp.float32) ** 2) for y in jax.tree.leaves(made)), made

        return jax.jit(jax.grad(total, argnums=range(len(args)), has_aux=True))(*args)

    exact = jax.tree.leaves(with_gradients(fn, [a.astype(jnp.float32) for a in short]))
    made, old = (jax.tree.leaves(with_gradients(f, short)) for f in (fuse(run), run))
    assert [y.dtype for y in made] == [y.dtype for y in old]
    for y, before, e in zip(made, old, exact, strict=True):
        error, allowed = (float(jnp.abs(a.astype(jnp.float32) - e).max()) for a in (y, before))
        rounding = float(jnp.finfo(jnp.bfloat16).eps) * float(jnp.abs(e).max())
        assert error <= max(allowed, rounding)


def test_streams_that_are_rounded_for_something_else_are_read_as_they_are():
    """A sum of streams in float32, of streams that 16 bits were made of for other code."""

    def run(x, phi, alpha, bias):
        h_in, *others = _three_products(x.astype(jnp.float32), phi, alpha, bias, None)
        return h_in, others, x.sum()

    args = X.astype(jnp.bfloat16), PHI, ALPHA, BIAS
    assert applied(fuse(run), *args) == ["mhc_pre"]
    made, expected = fuse(run)(*args), run(*args)
    assert made[0].dtype == jnp.float32
    for y, e in zip(jax.tree.leaves(made), jax.tree.leaves(expected), strict=True):
        assert jnp.allclose(y, e, rtol=1e-5, atol=1e-5)


@pytest.mark.costly(2)
@pytest.mark.parametrize("name", ["parts in another order", "a norm for each stream", "two norms"])
def test_other_coefficients_of_16_bits_are_not_mhc_pre(name):
    short = [a.astype(jnp.bfloat16) for a in (X, PHI, ALPHA, BIAS, GAMMA)]
    assert applied(fuse(NO_PRE[name]), *short) == []
