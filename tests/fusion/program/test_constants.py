"""Arrays that functions close over: arguments of the programs, and looked at once."""

import weakref
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxgnn
from jaxgnn.fusion.graphs import static_graphs as _graphs
from jaxgnn.fusion.program.constants import opened
from jaxgnn.fusion.program.stored_values import Content, Store, content_of_constant
from jaxgnn.fusion.program.variables import View
from tests.fusion._cases import applied, fuse

NODES, EDGES = 500, 200_000  # each list is larger than what may stay a constant
_rng = np.random.default_rng(0)
SENDERS, RECEIVERS = (jnp.asarray(_rng.integers(0, NODES, EDGES), jnp.int32) for _ in range(2))
X = jnp.asarray(_rng.normal(size=(NODES, 2)), jnp.float32)


def _layer(x):
    return jnp.tanh(jax.ops.segment_sum(x[SENDERS], RECEIVERS, NODES) / EDGES)


def _loss(x):
    return jnp.sum(_layer(x) ** 2)


@jax.jit
def _inner(x):
    return x[SENDERS].sum(0)


@pytest.mark.parametrize(
    ("fn", "lists"),
    [
        (_loss, 2),
        (jax.grad(_loss), 2),
        (jax.grad(fuse(_loss)), 2),
        (lambda x: _inner(x) + _inner(2 * x), 1),  # calls of jit close over the list, too
    ],
    ids=["plain", "gradient", "fused gradient", "jit inside"],
)
def test_edge_lists_are_arguments_of_the_program_and_not_in_its_text(fn, lists):
    parts = opened(jax.jit(fn).trace(X))
    assert sum(c.nbytes for c in parts.constants) >= lists * 4 * EDGES
    text = jax.jit(parts.run).lower(parts.constants, X).as_text()
    assert len(text) < EDGES
    (made,) = parts.run(parts.constants, X)
    np.testing.assert_allclose(made, jax.jit(fn)(X), rtol=1e-5, atol=1e-6)


def test_a_call_of_a_fused_function_hands_large_lists_over_and_leaves_small_ones_constant():
    def small(x):
        return jax.ops.segment_sum(x[SENDERS[:50]], RECEIVERS[:50], NODES)

    for layer, is_large in ((_layer, True), (small, False)):
        fused: Any = fuse(layer)
        assert applied(fused, X) == ["spmm"]
        for x in (X, 2 * X):
            np.testing.assert_allclose(fused(x), layer(x), rtol=1e-5, atol=1e-6)
        assert list(fused._has_large_constants.values()) == [is_large]


def test_jit_gives_the_same_for_trees_other_shapes_and_inside_of_transformations():
    @jaxgnn.fuse.jit
    def run(tree, scale):
        return {"y": _layer(tree["x"]) * scale, "none": None}

    for x in (X, jnp.concatenate([X, X], 1)):
        np.testing.assert_allclose(run({"x": x}, 2.0)["y"], 2 * _layer(x), rtol=1e-5, atol=1e-6)
    total = jaxgnn.fuse.jit(_loss)
    for around in (
        jax.grad,
        lambda f: jax.jit(jax.grad(f)),
        lambda f: jaxgnn.fuse.jit(jax.grad(f)),
    ):
        np.testing.assert_allclose(around(total)(X), jax.grad(_loss)(X), rtol=1e-5, atol=1e-7)


def test_jit_compiles_once_for_each_combination_of_shapes():
    traced = []

    @jaxgnn.fuse.jit
    def run(x):
        traced.append(x.shape)
        return _layer(x)

    for x in (X, 2 * X, X[:, :1], X):
        run(x)
    assert traced == [X.shape, (NODES, 1)]
    assert len(run._by_jaxpr) == 2


def test_what_is_closed_over_may_be_traced_by_another_function():
    def outer(scale):
        return jaxgnn.fuse.jit(lambda x: jnp.tanh(x * scale))(X).sum()

    for made in (jax.jit(outer)(2.0), outer(2.0)):
        np.testing.assert_allclose(made, jnp.tanh(2 * X).sum(), rtol=1e-4, atol=1e-4)


def test_jit_takes_lists_of_numpy_and_keys_of_random_numbers():
    senders, key = np.asarray(SENDERS, np.int64), jax.random.key(0)

    def noisy(x):
        return x[senders].sum(0) + jax.random.normal(key, x.shape[1:])

    np.testing.assert_allclose(jaxgnn.fuse.jit(noisy)(X), noisy(X), rtol=1e-3, atol=0.1)


