"""Convolutions of e3nn-jax and of plain JAX, as networks of molecules have them, under fuse."""

from functools import partial
from types import SimpleNamespace

import e3nn_jax as e3nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxgnn
from jaxgnn.equivariant import clebsch_gordan
from jaxgnn.fusion.rules import tensor_products
from tests.fusion._cases import (
    EDGES,
    NODES,
    RECEIVERS,
    SENDERS,
    applied,
    assert_same,
    fuse,
    refused,
)

pytestmark = pytest.mark.filterwarnings("ignore:Explicitly requested dtype:UserWarning")
FOUND = ["tensor_product_sum"]
VECTORS, BASIS = (EDGES, 3), (EDGES, 5)


@pytest.fixture(autouse=True)
def dtypes_are_promoted_as_for_users():
    with jax.numpy_dtype_promotion("standard"):
        yield


def _arrays(*shapes, dtype="float32"):
    rng = np.random.default_rng(3)
    return [jnp.asarray(rng.normal(size=shape), dtype) for shape in shapes]


def _directions(vectors):
    return e3nn.IrrepsArray("1o", vectors)


def like_nequip_jax(x, vectors, basis, hidden, last, mode="promise_in_bounds", ids=RECEIVERS):
    """Messages are the sender's features beside their products; a network of the lengths."""
    kept = "0e + 1o"
    sent = e3nn.IrrepsArray("4x0e + 2x1o", x)[SENDERS]
    harmonics = e3nn.spherical_harmonics([1, 2], _directions(vectors), normalize=True)
    products = e3nn.tensor_product(sent, harmonics, filter_ir_out=kept)
    messages = e3nn.concatenate([sent.filter(kept), products]).regroup()
    radial = jax.nn.silu(basis @ hidden) @ last
    messages = messages * radial[:, : messages.irreps.num_irreps]
    summed = e3nn.scatter_sum(messages, dst=ids, output_size=NODES, mode=mode)
    return (summed / jnp.sqrt(5.0)).array


def like_nequix(x, vectors, basis, hidden, last):
    """Features in chunks, products with all harmonics, weights with a bias and an envelope."""
    chunks = [jnp.tanh(x[:, :3, None]), jnp.sin(x[:, 3:]).reshape(NODES, 3, 3)]
    sent = e3nn.from_chunks("3x0e + 3x1o", chunks, (NODES,), x.dtype)[SENDERS]
    harmonics = e3nn.spherical_harmonics("0e + 1o", _directions(vectors), True, "component")
    messages = e3nn.tensor_product(sent, harmonics, filter_ir_out="0e + 1o + 1e")
    radial = jax.vmap(lambda b: jax.nn.silu(b @ hidden) @ last[:, :15] + last[0, :15])(basis)
    lengths = jnp.sum(vectors**2, axis=-1, keepdims=True)
    envelope = jnp.exp(-lengths) * (lengths < 9.0)
    messages = messages * radial * envelope
    return jax.ops.segment_sum(messages.array, RECEIVERS, NODES) / 5.0


def like_mace_jax(x, vectors, basis, hidden, last):
    """Many channels, and a sum by an update of zeros."""
    sent = e3nn.IrrepsArray("128x0e + 128x1o", x)[SENDERS]
    harmonics = e3nn.spherical_harmonics(range(1, 4), _directions(vectors), True)
    target = e3nn.Irreps("0e + 1o + 2e")
    products = e3nn.tensor_product(sent, harmonics, filter_ir_out=target)
    messages = e3nn.concatenate([sent.filter(target), products]).regroup()
    messages = messages * (jax.nn.silu(basis @ hidden) @ last)
    zeros = e3nn.zeros(messages.irreps, (NODES,), messages.dtype)
    return (zeros.at[RECEIVERS].add(messages) / 5.0).array


TABLE = -2 * clebsch_gordan(1, 1, 1)


def in_plain_jax(x, vectors, basis, hidden, last):
    """Channels behind the components, three paths in an order of their own, tables as constants."""
    return _summed(_plain_messages(x[SENDERS], vectors, basis, hidden, last))


