"""What holds for every op of attention: masks, dropout, transforms, dtypes, bits."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxgnn
from jaxgnn import ops
from jaxgnn.graph import CSRGraph
from jaxgnn.ops._attention.reference import dropout
from jaxgnn.testing import assert_bit_equal, check_forward_mode, random_array
from tests.ops._table import BUILT
from tests.ops.attention._attention import (
    COMPILED,
    DIM,
    HEADS,
    IMPLEMENTATIONS,
    TABLE,
    value_and_gradients,
)
from tests.ops.attention._checks import check_every_gradient

SMALL = CSRGraph.from_edges([0, 1, 2, 0, 1, 3], [1, 1, 1, 0, 0, 3], 4)
KEY = jax.random.key(7)

every_op = pytest.mark.parametrize("op", TABLE)
every_implementation = pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
every_compiled = pytest.mark.parametrize("implementation", COMPILED)


def _close(actual, expected, rtol=1e-4):
    """Asserts that two trees are equal up to ``rtol`` of the largest number of all arrays.

    Of all, since gradients of scores may cancel to zero, of which no part is an error.
    """
    leaves = [np.asarray(leaf, np.float32) for leaf in jax.tree.leaves(expected)]
    largest = max(np.abs(leaf).max(initial=0.0) for leaf in leaves)
    for a, e in zip(jax.tree.leaves(actual), leaves, strict=True):
        np.testing.assert_allclose(np.asarray(a, np.float32), e, rtol=rtol, atol=rtol * largest)


@every_op
@every_implementation
def test_rows_of_only_minus_infinity_are_zero_and_have_no_gradient(op, implementation):
    arrays = TABLE[op].arrays(SMALL)
    masked = np.asarray(SMALL.receivers()) == 1
    arrays["edge_logits"] = arrays["edge_logits"].at[masked].set(-jnp.inf)
    (y, weights), gradients = value_and_gradients(TABLE[op], SMALL, arrays, implementation)
    assert not np.asarray(y)[1].any() and not np.asarray(weights)[masked].any()
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves((y, gradients)))
    assert not np.asarray(gradients["edge_logits"])[masked].any()


@every_op
@every_compiled
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_short_dtypes_are_rounded_once(op, dtype, implementation):
    check_every_gradient(op, "bipartite", implementation, dtype)


@every_op
@every_compiled
def test_a_hub_in_pieces_equals_the_reference(op, implementation):
    # More edges than a task of the compiled kernels takes, with scores that rise along the row.
    graph = BUILT["hub_row_spans_tasks"]
    arrays = TABLE[op].arrays(graph, full=False)
    ramp = jnp.linspace(-30.0, 30.0, graph.num_edges)[:, None]
    logits = jnp.broadcast_to(ramp, (graph.num_edges, HEADS))
    made, gradients = value_and_gradients(
        TABLE[op], graph, arrays | {"edge_logits": logits}, implementation
    )
    expected = value_and_gradients(TABLE[op], graph, arrays | {"edge_logits": logits}, "xla")
    _close((made, gradients), expected, rtol=1e-3)


@every_op
@every_compiled
def test_dropout_leaves_out_the_same_edges_in_every_implementation(op, implementation):
    graph = BUILT["padding_edges"]
    arrays = TABLE[op].arrays(graph)
    made = value_and_gradients(TABLE[op], graph, arrays, implementation, dropout=0.4, key=KEY)
    expected = value_and_gradients(TABLE[op], graph, arrays, "xla", dropout=0.4, key=KEY)
    _close(made, expected)
    assert ((np.asarray(made[0][1]) == 0) == (np.asarray(expected[0][1]) == 0)).all()


def test_dropout_is_fair_and_independent_of_head_edge_and_seed():
    seeds = jax.random.bits(KEY, (2, 2), jnp.uint32)
    slots, rate = jnp.arange(200_000), 0.3
    kept = [dropout.kept(seed, slots, 4, round(rate * 2**32)) for seed in seeds]
    samples = np.concatenate([*(np.asarray(k, np.float64).T for k in kept)])
    # Five deviations of a mean of 200,000 draws.
    tolerance = 5 / np.sqrt(slots.size)
    np.testing.assert_allclose(samples.mean(1), 1 - rate, atol=0.5 * tolerance)
    pairs = np.corrcoef(np.concatenate([samples[:, 1:], samples[:, :-1]]))
    assert np.abs(pairs - np.eye(16)).max() < tolerance
    words = np.asarray(dropout.draws(seeds[0], slots[:50_000], 2))
    bits = np.unpackbits(words.view(np.uint8)).reshape(-1, 8).mean(0)
    np.testing.assert_allclose(bits, 0.5, atol=0.01)


@every_op
def test_dropout_keeps_the_expectation(op):
    arrays = TABLE[op].arrays(SMALL, full=False)
    exact = TABLE[op](SMALL, arrays)

    @jax.jit
    def dropped(keys):
        return jax.lax.map(lambda key: TABLE[op](SMALL, arrays, dropout=0.25, key=key), keys)

    mean = dropped(jax.random.split(KEY, 4000)).mean(0)
    np.testing.assert_allclose(mean, exact, atol=0.1)


@every_op
@every_implementation
def test_leading_axes_share_the_graph_and_draw_for_themselves(op, implementation):
    graph = BUILT["bipartite"]
    batched = TABLE[op].arrays(graph, batch=(2, 2))
    together = TABLE[op](graph, batched, implementation=implementation)
    shared = ("attention", "edge_kernel")
    for member in np.ndindex(2, 2):
        arrays = {n: a if n in shared else a[member] for n, a in batched.items()}
        _close(together[member], TABLE[op](graph, arrays, implementation=implementation))
    alone = TABLE[op].arrays(graph, full=False)
    twice = {n: a if n in shared else jnp.stack([a, a]) for n, a in alone.items()}
    first, second = TABLE[op](graph, twice, dropout=0.5, key=KEY, implementation=implementation)
    assert (np.asarray(first) != np.asarray(second)).any()


@every_op
@every_compiled
def test_vmap_over_some_arrays_gives_each_member_its_own_gradients(op, implementation):
    arrays = TABLE[op].arrays(SMALL, full=False)
    summed = TABLE[op].summed
    members = jnp.stack([arrays[summed], 2 * arrays[summed]])

    def gradients(name):
        def loss(others, member):
            y, weights = TABLE[op](
                SMALL, others | {summed: member}, return_weights=True, implementation=name
            )
            return jnp.sum(y**2) + jnp.sum(weights**3)

        return jax.vmap(jax.grad(loss, argnums=(0, 1)), in_axes=(None, 0))(arrays, members)

    _close(gradients(implementation), gradients("xla"))


@every_op
@every_compiled
def test_it_can_be_differentiated_twice(op, implementation):
    arrays = TABLE[op].arrays(SMALL)

    def second(name):
        def loss(a):
            y, weights = TABLE[op](
                SMALL, a, return_weights=True, dropout=0.2, key=KEY, implementation=name
            )
            return jnp.sum(y**3) + jnp.sum(weights**2)

        def slope(a):
            return sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(jax.grad(loss)(a)))

        return jax.jit(jax.grad(slope))(arrays)

    _close(second(implementation), second("xla"))


@every_op
def test_forward_mode_of_the_reference_agrees_with_its_reverse_mode(op):
    arrays = TABLE[op].arrays(BUILT["isolated_nodes"])
    check_forward_mode(
        lambda a: TABLE[op](BUILT["isolated_nodes"], a, implementation="xla"), arrays
    )


@every_op
@every_implementation
def test_what_is_summed_may_be_k_sparse(op, implementation):
    graph = BUILT["bipartite"]
    arrays = TABLE[op].arrays(graph, full=False)
    summed = TABLE[op].summed

    def loss(x, sparse):
        kept = ops.maxk(x, 2)
        given = arrays | {summed: kept if sparse else kept.todense()}
        return jnp.sum(TABLE[op](graph, given, implementation=implementation) ** 2)

    made = jax.value_and_grad(loss)(arrays[summed], True)
    _close(made, jax.value_and_grad(loss)(arrays[summed], False))


@every_op
@every_compiled
def test_bits_repeat_from_run_to_run(op, implementation):
    graph = BUILT["hub_sender_spans_tasks"]
    arrays = TABLE[op].arrays(graph)
    with jaxgnn.deterministic():
        first, second = (
            value_and_gradients(TABLE[op], graph, arrays, implementation) for _ in range(2)
        )
    assert_bit_equal(first, second)


@every_op
@every_implementation
def test_a_node_that_is_not_finite_spoils_only_those_that_hear_it(op, implementation):
    arrays = TABLE[op].arrays(SMALL)
    clean = TABLE[op](SMALL, arrays, implementation=implementation)
    summed = TABLE[op].summed
    spoiled = arrays | {summed: arrays[summed].at[3].set(jnp.nan)}
    y = TABLE[op](SMALL, spoiled, implementation=implementation)
    _close(y[:3], clean[:3])
    assert np.isnan(y[3]).all()


@every_op
def test_weights_and_scales_of_the_graph_are_ignored(op):
    graph = BUILT["sym_weighted"]
    arrays = TABLE[op].arrays(graph)
    bare = CSRGraph(graph.indptr, graph.indices, num_cols=graph.num_cols)

    def program(graph):
        return jax.jit(functools.partial(TABLE[op], graph)).lower(arrays).as_text()

    assert program(graph) == program(bare)


@every_compiled
def test_the_compiled_kernels_make_no_array_of_edges_times_width(implementation):
    graph = BUILT["unweighted"]
    q, k, v = (random_array((50, HEADS, DIM), "float32", seed=i) for i in range(3))

    def loss(q, k, v):
        return jnp.sum(ops.dot_attention(graph, q, k, v, implementation=implementation) ** 2)

    program = jax.make_jaxpr(jax.grad(loss, argnums=(0, 1, 2)))(q, k, v)
    largest = max(int(np.prod(v.aval.shape)) for eqn in program.jaxpr.eqns for v in eqn.outvars)
    assert largest < graph.num_edges * HEADS
