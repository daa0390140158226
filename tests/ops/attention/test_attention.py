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
from jaxgnn.testing import assert_bit_equal, check_forward_mode
from tests.ops._table import BARE, BUILT
from tests.ops.attention._attention import (
    COMPILED,
    HEADS,
    IMPLEMENTATIONS,
    SHARED,
    TABLE,
    cotangents_of,
    value_and_gradients,
)
from tests.ops.attention._checks import check_every_gradient, largest_terms

# Most of the time is the compilation of plain JAX; the formulas of each op are tested as users have
# them compiled.
pytestmark = pytest.mark.usefixtures("compiled_quickly")

SMALL = CSRGraph.from_edges([0, 1, 2, 0, 1, 3], [1, 1, 1, 0, 0, 3], 4)
KEY = jax.random.key(7)

every_op = pytest.mark.parametrize("op", TABLE)
every_implementation = pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
every_compiled = pytest.mark.parametrize("implementation", COMPILED)


def _close(actual, expected, rtol=1e-4):
    """Asserts that two trees are equal, each array up to ``rtol`` of its own largest number."""
    named = jax.tree_util.tree_leaves_with_path(expected)
    for a, (path, e) in zip(jax.tree.leaves(actual), named, strict=True):
        e = np.asarray(e, np.float32)
        options = {"rtol": rtol, "atol": rtol * np.abs(e).max(initial=0.0)}
        name = jax.tree_util.keystr(path)
        np.testing.assert_allclose(np.asarray(a, np.float32), e, **options, err_msg=name)


@pytest.mark.costly(3)
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


@pytest.mark.costly(3)
@every_op
@every_compiled
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_short_dtypes_are_rounded_once(op, dtype, implementation):
    check_every_gradient(op, "bipartite", implementation, dtype)


@pytest.mark.costly
@every_op
@every_compiled
def test_a_hub_in_pieces_equals_the_reference(op, implementation):
    # More edges than a task of the compiled kernels takes, with scores that rise along the row.
    graph = BARE["hub_row_spans_tasks"]
    arrays = TABLE[op].arrays(graph, full=False)
    ramp = jnp.linspace(-30.0, 30.0, graph.num_edges)[:, None]
    logits = jnp.broadcast_to(ramp, (graph.num_edges, HEADS))
    arrays |= {"edge_logits": logits}
    made, gradients = value_and_gradients(TABLE[op], graph, arrays, implementation)
    expected, wanted = value_and_gradients(TABLE[op], graph, arrays, "xla")
    _close(made, expected, rtol=1e-3)
    # All scores of a head shift with the receiver's number, so terms of its gradient cancel.
    given = [np.asarray(array, np.float64) for array in arrays.values()]
    dy = [np.asarray(array) for array in cotangents_of(expected)]
    terms = largest_terms(TABLE[op], graph, tuple(arrays), given, map(np.asarray, expected), dy)
    for name, largest in zip(arrays, terms, strict=True):
        atol = 1e-3 * max(largest, np.abs(wanted[name]).max())
        np.testing.assert_allclose(gradients[name], wanted[name], rtol=0, atol=atol, err_msg=name)


@pytest.mark.costly
@every_op
@every_compiled
def test_dropout_leaves_out_the_same_edges_in_every_implementation(op, implementation):
    graph = BARE["padding_edges"]
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


@pytest.mark.costly
@every_op
def test_dropout_keeps_the_expectation(op):
    arrays = TABLE[op].arrays(SMALL, full=False)
    exact = TABLE[op](SMALL, arrays)

    @jax.jit
    def dropped(keys):
        return jax.lax.map(lambda key: TABLE[op](SMALL, arrays, dropout=0.25, key=key), keys)

    mean = dropped(jax.random.split(KEY, 1000)).mean(0)
    np.testing.assert_allclose(mean, exact, atol=0.1)


@pytest.mark.costly(3)
@every_op
@every_implementation
def test_leading_axes_share_the_graph_and_draw_for_themselves(op, implementation):
    graph = BARE["bipartite"]
    batched = TABLE[op].arrays(graph, batch=(2, 2))

    @jax.jit
    def run(batched):
        call = functools.partial(TABLE[op], graph, implementation=implementation)
        members = [
            call({n: a if n in SHARED else a[member] for n, a in batched.items()})
            for member in ((0, 1), (1, 0))
        ]
        twice = {n: a if n in SHARED else jnp.stack([a[0, 0]] * 2) for n, a in batched.items()}
        return call(batched), members, call(twice, dropout=0.5, key=KEY)

    together, members, (first, second) = run(batched)
    _close([together[0, 1], together[1, 0]], members)
    assert (np.asarray(first) != np.asarray(second)).any()