def _plain_messages(sent, vectors, basis, hidden, last, table=TABLE, weights=(0, 1, 2)):
    sent = sent.reshape(-1, 4, 6)
    along = vectors / jnp.linalg.norm(vectors, axis=-1, keepdims=True)
    radial = (jax.nn.silu(basis @ hidden) @ last).reshape(-1, 3, 1, 6)
    first, second, third = (radial[:, i] for i in weights)
    across = jnp.einsum("eiu,ej,ijk->eku", sent[:, 1:], along, jnp.asarray(table, sent.dtype))
    to_scalars = jnp.sum(sent[:, 1:] * along[:, :, None], axis=1, keepdims=True)
    of_scalars = sent[:, :1] * along[:, :, None]
    return jnp.concatenate([third * across - first * of_scalars, second * to_scalars], axis=1)


def _summed(messages, receivers=RECEIVERS, **how):
    return jax.ops.segment_sum(messages, receivers, NODES, **how)


PLAIN = (NODES, 24), VECTORS, BASIS, (5, 6), (6, 18)
SOURCES = {
    in_plain_jax: PLAIN,  # the only one whose table has a factor of its own, a negative one
    like_nequip_jax: ((NODES, 10), VECTORS, BASIS, (5, 6), (6, 40)),
    like_nequix: ((NODES, 12), VECTORS, BASIS, (5, 6), (6, 40)),
    like_mace_jax: ((NODES, 512), VECTORS, BASIS, (5, 6), (6, 128 * 8)),
}


def _results(fn, args):
    """Values, and gradients with all arrays."""

    def total(*args):
        y = fn(*args)
        return jnp.sum(jnp.sin(y)), y

    return jax.jit(jax.grad(total, range(len(args)), has_aux=True))(*args)


def _assert_equal_trees(made, expected):
    for one, other in zip(*map(jax.tree.leaves, (made, expected)), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-11, atol=1e-11 * (1 + np.abs(other).max()))


@pytest.mark.costly(3)
@pytest.mark.parametrize("source", SOURCES, ids=lambda source: source.__name__)
def test_values_and_gradients_are_those_of_the_code(source):
    with jax.enable_x64(True):
        args = _arrays(*SOURCES[source], dtype="float64")
        fused = fuse(source)
        assert applied(fused, *args)[:1] == FOUND  # layers of the radial network follow
        _assert_equal_trees(_results(fused, args), _results(source, args))


@pytest.mark.costly(3)
def test_forward_derivatives_of_forces_are_those_of_the_code():
    with jax.enable_x64(True):
        args = _arrays(*PLAIN, dtype="float64")

        def derivatives(fn):
            def forces(vectors):
                return jax.grad(lambda v: jnp.sum(fn(args[0], v, *args[2:]) ** 2))(vectors)

            return jax.jit(lambda v: jax.jvp(forces, (v,), (jnp.cos(v),)))(args[1])

        _assert_equal_trees(derivatives(fuse(in_plain_jax)), derivatives(in_plain_jax))


def _changed(table):
    return np.where(np.arange(27).reshape(3, 3, 3) == 5, 1.0001 * table, table)