def test_jit_hands_over_the_memory_of_what_is_donated_and_of_nothing_else():
    step = jaxgnn.fuse.jit(lambda tree, x: {"a": tree["a"] + _layer(x)}, donate_argnums=0)
    state, x = {"a": jnp.zeros_like(X)}, X + 0
    made = step(state, x)
    assert state["a"].is_deleted()
    assert not x.is_deleted()
    assert not SENDERS.is_deleted()
    np.testing.assert_allclose(made["a"], _layer(x), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((3,), r"fuse.jit: fn must be a function of JAX arrays, got int"),
        (
            (_loss, -1),
            r"fuse.jit: donate_argnums must be positions of arguments, 0 or more, got -1",
        ),
        (
            (_loss, 1.5),
            r"fuse.jit: donate_argnums must be positions of arguments, 0 or more, got 1.5",
        ),
        (
            (_loss, (0, 1)),
            r"fuse.jit: donate_argnums must be positions of arguments that the function has, "
            r"got \(0, 1\)",
        ),
    ],
)
def test_bad_arguments_of_jit_are_named(arguments, message):
    fn, *positions = arguments
    options = {"donate_argnums": positions[0]} if positions else {}
    with pytest.raises(ValueError, match=message):
        jaxgnn.fuse.jit(fn, **options)


def _evaluations(monkeypatch):
    """A list to which the name of each primitive is added that is computed ahead."""
    made, evaluate = [], View._evaluate

    def counted(view, equation, reads):
        made.append(equation.primitive.name)
        return evaluate(view, equation, reads)

    monkeypatch.setattr(View, "_evaluate", counted)
    return made


def test_the_same_lists_are_not_looked_at_again_when_a_function_is_traced_again(monkeypatch):
    def layer(x):
        degrees = jax.ops.segment_sum(jnp.ones(EDGES), RECEIVERS, NODES)
        weights = jax.lax.rsqrt(jnp.maximum(degrees, 1))[RECEIVERS]
        return jax.ops.segment_sum(x[SENDERS] * weights[:, None], RECEIVERS, NODES)

    fused = fuse(layer)
    first = fused(X)
    evaluated = _evaluations(monkeypatch)
    np.testing.assert_allclose(jax.jit(lambda x: fused(x))(X), first, rtol=1e-5, atol=1e-4)
    assert evaluated == []
    np.testing.assert_allclose(first, layer(X), rtol=1e-3, atol=1e-3)


def test_another_list_at_the_place_of_one_that_is_gone_is_looked_at():
    for seed in range(8):
        ids = jnp.asarray(np.random.default_rng(seed).integers(0, 5, 40), jnp.int32)

        def layer(x, ids=ids):
            return jax.ops.segment_sum(x[ids], ids[::-1], 5)

        x = jnp.arange(10.0).reshape(5, 2)
        np.testing.assert_allclose(fuse(layer)(x), layer(x))
        del ids, layer


def test_an_array_that_is_donated_and_closed_over_is_there_in_the_next_call():
    start = jnp.ones((NODES, 100))
    step = jaxgnn.fuse.jit(lambda x: x + start, donate_argnums=0)
    x = step(step(start))
    np.testing.assert_array_equal(x, 3 * np.ones((NODES, 100)))
    np.testing.assert_array_equal(start, np.ones((NODES, 100)))


@pytest.mark.skipif(len(jax.devices()) < 2, reason="needs two devices")
@pytest.mark.parametrize("of_lists", ["first", "second", "both"])
@pytest.mark.parametrize("of_features", ["first", "second", "both", "by columns"])
def test_closed_over_lists_follow_arguments_to_their_devices(of_lists, of_features):
    devices = jax.devices()[:2]
    mesh = jax.make_mesh((2,), ("a",), devices=devices, axis_types=(jax.sharding.AxisType.Auto,))
    places = {
        "first": devices[0],
        "second": devices[1],
        "both": jax.NamedSharding(mesh, jax.P()),
        "by columns": jax.NamedSharding(mesh, jax.P(None, "a")),
    }
    senders, receivers = (jax.device_put(a, places[of_lists]) for a in (SENDERS, RECEIVERS))
    run = jaxgnn.fuse.jit(lambda x: jax.ops.segment_sum(x[senders], receivers, NODES))
    x = jax.device_put(X, places[of_features])
    for scale in (1, 2):
        made = run(scale * x)
        assert made.sharding.device_set == x.sharding.device_set
        expected = jax.ops.segment_sum(scale * X[SENDERS], RECEIVERS, NODES)
        np.testing.assert_allclose(made, expected, rtol=1e-4, atol=1e-3)