@pytest.mark.costly
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

        mapped = jax.vmap(jax.grad(loss, argnums=(0, 1)), in_axes=(None, 0))
        return jax.jit(mapped)(arrays, members)

    _close(gradients(implementation), gradients("xla"))


@pytest.mark.costly
@every_op
@every_compiled
def test_jacobians_are_those_of_the_plain_formula(op, implementation):
    # Only the gradients of the result are mapped here, neither the arrays nor the result.
    arrays = TABLE[op].arrays(SMALL, full=op == "dot_attention")

    def jacobian(name):
        def attended(arrays):
            y, weights = TABLE[op](SMALL, arrays, return_weights=True, implementation=name)
            return jnp.sum(y**2, axis=(1, 2)), jnp.sum(weights**2, axis=0)

        return jax.jit(jax.jacrev(attended))(arrays)

    _close(jacobian(implementation), jacobian("xla"))


@pytest.mark.costly
@every_op
def test_forward_mode_of_the_reference_agrees_with_its_reverse_mode(op):
    arrays = TABLE[op].arrays(BARE["isolated_nodes"])
    check_forward_mode(lambda a: TABLE[op](BARE["isolated_nodes"], a, implementation="xla"), arrays)


@pytest.mark.again("tests/ops/attention/test_attention_second_order.py")
@pytest.mark.costly
@pytest.mark.parametrize("op", ["gat_attention", "dot_attention"])
@every_compiled
def test_k_sparse_values_can_be_differentiated_twice(op, implementation):
    arrays = TABLE[op].arrays(SMALL, full=op == "dot_attention")

    def second(name):
        def loss(a):
            given = a | {"v": ops.maxk(a["v"], 2)}
            return jnp.sum(TABLE[op](SMALL, given, implementation=name) ** 3)

        def slope(a):
            return sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(jax.grad(loss)(a)))

        return jax.jit(jax.grad(slope))(arrays)

    _close(second(implementation), second("xla"))


@pytest.mark.parametrize("op", ["gat_attention", "dot_attention"])
@every_compiled
def test_k_sparse_values_without_edges_sum_to_zero(op, implementation):
    graph = CSRGraph.from_edges(np.zeros(0, np.int32), np.zeros(0, np.int32), 3)
    arrays = TABLE[op].arrays(graph, full=False)
    kept = arrays | {"v": ops.maxk(arrays["v"], 2)}
    y = TABLE[op](graph, kept, implementation=implementation)
    assert y.shape[:2] == (3, HEADS) and not np.asarray(y).any()


@pytest.mark.costly
@every_op
@every_implementation
def test_what_is_summed_may_be_k_sparse(op, implementation):
    graph = BARE["bipartite"]
    arrays = TABLE[op].arrays(graph, full=False)
    summed = TABLE[op].summed

    def loss(x, sparse):
        kept = ops.maxk(x, 2)
        given = arrays | {summed: kept if sparse else kept.todense()}
        return jnp.sum(TABLE[op](graph, given, implementation=implementation) ** 2)

    @jax.jit
    def both(x):
        return [jax.value_and_grad(loss)(x, sparse) for sparse in (True, False)]

    _close(*both(arrays[summed]))


@pytest.mark.costly
@every_op
@every_compiled
def test_bits_repeat_from_run_to_run(op, implementation):
    graph = BARE["hub_sender_spans_tasks"]
    arrays = TABLE[op].arrays(graph)
    with jaxgnn.deterministic():
        run = functools.partial(value_and_gradients, TABLE[op], graph, arrays, implementation)
        assert_bit_equal(run(), run())


@pytest.mark.costly
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
def test_weights_and_scales_of_the_graph_are_refused(op):
    graph = BUILT["sym_weighted"]
    arrays = TABLE[op].arrays(graph)
    with pytest.raises(ValueError, match=f"^{op}: graph must be without weights and normalisation"):
        TABLE[op](graph, arrays)
    bare = CSRGraph(graph.indptr, graph.indices, num_cols=graph.num_cols)

    def program(graph):
        return jax.jit(functools.partial(TABLE[op], graph)).lower(arrays).as_text()

    assert program(graph.without_weights()) == program(bare)