NEAR_MISSES = {
    "a number of a table is another one": (
        lambda x, *edge: _summed(_plain_messages(x[SENDERS], *edge, table=_changed(TABLE))),
        "not those of Clebsch-Gordan tables",
    ),
    "messages are a result": (
        lambda x, *edge: [_summed(m := _plain_messages(x[SENDERS], *edge)), m],
        "other code, such as a gradient in it, reads its messages",
    ),
    "a weight has two paths": (
        lambda x, *edge: _summed(_plain_messages(x[SENDERS], *edge, weights=(0, 1, 0))),
        "not that of one channel of a path",
    ),
    "rows are those of the receiver": (
        lambda x, *edge: _summed(_plain_messages(x[RECEIVERS], *edge)),
        "rows of the receiver itself",
    ),
    "rows are those of two lists": (
        lambda x, *edge: _summed(
            _plain_messages(jnp.concatenate([x[:, :6][RECEIVERS], x[:, 6:][SENDERS]], 1), *edge)
        ),
        "",
    ),
    "channels have harmonics of their own": (
        lambda x, vectors, basis, hidden, last: _summed(
            (x[SENDERS][:, :6] * (basis @ hidden))[:, :, None] * (vectors[:, None] + last[:, :1])
        ),
        "harmonics for each channel",
    ),
    "an entry is always zero": (
        lambda x, *edge: _summed(
            jnp.concatenate([m := _plain_messages(x[SENDERS], *edge), m - m], axis=1)
        ),
        "always zero",
    ),
    "a gradient is taken within the function": (
        lambda x, *edge: jax.grad(
            lambda x, *edge: jnp.sum(jnp.sin(_summed(_plain_messages(x[SENDERS], *edge)))), (0, 1)
        )(x, *edge),
        "other code, such as a gradient in it, reads its messages",
    ),
    "a maximum": (
        lambda x, *edge: jax.ops.segment_max(_plain_messages(x[SENDERS], *edge), RECEIVERS, NODES),
        "",
    ),
    "messages are bent": (
        lambda x, *edge: _summed(jnp.tanh(_plain_messages(x[SENDERS], *edge))),
        "",
    ),
    "messages have a bias": (
        lambda x, vectors, *edge: _summed(
            _plain_messages(x[SENDERS], vectors, *edge) + vectors[:, :1, None]
        ),
        "",
    ),
    "an id is out of range though it was promised not to be": (
        lambda x, *edge: _summed(
            _plain_messages(x[SENDERS], *edge),
            RECEIVERS.at[3].set(NODES),
            mode="promise_in_bounds",
        ),
        "promised",
    ),
}


@pytest.mark.costly(4)
@pytest.mark.parametrize("name", NEAR_MISSES)
def test_other_code_is_left_alone(name):
    fn, reason = NEAR_MISSES[name]
    args = _arrays(*PLAIN)
    assert reason in refused(fuse(fn), *args)
    assert FOUND[0] not in applied(fuse(fn), *args)


def test_messages_are_summed_by_the_op_where_it_has_a_kernel(monkeypatch):
    args = _arrays((NODES, 512), VECTORS, BASIS, (5, 6), (6, 128 * 8))
    for name, is_summed in (("xla", False), ("ffi", True)):
        chosen = SimpleNamespace(choose=lambda *_, name=name, **__: name)
        monkeypatch.setattr(tensor_products, "kernels", SimpleNamespace(SUM=chosen))
        explanation = jaxgnn.fuse.explain(like_mace_jax, *args, measure=False)
        rules = {one.rule for one in explanation.findings.applied}
        assert ("tensor_product_sum" in rules) == is_summed
        left = "not tensor_product_sum: the op has no kernel for it"
        assert (left in str(explanation)) != is_summed


def test_nothing_is_found_without_edges():
    def run(x, *edge):
        empty = jnp.zeros(0, jnp.int32)
        return _summed(_plain_messages(x[empty], *edge), empty)

    args = _arrays((NODES, 24), (0, 3), (0, 5), (5, 6), (6, 18))
    fused = fuse(run)
    assert FOUND[0] not in applied(fused, *args)
    np.testing.assert_array_equal(fused(*args), run(*args))


PADDED = jnp.where(jnp.arange(EDGES) % 5 == 4, NODES, RECEIVERS)
HIDDEN = (PADDED == NODES)[:, None]


def _of_lists(senders, receivers, x, *edge):
    return _summed(_plain_messages(x[senders], *edge), receivers)


@pytest.mark.costly(2)
@pytest.mark.parametrize("are_known", [True, False])
def test_padding_edges_are_dropped_with_what_they_have(are_known):
    fn, args = _of_lists, (SENDERS, PADDED, *_arrays(*PLAIN))
    fused = fuse(fn, graph_arguments=("senders", "receivers"))
    if are_known:
        fn, args = partial(fn, *args[:2]), args[2:]
        fused = fuse(fn)
    assert applied(fused, *args)[:1] == FOUND
    assert_same(fn, fused, *args)
    spoiled = [jnp.where(HIDDEN, jnp.nan, a) if a.shape in (VECTORS, BASIS) else a for a in args]
    np.testing.assert_allclose(fused(*spoiled), fn(*spoiled), rtol=1e-4, atol=1e-4)