def test_a_list_of_numpy_that_only_looks_read_only_is_looked_at_in_each_call():
    ids = np.arange(40, dtype=np.int32) % 5
    writable = ids[:]
    ids.flags.writeable = False

    def layer(x, ids):
        return jax.ops.segment_sum(x[ids], ids[::-1], 5)

    fused: Any = fuse(layer, static_graph="ids")
    x = jnp.arange(10.0).reshape(5, 2)
    np.testing.assert_allclose(fused(x, ids), layer(x, ids))
    writable[:] = 3
    np.testing.assert_allclose(fused(x, ids), layer(x, ids))


def test_the_store_lets_answers_go_with_the_arrays_that_they_are_about():
    store = Store()
    leaf = jnp.arange(3)
    content = content_of_constant(leaf)
    answer = weakref.ref(store.get("ones", [content], lambda: np.ones(2)))
    assert answer() is not None
    del leaf, content
    assert answer() is None


def test_the_store_forgets_what_is_gone_and_the_oldest():
    store = Store(most_bytes=24)
    leaf = jnp.arange(3)
    content = content_of_constant(leaf)
    ones = store.get("ones", [content], lambda: np.ones(2))
    assert store.get("ones", [content], lambda: pytest.fail("it is kept")) is ones
    store.get("twos", [content], lambda: np.full(2, 2.0))  # 16 bytes more than there is place
    assert store.get("ones", [content], lambda: np.zeros(1))[0] == 0
    key = content.key
    del leaf, content
    other = jnp.arange(4)
    assert store.get("ones", [Content(key, (other,))], lambda: np.full(1, 3.0))[0] == 3


def test_numbers_that_may_change_have_no_content():
    assert content_of_constant(np.arange(3)) is None
    assert content_of_constant(3.0) is None


def test_digests_of_long_lists_tell_every_number(monkeypatch):
    monkeypatch.setattr(_graphs, "_HASHED_AT_ONCE", 64)
    ids = np.arange(100, dtype=np.int32)
    other = ids.copy()
    other[-1] = 0
    assert _graphs.digest(ids) == _graphs.digest(ids.copy())
    assert _graphs.digest(ids) != _graphs.digest(other)
    assert _graphs.digest(ids) != _graphs.digest(ids.reshape(2, 50))
    swapped = np.concatenate([ids[16:32], ids[:16], ids[32:]])
    assert _graphs.digest(ids) != _graphs.digest(swapped)


def test_a_graph_of_rows_is_one_that_was_made_with_columns():
    rows = np.random.default_rng(1).integers(-1, 7, 50).astype(np.int32)
    alone = _graphs.graph_of_rows(rows + 0, 8)
    columns = np.random.default_rng(2).integers(0, 9, 50).astype(np.int32)
    made = _graphs.static_graph(rows, columns, 8, 9)
    assert _graphs.graph_of_rows(rows, 8) is made
    np.testing.assert_array_equal(made.order, alone.order)
    np.testing.assert_array_equal(made.live_rows, alone.live_rows)
    np.testing.assert_array_equal(made.live_columns, columns[made.order][: made.num_live])
    assert made.num_live == (rows >= 0).sum()


def test_a_graph_of_rows_is_never_kept_as_one_with_columns(monkeypatch):
    """Another thread may drop a graph between the moments at which it is found and asked for."""
    cache = _graphs._Cache(1)
    monkeypatch.setattr(_graphs, "_CACHE", cache)
    rows, columns = np.array([1, 0, 1], np.int32), np.array([2, 0, 1], np.int32)
    _graphs.static_graph(rows, columns, 2, 3)
    get = cache.get

    def dropped_first(key, make):
        cache._graphs.clear()
        return get(key, make)

    monkeypatch.setattr(cache, "get", dropped_first)
    _graphs.graph_of_rows(rows, 2)
    monkeypatch.setattr(cache, "get", get)
    made = _graphs.static_graph(rows, columns, 2, 3)
    np.testing.assert_array_equal(made.live_columns, [0, 2, 1])
