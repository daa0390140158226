"""What fuse can not rewrite runs as it is, is reported, and gives what it gave."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import io_callback

import jaxgnn
from tests.fusion._cases import NODES, RECEIVERS, SENDERS, applied, arrays, assert_same, fuse

(X,) = arrays((NODES, 3))


def _layer(x):
    return jnp.tanh(jax.ops.segment_sum(x[SENDERS], RECEIVERS, NODES))


def _prints(x):
    jax.debug.print("a print")
    return _layer(x)


def _prints_in_a_loop(x):
    def step(c, _):
        jax.debug.callback(lambda total: None, c.sum())
        return _layer(c), None

    return jax.lax.scan(step, x, None, length=2)[0]


def _prints_in_a_branch(x):
    def branch(x):
        jax.debug.print("a print")
        return _layer(x)

    return jax.lax.cond(x[0, 0] > 0, branch, branch, x)


def _calls_the_host(x):
    total = io_callback(lambda x: x.sum(), jax.ShapeDtypeStruct((), x.dtype), x, ordered=True)
    return _layer(x) + total


def _counts_in_a_reference(x):
    count = jax.new_ref(jnp.zeros(()))
    count[...] += 1
    return _layer(x) * count[...]


EFFECTS = (
    _prints,
    _prints_in_a_loop,
    _prints_in_a_branch,
    _calls_the_host,
    _counts_in_a_reference,
)


@pytest.mark.parametrize("fn", EFFECTS, ids=lambda fn: fn.__name__.strip("_"))
def test_side_effects_keep_a_function_as_it_is(fn):
    with pytest.warns(UserWarning, match="side effects"):
        made = fuse(fn)(X)
    np.testing.assert_allclose(made, fn(X), rtol=1e-6)
    explanation = jaxgnn.fuse.explain(fn, X, measure=False)
    assert explanation.findings.applied == []
    assert "untouched, because it has side effects" in str(explanation)
    assert " at 0x" not in str(explanation)
    jax.effects_barrier()


def _of_numpy(x):
    return float(np.asarray(x).sum())


def _gives_a_text(x):
    return f"{x.shape}"


def _branches_in_python(x):
    return x if x.sum() > 0 else -x


@pytest.mark.parametrize("fn", [_of_numpy, _gives_a_text, _branches_in_python])
def test_what_is_no_function_of_jax_arrays_runs_as_it_is(fn):
    with pytest.warns(UserWarning, match="it can not be traced: "):
        made = fuse(fn)(X)
    np.testing.assert_array_equal(made, fn(X))
    assert "untouched, because it can not be traced" in str(
        jaxgnn.fuse.explain(fn, X, measure=False)
    )


def test_an_argument_that_has_no_hash_is_no_obstacle():
    class Options:
        __hash__ = None
        scale = 2.0

    def run(x, options):
        return options.scale * _layer(x)

    with pytest.warns(UserWarning, match="an argument is no array and has no hash"):
        made = fuse(run)(X, Options())
    np.testing.assert_allclose(made, 2 * _layer(X), rtol=1e-5)
    assert "has no hash" in str(jaxgnn.fuse.explain(run, X, Options(), measure=False))


def test_callables_of_any_kind_are_taken():
    class Layer:
        def __call__(self, x):
            return _layer(x)

    for fn in (functools.partial(_layer), Layer(), jax.jit(_layer), Layer().__call__):
        assert applied(fuse(fn), X) == ["spmm"]
        np.testing.assert_allclose(fuse(fn)(X), _layer(X), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("given", [3, "a name", None, [_layer]])
def test_what_can_not_be_called_is_named(given):
    with pytest.raises(ValueError, match="fuse: fn must be a function of JAX arrays, got"):
        jaxgnn.fuse(given)


def test_a_function_without_a_signature_has_no_arguments_to_name():
    with pytest.raises(ValueError, match="fuse: static_graph must be True, False or names among"):
        jaxgnn.fuse(dict, static_graph="senders")


def test_numbers_are_no_layers_and_no_sums_of_streams():
    def run(x):
        product, total = jnp.dot(x[0], x[1]), (x[2] * x[3]).sum()
        return product, total, jax.nn.silu(jnp.mean(x) + x[0, 0]), jax.nn.relu(product + total)

    assert applied(fuse(run), X) == []
    assert_same(run, fuse(run), X)


# Primitives that no rule knows: between two sums that are rewritten.
UNKNOWN = {
    "a Fourier transform": lambda x: jnp.fft.fft(x, axis=0).real / NODES,
    "a factorisation": lambda x: jnp.linalg.qr(x)[0],
    "random numbers": lambda x: x + jax.random.normal(jax.random.key(0), x.shape),
    "a callback without effects": lambda x: jax.pure_callback(
        np.sin, jax.ShapeDtypeStruct(x.shape, x.dtype), x
    ),
    "a sort": lambda x: jnp.sort(x, axis=0),
    "bits": lambda x: jax.lax.bitcast_convert_type(
        jax.lax.bitcast_convert_type(x, jnp.int32) & ~1, jnp.float32
    ),
    "a product over segments": lambda x: jax.ops.segment_prod(x[SENDERS], RECEIVERS, NODES),
}
HAS_NO_GRADIENT = {"a callback without effects", "bits", "a product over segments"}


@pytest.mark.costly(3)
@pytest.mark.parametrize("name", UNKNOWN)
def test_unknown_primitives_stay_between_rewritten_ones(name):
    def run(x):
        return _layer(UNKNOWN[name](_layer(x) + x))

    assert applied(fuse(run), X) == ["spmm", "spmm"]
    if name in HAS_NO_GRADIENT:
        np.testing.assert_allclose(fuse(run)(X), run(X), rtol=1e-4, atol=1e-4)
    else:
        assert_same(run, fuse(run), X)


def _mixed_streams(x):
    """One layer of hyper-connections, whose matrices are normalised in turn along both axes."""
    streams = jnp.stack([x, x - 1], axis=-2)
    h_res = jax.nn.softmax(streams @ jnp.swapaxes(streams, -1, -2), axis=-1) + 1e-6
    for _ in range(3):
        h_res = h_res / (h_res.sum(-2, keepdims=True) + 1e-6)
        h_res = h_res / (h_res.sum(-1, keepdims=True) + 1e-6)
    h_post = 2 * jax.nn.sigmoid(streams.mean(-1))
    mixed = jnp.einsum("toi,tid->tod", h_res, streams)
    return mixed + h_post[..., None] * jnp.tanh(streams.sum(-2))[:, None, :]


def _divided_in_a_loop(x):
    def step(h, _):
        h = h / (h.sum(-1, keepdims=True) + 1e-6)
        return h / (h.sum(-2, keepdims=True) + 1e-6), None

    return jax.lax.scan(step, jax.nn.softmax(x @ x.T, -2) + 1e-6, length=4)[0]


@pytest.mark.parametrize("fn", [_mixed_streams, _divided_in_a_loop], ids=lambda fn: fn.__name__)
def test_hyper_connections_and_sinkhorn_loops_are_left_to_xla(fn):
    assert applied(fuse(fn), X) == []
    assert_same(fn, fuse(fn), X)
